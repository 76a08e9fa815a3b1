#!/bin/sh
# A damaged tokenizer.json is refused by every command that reads text: exit 3, one line that names the file, nothing written.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid
M=$TMP/m
mkdir "$M"
cp "$BASE/config.json" "$BASE/generation_config.json" "$BASE/model.safetensors" "$M"
T=$M/tokenizer.json
size=$(wc -c <"$BASE/tokenizer.json")
printf '%s\n' '{"prompt": "Tell me about rain."}' >"$TMP/p.jsonl"

refused() { # what TEXT COMMAND...
    what=$1 text=$2
    shift 2
    run "$@"
    rc_is 3 "$what: $2"
    one_line "$what: $2"
    has err tokenizer.json "$what: $2"
    has err "$text" "$what: $2"
}
damaged() { # what TEXT
    refused "$1" "$2" "$BIN/mla-retrofit" build "$M" "$TMP/made" --keep 0.5 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560 --quiet
    refused "$1" "$2" "$BIN/mla-retrofit" stats "$M" "$TMP/made" --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560 --quiet
    refused "$1" "$2" "$BIN/mla-calibrate" fp8 "$M" --tokens 128 --judge-tokens 0 --quiet
    refused "$1" "$2" "$BIN/mla-calibrate" study "$M" --tokens 128 --judge-tokens 64 --quiet
    refused "$1" "$2" "$BIN/mla-calibrate" corpus "$M" "$ROOT/calib/tune.jsonl" --quiet
    refused "$1" "$2" "$BIN/mla-verify" record "$M" --prompts "$TMP/p.jsonl" --out "$TMP/made" --quiet
    refused "$1" "$2" "$BIN/mla-verify" parity "$M" --against "$BASE" --rows 1 --row-tokens 16 --quiet
}
head -c $((size / 2)) "$BASE/tokenizer.json" >"$T"
damaged 'cut in half' 'ends early at byte'
sed 's/"type":"BPE"/"type":"BPF"/; s/"type": "BPE"/"type": "BPF"/' "$BASE/tokenizer.json" >"$T"
damaged 'one letter of the kind of model' 'model "BPF"'
: >"$T"
damaged 'empty' 'ends early at byte 0'
if [ -e "$TMP/made" ] || [ -e "$TMP/made.partial" ] || [ -e "$M/mla_kv_scales.json" ]; then fail 'something was written'; else pass; fi
finish damaged_tokenizer
