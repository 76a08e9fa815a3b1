/* What other operations take of those of a local fit. */
#ifndef MLA_CUDA_FIT_CUH
#define MLA_CUDA_FIT_CUH
#include "backend/fit.h"
#include "cuda/be.cuh"

extern const mla_fit_ops cu_fit;
/* mla_product_args in another order. */
struct Product {
    bool ta, tb;
    size_t M, N, K;
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc, sa, sb, sc, count;
    float alpha, beta = 0.f;
};
mla_status multiply(mla_cuda *c, const Product &p, mla_err *err);
mla_status cu_softmax(mla_backend *be, const mla_softmax_args *a, mla_err *err);
#endif
