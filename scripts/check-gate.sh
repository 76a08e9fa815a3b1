#!/bin/sh
# The shipped policies on the bundled hybrid model, long contexts included: a full-rank retrofit against gate-lossless.json, the
# same with calibrated FP8 caches against gate-fp8.json, half of the cache against gate-keep50.json, the same factors on the base in FP8
# weights against gate-quantized.json; references in five languages. Takes minutes.
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
"${BUILD:-build}/tests/tools/encode_model" "$base" "$out/base-fp8" ct-fp8
"$bin/mla-retrofit" graft "$out/base-fp8" "$out/keep50/mla_factors-00001-of-00001.safetensors" "$out/quantized" --quiet
bad=0
judge() { # policy folder [base]
    "$bin/mla-verify" gate "configs/gate-$1.json" "$out/$2" --reference tests/fixtures/references/tiny-hybrid.json \
        --reference tests/fixtures/languages/tiny-hybrid.json --against "${3:-$base}" \
        --out "$out/$1.json" --markdown "$out/$1.md" --svg "$out/$1" --quiet || bad=1
}
judge lossless full
judge fp8 fp8
judge keep50 keep50
judge quantized quantized "$out/base-fp8"
exit "$bad"
