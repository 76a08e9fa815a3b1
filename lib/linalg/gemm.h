/* fp64 products over cblas, row-major, one BLAS thread, and what BLAS it is. */
#ifndef MLA_LINALG_GEMM_H
#define MLA_LINALG_GEMM_H
#include <stdbool.h>
#include <stddef.h>

/* C (M,N; ldc) = alpha op(A) op(B) + beta C; op(A) is (M,K), stored (K,M) when ta; op(B) (K,N), stored (N,K) when tb. */
typedef struct {
    bool ta, tb;
    size_t M, N, K;
    double alpha, beta;
    const double *a, *b;
    double *c;
    size_t lda, ldb, ldc;
} mla_dgemm_args;
void mla_dgemm(const mla_dgemm_args *g);

/* The same in fp32. */
typedef struct {
    bool ta, tb;
    size_t M, N, K;
    float alpha, beta;
    const float *a, *b;
    float *c;
    size_t lda, ldb, ldc;
} mla_sgemm_args;
void mla_sgemm(const mla_sgemm_args *g);

/* C (n,n) = alpha A' A + beta C with A (T,n; lda); both triangles of C are written (ldc = n). */
void mla_dsyrk(double *c, const double *a, size_t lda, size_t T, size_t n, double alpha, double beta);

/* One BLAS thread from now on, where the library has that switch. Called by every function of this layer. */
void mla_blas_pin(void);
/* For a program's first line. OpenBLAS chooses its kernels while it is loaded, by a table of CPU models that ends before newer
 * ones: on those it takes SSE3 kernels ("Prescott"), measured three times slower in factoring. If that has happened on a CPU with
 * AVX2, and OPENBLAS_CORETYPE is not set, this starts the program again with OPENBLAS_CORETYPE set and does not return. */
void mla_blas_settle(char *const argv[]);
/* "OpenBLAS 0.3.21 ... Zen", or "BLAS" when the library does not tell. */
const char *mla_blas_name(void);
#endif
