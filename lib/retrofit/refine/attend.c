/* Attention of one head and the output error, over one-threaded products. */
#include "retrofit/refine/attend.h"

#include "backend/fit.h"
#include "linalg/gemm.h"

size_t mla_span_queries(const mla_span *s) { return (s->T - s->phase + s->stride - 1) / s->stride; }

typedef struct { /* queries [i0, i0 + m) of those that count, against keys [0, keys) */
    size_t i0, m, keys;
} block;

static block block_at(const mla_span *s, size_t i0, size_t Q)
{
    size_t m = Q - i0 < MLA_HEAD_BLOCK ? Q - i0 : MLA_HEAD_BLOCK;
    return (block){i0, m, s->phase + (i0 + m - 1) * s->stride + 1};
}

void mla_head_forward(const mla_head *h, const mla_span *s, float *o, size_t ldo)
{
    size_t T = s->T, Q = mla_span_queries(s), ldq = s->stride * h->ldq;
    const float *q = h->q + s->phase * h->ldq;
    for (size_t i = 0; i < Q; i += MLA_HEAD_BLOCK) {
        block b = block_at(s, i, Q);
        float *P = h->P + i * T;
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = b.m, .N = b.keys, .K = h->dk, .alpha = h->scale, .a = q + i * ldq, .lda = ldq, .b = h->k,
                                    .ldb = h->ldk, .c = P, .ldc = T});
        for (size_t k = 0; k < b.m; k++) mla_softmax_causal(P + k * T, s->phase + (i + k) * s->stride, b.keys);
        mla_sgemm(&(mla_sgemm_args){.M = b.m, .N = h->dv, .K = b.keys, .alpha = 1, .a = P, .lda = T, .b = h->v, .ldb = h->ldv, .c = o + i * ldo,
                                    .ldc = ldo});
    }
}

void mla_head_backward(const mla_head *h, const mla_span *s, const float *dO, size_t ldo, const mla_head_grad *g)
{
    size_t T = s->T, Q = mla_span_queries(s), ldq = s->stride * h->ldq;
    const float *q = h->q + s->phase * h->ldq;
    for (size_t i = 0; i < Q; i += MLA_HEAD_BLOCK) {
        block b = block_at(s, i, Q);
        const float *P = h->P + i * T, *d = dO + i * ldo;
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = b.m, .N = b.keys, .K = h->dv, .alpha = 1, .a = d, .lda = ldo, .b = h->v, .ldb = h->ldv,
                                    .c = g->S, .ldc = T});
        mla_softmax_back(g->S, P, b.m, b.keys, T);
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = b.keys, .N = h->dv, .K = b.m, .alpha = 1, .beta = 1, .a = P, .lda = T, .b = d, .ldb = ldo,
                                    .c = g->dv, .ldc = g->lddv});
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = b.keys, .N = h->dk, .K = b.m, .alpha = h->scale, .beta = 1, .a = g->S, .lda = T,
                                    .b = q + i * ldq, .ldb = ldq, .c = g->dk, .ldc = g->lddk});
        if (g->dq)
            mla_sgemm(&(mla_sgemm_args){.M = b.m, .N = h->dk - g->from, .K = b.keys, .alpha = h->scale, .a = g->S, .lda = T, .b = h->k + g->from,
                                        .ldb = h->ldk, .c = g->dq + i * g->lddq, .ldc = g->lddq});
    }
}

double mla_output_loss(const mla_output *x, const mla_span *s, const float *o)
{
    size_t n = x->width, Q = mla_span_queries(s);
    double sum = 0;
    for (size_t i = 0; i < Q; i++) {
        size_t t = (s->phase + i * s->stride) * n;
        for (size_t k = 0; k < n; k++) {
            float e = o ? o[i * n + k] - x->o[t + k] : x->o[t + k];
            x->A[i * n + k] = x->gamma ? x->gamma[t + k] * e : e;
        }
    }
    mla_sgemm(&(mla_sgemm_args){.M = Q, .N = n, .K = n, .alpha = 1, .a = x->A, .lda = n, .b = x->WW, .ldb = n, .c = x->B, .ldc = n});
    for (size_t i = 0; i < Q * n; i++) sum += (double)x->A[i] * x->B[i];
    return sum;
}

void mla_output_back(const mla_output *x, const mla_span *s, float *dO)
{
    size_t n = x->width, Q = mla_span_queries(s);
    for (size_t i = 0; i < Q; i++) {
        const float *gamma = x->gamma ? x->gamma + (s->phase + i * s->stride) * n : NULL;
        for (size_t k = 0; k < n; k++) dO[i * n + k] = 2 * (gamma ? gamma[k] : 1) * x->B[i * n + k];
    }
}
