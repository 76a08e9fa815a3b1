#!/bin/sh
# Runs libFuzzer targets one after the other, or minimises what they found into the kept corpora.
#   fuzz.sh run  BUILD SECONDS SEED TARGET...   "fuzz: N passed, N failed"; findings lie in BUILD/findings
#   fuzz.sh keep BUILD 0 0 TARGET...            tests/fuzz/corpus/TARGET anew, from BUILD/found and itself, KEEP_BYTES (20000) each
set -u
mode=$1 build=$2 seconds=$3 seed=$4
shift 4
kept=tests/fuzz/corpus
passed=0 failed=0
mkdir -p "$build/findings"

keep() { # target: the inputs that reach something new, the smallest first
    new=$build/merged/$1
    rm -rf "$new"
    mkdir -p "$new" "$build/found/$1"
    "$build/libfuzzer/$1" -set_cover_merge=1 -use_counters=0 -max_len=2048 "$new" "$build/found/$1" "$kept/$1" >"$build/merge.log" 2>&1 || { cat "$build/merge.log"; exit 1; }
    for f in "$kept/$1"/*; do # what was put there by name stays
        case ${f##*/} in [0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]) rm -f "$f" ;; esac
    done
    sum=0
    for f in $(ls -rS "$new"); do
        sum=$((sum + $(wc -c <"$new/$f")))
        [ $sum -gt "${KEEP_BYTES:-20000}" ] && break
        cp "$new/$f" "$kept/$1/$(echo "$f" | cut -c1-8)"
    done
    echo "$1: $(ls "$kept/$1" | wc -l) inputs, $(cat "$kept/$1"/* | wc -c) bytes"
}

for t in "$@"; do
    if [ "$mode" = keep ]; then
        keep "$t"
        continue
    fi
    mkdir -p "$build/found/$t"
    if "$build/libfuzzer/$t" -max_total_time="$seconds" -seed="$seed" -max_len=65536 -timeout=25 -rss_limit_mb=2560 -print_final_stats=1 \
        -artifact_prefix="$build/findings/$t-" "$build/found/$t" "$kept/$t" >"$build/findings/$t.log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        tail -n 40 "$build/findings/$t.log"
    fi
    echo "$t: $(sed -n 's/^Done \([0-9]*\) runs in \([0-9]*\) second.*/\1 inputs in \2 s/p' "$build/findings/$t.log"), $(grep -o 'cov: [0-9]*' "$build/findings/$t.log" | tail -n 1)"
done
[ "$mode" = keep ] && exit 0
echo "fuzz: $passed passed, $failed failed"
[ $failed -eq 0 ]
