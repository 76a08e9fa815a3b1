/* Dense products on OpenBLAS, row-major, one thread: parallel callers cut the work themselves, so that bits never depend
 * on a thread count. C (m,n) = alpha op(A) (m,k) op(B) (k,n) + beta C, leading dimensions in elements of a row. */
#ifndef MLA_LINALG_GEMM_H
#define MLA_LINALG_GEMM_H
#include <stdbool.h>
#include <stddef.h>

void mla_dgemm(bool ta, bool tb, size_t m, size_t n, size_t k, double alpha, const double *A, size_t lda, const double *B, size_t ldb,
               double beta, double *C, size_t ldc);
void mla_sgemm(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *A, size_t lda, const float *B, size_t ldb,
               float beta, float *C, size_t ldc);

/* Version, kernel and thread setting of the BLAS, for --version and receipts: "OpenBLAS 0.3.21 SkylakeX". Static. */
const char *mla_blas_name(void);
/* Pins OpenBLAS to one thread. Idempotent; every function of this layer calls it. */
void mla_blas_pin(void);
#endif
