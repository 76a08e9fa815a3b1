/* cblas with row-major arrays; OpenBLAS's thread switch where the library has it. */
#include "linalg/gemm.h"

#include <cblas.h>

/* OpenBLAS only; weak, so that any other BLAS links, too. */
__attribute__((weak)) void openblas_set_num_threads(int n);
__attribute__((weak)) char *openblas_get_config(void);

void mla_blas_pin(void)
{
    if (openblas_set_num_threads) openblas_set_num_threads(1);
}

const char *mla_blas_name(void) { return openblas_get_config ? openblas_get_config() : "BLAS"; }

void mla_dgemm(const mla_dgemm_args *g)
{
    mla_blas_pin();
    cblas_dgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans, g->tb ? CblasTrans : CblasNoTrans, (int)g->M, (int)g->N,
                (int)g->K, g->alpha, g->a, (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}

void mla_sgemm(const mla_sgemm_args *g)
{
    mla_blas_pin();
    cblas_sgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans, g->tb ? CblasTrans : CblasNoTrans, (int)g->M, (int)g->N,
                (int)g->K, g->alpha, g->a, (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}

void mla_dsyrk(double *c, const double *a, size_t lda, size_t T, size_t n, double alpha, double beta)
{
    mla_blas_pin();
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)n, (int)T, alpha, a, (int)lda, beta, c, (int)n);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) c[i * n + j] = c[j * n + i];
}
