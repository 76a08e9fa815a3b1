/* Factoring one layer W (m, n) under covariance C (n, n) to rank r, one BLAS thread: the symmetric eigenproblem of
 * G = W C W^T with its proof (mla_eigh, as mla_solve_layer uses it) against LAPACKE_dgesdd on the whitened matrix W L,
 * C = L L^T. Both give the r leading left singular vectors U of W L; the loss |(I - U U^T) W L|^2 is computed for both.
 *
 * usage: bench_factor m n r repetitions   (synthetic W and C from mla_rng; C with a spectrum that falls off)
 * Prints seconds: gram (G), eigh, whiten (Cholesky and W L), gesdd; loss_eigh and loss_gesdd as shares of |W L|^2,
 * difference (relative), solve_layer (whole mla_solve_layer of a layer with m features: metric, two eigenproblems), blas. */
#include <lapacke.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "lab.h"
#include "linalg/chol.h"
#include "linalg/eigh.h"
#include "linalg/gemm.h"
#include "retrofit/solve/solve.h"

typedef struct {
    size_t m, n, r;
    double *W, *C, *WL, *L, *T, *G, *lambda; /* (m,n) (n,n) (m,n) (n,n) (m,n) (m,m) (m) */
    double *svd_u, *svd_vt, *svd_s;          /* column-major gesdd of WL^T: see svd() */
    double total;
} lab;

static double *room(size_t a, size_t b)
{
    double *p = mla_alloc_raw(a, b, sizeof *p);
    if (!p) {
        fprintf(stderr, "bench_factor: no memory for (%zu, %zu)\n", a, b);
        exit(3);
    }
    return p;
}

static void normals(double *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) { /* a sum of four uniforms is normal enough, and fast */
        uint64_t u = mla_rng_u64(seed, i);
        x[i] = ((double)(u & 0xffff) + (double)(u >> 16 & 0xffff) + (double)(u >> 32 & 0xffff) + (double)(u >> 48) - 131070) * 2.6e-5;
    }
}

/* C = I/10 + A' A with A (n/8, n), row i scaled by (i + 1)^-1/2: a few strong directions over a floor. */
static void covariance(double *C, size_t n)
{
    size_t k = n / 8 ? n / 8 : 1;
    double *A = room(k, n);
    normals(A, k * n, 2);
    for (size_t i = 0; i < k * n; i++) A[i] /= sqrt((double)(i / n + 1));
    memset(C, 0, n * n * sizeof *C);
    mla_dsyrk(C, A, n, k, n, 1, 0);
    for (size_t i = 0; i < n; i++) C[i * n + i] += 0.1;
    mla_free(A);
}

static double gram(lab *b)
{
    double t = lab_now();
    mla_dgemm(&(mla_dgemm_args){.M = b->m, .N = b->n, .K = b->n, .alpha = 1, .a = b->W, .lda = b->n, .b = b->C, .ldb = b->n, .c = b->T, .ldc = b->n});
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = b->m, .N = b->m, .K = b->n, .alpha = 1, .a = b->T, .lda = b->n, .b = b->W, .ldb = b->n, .c = b->G, .ldc = b->m});
    return lab_now() - t;
}

static double eigh(lab *b)
{
    mla_err err = {0};
    double t = lab_now();
    lab_must(mla_eigh(b->G, b->lambda, b->m, &err), &err);
    return lab_now() - t;
}

static double whiten(lab *b)
{
    mla_err err = {0};
    memcpy(b->L, b->C, b->n * b->n * sizeof *b->L);
    double t = lab_now();
    lab_must(mla_chol(b->L, b->n, &err), &err);
    mla_dgemm(&(mla_dgemm_args){.M = b->m, .N = b->n, .K = b->n, .alpha = 1, .a = b->W, .lda = b->n, .b = b->L, .ldb = b->n, .c = b->WL, .ldc = b->n});
    return lab_now() - t;
}

/* WL row-major (m, n) is column-major (n, m): LAPACK's right factor (m, m) holds our left vectors, vector i in row i of
 * VT, that is at svd_vt[i + k m]. */
static double svd(lab *b)
{
    memcpy(b->T, b->WL, b->m * b->n * sizeof *b->T);
    double t = lab_now();
    lapack_int info = LAPACKE_dgesdd(LAPACK_COL_MAJOR, 'S', (lapack_int)b->n, (lapack_int)b->m, b->T, (lapack_int)b->n, b->svd_s, b->svd_u,
                                     (lapack_int)b->n, b->svd_vt, (lapack_int)b->m);
    t = lab_now() - t;
    if (info) {
        fprintf(stderr, "bench_factor: dgesdd failed with %d\n", (int)info);
        exit(3);
    }
    return t;
}

/* |(I - U^T U) WL|^2 / |WL|^2 with the r vectors in the rows of U (r, m). */
static double loss(lab *b, const double *U)
{
    double *P = room(b->r, b->n), s = 0;
    mla_dgemm(&(mla_dgemm_args){.M = b->r, .N = b->n, .K = b->m, .alpha = 1, .a = U, .lda = b->m, .b = b->WL, .ldb = b->n, .c = P, .ldc = b->n});
    memcpy(b->T, b->WL, b->m * b->n * sizeof *b->T);
    mla_dgemm(&(mla_dgemm_args){.ta = true, .M = b->m, .N = b->n, .K = b->r, .alpha = -1, .beta = 1, .a = U, .lda = b->m, .b = P, .ldb = b->n, .c = b->T, .ldc = b->n});
    for (size_t i = 0; i < b->m * b->n; i++) s = fma(b->T[i], b->T[i], s);
    mla_free(P);
    return s / b->total;
}

static void compare(lab *b)
{
    double *U = room(b->r, b->m), a, g;
    for (size_t i = 0; i < b->r; i++) memcpy(U + i * b->m, b->G + (b->m - 1 - i) * b->m, b->m * sizeof *U);
    a = loss(b, U);
    for (size_t i = 0; i < b->r; i++)
        for (size_t k = 0; k < b->m; k++) U[i * b->m + k] = b->svd_vt[i + k * b->m];
    g = loss(b, U);
    lab_print_value("loss_eigh", a);
    lab_print_value("loss_gesdd", g);
    lab_print_value("difference", fabs(a - g) / g);
    mla_free(U);
}

/* A layer of G KV heads whose features are as many as W has rows: two eigenproblems and what surrounds them. */
static double solve_layer(size_t m)
{
    mla_err err = {0};
    size_t d = 128, G = m / (2 * d), H = 3 * G, D = H * d;
    if (G == 0 || m % (2 * d)) return 0;
    mla_layer_stats l = {.H = H, .G = G, .d = d, .dk = d, .n = m, .tokens = 1000, .wsum = 1000};
    double *zero = room(2, m), *M = room(G * d, d), *kappa = room(H, H), *C = room(m, m);
    memset(zero, 0, 2 * m * sizeof *zero);
    covariance(C, m);
    for (size_t g = 0; g < G; g++) covariance(M + g * d * d, d);
    for (size_t i = 0; i < H * H; i++) kappa[i] = i % (H + 1) ? 50 : 500;
    for (size_t i = 0; i < m * m; i++) C[i] *= 1000;
    l.shift = zero, l.sum = zero + m, l.C = C, l.M = M, l.kappa = kappa;
    float *wo = mla_alloc(D, D, sizeof *wo);
    if (!wo) exit(3);
    for (size_t i = 0; i < D * D; i++) wo[i] = (float)(mla_rng_unit(9, i) - 0.5) * 0.02f;
    mla_solution s;
    double t = lab_now();
    lab_must(mla_solve_layer(&s, &l, MLA_LAYOUT_REBUILD, wo, D, &(mla_solve_opts){.balance = 1, .groups = 1}, &err), &err);
    t = lab_now() - t;
    mla_solution_free(&s);
    mla_free(wo), mla_free(C), mla_free(kappa), mla_free(M), mla_free(zero);
    return t;
}

int main(int argc, char **argv)
{
    mla_blas_settle(argv);
    lab b = {.m = lab_arg(argc, argv, 1, 2048), .n = lab_arg(argc, argv, 2, 5120), .r = lab_arg(argc, argv, 3, 512)};
    size_t reps = lab_arg(argc, argv, 4, 1);
    lab_series tg = {.n = 0}, te = {.n = 0}, tw = {.n = 0}, ts = {.n = 0};
    if (b.m > b.n || b.r > b.m) {
        fprintf(stderr, "usage: bench_factor m n r repetitions, r <= m <= n\n");
        return 2;
    }
    mla_blas_pin();
    b.W = room(b.m, b.n), b.C = room(b.n, b.n), b.WL = room(b.m, b.n), b.L = room(b.n, b.n), b.T = room(b.m, b.n), b.G = room(b.m, b.m);
    b.lambda = room(b.m, 1), b.svd_u = room(b.n, b.m), b.svd_vt = room(b.m, b.m), b.svd_s = room(b.m, 1);
    normals(b.W, b.m * b.n, 1);
    covariance(b.C, b.n);
    for (size_t i = 0; i < reps; i++) {
        lab_add(&tg, gram(&b));
        lab_add(&te, eigh(&b));
        lab_add(&tw, whiten(&b));
        lab_add(&ts, svd(&b));
    }
    for (size_t i = 0; i < b.m * b.n; i++) b.total = fma(b.WL[i], b.WL[i], b.total);
    lab_print("gram", &tg);
    lab_print("eigh", &te);
    lab_print("whiten", &tw);
    lab_print("gesdd", &ts);
    compare(&b);
    lab_print_value("solve_layer", solve_layer(b.m));
    printf("blas %s\n", mla_blas_name());
    double *all[] = {b.W, b.C, b.WL, b.L, b.T, b.G, b.lambda, b.svd_u, b.svd_vt, b.svd_s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mla_free(all[i]);
    return 0;
}
