#!/bin/sh
# KV scales that a base brings: absent, calibrated, constant and invalid ones told apart by inspect; invalid ones refused by
# name by mla-calibrate fp8, fold and study and by mla-retrofit graft, which write nothing.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
ST=mla_kv_scales.safetensors

is() { # STATE WHAT
    run "$BIN/mla-verify" inspect "$TMP/m" --json
    has out "\"provenance\": \"$1\"" "$2"
}
# the file's last 20 bytes are ten bf16 scales, the last one in name order the MTP head's or layer 7's
tail_bytes() { # octal bytes of one scale, how many scales
    keep=$(($(wc -c <"$TMP/$ST") - 2 * $2))
    { head -c "$keep" "$TMP/$ST" && i=0 && while [ $i -lt "$2" ]; do printf "$1"; i=$((i + 1)); done; } >"$TMP/m/$ST"
}

mkdir "$TMP/m"
cp "$BASE"/* "$TMP/m"
is absent "a base without scales"
run "$BIN/mla-retrofit" build "$BASE" "$TMP/l" --keep 1
rc_is 0 "factors"
run "$BIN/mla-calibrate" fp8 "$TMP/m" --tokens 128 --judge-tokens 0
rc_is 0 "scales"
is calibrated "calibrated scales"
cp "$TMP/m/$ST" "$TMP"
tail_bytes '\200\077' 10 # 1.0
is constant "the same scale everywhere"
has out "a constant, not a calibration" "the same scale everywhere"
for bad in '\300\177:nan' '\200\177:inf' '\000\000:0' '\200\277:-1'; do
    tail_bytes "${bad%:*}" 1
    what="scale ${bad#*:}"
    is invalid "$what"
    before=$(cat "$TMP/m"/* | sha256sum)
    for cmd in "fp8 $TMP/m --tokens 128" "fold $TMP/m $TMP/o" "study $TMP/m --tokens 128"; do
        # shellcheck disable=SC2086  # words
        run "$BIN/mla-calibrate" $cmd
        rc_is 3 "$what: mla-calibrate ${cmd%% *}"
        has err "v_scale: a KV scale must be finite and above zero, found" "$what: mla-calibrate ${cmd%% *}"
    done
    run "$BIN/mla-retrofit" graft "$TMP/m" "$TMP/l/mla_factors-00001-of-00001.safetensors" "$TMP/o"
    rc_is 3 "$what: graft"
    has err "v_scale: a KV scale must be finite and above zero, found" "$what: graft"
    if [ ! -e "$TMP/o" ] && [ "$before" = "$(cat "$TMP/m"/* | sha256sum)" ]; then pass; else fail "$what: something was written"; fi
done
finish scale_states
