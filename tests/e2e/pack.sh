#!/bin/sh
# pack and unpack: byte for byte, receipts kept, single tensors, killed runs, refusals.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
r=$BIN/mla-retrofit
m=$ROOT/tests/fixtures/tiny-hybrid

run "$r" pack "$m" "$TMP/m.mlapack" --json
rc_is 0 pack
has out '"schema": "mla-bundle-report/1"' pack
lacks out "$TMP" pack
run "$r" unpack "$TMP/m.mlapack" "$TMP/back"
rc_is 0 unpack
run diff -r "$m" "$TMP/back"
rc_is 0 'the folder comes back byte for byte'
run "$r" pack "$TMP/back" "$TMP/again.mlapack" --threads 1
rc_is 0 'packing what was unpacked'
run cmp "$TMP/m.mlapack" "$TMP/again.mlapack"
rc_is 0 'the same bundle again'
bundle=$(wc -c <"$TMP/m.mlapack")
weights=$(wc -c <"$m/model.safetensors")
if [ $((weights * 100)) -ge $((bundle * 147)) ]; then pass; else fail "expected weights of $weights bytes at 1.47 to 1, found a bundle of $bundle"; fi

run "$r" unpack "$TMP/m.mlapack" "$TMP/one.safetensors" --tensor model.language_model.norm.weight --tensor lm_head.weight
rc_is 0 'two tensors alone'
run "$BIN/mla-verify" inspect "$TMP/one.safetensors"
has out 'lm_head.weight' 'two tensors alone'
run "$r" unpack "$TMP/m.mlapack" "$TMP/no.safetensors" --tensor nobody
rc_is 2 'a tensor that is not there'
one_line 'a tensor that is not there'
has err 'nobody' 'a tensor that is not there'

for args in "pack $m $TMP/m.mlapack" "unpack $TMP/m.mlapack $TMP/back" "pack $m/config.json $TMP/x.mlapack"; do
    # shellcheck disable=SC2086  # words on purpose
    run "$r" $args
    rc_is 2 "refused: $args"
    one_line "refused: $args"
done
printf 'x' | dd of="$TMP/again.mlapack" bs=1 seek=$((bundle / 2)) conv=notrunc 2>/dev/null
run "$r" unpack "$TMP/again.mlapack" "$TMP/damaged" --quiet
rc_is 3 'a damaged bundle'
one_line 'a damaged bundle'
if [ -e "$TMP/damaged" ]; then fail 'a damaged bundle left its output folder'; else pass; fi

i=0
while [ $i -lt 6 ]; do # killed at some moment, then run again
    rm -rf "$TMP/k" "$TMP/k.partial"
    "$r" unpack "$TMP/m.mlapack" "$TMP/k" --quiet >/dev/null 2>&1 &
    sleep 0.0$((i * 2 + 1))
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
    if [ ! -e "$TMP/k" ]; then run "$r" unpack "$TMP/m.mlapack" "$TMP/k" --quiet; fi
    run diff -r "$m" "$TMP/k"
    rc_is 0 "unpacked after a kill ($i)"
    i=$((i + 1))
done
finish pack
