/* Row-major products and the thread setting of OpenBLAS. */
#include "linalg/gemm.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>

static char name[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void pin(void)
{
#ifdef OPENBLAS_VERSION
    openblas_set_num_threads(1);
    const char *cfg = openblas_get_config();
    int n = 0;
    while (cfg[n] && cfg[n] != ' ') n++;
    if (cfg[n]) /* "OpenBLAS 0.3.21 ..." */
        for (n++; cfg[n] && cfg[n] != ' '; n++) {}
    snprintf(name, sizeof name, "%.*s %s", n, cfg, openblas_get_corename());
#else
    snprintf(name, sizeof name, "BLAS");
#endif
}

void mla_blas_pin(void) { pthread_once(&once, pin); }

const char *mla_blas_name(void)
{
    mla_blas_pin();
    return name;
}

void mla_dgemm(bool ta, bool tb, size_t m, size_t n, size_t k, double alpha, const double *A, size_t lda, const double *B, size_t ldb,
               double beta, double *C, size_t ldc)
{
    if (m == 0 || n == 0) return;
    mla_blas_pin();
    cblas_dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha, A,
                (blasint)lda, B, (blasint)ldb, beta, C, (blasint)ldc);
}

void mla_sgemm(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *A, size_t lda, const float *B, size_t ldb,
               float beta, float *C, size_t ldc)
{
    if (m == 0 || n == 0) return;
    mla_blas_pin();
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha, A,
                (blasint)lda, B, (blasint)ldb, beta, C, (blasint)ldc);
}
