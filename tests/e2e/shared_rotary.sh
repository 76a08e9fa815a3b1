#!/bin/sh
# mla-retrofit build --layout shared-rotary: same bytes whatever the threads, a folder that proves itself and runs, forced
# decode in every form of its own, models and wishes that cannot be are refused.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
FEW="--layout shared-rotary --keep 0.5 --corpus $ROOT/calib/calibration.jsonl --held-out $ROOT/calib/tune.jsonl --calibration-tokens 3072 --row-tokens 256"

# shellcheck disable=SC2086  # $FEW is several words
run $RF build "$BASE" "$TMP/a" $FEW --refine-steps 2 --threads 1 --json
rc_is 0 "build with one thread"
has out '"rotary_energy_kept_by_keys"' "energy of every number of shared keys"
want=$(sed -n 's/.*"root_digest": "\(sha256:[0-9a-f]*\)".*/\1/p' "$TMP/out")
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/b" $FEW --refine-steps 2 --threads 2
has out "$want" "root digest with 1 and 2 threads"
if cmp -s "$BASE/model.safetensors" "$TMP/a/model.safetensors"; then pass; else fail "model.safetensors is not the base's"; fi
head -c 2048 "$TMP/a/mla_artifact/shared_mla.safetensors" >"$TMP/header" # the rest is numbers
if grep -qaE "$(hostname)|$TMP|$ROOT" "$TMP/a/mla_receipt.json" "$TMP/a/config.json" "$TMP/header"; then
    fail "host or absolute path in an artifact"
else pass; fi
run $MV receipts "$TMP/a"
rc_is 0 "receipts"
run $MV inspect "$TMP/a" --json
has out '"shared-rotary"' "inspect"
run $MV capacity "$TMP/a" --json
has out '"kv_bytes_per_token": 1024' "capacity: 4 layers of 128 values in bf16"
# half-fitted as it is, it must be near its base, and forced decode must give what prefill gave
run $MV parity "$TMP/a" --against "$BASE" --rows 2 --row-tokens 256 --max-kld 0.3 --min-agreement 0.001 --json
rc_is 0 "near the base"
run $MV parity "$TMP/a" --against "$TMP/b" --rows 1 --row-tokens 128 --chunk 1 --max-kld 1e-6 --min-agreement 0.001 --no-decode
rc_is 0 "one token at a time against whole prompts"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/r2" $FEW --refine-steps 0 --rotary-keys 2
rc_is 0 "two shared keys"
run $MV receipts "$TMP/r2"
rc_is 0 "receipts, two shared keys"
if grep -q Sabi "$TMP/r2/config.json"; then fail "two shared keys under the plugin's name"; else pass; fi

# a file of other weights is seen: the factors of a base with one changed byte
cp -r "$TMP/a" "$TMP/other"
rm "$TMP/other/model.safetensors"
cp "$BASE/model.safetensors" "$TMP/other/model.safetensors"
python3 - "$TMP/other/model.safetensors" <<'P' 2>/dev/null || true
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    at = json.loads(f.read(n))["model.language_model.layers.1.self_attn.k_proj.weight"]["data_offsets"][0]
    f.seek(8 + n + at)
    b = f.read(1)
    f.seek(8 + n + at)
    f.write(bytes([b[0] ^ 1]))
P
run $MV receipts "$TMP/other"
rc_is 1 "factors of other weights"
has out "made for other weights" "factors of other weights"

# refusals leave nothing behind
refuse() { # what TEXT OPTIONS...
    what=$1 text=$2
    shift 2
    run $RF build "$BASE" "$TMP/no" --layout shared-rotary "$@"
    if [ "$RC" -ne 0 ]; then pass; else fail "$what: accepted"; fi
    has err "$text" "$what"
    if [ -e "$TMP/no" ]; then fail "$what: output exists"; else pass; fi
}
refuse "groups" "one latent for all heads" --keep 0.5 --groups 2
refuse "allocation" "one rank for all layers" --keep 0.5 --allocation spectrum
refuse "bf16 factors" "holds f32" --keep 0.5 --factors-dtype bfloat16
refuse "keys" "at most one per KV head" --keep 0.5 --rotary-keys 5
refuse "rank" "at most 256" --rank 300
run $RF build "$BASE" "$TMP/no" --keep 0.5 --layout p --rotary-keys 2
has err "belongs to layouts n and shared-rotary" "rotary keys of another layout"
run $RF stats "$BASE" "$TMP/no.mlastats" --layout shared-rotary
has err "use mla-retrofit build" "statistics of this layout"
run $RF plan "$BASE" --keep 0.5
has out "n, 3 shared keys per frequency" "plan: price at equal bytes"
has out "shared-rotary, 1 shared key per frequency" "plan: price at equal bytes"
finish shared_rotary
