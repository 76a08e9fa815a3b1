/* Parity: the verdict and the JSON document. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/parity/parity_parts.h"
#include "verify/report/report.h"

#define LISTED 5000 /* disagreements written out; the counts are always complete */

static mla_tally everything(const mla_parity *p)
{
    mla_tally t = {0};
    for (size_t i = 0; i < p->n; i++) mla_tally_add(&t, p, &p->pos[i]);
    return t;
}

/* Bootstrap of agreement over prompts, for all and for confident positions, and how it was drawn. */
static mla_status put_bootstrap(mla_jv *doc, const mla_parity *p, mla_err *err)
{
    mla_tally *t = mla_alloc(p->ncases + 1, 1, sizeof *t);
    if (!t) return mla_fail(err, MLA_ENOMEM, "%zu cases", p->ncases);
    for (size_t k = 0; k < p->ncases; k++) t[k] = mla_tally_case(p, &p->c[k]);
    mla_status st = mla_tally_put_bootstrap(doc, t, p->ncases, &p->opts.bootstrap, err);
    mla_free(t);
    if (st != MLA_OK) return st;
    mla_jv *b = mla_jv_set_obj(doc, "bootstrap");
    mla_jv_set_size(b, "seed", (size_t)p->opts.bootstrap.seed);
    mla_jv_set_size(b, "resamples", p->opts.bootstrap.resamples);
    mla_jv_set_f64(b, "level", p->opts.bootstrap.level);
    return MLA_OK;
}

static void put_margin(mla_jv *o, const char *key, double m)
{
    if (isfinite(m))
        mla_jv_set_f64(o, key, round(m * 1e5) / 1e5);
    else
        mla_jv_set_null(o, key);
}

static void put_disagreements(mla_jv *doc, const mla_parity *p, const mla_tally *t)
{
    mla_jv *list = mla_jv_set_arr(doc, "disagreements");
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const mla_parity_pos *q = &p->pos[i];
        if (!q->judged || q->got == q->expected || n++ >= LISTED) continue;
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_str(o, "case", p->c[q->case_index].name);
        mla_jv_set_size(o, "position", q->step);
        mla_jv_set_size(o, "context", q->context);
        mla_jv_set_size(o, "expected", (size_t)q->expected);
        mla_jv_set_size(o, "got", (size_t)q->got);
        put_margin(o, "margin", q->margin);
        put_margin(o, "model_margin", q->model_margin);
        mla_jv_set_bool(o, "confident", q->confident);
        mla_jv_set_bool(o, "near_tie", mla_parity_is_near_tie(p, q));
    }
    mla_jv_set_size(doc, "disagreements_total", n);
    mla_jv_set_size(doc, "near_ties", t->near_ties);
    mla_jv_set_f64(doc, "near_tie_nats", mla_parity_tie(p));
}

static void put_free_decode(mla_jv *doc, const mla_parity *p)
{
    size_t cases = 0, exact = 0, tokens = 0;
    mla_jv *o = mla_jv_set_obj(doc, "free_decode"), *list = mla_jv_set_arr(o, "divergences");
    for (size_t k = 0; k < p->ncases; k++) {
        const mla_parity_case *c = &p->c[k];
        if (!c->decode_steps) continue;
        cases++;
        exact += !c->decode_diverged;
        tokens += c->decoded;
        if (!c->decode_diverged) continue;
        mla_jv *d = mla_jv_add_obj(list);
        mla_jv_set_str(d, "case", c->name);
        mla_jv_set_size(d, "step", c->decoded);
        mla_jv_set_size(d, "expected", (size_t)c->decode_expected);
        mla_jv_set_size(d, "got", (size_t)c->decode_got);
        put_margin(d, "margin", c->decode_margin);
        mla_jv_set_bool(d, "differs_from_forced", c->decode_path_differs);
    }
    mla_jv_set_size(o, "cases", cases);
    mla_jv_set_size(o, "exact", exact);
    mla_jv_set_size(o, "matching_tokens", tokens);
}

static void put_cases(mla_jv *doc, const mla_parity *p)
{
    mla_jv *list = mla_jv_set_arr(doc, "per_case");
    for (size_t k = 0; k < p->ncases; k++) {
        const mla_parity_case *c = &p->c[k];
        mla_tally t = mla_tally_case(p, c);
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_str(o, "name", c->name);
        mla_jv_set_str(o, "kind", c->kind);
        if (c->language) mla_jv_set_str(o, "language", c->language);
        mla_jv_set_size(o, "context", c->n ? p->pos[c->first + c->n - 1].context : 0);
        mla_tally_put(o, &t);
        if (t.kld_n) mla_jv_set_f64(o, "kld_max", t.kld_max);
        if (t.nll_n) mla_jv_set_f64(o, "ppl_ratio", exp((t.model_nll - t.ref_nll) / (double)t.nll_n));
        if (!c->decode_steps) continue;
        mla_jv_set_size(o, "decode_steps", c->decode_steps);
        if (c->decode_diverged)
            mla_jv_set_size(o, "first_divergence", c->decoded);
        else
            mla_jv_set_null(o, "first_divergence");
    }
}

static void put_aa(mla_jv *doc, const mla_parity *p)
{
    mla_jv *o = mla_jv_set_obj(doc, "aa");
    mla_jv_set_size(o, "positions", p->aa_positions);
    mla_jv_set_size(o, "agree", p->aa_agree);
    mla_jv_set_size(o, "near_ties", p->aa_ties);
    mla_jv_set_size(o, "chunk", p->aa_chunk);
    mla_jv_set_f64(o, "margin_change_max", p->aa_floor);
}

/* ---- gates ---- */
typedef struct {
    mla_jv *list;
    mla_verdict worst;
} gates;

static void gate(gates *g, const char *name, mla_verdict v, const char *fmt, ...) MLA_PRINTF(4, 5);
static void gate(gates *g, const char *name, mla_verdict v, const char *fmt, ...)
{
    mla_str s = MLA_STR_MAX(1024);
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(&s, fmt, ap);
    va_end(ap);
    mla_doc_gate(g->list, name, v, "%s", mla_str_c(&s));
    mla_str_free(&s);
    if (v == MLA_FAIL || (v == MLA_NO_EVIDENCE && g->worst == MLA_PASS)) g->worst = v;
}

static void gate_agreement(gates *g, const mla_parity *p, const mla_tally *t)
{
    double min = p->opts.min_agreement;
    if (min <= 0) return; /* not asked for */
    double low = mla_wilson(t->conf_agree, t->conf_n, MLA_Z95).low;
    mla_verdict v = mla_gate_agreement(t->conf_agree, t->conf_n, min);
    if (v == MLA_NO_EVIDENCE && min < 1)
        gate(g, "agreement", v, "%zu of %zu confident positions agree; at least %zu are needed to show %g", t->conf_agree, t->conf_n,
             mla_wilson_needed(min > 0 ? min : 0.5, MLA_Z95), min);
    else
        gate(g, "agreement", v, "%zu of %zu confident positions agree; lower bound %.5f, required %g", t->conf_agree, t->conf_n, low, min);
}

static void gate_decode(gates *g, const mla_parity *p)
{
    size_t differs = 0, early = 0, decoded = 0;
    for (size_t k = 0; k < p->ncases; k++) {
        const mla_parity_case *c = &p->c[k];
        decoded += c->decode_steps > 0;
        differs += c->decode_path_differs;
        early += c->decode_steps && c->decode_diverged && c->decoded < c->must_match;
    }
    if (!decoded) return;
    gate(g, "decode", differs ? MLA_FAIL : MLA_PASS, "%zu of %zu free decodes part from the model's own forced pass beyond a near-tie",
         differs, decoded);
    bool probe = false;
    for (size_t k = 0; k < p->ncases; k++) probe = probe || p->c[k].must_match;
    if (probe) gate(g, "probe decode", early ? MLA_FAIL : MLA_PASS, "%zu cases diverge before their decode_must_match", early);
}

static void gate_aa(gates *g, const mla_parity *p)
{
    if (!p->aa_positions) return;
    double high = mla_wilson(p->aa_agree + p->aa_ties, p->aa_positions, MLA_Z95).high;
    mla_verdict v = high < p->opts.min_agreement ? MLA_FAIL : MLA_PASS;
    char ties[64] = "", way[96] = "when the server is asked again";
    if (p->aa_ties) snprintf(ties, sizeof ties, ", %zu more are near-ties,", p->aa_ties);
    if (p->aa_chunk) snprintf(way, sizeof way, "when the prompt is cut into chunks of %zu", p->aa_chunk);
    gate(g, p->aa_chunk ? "chunking" : "repeat", v, "%zu of %zu positions keep their argmax%s %s", p->aa_agree, p->aa_positions, ties, way);
}

static void gate_kld(gates *g, const mla_parity *p, const mla_tally *t)
{
    if (isnan(p->opts.max_kld)) return;
    if (!t->kld_n) {
        gate(g, "kld", MLA_NO_EVIDENCE, "no KL divergence was measured");
        return;
    }
    double mean = t->kld_sum / (double)t->kld_n;
    gate(g, "kld", mean <= p->opts.max_kld ? MLA_PASS : MLA_FAIL, "mean %.6g nats over %zu positions, allowed %g", mean, t->kld_n,
         p->opts.max_kld);
}

mla_status mla_parity_report(mla_jv *doc, const mla_parity *p, mla_verdict *verdict, mla_err *err)
{
    mla_tally t = everything(p);
    mla_jv_set_str(doc, "verdict", mla_verdict_name(MLA_NO_EVIDENCE)); /* its place in the document; set below */
    gates g = {.list = mla_jv_set_arr(doc, "gates"), .worst = MLA_PASS};
    gate_agreement(&g, p, &t);
    gate_decode(&g, p);
    gate_aa(&g, p);
    gate_kld(&g, p, &t);
    *verdict = g.worst;
    mla_jv_set_str(doc, "verdict", mla_verdict_name(g.worst));
    mla_tally_put(doc, &t);
    mla_jv_remove(doc, "kld_mean");
    mla_status st = put_bootstrap(doc, p, err);
    if (st == MLA_OK && t.kld_n) st = mla_parity_put_kld(doc, p, err);
    if (st == MLA_OK) st = mla_parity_put_ppl(doc, p, err);
    put_free_decode(doc, p);
    put_aa(doc, p);
    if (st == MLA_OK) st = mla_parity_put_strata(doc, p, err);
    put_disagreements(doc, p, &t);
    put_cases(doc, p);
    if (st == MLA_OK && !mla_jv_get(doc, "per_case")) st = mla_fail(err, MLA_ENOMEM, "report of %zu positions", p->n);
    return st;
}
