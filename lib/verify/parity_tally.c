/* Counting positions: in all, per case, per stratum. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/parity_parts.h"

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

/* Context lengths by powers of two from 512 on. */
static size_t length_floor(size_t context)
{
    size_t f = 0;
    for (size_t b = 512; b <= context && b; b *= 2) f = b;
    return f;
}

static void by_length(mla_jv *list, const mla_parity *p)
{
    for (size_t lo = 0; lo <= SIZE_MAX / 4; lo = lo ? lo * 2 : 512) {
        mla_tally t = {0};
        bool beyond = false;
        for (size_t i = 0; i < p->n; i++) {
            if (length_floor(p->pos[i].context) == lo) mla_tally_add(&t, p, &p->pos[i]);
            beyond = beyond || p->pos[i].context >= (lo ? lo * 2 : 512);
        }
        if (t.n || t.kld_n) {
            mla_jv *o = mla_jv_add_obj(list);
            mla_jv_set_str(o, "by", "context");
            mla_jv_set_size(o, "from", lo);
            mla_jv_set_size(o, "below", lo ? lo * 2 : 512);
            mla_tally_put(o, &t);
        }
        if (!beyond) return;
    }
}

static const char *text_of(const mla_parity_case *c, const char *by) { return by[0] == 'k' ? c->kind : c->language; }

/* One stratum per value of `by` ("language" or "kind"), in order of appearance. */
static void by_text(mla_jv *list, const mla_parity *p, const char *by)
{
    for (size_t i = 0; i < p->ncases; i++) {
        const char *own = text_of(&p->c[i], by);
        bool seen = !own;
        for (size_t j = 0; j < i && !seen; j++) seen = text_of(&p->c[j], by) && !strcmp(text_of(&p->c[j], by), own);
        if (seen) continue;
        mla_tally t = {0};
        for (size_t j = i; j < p->ncases; j++) {
            const char *other = text_of(&p->c[j], by);
            for (size_t k = 0; other && !strcmp(other, own) && k < p->c[j].n; k++) mla_tally_add(&t, p, &p->pos[p->c[j].first + k]);
        }
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_str(o, "by", by);
        mla_jv_set_str(o, by, own);
        mla_tally_put(o, &t);
    }
}

mla_status mla_parity_put_strata(mla_jv *doc, const mla_parity *p, mla_err *err)
{
    mla_jv *list = mla_jv_set_arr(doc, "strata");
    by_length(list, p);
    by_text(list, p, "language");
    by_text(list, p, "kind");
    return list ? MLA_OK : mla_fail(err, MLA_ENOMEM, "strata");
}
