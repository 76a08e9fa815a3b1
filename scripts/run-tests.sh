#!/bin/sh
# Runs test binaries and end-to-end scripts, JOBS (one a core) at a time; every one prints "name: N passed, N failed[, N skipped]"
# as its last such line. Ends with the sum. A test that prints no such line counts as one failure: a crash is never a pass.
#   run-tests.sh TEST...           in the order given: put the long ones first
#   run-tests.sh --one PLACE TEST  one of them: its counts go to PLACE, what it has to say to stdout in one piece
set -u
export MLA_ROOT="${MLA_ROOT:-$(pwd)}" OPENBLAS_NUM_THREADS=1
# Thousands of small files, each synced: in memory where there is room for them.
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -gt 4000000 ]; then export TMPDIR=/dev/shm; fi

one() { # PLACE TEST
    start=$(date +%s)
    "$2" >"$1.log" 2>&1
    rc=$?
    line=$(grep -E '^[a-z0-9._-]+: [0-9]+ passed, [0-9]+ failed' "$1.log" | tail -n 1)
    p=$(echo "$line" | sed -nE 's/.*: ([0-9]+) passed.*/\1/p')
    f=$(echo "$line" | sed -nE 's/.* ([0-9]+) failed.*/\1/p')
    s=$(echo "$line" | sed -nE 's/.* ([0-9]+) skipped.*/\1/p')
    [ "$rc" -ne 0 ] && [ "${f:-0}" -eq 0 ] && f=1
    [ -z "$line" ] && f=1
    {
        if [ "$rc" -ne 0 ] || [ -z "$line" ]; then cat "$1.log"; else grep -E '^SKIP' "$1.log"; fi
        if [ -z "$line" ]; then echo "$2: exited with $rc and no result line"; else echo "$line ($(($(date +%s) - start)) s)"; fi
    } >"$1.said"
    cat "$1.said" # at once, so that tests that end together do not mix
    echo "${p:-0} ${f:-0} ${s:-0}" >"$1.counts"
}

if [ "${1:-}" = --one ]; then
    one "$2" "$3"
    exit 0
fi
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
n=0
for t in "$@"; do
    n=$((n + 1))
    printf '%s\0%s\0' "$logs/$n" "$t"
done | xargs -r -0 -n 2 -P "${JOBS:-$(nproc)}" "$0" --one
n=0 passed=0 failed=0 skipped=0
for t in "$@"; do
    n=$((n + 1))
    p=0 f=1 s=0 # nothing was counted: the runner itself was killed
    [ -s "$logs/$n.counts" ] && read -r p f s <"$logs/$n.counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
[ "$skipped" -gt 0 ] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
