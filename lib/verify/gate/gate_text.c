/* What people read of a gate's verdict: lines and charts. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/svg.h"
#include "verify/gate/gate.h"
#include "verify/parity/parity.h"
#include "verify/report/report.h"

void mla_gate_text(mla_str *out, const mla_jv *doc)
{
    const mla_jv *m = mla_jv_get(doc, "model");
    mla_doc_line(out, mla_doc_str(m, "name", "model"));
    mla_str_printf(out, " against policy ");
    mla_doc_line(out, mla_doc_str(mla_jv_get(doc, "policy"), "name", "?"));
    mla_str_printf(out, ", root digest %s\n", mla_doc_str(m, "root_digest", "unknown"));
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g)) {
        mla_str_printf(out, "%-20s ", mla_doc_str(g, "verdict", ""));
        mla_doc_line(out, mla_doc_str(g, "name", ""));
        mla_str_put(out, ": ");
        mla_doc_line(out, mla_doc_str(g, "reason", ""));
        mla_str_put(out, "\n");
    }
    for (const mla_jv *f = mla_jv_first(mla_jv_get(doc, "findings")); f; f = mla_jv_next(f)) {
        mla_str_printf(out, "  %-7s ", mla_doc_str(f, "name", ""));
        mla_doc_line(out, mla_doc_str(f, "text", ""));
        mla_str_put(out, "\n");
    }
    mla_str_printf(out, "verdict: %s\n", mla_doc_str(doc, "verdict", "?"));
}

/* ---- charts ---- */
static mla_status kld_chart(mla_str *out, const mla_jv *doc, bool *drawn, mla_err *err)
{
    const mla_jv *parity = mla_jv_get(mla_jv_get(doc, "reports"), "parity");
    *drawn = mla_jv_first(mla_jv_get(mla_jv_get(parity, "kld"), "by_position")) != NULL;
    return *drawn ? mla_parity_svg(out, parity, err) : MLA_OK;
}

/* Agreement of confident positions by length of context, with its Wilson interval. */
static mla_status context_chart(mla_str *out, const mla_jv *doc, bool *drawn, mla_err *err)
{
    const mla_jv *list = mla_jv_get(mla_jv_get(mla_jv_get(doc, "reports"), "parity"), "strata");
    size_t room = mla_jv_len(list), n = 0;
    double *x = mla_alloc(4, room ? room : 1, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "chart of %zu strata", room);
    double *y = x + room, *low = x + 2 * room, *high = x + 3 * room;
    for (const mla_jv *s = mla_jv_first(list); s; s = mla_jv_next(s)) {
        const mla_jv *c = mla_jv_get(s, "confident");
        if (strcmp(mla_doc_str(s, "by", ""), "context") || !mla_jv_is_num(mla_jv_get(c, "agreement"))) continue;
        x[n] = mla_doc_num(s, "from") > 0 ? mla_doc_num(s, "from") : 256;
        y[n] = mla_doc_num(c, "agreement");
        low[n] = mla_doc_num(c, "wilson_low");
        high[n++] = mla_doc_num(c, "wilson_high");
    }
    mla_svg_series series[] = {{.label = "agreement", .x = x, .y = y, .n = n},
                               {.label = "Wilson 95 %", .x = x, .y = low, .hi = high, .n = n, .kind = MLA_SVG_BAND}};
    *drawn = n > 0;
    mla_status st = !n ? MLA_OK
                       : mla_svg_write(out, &(mla_svg_chart){.title = "Agreement at confident positions by context", .x_label = "tokens of context",
                                                             .y_label = "share", .log_x = true, .close_up = true, .series = series, .n = 2}, err);
    mla_free(x);
    return st;
}

/* Relative error of every layer's mixer output against the base's. */
static mla_status layer_chart(mla_str *out, const mla_jv *doc, bool *drawn, mla_err *err)
{
    const mla_jv *list = mla_jv_get(mla_jv_get(doc, "reports"), "layers");
    size_t n = mla_jv_len(list), i = 0;
    double *x = mla_alloc(2, n ? n : 1, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "chart of %zu layers", n);
    for (const mla_jv *l = mla_jv_first(list); l; l = mla_jv_next(l), i++) {
        x[i] = mla_doc_num(l, "layer");
        x[n + i] = mla_doc_num(l, "mixer_error");
    }
    mla_svg_series s = {.x = x, .y = x + n, .n = n, .kind = MLA_SVG_BARS};
    *drawn = n > 0;
    mla_status st = !n ? MLA_OK
                       : mla_svg_write(out, &(mla_svg_chart){.title = "Mixer outputs against the base", .x_label = "layer", .y_label = "relative error", .series = &s, .n = 1}, err);
    mla_free(x);
    return st;
}

/* Acceptance by step, at the largest number of drafts. */
static mla_status draft_chart(mla_str *out, const mla_jv *doc, bool *drawn, mla_err *err)
{
    static const char *const WHO[] = {"model", "base"};
    double y[2][16];
    mla_svg_series s[2];
    size_t n = 0;
    for (size_t k = 0; k < 2; k++) {
        const mla_jv *last = NULL;
        for (const mla_jv *r = mla_jv_first(mla_jv_get(mla_jv_get(mla_jv_get(doc, "reports"), "mtp"), WHO[k])); r; r = mla_jv_next(r)) last = r;
        size_t i = 0;
        y[n][i++] = 1;
        for (const mla_jv *a = mla_jv_first(mla_jv_get(last, "acceptance")); a && i < 16; a = mla_jv_next(a)) (void)mla_jv_f64(a, &y[n][i++]);
        if (i > 1) s[n] = (mla_svg_series){.label = WHO[k], .y = y[n], .n = i}, n++;
    }
    *drawn = n > 0;
    return !n ? MLA_OK
              : mla_svg_write(out, &(mla_svg_chart){.title = "Drafts accepted up to a step", .x_label = "step", .y_label = "share of rounds", .series = s, .n = n}, err);
}

static const struct {
    const char *name;
    mla_status (*draw)(mla_str *out, const mla_jv *doc, bool *drawn, mla_err *err);
} CHARTS[] = {{"kld-by-position.svg", kld_chart}, {"agreement-by-context.svg", context_chart}, {"layers.svg", layer_chart}, {"mtp-acceptance.svg", draft_chart}};
#define N_CHARTS (sizeof CHARTS / sizeof *CHARTS)

const char *mla_gate_chart_name(size_t i) { return i < N_CHARTS ? CHARTS[i].name : NULL; }

mla_status mla_gate_chart(mla_str *out, size_t i, const mla_jv *doc, bool *drawn, mla_err *err) { return CHARTS[i].draw(out, doc, drawn, err); }
