#!/bin/sh
# Which engine gets which scales: every spelling that is written, replayed through every engine's loading.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
V=$BIN/mla-verify
calibrated() { # FOLDER CONSUMER: a fresh copy of the base with scales for it
    mkdir "$TMP/$1"
    cp "$BASE"/* "$TMP/$1"
    chmod -R u+w "$TMP/$1"
    run "$BIN/mla-calibrate" fp8 "$TMP/$1" --tokens 256 --judge-tokens 0 --consumer "$2"
    rc_is 0 "scales for $2"
}
# replay FOLDER CONSUMER CODE CONSUMED DROPPED LAYERS
replay() {
    run "$V" receipts "$TMP/$1" --no-receipt --consumer "$2" --quiet
    rc_is "$3" "$2 on $1"
    has out "): $4 KV scales consumed, $5 dropped; $6 of 4 attention layers calibrated" "$2 on $1"
}
# the tiny hybrid: 4 attention layers and one in the MTP head, keys and values
calibrated ct vllm
replay ct mla-toolkit 0 10 0 4
replay ct vllm-0.33 0 10 0 4
replay ct vllm-remap 1 0 10 0 # vLLM issue 54623
has out 'self_attn.k_scale: vllm-remap drops it: this spelling never reaches the Qwen3.5 family' 'the dropped scale is named'
replay ct vllm-twice 1 0 10 0
replay ct tensorrt-llm 1 0 10 0
has out 'hf_quant_config.json is missing' tensorrt-llm
calibrated mo vllm-remap
replay mo vllm-remap 0 10 0 4
replay mo vllm-0.33 0 10 0 4
replay mo vllm-twice 1 0 10 0
calibrated trt tensorrt-llm
replay trt tensorrt-llm 0 10 0 4
calibrated sg sglang
replay sg sglang 0 10 0 4
sed 's/"7": [0-9.e-]*/"7": 0/; s/float8_e4m3fn/fp8/' "$TMP/sg/kv_cache_scales.json" >"$TMP/t"
cp "$TMP/t" "$TMP/sg/kv_cache_scales.json"
run "$V" receipts "$TMP/sg" --no-receipt --consumer sglang
rc_is 1 'a wrong side file'
has out 'layer 7: expected a scale above zero' 'a wrong side file'
has out 'kv_cache.dtype: expected float8_e4m3fn, found fp8' 'a wrong side file'

# no quantization_config: engines create nothing to load into
python3 - "$TMP/ct/config.json" <<'PY' || fail 'python3 could not edit config.json'
import json, sys
c = json.load(open(sys.argv[1])); c.pop("quantization_config"); json.dump(c, open(sys.argv[1], "w"))
PY
run "$V" receipts "$TMP/ct" --no-receipt --consumer vllm-0.33
rc_is 1 'no quantization_config'
has out 'config.json has no quantization_config' 'no quantization_config'

# no engine reads a latent's scale from a file
run "$BIN/mla-retrofit" build "$BASE" "$TMP/latent" --keep 1 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 1024
run "$BIN/mla-calibrate" fp8 "$TMP/latent" --tokens 256 --judge-tokens 0
replay latent mla-toolkit 0 10 0 4
run "$V" receipts "$TMP/latent" --consumer vllm-0.33
rc_is 1 'a latent in vLLM 0.33'
has out '0 KV scales consumed, 10 dropped; 0 of 4' 'a latent in vLLM 0.33'
run "$BIN/mla-calibrate" fp8 "$TMP/latent" --tokens 256 --consumer sglang
rc_is 2 'a latent for SGLang'
one_line 'a latent for SGLang'
run "$V" receipts "$TMP/latent" --consumer nobody
rc_is 2 'an unknown consumer'
finish consumers
