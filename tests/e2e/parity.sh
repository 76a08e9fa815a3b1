#!/bin/sh
# mla-verify record and parity on the bundled hybrid model: its own record passes, a changed model fails, too little
# evidence is no verdict, reports are written, the same bytes whatever the threads.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
v=$BIN/mla-verify
m=$ROOT/tests/fixtures/tiny-hybrid
eval_text=$ROOT/calib/evaluation.jsonl

# a reference of the model's own answers and of given text: about 1,600 positions
head -n 8 "$eval_text" >"$TMP/text.jsonl"
run "$v" record "$m" --prompts "$TMP/text.jsonl" --split 32 --forced-tokens 200 --out "$TMP/own.json" --quiet
rc_is 0 record
run "$v" inspect "$TMP/own.json"
has out 'mla-reference/1' 'inspect of the record'
printf '%s\n' '{"prompt": "<|im_start|>user\nTell me about rain.<|im_end|>\n<|im_start|>assistant\n", "name": "rain@en"}' >"$TMP/prompts.jsonl"
run "$v" record "$m" --prompts "$TMP/prompts.jsonl" --max-tokens 20 --out "$TMP/few.json" --quiet
rc_is 0 'record of one prompt'

run "$v" parity "$m" --reference "$TMP/own.json" --json --junit "$TMP/j.xml" --markdown "$TMP/m.md" --svg "$TMP/k.svg"
rc_is 0 'own record'
for t in '"schema": "mla-parity/1"' '"verdict": "pass"' '"agreement": 1,' '"root_digest": "sha256:' '"wilson_low": 0.99'; do has out "$t" 'own record'; done
lacks out "$ROOT" 'own record'
lacks out "$TMP" 'own record'
cp "$TMP/out" "$TMP/two.json"
for f in j.xml m.md k.svg; do
    if [ -s "$TMP/$f" ]; then pass; else fail "own record: no $f"; fi
done
run "$v" parity "$m" --reference "$TMP/own.json" --json --threads 1 --quiet
rc_is 0 'own record, one thread'
if cmp -s "$TMP/out" "$TMP/two.json"; then pass; else fail 'own record: the document depends on the threads'; fi

run "$v" parity "$m" --reference "$TMP/few.json" --quiet
rc_is 3 'twenty positions'
has err 'not enough evidence' 'twenty positions'
has out 'free decode 1 of 1' 'twenty positions'

# other text than the model says: the recorded ids moved by one
sed 's/"top1": \[/"top1": [7,/; s/"completion_ids": \[/"completion_ids": [7,/' "$TMP/own.json" >"$TMP/bent.json"
run "$v" parity "$m" --reference "$TMP/bent.json" --quiet
if [ "$RC" -eq 3 ] || [ "$RC" -eq 1 ]; then pass; else fail "bent record: expected exit 1 or 3, found $RC"; fi

# a changed model: one weight matrix zeroed in a copy
cp -r "$m" "$TMP/broken"
chmod u+w "$TMP/broken"/*
dd if=/dev/zero of="$TMP/broken/model.safetensors" bs=4096 seek=2500 count=40 conv=notrunc 2>/dev/null
run "$v" parity "$TMP/broken" --reference "$TMP/own.json" --quiet --junit "$TMP/j2.xml"
rc_is 1 'damaged weights'
has err 'fail: ' 'damaged weights'
if grep -q '<failure' "$TMP/j2.xml"; then pass; else fail 'damaged weights: no failure in the JUnit file'; fi

# against a base: itself with a bf16 cache
run "$v" parity "$m" --against "$m" --corpus "$eval_text" --rows 2 --row-tokens 640 --kv-dtype bf16 --json --quiet
rc_is 0 'against itself'
for t in '"kld": {' '"mean": ' '"p99": ' '"ratio": ' '"by_position": ['; do has out "$t" 'against itself'; done
run "$v" parity "$m" --against "$m" --rows 1 --row-tokens 64 --max-kld 0 --kv-dtype bf16 --quiet
rc_is 1 'a KLD limit of zero'

# an image prompt: embeddings with positions in three dimensions
cp "$ROOT/tests/fixtures/references/tiny-hybrid.tensors.safetensors" "$TMP/img.safetensors"
run "$v" record "$m" --embeddings "$TMP/img.safetensors" --max-tokens 8 --out "$TMP/img.json" --quiet
rc_is 0 'record of embeddings'
run "$v" parity "$m" --reference "$TMP/img.json" --min-agreement 0 --quiet
rc_is 0 'embeddings'
has out 'kind image' 'embeddings'
run "$v" record "$m" --embeddings "$ROOT/tests/fixtures/references/tiny-hybrid.tensors.safetensors" --out "$TMP/img2.json"
rc_is 2 'embeddings in another folder'
cp "$m/model.safetensors" "$TMP/img.safetensors"
run "$v" parity "$m" --reference "$TMP/img.json" --quiet
rc_is 3 'another file of embeddings'
has err 'sha256 expected' 'another file of embeddings'

# paths of a server
run "$v" parity "$m" --reference "$TMP/few.json" --min-agreement 0 --paths chunked --paths mtp --path-tokens 72 --quiet
rc_is 0 'paths'
has out 'paths: chunked: ' 'paths'
has out 'mtp: answers with 4 drafts: ' 'paths'
run "$v" parity "$m" --against "$m" --context 64 --context 200 --answer-tokens 8 --rows 1 --row-tokens 64 --aa-positions 0 --min-agreement 0 --json --quiet
rc_is 0 'long contexts'
for t in '"name": "context-64"' '"name": "context-200"' '"by": "context"'; do has out "$t" 'long contexts'; done
run "$v" parity "$m" --against "$m" --context 8 --answer-tokens 8 --quiet
rc_is 2 'a context no longer than its answer'
one_line 'a context no longer than its answer'
run "$v" parity "$m" --reference "$TMP/few.json" --context 64
rc_is 2 'a context without a base'
run "$v" parity "$m" --reference "$TMP/few.json" --paths cached
rc_is 2 'an unknown path'

run "$v" parity "$m"
rc_is 2 'nothing to compare with'
run "$v" parity "$m" --reference "$TMP/own.json" --corpus "$eval_text"
rc_is 2 'a corpus without a base'
run "$v" parity "$m" --reference "$TMP/own.json" --kv-dtype fp8 --quiet
rc_is 3 'an FP8 cache without scales'
one_line 'an FP8 cache without scales'
run "$v" parity "$m" --reference "$TMP/absent.json"
rc_is 3 'no reference file'
run "$v" parity "$m" --reference "$TMP/own.json" --device cuda:7
if [ "$RC" -ne 0 ]; then pass; else fail 'an absent device was replaced silently'; fi

finish parity
