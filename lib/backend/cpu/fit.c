/* The operations of a local fit on host memory: the reference of backend/fit.h. */
#include "backend/fit.h"

#include <string.h>

#include "backend/cpu/cpu.h"
#include "linalg/gemm.h"
#include "tensor/fp.h"

void mla_softmax_causal(float *x, size_t t, size_t width)
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

void mla_softmax_back(float *S, const float *P, size_t rows, size_t n, size_t ld)
{
    for (size_t k = 0; k < rows; k++) {
        float *s = S + k * ld, lane[8] = {0};
        const float *p = P + k * ld;
        size_t i = 0;
        for (; i + 8 <= n; i += 8)
            for (size_t x = 0; x < 8; x++) lane[x] += s[i + x] * p[i + x];
        for (; i < n; i++) lane[0] += s[i] * p[i];
        float mean = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
        for (i = 0; i < n; i++) s[i] = p[i] * (s[i] - mean);
    }
}

void mla_commute(float *g, const float *x, size_t w, size_t cols, size_t d, size_t rot)
{
    size_t half = rot / 2;
    for (size_t s = 0; s < w / 2; s++)
        for (size_t at = 0; at < cols; at += d) {
            for (size_t j = 0; j < half; j++) mla_commute_pair(g + s * cols + at + j, x + s * cols + at + j, w / 2 * cols, half);
            for (size_t j = rot; j < d; j++) g[s * cols + at + j] = g[(s + w / 2) * cols + at + j] = 0;
        }
}

static mla_status product(mla_backend *be, const mla_product_args *a, mla_err *err)
{
    (void)be, (void)err;
    for (size_t i = 0; i < a->count; i++)
        mla_sgemm(&(mla_sgemm_args){.ta = a->ta, .tb = a->tb, .M = a->M, .N = a->N, .K = a->K, .alpha = a->alpha, .beta = a->beta,
                                    .a = mla_cf32p(a->a) + i * a->sa, .lda = a->lda, .b = mla_cf32p(a->b) + i * a->sb, .ldb = a->ldb,
                                    .c = mla_f32p(a->c) + i * a->sc, .ldc = a->ldc});
    return MLA_OK;
}

static mla_status spread(mla_backend *be, const mla_spread_args *a, mla_err *err)
{
    (void)be, (void)err;
    for (size_t p = 0; p < a->parts; p++)
        for (size_t i = 0; i < a->n[0]; i++)
            for (size_t j = 0; j < a->n[1]; j++) {
                size_t at = i * a->xs[0] + j * a->xs[1], to = p * a->yp + i * a->ys[0] + j * a->ys[1];
                for (size_t k = 0; k < a->n[2]; k++, to += a->ys[2]) {
                    size_t from = at + k * a->xs[2];
                    float x = j >= a->rows[p] ? 0 : a->bf16 ? mla_bf16_f32(((const uint16_t *)(const void *)a->x[p])[from]) : mla_cf32p(a->x[p])[from];
                    if (a->to16) ((uint16_t *)(void *)a->y)[to] = mla_f32_bf16(x);
                    else mla_f32p(a->y)[to] = x;
                }
            }
    return MLA_OK;
}

static mla_status scale(mla_backend *be, mla_mem *y, size_t ld, size_t rows, size_t d, const mla_mem *row, const mla_mem *col, mla_err *err)
{
    (void)be, (void)err;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < d; i++) mla_f32p(y)[r * ld + i] *= mla_cf32p(col)[i] * mla_cf32p(row)[r];
    return MLA_OK;
}

static mla_status softmax(mla_backend *be, const mla_softmax_args *a, mla_err *err)
{
    (void)be, (void)err;
    for (size_t r = 0; r < a->parts * a->heads * a->Q; r++) {
        float *x = mla_f32p(a->x) + r * a->T;
        size_t t = a->first[r / (a->heads * a->Q)] + r % a->Q * a->stride;
        if (t < a->T) mla_softmax_causal(x, t, a->T);
        else memset(x, 0, a->T * sizeof *x);
    }
    return MLA_OK;
}

static mla_status softmax_back(mla_backend *be, mla_mem *s, const mla_mem *p, size_t rows, size_t T, mla_err *err)
{
    (void)be, (void)err;
    mla_softmax_back(mla_f32p(s), mla_cf32p(p), rows, T, T);
    return MLA_OK;
}

static mla_status dots(mla_backend *be, mla_mem *out, const mla_mem *a, const mla_mem *b, size_t parts, size_t n, mla_err *err)
{
    (void)be, (void)err;
    for (size_t p = 0; p < parts; p++) {
        const float *x = mla_cf32p(a) + p * n, *y = mla_cf32p(b) + p * n;
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += (double)x[i] * y[i];
        mla_f64p(out)[p] = sum;
    }
    return MLA_OK;
}

static mla_status adam(mla_backend *be, const mla_adam_args *a, mla_err *err)
{
    (void)be, (void)err;
    for (size_t i = 0; i < a->n; i++)
        mla_adam_move(mla_f32p(a->x) + i, mla_f32p(a->m) + i, mla_f32p(a->v) + i, mla_cf32p(a->g)[i], a->rate, a->fix1, a->fix2);
    return MLA_OK;
}

static mla_status commute(mla_backend *be, const mla_commute_args *a, mla_err *err)
{
    (void)be, (void)err;
    for (size_t i = 0; i < a->count; i++) mla_commute(mla_f32p(a->g) + i * a->w * a->cols, mla_cf32p(a->x) + i * a->w * a->cols, a->w, a->cols, a->d, a->rot);
    return MLA_OK;
}

const mla_fit_ops mla_fit_plain = {product, spread, scale, softmax, softmax_back, dots, adam, commute};
