/* Strata of the parity report: positions by context length, by language, by kind of case, each with both intervals. */
#include <string.h>

#include "base/alloc.h"
#include "verify/parity/parity_parts.h"

mla_status mla_tally_put_bootstrap(mla_jv *o, const mla_tally *prompts, size_t n, const mla_bootstrap_opts *opts, mla_err *err)
{
    double *a = mla_alloc(4, n + !n, sizeof *a);
    if (!a) return mla_fail(err, MLA_ENOMEM, "%zu cases", n);
    double *num = a, *den = a + n, *cnum = a + 2 * n, *cden = a + 3 * n;
    for (size_t k = 0; k < n; k++) {
        num[k] = (double)prompts[k].agree;
        den[k] = (double)prompts[k].n;
        cnum[k] = (double)prompts[k].conf_agree;
        cden[k] = (double)prompts[k].conf_n;
    }
    mla_interval all, sure;
    mla_status st = mla_cluster_bootstrap(&all, num, den, n, opts, err);
    if (st == MLA_OK) st = mla_cluster_bootstrap(&sure, cnum, cden, n, opts, err);
    mla_free(a);
    if (st != MLA_OK) return st;
    mla_jv *c = mla_jv_get(o, "confident");
    mla_jv_set_f64(o, "bootstrap_low", all.low);
    mla_jv_set_f64(o, "bootstrap_high", all.high);
    mla_jv_set_f64(c, "bootstrap_low", sure.low);
    mla_jv_set_f64(c, "bootstrap_high", sure.high);
    return MLA_OK;
}

typedef struct { /* one stratum: lengths from `from` on where by is NULL, else what text_of a case says */
    const char *by, *is;
    size_t from, below;
} stratum;

static const char *text_of(const mla_parity_case *c, const char *by) { return by[0] == 'k' ? c->kind : c->language; }

static bool holds(const stratum *s, const mla_parity_case *c, const mla_parity_pos *q)
{
    if (!s->by) return q->context >= s->from && q->context < s->below;
    return text_of(c, s->by) && !strcmp(text_of(c, s->by), s->is);
}

/* The stratum's object, when anything lies in it; prompts has room for all cases. */
static mla_status put(mla_jv *list, const mla_parity *p, const stratum *s, mla_tally *prompts, mla_err *err)
{
    mla_tally all = {0};
    size_t n = 0;
    for (size_t k = 0; k < p->ncases; k++) {
        const mla_parity_case *c = &p->c[k];
        prompts[n] = (mla_tally){0};
        for (size_t i = c->first; i < c->first + c->n; i++) {
            if (!holds(s, c, &p->pos[i])) continue;
            mla_tally_add(&prompts[n], p, &p->pos[i]);
            mla_tally_add(&all, p, &p->pos[i]);
        }
        n += prompts[n].n > 0; /* a prompt without a position here is not one to draw */
    }
    if (!s->by && !all.n && !all.kld_n) return MLA_OK;
    mla_jv *o = mla_jv_add_obj(list);
    mla_jv_set_str(o, "by", s->by ? s->by : "context");
    if (s->by) {
        mla_jv_set_str(o, s->by, s->is);
    } else {
        mla_jv_set_size(o, "from", s->from);
        mla_jv_set_size(o, "below", s->below);
    }
    mla_tally_put(o, &all);
    return mla_tally_put_bootstrap(o, prompts, n, &p->opts.bootstrap, err);
}

/* Context lengths by powers of two from 512 on. */
static mla_status by_length(mla_jv *list, const mla_parity *p, mla_tally *prompts, mla_err *err)
{
    size_t longest = 0;
    for (size_t i = 0; i < p->n; i++)
        if (p->pos[i].context > longest) longest = p->pos[i].context;
    for (size_t lo = 0; lo <= longest && lo <= SIZE_MAX / 4; lo = lo ? lo * 2 : 512) {
        stratum s = {.from = lo, .below = lo ? lo * 2 : 512};
        if (put(list, p, &s, prompts, err) != MLA_OK) return err->status;
    }
    return MLA_OK;
}

/* One stratum per value of `by` ("language" or "kind"), in order of appearance. */
static mla_status by_text(mla_jv *list, const mla_parity *p, const char *by, mla_tally *prompts, mla_err *err)
{
    for (size_t i = 0; i < p->ncases; i++) {
        stratum s = {.by = by, .is = text_of(&p->c[i], by)};
        bool seen = !s.is;
        for (size_t j = 0; j < i && !seen; j++) seen = text_of(&p->c[j], by) && !strcmp(text_of(&p->c[j], by), s.is);
        if (!seen && put(list, p, &s, prompts, err) != MLA_OK) return err->status;
    }
    return MLA_OK;
}

mla_status mla_parity_put_strata(mla_jv *doc, const mla_parity *p, mla_err *err)
{
    mla_jv *list = mla_jv_set_arr(doc, "strata");
    mla_tally *prompts = mla_alloc(p->ncases + 1, 1, sizeof *prompts);
    if (!prompts || !list) {
        mla_free(prompts);
        return mla_fail(err, MLA_ENOMEM, "strata");
    }
    mla_status st = by_length(list, p, prompts, err);
    if (st == MLA_OK) st = by_text(list, p, "language", prompts, err);
    if (st == MLA_OK) st = by_text(list, p, "kind", prompts, err);
    mla_free(prompts);
    return st;
}
