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

# a stored scale of the queries grows with them, one of the probabilities stays; neither keeps the folder from opening
query_scales() { # FOLDER: q_scale 0.25 and prob_output_scale 0.5 in every layer, a file of their own
    python3 - "$1" <<'P'
import json, struct, sys
d = sys.argv[1] + "/"
index = json.load(open(d + "model.safetensors.index.json"))
head, data = {}, b""
for layer in range(2):
    for suffix, value in (("q_scale", 0.25), ("prob_output_scale", 0.5)):
        name = f"model.layers.{layer}.self_attn.{suffix}"
        head[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
        data += struct.pack("<f", value)
        index["weight_map"][name] = "more_scales.safetensors"
text = json.dumps(head).encode()
open(d + "more_scales.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump(index, open(d + "model.safetensors.index.json", "w"))
P
}
check_query_scales() { # FOLDED
    python3 - "$1" <<'P'
import json, struct, sys
d = sys.argv[1] + "/"
exponents = json.load(open(d + "config.json"))["mla_kv_scales"]["exponents"]
raw = open(d + "more_scales.safetensors", "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + n])
assert any(exponents[str(layer)][0] for layer in range(2)), exponents
for layer in range(2):
    at = {k: head[f"model.layers.{layer}.self_attn.{k}"]["data_offsets"][0] for k in ("q_scale", "prob_output_scale")}
    value = {k: struct.unpack_from("<f", raw, 8 + n + v)[0] for k, v in at.items()}
    assert value == {"q_scale": 0.25 * 2.0 ** exponents[str(layer)][0], "prob_output_scale": 0.5}, (layer, value, exponents)
P
}
if python3 "$ROOT/tests/e2e/make_llama.py" "$TMP/llama" llama '{}'; then
    cp "$BASE/tokenizer.json" "$TMP/llama"
    run "$CAL" fp8 "$TMP/llama" --tokens 1024 --judge-tokens 0
    query_scales "$TMP/llama"
    run "$CAL" fold "$TMP/llama" "$TMP/llama-folded" --quiet
    rc_is 0 'query scales: fold'
    # shellcheck disable=SC2086
    run "$V" parity "$TMP/llama-folded" --against "$TMP/llama" --corpus "$EV" $QUICK --max-kld 1e-30
    rc_is 0 'query scales: the same answers'
    if check_query_scales "$TMP/llama-folded"; then pass; else fail 'query scales: values'; fi
else
    skip 'query scales' 'no python3'
fi

# plain matrices are needed where scales go; a retrofit's factors are plain on any base
"$BUILD/tests/tools/encode_model" "$BASE" "$TMP/awq" awq
run "$CAL" fp8 "$TMP/awq" --tokens 1024 --judge-tokens 0
run "$CAL" fold "$TMP/awq" "$TMP/awq-folded"
rc_is 3 'quantized values'
has err 'layers.1.self_attn.o_proj' 'quantized values'
if [ -e "$TMP/awq-folded" ] || [ -e "$TMP/awq-folded.partial" ]; then fail 'a refused fold left files'; else pass; fi
finish fold
