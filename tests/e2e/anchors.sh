#!/bin/sh
# Quality: mean KL divergence of layout N on the evaluation text at four budgets, against the published closed-form column
# (design notes, algorithms 12): within 10 % of it or better, falling with rank; at one budget the whole recipe against the
# column of the refined. The same text, the same cut; a quarter of the calibration tokens that the columns had, which is harder.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid

run "$BIN/mla-retrofit" stats "$BASE" "$TMP/s.mlastats" --calibration-tokens 32768
rc_is 0 "statistics of the bundled corpus"
# kld NAME OPTIONS...: builds $TMP/NAME and sets $kld
kld() {
    name=$1
    shift
    run "$BIN/mla-retrofit" build "$BASE" "$TMP/$name" --stats "$TMP/s.mlastats" "$@"
    rc_is 0 "build $name"
    run "$BIN/mla-verify" parity "$TMP/$name" --against "$BASE" --corpus "$ROOT/calib/evaluation.jsonl" --rows 8 --row-tokens 1024 \
        --min-agreement 0.001 --no-decode --aa-positions 0 --json
    kld=$(sed -n '/"kld": {/,/}/s/.*"mean": \([0-9.e-]*\).*/\1/p' "$TMP/out" | head -n 1)
    kld=${kld:-9}
}

last=0
for pair in 0.75:0.00107 0.5:0.01061 0.375:0.03004 0.25:0.11025; do
    keep=${pair%:*} want=${pair#*:}
    kld "$keep" --keep "$keep" --fast
    printf "keep %s: KLD %.5f, anchor %s\n" "$keep" "$kld" "$want"
    if awk "BEGIN{exit !($kld > $last && $kld <= 1.1 * $want)}"; then pass; else fail "keep $keep: KLD $kld, at most 1.1 x $want, above $last"; fi
    last=$kld
done

# The whole recipe at keep 0.5, with fewer steps than the default: the column "+ local refinement" of the same table.
kld refined --keep 0.5 --refine-steps 40
printf "keep 0.5, ranks by probe, refined: KLD %.5f, anchor 0.00346\n" "$kld"
if awk "BEGIN{exit !($kld <= 1.1 * 0.00346)}"; then pass; else fail "refined at keep 0.5: KLD $kld, at most 1.1 x 0.00346"; fi
finish anchors
