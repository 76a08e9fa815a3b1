/* Parity: the document as lines for people, and its chart. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/svg.h"
#include "verify/parity/parity.h"
#include "verify/report/report.h"

#define SHOWN 20

static void agreement_line(mla_str *out, const char *what, const mla_jv *o)
{
    mla_str_printf(out, "%-10s %6.0f of %6.0f agree  %.5f   Wilson [%.5f, %.5f]   by prompt [%.5f, %.5f]\n", what, mla_doc_num(o, "agree"),
                   mla_doc_num(o, "positions"), mla_doc_num(o, "agreement"), mla_doc_num(o, "wilson_low"), mla_doc_num(o, "wilson_high"),
                   mla_doc_num(o, "bootstrap_low"), mla_doc_num(o, "bootstrap_high"));
}

static void put_measures(mla_str *out, const mla_jv *doc)
{
    const mla_jv *kld = mla_jv_get(doc, "kld"), *ppl = mla_jv_get(doc, "ppl"), *fd = mla_jv_get(doc, "free_decode"), *aa = mla_jv_get(doc, "aa");
    if (kld)
        mla_str_printf(out, "KLD        mean %.6g [%.6g, %.6g]  median %.4g  p99 %.4g  max %.4g nats over %.0f positions; top-1 %.5f\n",
                       mla_doc_num(kld, "mean"), mla_doc_num(kld, "mean_low"), mla_doc_num(kld, "mean_high"), mla_doc_num(kld, "p50"),
                       mla_doc_num(kld, "p99"), mla_doc_num(kld, "max"), mla_doc_num(kld, "positions"), mla_doc_num(kld, "top1_agreement"));
    if (ppl)
        mla_str_printf(out, "perplexity reference %.5g, model %.5g, ratio %.6f [%.6f, %.6f]\n", mla_doc_num(ppl, "reference"),
                       mla_doc_num(ppl, "model"), mla_doc_num(ppl, "ratio"), mla_doc_num(ppl, "ratio_low"), mla_doc_num(ppl, "ratio_high"));
    if (mla_doc_num(fd, "cases") > 0)
        mla_str_printf(out, "free decode %.0f of %.0f answers identical; %.0f tokens before a divergence\n", mla_doc_num(fd, "exact"),
                       mla_doc_num(fd, "cases"), mla_doc_num(fd, "matching_tokens"));
    if (mla_doc_num(aa, "positions") > 0) {
        char how[48] = "when asked again";
        if (mla_doc_num(aa, "chunk") > 0) (void)snprintf(how, sizeof how, "with chunks of %.0f", mla_doc_num(aa, "chunk"));
        mla_str_printf(out, "A/A floor  %.0f of %.0f agree %s; margins move by at most %.3g nats\n", mla_doc_num(aa, "agree"), mla_doc_num(aa, "positions"),
                       how, mla_doc_num(aa, "margin_change_max"));
    }
}

static void put_strata(mla_str *out, const mla_jv *list)
{
    if (!mla_jv_next(mla_jv_first(list))) return;
    mla_str_put(out, "\n");
    for (const mla_jv *s = mla_jv_first(list); s; s = mla_jv_next(s)) {
        const mla_jv *c = mla_jv_get(s, "confident");
        if (!strcmp(mla_doc_str(s, "by", ""), "context")) {
            mla_str_printf(out, "context %6.0f-%-6.0f ", mla_doc_num(s, "from"), mla_doc_num(s, "below") - 1);
        } else {
            const char *by = mla_doc_str(s, "by", "");
            mla_str_printf(out, "%s ", by);
            mla_doc_line(out, mla_doc_str(s, by, ""));
            mla_str_put(out, "  ");
        }
        mla_str_printf(out, "%6.0f positions %.5f, confident %6.0f %.5f", mla_doc_num(s, "positions"), mla_doc_num(s, "agreement"),
                       mla_doc_num(c, "positions"), mla_doc_num(c, "agreement"));
        if (mla_jv_get(s, "kld_mean")) mla_str_printf(out, ", KLD %.4g", mla_doc_num(s, "kld_mean"));
        mla_str_put(out, "\n");
    }
}

/* The confident ones first: those are what a gate fails on. */
static void put_disagreements(mla_str *out, const mla_jv *doc)
{
    double total = mla_doc_num(doc, "disagreements_total");
    size_t shown = 0;
    if (total == 0) return;
    mla_str_printf(out, "\n%.0f disagreements, %.0f of them near-ties (margin <= %.3g nats)\n", total, mla_doc_num(doc, "near_ties"),
                   mla_doc_num(doc, "near_tie_nats"));
    for (int pass = 0; pass < 2; pass++)
        for (const mla_jv *d = mla_jv_first(mla_jv_get(doc, "disagreements")); d && shown < SHOWN; d = mla_jv_next(d)) {
            bool sure = false, tie = false;
            (void)mla_jv_bool(mla_jv_get(d, "confident"), &sure);
            (void)mla_jv_bool(mla_jv_get(d, "near_tie"), &tie);
            if (sure != (pass == 0)) continue;
            mla_str_put(out, "  ");
            mla_doc_line(out, mla_doc_str(d, "case", ""));
            mla_str_printf(out, " position %.0f: expected %.0f, got %.0f, margin %.4g%s\n", mla_doc_num(d, "position"),
                           mla_doc_num(d, "expected"), mla_doc_num(d, "got"), mla_doc_num(d, "margin"), sure ? "  CONFIDENT" : tie ? "  near-tie" : "");
            shown++;
        }
    if ((double)shown < total) mla_str_printf(out, "  ... %.0f more with --json\n", total - (double)shown);
}

void mla_parity_text(mla_str *out, const mla_jv *doc)
{
    agreement_line(out, "all", doc);
    agreement_line(out, "confident", mla_jv_get(doc, "confident"));
    put_measures(out, doc);
    put_strata(out, mla_jv_get(doc, "strata"));
    put_disagreements(out, doc);
    mla_str_put(out, "\n");
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g)) {
        mla_str_printf(out, "%-20s %s: ", mla_doc_str(g, "verdict", ""), mla_doc_str(g, "name", ""));
        mla_doc_line(out, mla_doc_str(g, "reason", ""));
        mla_str_put(out, "\n");
    }
    mla_str_printf(out, "verdict: %s\n", mla_doc_str(doc, "verdict", "?"));
}

mla_status mla_parity_svg(mla_str *out, const mla_jv *doc, mla_err *err)
{
    const mla_jv *list = mla_jv_get(mla_jv_get(doc, "kld"), "by_position");
    size_t n = mla_jv_len(list), i = 0;
    double *x = mla_alloc(n, 1, sizeof *x), *mean = mla_alloc(n, 1, sizeof *mean), *max = mla_alloc(n, 1, sizeof *max);
    mla_status st = x && mean && max ? MLA_OK : mla_fail(err, MLA_ENOMEM, "chart of %zu points", n);
    for (const mla_jv *v = mla_jv_first(list); v && st == MLA_OK; v = mla_jv_next(v), i++) {
        x[i] = (mla_doc_num(v, "from") + mla_doc_num(v, "below") - 1) / 2;
        mean[i] = mla_doc_num(v, "mean");
        max[i] = mla_doc_num(v, "max");
    }
    mla_svg_series s[] = {{.label = "mean", .x = x, .y = mean, .n = n}, {.label = "largest", .x = x, .y = max, .n = n}};
    if (st == MLA_OK)
        st = mla_svg_write(out,
                           &(mla_svg_chart){.title = "KL divergence by position", .x_label = "tokens of context", .y_label = "nats",
                                            .log_y = true, .series = s, .n = 2},
                           err);
    mla_free(x);
    mla_free(mean);
    mla_free(max);
    return st;
}
