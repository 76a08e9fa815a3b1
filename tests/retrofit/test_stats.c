/* Statistics: merging equals one pass, files read back bit for bit, damage is refused; moments by their definition. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/par.h"
#include "base/rng.h"
#include "harness.h"
#include "io/file.h"
#include "retrofit/solve/metric.h"
#include "retrofit/stats/divisor.h"
#include "retrofit/stats/moments.h"
#include "retrofit/stats/stats_file.h"

static mla_layer_kind KIND[2] = {MLA_LAYER_LINEAR, MLA_LAYER_FULL};

static mla_config small_config(bool gate)
{
    mla_config c = {.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 8, .layer_kind = KIND, .attn_gate = gate, .hidden = 16};
    c.rope.rot = 4;
    return c;
}

static void add_tokens(mla_layer_stats *l, size_t from, size_t to)
{
    for (size_t t = from; t < to; t++) {
        double w = 0.1 + mla_rng_unit(3, t), y[64];
        for (size_t i = 0; i < l->n; i++) y[i] = mla_rng_normal(4, t * l->n + i) + 5.0;
        if (l->tokens == 0) memcpy(l->shift, y, l->n * sizeof *y);
        for (size_t i = 0; i < l->n; i++) {
            l->sum[i] += w * (y[i] - l->shift[i]);
            for (size_t j = 0; j < l->n; j++) l->C[i * l->n + j] += w * (y[i] - l->shift[i]) * (y[j] - l->shift[j]);
        }
        l->wsum += w;
        l->tokens += 1;
    }
}

START_TEST(merging_equals_one_pass)
{
    mla_config c = small_config(true);
    mla_stats all, a, b;
    mla_err err;
    ck_ok(mla_stats_new(&all, &c, MLA_LAYOUT_N, NULL, &err));
    ck_ok(mla_stats_new(&a, &c, MLA_LAYOUT_N, NULL, &err));
    ck_ok(mla_stats_new(&b, &c, MLA_LAYOUT_N, NULL, &err));
    ck_assert_uint_eq(all.layers, 1);
    ck_assert_uint_eq(all.layer[0].n, 2 * (4 + 8));
    add_tokens(all.layer, 0, 50);
    add_tokens(a.layer, 0, 20);
    add_tokens(b.layer, 20, 50);
    a.tokens = 20, b.tokens = 30;
    ck_ok(mla_stats_merge(&a, &b, &err));
    size_t n = a.layer[0].n;
    double c1[24 * 24], c2[24 * 24], m1[24], m2[24];
    mla_stats_cov(all.layer, c1);
    mla_stats_cov(a.layer, c2);
    mla_stats_mean(all.layer, m1);
    mla_stats_mean(a.layer, m2);
    for (size_t i = 0; i < n * n; i++) ck_assert(fabs(c1[i] - c2[i]) < 1e-12);
    for (size_t i = 0; i < n; i++) ck_assert(fabs(m1[i] - m2[i]) < 1e-12);
    b.plain = true;
    ck_refused(mla_stats_merge(&a, &b, &err), MLA_EINVAL, "plain token weights");
    b.plain = false;
    b.base_digest[0] = 1;
    ck_refused(mla_stats_merge(&a, &b, &err), MLA_EINVAL, "different bases");
    mla_stats_free(&all);
    mla_stats_free(&a);
    mla_stats_free(&b);
}
END_TEST

START_TEST(files_read_back_and_damage_is_refused)
{
    mla_config c = small_config(true);
    mla_stats a, b;
    mla_err err;
    ck_ok(mla_stats_new(&a, &c, _i ? MLA_LAYOUT_P : MLA_LAYOUT_N, NULL, &err));
    add_tokens(a.layer, 0, 40);
    for (size_t g = 0; a.layer->divisor && g < 2; g++) a.layer->divisor[g] = 3.5 + (double)g;
    a.tokens = 40, a.rows = 1, a.row_tokens = 512, a.plain = true;
    char *dir = mla_test_tmpdir(), *path = mla_path_join(dir, "s.mlastats");
    ck_ok(mla_stats_write(&a, path, NULL, NULL, &err));
    ck_ok(mla_stats_read(&b, path, &err));
    mla_stats_array x[MLA_STATS_ARRAYS], y[MLA_STATS_ARRAYS];
    size_t arrays = mla_stats_arrays(a.layer, x);
    ck_assert(arrays == (_i ? 7 : 6) && mla_stats_arrays(b.layer, y) == arrays);
    for (size_t k = 0; k < arrays; k++) ck_assert_mem_eq(x[k].data, y[k].data, x[k].count * 8);
    ck_assert(b.layer[0].wsum == a.layer[0].wsum && b.rows == 1 && b.plain);
    mla_stats_free(&b);
    char *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, path, 1 << 20, &err));
    for (size_t at = 0; at < n; at += 1 + n / 97) { /* a flipped bit anywhere never reads as the same statistics silently */
        text[at] ^= 4;
        ck_ok(mla_file_write(path, text, n, &err));
        text[at] ^= 4;
        mla_status st = mla_stats_read(&b, path, &err);
        if (st == MLA_OK) { /* only a digit of the header can change without breaking the form */
            ck_assert_uint_lt(at, 2000);
            mla_stats_free(&b);
        }
    }
    for (size_t cut = 0; cut < n; cut += 1 + n / 53) {
        ck_ok(mla_file_write(path, text, cut, &err));
        ck_assert_int_ne(mla_stats_read(&b, path, &err), MLA_OK);
    }
    mla_free(text);
    mla_stats_free(&a);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
    mla_free(path);
}
END_TEST

enum { T = 40, H = 4, G = 2, d = 8 };

static float rnd(unsigned seed, size_t i) { return (float)mla_rng_normal(seed, i); }

/* Every moment of stats.h by its definition, in fp64. */
static void reference(const mla_row *r, const double *R, const mla_moment_opts *o, size_t dk, double *w, double *M, double *kap)
{
    static double p[H][T][T];
    memset(p, 0, sizeof p);
    memset(w, 0, T * sizeof *w);
    memset(M, 0, G * dk * dk * sizeof *M);
    for (size_t h = 0; h < H; h++)
        for (size_t t = 0; t < T; t++) {
            double sum = 0;
            for (size_t s = 0; s <= t; s++) {
                double l = 0;
                for (size_t i = 0; i < d; i++) l += (double)r->q_rot[(t * H + h) * d + i] * r->k_rot[(s * G + h / 2) * d + i];
                sum += p[h][t][s] = exp(l * o->attn_scale);
            }
            for (size_t s = 0; s <= t; s++) {
                p[h][t][s] /= sum;
                w[s] += p[h][t][s] * p[h][t][s];
            }
        }
    for (size_t h = 0; h < H; h++)
        for (size_t k = 0; k < H; k++) {
            kap[h * H + k] = 0;
            for (size_t t = 0; t < T; t++)
                for (size_t s = 0; s <= t; s++) kap[h * H + k] += p[h][t][s] * p[k][t][s];
        }
    for (size_t h = 0; h < H; h++)
        for (size_t t = 0; t < T; t++)
            for (size_t s = 0; s <= t; s++) {
                double e = 0, z[d];
                for (size_t i = 0; i < d; i++) {
                    double x = 0;
                    for (size_t j = 0; j < d; j++)
                        x += R[(h * d + i) * d + j] * ((double)r->v[(s * G + h / 2) * d + j] - r->o[(t * H + h) * d + j]);
                    e += x * x;
                }
                const float *q = (dk == d ? r->q_rot : r->q) + (t * H + h) * d + (d - dk);
                for (size_t i = 0; i < dk; i++) z[i] = q[i] * (o->gain ? o->gain[i] : 1);
                for (size_t i = 0; dk == d && i < o->rot / 2; i++) {
                    double a = o->inv_freq[i] * (double)s, x = z[i], y = z[i + o->rot / 2];
                    z[i] = x * cos(a) + y * sin(a);
                    z[i + o->rot / 2] = y * cos(a) - x * sin(a);
                }
                double c = p[h][t][s] * p[h][t][s] * e / d * (r->inv2 ? r->inv2[s * G + h / 2] : 1);
                for (size_t i = 0; i < dk; i++)
                    for (size_t j = 0; j < dk; j++) M[(h / 2 * dk + i) * dk + j] += c * z[i] * z[j];
            }
}

START_TEST(moments_follow_their_definitions)
{
    bool rebuild = _i == 1, p = _i == 2;
    float gain[4] = {0.5f, 2, 1, 3}, inv2[T * G];
    for (size_t i = 0; i < T * G; i++) inv2[i] = 0.2f + (float)mla_rng_unit(9, i);
    static float q[T * H * d], qr[T * H * d], kr[T * G * d], v[T * G * d], o[T * H * d];
    static double R[H * d * d];
    const double inv[2] = {1, 0.1};
    for (size_t i = 0; i < T * H * d; i++) q[i] = rnd(1, i), qr[i] = rnd(2, i), o[i] = 0.3f * rnd(3, i);
    for (size_t i = 0; i < T * G * d; i++) kr[i] = rnd(4, i), v[i] = rnd(5, i);
    for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j <= i; j++) R[(h * d + i) * d + j] = R[(h * d + j) * d + i] = mla_rng_normal(6, (h * d + i) * d + j);
    mla_config c = small_config(false);
    mla_stats s;
    mla_err err;
    ck_ok(mla_stats_new(&s, &c, rebuild ? MLA_LAYOUT_REBUILD : p ? MLA_LAYOUT_P : MLA_LAYOUT_N, NULL, &err));
    mla_layer_stats *l = s.layer;
    mla_row row = {.T = T, .q = q, .q_rot = qr, .k_rot = kr, .v = v, .o = o, .inv2 = p ? inv2 : NULL};
    mla_moment_opts mo = {.attn_scale = 0.35, .rot = 4, .inv_freq = inv, .rope_gain = 1, .gain = p ? gain : NULL};
    double w[T], wr[T], M[G * d * d], kap[H * H];
    double first[G * d * d];
    for (size_t threads = 1; threads <= 3; threads++) {
        mla_pool *pool;
        mla_moments *m;
        ck_ok(mla_pool_new(&pool, threads, &err));
        ck_ok(mla_moments_new(&m, l, 64, pool, &err));
        memset(l->M, 0, G * l->dk * l->dk * 8);
        memset(l->kappa, 0, H * H * 8);
        mla_moments_add(m, l, &row, R, &mo, w);
        if (threads == 1) memcpy(first, l->M, G * l->dk * l->dk * 8);
        else ck_assert_mem_eq(first, l->M, G * l->dk * l->dk * 8);
        mla_moments_free(m);
        mla_pool_free(pool);
    }
    reference(&row, R, &mo, l->dk, wr, M, kap);
    double mm = 0;
    for (size_t i = 0; i < G * l->dk * l->dk; i++) mm = fmax(mm, fabs(M[i]));
    /* fp32 products of length T and d: relative error below (T + d) 2^-22 of the largest entry */
    if (!rebuild)
        for (size_t i = 0; i < G * l->dk * l->dk; i++) ck_assert_msg(fabs(l->M[i] - M[i]) <= 2e-5 * mm, "M[%zu] %.9g %.9g", i, l->M[i], M[i]);
    else { /* sampled keys: the trace is exact (rotations keep lengths), the rest within the sampling error of 160 queries */
        double num = 0, den = 0, tr = 0, tr0 = 0;
        for (size_t i = 0; i < G * d * d; i++) num += (l->M[i] - M[i]) * (l->M[i] - M[i]), den += M[i] * M[i];
        for (size_t g = 0; g < G; g++)
            for (size_t i = 0; i < d; i++) tr += l->M[(g * d + i) * d + i], tr0 += M[(g * d + i) * d + i];
        ck_assert_msg(fabs(tr - tr0) <= 2e-5 * tr0, "trace %.9g %.9g", tr, tr0);
        ck_assert_msg(sqrt(num / den) <= 0.1, "sampling error %.3g", sqrt(num / den));
    }
    for (size_t i = 0; i < T; i++) ck_assert(fabs(w[i] - wr[i]) <= 1e-5 * wr[0]);
    for (size_t i = 0; i < H * H; i++) ck_assert(fabs(l->kappa[i] - kap[i]) <= 1e-5 * kap[0]);
    mla_stats_free(&s);
}
END_TEST

/* 1 / rms^2 and the geometric mean by their definitions; sums of two runs add. */
START_TEST(divisors_of_keys)
{
    mla_config c = small_config(false);
    mla_stats a, b;
    mla_err err;
    static float k[T * G * d], inv2[T * G], center[G];
    double logs[G] = {0};
    ck_ok(mla_stats_new(&a, &c, MLA_LAYOUT_P, NULL, &err));
    ck_ok(mla_stats_new(&b, &c, MLA_LAYOUT_P, NULL, &err));
    for (size_t i = 0; i < T * G * d; i++) k[i] = rnd(8, i) * (i / d % G ? 3 : 0.25f);
    mla_divisor_add(a.layer, inv2, k, 10, 1e-6);
    mla_divisor_add(b.layer, inv2, k + 10 * G * d, T - 10, 1e-6);
    a.layer->tokens = a.tokens = 10, b.layer->tokens = b.tokens = T - 10;
    for (size_t t = 0; t < T; t++)
        for (size_t g = 0; g < G; g++) {
            double sum = 0;
            for (size_t i = 0; i < d; i++) sum += (double)k[(t * G + g) * d + i] * k[(t * G + g) * d + i];
            logs[g] += log2(sqrt(sum / d + 1e-6));
            if (t >= 10) ck_assert(fabs((double)inv2[(t - 10) * G + g] * (sum / d + 1e-6) - 1) < 1e-6);
        }
    ck_ok(mla_stats_merge(&a, &b, &err));
    mla_divisor_centers(a.layer, center);
    for (size_t g = 0; g < G; g++) ck_assert(fabs(center[g] / exp2(logs[g] / T) - 1) < 1e-6);
    mla_stats_free(&a);
    ck_ok(mla_stats_new(&a, &c, MLA_LAYOUT_N, NULL, &err));
    ck_refused(mla_stats_merge(&b, &a, &err), MLA_EINVAL, "different layouts");
    mla_stats_free(&a);
    mla_stats_free(&b);
}
END_TEST

/* R R = E[gamma_h gamma_h^T] o (W_h^T W_h): heads under one block of moments and under one a KV group, gated and not. The eigenproblem
 * proves itself to 64 d u in residual and in orthogonality; R R holds the first once, the second twice, and as much is clipped below 0. */
START_TEST(roots_of_the_value_metric)
{
    enum { D = 37, N = 3 };
    bool gated = _i & 1, big = _i & 2;
    mla_config c = small_config(gated);
    if (big) c.heads = 10, c.head_dim = 256; /* 2560 dims: a block per KV group */
    mla_stats s;
    mla_err err;
    ck_ok(mla_stats_new(&s, &c, MLA_LAYOUT_N, NULL, &err));
    mla_layer_stats *l = s.layer;
    size_t w1 = l->d, w = l->H * w1, dim = l->gate_dim;
    ck_assert_uint_eq(l->gate_blocks, gated ? big ? 2 : 1 : 0);
    float *wo = mla_alloc_raw(D, w, sizeof *wo), *gamma = mla_alloc_raw(T, w, sizeof *gamma);
    double *R = mla_alloc_raw(w1, w1, sizeof *R);
    for (size_t i = 0; i < D * w; i++) wo[i] = (float)mla_rng_normal(11, i);
    for (size_t i = 0; i < N * w; i++) gamma[i] = gated ? (float)mla_rng_unit(12, i) : 1;
    l->tokens = N;
    for (size_t b = 0; b < l->gate_blocks; b++)
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j < dim; j++)
                for (size_t t = 0; t < N; t++) l->GG[(b * dim + i) * dim + j] += (double)gamma[t * w + b * dim + i] * gamma[t * w + b * dim + j];
    for (size_t h = 0; h < l->H; h += big ? 7 : 1) {
        double far = 0, size = 0, next = 0;
        ck_ok(mla_metric_root(R, wo, D, h, l, &err));
        for (size_t i = 0; i < w1; i++)
            for (size_t j = 0; j < w1; j++) {
                double f = 0, g = 0, rr = 0;
                for (size_t r = 0; r < D; r++) f += (double)wo[r * w + h * w1 + i] * wo[r * w + h * w1 + j];
                for (size_t t = 0; t < N; t++) g += (double)gamma[t * w + h * w1 + i] * gamma[t * w + h * w1 + j] / N;
                for (size_t k = 0; k < w1; k++) rr += R[i * w1 + k] * R[k * w1 + j];
                far += pow(rr - f * g, 2), size += pow(f * g, 2);
                next += pow(rr - f * g * (1 + 1e-6 * (i == j)), 2); /* negative control */
            }
        double tol = 4 * 64 * (double)w1 * 0x1p-53 * sqrt(size);
        ck_assert(sqrt(far) <= tol && sqrt(next) > tol);
    }
    mla_free(wo), mla_free(gamma), mla_free(R);
    mla_stats_free(&s);
}
END_TEST

Suite *suite_stats(void);
Suite *suite_stats(void)
{
    Suite *s = suite_create("stats");
    TCase *c = tcase_create("stats");
    tcase_add_test(c, merging_equals_one_pass);
    tcase_add_loop_test(c, files_read_back_and_damage_is_refused, 0, 2);
    tcase_add_loop_test(c, moments_follow_their_definitions, 0, 3);
    tcase_add_test(c, divisors_of_keys);
    tcase_add_loop_test(c, roots_of_the_value_metric, 0, 4);
    suite_add_tcase(s, c);
    return s;
}
