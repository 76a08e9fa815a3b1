/* fp64 products and solves cut into blocks of rows, which the threads of a pool take: the same bits whatever the threads, none included. */
#ifndef MLA_LINALG_WIDE_H
#define MLA_LINALG_WIDE_H
#include "base/err.h"
#include "base/par.h"
#include "linalg/gemm.h"

/* mla_dgemm, MLA_WIDE_ROWS rows of C at a time. pool NULL: one after the other. */
#define MLA_WIDE_ROWS 128
void mla_dgemm_wide(const mla_dgemm_args *g, mla_pool *pool);
/* mla_chol_solve, so many right-hand sides at a time. */
MLA_CHECKED mla_status mla_chol_solve_wide(const double *l, size_t n, double *b, size_t rows, mla_pool *pool, mla_err *err);
/* E (r, n) := L^-1 E by forward substitution, L (r, r) lower; each number one sum over rows in order. */
void mla_lower_solve(double *E, const double *L, size_t r, size_t n, mla_pool *pool);
#endif
