/* Parity: KL divergence and perplexity, with intervals over prompts and the series by position. */
#include <math.h>

#include "base/alloc.h"
#include "verify/parity/parity_parts.h"

#define BINS 64

/* Interval of sum(num) / sum(den) over the cases that were measured (den > 0); num, den are (ncases), packed here. */
static mla_status put_interval(mla_jv *o, const char *low, const char *high, const mla_parity *p, double *num, double *den,
                               double (*map)(double), mla_err *err)
{
    mla_interval b;
    size_t n = 0;
    for (size_t k = 0; k < p->ncases; k++)
        if (den[k] > 0) num[n] = num[k], den[n++] = den[k];
    mla_status st = mla_cluster_bootstrap(&b, num, den, n, &p->opts.bootstrap, err);
    if (st != MLA_OK) return st;
    mla_jv_set_f64(o, low, map ? map(b.low) : b.low);
    mla_jv_set_f64(o, high, map ? map(b.high) : b.high);
    return MLA_OK;
}

static void by_position(mla_jv *kld, const mla_parity *p)
{
    size_t most = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->pos[i].has_kld && p->pos[i].context > most) most = p->pos[i].context;
    size_t width = most / BINS + 1, n[BINS] = {0};
    double sum[BINS] = {0}, max[BINS] = {0};
    for (size_t i = 0; i < p->n; i++) {
        const mla_parity_pos *q = &p->pos[i];
        size_t b = q->context / width;
        if (!q->has_kld) continue;
        n[b]++;
        sum[b] += q->kld;
        if (q->kld > max[b]) max[b] = q->kld;
    }
    mla_jv *list = mla_jv_set_arr(kld, "by_position");
    for (size_t b = 0; b < BINS; b++) {
        if (!n[b]) continue;
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_size(o, "from", b * width);
        mla_jv_set_size(o, "below", (b + 1) * width);
        mla_jv_set_size(o, "positions", n[b]);
        mla_jv_set_f64(o, "mean", sum[b] / (double)n[b]);
        mla_jv_set_f64(o, "max", max[b]);
    }
}

mla_status mla_parity_put_kld(mla_jv *doc, const mla_parity *p, mla_err *err)
{
    double *x = mla_alloc(p->n, 1, sizeof *x), *num = mla_alloc(p->ncases, 1, sizeof *num), *den = mla_alloc(p->ncases, 1, sizeof *den);
    mla_status st = x && num && den ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu positions", p->n);
    mla_tally all = {0}, sure = {0};
    size_t n = 0;
    if (st != MLA_OK) goto done;
    for (size_t i = 0; i < p->n; i++) {
        const mla_parity_pos *q = &p->pos[i];
        if (!q->has_kld) continue;
        x[n++] = q->kld;
        mla_tally_add(&all, p, q);
        if (q->confident) mla_tally_add(&sure, p, q);
        num[q->case_index] += q->kld;
        den[q->case_index]++;
    }
    mla_summary s = mla_summarise(x, n);
    mla_jv *o = mla_jv_set_obj(doc, "kld");
    mla_jv_set_size(o, "positions", s.n);
    mla_jv_set_size(o, "nonfinite", s.nonfinite);
    mla_jv_set_f64(o, "mean", s.mean);
    st = put_interval(o, "mean_low", "mean_high", p, num, den, NULL, err);
    mla_jv_set_f64(o, "p50", s.p50);
    mla_jv_set_f64(o, "p90", s.p90);
    mla_jv_set_f64(o, "p99", s.p99);
    mla_jv_set_f64(o, "p999", s.p999);
    mla_jv_set_f64(o, "max", s.max);
    if (sure.kld_n) mla_jv_set_f64(o, "mean_confident", sure.kld_sum / (double)sure.kld_n);
    if (all.kld_n) mla_jv_set_f64(o, "top1_agreement", (double)all.kld_top1 / (double)all.kld_n);
    by_position(o, p);
done:
    mla_free(x);
    mla_free(num);
    mla_free(den);
    return st;
}

mla_status mla_parity_put_ppl(mla_jv *doc, const mla_parity *p, mla_err *err)
{
    double *num = mla_alloc(p->ncases, 1, sizeof *num), *den = mla_alloc(p->ncases, 1, sizeof *den);
    mla_status st = num && den ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu cases", p->ncases);
    bool rows = false;
    mla_tally t = {0};
    for (size_t k = 0; k < p->ncases; k++) rows = rows || p->c[k].kind[0] == 'r';
    for (size_t k = 0; st == MLA_OK && k < p->ncases; k++) {
        /* with a corpus, its rows only: recorded answers are text that the model itself likes */
        if (rows && p->c[k].kind[0] != 'r') continue;
        mla_tally one = mla_tally_case(p, &p->c[k]);
        t.nll_n += one.nll_n;
        t.ref_nll += one.ref_nll;
        t.model_nll += one.model_nll;
        num[k] = one.model_nll - one.ref_nll;
        den[k] = (double)one.nll_n;
    }
    if (st == MLA_OK && t.nll_n) {
        double n = (double)t.nll_n;
        mla_jv *o = mla_jv_set_obj(doc, "ppl");
        mla_jv_set_size(o, "positions", t.nll_n);
        mla_jv_set_f64(o, "reference", exp(t.ref_nll / n));
        mla_jv_set_f64(o, "model", exp(t.model_nll / n));
        mla_jv_set_f64(o, "ratio", exp((t.model_nll - t.ref_nll) / n));
        st = put_interval(o, "ratio_low", "ratio_high", p, num, den, exp, err);
    }
    mla_free(num);
    mla_free(den);
    return st;
}
