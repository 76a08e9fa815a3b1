#!/bin/sh
# The bundled hybrid model as a qwen35 GGUF (written by the tests with llama.cpp's conventions; make interop has llama.cpp read the same
# file): the same answers as the folder, MTP head included, and a base like any other.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
BASE=$ROOT/tests/fixtures/tiny-hybrid
G=$TMP/tiny.gguf
"$BUILD/tests/tools/write_gguf" "$BASE" "$G" || fail write_gguf
run "$MV" inspect "$G"
rc_is 0 inspect
for t in 'architecture              qwen35' 'full_attention_layers     4' 'mtp_layers                1' 'F32                              118 tensors'; do has out "$t" inspect; done
# alike MODEL AGAINST LIMIT what: mean KLD over 192 positions
alike() {
    run "$MV" parity "$1" --against "$2" --rows 1 --row-tokens 192 --no-decode --aa-positions 0 --min-agreement 0.001 --max-kld "$3" --json --quiet
    rc_is 0 "$4"
}
# f32 weights with a gain and -exp(A_log) rounded once more: 1.8e-12 nats when this was written
alike "$G" "$BASE" 1e-10 'the GGUF against its folder'
run "$MV" parity "$G" --against "$BASE" --rows 1 --row-tokens 192 --no-decode --aa-positions 0 --min-agreement 0.001 --max-kld 1e-14 --json --quiet
rc_is 1 'the same below its rounding' # the gate can fail
run "$RF" build "$G" "$TMP/full" --keep 1
rc_is 0 'lossless build of the GGUF'
alike "$TMP/full" "$G" 1e-6 'lossless build against the GGUF'
run "$MV" receipts "$TMP/full"
rc_is 0 receipts
finish gguf_hybrid
