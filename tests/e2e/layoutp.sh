#!/bin/sh
# Layout p end to end: lossless is the base, MLA and GLA-2; ranks from a set; both spellings of names give the same logits;
# prefixes by graft; FP8 calibration; capacity and inspect know the divisors; what cannot be is refused with the reason.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
ROW="--rows 1 --row-tokens 384 --min-agreement 0.001 --no-decode --json"

for g in 1 2; do
    run $RF build "$BASE" "$TMP/l$g" --layout p --keep 1 --groups $g
    rc_is 0 "lossless build, $g groups"
    # shellcheck disable=SC2086  # $ROW is several words
    run $MV parity "$TMP/l$g" --against "$BASE" --max-kld 1e-6 $ROW
    rc_is 0 "lossless build against the base, $g groups"
done
run $MV receipts "$TMP/l1"
rc_is 0 "receipts of layout p"

run $RF stats "$BASE" "$TMP/x" --layout p --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560 --held-out "$ROOT/calib/tune.jsonl"
rc_is 0 "statistics of layout p"
run $RF build "$BASE" "$TMP/p" --layout p --rank 110 --allocation spectrum --stats "$TMP/x" --fast --groups 2 --json
rc_is 0 "build by the spectra"
ranks=$(sed -n 's/^ *"rank": \([0-9]*\),.*/\1/p' "$TMP/out" | grep -cE '^(32|96|224)$')
if grep -q '"rank_set"' "$TMP/out" && [ "$ranks" -eq 4 ]; then pass; else fail "ranks are not from the set 32, 96, 224"; fi
run $RF build "$BASE" "$TMP/o" --layout p --rank 110 --allocation spectrum --stats "$TMP/x" --fast --groups 2 --names mvla
rc_is 0 "build under the older names"
if grep -q Qwen3_5MVLAAbsorbedForCausalLM "$TMP/o/config.json" && grep -q '"mvla_ranks"' "$TMP/o/config.json"; then pass; else fail "config.json lacks the older names"; fi
run $MV receipts "$TMP/o"
rc_is 0 "receipts under the older names"
if cmp -s "$TMP/p/mla_factors-00001-of-00001.safetensors" "$TMP/o/mla_factors-00001-of-00001.safetensors"; then pass; else fail "names change the factors"; fi
# shellcheck disable=SC2086
run $MV parity "$TMP/o" --against "$TMP/p" --max-kld 0 $ROW
rc_is 0 "older names against newer ones: the same logits"
# shellcheck disable=SC2086
run $MV parity "$TMP/p" --against "$BASE" --max-kld 0.2 $ROW
rc_is 0 "layout p at about half the values"

# from text with everything at its default, and streamed layers: the same bytes
FEW="--corpus $ROOT/calib/tune.jsonl --calibration-tokens 2560"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/c" --layout p --rank 96 $FEW
rc_is 0 "build from text"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/s" --layout p --rank 96 --stream-layers --threads 1 $FEW
if cmp -s "$TMP/c/mla_receipt.json" "$TMP/s/mla_receipt.json"; then pass; else fail "streamed layers and one thread give other bytes"; fi

run $RF solve "$BASE" "$TMP/f" "$TMP/x" --layout p --keep 1 --groups 2 --nested --factors-dtype bfloat16
rc_is 0 "nested solve of layout p"
run $RF graft "$BASE" "$TMP/f" "$TMP/g" --rank 110 --allocation spectrum
rc_is 0 "graft of layout p"
run $RF build "$BASE" "$TMP/b" --layout p --rank 110 --allocation spectrum --stats "$TMP/x" --fast --groups 2 --factors-dtype bfloat16
if cmp -s "$TMP/g/mla_factors-00001-of-00001.safetensors" "$TMP/b/mla_factors-00001-of-00001.safetensors" && cmp -s "$TMP/g/config.json" "$TMP/b/config.json"; then pass; else fail "graft differs from a build"; fi

run $BIN/mla-calibrate fp8 "$TMP/p" --corpus "$ROOT/calib/tune.jsonl" --tokens 1024 --judge-tokens 512
rc_is 0 "FP8 calibration of layout p"
# shellcheck disable=SC2086
run $MV parity "$TMP/p" --against "$BASE" --max-kld 0.2 --kv-dtype fp8 $ROW
rc_is 0 "FP8 cache with log2 divisors"

run $MV capacity "$TMP/l1" --json
has out '"kv_bytes_per_token": 2080' "capacity: (224 + 32 + 4) x 2 bytes x 4 layers"
run $MV inspect "$TMP/l1" --json
has out '"divisors": 4' "inspect"
run $RF plan "$BASE" --layout p --rank 96 --json
has out '"divisor_values": 4' "plan"

run $RF build "$BASE" "$TMP/r" --layout p --keep 0.2
rc_is 2 "a budget below the smallest rank of the set"
has err "the smallest rank of the set is 32" "a budget below the set"
run $RF build "$BASE" "$TMP/r" --layout p --keep 0.5 --rank-set 10,5
rc_is 2 "a set that does not ascend"
run $RF build "$BASE" "$TMP/r" --layout p --keep 0.5 --stats "$TMP/nothing"
rc_is 3 "statistics that are not there"
finish layoutp
