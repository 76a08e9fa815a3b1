/* Gated delta rule. First every token's q, k, decay and beta are prepared; then the recurrent form walks the tokens
 * with a block of 32 state columns held in L1 (read and written once per call), or the chunked form takes over. */
#include "backend/cpu/gdn.h"

#include <math.h>
#include <string.h>

#define IN_PLACE 2 /* tokens up to which a copy of the state block costs more than its strided rows */
#define L2_EPS 1e-6 /* of the family's l2 normalisation: x (sum x^2 + eps)^-1/2 */

static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

static void prepare_tokens(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_gdn_job *j = ctx;
    const mla_gdn_args *a = j->a;
    size_t width = 2 * a->nk * a->dk + a->nv * a->dv;
    double qs = 1 / sqrt((double)a->dk);
    (void)worker;
    for (size_t t = begin; t < end; t++) {
        const float *x = mla_cf32p(a->qkv) + t * width;
        for (size_t h = 0; h < a->nk; h++) {
            const float *q = x + h * a->dk, *k = x + (a->nk + h) * a->dk;
            float *qn = j->q + (h * a->T + t) * a->dk, *kn = j->key + (h * a->T + t) * a->dk;
            j->k->scale(qn, q, (float)(qs / sqrt((double)j->k->sumsq(q, a->dk) + L2_EPS)), a->dk);
            j->k->scale(kn, k, (float)(1 / sqrt((double)j->k->sumsq(k, a->dk) + L2_EPS)), a->dk);
            j->kq[t * a->nk + h] = j->k->dot(kn, qn, a->dk);
        }
        for (size_t h = 0; h < a->nv; h++) {
            size_t i = t * a->nv + h;
            double g = -exp((double)mla_cf32p(a->A_log)[h]) *
                       softplus((double)mla_cf32p(a->a)[i] + mla_cf32p(a->dt_bias)[h]);
            j->g[i] = g;
            j->alpha[i] = (float)exp(g);
            j->beta[i] = (float)(1 / (1 + exp(-(double)mla_cf32p(a->b)[i])));
        }
    }
}

/* piece = (v head, block of 32 columns) */
static void recurrent_blocks(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_gdn_job *j = ctx;
    const mla_gdn_args *a = j->a;
    size_t per = mla_ceil_div(a->dv, MLA_GDN_COLS), width = 2 * a->nk * a->dk + a->nv * a->dv;
    for (size_t i = begin; i < end; i++) {
        size_t h = i / per, c = i % per * MLA_GDN_COLS, n = mla_min_size(MLA_GDN_COLS, a->dv - c), hk = h / (a->nv / a->nk);
        float *state = mla_f32p(a->state) + h * a->dk * a->dv + c, *s = state;
        bool in_place = n == MLA_GDN_COLS && a->T <= IN_PLACE;
        if (!in_place) {
            s = j->work + worker * j->work_elems;
            memset(s, 0, a->dk * MLA_GDN_COLS * sizeof *s);
            for (size_t r = 0; r < a->dk; r++) memcpy(s + r * MLA_GDN_COLS, state + r * a->dv, n * sizeof *s);
        }
        mla_gdn_block g = {.s = s, .lds = in_place ? a->dv : MLA_GDN_COLS, .q = j->q + hk * a->T * a->dk, .k = j->key + hk * a->T * a->dk, .ldqk = a->dk,
                           .v = mla_cf32p(a->qkv) + 2 * a->nk * a->dk + h * a->dv + c, .ldv = width,
                           .o = mla_f32p(a->o) + h * a->dv + c, .ldo = a->nv * a->dv, .alpha = j->alpha + h,
                           .beta = j->beta + h, .ldg = a->nv, .kq = j->kq + hk, .ldkq = a->nk, .T = a->T, .dk = a->dk, .n = n};
        j->k->gdn(&g);
        for (size_t r = 0; r < a->dk && !in_place; r++) memcpy(state + r * a->dv, s + r * MLA_GDN_COLS, n * sizeof *s);
    }
}

mla_status mla_cpu_gdn(mla_backend *be, const mla_gdn_args *a, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    if (!a->nk || !a->nv || a->nv % a->nk || !a->dk || !a->dv)
        return mla_fail(err, MLA_EINVAL, "delta net: %zu value heads over %zu key heads of %zu and %zu", a->nv, a->nk, a->dk, a->dv);
    mla_gdn_job j = {.k = c->k, .a = a, .work_elems = a->chunk ? mla_gdn_chunk_elems(a) : a->dk * MLA_GDN_COLS};
    size_t total = 0, at[7];
    char *mem;
    bool ok = mla_cut(&total, &at[0], a->T * a->nk, a->dk, sizeof(float)) && mla_cut(&total, &at[1], a->T * a->nk, a->dk, sizeof(float)) &&
              mla_cut(&total, &at[2], a->T, a->nk, sizeof(float)) && mla_cut(&total, &at[3], a->T, a->nv, sizeof(float)) &&
              mla_cut(&total, &at[4], a->T, a->nv, sizeof(float)) && mla_cut(&total, &at[5], a->T, a->nv, sizeof(double)) &&
              mla_cut(&total, &at[6], c->threads, j.work_elems, sizeof(float));
    if (!ok) return mla_fail(err, MLA_ENOMEM, "delta net over %zu tokens: scratch size overflows", a->T);
    mla_status st = mla_cpu_scratch(c, total, "delta net", &mem, err);
    if (st != MLA_OK) return st;
    j.q = (float *)(void *)(mem + at[0]);
    j.key = (float *)(void *)(mem + at[1]);
    j.kq = (float *)(void *)(mem + at[2]);
    j.alpha = (float *)(void *)(mem + at[3]);
    j.beta = (float *)(void *)(mem + at[4]);
    j.g = (double *)(void *)(mem + at[5]);
    j.work = (float *)(void *)(mem + at[6]);
    mla_pool *pool = a->T * a->nv * a->dk * a->dv < 16384 ? NULL : c->pool;
    mla_par_for(pool, a->T, 4, prepare_tokens, &j);
    if (a->chunk)
        mla_par_for(pool, a->nv, 1, mla_gdn_chunked, &j);
    else
        mla_par_for(pool, a->nv * mla_ceil_div(a->dv, MLA_GDN_COLS), 1, recurrent_blocks, &j);
    return MLA_OK;
}
