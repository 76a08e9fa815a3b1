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
factors=$(sha256sum "$TMP/half.safetensors" | cut -c1-64)
: >"$TMP/bases"
# The receipt of a graft names the factors file, the same for every format, and the base, another one for each.
tied_to_inputs() {
    r=$1/mla_receipt.json
    if sed -n '/"factors_source": {/,/}/p' "$r" | grep -qF "\"sha256\": \"sha256:$factors\""; then pass; else fail "$1: the receipt names other factors"; fi
    sed -n '/^  "base": {/,/^  }/p' "$r" | sed -n 's/^    "root_digest": "\(.*\)"$/\1/p' >>"$TMP/bases"
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
    tied_to_inputs "$TMP/$f-half"
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
each gptq-act 0.02 0.2 '"-:.*\\.self_attn\\.mla\\."'
each auto-round 0.02 0.2 "$M"
each modelopt-fp8 0.001 0.02 "$M"
each modelopt-nvfp4 0.02 0.2 "$M"
each nvfp4 0.02 0.2 "$M"
each mxfp4 0.03 0.3 "$M"
if [ "$(sort -u "$TMP/bases" | grep -c '^sha256:[0-9a-f]\{64\}$')" -eq 14 ]; then pass; else fail "fourteen bases, but other digests: $(cat "$TMP/bases")"; fi

# What a graft must keep: tied and padded embeddings, an MTP layer in another format than the trunk, vision in bf16.
"$BUILD/tests/tools/encode_model" "$BASE" "$TMP/odd" odd || fail 'odd: encode_model'
run $RF graft "$TMP/odd" "$TMP/full.safetensors" "$TMP/odd-full"
rc_is 0 'odd: graft'
run $V inspect "$TMP/odd-full"
for t in 'tied_embeddings           true' 'vocab                     2176' 'mtp_layers                1' 'vision                    true'; do has out "$t" 'odd: inspect'; done
kld "$TMP/odd-full" "$TMP/odd" 0 1e-6 'odd: full rank equals the base'
if cmp -s "$TMP/odd/model.safetensors" "$TMP/odd-full/model.safetensors"; then pass; else fail "odd: the base's shard changed"; fi
for t in '"tie_word_embeddings": true' '"vocab_size": 2176' '"format": "float-quantized"' "$M"; do
    if grep -qF -- "$t" "$TMP/odd-full/config.json"; then pass; else fail "odd: config.json lacks $t"; fi
done

# Statistics of the bf16 base for a build on the quantized one: said, and both bases in the receipt.
"$BUILD/tests/tools/encode_model" "$BASE" "$TMP/int4" int4 || fail 'int4: encode_model'
run $RF build "$TMP/int4" "$TMP/reused" --keep 0.5 --fast --stats "$TMP/base.mlastats"
rc_is 0 'build with statistics of another base'
has err 'was collected on another base' 'statistics of another base'
digest() { sed -n "s/^ *\"$2\": \"sha256:\([0-9a-f]*\)\",*\$/\1/p" "$1" | head -n 1; }
run $V parity "$TMP/int4" --against "$BASE" --rows 1 --row-tokens 16 --no-decode --aa-positions 0 --min-agreement 0 --json --quiet
theirs=$(sed -n '/"base": {/,/}/p' "$TMP/out" >"$TMP/side" && digest "$TMP/side" root_digest)
ours=$(sed -n '/"model": {/,/}/p' "$TMP/out" >"$TMP/side" && digest "$TMP/side" root_digest)
if [ -n "$theirs" ] && [ "$(digest "$TMP/reused/mla_receipt.json" statistics_base)" = "$theirs" ]; then pass; else fail 'the receipt lacks the base of the statistics'; fi
sed -n '/^  "base": {/,/^  }/p' "$TMP/reused/mla_receipt.json" >"$TMP/side"
if [ -n "$ours" ] && [ "$(digest "$TMP/side" root_digest)" = "$ours" ]; then pass; else fail 'the receipt lacks the base it was built on'; fi
run $V receipts "$TMP/reused"
rc_is 0 'receipts of a build with statistics of another base'
# shellcheck disable=SC2086
run $RF build "$TMP/int4" "$TMP/own" --keep 0.5 --fast $FEW
rc_is 0 'build with its own statistics'
if grep -q statistics_base "$TMP/own/mla_receipt.json"; then fail 'own statistics called those of another base'; else pass; fi
lacks err 'another base' 'own statistics'
finish encoded
