#!/bin/sh
# mla-retrofit solve: published objectives want their own statistics and give models that run; parts of statistics give the
# same bytes in any order; poor calibration text gives whole factors or a refusal.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
TUNE=$ROOT/calib/tune.jsonl
same_file() { if cmp -s "$1" "$2"; then pass; else fail "$3"; fi; }
no_file() { if [ -e "$1" ]; then fail "$2 left $1"; else pass; fi; }

run $RF stats "$BASE" "$TMP/a.st" --corpus "$TUNE" --held-out "$TUNE" --calibration-tokens 2560
rc_is 0 "statistics"
run $RF stats "$BASE" "$TMP/p.st" --corpus "$TUNE" --held-out "$TUNE" --calibration-tokens 2560 --objective svd
rc_is 0 "statistics with plain weights"

run $RF solve "$BASE" "$TMP/x.safetensors" "$TMP/a.st" --keep 0.5 --objective cov-separate
rc_is 2 "published objective from attention-weighted statistics"
has err "plain token weights" "published objective from attention-weighted statistics"
run $RF solve "$BASE" "$TMP/x.safetensors" "$TMP/p.st" --keep 0.5
rc_is 2 "ours from plain statistics"
run $RF solve "$BASE" "$TMP/x.safetensors" "$TMP/a.st" "$TMP/p.st" --keep 0.5
rc_is 2 "both kinds together"
no_file "$TMP/x.safetensors" "a refusal"
run $RF solve "$BASE" "$TMP/f.safetensors" "$TMP/a.st" --keep 0.5
rc_is 0 "solve"
for o in svd joint-svd cov-separate balanced-pca; do
    run $RF solve "$BASE" "$TMP/f-$o.safetensors" "$TMP/p.st" --keep 0.5 --objective $o
    rc_is 0 "solve --objective $o"
    if cmp -s "$TMP/f.safetensors" "$TMP/f-$o.safetensors"; then fail "$o gives the factors of ours"; else pass; fi
done
run $RF graft "$BASE" "$TMP/f-balanced-pca.safetensors" "$TMP/g"
run $MV parity "$TMP/g" --against "$BASE" --corpus "$TUNE" --rows 1 --row-tokens 256 --no-decode --aa-positions 0 --min-agreement 0 --max-kld 0.1
rc_is 0 "a model with balanced PCA"

# parts, named in any order, with any number of threads
for i in 1 2 3; do
    sed -n "$((i * 8 - 7)),$((i * 8))p" "$ROOT/calib/calibration.jsonl" >"$TMP/part$i.jsonl"
    run $RF stats "$BASE" "$TMP/part$i.st" --corpus "$TMP/part$i.jsonl" --held-out "$TUNE" --calibration-tokens 1024 --force
    rc_is 0 "part $i"
done
run $RF solve "$BASE" "$TMP/o1.safetensors" "$TMP/part1.st" "$TMP/part2.st" "$TMP/part3.st" --keep 0.5 --threads 1
rc_is 0 "three parts"
run $RF solve "$BASE" "$TMP/o2.safetensors" "$TMP/part3.st" "$TMP/part1.st" "$TMP/part2.st" --keep 0.5 --threads 3
same_file "$TMP/o1.safetensors" "$TMP/o2.safetensors" "parts in another order give other bytes"
run $RF solve "$BASE" "$TMP/o3.safetensors" "$TMP/part1.st" "$TMP/part2.st" "$TMP/part1.st" --keep 0.5
rc_is 2 "one part twice"
has err "count twice" "one part twice"
no_file "$TMP/o3.safetensors" "one part twice"

# held-out losses and the report, twice the same
for i in 1 2; do
    run $RF solve "$BASE" "$TMP/h.safetensors" "$TMP/a.st" --keep 0.5 --held-out-stats "$TMP/part1.st" --report "$TMP/rep$i" --threads $i
    rc_is 0 "solve with a report"
done
if grep -qE '^ +[0-9]+ +96 +[0-9.]+% +[0-9.]+% +[0-9.]+% ' "$TMP/out"; then pass; else fail "no held-out loss in the table"; fi
for f in report.md spectra.svg ranks.svg key_share.svg losses.svg; do same_file "$TMP/rep1/$f" "$TMP/rep2/$f" "report: $f differs"; done
if grep -qE "$TMP|$(hostname)" "$TMP"/rep1/*; then fail "path or host in the report"; else pass; fi
run $RF solve "$BASE" "$TMP/h2.safetensors" "$TMP/a.st" --keep 0.5 --held-out-stats "$TMP/p.st"
rc_is 2 "held-out statistics of another kind"
has err "held-out statistics" "held-out statistics of another kind"
no_file "$TMP/h2.safetensors" "held-out statistics of another kind"

# hardly any text, and one token over and over
printf '[5, 6, 7]' >"$TMP/few.json"
run $RF build "$BASE" "$TMP/few" --keep 0.5 --fast --corpus "$TMP/few.json" --held-out "$TMP/part1.jsonl" --force
rc_is 3 "three tokens"
has err "never observed" "three tokens"
no_file "$TMP/few" "three tokens"
awk 'BEGIN {printf "["; for (i = 0; i < 1024; i++) printf "%s17", i ? ", " : ""; printf "]"}' >"$TMP/one.json"
run $RF build "$BASE" "$TMP/one" --keep 0.5 --fast --corpus "$TMP/one.json" --held-out "$TMP/one.json"
rc_is 2 "one token over and over, without --force"
run $RF build "$BASE" "$TMP/one" --keep 0.5 --fast --corpus "$TMP/one.json" --held-out "$TMP/one.json" --force
if [ $RC = 0 ]; then # states of other layers vary
    run $MV receipts "$TMP/one"
    rc_is 0 "receipts after one token over and over"
else
    rc_is 3 "one token over and over"
    no_file "$TMP/one" "one token over and over"
fi
finish solve
