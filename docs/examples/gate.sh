#!/bin/sh
# Release gate for any CI: judges MODEL by POLICY and leaves verdict.json, junit.xml, summary.md and charts in OUT.
# Usage: gate.sh POLICY MODEL REFERENCE OUT [BASE]
# The exit code is the verdict: 0 pass, 1 a rule fails, 3 not enough evidence or could not be judged.
set -u
policy=$1 model=$2 reference=$3 out=$4 base=${5:-}
mkdir -p "$out" || exit 3
rc=0
mla-verify gate "$policy" "$model" --reference "$reference" ${base:+--against "$base"} --quiet \
    --out "$out/verdict.json" --junit "$out/junit.xml" --markdown "$out/summary.md" --svg "$out/charts" || rc=$?
# a run that was killed leaves no summary: that is no pass, whatever its exit code
if [ ! -f "$out/verdict.json" ] && [ "$rc" -eq 0 ]; then rc=3; fi
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    if [ -f "$out/summary.md" ]; then
        cat "$out/summary.md" >>"$GITHUB_STEP_SUMMARY"
    else
        echo "mla-verify gate: no verdict (exit $rc)" >>"$GITHUB_STEP_SUMMARY"
    fi
fi
exit "$rc"
