#!/bin/sh
# Planted faults: each one in a copy of a finished folder, sealed again so that no digest gives it away, or in the runtime
# (tests/faults). mla-verify gate must fail and name it; the same policy passes what was not touched.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
v=$BIN/mla-verify
m=$ROOT/tests/fixtures/tiny-hybrid
mutate=$BUILD/faults/mutate
doors=$BUILD/faults/mla-verify
if [ ! -x "$mutate" ] || [ ! -x "$doors" ]; then
    skip 'planted faults' 'make faults builds what plants them'
    finish faults
fi

build() { # base out
    run "$BIN/mla-retrofit" build "$1" "$2" --keep 0.5 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 8192 --fast --quiet
    rc_is 0 "build of $2"
}
build "$m" "$TMP/built"
cp -rL "$TMP/built" "$TMP/fp8"
run "$BIN/mla-calibrate" fp8 "$TMP/fp8" --tokens 1024 --corpus "$ROOT/calib/tune.jsonl" --judge-tokens 0 --quiet
rc_is 0 calibrate
head -n 2 "$ROOT/calib/evaluation.jsonl" >"$TMP/text.jsonl"
run "$v" record "$m" --prompts "$TMP/text.jsonl" --split 32 --forced-tokens 100 --out "$TMP/own.json" --quiet
rc_is 0 record

policy() { # name sections
    printf '{"schema": "mla-policy/1", "name": "faults", %s}\n' "$2" >"$TMP/$1.json"
}
policy answers '"receipts": {}, "layers": {"max_error": 0.3, "max_projection_error": 1e-6, "max_constant_share": 0.1}, "parity": {"min_agreement": 0.9, "aa_positions": 0}'
policy files '"receipts": {"base": true, "base_unchanged": true, "tokenizer": true}, "scales": {}'
policy scales '"receipts": {}, "scales": {"required": true}'
policy drafts '"receipts": {}, "mtp": {"drafts": 1, "cases": 1, "tokens": 4}'
gate() { # policy folder
    run "$v" gate "$TMP/$1.json" "$2" --reference "$TMP/own.json" --against "$m" --corpus "$TMP/text.jsonl" --quiet
}
named() { # what TEXT: the gate failed and a rule or a finding says TEXT
    rc_is 1 "$1"
    has out "$2" "$1"
}
copy() { # from
    rm -rf "$TMP/bad"
    cp -rL "$1" "$TMP/bad"
    chmod -R u+w "$TMP/bad"
}
plant() { # fault from policy TEXT
    copy "$2"
    run "$mutate" "$1" "$TMP/bad"
    rc_is 0 "planting $1"
    gate "$3" "$TMP/bad"
    named "$1" "$4"
}

# what was not touched passes, sealed again or not
for p in answers files drafts; do
    gate $p "$TMP/built"
    rc_is 0 "policy $p on the healthy folder"
done
gate scales "$TMP/fp8"
rc_is 0 'policy scales on the healthy folder'
copy "$TMP/built"
run "$mutate" reseal "$TMP/bad"
gate answers "$TMP/bad"
rc_is 0 'a folder sealed again'

# in the weights: caught by what the model computes
plant gain-after-rope "$TMP/built" answers 'layer 1 (attention) is the first whose queries part'
plant rotary-pairing "$TMP/built" answers 'layer 1 (attention) is the first whose queries part'
plant gain-without-one "$TMP/built" answers 'layer 1 (attention) is the first whose queries part'
plant gate-halves "$TMP/built" answers 'layer 1 (attention) is the first whose queries part'
plant weight-doubled "$TMP/built" answers 'layer 3 (attention) is the first whose values part'
plant another-layer "$TMP/built" answers 'layer 3 (attention) is the first whose mixer outputs part'
plant mean-dropped "$TMP/built" answers 'a mean that is not taken off, or not put back'
plant mtp-dropped "$TMP/built" drafts 'the model has no MTP head'
plant scale-doubled "$TMP/fp8" scales 'layer 3: KV scale of latent: '
plant scale-zero "$TMP/fp8" scales 'layers.3.self_attn.mla.latent_scale: a KV scale must be finite and above zero'

# one language alone: the others agree as before and so does the sample as a whole; its own stratum fails
policy languages '"parity": {"min_agreement": 0.7, "aa_positions": 0, "strata": [{"by": "language", "min_agreement": 0.9, "min_positions": 150}]}'
speak() { # folder
    run "$v" gate "$TMP/languages.json" "$1" --reference "$TMP/own.json" --reference "$ROOT/tests/fixtures/languages/tiny-hybrid.json" --quiet
}
speak "$TMP/built"
rc_is 0 'every language on the healthy folder'
for l in en de fr es ru; do has out "pass                 parity: language $l: " 'every language on the healthy folder'; done
copy "$TMP/built"
run "$mutate" script-dropped "$TMP/bad"
rc_is 0 'planting script-dropped'
speak "$TMP/bad"
named script-dropped 'fail                 parity: language ru: '
for t in 'agreement at confident positions' 'language en' 'language de' 'language fr' 'language es'; do has out "pass                 parity: $t: " script-dropped; done

# rotary keys shared by the heads: the same rules, the same faults
run "$BIN/mla-retrofit" build "$m" "$TMP/shared" --keep 0.5 --rotary-keys 2 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 4096 --fast --quiet
rc_is 0 'build with shared rotary keys'
policy shared '"receipts": {"base": true, "base_unchanged": true, "tokenizer": true}, "scales": {}, "selfcheck": {}, "layers": {"max_error": 0.3,
"max_projection_error": 1e-6, "max_constant_share": 0.1}, "parity": {"min_agreement": 0.9, "max_kld": 0.1, "rows": 2, "row_tokens": 64, "aa_positions": 32},
"paths": {"check": ["chunked", "prefix", "batch", "threads"], "cases": 2, "tokens": 72}, "mtp": {"drafts": 2, "cases": 1, "tokens": 12}, "capacity": {"max_kv_ratio": 0.5}'
gate shared "$TMP/shared"
rc_is 0 'every section on shared rotary keys'
plant gain-after-rope "$TMP/shared" answers 'layer 1 (attention) is the first whose queries part'
plant rotary-pairing "$TMP/shared" answers 'layer 1 (attention) is the first whose queries part'
plant another-layer "$TMP/shared" answers 'layer 3 (attention) is the first whose mixer outputs part'
plant mean-dropped "$TMP/shared" answers 'a mean that is not taken off, or not put back'
plant rotary-key-lost "$TMP/shared" answers 'layer 1 (attention) is the first whose mixer outputs part'

# a factor file of another base
cp -rL "$m" "$TMP/other"
chmod -R u+w "$TMP/other"
run "$mutate" other-base "$TMP/other"
build "$TMP/other" "$TMP/alien"
copy "$TMP/built"
cp "$TMP/alien/mla_factors-00001-of-00001.safetensors" "$TMP/bad/"
gate files "$TMP/bad"
named 'a factor file of another base' 'mla_factors-00001-of-00001.safetensors'
run "$mutate" reseal "$TMP/bad"
gate answers "$TMP/bad"
named 'a factor file of another base, sealed' 'layer 1 (attention) is the first whose mixer outputs part'

# one bit of one shard: by its digest, and when that is renewed, by the base's
copy "$TMP/built"
at=$(($(wc -c <"$TMP/bad/model.safetensors") / 2))
byte=$(od -An -tu1 -j "$at" -N 1 "$TMP/bad/model.safetensors" | tr -d ' ')
# shellcheck disable=SC2059  # the format is the byte
printf "\\$(printf %03o $(((byte + 16) % 256)))" | dd of="$TMP/bad/model.safetensors" bs=1 seek="$at" conv=notrunc 2>/dev/null
gate files "$TMP/bad"
named 'a flipped bit' 'model.safetensors: sha256'
run "$mutate" reseal "$TMP/bad"
gate files "$TMP/bad"
named 'a flipped bit, sealed' "model.safetensors: not the base's weights"

# a tokenizer of another revision
copy "$TMP/built"
echo >>"$TMP/bad/tokenizer.json"
run "$mutate" reseal "$TMP/bad"
gate files "$TMP/bad"
named 'another tokenizer' 'receipts: tokenizer: own.json was recorded with another tokenizer'

# in the runtime
policy slots '"selfcheck": {"far": true}'
policy chunks '"paths": {"check": ["chunked"], "cases": 2, "tokens": 96}'
policy prefix '"paths": {"check": ["prefix"], "cases": 2, "tokens": 96}'
door() { # fault policy TEXT
    run "$doors" gate "$TMP/$2.json" "$TMP/built" --reference "$TMP/own.json" --quiet
    rc_is 0 "$1, not planted"
    MLA_FAULT=$1 run "$doors" gate "$TMP/$2.json" "$TMP/built" --reference "$TMP/own.json" --quiet
    named "$1" "$3"
    MLA_FAULT=$1 run "$v" gate "$TMP/$2.json" "$TMP/built" --reference "$TMP/own.json" --quiet
    rc_is 0 "$1: the program that users run has no such door"
}
door int32-slots slots 'beyond int32 slots: '
door decode-chunk chunks '; most in last '
door stale-prefix prefix 'hit of '

finish faults
