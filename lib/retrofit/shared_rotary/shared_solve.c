/* Shared keys per frequency, position-free rest, reduced-rank regression. */
#include "retrofit/shared_rotary/shared_solve.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/chol.h"
#include "linalg/eigh.h"
#include "linalg/gemm.h"

#define RIDGE 1e-7  /* of C_xx's mean diagonal */
#define FLOOR 1e-6  /* of Lambda's largest eigenvalue */

typedef struct { double re, im; } cplx;

typedef struct { /* shared keys of one layer */
    double *w;    /* (half, G) query weights */
    cplx *u;      /* (half, R, G) eigenvectors */
    double *value;/* (half, G) eigenvalues, descending */
} keys;

typedef struct {
    const mla_shared_moments *m;
    size_t half, R;
    keys k;
    double *Cxx, *B, *B0, *Cxy0; /* (D, D), (n, D) each: regressions without and with offset; Cov_yx */
    double *T, *FT, *Fi;         /* (n, n); Fi: 2G blocks of (d, d) */
    double *C2, *lam;            /* (n, n), (n) */
    double *tmp;                 /* (n, max(n, D)) */
} work;

/* E of entries (i, j) of [x | y]. */
static double second(const mla_shared_moments *m, size_t i, size_t j)
{
    size_t N = m->D + m->n;
    return m->Z[i >= j ? i * N + j : j * N + i] / m->tokens;
}

/* Where pair j of KV head g stands in y (real part; the imaginary one half dims further). */
static size_t pair_at(const mla_shared_moments *m, size_t g, size_t j) { return g * m->d + j; }

static void query_weights(double *w, const mla_shared_moments *m, size_t j)
{
    size_t per = m->H / m->G, half = m->rot / 2, d = m->d;
    double top = 0;
    for (size_t g = 0; g < m->G; g++) {
        w[g] = 0;
        for (size_t h = g * per; h < (g + 1) * per; h++) {
            const double *q = m->q2 + h * d * d;
            w[g] += (q[j * d + j] + q[(j + half) * d + j + half]) / m->tokens;
        }
        w[g] = sqrt(w[g]);
        top = w[g] > top ? w[g] : top;
    }
    for (size_t g = 0; g < m->G; g++) /* heads that nobody asks: cheap, but not free */
        if (!(w[g] > 1e-6 * top)) w[g] = top > 0 ? 1e-6 * top : 1;
}

/* Eigenvectors (all G of them, complex, orthonormal, by falling eigenvalue) of the weighted moment of frequency j. The real
 * form [[Re, -Im], [Im, Re]] has every eigenvalue twice; the second of a pair is i times the first and drops out. */
static mla_status frequency(cplx *u, double *value, const double *w, const mla_shared_moments *m, size_t j, mla_err *err)
{
    size_t G = m->G, half = m->rot / 2, n2 = 2 * G, found = 0;
    double *a = mla_alloc(n2, n2, sizeof *a), *e = mla_alloc(n2, 1, sizeof *e);
    mla_status st = a && e ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rotary keys of %zu heads", G);
    for (size_t g = 0; st == MLA_OK && g < G; g++)
        for (size_t h = 0; h < G; h++) {
            size_t x = m->D + pair_at(m, g, j), y = m->D + pair_at(m, h, j);
            double re = second(m, x, y) + second(m, x + half, y + half), im = second(m, x + half, y) - second(m, x, y + half);
            re *= w[g] * w[h], im *= w[g] * w[h];
            a[g * n2 + h] = a[(G + g) * n2 + G + h] = re;
            a[g * n2 + G + h] = -im;
            a[(G + g) * n2 + h] = im;
        }
    if (st == MLA_OK) st = mla_eigh(a, e, n2, err);
    for (size_t k = n2; st == MLA_OK && k-- > 0 && found < G;) {
        cplx *v = u + found * G;
        double norm = 0;
        for (size_t g = 0; g < G; g++) v[g] = (cplx){a[k * n2 + g], a[k * n2 + G + g]};
        for (size_t o = 0; o < found; o++) { /* v -= u_o (u_o^H v) */
            const cplx *p = u + o * G;
            cplx dot = {0, 0};
            for (size_t g = 0; g < G; g++) {
                dot.re += p[g].re * v[g].re + p[g].im * v[g].im;
                dot.im += p[g].re * v[g].im - p[g].im * v[g].re;
            }
            for (size_t g = 0; g < G; g++) {
                v[g].re -= p[g].re * dot.re - p[g].im * dot.im;
                v[g].im -= p[g].re * dot.im + p[g].im * dot.re;
            }
        }
        for (size_t g = 0; g < G; g++) norm += v[g].re * v[g].re + v[g].im * v[g].im;
        if (norm < 1e-6) continue;
        norm = 1 / sqrt(norm);
        for (size_t g = 0; g < G; g++) v[g].re *= norm, v[g].im *= norm;
        value[found++] = e[k] > 0 ? e[k] : 0;
    }
    if (st == MLA_OK && found < G) st = mla_fail(err, MLA_EINTERNAL, "rotary keys: %zu of %zu directions found", found, G);
    mla_free(a);
    mla_free(e);
    return st;
}

static mla_status shared_keys(keys *k, const mla_shared_moments *m, mla_err *err)
{
    size_t half = m->rot / 2, G = m->G;
    k->w = mla_alloc(half, G, sizeof *k->w);
    k->u = mla_alloc(half, G * G, sizeof *k->u);
    k->value = mla_alloc(half, G, sizeof *k->value);
    mla_status st = k->w && k->u && k->value ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rotary keys");
    for (size_t j = 0; st == MLA_OK && j < half; j++) {
        query_weights(k->w + j * G, m, j);
        st = frequency(k->u + j * G * G, k->value + j * G, k->w + j * G, m, j, err);
    }
    return st;
}

static void keys_free(keys *k)
{
    mla_free(k->w);
    mla_free(k->u);
    mla_free(k->value);
}

static void kept_energy(double *kept, const keys *k, const mla_shared_moments *m)
{
    double all = 0;
    for (size_t i = 0; i < m->rot / 2 * m->G; i++) all += k->value[i];
    for (size_t R = 1; R <= m->G; R++) {
        double sum = 0;
        for (size_t j = 0; j < m->rot / 2; j++)
            for (size_t i = 0; i < R; i++) sum += k->value[j * m->G + i];
        kept[R - 1] = all > 0 ? sum / all : 1;
    }
}

/* C_xx (centred or not) with the ridge, factored. */
static mla_status input_moment(work *k, bool centred, mla_err *err)
{
    const mla_shared_moments *m = k->m;
    size_t D = m->D;
    double diag = 0, n = m->tokens;
    for (size_t i = 0; i < D; i++) {
        for (size_t j = 0; j <= i; j++) k->Cxx[i * D + j] = second(m, i, j) - (centred ? m->mean[i] / n * (m->mean[j] / n) : 0);
        diag += second(m, i, i) / (double)D;
    }
    if (!(diag > 0)) return mla_fail(err, MLA_EFORMAT, "the layer's input was never seen");
    for (size_t i = 0; i < D; i++) k->Cxx[i * D + i] += RIDGE * diag;
    return mla_chol(k->Cxx, D, err);
}

/* Regression of y on x, rows (n, D): in B without, in B0 with an offset, which softmax (keys) and mu (values) absorb. A
 * rotary key has no such freedom. */
static mla_status regress(work *k, mla_err *err)
{
    const mla_shared_moments *m = k->m;
    size_t D = m->D, n = m->n;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < D; j++) {
            k->B[i * D + j] = second(m, D + i, j);
            k->B0[i * D + j] = k->Cxy0[i * D + j] = k->B[i * D + j] - m->mean[D + i] / m->tokens * (m->mean[j] / m->tokens);
        }
    mla_status st = input_moment(k, false, err);
    if (st == MLA_OK) st = mla_chol_solve(k->Cxx, D, k->B, n, err);
    if (st == MLA_OK) st = input_moment(k, true, err);
    if (st == MLA_OK) st = mla_chol_solve(k->Cxx, D, k->B0, n, err);
    return st;
}

/* Row of the linear map from y's rotary dims to shared key rho, pair j: re (n) or im (n), added times f to out. */
static void add_shared(double *out, const work *k, size_t rho, size_t j, bool imag, double f)
{
    const mla_shared_moments *m = k->m;
    const cplx *u = k->k.u + (j * m->G + rho) * m->G;
    for (size_t g = 0; g < m->G; g++) { /* s = sum conj(u) w z */
        double w = k->k.w[j * m->G + g] * f;
        size_t a = pair_at(m, g, j), b = a + k->half;
        out[a] += imag ? -w * u[g].im : w * u[g].re;
        out[b] += imag ? w * u[g].re : w * u[g].im;
    }
}

static void rotary_maps(mla_shared *s, const work *k)
{
    const mla_shared_moments *m = k->m;
    size_t D = m->D, n = m->n, rot = m->rot, half = k->half, w = s->R * rot, per = m->H / m->G;
    for (size_t rho = 0; rho < s->R; rho++)
        for (size_t i = 0; i < rot; i++) {
            double *row = k->tmp, *out = k->tmp + n;
            memset(row, 0, n * sizeof *row);
            add_shared(row, k, rho, i % half, i >= half, 1);
            mla_dgemm(&(mla_dgemm_args){.M = 1, .N = D, .K = n, .alpha = 1, .a = row, .lda = n, .b = k->B, .ldb = D, .c = out, .ldc = D});
            for (size_t x = 0; x < D; x++) s->KR[(rho * rot + i) * D + x] = (float)out[x];
        }
    memset(s->Q2, 0, mla_shared_part(s, 2) * sizeof *s->Q2);
    for (size_t h = 0; h < m->H; h++)
        for (size_t rho = 0; rho < s->R; rho++)
            for (size_t j = 0; j < half; j++) {
                size_t g = h / per;
                cplx u = k->k.u[(j * m->G + rho) * m->G + g];
                float re = (float)(u.re / k->k.w[j * m->G + g]), im = (float)(u.im / k->k.w[j * m->G + g]);
                float *Q = s->Q2 + (h * w + rho * rot) * rot;
                Q[j * rot + j] = Q[(j + half) * rot + j + half] = re; /* q conj(a) */
                Q[j * rot + j + half] = im;
                Q[(j + half) * rot + j] = -im;
            }
}

/* phi of a KV head's pair j: mean over its heads of sum of mass by distance times e^{-i delta theta}. */
static cplx phase(const mla_shared_moments *m, size_t g, double theta)
{
    size_t per = m->H / m->G;
    cplx sum = {0, 0};
    double all = 0;
    for (size_t h = g * per; h < (g + 1) * per; h++)
        for (size_t t = 0; t < m->max_T; t++) {
            double p = m->mass[h * m->max_T + t];
            sum.re += p * cos((double)t * theta);
            sum.im -= p * sin((double)t * theta);
            all += p;
        }
    return all > 0 ? (cplx){sum.re / all, sum.im / all} : (cplx){0, 0};
}

/* T (n, n): y' = T y. */
static void feature_map(const work *k, const double *inv_freq)
{
    const mla_shared_moments *m = k->m;
    size_t n = m->n, half = k->half;
    memset(k->T, 0, n * n * sizeof *k->T);
    for (size_t i = 0; i < n; i++) k->T[i * n + i] = 1;
    for (size_t g = 0; g < m->G; g++)
        for (size_t j = 0; j < half; j++) {
            size_t a = pair_at(m, g, j), b = a + half;
            double *re = k->tmp, *im = k->tmp + n; /* z - sum a s, as rows over y */
            cplx f = phase(m, g, inv_freq[j]);
            memset(k->tmp, 0, 2 * n * sizeof *k->tmp);
            re[a] = im[b] = 1;
            for (size_t rho = 0; rho < k->R; rho++) {
                cplx u = k->k.u[(j * m->G + rho) * m->G + g];
                double w = k->k.w[j * m->G + g];
                add_shared(re, k, rho, j, false, -u.re / w);
                add_shared(re, k, rho, j, true, u.im / w);
                add_shared(im, k, rho, j, false, -u.im / w);
                add_shared(im, k, rho, j, true, -u.re / w);
            }
            for (size_t i = 0; i < n; i++) {
                k->T[a * n + i] = f.re * re[i] - f.im * im[i];
                k->T[b * n + i] = f.re * im[i] + f.im * re[i];
            }
        }
}

/* Lambda's block b: keys of KV head b, or values of KV head b - G. F_hh = E[gamma gamma^T] o W_h^T W_h. */
static void metric_block(double *out, const work *k, const mla_shared_solve_opts *o, size_t b)
{
    const mla_shared_moments *m = k->m;
    size_t d = m->d, per = m->H / m->G, g = b % m->G, Hd = m->H * d, v0 = m->D + m->G * d + g * d;
    memset(out, 0, d * d * sizeof *out);
    for (size_t h = g * per; h < (g + 1) * per; h++) {
        double cost = 0; /* of a squared logit error: the gated value variance at the output */
        for (size_t i = 0; i < d; i++)
            for (size_t j = 0; j < d; j++) {
                double F = m->gate[(h * d + i) * d + j] / m->tokens * o->wo_gram[(h * d + i) * Hd + h * d + j];
                cost += F * (second(m, v0 + i, v0 + j) - m->mean[v0 + i] / m->tokens * (m->mean[v0 + j] / m->tokens));
                if (b >= m->G) out[i * d + j] += F;
            }
        for (size_t i = 0; b < m->G && i < d * d; i++) out[i] += o->balance * cost / (double)d * m->q2[h * d * d + i] / m->tokens;
    }
}

/* F (in FT = F T) and F^-1 of every block. */
static mla_status metric_roots(work *k, const mla_shared_solve_opts *o, mla_err *err)
{
    const mla_shared_moments *m = k->m;
    size_t d = m->d, n = m->n, blocks = 2 * m->G;
    double top = 0;
    mla_status st = MLA_OK;
    for (size_t b = 0; st == MLA_OK && b < blocks; b++) {
        metric_block(k->Fi + b * d * d, k, o, b);
        st = mla_eigh(k->Fi + b * d * d, k->lam + b * d, d, err);
        if (st == MLA_OK && k->lam[b * d + d - 1] > top) top = k->lam[b * d + d - 1];
    }
    if (st == MLA_OK && !(top > 0)) st = mla_fail(err, MLA_EFORMAT, "the objective is zero: no query or value energy was seen");
    for (size_t b = 0; st == MLA_OK && b < blocks; b++) {
        double *V = k->Fi + b * d * d, *F = k->tmp; /* rows of V: eigenvectors */
        for (size_t i = 0; i < d; i++) {
            double l = k->lam[b * d + i], s = sqrt(l > FLOOR * top ? l : FLOOR * top);
            for (size_t j = 0; j < d; j++) F[i * d + j] = s * V[i * d + j], V[i * d + j] /= s;
        }
        mla_dgemm(&(mla_dgemm_args){.M = d, .N = n, .K = d, .alpha = 1, .a = F, .lda = d, .b = k->T + b * d * n, .ldb = n, .c = k->FT + b * d * n, .ldc = n});
    }
    return st; /* Fi block b: rows f_i / s_i, so F^-1 = its transpose */
}

/* C2 = FT C_y0x B0^T FT^T, eigenvectors as rows, descending in U = k->C2. */
static mla_status reduced_rank(work *k, mla_err *err)
{
    const mla_shared_moments *m = k->m;
    size_t n = m->n, D = m->D;
    double *P = k->T; /* the feature map is done with */
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = n, .N = n, .K = D, .alpha = 1, .a = k->Cxy0, .lda = D, .b = k->B0, .ldb = D, .c = P, .ldc = n});
    mla_dgemm(&(mla_dgemm_args){.M = n, .N = n, .K = n, .alpha = 1, .a = k->FT, .lda = n, .b = P, .ldb = n, .c = k->tmp, .ldc = n});
    mla_dgemm(&(mla_dgemm_args){.tb = true, .M = n, .N = n, .K = n, .alpha = 1, .a = k->tmp, .lda = n, .b = k->FT, .ldb = n, .c = k->C2, .ldc = n});
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++) k->C2[i * n + j] = k->C2[j * n + i] = 0.5 * (k->C2[i * n + j] + k->C2[j * n + i]);
    return mla_eigh(k->C2, k->lam, n, err);
}

static void latent_maps(mla_shared *s, const work *k)
{
    const mla_shared_moments *m = k->m;
    size_t n = m->n, D = m->D, d = m->d, r = s->r, per = m->H / m->G;
    double top = k->lam[n - 1];
    for (size_t i = 0; i < r; i++) {
        const double *u = k->C2 + (n - 1 - i) * n;
        double l = k->lam[n - 1 - i], sc = sqrt(l > 1e-12 * top ? l : 1e-12 * top), *row = k->tmp, *x = k->tmp + n;
        mla_dgemm(&(mla_dgemm_args){.M = 1, .N = n, .K = n, .alpha = 1 / sc, .a = u, .lda = n, .b = k->FT, .ldb = n, .c = row, .ldc = n});
        mla_dgemm(&(mla_dgemm_args){.M = 1, .N = D, .K = n, .alpha = 1, .a = row, .lda = n, .b = k->B0, .ldb = D, .c = x, .ldc = D});
        for (size_t j = 0; j < D; j++) s->E[i * D + j] = (float)x[j];
        for (size_t b = 0; b < 2 * m->G; b++) /* D = F^-1 U sc */
            for (size_t j = 0; j < d; j++) {
                double sum = 0;
                for (size_t q = 0; q < d; q++) sum += k->Fi[(b * d + q) * d + j] * u[b * d + q];
                float *to = b < m->G ? s->K : s->V;
                for (size_t h = b % m->G * per; h < (b % m->G + 1) * per; h++) to[(h * d + j) * r + i] = (float)(sum * sc);
            }
    }
    for (size_t i = 0; i < r; i++) { /* mean of c */
        k->tmp[i] = 0;
        for (size_t j = 0; j < D; j++) k->tmp[i] += s->E[i * D + j] * (m->mean[j] / m->tokens);
    }
    for (size_t h = 0; h < m->H; h++)
        for (size_t j = 0; j < d; j++) {
            double mu = m->mean[D + m->G * d + h / per * d + j] / m->tokens;
            for (size_t i = 0; i < r; i++) mu -= s->V[(h * d + j) * r + i] * k->tmp[i];
            s->mu[h * d + j] = (float)mu;
        }
}

static mla_status work_new(work *k, const mla_shared_moments *m, size_t R, mla_err *err)
{
    size_t n = m->n, D = m->D, wide = n > D ? n : D;
    *k = (work){.m = m, .half = m->rot / 2, .R = R};
    k->Cxx = mla_alloc(D, D, sizeof(double));
    k->B = mla_alloc(n, D, sizeof(double));
    k->B0 = mla_alloc(n, D, sizeof(double));
    k->Cxy0 = mla_alloc(n, D, sizeof(double));
    k->T = mla_alloc(n, n, sizeof(double));
    k->FT = mla_alloc(n, n, sizeof(double));
    k->C2 = mla_alloc(n, n, sizeof(double));
    k->Fi = mla_alloc(2 * m->G, m->d * m->d, sizeof(double));
    k->lam = mla_alloc(n, 1, sizeof(double));
    k->tmp = mla_alloc(n + 1, wide, sizeof(double));
    if (k->Cxx && k->B && k->B0 && k->Cxy0 && k->T && k->FT && k->C2 && k->Fi && k->lam && k->tmp) return MLA_OK;
    return mla_fail(err, MLA_ENOMEM, "solution of %zu inputs and %zu features", D, n);
}

mla_status mla_shared_solve(mla_shared *s, const mla_shared_moments *m, const mla_shared_solve_opts *o, double *kept, mla_err *err)
{
    work k;
    mla_status st = work_new(&k, m, s->R, err);
    if (st == MLA_OK && !(m->tokens > 0)) st = mla_fail(err, MLA_EFORMAT, "the layer was never observed");
    if (st == MLA_OK && s->r > m->n) st = mla_fail(err, MLA_EINVAL, "rank %zu: keys and values have %zu features", s->r, m->n);
    if (st == MLA_OK) st = shared_keys(&k.k, m, err);
    if (st == MLA_OK) st = regress(&k, err);
    if (st == MLA_OK) {
        kept_energy(kept, &k.k, m);
        rotary_maps(s, &k);
        feature_map(&k, o->inv_freq);
        st = metric_roots(&k, o, err);
    }
    if (st == MLA_OK) st = reduced_rank(&k, err);
    if (st == MLA_OK) latent_maps(s, &k);
    keys_free(&k.k);
    double *const part[] = {k.Cxx, k.B, k.B0, k.Cxy0, k.T, k.FT, k.C2, k.Fi, k.lam, k.tmp};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) mla_free(part[i]);
    return st;
}

void mla_shared_gauge(mla_shared *s, const mla_shared_moments *m, double *buf)
{
    size_t D = s->D, r = s->r, Hd = s->H * s->d;
    for (size_t i = 0; i < r; i++) {
        float *e = s->E + i * D;
        double var = 0, mean = 0;
        for (size_t a = 0; a < D; a++) {
            buf[a] = 0;
            for (size_t b = 0; b < D; b++) buf[a] += second(m, a, b) * e[b];
            mean += m->mean[a] / m->tokens * e[a];
        }
        for (size_t a = 0; a < D; a++) var += buf[a] * e[a];
        var -= mean * mean;
        if (!(var > 0)) continue;
        double g = sqrt(var);
        for (size_t a = 0; a < D; a++) e[a] = (float)(e[a] / g);
        for (size_t h = 0; h < Hd; h++) {
            s->K[h * r + i] = (float)(s->K[h * r + i] * g);
            s->V[h * r + i] = (float)(s->V[h * r + i] * g);
        }
    }
}
