#!/bin/sh
# mla-retrofit build: same bytes whatever the threads (and kills: kill.sh); lossless layouts are exact; base files
# stay byte-identical; the steps apart give the same factors; refusals leave nothing behind.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
FEW="--corpus $ROOT/calib/tune.jsonl --calibration-tokens 2560"

root_of() { sed -n 's/.*root digest sha256:\([0-9a-f]*\)$/\1/p' "$1"; }
same() { # a b what
    if [ -n "$1" ] && [ "$1" = "$2" ]; then pass; else fail "$3: \"$1\" and \"$2\""; fi
}

# shellcheck disable=SC2086  # $FEW is several words
run $RF build "$BASE" "$TMP/a" --keep 0.5 --threads 1 $FEW
rc_is 0 "build with one thread"
want=$(root_of "$TMP/out")
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/b" --keep 0.5 --threads 2 $FEW
same "$want" "$(root_of "$TMP/out")" "root digest with 1 and 2 threads"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/s" --keep 0.5 --stream-layers $FEW
same "$want" "$(root_of "$TMP/out")" "root digest with resident and streamed layers"

for f in model.safetensors tokenizer.json generation_config.json; do
    if cmp -s "$BASE/$f" "$TMP/a/$f"; then pass; else fail "$f is not the base's"; fi
done
has_no() { if [ -e "$1" ]; then fail "$1 exists"; else pass; fi; }
has_no "$TMP/a.partial"
has_no "$TMP/a.lock"
if grep -qE "$(hostname)|$TMP|$ROOT" "$TMP/a/mla_receipt.json" "$TMP/a/config.json"; then fail "host or absolute path in an artifact"; else pass; fi
run $MV receipts "$TMP/a"
rc_is 0 "receipts of a build"

# the whole recipe, ranks by probe and layers refined: same bytes whatever the threads, and after a kill
ALL="--corpus $ROOT/calib/tune.jsonl --calibration-tokens 4608 --refine-steps 3 --allocation-rounds 1"
start=$(date +%s%N)
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/ra" --keep 0.5 --threads 1 $ALL
span=$(($(date +%s%N) - start))
rc_is 0 "build with probed ranks and refinement"
has err "refinement: lower held-out error" "refinement"
all=$(root_of "$TMP/out")
if grep -q '"mla_refined":' "$TMP/ra/mla_factors-00001-of-00001.safetensors" && grep -q '"output_error"' "$TMP/ra/mla_receipt.json"; then pass
else fail "a refined build does not say so"; fi
for i in 1 2 3; do
    # shellcheck disable=SC2086
    $RF build "$BASE" "$TMP/rk" --keep 0.5 --quiet $ALL >/dev/null 2>&1 &
    pid=$!
    sleep "$(awk "BEGIN{printf \"%.4f\", (0.55 + $i * 0.12) * $span / 1e9}")"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ -d "$TMP/rk" ] && break
done
# shellcheck disable=SC2086
[ -d "$TMP/rk" ] || run $RF build "$BASE" "$TMP/rk" --keep 0.5 --threads 3 $ALL
same "$all" "$(sed -n 's/.*"root_digest": "sha256:\([0-9a-f]*\)".*/\1/p' "$TMP/rk/mla_receipt.json" | tail -n 1)" "root digest of a refined build after kills, 3 threads"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/rb" --keep 0.25 --fast --balance scan $ALL --refine-steps 0
rc_is 0 "build with a scanned balance"
if [ "$(grep -c 'balance [0-9.]*: KLD' "$TMP/err")" -eq 5 ] && awk '/balance [0-9.]*: KLD/{ sub(":", "", $2); if (!best || $4 < best) { best = $4; b = $2 } } /"balance_chosen"/{sub(",", "", $2); c = $2} END{exit !(b && b == c)}' \
    "$TMP/err" "$TMP/rb/mla_receipt.json"; then pass; else fail "the balance chosen is not the best of five"; fi
run $RF build "$BASE" "$TMP/rx" --keep 0.25 --balance scanx
rc_is 2 "a balance that is no number"
run $RF graft "$BASE" "$TMP/ra/mla_factors-00001-of-00001.safetensors" "$TMP/rg"
rc_is 0 "graft of refined factors"
if cmp -s "$TMP/ra/mla_factors-00001-of-00001.safetensors" "$TMP/rg/mla_factors-00001-of-00001.safetensors"; then pass; else fail "graft changed refined factors"; fi

# other inputs do not continue a leftover
mkdir -p "$TMP/o.partial/.mla-work"
echo 0123 >"$TMP/o.partial/.mla-work/key"
echo junk >"$TMP/o.partial/junk"
# shellcheck disable=SC2086
run $RF build "$BASE" "$TMP/o" --keep 0.5 $FEW
same "$want" "$(root_of "$TMP/out")" "root digest beside a leftover of another build"
has err "of other inputs" "leftover of another build"

# the steps apart; statistics in one file or in two
# shellcheck disable=SC2086
run $RF stats "$BASE" "$TMP/x.mlastats" $FEW --held-out "$ROOT/calib/tune.jsonl"
rc_is 0 "stats"
run $RF solve "$BASE" "$TMP/f.safetensors" "$TMP/x.mlastats" --keep 0.5
rc_is 0 "solve"
run $RF graft "$BASE" "$TMP/f.safetensors" "$TMP/g"
rc_is 0 "graft"
run $RF build "$BASE" "$TMP/gs" --keep 0.5 --stats "$TMP/x.mlastats" --fast
rc_is 0 "build from statistics"
if cmp -s "$TMP/f.safetensors" "$TMP/g/mla_factors-00001-of-00001.safetensors" &&
    cmp -s "$TMP/f.safetensors" "$TMP/gs/mla_factors-00001-of-00001.safetensors"; then pass; else fail "solve, graft and build --stats differ"; fi
run $MV receipts "$TMP/g"
rc_is 0 "receipts of a graft"
run $RF solve "$BASE" "$TMP/f2.safetensors" "$TMP/x.mlastats" "$TMP/x.mlastats" --keep 0.5
rc_is 2 "the same statistics twice"
has err "their text would count twice" "the same statistics twice"

# full rank is the base: MLA, GLA-2, GLA-4
for g in 1 2 4; do
    run $RF build "$BASE" "$TMP/l$g" --keep 1 --groups $g
    rc_is 0 "lossless build, $g groups"
    run $MV parity "$TMP/l$g" --against "$BASE" --rows 1 --row-tokens 512 --max-kld 1e-6 --min-agreement 0.001 --no-decode --json
    rc_is 0 "lossless build against the base, $g groups"
done

# nothing is left behind by a refusal
run $RF build "$BASE" "$TMP/r" --keep 0.5 --calibration-tokens 100 --corpus "$ROOT/calib/tune.jsonl"
rc_is 2 "too few tokens"
has err "at least 2240" "too few tokens"
run $RF build "$BASE" "$TMP/r" --keep 0.5 --groups 3
rc_is 2 "groups that do not divide"
run $RF build "$BASE" "$TMP/r" --keep 0.5 --allocation probe --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560
rc_is 2 "probe without a held-out row"
has err "held-out tokens" "probe without a held-out row"
run $RF build "$BASE" "$TMP/r" --rank 500
rc_is 2 "rank beyond lossless"
run $RF build "$TMP" "$TMP/r" --keep 0.5
rc_is 3 "no model"
run $RF build "$TMP/a" "$TMP/r" --keep 0.5
rc_is 3 "a retrofit as base"
has err "retrofit already" "a retrofit as base"
echo '{"schema":"mla-recipe/1","bugdet":{}}' >"$TMP/recipe.json"
run $RF build "$BASE" "$TMP/r" --recipe "$TMP/recipe.json"
rc_is 3 "misspelt recipe field"
has err "bugdet" "misspelt recipe field"
has_no "$TMP/r"
has_no "$TMP/r.partial"
run $RF build "$BASE" "$TMP/rc" --recipe "$ROOT/configs/lossless.json"
rc_is 0 "shipped recipe"
run $RF plan "$BASE" --keep 0.25 --json
has out '"rank": 32' "plan"
finish build
