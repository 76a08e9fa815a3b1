#!/bin/sh
# mla-retrofit build killed at KILLS (5) moments spread over the whole of it: no output appears before it is whole, and the
# run after the kill, continuing from what is left, ends with the same root digest. `make check-kill`: 200, a part of them
# (PART of PARTS) in each of several runs of this script, each build on THREADS.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=${BASE:-$ROOT/tests/fixtures/tiny-hybrid}
RF=$BIN/mla-retrofit
KILLS=${KILLS:-5} PART=${PART:-0} PARTS=${PARTS:-1}

build() { # OUT, options; the program itself when run in the background, so that the kill reaches it
    out=$1
    shift
    exec "$RF" build "$BASE" "$out" --keep 0.5 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560 --threads "${THREADS:-2}" "$@"
}
digest() { sed -n 's/.*"root_digest": "sha256:\([0-9a-f]*\)".*/\1/p' "$1/mla_receipt.json" | tail -n 1; }

start=$(date +%s%N)
(build "$TMP/a" --quiet >/dev/null)
RC=$?
span=$(($(date +%s%N) - start))
: >"$TMP/out" && : >"$TMP/err"
rc_is 0 'a build that is not killed'
want=$(digest "$TMP/a")
i=$PART n=0 whole=0 continued=0
while [ $i -lt "$KILLS" ]; do
    build "$TMP/k" --quiet >/dev/null 2>&1 &
    pid=$!
    sleep "$(awk "BEGIN{srand($i * 7 + 1); printf \"%.4f\", ($i + rand()) / $KILLS * $span / 1e9}")"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    if [ -d "$TMP/k" ]; then
        whole=$((whole + 1))
    else
        [ -d "$TMP/k.partial" ] && continued=$((continued + 1))
        RC=0
        (build "$TMP/k" >"$TMP/out" 2>"$TMP/err") || RC=$?
        rc_is 0 "rerun after kill $i"
    fi
    if [ "$(digest "$TMP/k")" = "$want" ]; then pass; else fail "root digest after kill $i: expected $want, found $(digest "$TMP/k")"; fi
    rm -rf "$TMP/k" "$TMP/k.partial"
    i=$((i + PARTS)) n=$((n + 1))
done
if [ $continued -gt 0 ]; then pass; else fail "no kill came while a build was under way"; fi
echo "kill: $n kills, $continued runs continued, $whole had ended"
finish kill
