#!/bin/sh
# mla-calibrate fp8 --keep: killed after a pass and started again, it goes on and writes what an uninterrupted run writes.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid

mkdir "$TMP/a" "$TMP/b"
cp "$BASE"/* "$TMP/a"
cp "$BASE"/* "$TMP/b"
OPTIONS="--tokens 12300 --row-tokens 64 --judge-tokens 0 --keep $TMP/kept"
# shellcheck disable=SC2086  # words; the program itself in the background: a function's shell would take the signal
"$BIN/mla-calibrate" fp8 "$TMP/a" $OPTIONS >"$TMP/out" 2>"$TMP/err" &
pid=$!
n=0
while [ ! -e "$TMP/kept" ] && kill -0 "$pid" 2>/dev/null && [ $n -lt 3000 ]; do
    sleep 0.1
    n=$((n + 1))
done
kill -9 "$pid"
wait "$pid" 2>/dev/null
if [ -e "$TMP/kept" ] && [ ! -e "$TMP/a/mla_kv_scales.safetensors" ]; then pass; else fail "killed between passes: ranges kept, nothing written"; fi
run "$BIN/mla-calibrate" fp8 "$TMP/a" --tokens 9000 --row-tokens 64 --judge-tokens 0 --keep "$TMP/kept"
rc_is 2 "kept ranges of another run"
has err "another model, text or options" "kept ranges of another run"
# shellcheck disable=SC2086
run "$BIN/mla-calibrate" fp8 "$TMP/a" $OPTIONS
rc_is 0 "taken up again"
has err "going on after" "taken up again"
if [ ! -e "$TMP/kept" ]; then pass; else fail "the kept file is still there"; fi
# shellcheck disable=SC2086
run "$BIN/mla-calibrate" fp8 "$TMP/b" $OPTIONS
rc_is 0 "uninterrupted"
for f in mla_kv_scales.safetensors mla_kv_scales.json config.json; do
    if cmp -s "$TMP/a/$f" "$TMP/b/$f"; then pass; else fail "$f differs from that of an uninterrupted run"; fi
done
finish calibrate_keep
