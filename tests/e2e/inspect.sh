#!/bin/sh
# mla-verify inspect on the bundled files and on hostile ones: the content, or one precise line and exit 3.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
v=$BIN/mla-verify
fx=$ROOT/tests/fixtures

# u64 VALUE FILE: appends 8 little-endian bytes (VALUE below 2^24)
u64() {
    # shellcheck disable=SC2059  # the format is the bytes
    printf "\\$(printf %03o $(($1 % 256)))\\$(printf %03o $(($1 / 256 % 256)))\\$(printf %03o $(($1 / 65536)))\0\0\0\0\0" >>"$2"
}

# st HEADER NBYTES FILE: a safetensors file with that header text and so many zero bytes
st() {
    : >"$3"
    u64 "$(printf %s "$1" | wc -c)" "$3"
    printf %s "$1" >>"$3"
    head -c "$2" /dev/zero >>"$3"
}

# refused FILE TEXT
refused() {
    run "$v" inspect "$1"
    rc_is 3 "$1"
    one_line "$1"
    has err "$2" "$1"
    run "$v" inspect --json "$1"
    rc_is 3 "$1 --json"
    one_line "$1 --json"
}

# --- good files ---
run "$v" inspect "$fx/golden-gguf/tiny.gguf"
rc_is 0 tiny.gguf
for t in 'f.q6_k.weight' 'golden.u64' '9223372036854775813' 'héllo 世界' '[4, 256]' 'Q4_0'; do has out "$t" tiny.gguf; done
run "$v" inspect --json "$fx/golden-gguf/tiny.gguf"
rc_is 0 'tiny.gguf --json'
for t in '"schema": "mla-inspect/1"' '"kind": "gguf"' '"name": "g.three_d.weight"' '"value": "9223372036854775813"'; do
    has out "$t" 'tiny.gguf --json'
done
lacks out "$ROOT" 'tiny.gguf --json'
run "$v" inspect "$fx/golden-gguf/gguf_q4_0.safetensors"
rc_is 0 gguf_q4_0.safetensors
has out 'm.dequantized' gguf_q4_0.safetensors

st '{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"__metadata__":{"format":"pt"}}' 12 "$TMP/good.safetensors"
run "$v" inspect "$TMP/good.safetensors"
rc_is 0 'small safetensors'
has out '[2, 3]' 'small safetensors'
has out 'FP8 KV-cache scales: absent' 'small safetensors'

# scales: two layers of measured values, then constants, then a zero
scale() { # N BITS: one F32 entry at 4N
    printf '"model.layers.%d.self_attn.%s":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}' $(($1 / 2)) "$([ $(($1 % 2)) = 0 ] && echo k_scale || echo v_scale)" $((4 * $1)) $((4 * $1 + 4))
}
head4="{$(scale 0),$(scale 1),$(scale 2),$(scale 3)}"
st "$head4" 0 "$TMP/scales.safetensors"
printf '\0\0\200\076\0\0\0\077\0\0\200\077\0\0\0\076' >>"$TMP/scales.safetensors" # 0.25 0.5 1 0.125
run "$v" inspect "$TMP/scales.safetensors"
rc_is 0 'measured scales'
has out 'FP8 KV-cache scales: calibrated, 4 tensors' 'measured scales'
st "$head4" 0 "$TMP/ones.safetensors"
printf '\0\0\200\077\0\0\200\077\0\0\200\077\0\0\200\077' >>"$TMP/ones.safetensors"
run "$v" inspect "$TMP/ones.safetensors"
has out 'FP8 KV-cache scales: constant' 'constant scales'
has out 'a constant, not a calibration' 'constant scales'
st "$head4" 16 "$TMP/zeros.safetensors"
run "$v" inspect "$TMP/zeros.safetensors"
has out 'FP8 KV-cache scales: invalid' 'zero scales'
has out 'model.layers.1.self_attn.v_scale: KV scale is zero' 'zero scales'

# a file of many gigabytes (a hole) takes a moment, not a read
st '{"w":{"dtype":"U8","shape":[8000000000],"data_offsets":[0,8000000000]}}' 0 "$TMP/big.safetensors"
if truncate -s $((8000000000 + $(wc -c <"$TMP/big.safetensors"))) "$TMP/big.safetensors" 2>/dev/null; then
    run timeout 5 "$v" inspect "$TMP/big.safetensors"
    rc_is 0 'eight gigabytes'
    has out '8000000000' 'eight gigabytes'
else
    skip 'eight gigabytes' 'no sparse files here'
fi
rm -f "$TMP/big.safetensors"

# --- hostile files ---
refused "$TMP/absent.safetensors" 'absent.safetensors'
: >"$TMP/empty.safetensors"
refused "$TMP/empty.safetensors" 'empty.safetensors'
printf 'hello' >"$TMP/noise.bin"
refused "$TMP/noise.bin" 'not a checkpoint'
st '{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}' 11 "$TMP/short.safetensors"
refused "$TMP/short.safetensors" 'short.safetensors'
st '{"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}' 13 "$TMP/long.safetensors"
refused "$TMP/long.safetensors" 'long.safetensors'
st '{"w":{"dtype":"U8","shape":[4194305,4194305,211106198978564],"data_offsets":[0,4]}}' 4 "$TMP/wrap.safetensors"
refused "$TMP/wrap.safetensors" 'w'
st '{"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' 4 "$TMP/twice.safetensors"
refused "$TMP/twice.safetensors" 'w'
printf '\377\377\377\377\377\377\377\377{}' >"$TMP/length.safetensors"
refused "$TMP/length.safetensors" 'length.safetensors'
printf 'GGUF\3\0\0\0\377\377\377\377\377\377\377\177\0\0\0\0\0\0\0\0' >"$TMP/count.gguf"
refused "$TMP/count.gguf" 'count.gguf'
printf 'GGUF' >"$TMP/stub.gguf"
refused "$TMP/stub.gguf" 'stub.gguf'
printf '{"format":"mla-reference/1","min_margin_nats":1,"cases":[{"name":"a\\u000ab"}]}' >"$TMP/ref.json"
refused "$TMP/ref.json" 'prompt_ids'
printf '{"format":"mla-reference/9","cases":[]}' >"$TMP/ref9.json"
refused "$TMP/ref9.json" 'mla-reference/9'
printf '{"a":1,"a":2}' >"$TMP/dup.json"
refused "$TMP/dup.json" 'dup.json'
printf '{"weight_map":{"w":"../x.safetensors"}}' >"$TMP/model.safetensors.index.json"
refused "$TMP/model.safetensors.index.json" 'weight_map'
printf 'MLASTAT1\377\377\0\0\0\0\0\0{}' >"$TMP/x.stats"
refused "$TMP/x.stats" 'header length 65535'

mkdir "$TMP/lost"
printf '{"weight_map":{"w":"model-00001-of-00002.safetensors"}}' >"$TMP/lost/model.safetensors.index.json"
refused "$TMP/lost" 'model-00001-of-00002.safetensors'
mkdir "$TMP/void"
refused "$TMP/void" 'void'

finish inspect
