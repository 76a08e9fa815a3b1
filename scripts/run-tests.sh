#!/bin/sh
# Runs test binaries and end-to-end scripts; every one prints "name: N passed, N failed[, N skipped]" as its last such
# line. Ends with the sum. A test that prints no such line counts as one failure: a crash is never a pass.
set -u
export MLA_ROOT="${MLA_ROOT:-$(pwd)}" OPENBLAS_NUM_THREADS=1
passed=0 failed=0 skipped=0
for t in "$@"; do
    log=$(mktemp)
    "$t" >"$log" 2>&1
    rc=$?
    line=$(grep -E '^[a-z0-9._-]+: [0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
    if [ $rc -ne 0 ] || [ -z "$line" ]; then cat "$log"; else grep -E '^SKIP' "$log"; echo "$line"; fi
    if [ -z "$line" ]; then
        echo "$t: exited with $rc and no result line"
        failed=$((failed + 1))
    else
        p=$(echo "$line" | sed -E 's/.*: ([0-9]+) passed.*/\1/')
        f=$(echo "$line" | sed -E 's/.* ([0-9]+) failed.*/\1/')
        s=$(echo "$line" | sed -nE 's/.* ([0-9]+) skipped.*/\1/p')
        [ "$rc" -ne 0 ] && [ "$f" -eq 0 ] && f=1
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
    fi
    rm -f "$log"
done
[ "$skipped" -gt 0 ] && echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
