/* Eigenproblem, singular values, Cholesky and products against closed forms and their defining equations, computed here
 * by plain loops. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "linalg/chol.h"
#include "linalg/eigh.h"
#include "linalg/gemm.h"
#include "linalg/svd.h"
#include "linalg/wide.h"

#define PI 3.14159265358979323846

static double *normals(size_t n, uint64_t seed)
{
    double *x = mla_alloc(n, 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) x[i] = mla_rng_normal(seed, i);
    return x;
}

static double *symmetric(size_t n, uint64_t seed)
{
    double *x = normals(n * n, seed);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) x[j * n + i] = x[i * n + j];
    return x;
}

static double norm_f(const double *x, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++) s += x[i] * x[i];
    return sqrt(s);
}

/* Rows of v are eigenvectors of a: largest |A v - w v| and |v_i . v_j - delta_ij|. */
static void worst_of(const double *a, const double *v, const double *w, size_t n, double *res, double *ortho)
{
    *res = *ortho = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t r = 0; r < n; r++) {
            double s = -w[i] * v[i * n + r];
            for (size_t c = 0; c < n; c++) s += a[r * n + c] * v[i * n + c];
            *res = fmax(*res, fabs(s));
        }
        for (size_t j = 0; j <= i; j++) {
            double s = i == j ? -1 : 0;
            for (size_t c = 0; c < n; c++) s += v[i * n + c] * v[j * n + c];
            *ortho = fmax(*ortho, fabs(s));
        }
    }
}

static void check_eigh(const double *a, size_t n, double *w)
{
    mla_err err = {0};
    double *v = mla_alloc(n, n, sizeof *v), res, ortho, tol = 64 * (double)n * 0x1p-53;
    memcpy(v, a, n * n * sizeof *v);
    ck_ok(mla_eigh(v, w, n, &err));
    worst_of(a, v, w, n, &res, &ortho);
    ck_assert_msg(res <= tol * norm_f(a, n * n) && ortho <= tol, "n = %zu: residual %g, orthogonality %g", n, res, ortho);
    for (size_t i = 0; i < n; i++) {
        size_t top = 0;
        ck_assert(i == 0 || w[i - 1] <= w[i]);
        for (size_t j = 0; j < n; j++)
            if (fabs(v[i * n + j]) > fabs(v[i * n + top])) top = j;
        ck_assert_msg(v[i * n + top] > 0, "eigenvector %zu: largest component is negative", i);
    }
    mla_free(v);
}

START_TEST(eigh_of_random_matrices)
{
    static const size_t N[] = {1, 2, 3, 31, 33, 64, 257};
    for (size_t i = 0; i < sizeof N / sizeof *N; i++) {
        double *a = symmetric(N[i], 1 + i), *w = mla_alloc(N[i], 1, sizeof *w);
        check_eigh(a, N[i], w);
        mla_free(a), mla_free(w);
    }
}
END_TEST

/* Tridiagonal (-1, 2, -1): w_k = 2 - 2 cos(k pi / (n+1)); scaled to extremes, repeated and zero spectra. */
START_TEST(eigh_of_known_spectra)
{
    const size_t n = 100;
    double *a = mla_alloc(n, n, sizeof *a), *w = mla_alloc(n, 1, sizeof *w);
    static const double SCALE[] = {1, 1e-200, 1e200, 3e-310};
    for (size_t s = 0; s < 4; s++) {
        for (size_t i = 0; i < n * n; i++) a[i] = i / n == i % n ? 2 * SCALE[s] : i / n + 1 == i % n || i % n + 1 == i / n ? -SCALE[s] : 0;
        mla_err err = {0};
        double *v = mla_alloc(n, n, sizeof *v);
        memcpy(v, a, n * n * sizeof *v);
        ck_ok(mla_eigh(v, w, n, &err));
        for (size_t k = 0; k < n; k++) {
            double want = (2 - 2 * cos((double)(k + 1) * PI / (double)(n + 1))) * SCALE[s];
            ck_assert_msg(fabs(w[k] - want) <= 100 * 0x1p-52 * 4 * SCALE[s] + 0x1p-1073, "scale %g: w[%zu] = %g, want %g", SCALE[s], k, w[k], want);
        }
        mla_free(v);
    }
    memset(a, 0, n * n * sizeof *a);
    check_eigh(a, n, w);
    ck_assert(w[0] == 0 && w[n - 1] == 0);
    for (size_t i = 0; i < n; i++) a[i * n + i] = 7;
    check_eigh(a, n, w);
    ck_assert(w[0] == 7 && w[n - 1] == 7);
    for (size_t i = 0; i < n * n; i++) a[i] = 1; /* rank one: n once, 0 the rest */
    check_eigh(a, n, w);
    ck_assert(fabs(w[n - 1] - 100) < 1e-12 && fabs(w[n - 2]) < 1e-12);
    mla_free(a), mla_free(w);
}
END_TEST

START_TEST(eigh_is_deterministic_and_reads_the_lower_triangle)
{
    const size_t n = 90;
    mla_err err = {0};
    double *a = symmetric(n, 5), *b = mla_alloc(n, n, sizeof *b), w[90], w2[90];
    memcpy(b, a, n * n * sizeof *b);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) b[i * n + j] = NAN;
    ck_ok(mla_eigh(a, w, n, &err));
    ck_ok(mla_eigh(b, w2, n, &err));
    ck_assert(!memcmp(a, b, n * n * sizeof *a) && !memcmp(w, w2, sizeof w));
    mla_free(a), mla_free(b);
}
END_TEST

START_TEST(eigh_refuses)
{
    mla_err err = {0};
    double a[4] = {1, 0, NAN, 1}, w[2];
    ck_refused(mla_eigh(a, w, 2, &err), MLA_EINVAL, "(1, 0)");
    a[2] = INFINITY;
    ck_refused(mla_eigh(a, w, 2, &err), MLA_EINVAL, "not finite");
    ck_refused(mla_eigh(a, w, 50000, &err), MLA_EUNSUPPORTED, "50000");
    for (long k = 0; k < 2; k++) {
        double c[4] = {1, 0, 0, 1};
        mla_alloc_fail_after(k);
        ck_refused(mla_eigh(c, w, 2, &err), MLA_ENOMEM, "eigenproblem of 2");
    }
    mla_alloc_fail_after(-1);
    ck_ok(mla_eigh(a, w, 0, &err));
}
END_TEST

START_TEST(svd_of_every_aspect)
{
    static const size_t D[][2] = {{1, 1}, {1, 9}, {9, 1}, {3, 31}, {33, 3}, {64, 64}, {120, 257}, {257, 90}};
    mla_err err = {0};
    for (size_t i = 0; i < 8; i++) {
        size_t m = D[i][0], n = D[i][1], k = m < n ? m : n;
        double *a = normals(m * n, 20 + i), *u = mla_alloc(m, k, sizeof *u), *s = mla_alloc(k, 1, sizeof *s), *vt = mla_alloc(k, n, sizeof *vt);
        double worst = 0;
        if (i == 6) memset(a + n, 0, n * sizeof *a); /* rank deficient */
        ck_ok(mla_svd(a, m, n, u, s, vt, &err));
        for (size_t r = 0; r < m; r++)
            for (size_t c = 0; c < n; c++) {
                double x = -a[r * n + c];
                for (size_t l = 0; l < k; l++) x += u[r * k + l] * s[l] * vt[l * n + c];
                worst = fmax(worst, fabs(x));
            }
        ck_assert_msg(worst <= 64 * 257 * 0x1p-53 * norm_f(a, m * n), "(%zu, %zu): %g", m, n, worst);
        for (size_t l = 1; l < k; l++) ck_assert(s[l - 1] >= s[l] && s[l] >= 0);
        mla_free(a), mla_free(u), mla_free(s), mla_free(vt);
    }
}
END_TEST

START_TEST(svd_refuses)
{
    mla_err err = {0};
    double a[4] = {1, 2, NAN, 1}, u[4], s[2], vt[4];
    ck_refused(mla_svd(a, 2, 2, u, s, vt, &err), MLA_EINVAL, "(1, 0)");
    ck_refused(mla_svd(a, 0, 2, u, s, vt, &err), MLA_EINVAL, "empty");
    a[2] = 0;
    for (long k = 0; k < 2; k++) {
        mla_alloc_fail_after(k);
        ck_refused(mla_svd(a, 2, 2, u, s, vt, &err), MLA_ENOMEM, "svd (2, 2)");
    }
    mla_alloc_fail_after(-1);
}
END_TEST

START_TEST(cholesky_solves)
{
    static const size_t N[] = {1, 3, 31, 130};
    mla_err err = {0};
    for (size_t i = 0; i < 4; i++) {
        size_t n = N[i], rows = 7;
        double *g = normals(2 * n * n, 40 + i), *a = mla_alloc(n, n, sizeof *a), *x = normals(rows * n, 50 + i), *b = mla_alloc(rows, n, sizeof *b);
        mla_dsyrk(a, g, n, 2 * n, n, 1, 0);
        for (size_t r = 0; r < n; r++) {
            a[r * n + r] += (double)n;
            for (size_t c = 0; c < r; c++) ck_assert(a[r * n + c] == a[c * n + r]);
        }
        mla_dgemm(&(mla_dgemm_args){.M = rows, .N = n, .K = n, .alpha = 1, .a = x, .b = a, .c = b, .lda = n, .ldb = n, .ldc = n});
        ck_ok(mla_chol(a, n, &err));
        ck_ok(mla_chol_solve(a, n, b, rows, &err));
        /* condition number of G'G + n I is below 20 */
        for (size_t e = 0; e < rows * n; e++) ck_assert_msg(fabs(b[e] - x[e]) <= 20 * 8 * (double)n * 0x1p-52 * 10, "n = %zu: %g", n, b[e] - x[e]);
        mla_free(g), mla_free(a), mla_free(x), mla_free(b);
    }
    double bad[4] = {1, 0, 2, 1};
    ck_refused(mla_chol(bad, 2, &err), MLA_EINVAL, "leading minor 2");
}
END_TEST

START_TEST(products_and_their_transposes)
{
    const size_t M = 7, N = 33, K = 19;
    double *a = normals(M * K, 60), *at = mla_alloc(K, M, sizeof *at), *b = normals(K * N, 61), *bt = mla_alloc(N, K, sizeof *bt);
    double *want = mla_alloc(M, N, sizeof *want), *c = mla_alloc(M, N, sizeof *c);
    for (size_t i = 0; i < M; i++)
        for (size_t k = 0; k < K; k++) at[k * M + i] = a[i * K + k];
    for (size_t k = 0; k < K; k++)
        for (size_t j = 0; j < N; j++) bt[j * K + k] = b[k * N + j];
    for (size_t i = 0; i < M; i++)
        for (size_t j = 0; j < N; j++)
            for (size_t k = 0; k < K; k++) want[i * N + j] += a[i * K + k] * b[k * N + j];
    for (int v = 0; v < 4; v++) {
        for (size_t i = 0; i < M * N; i++) c[i] = 1;
        mla_dgemm(&(mla_dgemm_args){.ta = v & 1, .tb = v >> 1, .M = M, .N = N, .K = K, .alpha = 2, .beta = 3, .a = v & 1 ? at : a,
                                    .b = v >> 1 ? bt : b, .c = c, .lda = v & 1 ? M : K, .ldb = v >> 1 ? K : N, .ldc = N});
        for (size_t i = 0; i < M * N; i++) ck_assert(fabs(c[i] - (2 * want[i] + 3)) <= 1e-13);
    }
    ck_assert(strlen(mla_blas_name()) > 0);
    mla_free(a), mla_free(at), mla_free(b), mla_free(bt), mla_free(want), mla_free(c);
}
END_TEST

/* Blocks of rows on several threads: what one call gives, up to the order of sums, and the same bits on any number of threads. */
START_TEST(blocks_of_rows)
{
    enum { M = 2 * MLA_WIDE_ROWS + 5, N = 37, K = 150 };
    mla_err err;
    mla_pool *pool[3] = {NULL};
    double *a = normals(M * K, 62), *b = normals(K * N, 63), *c[4], *l = mla_alloc(K, K, sizeof *l), *g = normals(2 * K * K, 64), *x[4], *e[4];
    ck_ok(mla_pool_new(&pool[1], 2, &err));
    ck_ok(mla_pool_new(&pool[2], 5, &err));
    mla_dsyrk(l, g, K, 2 * K, K, 1, 0);
    ck_ok(mla_chol(l, K, &err));
    for (int v = 0; v < 4; v++) c[v] = normals(M * N, 65), x[v] = normals(M * K, 66), e[v] = normals(K * N, 67);
    mla_dgemm_args p = {.M = M, .N = N, .K = K, .alpha = 2, .beta = 3, .a = a, .lda = K, .b = b, .ldb = N, .ldc = N};
    for (int t = 0; t < 2; t++) {
        p.ta = t, p.lda = t ? M : K;
        for (int v = 0; v < 4; v++) {
            p.c = c[v];
            if (v < 3) mla_dgemm_wide(&p, pool[v]);
            else mla_dgemm(&p);
        }
        for (size_t i = 0; i < M * N; i++) ck_assert(fabs(c[0][i] - c[3][i]) <= 1e-11 && c[0][i] == c[1][i] && c[0][i] == c[2][i]);
    }
    for (int v = 0; v < 3; v++) ck_ok(mla_chol_solve_wide(l, K, x[v], M, pool[v], &err));
    ck_ok(mla_chol_solve(l, K, x[3], M, &err));
    for (size_t i = 0; i < M * K; i++) ck_assert(fabs(x[0][i] - x[3][i]) <= 1e-12 && x[0][i] == x[1][i] && x[0][i] == x[2][i]);
    for (int v = 0; v < 3; v++) mla_lower_solve(e[v], l, K, N, pool[v]);
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < N; j++) {
            double s = 0;
            for (size_t k = 0; k <= i; k++) s += l[i * K + k] * e[0][k * N + j];
            ck_assert(fabs(s - e[3][i * N + j]) <= 1e-12 && e[0][i * N + j] == e[1][i * N + j] && e[0][i * N + j] == e[2][i * N + j]);
        }
    x[0][3] = NAN;
    ck_refused(mla_chol_solve_wide(l, K, x[0], M, pool[1], &err), MLA_EINVAL, "not finite");
    for (int v = 0; v < 4; v++) mla_free(c[v]), mla_free(x[v]), mla_free(e[v]);
    mla_free(a), mla_free(b), mla_free(l), mla_free(g);
    mla_pool_free(pool[1]), mla_pool_free(pool[2]);
}
END_TEST

static Suite *suite_linalg(void)
{
    Suite *s = suite_create("linalg");
    TCase *t = tcase_create("linalg");
    tcase_add_test(t, eigh_of_random_matrices);
    tcase_add_test(t, eigh_of_known_spectra);
    tcase_add_test(t, eigh_is_deterministic_and_reads_the_lower_triangle);
    tcase_add_test(t, eigh_refuses);
    tcase_add_test(t, svd_of_every_aspect);
    tcase_add_test(t, svd_refuses);
    tcase_add_test(t, cholesky_solves);
    tcase_add_test(t, products_and_their_transposes);
    tcase_add_test(t, blocks_of_rows);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    const mla_suite_fn suites[] = {suite_linalg};
    return mla_test_main("linalg", suites, 1);
}
