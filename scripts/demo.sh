#!/bin/sh
# The whole job on one base model: build at two sizes, calibrate FP8, verify against the base and its recorded answers.
# usage: demo.sh BASE OUT_FOLDER REFERENCE [options for build...]
set -eu
bin=${BUILD:-build}/bin base=$1 out=$2 ref=$3
shift 3
mkdir -p "$out"
say() { printf '\n== %s\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
# A gate that may fail is part of what the demo shows; anything but 0 and 1 is an error.
gate() { printf '$ %s\n' "$*"; rc=0; "$@" || rc=$?; [ "$rc" -le 1 ] || exit "$rc"; echo "(exit code $rc)"; }
fresh() { rm -rf "$1" "$1.partial"; }

say "What a build would do"
run "$bin/mla-retrofit" plan "$base" --keep 0.5

say "1. Full rank: exact by construction, and proven"
fresh "$out/lossless"
run "$bin/mla-retrofit" build "$base" "$out/lossless" --keep 1
gate "$bin/mla-verify" parity "$out/lossless" --reference "$ref"

say "2. Statistics, collected once for every budget below"
run "$bin/mla-retrofit" stats "$base" "$out/base.mlastats" "$@"

say "3. Three quarters of the KV values: build, FP8 calibration, verdict"
fresh "$out/keep75"
run "$bin/mla-retrofit" build "$base" "$out/keep75" --keep 0.75 --stats "$out/base.mlastats" --fast
run "$bin/mla-calibrate" fp8 "$out/keep75" --tokens 16384 --judge-tokens 4096
gate "$bin/mla-verify" parity "$out/keep75" --reference "$ref" --against "$base" --kv-dtype fp8 --min-agreement 0.97 \
    --markdown "$out/keep75.md" --junit "$out/keep75.xml" --svg "$out/keep75.svg"

say "4. Half of the KV values in ${GROUPS_DEMO:-2} groups (GLA)"
fresh "$out/gla-keep50"
run "$bin/mla-retrofit" build "$base" "$out/gla-keep50" --keep 0.5 --groups "${GROUPS_DEMO:-2}" --stats "$out/base.mlastats" --fast
gate "$bin/mla-verify" parity "$out/gla-keep50" --reference "$ref" --min-agreement 0.97 --no-decode

say "5. Capacity and receipts"
run "$bin/mla-verify" capacity "$out/keep75" --gpu-memory 24GB --context 8192
run "$bin/mla-verify" receipts "$out/keep75"

say "Reports of the FP8 build: $out/keep75.md, .xml, .svg"
sed -n 1,40p "$out/keep75.md"
