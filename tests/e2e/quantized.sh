#!/bin/sh
# A quantized base (EXL3, 4 bits, made by the format's own quantizer) works like any other: it runs, is inspected, planned
# and retrofitted as it is stored; lossless layouts are exact against it; its files stay byte-identical.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
PLAIN=$ROOT/tests/fixtures/tiny-hybrid
BASE=$TMP/exl3
FEW="--corpus $ROOT/calib/tune.jsonl --calibration-tokens 2560"
mkdir "$BASE"
cp "$ROOT"/tests/fixtures/golden-quant/tiny-hybrid-exl3/* "$PLAIN/tokenizer.json" "$PLAIN/generation_config.json" "$BASE"

number() { sed -n "s/^ *\"$1\": \([-0-9.e]*\),*\$/\1/p" "$TMP/out" | head -n 1; }
# within LOW VALUE HIGH what
within() {
    if [ -n "$2" ] && awk "BEGIN{exit !($1 <= $2 && $2 <= $3)}"; then pass; else fail "$4: $2 is not in [$1, $3]"; fi
}
same_file() { if cmp -s "$1" "$2"; then pass; else fail "$2 is not the base's"; fi; }

# the maker's own figures against the bf16 model: KLD 0.0199, top-1 agreement 0.929 on 1,024 positions
run $MV parity "$BASE" --against "$PLAIN" --rows 2 --row-tokens 512 --no-decode --min-agreement 0.5 --json --quiet
rc_is 0 "EXL3 against bf16"
within 0.91 "$(number agreement)" 0.96 "top-1 agreement of EXL3 with bf16"
within 0.015 "$(sed -n '/"kld": {/,/}/p' "$TMP/out" >"$TMP/kld" && sed -n 's/^ *"mean": \([-0-9.e]*\),$/\1/p' "$TMP/kld" | head -n 1)" 0.025 "KLD of EXL3 from bf16"

run $MV inspect "$BASE"
rc_is 0 inspect
has out "EXL3 4-bit" inspect
has out "EXL3 6-bit" inspect
run $RF plan "$BASE" --keep 0.5
rc_is 0 plan
has out "96 of 224" plan
run $MV capacity "$BASE"
rc_is 0 capacity

# full rank: exact, base files linked or copied unchanged, config kept
run $RF build "$BASE" "$TMP/full" --keep 1
rc_is 0 "lossless build"
run $MV parity "$TMP/full" --against "$BASE" --rows 1 --row-tokens 512 --max-kld 1e-6 --min-agreement 0.001 --no-decode --json --quiet
rc_is 0 "lossless build against its base"
for f in model.safetensors tokenizer.json generation_config.json; do same_file "$BASE/$f" "$TMP/full/$f"; done
for t in '"quant_method": "exl3"' '"codebook": "mul1"' '"head_bits": 6' '"architectures": ['; do
    if grep -qF "$t" "$TMP/full/config.json"; then pass; else fail "config.json of the lossless build lacks $t"; fi
done
run $MV receipts "$TMP/full"
rc_is 0 "receipts of the lossless build"

# half the cache, in one step and in three: the same factors
# shellcheck disable=SC2086  # $FEW is several words
run $RF build "$BASE" "$TMP/half" --keep 0.5 $FEW --fast
rc_is 0 "build"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/one" --keep 0.5 --threads 1 --stream-layers $FEW --fast
rc_is 0 "build with one thread and streamed layers"
same_file "$TMP/half/mla_factors-00001-of-00001.safetensors" "$TMP/one/mla_factors-00001-of-00001.safetensors"
# shellcheck disable=SC2086
run $RF stats "$BASE" "$TMP/x.mlastats" $FEW --held-out "$ROOT/calib/tune.jsonl"
rc_is 0 stats
run $RF solve "$BASE" "$TMP/f.safetensors" "$TMP/x.mlastats" --keep 0.5
rc_is 0 solve
run $RF graft "$BASE" "$TMP/f.safetensors" "$TMP/graft"
rc_is 0 graft
run $MV receipts "$TMP/graft"
rc_is 0 "receipts of a graft"
run $MV parity "$TMP/half" --against "$BASE" --rows 1 --row-tokens 256 --max-kld 0.5 --min-agreement 0.001 --no-decode --json --quiet
rc_is 0 "half the cache against the base"
run $RF build "$TMP/half" "$TMP/again" --keep 0.5
rc_is 3 "a retrofit as base"

# config and tensors that contradict each other
spoil() { # NAME SED what MESSAGE
    cp -r "$BASE" "$TMP/$1"
    sed "$2" "$BASE/config.json" >"$TMP/$1/config.json"
    run $RF plan "$TMP/$1" --keep 0.5
    rc_is 3 "$3"
    has err "$4" "$3"
}
spoil method 's/"quant_method": "exl3"/"quant_method": "exl9"/' "an unknown method" 'quant_method "exl9"'
spoil book 's/"codebook": "mul1"/"codebook": "mcg"/' "another codebook" "tensors of codebook mul1, but the exl3 config says mcg"
spoil kind 's/"quant_method": "exl3"/"quant_method": "fp8"/' "another method" "stored as EXL3"
spoil dims 's/"intermediate_size": 512/"intermediate_size": 300/' "other dims" "mlp.gate_proj.trellis: expected [300, 256], found [512, 256] as EXL3 4-bit"
finish quantized
