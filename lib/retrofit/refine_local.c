/* Forward and backward through encoder, decoder, rotation and attention of one row. */
#include "retrofit/refine_local.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

#define BLOCK 64 /* queries per product: keys after the block's last query are skipped */

struct mla_local_work {
    float *P;   /* (H, Q, T) probabilities of Q queries, kept from forward to backward */
    float *S;   /* (BLOCK, T) */
    float *Yc;  /* (T, groups, n) y - mu */
    float *Yh;  /* (T, groups, n) y^ */
    float *dY;  /* (T, groups, n) its derivative */
    float *c;   /* (T, groups, r) */
    float *dc;  /* its derivative */
    float *K;   /* (G, T, d) keys as attention sees them */
    float *dK;  /* (T, d) */
    float *o;   /* (Q, H, d) o^, then dL/do^ */
    float *A;   /* (Q, H, d) gamma o (o^ - o) */
    float *B;   /* (Q, H, d) A W_O^T W_O */
};

mla_status mla_local_work_new(mla_local_work **out, const mla_local *p, size_t r, mla_err *err)
{
    size_t T = p->max_T, Hd = p->H * p->d, F = p->groups * p->n;
    mla_local_work *w = mla_alloc(1, 1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "scratch of a local refinement");
    struct { float **to; size_t count; } const part[] = {
        {&w->P, p->H * T}, {&w->S, BLOCK}, {&w->Yc, F}, {&w->Yh, F}, {&w->dY, F}, {&w->c, p->groups * r}, {&w->dc, p->groups * r},
        {&w->K, p->G * p->d}, {&w->dK, p->d}, {&w->o, Hd}, {&w->A, Hd}, {&w->B, Hd},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (!(*part[i].to = mla_alloc_raw(T, part[i].count, sizeof(float)))) {
            mla_local_work_free(w);
            return mla_fail(err, MLA_ENOMEM, "scratch of a local refinement: rows of %zu tokens, %zu heads", T, p->H);
        }
    *out = w;
    return MLA_OK;
}

void mla_local_work_free(mla_local_work *w)
{
    if (!w) return;
    float *const all[] = {w->P, w->S, w->Yc, w->Yh, w->dY, w->c, w->dc, w->K, w->dK, w->o, w->A, w->B};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mla_free(all[i]);
    mla_free(w);
}

/* Where KV head g's key and value begin in a row of features, and how many key dims are there. */
typedef struct {
    size_t key, value, dk, ld;
} place;

static place place_of(const mla_local *p, size_t g)
{
    size_t per = p->G / p->groups, a = g / per, i = g % per, dk = p->layout == MLA_LAYOUT_N ? p->d - p->rot : p->d;
    return (place){.key = a * p->n + i * dk, .value = a * p->n + per * dk + i * p->d, .dk = dk, .ld = p->groups * p->n};
}

/* Rotates dims [0, rot) of x by its position's angle, or back (s = -1: the transpose, gain included). */
static void rotate(float *x, const mla_local *p, size_t t, float s)
{
    size_t half = p->rot / 2;
    const float *cs = p->cos + t * half, *sn = p->sin + t * half;
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cs[i] - s * b * sn[i];
        x[i + half] = b * cs[i] + s * a * sn[i];
    }
}

/* K (G, T, d) from features y (T, groups, n). */
static void keys_of(float *K, const mla_local *p, const mla_local_row *row, const float *y)
{
    size_t d = p->d, rot = p->rot;
    for (size_t g = 0; g < p->G; g++) {
        place at = place_of(p, g);
        for (size_t t = 0; t < row->T; t++) {
            float *k = K + (g * row->T + t) * d;
            memcpy(k + d - at.dk, y + t * at.ld + at.key, at.dk * sizeof *k);
            if (p->layout == MLA_LAYOUT_N) memcpy(k, row->k_rot + (t * p->G + g) * rot, rot * sizeof *k);
            else rotate(k, p, t, 1);
        }
    }
}

/* Causal softmax of one row of logits, in place; the rest of the width becomes 0. */
static void softmax_row(float *x, size_t t, size_t width)
{
    float mx = x[0];
    double sum = 0;
    for (size_t s = 1; s <= t; s++) mx = x[s] > mx ? x[s] : mx;
    for (size_t s = 0; s <= t; s++) {
        x[s] = expf(x[s] - mx);
        sum += x[s];
    }
    float inv = (float)(1 / sum);
    for (size_t s = 0; s <= t; s++) x[s] *= inv;
    memset(x + t + 1, 0, (width - t - 1) * sizeof *x);
}

/* How many queries of a row count. */
static size_t queries(const mla_local_row *row) { return (row->T - row->phase + row->stride - 1) / row->stride; }

typedef struct { /* queries [i0, i0 + m) of a row against keys [0, keys) */
    size_t i0, m, keys;
} span;

static span span_at(const mla_local_row *row, size_t i0, size_t Q)
{
    size_t m = Q - i0 < BLOCK ? Q - i0 : BLOCK;
    return (span){i0, m, row->phase + (i0 + m - 1) * row->stride + 1};
}

/* o (Q, H, d) from keys K (G, T, d) and the values in y; P keeps the probabilities. */
static void attend(float *o, const mla_local *p, mla_local_work *w, const mla_local_row *row, const float *y)
{
    size_t T = row->T, H = p->H, d = p->d, Hd = H * d, ldq = row->stride * Hd, Q = queries(row);
    for (size_t h = 0; h < H; h++) {
        size_t g = h / (H / p->G);
        place at = place_of(p, g);
        const float *q = row->q + row->phase * Hd + h * d;
        for (size_t i = 0; i < Q; i += BLOCK) {
            span s = span_at(row, i, Q);
            float *P = w->P + (h * Q + i) * T;
            mla_sgemm(&(mla_sgemm_args){.tb = true, .M = s.m, .N = s.keys, .K = d, .alpha = p->scale, .a = q + i * ldq, .lda = ldq,
                                        .b = w->K + g * T * d, .ldb = d, .c = P, .ldc = T});
            for (size_t k = 0; k < s.m; k++) softmax_row(P + k * T, row->phase + (i + k) * row->stride, s.keys);
            mla_sgemm(&(mla_sgemm_args){.M = s.m, .N = d, .K = s.keys, .alpha = 1, .a = P, .lda = T, .b = y + at.value, .ldb = at.ld,
                                        .c = o + i * Hd + h * d, .ldc = Hd});
        }
    }
}

void mla_local_target(float *o, const mla_local *p, mla_local_work *w, const mla_local_row *row)
{
    keys_of(w->K, p, row, row->y);
    attend(o, p, w, row, row->y);
}

/* B = A W_O^T W_O of Q queries and the sum of A o B. */
static double output_energy(const mla_local *p, mla_local_work *w, size_t Q)
{
    size_t Hd = p->H * p->d;
    mla_sgemm(&(mla_sgemm_args){.M = Q, .N = Hd, .K = Hd, .alpha = 1, .a = w->A, .lda = Hd, .b = p->WW, .ldb = Hd, .c = w->B, .ldc = Hd});
    double sum = 0;
    for (size_t i = 0; i < Q * Hd; i++) sum += (double)w->A[i] * w->B[i];
    return sum;
}

/* A = gamma o (x - o) for the queries that count; x NULL: gamma o o. */
static void output_error(const mla_local *p, mla_local_work *w, const mla_local_row *row, const float *x)
{
    size_t Hd = p->H * p->d, Q = queries(row);
    for (size_t i = 0; i < Q; i++) {
        size_t t = (row->phase + i * row->stride) * Hd;
        for (size_t k = 0; k < Hd; k++) {
            float e = x ? x[i * Hd + k] - row->o[t + k] : row->o[t + k];
            w->A[i * Hd + k] = row->gamma ? row->gamma[t + k] * e : e;
        }
    }
}

double mla_local_energy(const mla_local *p, mla_local_work *w, const mla_local_row *row)
{
    output_error(p, w, row, NULL);
    return output_energy(p, w, queries(row));
}

/* c, y^ and K of the factors. */
static void code(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f)
{
    size_t T = row->T, n = p->n, r = f->r, gn = p->groups * n, gr = p->groups * r;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < gn; i++) {
            w->Yc[t * gn + i] = row->y[t * gn + i] - f->mu[i];
            w->Yh[t * gn + i] = f->mu[i];
        }
    for (size_t a = 0; a < p->groups; a++) {
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = r, .K = n, .alpha = 1, .a = w->Yc + a * n, .lda = gn, .b = f->E + a * r * n,
                                    .ldb = n, .c = w->c + a * r, .ldc = gr});
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = n, .K = r, .alpha = 1, .beta = 1, .a = w->c + a * r, .lda = gr,
                                    .b = f->D + a * n * r, .ldb = r, .c = w->Yh + a * n, .ldc = gn});
    }
    keys_of(w->K, p, row, w->Yh);
}

/* dS = P o (dP - rowsum(P o dP)) over m queries and n keys, in place in S (dP on entry). */
static void softmax_back(float *S, const float *P, size_t m, size_t n, size_t T)
{
    for (size_t k = 0; k < m; k++) {
        float *s = S + k * T, lane[8] = {0};
        const float *pr = P + k * T;
        size_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (size_t x = 0; x < 8; x++) lane[x] += s[i + x] * pr[i + x];
        for (; i < n; i++) lane[0] += s[i] * pr[i];
        float mean = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
        for (i = 0; i < n; i++) s[i] = pr[i] * (s[i] - mean);
    }
}

/* dY from dL/do^ in w->o. */
static void attend_back(const mla_local *p, mla_local_work *w, const mla_local_row *row)
{
    size_t T = row->T, d = p->d, Hd = p->H * d, per = p->H / p->G, ldq = row->stride * Hd, Q = queries(row);
    for (size_t g = 0; g < p->G; g++) {
        place at = place_of(p, g);
        float *dV = w->dY + at.value;
        memset(w->dK, 0, T * d * sizeof *w->dK);
        for (size_t t = 0; t < T; t++) memset(dV + t * at.ld, 0, d * sizeof *dV);
        for (size_t h = g * per; h < (g + 1) * per; h++)
            for (size_t i = 0; i < Q; i += BLOCK) {
                span s = span_at(row, i, Q);
                const float *dO = w->o + i * Hd + h * d, *P = w->P + (h * Q + i) * T, *q = row->q + row->phase * Hd + h * d;
                mla_sgemm(&(mla_sgemm_args){.tb = true, .M = s.m, .N = s.keys, .K = d, .alpha = 1, .a = dO, .lda = Hd, .b = w->Yh + at.value,
                                            .ldb = at.ld, .c = w->S, .ldc = T});
                softmax_back(w->S, P, s.m, s.keys, T);
                mla_sgemm(&(mla_sgemm_args){.ta = true, .M = s.keys, .N = d, .K = s.m, .alpha = 1, .beta = 1, .a = P, .lda = T, .b = dO,
                                            .ldb = Hd, .c = dV, .ldc = at.ld});
                mla_sgemm(&(mla_sgemm_args){.ta = true, .M = s.keys, .N = d, .K = s.m, .alpha = p->scale, .beta = 1, .a = w->S, .lda = T,
                                            .b = q + i * ldq, .ldb = ldq, .c = w->dK, .ldc = d});
            }
        for (size_t t = 0; t < T; t++) {
            float *k = w->dK + t * d;
            if (p->layout != MLA_LAYOUT_N) rotate(k, p, t, -1);
            memcpy(w->dY + t * at.ld + at.key, k + d - at.dk, at.dk * sizeof *k);
        }
    }
}

/* grad of E, D, mu from dY, and c and y - mu as code() left them. */
static void code_back(mla_factors *grad, const mla_local *p, mla_local_work *w, size_t T, const mla_factors *f)
{
    size_t n = p->n, r = f->r, gn = p->groups * n, gr = p->groups * r;
    for (size_t a = 0; a < p->groups; a++) {
        float *mu = grad->mu + a * n;
        const float *E = f->E + a * r * n;
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = n, .N = r, .K = T, .alpha = 1, .a = w->dY + a * n, .lda = gn, .b = w->c + a * r, .ldb = gr,
                                    .c = grad->D + a * n * r, .ldc = r});
        mla_sgemm(&(mla_sgemm_args){.M = T, .N = r, .K = n, .alpha = 1, .a = w->dY + a * n, .lda = gn, .b = f->D + a * n * r, .ldb = r,
                                    .c = w->dc + a * r, .ldc = gr});
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = r, .N = n, .K = T, .alpha = 1, .a = w->dc + a * r, .lda = gr, .b = w->Yc + a * n, .ldb = gn,
                                    .c = grad->E + a * r * n, .ldc = n});
        memset(mu, 0, n * sizeof *mu); /* mu: once as offset of y^, once subtracted before E */
        for (size_t t = 0; t < T; t++)
            for (size_t i = 0; i < n; i++) mu[i] += w->dY[t * gn + a * n + i];
        for (size_t k = 0; k < r; k++) {
            float sum = 0;
            for (size_t t = 0; t < T; t++) sum += w->dc[t * gr + a * r + k];
            for (size_t i = 0; i < n; i++) mu[i] -= sum * E[k * n + i];
        }
    }
}

double mla_local_loss(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f, mla_factors *grad)
{
    size_t Hd = p->H * p->d, Q = queries(row);
    code(p, w, row, f);
    attend(w->o, p, w, row, w->Yh);
    output_error(p, w, row, w->o);
    double loss = output_energy(p, w, Q);
    if (!grad) return loss;
    for (size_t i = 0; i < Q; i++) {
        const float *gamma = row->gamma ? row->gamma + (row->phase + i * row->stride) * Hd : NULL;
        for (size_t k = 0; k < Hd; k++) w->o[i * Hd + k] = 2 * (gamma ? gamma[k] : 1) * w->B[i * Hd + k];
    }
    attend_back(p, w, row);
    code_back(grad, p, w, row->T, f);
    return loss;
}
