#!/bin/sh
# A virtual environment with packages in it, made once and kept until the list changes.
# usage: venv.sh FOLDER PACKAGE...   Exits with 1 and a note on stderr where they cannot be had.
set -eu
dir=$1
shift
[ -f "$dir/packages" ] && [ "$(cat "$dir/packages")" = "$*" ] && exit 0
fail() { echo "venv: $1; needed: $2" >&2; exit 1; }
python3 -m venv "$dir" >/dev/null 2>&1 || fail "python3 -m venv does not work here" "$*"
echo "venv: installing into $dir: $*" >&2
"$dir/bin/python" -m pip install -q --disable-pip-version-check "$@" >"$dir/pip.log" 2>&1 || fail "pip cannot install here ($(tail -n 1 "$dir/pip.log"))" "$*"
echo "$*" >"$dir/packages"
