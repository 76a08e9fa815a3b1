/* The chunked (WY) form of the gated delta rule, one v head at a time. With cumulative log decay c_i inside a chunk,
 * G_ij = e^(c_i - c_j) for i >= j (a difference, so never above 1):
 *   A = strictly lower (diag(beta) K K' o G),  (I + A) [U | W] = [diag(beta) V | diag(beta e^c) K]
 *   V' = U - W S,  O = diag(e^c) Q S + (Q K' o G) V',  S <- e^(c_end) S + (diag(e^(c_end - c)) K)' V'
 * (Yang et al. 2024, "Gated Delta Networks", section 3.3: the UT transform by forward substitution). */
#include <math.h>
#include <string.h>

#include "backend/cpu/gdn.h"

typedef struct { /* one head's scratch; C = chunk, P = columns rounded up to 32 */
    size_t C, P, CP;
    float *abuf;      /* (MLA_MR, MLA_LDA) */
    float *s, *sp;    /* (dk, P) state; its panels */
    float *kp;        /* panels of K' (dk, C) */
    float *kk, *qk;   /* (C, CP) K K', Q K' */
    float *u, *w;     /* (C, P), (C, dk) */
    float *t;         /* (max(C, dk), max(P, C)) a scaled operand */
    float *vp;        /* panels of V' (C, dv) */
    float *o;         /* (C, P) */
    float *factor;    /* (max(C, dk)) */
    double *c;        /* (C) cumulative log decay */
} chunk_work;

static size_t up(size_t n, size_t to) { return mla_ceil_div(n, to) * to; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Cuts p (may be NULL: only counts); returns elements used. */
static size_t cut_chunk(chunk_work *w, const mla_gdn_args *a, float *p)
{
    size_t C = a->chunk, P = up(a->dv, MLA_NR), CP = up(C, MLA_NR), D = larger(C, a->dk), n = 0, size[13] = {
        MLA_MR * MLA_LDA, a->dk * P, a->dk * P, a->dk * CP, C * CP, C * CP, C * P, C * a->dk, D * larger(C, a->dk), C * P, C * P, D, 2 * C};
    float *at[13];
    for (size_t i = 0; i < 13; i++) {
        at[i] = p ? p + n : NULL;
        n += up(size[i], 16);
    }
    *w = (chunk_work){C, P, CP, at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9], at[10], at[11], (double *)(void *)at[12]};
    return n;
}

size_t mla_gdn_chunk_elems(const mla_gdn_args *a)
{
    chunk_work w;
    return cut_chunk(&w, a, NULL);
}

static float decay(const chunk_work *w, size_t i, size_t j) { return (float)exp(w->c[i] - w->c[j]); }

/* kk, qk, u, w of tokens t0 .. t0+n-1 of head h, before the substitution: kk becomes A, qk is masked. */
static void load_chunk(const mla_gdn_job *j, const chunk_work *w, size_t h, size_t t0, size_t n)
{
    const mla_gdn_args *a = j->a;
    size_t hk = h / (a->nv / a->nk), ld = a->dk, width = 2 * a->nk * a->dk + a->nv * a->dv;
    const float *k = j->key + (hk * a->T + t0) * ld, *q = j->q + (hk * a->T + t0) * ld;
    for (size_t i = 0; i < n; i++) w->c[i] = (i ? w->c[i - 1] : 0) + j->g[(t0 + i) * a->nv + h];
    for (size_t p = 0; p < n; p += MLA_NR) j->k->pack_f32(w->kp + p * a->dk, k + p * ld, ld, mla_min_size(MLA_NR, n - p), a->dk);
    mla_mm g = {.a = k, .lda = ld, .b = w->kp, .c = w->kk, .ldc = w->CP, .M = n, .N = n, .K = a->dk};
    mla_cpu_mm(j->k, w->abuf, &g);
    g.a = q;
    g.c = w->qk;
    mla_cpu_mm(j->k, w->abuf, &g);
    for (size_t i = 0; i < n; i++) {
        float beta = j->beta[(t0 + i) * a->nv + h];
        for (size_t l = 0; l < n; l++) {
            float d = l <= i ? decay(w, i, l) : 0;
            w->kk[i * w->CP + l] = l < i ? beta * d * w->kk[i * w->CP + l] : 0;
            w->qk[i * w->CP + l] = l <= i ? d * w->qk[i * w->CP + l] : 0;
        }
        memset(w->u + i * w->P, 0, w->P * sizeof(float));
        j->k->scale(w->u + i * w->P, mla_cf32p(a->qkv) + (t0 + i) * width + 2 * a->nk * a->dk + h * a->dv, beta, a->dv);
        j->k->scale(w->w + i * a->dk, k + i * ld, beta * (float)exp(w->c[i]), a->dk);
    }
}

/* Rows of u and w: x_i -= sum_{l < i} A_il x_l, i ascending. */
static void substitute(const mla_gdn_job *j, const chunk_work *w, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t l = 0; l < i; l++) {
            float f = -w->kk[i * w->CP + l];
            j->k->add(w->u + i * w->P, w->u + l * w->P, f, w->P);
            j->k->add(w->w + i * j->a->dk, w->w + l * j->a->dk, f, j->a->dk);
        }
}

static void run_chunk(const mla_gdn_job *j, const chunk_work *w, size_t h, size_t t0, size_t n)
{
    const mla_gdn_args *a = j->a;
    size_t hk = h / (a->nv / a->nk), ld = a->dk;
    const float *k = j->key + (hk * a->T + t0) * ld, *q = j->q + (hk * a->T + t0) * ld;
    load_chunk(j, w, h, t0, n);
    substitute(j, w, n);
    mla_cpu_panels(w->sp, w->s, w->P, a->dk, a->dv);
    /* V' = U - W S, in u */
    mla_mm g = {.a = w->w, .lda = a->dk, .b = w->sp, .c = w->o, .ldc = w->P, .M = n, .N = a->dv, .K = a->dk};
    mla_cpu_mm(j->k, w->abuf, &g);
    j->k->add(w->u, w->o, -1, n * w->P);
    mla_cpu_panels(w->vp, w->u, w->P, n, a->dv);
    /* O */
    for (size_t i = 0; i < n; i++) {
        j->k->scale(w->t + i * a->dk, q + i * ld, (float)exp(w->c[i]), a->dk);
        w->factor[i] = 1;
    }
    g.a = w->t;
    mla_cpu_mm(j->k, w->abuf, &g);
    g = (mla_mm){.a = w->qk, .lda = w->CP, .b = w->vp, .c = w->o, .ldc = w->P, .M = n, .N = a->dv, .K = n, .alpha = w->factor};
    mla_cpu_mm(j->k, w->abuf, &g);
    for (size_t i = 0; i < n; i++)
        memcpy(mla_f32p(a->o) + ((t0 + i) * a->nv + h) * a->dv, w->o + i * w->P, a->dv * sizeof(float));
    /* S */
    for (size_t r = 0; r < a->dk; r++) {
        for (size_t i = 0; i < n; i++) w->t[r * n + i] = decay(w, n - 1, i) * k[i * ld + r];
        w->factor[r] = (float)exp(w->c[n - 1]);
    }
    g = (mla_mm){.a = w->t, .lda = n, .b = w->vp, .c = w->s, .ldc = w->P, .M = a->dk, .N = a->dv, .K = n, .alpha = w->factor};
    mla_cpu_mm(j->k, w->abuf, &g);
}

void mla_gdn_chunked(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_gdn_job *j = ctx;
    const mla_gdn_args *a = j->a;
    chunk_work w;
    cut_chunk(&w, a, j->work + worker * j->work_elems);
    for (size_t h = begin; h < end; h++) {
        float *state = mla_f32p(a->state) + h * a->dk * a->dv;
        memset(w.s, 0, a->dk * w.P * sizeof *w.s);
        for (size_t r = 0; r < a->dk; r++) memcpy(w.s + r * w.P, state + r * a->dv, a->dv * sizeof *w.s);
        for (size_t t = 0; t < a->T; t += a->chunk) run_chunk(j, &w, h, t, mla_min_size(a->chunk, a->T - t));
        for (size_t r = 0; r < a->dk; r++) memcpy(state + r * a->dv, w.s + r * w.P, a->dv * sizeof *w.s);
    }
}
