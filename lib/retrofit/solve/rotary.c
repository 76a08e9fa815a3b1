/* Per-frequency principal components over KV heads, the choice of slots, and what the rest of the keys is. */
#include "retrofit/solve/rotary.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/eigh.h"
#include "linalg/gemm.h"

#define WEIGHT_FLOOR 1e-6 /* of the largest pair weight of a block: a head that nobody asks still has finite maps */

void mla_rotary_free(mla_rotary *r)
{
    if (!r) return;
    mla_free(r->energy);
    mla_free(r->lost);
    mla_free(r->enc);
    mla_free(r->dec);
    mla_free(r->a);
    mla_free(r->slot);
    mla_free(r->kept);
    mla_free(r->T);
    mla_free(r);
}

/* Feature index of member c of block b (c = g fold + j): its real part; the imaginary part is half further on. */
static size_t member(const mla_rotary *r, size_t b, size_t c) { return c / r->fold * r->d + b * r->fold + c % r->fold; }

/* K (q, q, 2) of block b: uncentred second moment of the complex key pairs. */
static void block_moment(double *K, const mla_rotary *r, size_t b, const double *C, const double *mu, size_t n)
{
    for (size_t i = 0; i < r->q; i++)
        for (size_t j = 0; j < r->q; j++) {
            size_t xi = member(r, b, i), yi = xi + r->half, xj = member(r, b, j), yj = xj + r->half;
            K[2 * (i * r->q + j)] = C[xi * n + xj] + C[yi * n + yj] + mu[xi] * mu[xj] + mu[yi] * mu[yj];
            K[2 * (i * r->q + j) + 1] = C[yi * n + xj] - C[xi * n + yj] + mu[yi] * mu[xj] - mu[xi] * mu[yj];
        }
}

/* Unitary eigenvectors (rows, descending) of the Hermitian K (q, q, 2) through the real symmetric matrix
 * [Re -Im; Im Re], whose eigenvalues come in pairs: one complex vector of every pair is kept. */
static mla_status hermitian(double *U, double *w, const double *K, size_t q, mla_err *err)
{
    size_t m = 2 * q, got = 0;
    double *S = mla_alloc(m, m, sizeof *S), *e = mla_alloc(m, 1, sizeof *e);
    mla_status st = S && e ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu rotary components", q);
    for (size_t i = 0; st == MLA_OK && i < q; i++)
        for (size_t j = 0; j < q; j++) {
            S[i * m + j] = S[(i + q) * m + j + q] = K[2 * (i * q + j)];
            S[(i + q) * m + j] = K[2 * (i * q + j) + 1];
            S[i * m + j + q] = -K[2 * (i * q + j) + 1];
        }
    if (st == MLA_OK) st = mla_eigh(S, e, m, err);
    for (size_t v = m; st == MLA_OK && v-- > 0 && got < q;) {
        double *u = U + 2 * got * q, norm = 0;
        for (size_t i = 0; i < q; i++) u[2 * i] = S[v * m + i], u[2 * i + 1] = S[v * m + i + q];
        for (int pass = 0; pass < 2; pass++)
            for (size_t k = 0; k < got; k++) {
                const double *p = U + 2 * k * q;
                double re = 0, im = 0; /* p^H u */
                for (size_t i = 0; i < q; i++) {
                    re += p[2 * i] * u[2 * i] + p[2 * i + 1] * u[2 * i + 1];
                    im += p[2 * i] * u[2 * i + 1] - p[2 * i + 1] * u[2 * i];
                }
                for (size_t i = 0; i < q; i++) {
                    double pr = p[2 * i], pi = p[2 * i + 1];
                    u[2 * i] -= pr * re - pi * im;
                    u[2 * i + 1] -= pr * im + pi * re;
                }
            }
        for (size_t i = 0; i < 2 * q; i++) norm += u[i] * u[i];
        if (!(norm > 1e-6)) continue; /* i times one that is there already */
        for (size_t i = 0; i < 2 * q; i++) u[i] /= sqrt(norm);
        w[got++] = e[v] > 0 ? e[v] : 0;
    }
    if (st == MLA_OK && got < q) st = mla_fail(err, MLA_EINTERNAL, "%zu of %zu rotary components found", got, q);
    mla_free(S);
    mla_free(e);
    return st;
}

/* Weight of each member of block b, floored. */
static void block_weight(double *m, const mla_rotary *r, size_t b, const mla_layer_stats *l)
{
    double top = 0;
    for (size_t c = 0; c < r->q; c++) {
        size_t g = c / r->fold, f = b * r->fold + c % r->fold;
        const double *M = l->M + g * r->d * r->d;
        m[c] = 0.5 * (M[f * r->d + f] + M[(f + r->half) * r->d + f + r->half]) / l->tokens;
        if (m[c] > top) top = m[c];
    }
    for (size_t c = 0; c < r->q; c++)
        if (!(m[c] > WEIGHT_FLOOR * top)) m[c] = top > 0 ? WEIGHT_FLOOR * top : 1;
}

/* A_h = conj(mean of exp(i theta (s - t))) gain^2. */
static void query_factors(mla_rotary *r, const mla_layer_stats *l, double gain)
{
    for (size_t i = 0; i < r->H * r->half; i++) {
        const double *t = l->turn + 3 * i;
        double n = t[2] > 0 ? gain * gain / t[2] : 0;
        r->a[2 * i] = n * t[0];
        r->a[2 * i + 1] = -n * t[1];
    }
}

/* Share of the energy of member (g, f) that a position-free key loses: 1 - |a|^2 / gain^4, heads by their query energy. */
static double member_lost(const mla_rotary *r, const mla_layer_stats *l, size_t g, size_t f)
{
    size_t m = r->H / r->G;
    double kept = 0, all = 0;
    for (size_t h = g * m; h < (g + 1) * m; h++) {
        const double *t = l->turn + 3 * (h * r->half + f);
        if (t[2] > 0) kept += (t[0] * t[0] + t[1] * t[1]) / t[2];
        all += t[2];
    }
    double lost = all > 0 ? 1 - kept / all : 0;
    return lost > 0 ? lost : 0;
}

static mla_status components(mla_rotary *r, const mla_layer_stats *l, const double *C, const double *mu, mla_err *err)
{
    size_t q = r->q;
    double *K = mla_alloc(q, 2 * q, sizeof *K), *U = mla_alloc(q, 2 * q, sizeof *U), *m = mla_alloc(q, 1, sizeof *m);
    mla_status st = K && U && m ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu rotary components", q);
    for (size_t b = 0; st == MLA_OK && b < r->blocks; b++) {
        block_moment(K, r, b, C, mu, l->n);
        block_weight(m, r, b, l);
        for (size_t i = 0; i < q; i++)
            for (size_t j = 0; j < q; j++)
                for (size_t k = 0; k < 2; k++) K[2 * (i * q + j) + k] *= sqrt(m[i] * m[j]);
        st = hermitian(U, r->energy + b * q, K, q, err);
        for (size_t i = 0; st == MLA_OK && i < q; i++) {
            double lost = 0;
            for (size_t c = 0; c < q; c++) {
                const double *u = U + 2 * (i * q + c);
                double *e = r->enc + 2 * ((b * q + i) * q + c), *d = r->dec + 2 * ((b * q + i) * q + c);
                e[0] = u[0] * sqrt(m[c]), e[1] = -u[1] * sqrt(m[c]);
                d[0] = u[0] / sqrt(m[c]), d[1] = u[1] / sqrt(m[c]);
                lost += (u[0] * u[0] + u[1] * u[1]) * member_lost(r, l, c / r->fold, b * r->fold + c % r->fold);
            }
            r->lost[b * q + i] = lost;
        }
    }
    mla_free(K);
    mla_free(U);
    mla_free(m);
    return st;
}

/* The slots: of largest gain over all blocks, or the first of every block; then in their order, by i, then b. */
static void choose(mla_rotary *r, bool even_all)
{
    size_t n = r->blocks * r->q, slots = r->w / 2, at = 0;
    for (size_t k = 0; k < slots; k++) {
        size_t best = n;
        for (size_t c = 0; c < n; c++) {
            if (r->kept[c] || (even_all && c % r->q >= slots / r->blocks)) continue;
            if (best == n || r->energy[c] * r->lost[c] > r->energy[best] * r->lost[best]) best = c;
        }
        r->kept[best] = true;
    }
    for (size_t i = 0; i < r->q; i++)
        for (size_t b = 0; b < r->blocks; b++)
            if (r->kept[b * r->q + i]) r->slot[at++] = b * r->q + i;
}

/* T = I - sum over slots of (what z gives back)(what gives z), as real matrices on (x, y) pairs. */
static void remainder_of(mla_rotary *r)
{
    size_t gd = r->G * r->d;
    for (size_t i = 0; i < gd; i++) r->T[i * gd + i] = 1;
    for (size_t s = 0; s < r->w / 2; s++) {
        size_t b = r->slot[s] / r->q;
        const double *e = r->enc + 2 * r->slot[s] * r->q, *d = r->dec + 2 * r->slot[s] * r->q;
        for (size_t i = 0; i < r->q; i++)
            for (size_t j = 0; j < r->q; j++) {
                size_t x = member(r, b, i), u = member(r, b, j);
                double re = d[2 * i] * e[2 * j] - d[2 * i + 1] * e[2 * j + 1], im = d[2 * i] * e[2 * j + 1] + d[2 * i + 1] * e[2 * j];
                r->T[x * gd + u] -= re;
                r->T[(x + r->half) * gd + u + r->half] -= re;
                r->T[x * gd + u + r->half] += im;
                r->T[(x + r->half) * gd + u] -= im;
            }
    }
}

static mla_status check(const mla_layer_stats *l, const mla_rotary_opts *o, mla_err *err)
{
    if (!l->half || l->dk != l->d)
        return mla_fail(err, MLA_EINVAL, "layer %zu: these statistics do not say how far queries look (collected before that was counted, "
                        "or for another layout): collect them again", l->layer);
    if (o->fold == 0 || l->half % o->fold) return mla_fail(err, MLA_EINVAL, "freq_fold %zu does not divide %zu frequencies", o->fold, l->half);
    if (o->width < 2 || o->width % 2 || o->width > l->G * 2 * l->half)
        return mla_fail(err, MLA_EINVAL, "rotary width %zu: expected an even number from 2 to %zu", o->width, l->G * 2 * l->half);
    if (o->even_all && o->width / 2 % (l->half / o->fold))
        return mla_fail(err, MLA_EINVAL, "rotary width %zu: expected a multiple of %zu, the same number of keys for every frequency", o->width,
                        2 * l->half / o->fold);
    return MLA_OK;
}

mla_status mla_rotary_new(mla_rotary **out, const mla_layer_stats *l, const mla_rotary_opts *o, mla_err *err)
{
    *out = NULL;
    mla_status st = check(l, o, err);
    if (st != MLA_OK) return st;
    mla_rotary *r = mla_alloc(1, 1, sizeof *r);
    if (!r) return mla_fail(err, MLA_ENOMEM, "rotary components");
    *r = (mla_rotary){.H = l->H, .G = l->G, .d = l->d, .half = l->half, .fold = o->fold, .q = l->G * o->fold, .blocks = l->half / o->fold, .w = o->width};
    size_t n = r->blocks * r->q, gd = r->G * r->d;
    r->energy = mla_alloc(n, 1, sizeof(double));
    r->lost = mla_alloc(n, 1, sizeof(double));
    r->enc = mla_alloc(n, 2 * r->q, sizeof(double));
    r->dec = mla_alloc(n, 2 * r->q, sizeof(double));
    r->a = mla_alloc(r->H * r->half, 2, sizeof(double));
    r->slot = mla_alloc(r->w / 2, 1, sizeof *r->slot);
    r->kept = mla_alloc(n, 1, sizeof *r->kept);
    r->T = mla_alloc(gd, gd, sizeof(double));
    double *C = mla_alloc(l->n, l->n, sizeof *C), *mu = mla_alloc(l->n, 1, sizeof *mu);
    if (!r->energy || !r->lost || !r->enc || !r->dec || !r->a || !r->slot || !r->kept || !r->T || !C || !mu)
        st = mla_fail(err, MLA_ENOMEM, "rotary components of layer %zu", l->layer);
    if (st == MLA_OK) {
        mla_stats_cov(l, C);
        mla_stats_mean(l, mu);
        query_factors(r, l, o->gain);
        st = components(r, l, C, mu, err);
    }
    if (st == MLA_OK) {
        choose(r, o->even_all);
        remainder_of(r);
        *out = r;
    } else {
        mla_rotary_free(r);
    }
    mla_free(C);
    mla_free(mu);
    return st;
}

mla_status mla_rotary_loss(double *out, const mla_rotary *r, const mla_layer_stats *l, mla_err *err)
{
    size_t q = r->q;
    double *C = mla_alloc(l->n, l->n, sizeof *C), *mu = mla_alloc(l->n, 1, sizeof *mu), *K = mla_alloc(q, 2 * q, sizeof *K);
    mla_status st = C && mu && K ? MLA_OK : mla_fail(err, MLA_ENOMEM, "rotary loss of layer %zu", l->layer);
    *out = 0;
    if (st == MLA_OK) {
        mla_stats_cov(l, C);
        mla_stats_mean(l, mu);
    }
    for (size_t b = 0; st == MLA_OK && b < r->blocks; b++) {
        block_moment(K, r, b, C, mu, l->n);
        for (size_t i = 0; i < q; i++) {
            if (r->kept[b * q + i]) continue;
            const double *e = r->enc + 2 * (b * q + i) * q;
            double v = 0; /* e K e^H */
            for (size_t x = 0; x < q; x++)
                for (size_t y = 0; y < q; y++) {
                    double re = e[2 * x] * e[2 * y] + e[2 * x + 1] * e[2 * y + 1], im = e[2 * x + 1] * e[2 * y] - e[2 * x] * e[2 * y + 1];
                    v += re * K[2 * (x * q + y)] - im * K[2 * (x * q + y) + 1];
                }
            *out += v * r->lost[b * q + i];
        }
    }
    mla_free(C);
    mla_free(mu);
    mla_free(K);
    return st;
}

void mla_rotary_maps(const mla_rotary *r, mla_factors *f)
{
    size_t gd = r->G * r->d, slots = r->w / 2;
    for (size_t s = 0; s < slots; s++) {
        size_t b = r->slot[s] / r->q;
        const double *e = r->enc + 2 * r->slot[s] * r->q, *d = r->dec + 2 * r->slot[s] * r->q;
        float *er = f->Er + s * gd, *ei = f->Er + (s + slots) * gd;
        for (size_t c = 0; c < r->q; c++) {
            size_t x = member(r, b, c), y = x + r->half, g = c / r->fold, j = x - g * r->d;
            er[x] = ei[y] = (float)e[2 * c];
            ei[x] = (float)e[2 * c + 1];
            er[y] = -ei[x];
            float *qr = f->Rq + (g * r->w + s) * r->d, *qi = f->Rq + (g * r->w + s + slots) * r->d; /* conj(dec) q */
            qr[j] = qi[j + r->half] = (float)d[2 * c];
            qr[j + r->half] = (float)d[2 * c + 1];
            qi[j] = -qr[j + r->half];
        }
    }
}

void mla_rotary_query(const mla_rotary *r, size_t h, bool transposed, double *x, size_t ld, size_t cols)
{
    for (size_t f = 0; f < r->half; f++) {
        double re = r->a[2 * (h * r->half + f)], im = r->a[2 * (h * r->half + f) + 1];
        if (transposed) im = -im;
        double *u = x + f * ld, *v = x + (f + r->half) * ld;
        for (size_t c = 0; c < cols; c++) {
            double a = re * u[c] - im * v[c], b = im * u[c] + re * v[c];
            u[c] = a, v[c] = b;
        }
    }
}
