#!/bin/sh
# mla-retrofit graft at smaller ranks: one nested factors file gives the bytes of a build at every rank, MLA and GLA-2,
# uniform and per-layer ranks; what cannot be cut is refused.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
RF=$BIN/mla-retrofit
FILE=mla_factors-00001-of-00001.safetensors

same_folder() { # what: factors and config of $TMP/b and $TMP/g; removes both
    if cmp -s "$TMP/b/$FILE" "$TMP/g/$FILE" && cmp -s "$TMP/b/config.json" "$TMP/g/config.json"; then pass; else fail "$1 differs from a build"; fi
    rm -rf "$TMP/b" "$TMP/g"
}

run $RF stats "$BASE" "$TMP/x.mlastats" --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560 --held-out "$ROOT/calib/tune.jsonl"
rc_is 0 "stats"
for g in 1 2; do
    run $RF solve "$BASE" "$TMP/f$g" "$TMP/x.mlastats" --keep 1 --nested --groups $g --factors-dtype bfloat16
    rc_is 0 "nested solve, $g groups"
    for k in 0.75 0.25; do
        run $RF build "$BASE" "$TMP/b" --keep $k --groups $g --stats "$TMP/x.mlastats" --fast --factors-dtype bfloat16
        run $RF graft "$BASE" "$TMP/f$g" "$TMP/g" --keep $k
        same_folder "graft --keep $k of $g groups"
    done
    run $RF build "$BASE" "$TMP/b" --keep 0.5 --groups $g --stats "$TMP/x.mlastats" --fast --factors-dtype bfloat16 --allocation spectrum --json
    ranks=$(sed -n 's/.*"rank": \([0-9]*\),.*/\1/p' "$TMP/out" | paste -sd, -)
    run $RF graft "$BASE" "$TMP/f$g" "$TMP/g" --keep 0.5 --allocation spectrum
    same_folder "graft --allocation spectrum of $g groups"
    run $RF build "$BASE" "$TMP/b" --keep 0.5 --groups $g --stats "$TMP/x.mlastats" --fast --factors-dtype bfloat16 --allocation spectrum
    run $RF graft "$BASE" "$TMP/f$g" "$TMP/g" --ranks "$ranks"
    rc_is 0 "graft --ranks $ranks"
    run $BIN/mla-verify receipts "$TMP/g"
    rc_is 0 "receipts of a graft by prefix"
    if grep -q '"prefix": true' "$TMP/g/mla_receipt.json"; then pass; else fail "the receipt does not say that the ranks are prefixes"; fi
    same_folder "graft --ranks of $g groups"
done

# full rank from a nested file is the exact identity
run $RF graft "$BASE" "$TMP/f2" "$TMP/g" --keep 1
run $BIN/mla-verify parity "$TMP/g" --against "$BASE" --rows 1 --row-tokens 256 --max-kld 1e-6 --min-agreement 0.001 --no-decode --json
rc_is 0 "lossless graft against the base"

run $RF graft "$BASE" "$TMP/f1" "$TMP/r" --ranks 32,32,32
rc_is 2 "three ranks for four layers"
run $RF graft "$BASE" "$TMP/f1" "$TMP/r" --ranks 32,x
rc_is 2 "a rank that is no number"
run $RF graft "$BASE" "$TMP/f1" "$TMP/r" --ranks 32,32,32,32 --keep 0.5
rc_is 2 "ranks beside a budget"
run $RF solve "$BASE" "$TMP/p" "$TMP/x.mlastats" --keep 1
run $RF graft "$BASE" "$TMP/p" "$TMP/r" --keep 0.5
rc_is 2 "a prefix of the identity"
has err "solve with --nested" "a prefix of the identity"
run $RF solve "$BASE" "$TMP/p" "$TMP/x.mlastats" --keep 0.75 --factors-dtype bfloat16
run $RF graft "$BASE" "$TMP/p" "$TMP/r" --keep 0.5
rc_is 0 "a prefix of plain bf16 factors"
has err "keep the fit of the larger one" "a prefix of plain bf16 factors"
finish nested
