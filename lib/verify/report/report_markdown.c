/* Markdown: verdict, gates, the figures of a parity report, its disagreements while there is room. */
#include <math.h>
#include <string.h>

#include "verify/report/report.h"

/* A table cell: one line, no table or markup characters left active. */
static void cell(mla_str *out, const char *s)
{
    for (const char *p = s; *p; p++) {
        if (strchr("|`*_<>[]\\", *p)) mla_str_put(out, "\\");
        char one[2] = {*p, 0};
        mla_doc_line(out, one);
    }
}

static void put_figures(mla_str *out, const mla_jv *g)
{
    if (mla_jv_is_num(mla_jv_get(g, "value"))) mla_str_printf(out, "%.6g", mla_doc_num(g, "value"));
    mla_str_put(out, " | ");
    if (mla_jv_is_num(mla_jv_get(g, "low"))) mla_str_printf(out, "[%.6g, %.6g]", mla_doc_num(g, "low"), mla_doc_num(g, "high"));
    mla_str_put(out, " | ");
    if (mla_jv_is_num(mla_jv_get(g, "threshold"))) mla_str_printf(out, "%.6g", mla_doc_num(g, "threshold"));
    mla_str_put(out, " | ");
}

static void put_gates(mla_str *out, const mla_jv *gates)
{
    bool figures = false;
    if (!mla_jv_first(gates)) return;
    for (const mla_jv *g = mla_jv_first(gates); g && !figures; g = mla_jv_next(g)) figures = mla_jv_get(g, "threshold") != NULL;
    mla_str_put(out, figures ? "| rule | verdict | value | interval | threshold | why |\n|---|---|---|---|---|---|\n"
                             : "| gate | verdict | why |\n|---|---|---|\n");
    for (const mla_jv *g = mla_jv_first(gates); g; g = mla_jv_next(g)) {
        mla_str_put(out, "| ");
        cell(out, mla_doc_str(g, "name", ""));
        mla_str_printf(out, " | **%s** | ", mla_doc_str(g, "verdict", ""));
        if (figures) put_figures(out, g);
        cell(out, mla_doc_str(g, "reason", ""));
        mla_str_put(out, " |\n");
    }
    mla_str_put(out, "\n");
}

static void agreement_row(mla_str *out, const char *what, const mla_jv *o)
{
    mla_str_printf(out, "| %s | %.0f | %.0f | %.5f | [%.5f, %.5f] | [%.5f, %.5f] |\n", what, mla_doc_num(o, "positions"),
                   mla_doc_num(o, "agree"), mla_doc_num(o, "agreement"), mla_doc_num(o, "wilson_low"), mla_doc_num(o, "wilson_high"),
                   mla_doc_num(o, "bootstrap_low"), mla_doc_num(o, "bootstrap_high"));
}

static void put_parity(mla_str *out, const mla_jv *doc)
{
    const mla_jv *kld = mla_jv_get(doc, "kld"), *ppl = mla_jv_get(doc, "ppl"), *fd = mla_jv_get(doc, "free_decode");
    mla_str_put(out, "| positions | judged | agree | agreement | Wilson 95 % | by prompt 95 % |\n|---|---|---|---|---|---|\n");
    agreement_row(out, "all", doc);
    agreement_row(out, "confident", mla_jv_get(doc, "confident"));
    mla_str_put(out, "\n");
    if (kld)
        mla_str_printf(out, "KL divergence over %.0f positions: mean **%.6g** [%.6g, %.6g], median %.4g, p99 %.4g, max %.4g nats; top-1 %.5f.\n\n",
                       mla_doc_num(kld, "positions"), mla_doc_num(kld, "mean"), mla_doc_num(kld, "mean_low"), mla_doc_num(kld, "mean_high"),
                       mla_doc_num(kld, "p50"), mla_doc_num(kld, "p99"), mla_doc_num(kld, "max"), mla_doc_num(kld, "top1_agreement"));
    if (ppl)
        mla_str_printf(out, "Perplexity: reference %.5g, model %.5g, ratio **%.6f** [%.6f, %.6f].\n\n", mla_doc_num(ppl, "reference"),
                       mla_doc_num(ppl, "model"), mla_doc_num(ppl, "ratio"), mla_doc_num(ppl, "ratio_low"), mla_doc_num(ppl, "ratio_high"));
    if (mla_doc_num(fd, "cases") > 0)
        mla_str_printf(out, "Free decode: %.0f of %.0f answers identical to their end, %.0f tokens before a divergence.\n\n",
                       mla_doc_num(fd, "exact"), mla_doc_num(fd, "cases"), mla_doc_num(fd, "matching_tokens"));
}

/* Five decimals, or nothing where there is no number. */
static void put_measured(mla_str *out, const mla_jv *o, const char *key)
{
    if (mla_jv_is_num(mla_jv_get(o, key))) mla_str_printf(out, "%.5f", mla_doc_num(o, key));
}

static void put_strata(mla_str *out, const mla_jv *list)
{
    if (!mla_jv_next(mla_jv_first(list))) return;
    mla_str_put(out, "| stratum | judged | agreement | confident | agreement | mean KLD |\n|---|---|---|---|---|---|\n");
    for (const mla_jv *s = mla_jv_first(list); s; s = mla_jv_next(s)) {
        const mla_jv *c = mla_jv_get(s, "confident");
        if (!strcmp(mla_doc_str(s, "by", ""), "context")) {
            mla_str_printf(out, "| context %.0f-%.0f", mla_doc_num(s, "from"), mla_doc_num(s, "below") - 1);
        } else {
            const char *by = mla_doc_str(s, "by", "");
            mla_str_printf(out, "| %s ", by);
            cell(out, mla_doc_str(s, by, ""));
        }
        mla_str_printf(out, " | %.0f | ", mla_doc_num(s, "positions"));
        put_measured(out, s, "agreement");
        mla_str_printf(out, " | %.0f | ", mla_doc_num(c, "positions"));
        put_measured(out, c, "agreement");
        mla_str_put(out, " | ");
        put_measured(out, s, "kld_mean");
        mla_str_put(out, " |\n");
    }
    mla_str_put(out, "\n");
}

/* Rows until the room is used up; what is left out is counted. */
static void put_disagreements(mla_str *out, const mla_jv *doc)
{
    double total = mla_doc_num(doc, "disagreements_total"), shown = 0;
    const mla_jv *list = mla_jv_get(doc, "disagreements");
    if (!mla_jv_first(list)) return;
    mla_str_printf(out, "<details><summary>%.0f disagreements, %.0f of them near-ties</summary>\n\n", total, mla_doc_num(doc, "near_ties"));
    mla_str_put(out, "| case | position | expected | got | margin | |\n|---|---|---|---|---|---|\n");
    for (const mla_jv *d = mla_jv_first(list); d && shown < 500 && out->len + 4096 < MLA_MARKDOWN_MAX; d = mla_jv_next(d), shown++) {
        bool tie = false, sure = false;
        (void)mla_jv_bool(mla_jv_get(d, "near_tie"), &tie);
        (void)mla_jv_bool(mla_jv_get(d, "confident"), &sure);
        mla_str_put(out, "| ");
        cell(out, mla_doc_str(d, "case", ""));
        mla_str_printf(out, " | %.0f | %.0f | %.0f | %.4g | %s |\n", mla_doc_num(d, "position"), mla_doc_num(d, "expected"),
                       mla_doc_num(d, "got"), mla_doc_num(d, "margin"), sure ? "confident" : tie ? "near-tie" : "");
    }
    if (shown < total) mla_str_printf(out, "\n%.0f more in the JSON report.\n", total - shown);
    mla_str_put(out, "\n</details>\n\n");
}

static void put_findings(mla_str *out, const mla_jv *list)
{
    size_t n = 0;
    for (const mla_jv *f = mla_jv_first(list); f && out->len + 8192 < MLA_MARKDOWN_MAX; f = mla_jv_next(f), n++) {
        mla_str_put(out, "- ");
        cell(out, mla_doc_str(f, "text", mla_jv_str(f) ? mla_jv_str(f) : ""));
        mla_str_put(out, "\n");
    }
    if (n < mla_jv_len(list)) mla_str_printf(out, "- %zu more in the JSON report\n", mla_jv_len(list) - n);
    if (n) mla_str_put(out, "\n");
}

mla_status mla_report_markdown(mla_str *out, const mla_jv *doc, mla_err *err)
{
    const mla_jv *model = mla_jv_get(doc, "model");
    mla_str_printf(out, "## %s: ", mla_doc_str(doc, "schema", "report"));
    cell(out, mla_doc_str(model, "name", "model"));
    mla_str_printf(out, " - %s\n\n", mla_doc_str(doc, "verdict", "?"));
    if (mla_jv_get(model, "root_digest")) mla_str_printf(out, "root digest `%s`\n\n", mla_doc_str(model, "root_digest", "none"));
    put_gates(out, mla_jv_get(doc, "gates"));
    put_findings(out, mla_jv_get(doc, "findings"));
    const mla_jv *parity = mla_jv_get(doc, "confident") ? doc : mla_jv_get(mla_jv_get(doc, "reports"), "parity");
    if (parity) {
        put_parity(out, parity);
        put_strata(out, mla_jv_get(parity, "strata"));
        put_disagreements(out, parity);
    }
    if (!mla_str_ok(out) || out->len > MLA_MARKDOWN_MAX) return mla_fail(err, MLA_ENOMEM, "Markdown report of more than %zu bytes", MLA_MARKDOWN_MAX);
    return MLA_OK;
}
