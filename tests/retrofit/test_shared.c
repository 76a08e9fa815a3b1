/* The shared-rotary fit on a synthetic layer without key norms, where everything is linear in x: as many shared keys as KV
 * heads and a latent as wide as x leave no loss; fewer lose; gradients are the derivatives of the loss. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "retrofit/shared_rotary/shared_local.h"
#include "retrofit/shared_rotary/shared_solve.h"

enum { H = 4, G = 2, d = 10, rot = 4, D = 24, T = 40, ROWS = 6, HALF = rot / 2 };

typedef struct {
    mla_config c;
    double inv[HALF];
    float cos[T * HALF], sin[T * HALF], WW[H * d * H * d];
    mla_shared_problem p;
    mla_shared_row row[ROWS];
    float *buf[ROWS];
} lab;

static float normal(uint64_t seed, size_t i) { return (float)mla_rng_normal(seed, i); }

/* o (T, H, d) in double, key by key: the oracle. */
static void attend(const lab *l, const mla_shared_row *r)
{
    for (size_t h = 0; h < H; h++)
        for (size_t t = 0; t < T; t++) {
            double p[T], sum = 0, mx = -1e300, o[d] = {0};
            for (size_t s = 0; s <= t; s++) {
                const float *q = r->q + (t * H + h) * d, *k = r->k + (s * G + h / 2) * d;
                p[s] = 0;
                for (size_t i = rot; i < d; i++) p[s] += (double)q[i] * k[i];
                for (size_t j = 0; j < HALF; j++) {
                    double a = (double)(t - s) * l->inv[j]; /* q turned by t, k by s */
                    double re = (double)q[j] * k[j] + (double)q[j + HALF] * k[j + HALF], im = (double)q[j] * k[j + HALF] - (double)q[j + HALF] * k[j];
                    p[s] += re * cos(a) + im * sin(a);
                }
                p[s] *= l->p.scale;
                mx = p[s] > mx ? p[s] : mx;
            }
            for (size_t s = 0; s <= t; s++) sum += p[s] = exp(p[s] - mx);
            for (size_t s = 0; s <= t; s++)
                for (size_t i = 0; i < d; i++) o[i] += p[s] / sum * r->v[(s * G + h / 2) * d + i];
            for (size_t i = 0; i < d; i++) r->o[(t * H + h) * d + i] = (float)o[i];
        }
}

static void open_lab(lab *l)
{
    float Wk[G * d * D], Wv[G * d * D], Wq[H * d * D], Wo[H * d * H * d];
    memset(l, 0, sizeof *l);
    l->c = (mla_config){.heads = H, .kv_heads = G, .head_dim = d, .hidden = D, .layers = 1, .rope = {.rot = rot, .attention_factor = 1}};
    for (size_t i = 0; i < G * d * D; i++) Wk[i] = normal(1, i) / 5, Wv[i] = normal(2, i) / 5;
    for (size_t i = 0; i < H * d * D; i++) Wq[i] = normal(3, i) / 3;
    for (size_t i = 0; i < H * d * H * d; i++) Wo[i] = normal(4, i) / 6;
    for (size_t i = 0; i < H * d; i++)
        for (size_t j = 0; j < H * d; j++)
            for (size_t k = 0; k < H * d; k++) l->WW[i * H * d + j] += Wo[k * H * d + i] * Wo[k * H * d + j];
    l->inv[0] = 1, l->inv[1] = 0.05;
    for (size_t t = 0; t < T; t++)
        for (size_t j = 0; j < HALF; j++) l->cos[t * HALF + j] = (float)cos((double)t * l->inv[j]), l->sin[t * HALF + j] = (float)sin((double)t * l->inv[j]);
    l->p = (mla_shared_problem){.G = G, .max_T = T, .scale = (float)(1 / sqrt(d)), .cos = l->cos, .sin = l->sin, .WW = l->WW};
    for (size_t n = 0; n < ROWS; n++) {
        float *b = l->buf[n] = mla_alloc(T, D + 3 * H * d + 2 * G * d, sizeof *b);
        mla_shared_row *r = &l->row[n];
        *r = (mla_shared_row){.T = T, .x = b, .q = b + T * D, .k = b + T * (D + H * d), .v = b + T * (D + H * d + G * d), .o = b + T * (D + H * d + 2 * G * d),
                              .gamma = b + T * (D + 2 * H * d + 2 * G * d)};
        for (size_t i = 0; i < T * D; i++) r->x[i] = normal(10 + n, i) + (i % D == 3 ? 2 : 0);
        for (size_t i = 0; i < T * H * d; i++) r->gamma[i] = 1 / (1 + expf(-normal(30 + n, i)));
        for (size_t t = 0; t < T; t++) {
            for (size_t o = 0; o < H * d; o++)
                for (size_t i = 0; i < D; i++) r->q[t * H * d + o] += Wq[o * D + i] * r->x[t * D + i];
            for (size_t o = 0; o < G * d; o++)
                for (size_t i = 0; i < D; i++) {
                    r->k[t * G * d + o] += Wk[o * D + i] * r->x[t * D + i];
                    r->v[t * G * d + o] += Wv[o * D + i] * r->x[t * D + i];
                }
        }
        attend(l, r);
    }
}

static void close_lab(lab *l)
{
    for (size_t n = 0; n < ROWS; n++) mla_free(l->buf[n]);
}

static double loss(const lab *l, const mla_shared *s)
{
    mla_err err = {0};
    mla_shared_work *w;
    double sum = 0, all = 0, e;
    ck_ok(mla_shared_work_new(&w, &l->p, s, &err));
    for (size_t n = 0; n < ROWS; n++) {
        sum += mla_shared_loss(&l->p, w, &l->row[n], s, &e, NULL);
        all += e;
    }
    mla_shared_work_free(w);
    return sum / all;
}

static void fit(const lab *l, mla_shared *s, size_t r, size_t R, double kept[G])
{
    mla_err err = {0};
    mla_shared_moments m;
    double buf[D];
    ck_ok(mla_shared_new(s, &l->c, r, R, &err));
    ck_ok(mla_shared_moments_new(&m, &l->c, T, &err));
    for (size_t n = 0; n < ROWS; n++) ck_ok(mla_shared_moments_add(&m, &l->row[n], &l->p, true, NULL, &err));
    mla_shared_solve_opts o = {.balance = 1, .inv_freq = l->inv, .wo_gram = l->WW};
    ck_ok(mla_shared_solve(s, &m, &o, kept, &err));
    double before = loss(l, s);
    mla_shared_gauge(s, &m, buf);
    ck_assert_msg(fabs(loss(l, s) - before) < 1e-5 * before + 1e-9, "gauge: %g and %g", loss(l, s), before);
    mla_shared_moments_free(&m);
}

START_TEST(as_many_keys_as_heads_are_exact)
{
    lab *l = mla_alloc(1, 1, sizeof *l);
    mla_shared s;
    double kept[G], two, one, few;
    open_lab(l);
    fit(l, &s, D, G, kept);
    two = loss(l, &s);
    mla_shared_free(&s);
    ck_assert_msg(two < 1e-8, "R = G, full latent: loss %g", two); /* f32 maps: (a few 2^-24)^2 times the depth of the sums; ridge 1e-7 squared */
    ck_assert(fabs(kept[G - 1] - 1) < 1e-9 && kept[0] > 0.2 && kept[0] < 0.999);
    fit(l, &s, D, 1, kept);
    one = loss(l, &s);
    mla_shared_free(&s);
    fit(l, &s, D / 2, G, kept);
    few = loss(l, &s);
    mla_shared_free(&s);
    ck_assert_msg(one > 1e-4 && few > 1e-4 && one < 1 && few < 1, "R = 1: %g; half the rank: %g", one, few);
    close_lab(l);
    mla_free(l);
}
END_TEST

/* <gradient, direction> against the central difference of the loss, part by part, at a point that is no minimum. */
START_TEST(gradient)
{
    mla_err err = {0};
    lab *l = mla_alloc(1, 1, sizeof *l);
    mla_shared s, g, at;
    mla_shared_work *w;
    double kept[G];
    size_t R = (size_t)_i + 1;
    open_lab(l);
    fit(l, &s, 9, R, kept);
    for (size_t i = 0; i < mla_shared_floats(&s); i++) s.E[i] += 0.02f * normal(50, i);
    ck_ok(mla_shared_copy(&g, &s, &err));
    ck_ok(mla_shared_copy(&at, &s, &err));
    ck_ok(mla_shared_work_new(&w, &l->p, &s, &err));
    double base = mla_shared_loss(&l->p, w, &l->row[1], &s, NULL, &g);
    for (size_t k = 0, from = 0; k < MLA_SHARED_PARTS; from += mla_shared_part(&s, k++)) {
        double h = k == 5 ? 0.5 : 2e-3, slope = 0, side[2];
        for (int e = 0; e < 2; e++) {
            memcpy(at.E, s.E, mla_shared_floats(&s) * sizeof *s.E);
            for (size_t i = 0; i < mla_shared_part(&s, k); i++) at.E[from + i] += (float)((e ? h : -h) * normal(60 + k, i));
            side[e] = mla_shared_loss(&l->p, w, &l->row[1], &at, NULL, NULL);
        }
        for (size_t i = 0; i < mla_shared_part(&s, k); i++) slope += (double)g.E[from + i] * normal(60 + k, i);
        double diff = (side[1] - side[0]) / (2 * h), tol = 1e-2 * fabs(slope) + 0x1p-20 * base / h; /* curvature (none in mu: quadratic); f32 sums */
        ck_assert_msg(fabs(diff - slope) <= tol && fabs(slope) > 4 * tol, "R %zu part %zu: derivative %g, gradient %g, allowed %g", R, k, diff, slope, tol);
    }
    mla_shared_work_free(w);
    mla_shared_free(&s), mla_shared_free(&g), mla_shared_free(&at);
    close_lab(l);
    mla_free(l);
}
END_TEST

Suite *suite_shared(void);
Suite *suite_shared(void)
{
    Suite *s = suite_create("shared-rotary");
    TCase *t = tcase_create("shared-rotary");
    tcase_add_test(t, as_many_keys_as_heads_are_exact);
    tcase_add_loop_test(t, gradient, 0, G);
    suite_add_tcase(s, t);
    return s;
}
