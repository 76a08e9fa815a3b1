#!/bin/sh
# mla-calibrate study: cache formats of a base and of a retrofit as table, JSON and chart; the model is left as it is.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
STUDY="$BIN/mla-calibrate study"

# shellcheck disable=SC2086  # $STUDY is two words
run $STUDY "$BASE" --tokens 1024 --judge-tokens 256 --svg "$TMP/s.svg"
rc_is 0 "study of a base"
has out "key and value caches against f32 (4096 bytes per token) over 256 positions" "study of a base"
has out "nvfp4               576" "study of a base"
if grep -q '^<svg' "$TMP/s.svg" && grep -q 'fp8-token, 1088 bytes' "$TMP/s.svg"; then pass; else fail "the study's chart"; fi
run "$BIN/mla-retrofit" build "$BASE" "$TMP/l" --keep 1
rc_is 0 "a retrofit"
sum() { find "$TMP/l" -type f -exec sha256sum {} + | sort; }
before=$(sum)
# shellcheck disable=SC2086
run $STUDY "$TMP/l" --tokens 1024 --judge-tokens 256 --json
rc_is 0 "study of a retrofit"
has out '"schema": "mla-kv-study/1"' "study of a retrofit"
has out '"retrofit": true' "study of a retrofit"
has out '"format": "fp8-keys16"' "study of a retrofit"
if [ "$before" = "$(sum)" ]; then pass; else fail "a study changed the model"; fi
# shellcheck disable=SC2086
run $STUDY "$BASE" --judge-tokens 0
rc_is 2 "a study of nothing"
finish study
