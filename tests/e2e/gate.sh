#!/bin/sh
# mla-verify gate: one verdict from a policy, exit codes, strict policies, verdict files whole or absent, the examples of
# docs/ as they stand there, JUnit and JSON read by real parsers.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
v=$BIN/mla-verify
m=$ROOT/tests/fixtures/tiny-hybrid

run "$BIN/mla-retrofit" build "$m" "$TMP/built" --keep 1 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 4096 --quiet
rc_is 0 build
head -n 3 "$ROOT/calib/evaluation.jsonl" >"$TMP/text.jsonl"
run "$v" record "$m" --prompts "$TMP/text.jsonl" --split 32 --forced-tokens 100 --out "$TMP/own.json" --quiet
rc_is 0 record
printf '%s\n' '{"prompt": "<|im_start|>user\nTell me about rain.<|im_end|>\n<|im_start|>assistant\n", "name": "rain@en"}' >"$TMP/p.jsonl"
run "$v" record "$m" --prompts "$TMP/p.jsonl" --max-tokens 12 --out "$TMP/few.json" --quiet
rc_is 0 'record of one prompt'

policy() { # sections: a policy around them
    printf '{"schema": "mla-policy/1", "name": "test", %s}\n' "$1" >"$TMP/policy.json"
}
whole='"receipts": {"base": true, "base_unchanged": true, "tokenizer": true}, "scales": {}, "selfcheck": {}, "parity": {"min_agreement": 0.95, "aa_positions": 32,
"max_kld": 0.001, "max_ppl_ratio": 1.01, "rows": 2, "row_tokens": 64, "contexts": [48], "answer_tokens": 8, "strata": [{"by": "context",
"min_agreement": 0.9, "min_positions": 50}, {"by": "kind", "is": "forced", "min_agreement": 0.9}]}, "layers": {"max_error": 0.001}, "paths": {"check": ["chunked", "prefix",
"batch", "threads", "split"], "cases": 2, "tokens": 72}, "mtp": {"drafts": 2, "cases": 1, "tokens": 12}, "capacity": {"max_kv_ratio": 1}'
policy "$whole"
gate() { # all files that a gate can write, then more arguments
    run "$v" gate "$TMP/policy.json" "$TMP/built" --out "$TMP/v.json" --junit "$TMP/v.xml" --markdown "$TMP/v.md" --svg "$TMP/svg" --quiet "$@"
}
files() { # there|gone what
    for f in v.json v.xml v.md; do
        if [ "$1" = there ] && [ -s "$TMP/$f" ]; then pass
        elif [ "$1" = gone ] && [ ! -e "$TMP/$f" ]; then pass
        else fail "$2: $f: expected to be $1"; fi
    done
}

gate --reference "$TMP/own.json" --reference "$TMP/few.json" --against "$m" --json
rc_is 0 'full-rank retrofit'
files there 'full-rank retrofit'
for t in '"schema": "mla-gate/1"' '"verdict": "pass"' '"name": "parity: agreement at confident positions"' '"threshold": 0.95' \
    '"name": "paths: prefix"' '"name": "mtp: answers with 2 drafts"' '"name": "layers: mixer outputs"' '"not applicable"' \
    '"name": "receipts: base weights"' '"name": "capacity: KV bytes over the base'; do has out "$t" 'full-rank retrofit'; done
lacks out "$TMP" 'full-rank retrofit'
lacks out "$ROOT" 'full-rank retrofit'
if cmp -s "$TMP/out" "$TMP/v.json"; then pass; else fail 'the verdict file is not the document on stdout'; fi
if [ -s "$TMP/svg/kld-by-position.svg" ] && [ -s "$TMP/svg/agreement-by-context.svg" ]; then pass; else fail 'charts are missing'; fi
cp "$TMP/v.json" "$TMP/first.json"
cp "$TMP/svg/kld-by-position.svg" "$TMP/kld.svg"
gate --reference "$TMP/own.json" --reference "$TMP/few.json" --against "$m" --threads 1
if cmp -s "$TMP/v.json" "$TMP/first.json"; then pass; else fail 'the verdict depends on the threads'; fi

# the sample is too small; what needs a base has none
policy '"receipts": {"base": true}, "parity": {"min_agreement": 0.995, "max_kld": 0.001}'
gate --reference "$TMP/few.json"
rc_is 3 'too small a sample'
for t in 'at least 765 are needed' 'it needs --against BASE'; do has out "$t" 'too small a sample'; done
files there 'too small a sample'
if grep -q '<error' "$TMP/v.xml"; then pass; else fail 'too small a sample: no error in the JUnit file'; fi

# a stratum that the policy names and the sample lacks
policy '"parity": {"min_agreement": 0.9, "strata": [{"by": "language", "is": "ja", "min_agreement": 0.9}]}'
gate --reference "$TMP/own.json" --reference "$TMP/few.json"
rc_is 3 'a language that no case has'
has out 'parity: language ja: no position of the sample lies in this stratum' 'a language that no case has'

# other answers than the recorded ones: fails, and says which rule
policy '"parity": {"min_agreement": 0.9}'
python3 - "$TMP/own.json" "$TMP/bent.json" <<'P' 2>/dev/null || skip 'a bent reference' 'no python3'
import json, sys
r = json.load(open(sys.argv[1]))
for c in r["cases"]: c["top1"] = [(t + 1) % 2048 for t in c["top1"]]
json.dump(r, open(sys.argv[2], "w"))
P
gate --reference "$TMP/bent.json"
rc_is 1 'other answers'
has err 'fail: parity: agreement at confident positions' 'other answers'
files there 'other answers'
if grep -q '<failure' "$TMP/v.xml"; then pass; else fail 'other answers: no failure in the JUnit file'; fi

# a reference that cannot be read is no pass, and the stale verdict goes
head -c 100 "$TMP/own.json" >"$TMP/cut.json"
gate --reference "$TMP/own.json" --reference "$TMP/cut.json"
rc_is 3 'a reference cut short'
has out 'inputs: reference: could not be judged' 'a reference cut short'
lacks out "$TMP" 'a reference cut short'
gate --reference "$TMP/own.json"
rc_is 0 'parity alone'
echo '{' >"$TMP/policy.json"
gate --reference "$TMP/own.json"
rc_is 3 'a broken policy'
files gone 'a broken policy'
policy '"parity": {"min_agreement": 0.9}'
gate --reference "$TMP/own.json"
files there 'before the kill'
"$v" gate "$TMP/policy.json" "$TMP/built" --reference "$ROOT/tests/fixtures/references/tiny-hybrid.json" --out "$TMP/v.json" --junit "$TMP/v.xml" \
    --markdown "$TMP/v.md" --quiet >/dev/null 2>&1 &
pid=$!
while [ -e "$TMP/v.md" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
kill -9 "$pid"
wait "$pid" 2>/dev/null
files gone 'a killed run'
gate --reference "$TMP/own.json"
run "$v" gate "$TMP/policy.json" "$TMP/built" --reference "$TMP/own.json" --out "$TMP/v.json" --junit "$TMP/none/v.xml" --markdown "$TMP/v.md" --quiet
rc_is 3 'a verdict file that cannot be written'
if [ ! -e "$TMP/v.json" ] && [ ! -e "$TMP/v.md" ]; then pass; else fail 'a verdict file that cannot be written: another one stayed'; fi

# damage: named, whatever else holds
cp -rL "$TMP/built" "$TMP/bad"
chmod -R u+w "$TMP/bad"
printf x >>"$TMP/bad/tokenizer.json"
policy "$whole"
run "$v" gate "$TMP/policy.json" "$TMP/bad" --reference "$TMP/own.json" --against "$m" --quiet
rc_is 1 'a damaged tokenizer'
has out 'tokenizer.json: ' 'a damaged tokenizer'

# strict policies
refuse() { # sections text
    policy "$1"
    gate --reference "$TMP/own.json"
    rc_is 3 "policy $1"
    has err "$2" "policy $1"
    files gone "policy $1"
}
refuse '"parity": {"min_agrement": 0.9}' 'parity.min_agrement: unknown field'
refuse '"party": {}' 'party: unknown section'
refuse '"parity": {"min_agreement": 1}' 'parity.min_agreement: expected 0 to'
refuse '"parity": {"strata": [{"by": "context"}]}' 'strata[0]: expected "by" and "min_agreement"'
refuse '"paths": {"check": ["cached"]}' 'paths.check[0]: expected one of'
refuse '"layers": {}' 'layers.max_error: missing'
refuse '"run": {}' 'no section to judge'
for f in "$ROOT"/configs/gate-*.json; do
    run "$v" gate "$f" "$TMP/none" --quiet
    rc_is 3 "$(basename "$f") on nothing"
    has out 'inputs: model: could not be judged' "$(basename "$f")"
done
run "$v" gate "$TMP/policy.json"
rc_is 2 'no model'

# the examples, as they stand in docs/
policy '"parity": {"min_agreement": 0.9}'
PATH=$(cd "$BIN" && pwd):$PATH
export PATH
sed -n 's/^          \(docs\/examples.*\)/\1/p' "$ROOT/docs/examples/github-actions.yml" >"$TMP/step.sh"
if [ -s "$TMP/step.sh" ]; then pass; else fail 'no step in the workflow'; fi
mkdir -p "$TMP/job/docs"
cp -r "$ROOT/docs/examples" "$TMP/job/docs/"
(cd "$TMP/job" && POLICY=$TMP/policy.json MODEL=$TMP/built BASE='' REFERENCE=$TMP/own.json GITHUB_STEP_SUMMARY=$TMP/summary sh -e "$TMP/step.sh" >/dev/null 2>&1)
RC=$?
rc_is 0 'the workflow step'
if grep -q 'mla-gate/1' "$TMP/summary"; then pass; else fail 'the workflow step: no summary'; fi
(cd "$TMP/job" && POLICY=$TMP/policy.json MODEL=$TMP/built BASE='' REFERENCE=$TMP/bent.json GITHUB_STEP_SUMMARY=$TMP/summary sh -e "$TMP/step.sh" >/dev/null 2>&1)
RC=$?
rc_is 1 'the workflow step on other answers'
if command -v python3 >/dev/null; then
    run python3 - "$TMP/job/gate/junit.xml" "$TMP/job/gate/verdict.json" "$TMP/kld.svg" <<'P'
import json, sys
import xml.etree.ElementTree as x
s = x.parse(sys.argv[1]).getroot().find("testsuite")
v = json.load(open(sys.argv[2]))
assert s.get("name") == "mla-gate" and int(s.get("tests")) == len(s.findall("testcase")) == len(v["gates"]) + len(v["findings"])
assert int(s.get("failures")) == len(s.findall("testcase/failure")) > 0
assert v["verdict"] == "fail" and v["policy"]["sha256"] and v["model"]["root_digest"] and v["references"][0]["sha256"]
assert all(g["reason"] for g in v["gates"])
assert x.parse(sys.argv[3]).getroot().tag.endswith("svg")
P
    rc_is 0 'JUnit, JSON and SVG read by python'
else
    skip 'JUnit read by a parser' 'no python3'
fi
finish gate
