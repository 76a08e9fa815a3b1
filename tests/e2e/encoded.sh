#!/bin/sh
# One factors file serves the same model in every weight format: whole checkpoints in each (tests/tools/encode_model) are opened, run,
# grafted and proven; base shards stay byte-identical, exclusions are added in the format's own spelling, receipts hold.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
RF=$BIN/mla-retrofit
V=$BIN/mla-verify
BASE=$ROOT/tests/fixtures/tiny-hybrid
FEW="--corpus $ROOT/calib/tune.jsonl --calibration-tokens 2560"
# shellcheck disable=SC2086  # $FEW is several words
run $RF stats "$BASE" "$TMP/base.mlastats" $FEW
rc_is 0 'statistics of the bf16 base'
run $RF solve "$BASE" "$TMP/full.safetensors" "$TMP/base.mlastats" --keep 1
run $RF solve "$BASE" "$TMP/half.safetensors" "$TMP/base.mlastats" --keep 0.5
rc_is 0 'factors of the bf16 base'
mean() { sed -n '/"kld": {/,/}/p' "$TMP/out" | sed -n 's/^ *"mean": \([-0-9.e]*\),*$/\1/p' | head -n 1; }
# kld MODEL AGAINST LOW HIGH what
kld() {
    run $V parity "$1" --against "$2" --rows 1 --row-tokens 192 --no-decode --aa-positions 0 --min-agreement 0 --json --quiet
    k=$(mean)
    if awk "BEGIN {exit !($3 <= ${k:-9} && ${k:-9} <= $4)}"; then pass; else fail "$5: KLD ${k:-missing} is not in [$3, $4]"; fi
}
# each KLD LOW HIGH EXCLUSION: round-to-nearest noise of the format, and what the config must say of the factors
each() {
    f=$1
    "$BUILD/tests/tools/encode_model" "$BASE" "$TMP/$f" "$f" || fail "$f: encode_model"
    kld "$TMP/$f" "$BASE" "$2" "$3" "$f against bf16"
    run $RF graft "$TMP/$f" "$TMP/full.safetensors" "$TMP/$f-full"
    rc_is 0 "$f: graft at full rank"
    kld "$TMP/$f-full" "$TMP/$f" 0 1e-6 "$f: full rank equals the quantized base"
    run $RF graft "$TMP/$f" "$TMP/half.safetensors" "$TMP/$f-half"
    rc_is 0 "$f: graft"
    run $V receipts "$TMP/$f-half" --base "$TMP/$f"
    rc_is 0 "$f: receipts"
    if cmp -s "$TMP/$f/model.safetensors" "$TMP/$f-half/model.safetensors"; then pass; else fail "$f: the base's shard changed"; fi
    if grep -qF -- "$4" "$TMP/$f-half/config.json"; then pass; else fail "$f: config.json lacks $4"; fi
    sed 's/"quant_method": "[a-z0-9-]*"/"quant_method": "exl3"/' "$TMP/$f/config.json" >"$TMP/c"
    cp "$TMP/c" "$TMP/$f/config.json"
    run $V inspect "$TMP/$f"
    run $RF plan "$TMP/$f" --keep 0.5
    rc_is 3 "$f under another method's name"
    rm -rf "$TMP/$f" "$TMP/$f-full" "$TMP/$f-half"
}
M='model.language_model.layers.1.self_attn.mla.encoder'
each fp8 0.001 0.02 "$M"
each ct-fp8 0.001 0.02 "$M"
each int8 0.00001 0.002 "$M"
each int4 0.02 0.2 "$M"
each int4-asym 0.02 0.2 "$M"
each awq 0.02 0.2 "$M"
each gptq 0.02 0.2 '"-:.*\\.self_attn\\.mla\\."'
each gptq-v2 0.02 0.2 '"-:.*\\.self_attn\\.mla\\."'
each nvfp4 0.02 0.2 "$M"
each mxfp4 0.03 0.3 "$M"
finish encoded
