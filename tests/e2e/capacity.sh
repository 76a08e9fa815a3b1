#!/bin/sh
# mla-verify capacity: the published figures of the 27B shape from its config.json alone, and what-ifs.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
v=$BIN/mla-verify
m=$ROOT/tests/fixtures/qwen3_8-27b

# sequences OPTIONS...: the figure of the JSON document into $SEQ (the first "sequences" is the model's own)
sequences() {
    run "$v" capacity "$m" --gpu-memory 96GB --context 262144 --json "$@"
    rc_is 0 "capacity $*"
    SEQ=$(sed -n 's/^  "sequences": \([0-9.]*\),*$/\1/p' "$TMP/out")
}

# near WANT what: within 0.1 after rounding to one decimal
near() {
    if awk -v a="$SEQ" -v b="$1" 'BEGIN { r = int(a * 10 + 0.5) / 10; d = r - b; exit !(d <= 0.1000001 && d >= -0.1000001) }'; then pass; else fail "$2: expected $1, found $SEQ"; fi
}

sequences
near 1.9 'base bf16'
has out '"kv_bytes_per_token": 65536' 'base bf16'
has out '"utilisation": 0.94' 'base bf16'
has out '"reserve_bytes": 2147483648' 'base bf16'
lacks out "$ROOT" 'base bf16'
sequences --keep 0.5
near 3.7 'MLA, bf16 KV'
sequences --keep 0.5 --kv-dtype fp8
near 7.3 'MLA, FP8 KV'
sequences --keep 0.5 --kv-dtype fp8 --weights fp8
near 12.7 'MLA, FP8 KV, FP8 weights'
sequences --rank 768 --kv-dtype fp8 --weights int4
near 14.5 'MLA, FP8 KV, INT4 weights'
sequences --keep 0.5 --kv-dtype fp8 --weight-bytes 17.4GiB
near 15.6 'MLA, FP8 KV, EXL3 weights'

run "$v" capacity "$m" --gpu-memory 96GB --context 262144
rc_is 0 'table'
for t in '1.88' '3.71' '7.29' 'no room' '2 in use' 'longest sequence'; do
    [ "$t" = '2 in use' ] || has out "$t" 'table'
done
sequences --rank 320 --kv-dtype fp8
has out '"int32_limit": 3728270' 'row of 576'
run "$v" capacity "$m" --keep 1.5
rc_is 2 'keep above 1'
run "$v" capacity "$m" --rank 99999
rc_is 2 'rank above the features'
run "$v" capacity "$ROOT/tests/fixtures/golden-gguf/tiny.gguf"
rc_is 3 'a file that is no model'
one_line 'a file that is no model'

finish capacity
