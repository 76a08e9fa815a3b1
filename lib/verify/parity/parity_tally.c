/* Counting positions, in all and per case. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/parity/parity_parts.h"

double mla_parity_tie(const mla_parity *p) { return p->opts.near_tie > p->aa_floor ? p->opts.near_tie : p->aa_floor; }

bool mla_parity_is_near_tie(const mla_parity *p, const mla_parity_pos *q)
{
    return q->judged && q->got != q->expected && q->margin <= mla_parity_tie(p); /* false when not recorded */
}

void mla_tally_add(mla_tally *t, const mla_parity *p, const mla_parity_pos *q)
{
    if (q->judged) {
        bool same = q->got == q->expected;
        t->n++;
        t->agree += same;
        t->conf_n += q->confident;
        t->conf_agree += q->confident && same;
        t->near_ties += mla_parity_is_near_tie(p, q);
    }
    if (q->has_kld) {
        t->kld_n++;
        t->kld_sum += q->kld;
        t->kld_top1 += q->got == q->base_top1;
        if (q->kld > t->kld_max) t->kld_max = q->kld;
    }
    if (q->has_nll) {
        t->nll_n++;
        t->ref_nll -= q->ref_logprob;
        t->model_nll -= q->model_logprob;
    }
}

mla_tally mla_tally_case(const mla_parity *p, const mla_parity_case *c)
{
    mla_tally t = {0};
    for (size_t i = 0; i < c->n; i++) mla_tally_add(&t, p, &p->pos[c->first + i]);
    return t;
}

static void put_rate(mla_jv *o, const char *key, size_t agree, size_t n)
{
    if (n)
        mla_jv_set_f64(o, key, (double)agree / (double)n);
    else
        mla_jv_set_null(o, key);
}

void mla_tally_put(mla_jv *o, const mla_tally *t)
{
    mla_interval w = mla_wilson(t->agree, t->n, MLA_Z95), cw = mla_wilson(t->conf_agree, t->conf_n, MLA_Z95);
    mla_jv_set_size(o, "positions", t->n);
    mla_jv_set_size(o, "agree", t->agree);
    put_rate(o, "agreement", t->agree, t->n);
    mla_jv_set_f64(o, "wilson_low", w.low);
    mla_jv_set_f64(o, "wilson_high", w.high);
    mla_jv *c = mla_jv_set_obj(o, "confident");
    mla_jv_set_size(c, "positions", t->conf_n);
    mla_jv_set_size(c, "agree", t->conf_agree);
    put_rate(c, "agreement", t->conf_agree, t->conf_n);
    mla_jv_set_f64(c, "wilson_low", cw.low);
    mla_jv_set_f64(c, "wilson_high", cw.high);
    if (t->kld_n) mla_jv_set_f64(o, "kld_mean", t->kld_sum / (double)t->kld_n);
}
