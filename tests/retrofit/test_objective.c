/* The published objectives against their definitions, computed token by token and with a Jacobi solver of its own. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "retrofit/build/recipe.h"
#include "retrofit/solve/solve.h"

enum { T = 80, X = 20, G = 2, d = 4 }; /* tokens, width of x, KV heads, head dim */

/* Cyclic Jacobi: a (n, n) symmetric -> w descending, column k of v the k-th eigenvector. */
static void jacobi(double *a, double *v, double *w, size_t n)
{
    double least = 0; /* what off the diagonal is nothing beside it: 2^-30 roundings */
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) v[i * n + j] = i == j;
    for (size_t i = 0; i < n; i++) least = fmax(least, 0x1p-83 * fabs(a[i * n + i]));
    for (int sweep = 0; sweep < 60; sweep++)
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                if (fabs(a[p * n + q]) <= least) continue;
                double th = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
                double t = (th < 0 ? -1 : 1) / (fabs(th) + sqrt(th * th + 1)), c = 1 / sqrt(t * t + 1), s = t * c;
                for (size_t k = 0; k < n; k++) {
                    double x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y, a[k * n + q] = s * x + c * y;
                }
                for (size_t k = 0; k < n; k++) {
                    double x = a[p * n + k], y = a[q * n + k], vx = v[k * n + p], vy = v[k * n + q];
                    a[p * n + k] = c * x - s * y, a[q * n + k] = s * x + c * y;
                    v[k * n + p] = c * vx - s * vy, v[k * n + q] = s * vx + c * vy;
                }
            }
    for (size_t i = 0; i < n; i++) w[i] = a[i * n + i];
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++)
            if (w[j] > w[i]) {
                double t = w[i];
                w[i] = w[j], w[j] = t;
                for (size_t k = 0; k < n; k++) t = v[k * n + i], v[k * n + i] = v[k * n + j], v[k * n + j] = t;
            }
}

typedef struct {
    size_t dk, n, keys;
    double x[T][X], W[G * 2 * d][X], y[T][G * 2 * d], b[G * 2 * d];
} layer;

static void make(layer *L, mla_layer_stats *l, mla_projections *p, size_t dk, bool bias)
{
    *L = (layer){.dk = dk, .n = G * (dk + d), .keys = G * dk};
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < X; i++) L->x[t][i] = mla_rng_normal(1, t * X + i) * exp(-0.2 * (double)i) + (i == 3 ? 1.5 : 0);
    for (size_t i = 0; i < L->n; i++) {
        L->b[i] = bias ? mla_rng_normal(9, i) : 0;
        for (size_t j = 0; j < X; j++) L->W[i][j] = mla_rng_normal(2, i * X + j) * (i < L->keys ? 2.5 : 0.7) + (i % 3 ? 0 : 0.6);
    }
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < L->n; i++) {
            L->y[t][i] = L->b[i];
            for (size_t j = 0; j < X; j++) L->y[t][i] += L->W[i][j] * L->x[t][j];
        }
    size_t n = L->n;
    *l = (mla_layer_stats){.layer = 1, .H = 2 * G, .G = G, .d = d, .dk = dk, .n = n, .tokens = T, .wsum = T};
    l->shift = mla_alloc(n, 1, 8);
    l->sum = mla_alloc(n, 1, 8);
    l->C = mla_alloc(n, n, 8);
    *p = (mla_projections){.in = X, .kv = mla_alloc(n, X, 8), .mu = mla_alloc(n, 1, 8)};
    ck_assert(l->shift && l->sum && l->C && p->kv && p->mu);
    for (size_t i = 0; i < n; i++) l->shift[i] = 0.3 * (double)i;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < n; i++) {
            l->sum[i] += L->y[t][i] - l->shift[i];
            for (size_t j = 0; j < n; j++) l->C[i * n + j] += (L->y[t][i] - l->shift[i]) * (L->y[t][j] - l->shift[j]);
        }
    for (size_t i = 0; i < n; i++) {
        p->mu[i] = L->b[i];
        memcpy(p->kv + i * X, L->W[i], sizeof L->W[i]);
    }
}

static void drop(mla_layer_stats *l, mla_projections *p)
{
    mla_free(l->shift);
    mla_free(l->sum);
    mla_free(l->C);
    mla_projections_free(p);
}

/* P (n, n) = projector on the r leading left singular vectors of rows [b, e) of a (n, cols), zero elsewhere. */
static void svd_projector(double *P, const double *a, size_t n, size_t cols, size_t b, size_t e, size_t r)
{
    size_t m = e - b;
    double A[64 * 64], V[64 * 64], w[64];
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < m; j++) {
            A[i * m + j] = 0;
            for (size_t k = 0; k < cols; k++) A[i * m + j] += a[(b + i) * cols + k] * a[(b + j) * cols + k];
        }
    jacobi(A, V, w, m);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < m; j++)
            for (size_t k = 0; k < r; k++) P[(b + i) * n + b + j] += V[i * m + k] * V[j * m + k];
}

/* CARE's W^ of rows [b, e): C^-1/2 U_r U_r^T C^1/2 W with C = X^T X / T, U the left singular vectors of C^1/2 W. */
static void care(double *What /* (n, X) */, const layer *L, size_t b, size_t e, size_t r)
{
    static double C[X * X], V[X * X], w[X], Rt[X * X], Ri[X * X], M[X * 64], A[X * X], U[X * X], s[X];
    size_t m = e - b;
    for (size_t i = 0; i < X; i++)
        for (size_t j = 0; j < X; j++) {
            C[i * X + j] = 0;
            for (size_t t = 0; t < T; t++) C[i * X + j] += L->x[t][i] * L->x[t][j] / T;
        }
    jacobi(C, V, w, X);
    for (size_t i = 0; i < X; i++)
        for (size_t j = 0; j < X; j++) {
            Rt[i * X + j] = Ri[i * X + j] = 0;
            for (size_t k = 0; k < X; k++) {
                Rt[i * X + j] += V[i * X + k] * V[j * X + k] * sqrt(w[k]);
                Ri[i * X + j] += V[i * X + k] * V[j * X + k] / sqrt(w[k]);
            }
        }
    for (size_t i = 0; i < X; i++)
        for (size_t j = 0; j < m; j++) {
            M[i * m + j] = 0;
            for (size_t k = 0; k < X; k++) M[i * m + j] += Rt[i * X + k] * L->W[b + j][k];
        }
    for (size_t i = 0; i < X; i++)
        for (size_t j = 0; j < X; j++) {
            A[i * X + j] = 0;
            for (size_t k = 0; k < m; k++) A[i * X + j] += M[i * m + k] * M[j * m + k];
        }
    jacobi(A, U, s, X);
    for (size_t j = 0; j < m; j++) {
        double c[X] = {0}, z[X] = {0};
        for (size_t k = 0; k < r; k++)
            for (size_t i = 0; i < X; i++) c[k] += U[i * X + k] * M[i * m + j];
        for (size_t i = 0; i < X; i++)
            for (size_t k = 0; k < r; k++) z[i] += U[i * X + k] * c[k];
        for (size_t i = 0; i < X; i++) {
            What[(b + j) * X + i] = 0;
            for (size_t k = 0; k < X; k++) What[(b + j) * X + i] += Ri[i * X + k] * z[k];
        }
    }
}

/* What the method's papers make of token t's features at rank r (values over keys and values together). */
static void expected(double *out, const layer *L, mla_objective o, size_t r, size_t t)
{
    static double P[64 * 64], What[64 * X], Y[64 * T];
    size_t n = L->n, rk = (r + 1) / 2 < L->keys ? (r + 1) / 2 : L->keys, rv = r - rk;
    memset(P, 0, sizeof P);
    if (o == MLA_OBJ_COV_SEPARATE) {
        care(What, L, 0, L->keys, rk);
        care(What, L, L->keys, n, rv);
        for (size_t i = 0; i < n; i++) {
            out[i] = 0;
            for (size_t j = 0; j < X; j++) out[i] += What[i * X + j] * L->x[t][j];
        }
        return;
    }
    double k2 = 0, v2 = 0, s = 1;
    if (o == MLA_OBJ_BALANCED_PCA) {
        for (size_t u = 0; u < T; u++)
            for (size_t i = 0; i < n; i++) *(i < L->keys ? &k2 : &v2) += L->y[u][i] * L->y[u][i];
        s = sqrt(k2 / v2); /* keys divided by s, multiplied again after decoding */
        for (size_t i = 0; i < n; i++)
            for (size_t u = 0; u < T; u++) Y[i * T + u] = L->y[u][i] / (i < L->keys ? s : 1);
        svd_projector(P, Y, n, T, 0, n, r);
    } else if (o == MLA_OBJ_JOINT_SVD) {
        svd_projector(P, L->W[0], n, X, 0, n, r);
    } else {
        svd_projector(P, L->W[0], n, X, 0, L->keys, rk);
        svd_projector(P, L->W[0], n, X, L->keys, n, rv);
    }
    bool weights = o == MLA_OBJ_SVD || o == MLA_OBJ_JOINT_SVD;
    for (size_t i = 0; i < n; i++) {
        out[i] = weights ? L->b[i] : 0;
        for (size_t j = 0; j < n; j++)
            out[i] += (i < L->keys ? s : 1) * P[i * n + j] * (L->y[t][j] - (weights ? L->b[j] : 0)) / (j < L->keys ? s : 1);
    }
}

START_TEST(published_definitions)
{
    static layer L;
    static const size_t RANK[] = {1, 5, 10, 13};
    mla_objective o = (mla_objective)(1 + _i / 2);
    bool rebuild = _i % 2;
    mla_layer_stats l;
    mla_projections p;
    mla_solution s;
    mla_err err;
    make(&L, &l, &p, rebuild ? d : d - 1, mla_objective_weights(o));
    mla_solve_opts so = {.balance = 1, .groups = 1, .objective = o, .proj = &p};
    ck_ok(mla_solve_layer(&s, &l, rebuild ? MLA_LAYOUT_REBUILD : MLA_LAYOUT_N, NULL, 0, &so, &err));
    for (size_t q = 0; q < sizeof RANK / sizeof *RANK; q++) {
        mla_factors f;
        size_t r = RANK[q], n = L.n;
        ck_ok(mla_solution_factors(&f, &s, r, false, NULL, &err));
        double worst = 0, scale = 0;
        for (size_t t = 0; t < T; t++) {
            double want[G * 2 * d], c[G * 2 * d] = {0};
            expected(want, &L, o, r, t);
            for (size_t k = 0; k < r; k++)
                for (size_t j = 0; j < n; j++) c[k] += f.E[k * n + j] * (L.y[t][j] - f.mu[j]);
            for (size_t i = 0; i < n; i++) {
                double got = f.mu[i];
                for (size_t k = 0; k < r; k++) got += f.D[i * r + k] * c[k];
                worst = fmax(worst, fabs(got - want[i]));
                scale = fmax(scale, fabs(L.y[t][i]));
            }
        }
        /* f32 factors: n + r products of relative error 2^-24, with room for the spread of the entries */
        ck_assert_msg(worst <= (double)(n + r) * 0x1p-22 * scale, "%s rank %zu: off by %.3g of %.3g", mla_objective_name(o), r, worst, scale);
        mla_factors_free(&f);
    }
    if (mla_objective_separate(o)) /* no direction mixes the two sides */
        for (size_t i = 0; i < s.n; i++) {
            double k = 0, v = 0;
            for (size_t j = 0; j < s.n; j++) *(j < s.keys ? &k : &v) += fabs(s.E[i * s.n + j]) + fabs(s.D[j * s.n + i]);
            ck_assert(k == 0 || v == 0);
        }
    mla_solution_free(&s);
    drop(&l, &p);
}
END_TEST

/* Effective rows of the bundled model: gains on the keys' rows, NoPE dims only, values as they are. */
START_TEST(projections_of_a_model)
{
    mla_model *m;
    mla_stats st;
    mla_projections p;
    mla_mat wk, wv;
    mla_err err;
    float *gain, row[4096];
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    const mla_config *c = mla_model_config(m);
    ck_ok(mla_stats_new(&st, c, MLA_LAYOUT_N, NULL, &err));
    const mla_layer_stats *l = &st.layer[1];
    ck_ok(mla_projections_read(&p, m, l, &err));
    ck_assert_uint_eq(p.in, c->hidden);
    ck_ok(mla_model_mat(m, MLA_W_K, l->layer, &wk, &err));
    ck_ok(mla_model_mat(m, MLA_W_V, l->layer, &wv, &err));
    ck_ok(mla_model_vec(m, MLA_W_K_NORM, l->layer, c->head_dim, &gain, &err));
    for (size_t i = 0; i < l->n; i++) {
        bool key = i < l->G * l->dk;
        size_t dim = key ? c->rope.rot + i % l->dk : (i - l->G * l->dk) % l->d, g = key ? i / l->dk : (i - l->G * l->dk) / l->d;
        ck_ok(mla_mat_rows(key ? &wk : &wv, g * l->d + dim, 1, row, &err));
        for (size_t j = 0; j < p.in; j++) ck_assert(p.kv[i * p.in + j] == (key ? (double)gain[dim] * row[j] : (double)row[j]));
        ck_assert(p.mu[i] == 0);
    }
    mla_free(gain);
    mla_projections_free(&p);
    mla_stats_free(&st);
    mla_model_close(m);
}
END_TEST

START_TEST(names_and_refusals)
{
    mla_layer_kind kind[1] = {MLA_LAYER_FULL};
    mla_config c = {.layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 8, .layer_kind = kind, .max_pos = 4096};
    c.rope.rot = 4;
    mla_err err;
    mla_objective o;
    for (int i = MLA_OBJ_OURS; i <= MLA_OBJ_BALANCED_PCA; i++) {
        ck_assert(mla_objective_parse(mla_objective_name((mla_objective)i), &o) && (int)o == i);
        ck_assert(mla_objective_plain(o) == (i != MLA_OBJ_OURS));
    }
    ck_assert(!mla_objective_parse("pca", &o));
    mla_recipe r = mla_recipe_default();
    r.objective = MLA_OBJ_SVD;
    r.balance = 2;
    ck_refused(mla_recipe_resolve(&r, &c, &err), MLA_EINVAL, "balance belongs to objective ours");
    r.balance = 0;
    r.allocation = MLA_ALLOC_SPECTRUM;
    ck_refused(mla_recipe_resolve(&r, &c, &err), MLA_EINVAL, "one rank for all layers");
    r.allocation = MLA_ALLOC_UNIFORM;
    ck_ok(mla_recipe_resolve(&r, &c, &err));
    ck_assert(r.balance == 1);
    static layer L;
    mla_layer_stats l;
    mla_projections p;
    mla_solution s;
    make(&L, &l, &p, d, false);
    memset(l.C, 0, l.n * l.n * 8); /* no energy at all */
    memset(l.sum, 0, l.n * 8);
    memset(l.shift, 0, l.n * 8);
    mla_solve_opts so = {.balance = 1, .groups = 1, .objective = MLA_OBJ_BALANCED_PCA};
    ck_refused(mla_solve_layer(&s, &l, MLA_LAYOUT_REBUILD, NULL, 0, &so, &err), MLA_EFORMAT, "layer 1: balanced PCA");
    drop(&l, &p);
}
END_TEST

Suite *suite_objective(void);
Suite *suite_objective(void)
{
    Suite *s = suite_create("objective");
    TCase *c = tcase_create("objective");
    tcase_add_loop_test(c, published_definitions, 0, 8);
    tcase_add_test(c, projections_of_a_model);
    tcase_add_test(c, names_and_refusals);
    suite_add_tcase(s, c);
    return s;
}
