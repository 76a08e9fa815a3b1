#!/bin/sh
# mla-retrofit build --sequential: the same bytes for any number of threads, a folder that proves itself, the
# choice in the receipt, layouts that cannot have it refused by name.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
head -n 12 "$ROOT/calib/tune.jsonl" >"$TMP/held.jsonl" # most of the time goes into held-out text
FEW="--corpus $ROOT/calib/calibration.jsonl --held-out $TMP/held.jsonl --calibration-tokens 2560 --row-tokens 256 --allocation uniform"
F=mla_factors-00001-of-00001.safetensors

for t in 1 2; do
    # shellcheck disable=SC2086  # $FEW is several words
    run $RF build "$BASE" "$TMP/s$t" --sequential --keep 0.25 --refine-steps 2 --threads $t $FEW
    rc_is 0 "sequential, $t threads"
done
if cmp -s "$TMP/s1/$F" "$TMP/s2/$F"; then pass; else fail "factors differ by threads"; fi
if grep -q '"sequential": true' "$TMP/s1/mla_receipt.json"; then pass; else fail "sequential is not in the receipt"; fi
run $MV receipts "$TMP/s1"
rc_is 0 "receipts"
run $MV parity "$TMP/s1" --against "$BASE" --rows 1 --row-tokens 128 --min-agreement 0.001
rc_is 0 "the folder runs"
run $RF build "$BASE" "$TMP/no" --sequential --keep 0.5 --layout p
rc_is 2 "layout p"
has err "layouts n and rebuild" "layout p"
run $RF build "$BASE" "$TMP/no" --sequential --keep 0.5 --layout shared-rotary
rc_is 2 "layout shared-rotary"
printf '{"sequential": 1}' >"$TMP/r.json"
run $RF build "$BASE" "$TMP/no" --recipe "$TMP/r.json" --keep 0.5
rc_is 3 "a number"
has err "sequential: expected true or false" "a number"
if [ -e "$TMP/no" ]; then fail "a refused build left a folder"; else pass; fi
finish sequential
