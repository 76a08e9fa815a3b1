/* Local refinement: the loss and its gradients against a direct fp64 computation and central differences, exact factors,
 * the gauge, rounding, pieces on disk, and equal bits for any number of threads on the tiny hybrid. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "io/file.h"
#include "retrofit/refine/refine.h"
#include "retrofit/refine/piece.h"
#include "synth.h"
#include "tiny_refiner.h"

enum { T = 13, H = 4, G = 2, d = 8, ROT = 4, HD = H * d, MAXF = G * 2 * d };

typedef struct {
    mla_local p;
    mla_local_row row;
    float cos[T * d], sin[T * d], WW[HD * HD], q[T * HD], y[T * MAXF], kr[T * G * ROT], gamma[T * HD], o[T * HD], inv_rms[T * G], gain[d];
    double W[HD * HD];
} lab;

static void fill(float *x, size_t n, unsigned seed, double scale)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * mla_rng_normal(seed, i));
}

/* A random layer; the target is computed by mla_local_target and checked in a test of its own. */
static bool beside(mla_layout l) { return l == MLA_LAYOUT_N || l == MLA_LAYOUT_P; }

typedef struct {
    mla_layout layout;
    size_t groups, phase, stride, rot;
    bool gated;
} kind;

static void lab_new(lab *b, const kind *of)
{
    memset(b, 0, sizeof *b);
    mla_layout layout = of->layout;
    size_t rot = of->rot, groups = of->groups, dk = beside(layout) ? d - rot : d, n = G / groups * (dk + d);
    b->p = (mla_local){.layout = layout, .H = H, .G = G, .d = d, .rot = rot, .groups = groups, .n = n, .max_T = T,
                       .scale = 0.7f, .cos = b->cos, .sin = b->sin, .WW = b->WW};
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < rot / 2; i++) {
            b->cos[t * (rot / 2) + i] = (float)(1.1 * cos((double)t / (double)(i + 1))); /* 1.1: an attention factor */
            b->sin[t * (rot / 2) + i] = (float)(1.1 * sin((double)t / (double)(i + 1)));
        }
    for (size_t i = 0; i < HD * HD; i++) b->W[i] = mla_rng_normal(1, i) / sqrt(HD);
    for (size_t i = 0; i < HD; i++)
        for (size_t j = 0; j < HD; j++) {
            double s = 0;
            for (size_t k = 0; k < HD; k++) s += b->W[k * HD + i] * b->W[k * HD + j];
            b->WW[i * HD + j] = (float)s;
        }
    fill(b->q, T * HD, 2, 1);
    fill(b->y, T * groups * n, 3, 1);
    fill(b->kr, T * G * ROT, 4, 1);
    for (size_t i = 0; i < T * HD; i++) b->gamma[i] = (float)mla_rng_unit(5, i);
    for (size_t i = 0; i < T * G; i++) b->inv_rms[i] = (float)(0.5 + mla_rng_unit(15, i));
    for (size_t i = 0; i < d; i++) b->gain[i] = (float)(0.5 + mla_rng_unit(16, i));
    if (layout == MLA_LAYOUT_P) b->p.gain = b->gain;
    b->row = (mla_local_row){.T = T, .q = b->q, .y = b->y, .k_rot = beside(layout) ? b->kr : NULL, .inv_rms = layout == MLA_LAYOUT_P ? b->inv_rms : NULL,
                             .gamma = of->gated ? b->gamma : NULL, .o = b->o, .stride = 1};
    mla_local_work *w;
    mla_err err;
    ck_ok(mla_local_work_new(&w, &b->p, 1, 0, &err));
    mla_local_target(b->o, &b->p, w, &b->row);
    mla_local_work_free(w);
}

/* x turned by position s: dims [0, rot), attention factor included. */
static void turn64(const lab *b, double *x, size_t s)
{
    size_t half = b->p.rot / 2;
    for (size_t i = 0; i < half; i++) {
        double c = b->cos[s * half + i], sn = b->sin[s * half + i], u = x[i], v = x[i + half];
        x[i] = u * c - v * sn;
        x[i + half] = v * c + u * sn;
    }
}

/* o of logits against keys 0 to t, and of their values (T; ld). */
static void mix64(const double *logit, const double *v, size_t ld, size_t t, double *o)
{
    double sum = 0, top = -INFINITY;
    for (size_t s = 0; s <= t; s++) top = fmax(top, logit[s]);
    for (size_t s = 0; s <= t; s++) sum += exp(logit[s] - top);
    for (size_t i = 0; i < d; i++) {
        o[i] = 0;
        for (size_t s = 0; s <= t; s++) o[i] += exp(logit[s] - top) / sum * v[s * ld + i];
    }
}

/* o_th of features y^ (T, groups, n), by definition. */
static void attention64(const lab *b, const double *y, size_t t, size_t h, double *o)
{
    const mla_local *p = &b->p;
    size_t g = h / (H / G), per = G / p->groups, a = g / per, rot = p->rot;
    size_t dk = beside(p->layout) ? d - rot : d, ld = p->groups * p->n;
    double logit[T];
    for (size_t s = 0; s <= t; s++) {
        double k[d];
        const double *f = y + s * ld + a * p->n + g % per * dk;
        for (size_t i = 0; i < d; i++) k[i] = beside(p->layout) ? (i < rot ? b->kr[(s * G + g) * rot + i] : f[i - rot]) : f[i];
        for (size_t i = rot; p->layout == MLA_LAYOUT_P && i < d; i++) k[i] *= (double)b->gain[i - rot] * b->inv_rms[s * G + g];
        if (!beside(p->layout)) turn64(b, k, s);
        logit[s] = 0;
        for (size_t i = 0; i < d; i++) logit[s] += (double)p->scale * b->q[(t * H + h) * d + i] * k[i];
    }
    mix64(logit, y + a * p->n + per * dk + g % per * d, ld, t, o);
}

/* The same in layout absorbed-rope, of what is decoded: z (T, H + G, d), and the rotary maps Er (w, G d), Rq (G, w, d). */
static void slots64(const lab *b, const double *z, const double *Er, const double *Rq, size_t w, size_t t, size_t h, double *o)
{
    size_t g = h / (H / G), ld = (H + G) * d, half = b->p.rot / 2;
    double logit[T], q[d];
    for (size_t i = 0; i < d; i++) q[i] = b->q[(t * H + h) * d + i];
    for (size_t i = 0; i < half; i++) { /* backwards, and without the factor 1.1 */
        double c = b->cos[t * half + i] / 1.21, sn = b->sin[t * half + i] / 1.21, u = q[i], v = q[i + half];
        q[i] = u * c + v * sn;
        q[i + half] = v * c - u * sn;
    }
    for (size_t s = 0; s <= t; s++) {
        double k[G * d];
        logit[s] = 0;
        for (size_t i = 0; i < d; i++) logit[s] += (double)b->p.scale * q[i] * z[s * ld + h * d + i];
        for (size_t i = 0; i < G * d; i++) k[i] = b->y[s * b->p.n + i];
        for (size_t i = 0; i < G; i++) turn64(b, k + i * d, s);
        for (size_t m = 0; m < w; m++) {
            double x = 0, y = 0;
            for (size_t i = 0; i < G * d; i++) x += Er[m * G * d + i] * k[i];
            for (size_t i = 0; i < d; i++) y += Rq[(g * w + m) * d + i] * b->q[(t * H + h) * d + i];
            logit[s] += (double)b->p.scale * x * y;
        }
    }
    mix64(logit, z + (H + g) * d, ld, t, o);
}

/* The loss of factors given as doubles, x = E | D | mu | Er | Rq. */
static double loss64(const lab *b, const double *x, size_t r, size_t w)
{
    const mla_local *p = &b->p;
    size_t n = p->n, gs = p->groups, nd = w ? (H + G) * d : n;
    const double *E = x, *D = E + gs * r * n, *mu = D + gs * r * nd, *Er = mu + gs * n, *Rq = Er + w * G * d;
    double y[T * (HD + MAXF)], total = 0;
    for (size_t t = 0; t < T; t++)
        for (size_t a = 0; a < gs; a++) {
            double c[MAXF];
            for (size_t k = 0; k < r; k++) {
                c[k] = 0;
                for (size_t i = 0; i < n; i++) c[k] += E[(a * r + k) * n + i] * (b->y[(t * gs + a) * n + i] - mu[a * n + i]);
            }
            for (size_t i = 0; i < nd; i++) {
                double *to = &y[(t * gs + a) * nd + i];
                *to = !w ? mu[a * n + i] : i < HD ? 0 : mu[G * d + i - HD];
                for (size_t k = 0; k < r; k++) *to += D[(a * nd + i) * r + k] * c[k];
            }
        }
    for (size_t t = b->row.phase; t < T; t += b->row.stride) {
        double e[HD];
        for (size_t h = 0; h < H; h++)
            if (w) slots64(b, y, Er, Rq, w, t, h, e + h * d);
            else attention64(b, y, t, h, e + h * d);
        for (size_t i = 0; i < HD; i++) e[i] = (b->row.gamma ? b->gamma[t * HD + i] : 1) * (e[i] - b->o[t * HD + i]);
        for (size_t k = 0; k < HD; k++) {
            double z = 0;
            for (size_t i = 0; i < HD; i++) z += b->W[k * HD + i] * e[i];
            total += z * z;
        }
    }
    return total;
}

static const kind CASE[] = {{MLA_LAYOUT_N, 1, 0, 1, ROT, true}, {MLA_LAYOUT_N, 2, 1, 3, ROT, false}, {MLA_LAYOUT_REBUILD, 1, 0, 1, d, false},
                            {MLA_LAYOUT_REBUILD, 2, 2, 4, d, true}, {MLA_LAYOUT_P, 1, 0, 1, ROT, true}, {MLA_LAYOUT_P, 2, 1, 2, ROT, false},
                            {MLA_LAYOUT_ABSORBED, 1, 0, 1, d, true}, {MLA_LAYOUT_ABSORBED, 1, 1, 2, ROT, false}};

/* Random maps of w/2 slots that commute with the rotation: slot s turns with frequency s mod half. */
static void rotary_maps(mla_factors *f, size_t rot)
{
    size_t half = rot / 2, gd = G * d, w = f->w;
    for (size_t s = 0; s < w / 2; s++)
        for (size_t g = 0; g < G; g++) {
            size_t x = s % half, y = x + half;
            float *e = f->Er + s * gd + g * d, *ei = e + w / 2 * gd, *q = f->Rq + (g * w + s) * d, *qi = q + w / 2 * d;
            e[x] = ei[y] = (float)mla_rng_normal(21, 4 * (s * G + g));
            ei[x] = (float)mla_rng_normal(21, 4 * (s * G + g) + 1);
            e[y] = -ei[x];
            q[x] = qi[y] = (float)mla_rng_normal(21, 4 * (s * G + g) + 2);
            qi[x] = (float)mla_rng_normal(21, 4 * (s * G + g) + 3);
            q[y] = -qi[x];
        }
}

/* The derivative g (rows w, cols; heads of d dims in the columns) of maps x, taken within those that commute. */
static void commuting(double *g, const float *x, size_t w, size_t cols, size_t rot)
{
    size_t half = rot / 2, im = w / 2 * cols;
    for (size_t s = 0; s < w / 2; s++)
        for (size_t c = 0; c < cols; c++) {
            size_t i = c % d, re = s * cols + c;
            bool pair = i < half && (x[re] != 0 || x[re + im] != 0);
            double a = pair ? (g[re] + g[re + im + half]) / 2 : 0, b = pair ? (g[re + im] - g[re + half]) / 2 : 0;
            if (i < half) g[re] = g[re + im + half] = a, g[re + im] = b, g[re + half] = -b;
            else if (i >= rot) g[re] = g[re + im] = 0;
        }
}

START_TEST(gradients_are_those_of_the_definition)
{
    lab b;
    mla_factors f, grad;
    mla_local_work *work;
    mla_err err;
    size_t r = 5;
    lab_new(&b, &CASE[_i]);
    b.row.phase = CASE[_i].phase, b.row.stride = CASE[_i].stride;
    bool slots = b.p.layout == MLA_LAYOUT_ABSORBED;
    size_t n = b.p.n, gs = b.p.groups, w = slots ? 6 : 0, gd = w ? G * d : 0;
    mla_config shape = {.heads = H, .kv_heads = G, .head_dim = d};
    ck_ok(slots ? mla_factors_new_absorbed(&f, &shape, w, r, &err) : mla_factors_new(&f, b.p.layout, gs, n, r, &err));
    ck_ok(mla_local_work_new(&work, &b.p, r, w, &err));
    fill(f.E, gs * r * n, 6, 0.3);
    fill(f.D, gs * r * f.nd, 7, 0.3);
    fill(f.mu, gs * n, 8, 0.3);
    if (slots) rotary_maps(&f, b.p.rot);
    ck_ok(mla_factors_copy(&grad, &f, &err));
    float *from[5] = {f.E, f.D, f.mu, f.Er, f.Rq}, *got[5] = {grad.E, grad.D, grad.mu, grad.Er, grad.Rq};
    size_t count[5] = {gs * r * n, gs * r * f.nd, gs * n, w * gd, w * gd}, all = 0;
    for (size_t k = 0; k < 5; k++) all += count[k];
    double loss = mla_local_loss(&b.p, work, &b.row, &f, &grad), *x = mla_alloc(all, 2, sizeof *x), *want = x + all;
    ck_assert_ptr_nonnull(x);
    for (size_t k = 0, at = 0; k < 5; k++)
        for (size_t i = 0; i < count[k]; i++) x[at++] = from[k][i];
    double by_definition = loss64(&b, x, r, w);
    ck_assert_msg(fabs(loss - by_definition) <= 1e-4 * by_definition, "loss %g, definition %g", loss, by_definition);
    for (size_t at = 0; at < all; at++) {
        double x0 = x[at], h = 1e-5;
        x[at] = x0 + h;
        double up = loss64(&b, x, r, w);
        x[at] = x0 - h;
        want[at] = (up - loss64(&b, x, r, w)) / (2 * h);
        x[at] = x0;
    }
    for (size_t k = 0, at = 0; k < (slots ? 5 : 3); at += count[k++]) {
        double err2 = 0, ref2 = 0;
        if (k == 3) commuting(want + at, f.Er, w, gd, b.p.rot);
        for (size_t g = 0; k == 4 && g < G; g++) commuting(want + at + g * w * d, f.Rq + g * w * d, w, d, b.p.rot);
        for (size_t i = 0; i < count[k]; i++) {
            double g = want[at + i];
            err2 += (g - got[k][i]) * (g - got[k][i]);
            ref2 += g * g;
        }
        ck_assert_msg(ref2 > 0 && err2 <= 1e-8 * ref2, "case %d, part %zu: relative error %g", _i, k, sqrt(err2 / ref2)); /* f32 chain: 1e-4 */
    }
    mla_free(x);
    mla_local_work_free(work);
    mla_factors_free(&f);
    mla_factors_free(&grad);
}
END_TEST

/* Absorbed-rope: all rotated dims in slots, the rest in the latent. */
static size_t exact_rank(const mla_local *p) { return G * (2 * d - p->rot); }

START_TEST(exact_factors_have_no_loss)
{
    lab b;
    mla_factors f;
    mla_local_work *w;
    mla_err err;
    lab_new(&b, &CASE[_i]);
    size_t n = b.p.n, gs = b.p.groups;
    double y[T * MAXF], o[d];
    for (size_t i = 0; i < T * gs * n; i++) y[i] = b.y[i];
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            attention64(&b, y, t, h, o);
            for (size_t i = 0; i < d; i++) ck_assert(fabs(o[i] - b.o[(t * H + h) * d + i]) <= 1e-5);
        }
    mla_config shape = {.heads = H, .kv_heads = G, .head_dim = d};
    bool slots = b.p.layout == MLA_LAYOUT_ABSORBED;
    ck_ok(slots ? mla_factors_new_absorbed(&f, &shape, G * b.p.rot, exact_rank(&b.p), &err) : mla_factors_new(&f, b.p.layout, gs, n, n, &err));
    mla_factors_identity(&f);
    ck_ok(mla_local_work_new(&w, &b.p, f.r, f.w, &err));
    double energy = mla_local_energy(&b.p, w, &b.row), loss = mla_local_loss(&b.p, w, &b.row, &f, NULL);
    ck_assert_msg(energy > 0 && loss <= 1e-10 * energy, "%g of %g", loss, energy);
    f.D[(f.nd - 1) * f.r + f.r - 1] = 0.5f; /* the loss can rise */
    ck_assert(mla_local_loss(&b.p, w, &b.row, &f, NULL) > 1e-5 * energy);
    mla_local_work_free(w);
    mla_factors_free(&f);
}
END_TEST

enum { SH = 6, SG = 2, SD = 8, SDK = 6, SHID = 40, SN = SG * (SDK + SD) };

static void solved(mla_solution *s, mla_layer_stats *l)
{
    static float wo[SHID * SH * SD];
    mla_err err;
    synth_layer(l, SH, SG, SD, SDK, wo, SHID);
    mla_solve_opts o = {.balance = 1, .groups = 1};
    ck_ok(mla_solve_layer(s, l, MLA_LAYOUT_N, wo, SHID, &o, &err));
}

/* P = D E */
static void product(double *P, const mla_factors *f)
{
    for (size_t i = 0; i < f->n; i++)
        for (size_t j = 0; j < f->n; j++) {
            P[i * f->n + j] = 0;
            for (size_t k = 0; k < f->r; k++) P[i * f->n + j] += (double)f->D[i * f->r + k] * f->E[k * f->n + j];
        }
}

START_TEST(gauge_and_rounding_keep_the_map)
{
    mla_layer_stats l;
    mla_solution s;
    mla_factors f, g;
    mla_err err;
    enum { R = 9 };
    double P[SN * SN], Q[SN * SN], diff = 0, norm = 0, last = INFINITY;
    solved(&s, &l);
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, 1, SN, R, &err));
    fill(f.E, R * SN, 31, 0.4);
    fill(f.D, R * SN, 32, 0.4);
    product(P, &f);
    ck_ok(mla_refine_gauge(&f, &s, NULL, &(mla_eigen){0}, &err));
    product(Q, &f);
    for (size_t i = 0; i < SN * SN; i++) diff = fmax(diff, fabs(P[i] - Q[i])), norm = fmax(norm, fabs(P[i]));
    ck_assert_msg(diff <= 1e-5 * norm, "D E moved by %g of %g", diff, norm);
    for (size_t k = 0; k < R; k++) { /* unit variance, no covariance; what a coordinate adds, falling */
        for (size_t m = 0; m <= k; m++) {
            double cov = 0;
            for (size_t i = 0; i < SN; i++)
                for (size_t j = 0; j < SN; j++) cov += (double)f.E[k * SN + i] * s.C[i * SN + j] * f.E[m * SN + j];
            ck_assert(fabs(cov - (m == k)) <= 1e-4);
        }
        double adds = 0;
        for (size_t i = 0; i < SN; i++)
            for (size_t j = 0; j < SN; j++) adds += (double)f.D[i * R + k] * s.Lambda[i * SN + j] * f.D[j * R + k];
        ck_assert(adds > 0 && adds <= last * (1 + 1e-5));
        last = adds;
    }
    ck_ok(mla_refine_round(&g, &f, &s, true, NULL, &err));
    product(Q, &g);
    diff = 0;
    for (size_t i = 0; i < SN * SN; i++) diff = fmax(diff, fabs(P[i] - Q[i]));
    ck_assert_msg(diff > 0 && diff <= 0.05 * norm, "rounding moved D E by %g of %g", diff, norm);
    mla_factors_free(&f);
    mla_factors_free(&g);
    mla_solution_free(&s);
    synth_free(&l);
}
END_TEST

START_TEST(a_piece_reads_back_or_not_at_all)
{
    char *dir = mla_test_tmpdir(), *path = mla_path_join(dir, "refined-00003.safetensors"), *text;
    mla_factors f, g;
    mla_refined r = {.before = 0.5, .after = 0.25, .stored = 0.375, .accepted = true}, back = {0};
    mla_err err;
    size_t size;
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, 2, 6, 3, &err));
    ck_ok(mla_factors_new(&g, MLA_LAYOUT_N, 2, 6, 3, &err));
    fill(f.E, 36, 1, 1);
    fill(f.D, 36, 2, 1);
    fill(f.mu, 12, 3, 1);
    ck_assert(!mla_piece_read(path, &g, &back));
    ck_ok(mla_piece_write(path, &f, &r, &err));
    ck_assert(mla_piece_read(path, &g, &back));
    ck_assert(memcmp(f.E, g.E, 36 * 4) == 0 && memcmp(f.D, g.D, 36 * 4) == 0 && memcmp(f.mu, g.mu, 12 * 4) == 0);
    ck_assert(back.before == 0.5 && back.after == 0.25 && back.stored == 0.375 && back.accepted);
    g.r = 2; /* another rank */
    ck_assert(!mla_piece_read(path, &g, &back));
    g.r = 3;
    ck_ok(mla_file_read(&text, &size, path, 1 << 20, &err));
    ck_ok(mla_file_write(path, text, size - 4, &err)); /* cut short */
    ck_assert(!mla_piece_read(path, &g, &back));
    mla_free(text);
    mla_free(path);
    mla_free(dir);
    mla_factors_free(&f);
    mla_factors_free(&g);
}
END_TEST

/* Refines layer 5 of the tiny hybrid from wrong factors on few rows. */
static void refine_tiny(mla_factors *f, mla_refined *out, size_t threads)
{
    tiny_refiner t;
    mla_err err;
    mla_solution s = {.layer = 5, .groups = 1, .n = TINY_FEATURES};
    tiny_refiner_open(&t, threads, 12);
    tiny_refiner_factors(f, 40, 40, 5);
    s.C = mla_alloc(TINY_FEATURES, TINY_FEATURES, sizeof(double)); /* zero: the gauge is left alone */
    s.Lambda = mla_alloc(TINY_FEATURES, TINY_FEATURES, sizeof(double));
    ck_assert(s.C && s.Lambda);
    mla_progress prog = mla_progress_begin(NULL, "steps", 12, "steps");
    ck_ok(mla_refine_layer(t.r, &s, f, out, &prog, &err));
    mla_free(s.C);
    mla_free(s.Lambda);
    tiny_refiner_close(&t);
}

START_TEST(threads_do_not_change_the_bits)
{
    mla_factors one, f;
    mla_refined a, b;
    refine_tiny(&one, &a, 1);
    ck_assert_msg(a.accepted && a.after < 0.99 * a.before, "held-out error %g -> %g", a.before, a.after);
    const size_t threads[] = {2, 3, 8};
    for (size_t k = 0; k < 3; k++) {
        refine_tiny(&f, &b, threads[k]);
        ck_assert(a.before == b.before && a.after == b.after);
        ck_assert(memcmp(one.E, f.E, 40 * 224 * 4) == 0 && memcmp(one.D, f.D, 40 * 224 * 4) == 0 && memcmp(one.mu, f.mu, 224 * 4) == 0);
        mla_factors_free(&f);
    }
    mla_factors_free(&one);
}
END_TEST

Suite *suite_refine(void);
Suite *suite_refine(void)
{
    Suite *s = suite_create("refine");
    TCase *c = tcase_create("refine");
    tcase_add_loop_test(c, gradients_are_those_of_the_definition, 0, sizeof CASE / sizeof *CASE);
    tcase_add_loop_test(c, exact_factors_have_no_loss, 0, sizeof CASE / sizeof *CASE);
    tcase_add_test(c, gauge_and_rounding_keep_the_map);
    tcase_add_test(c, a_piece_reads_back_or_not_at_all);
    tcase_add_test(c, threads_do_not_change_the_bits);
    tcase_set_timeout(c, 600);
    suite_add_tcase(s, c);
    return s;
}
