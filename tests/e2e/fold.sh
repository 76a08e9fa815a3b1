#!/bin/sh
# Folded scales: the same answers bit for bit, an FP8 cache at 1.0 that costs what a scaled one does, nothing left for an engine to lose.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
CAL=$BIN/mla-calibrate
V=$BIN/mla-verify
EV=$ROOT/calib/evaluation.jsonl
QUICK="--rows 1 --row-tokens 384 --no-decode --aa-positions 0 --min-agreement 0 --quiet"
cp -r "$BASE" "$TMP/gqa"
chmod -R u+w "$TMP/gqa"
run "$CAL" fold "$TMP/gqa" "$TMP/none"
rc_is 2 'nothing to fold'
one_line 'nothing to fold'
run "$BIN/mla-retrofit" build "$BASE" "$TMP/n" --keep 1
for m in gqa n; do
    run "$CAL" fp8 "$TMP/$m" --tokens 2048 --judge-tokens 0
    run "$CAL" fold "$TMP/$m" "$TMP/$m-folded" --json --quiet
    rc_is 0 "$m: fold"
    has out '"values_rounded": 0' "$m: powers of two are exact"
    # shellcheck disable=SC2086
    run "$V" parity "$TMP/$m-folded" --against "$TMP/$m" --corpus "$EV" $QUICK --max-kld 1e-30
    rc_is 0 "$m: the same answers"
    # shellcheck disable=SC2086
    run "$V" parity "$TMP/$m-folded" --against "$BASE" --corpus "$EV" --kv-dtype fp8 $QUICK --max-kld 0.003
    rc_is 0 "$m: FP8 cache at 1.0"
    run "$V" receipts "$TMP/$m-folded" --no-receipt --consumer vllm-0.33 --consumer sglang --quiet
    rc_is 0 "$m: every consumer"
    has out '0 dropped; 4 of 4 attention layers calibrated' "$m: every consumer"
    if grep -rqF k_scale "$TMP/$m-folded/model.safetensors.index.json" || [ -e "$TMP/$m-folded/mla_kv_scales.safetensors" ]; then fail "$m: scales were left behind"; else pass; fi
done
run "$V" receipts "$TMP/n-folded"
rc_is 0 'receipt of the folded retrofit'
run "$CAL" fold "$TMP/n" "$TMP/n-folded"
rc_is 2 'an output that exists'
run "$CAL" fold "$TMP/n-folded" "$TMP/twice" --json --quiet
rc_is 0 'folded twice: scales of 1.0 change nothing'
has out '"tensors": 0' 'folded twice'

# plain matrices are needed where scales go; a retrofit's factors are plain on any base
"$BUILD/tests/tools/encode_model" "$BASE" "$TMP/awq" awq
run "$CAL" fp8 "$TMP/awq" --tokens 1024 --judge-tokens 0
run "$CAL" fold "$TMP/awq" "$TMP/awq-folded"
rc_is 3 'quantized values'
has err 'layers.1.self_attn.o_proj' 'quantized values'
if [ -e "$TMP/awq-folded" ] || [ -e "$TMP/awq-folded.partial" ]; then fail 'a refused fold left files'; else pass; fi
finish fold
