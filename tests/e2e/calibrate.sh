#!/bin/sh
# mla-calibrate: FP8 KV scales of a GQA folder and of the full-rank latent cost at most 0.0015 nat on the evaluation text;
# they are written, read back, bound to the receipt, and the same when measured again; damage is refused.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
EV=$ROOT/calib/evaluation.jsonl
CAL="$BIN/mla-calibrate fp8"

mkdir "$TMP/gqa"
cp "$BASE"/* "$TMP/gqa"
# shellcheck disable=SC2086  # $CAL is two words
run $CAL "$TMP/gqa" --tokens 4096 --judge-corpus "$EV" --max-kld 0.0015
rc_is 0 "GQA: FP8 cache against bf16 cache"
has out "FP8 against bf16 cache over 8192 positions" "GQA"
run "$BIN/mla-retrofit" build "$BASE" "$TMP/l" --keep 1
# shellcheck disable=SC2086
run $CAL "$TMP/l" --tokens 4096 --judge-corpus "$EV" --max-kld 0.0015 --json
rc_is 0 "full-rank latent: FP8 cache against bf16 cache"
run "$BIN/mla-verify" receipts "$TMP/l"
rc_is 0 "receipts after calibration"
sum() { cat "$1/config.json" "$1/model.safetensors.index.json" "$1/mla_receipt.json" "$1/mla_kv_scales.safetensors" "$1/mla_kv_scales.json" | sha256sum; }
# shellcheck disable=SC2086
run $CAL "$TMP/l" --tokens 2048 --judge-tokens 512
before=$(sum "$TMP/l")
# shellcheck disable=SC2086
run $CAL "$TMP/l" --tokens 2048 --judge-tokens 512 --threads 1
if [ "$before" = "$(sum "$TMP/l")" ]; then pass; else fail "calibrating again changed the bytes"; fi
run "$BIN/mla-verify" parity "$TMP/l" --against "$BASE" --kv-dtype fp8 --rows 1 --no-decode --aa-positions 0 --max-kld 0.01 --min-agreement 0.9
rc_is 0 "parity with the FP8 cache"
run "$BIN/mla-verify" parity "$BASE" --against "$BASE" --kv-dtype fp8 --rows 1 --no-decode
rc_is 3 "FP8 cache without scales"

# rotary keys in bf16: a cache of the runtime, judged, recorded, counted
# shellcheck disable=SC2086
run $CAL "$TMP/l" --tokens 2048 --judge-tokens 1024 --kv-dtype fp8-keys16 --max-kld 0.0003
rc_is 0 "fp8-keys16"
has out "fp8-keys16 against bf16 cache over 1024 positions" "fp8-keys16"
if grep -q '"cache": "fp8-keys16"' "$TMP/l/config.json" && grep -q '"cache": "fp8-keys16"' "$TMP/l/mla_kv_scales.json"; then pass; else fail "the files do not name the cache"; fi
run "$BIN/mla-verify" receipts "$TMP/l"
rc_is 0 "receipts of fp8-keys16"
run "$BIN/mla-verify" capacity "$TMP/l"
has out "fp8-keys16 KV, 1152 bytes per token" "capacity follows the config"
run "$BIN/mla-verify" parity "$TMP/l" --against "$BASE" --kv-dtype fp8-keys16 --rows 1 --no-decode --aa-positions 0 --max-kld 0.0003 --min-agreement 0.9
rc_is 0 "parity with rotary keys in bf16"
run "$BIN/mla-verify" parity "$TMP/l" --against "$BASE" --kv-dtype fp8 --rows 1 --no-decode --aa-positions 0 --max-kld 0.0003 --min-agreement 0.9
rc_is 1 "the same gate with all in FP8"
sed 's/"cache": "fp8-keys16"/"cache": "fp8"/' "$TMP/l/mla_kv_scales.json" >"$TMP/t"
cp "$TMP/l/mla_kv_scales.json" "$TMP/side"
mv "$TMP/t" "$TMP/l/mla_kv_scales.json"
run "$BIN/mla-verify" receipts "$TMP/l"
rc_is 1 "two stories of the cache"
has out "judged with a cache of fp8, config.json says fp8-keys16" "two stories of the cache"
mv "$TMP/side" "$TMP/l/mla_kv_scales.json"

# a folder that differs from its receipt is not blessed by a new one
cp "$TMP/l/tokenizer.json" "$TMP/t" # a copy: the folder's files may be hard links to the base's
printf 'x' >>"$TMP/t"
mv "$TMP/t" "$TMP/l/tokenizer.json"
# shellcheck disable=SC2086
run $CAL "$TMP/l" --tokens 2048 --judge-tokens 0
rc_is 3 "a folder that differs from its receipt"
has err "tokenizer.json" "a folder that differs from its receipt"
# shellcheck disable=SC2086
run $CAL "$TMP/gqa" --tokens 2048 --judge-tokens 1024 --max-kld 1e-9
rc_is 1 "a gate that cannot hold"
run "$BIN/mla-calibrate" corpus "$BASE" "$EV" --json
rc_is 0 "corpus"
has out '"documents": 60' "corpus"
finish calibrate
