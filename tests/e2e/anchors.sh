#!/bin/sh
# Quality: mean KL divergence of layout N on the evaluation text at four budgets, against the published closed-form column
# (design notes, algorithms 12): within 10 % of it or better, falling with rank. The same text, the same cut.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
BASE=$ROOT/tests/fixtures/tiny-hybrid

run "$BIN/mla-retrofit" stats "$BASE" "$TMP/s.mlastats"
rc_is 0 "statistics of the bundled corpus"
last=0
for pair in 0.75:0.00107 0.5:0.01061 0.375:0.03004 0.25:0.11025; do
    keep=${pair%:*} want=${pair#*:}
    run "$BIN/mla-retrofit" build "$BASE" "$TMP/$keep" --keep "$keep" --stats "$TMP/s.mlastats"
    rc_is 0 "build at keep $keep"
    run "$BIN/mla-verify" parity "$TMP/$keep" --against "$BASE" --corpus "$ROOT/calib/evaluation.jsonl" --rows 8 --row-tokens 1024 \
        --min-agreement 0.001 --no-decode --aa-positions 0 --json
    kld=$(sed -n '/"kld": {/,/}/s/.*"mean": \([0-9.e-]*\).*/\1/p' "$TMP/out" | head -n 1)
    printf "keep %s: KLD %.5f, anchor %s\n" "$keep" "${kld:-9}" "$want"
    if awk "BEGIN{exit !(${kld:-9} > $last && ${kld:-9} <= 1.1 * $want)}"; then pass; else fail "keep $keep: KLD ${kld:-none}, at most 1.1 x $want, above $last"; fi
    last=${kld:-9}
done
finish anchors
