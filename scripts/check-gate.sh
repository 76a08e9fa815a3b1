#!/bin/sh
# The shipped policies on the bundled hybrid model, long contexts included: a full-rank retrofit against gate-lossless.json, the
# same with calibrated FP8 caches against gate-fp8.json, half of the cache against gate-keep50.json. Takes minutes.
# Usage: BUILD=build scripts/check-gate.sh OUT
set -eu
out=$1
bin=${BUILD:-build}/bin
base=tests/fixtures/tiny-hybrid
rm -rf "$out"
mkdir -p "$out"
"$bin/mla-retrofit" build "$base" "$out/full" --keep 1 --quiet
"$bin/mla-retrofit" build "$base" "$out/keep50" --recipe configs/mla-keep50.json --quiet
cp -rL "$out/full" "$out/fp8"
"$bin/mla-calibrate" fp8 "$out/fp8" --tokens 16384 --judge-tokens 0 --quiet
bad=0
judge() { # policy folder
    "$bin/mla-verify" gate "configs/gate-$1.json" "$out/$2" --reference tests/fixtures/references/tiny-hybrid.json --against "$base" \
        --out "$out/$1.json" --markdown "$out/$1.md" --svg "$out/$1" --quiet || bad=1
}
judge lossless full
judge fp8 fp8
judge keep50 keep50
exit "$bad"
