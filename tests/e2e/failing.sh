#!/bin/sh
# Build, record, calibrate, pack and unpack with calls of the system failing one at a time (tests/failing/sweep.c), a sample of
# them here, all of them in `make check-failing`; a disk that is really full; a source that changes; two builds into one output.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
M=$ROOT/tests/fixtures/mini
RF=$BIN/mla-retrofit
export OPENBLAS_NUM_THREADS=1

run "$BUILD/failing/sweep" "$BUILD/failing" "$M" "${STRIDE:-1009}"
rc_is 0 "calls that fail"
grep -E '^FAIL' "$TMP/out"
PASSED=$((PASSED + $(sed -n 's/^failing: \([0-9]*\) passed.*/\1/p' "$TMP/out")))
if grep -qE '^build: alloc.* [1-9][0-9]* refused' "$TMP/out"; then pass; else fail "no failing allocation was refused: the doors are not in front"; fi

# all of two kinds that a sample has missed: a source replaced between opening and hashing it, a digest that needs memory
for what in '1 record swap' '61 pack alloc'; do
    # shellcheck disable=SC2086  # words on purpose
    run "$BUILD/failing/sweep" "$BUILD/failing" "$M" $what
    rc_is 0 "calls that fail: $what"
    grep -E '^FAIL' "$TMP/out"
done

# a file system of 64 KiB: what does not fit is refused, and nothing is left but the work of a build
mkdir "$TMP/small"
if mount -t tmpfs -o size=64k mla-small "$TMP/small" 2>/dev/null; then
    trap 'umount "$TMP/small"; rm -rf "$TMP"' EXIT
    for what in "$RF build --keep 1 $M" "$RF unpack $TMP/m.mlapack"; do
        [ -e "$TMP/m.mlapack" ] || run "$RF" pack "$M" "$TMP/m.mlapack" --quiet
        rm -rf "$TMP/small/"* "$TMP/small/".[!.]*
        head -c 49152 /dev/zero >"$TMP/small/other"
        # shellcheck disable=SC2086  # words on purpose
        run $what "$TMP/small/out" --quiet
        rc_is 3 "full disk: $what"
        one_line "full disk: $what"
        has err 'No space left on device' "full disk: $what"
        if [ -e "$TMP/small/out" ]; then fail "full disk: output of $what"; else pass; fi
    done
    rm -rf "$TMP/small/"*
    run "$RF" unpack "$TMP/m.mlapack" "$TMP/small/out" --quiet
    rc_is 0 'the same disk with room'
else
    skip 'full disk' 'mounting a tmpfs is not allowed here'
fi

# two builds into one output
mkfifo "$TMP/hold"
(flock -x 9 && cat "$TMP/hold" >/dev/null) 9>"$TMP/two.lock" &
holder=$!
until ! flock -n "$TMP/two.lock" true; do sleep 0.01; done
run "$RF" build "$M" "$TMP/two" --keep 1 --quiet
rc_is 3 'a second build into one output'
one_line 'a second build into one output'
has err 'two.lock' 'a second build into one output'
echo >"$TMP/hold"
wait $holder
rm -f "$TMP/two.lock"
run "$RF" build "$M" "$TMP/two" --keep 1 --quiet
rc_is 0 'after the first has ended'
finish failing
