/* Shared helpers and fp64 references of the backend tests. */
#include "lab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "tensor/fp.h"

mla_backend *lab_open(mla_isa isa, size_t threads)
{
    mla_err err = {0};
    mla_backend *be = NULL;
    mla_status st = mla_backend_open(&be, &(mla_backend_opts){.threads = threads, .isa = isa}, &err);
    if (st == MLA_EUNSUPPORTED) return NULL;
    ck_assert_msg(st == MLA_OK, "%s", err.msg);
    return be;
}

void lab_each_isa(const char *what, size_t threads, lab_body body)
{
    for (int isa = MLA_ISA_REF; isa <= MLA_ISA_AVX512BF16; isa++) {
        mla_backend *be = lab_open((mla_isa)isa, threads);
        if (!be) {
            mla_test_skip(what, "this CPU lacks the instruction set", 1);
            continue;
        }
        body(be, (mla_isa)isa);
        mla_backend_close(be);
    }
}

/* The first n normals of a seed, made once: every variant asks for the same. Valid until the next call. */
static const double *normals(size_t n, uint64_t seed)
{
    enum { SEEDS = 512, MOST = 1 << 23 }; /* numbers kept at once; then all are forgotten */
    static struct {
        uint64_t seed;
        size_t n;
        double *x;
    } kept[SEEDS], *k;
    static size_t used, total;
    size_t i = 0;
    while (i < used && kept[i].seed != seed) i++;
    if (i == SEEDS || total + n > MOST) {
        for (size_t j = 0; j < used; j++) mla_free(kept[j].x);
        used = total = i = 0;
    }
    if (i == used) kept[used++].seed = seed, kept[i].x = NULL, kept[i].n = 0;
    k = &kept[i];
    if (k->n >= n) return k->x;
    double *x = mla_alloc(n, 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t j = 0; j < n; j++) x[j] = j < k->n ? k->x[j] : mla_rng_normal(seed, j);
    mla_free(k->x);
    total += n - k->n;
    k->x = x, k->n = n;
    return x;
}

float *lab_normals(size_t n, uint64_t seed, double scale)
{
    float *x = mla_alloc(n, 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    const double *z = normals(n, seed);
    for (size_t i = 0; i < n; i++) x[i] = (float)(z[i] * scale);
    return x;
}

float *lab_poisoned(size_t n)
{
    float *x = mla_alloc(n, 1, sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++) x[i] = NAN;
    return x;
}

float *lab_copy(const float *x, size_t n)
{
    float *y = mla_alloc(n, 1, sizeof *y);
    ck_assert_ptr_nonnull(y);
    memcpy(y, x, n * sizeof *y);
    return y;
}

float *lab_guarded(size_t n, uint64_t seed)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), area = (n * sizeof(float) + page - 1) / page * page;
    char *p = mmap(NULL, page + area + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(p != MAP_FAILED && mprotect(p, page, PROT_NONE) == 0 && mprotect(p + page + area, page, PROT_NONE) == 0);
    float *x = (float *)(void *)(p + page + area - n * sizeof(float));
    const double *z = normals(n, seed);
    for (size_t i = 0; i < n; i++) x[i] = (float)z[i];
    return x;
}

/* A planted fault is expected to differ: nobody wants to read about it. */
static bool silent(const char *what) { return !strcmp(what, "control"); }

bool lab_same_bits(const char *what, const float *got, const float *want, size_t n)
{
    if (mla_count_nonfinite(want, n, NULL) || mla_count_nonfinite(got, n, NULL)) {
        fprintf(stderr, "%s: non-finite values\n", what);
        return false;
    }
    for (size_t i = 0; i < n; i++)
        if (mla_f32_bits(got[i]) != mla_f32_bits(want[i])) {
            if (!silent(what)) fprintf(stderr, "%s: at %zu of %zu got %.9g, want %.9g\n", what, i, n, (double)got[i], (double)want[i]);
            return false;
        }
    return true;
}

bool lab_close(const char *what, const float *got, const double *want, size_t n, double tol)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double e = fabs(got[i] - want[i]);
        if (!(e <= tol)) {
            if (!silent(what)) fprintf(stderr, "%s: at %zu of %zu got %.9g, want %.9g, error %.3g > %.3g\n", what, i, n, (double)got[i], want[i], e, tol);
            return false;
        }
        worst = e > worst ? e : worst;
    }
    if (getenv("MLA_TEST_VERBOSE")) fprintf(stderr, "%s: worst %.3g of %.3g\n", what, worst, tol);
    return true;
}

typedef struct {
    const float *w;
    size_t in;
} dense;

static mla_status dense_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    dense *d = ctx;
    (void)err;
    memcpy(dst, d->w + row0 * d->in, n * d->in * sizeof *dst);
    return MLA_OK;
}

mla_weight *lab_weight(mla_backend *be, const float *w, size_t out, size_t in, mla_precision p)
{
    mla_err err = {0};
    mla_weight *r = NULL;
    dense d = {w, in};
    ck_ok(be->ops->weight_new(be, &r, &(mla_weight_desc){.out = out, .in = in, .precision = p, .rows = dense_rows, .ctx = &d}, &err));
    return r;
}

void lab_attention(const lab_attn *a, double *o, double *p2)
{
    size_t S = a->pos0 + a->T;
    double *p = mla_alloc(S, 1, sizeof *p);
    ck_assert_ptr_nonnull(p);
    for (size_t t = 0; t < a->T; t++)
        for (size_t h = 0; h < a->H; h++) {
            size_t n = a->pos0 + t + 1, kh = h * a->kh / a->H, vh = h * a->vh / a->H, k2h = a->q2 ? h * a->k2h / a->H : 0;
            double m = -INFINITY, l = 0;
            for (size_t s = 0; s < n; s++) {
                double d = 0;
                for (size_t i = 0; i < a->dk; i++) d += (double)a->q[(t * a->H + h) * a->dk + i] * a->k[(s * a->kh + kh) * a->dk + i];
                for (size_t i = 0; a->q2 && i < a->dk2; i++)
                    d += (double)a->q2[(t * a->H + h) * a->dk2 + i] * a->k2[(s * a->k2h + k2h) * a->dk2 + i];
                p[s] = d * a->scale;
                m = p[s] > m ? p[s] : m;
            }
            for (size_t s = 0; s < n; s++) l += p[s] = exp(p[s] - m);
            for (size_t i = 0; i < a->dv; i++) {
                double x = 0;
                for (size_t s = 0; s < n; s++) x += p[s] * a->v[(s * a->vh + vh) * a->dv + i];
                o[(t * a->H + h) * a->dv + i] = x / l;
            }
            for (size_t s = 0; p2 && s < n; s++) p2[s] += p[s] * p[s] / (l * l);
        }
    mla_free(p);
}

static double l2_inv(const float *x, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++) s += (double)x[i] * x[i];
    return 1 / sqrt(s + 1e-6);
}

void lab_gated_delta(const lab_gdn *g, double *state, double *o)
{
    size_t width = 2 * g->nk * g->dk + g->nv * g->dv;
    for (size_t t = 0; t < g->T; t++)
        for (size_t h = 0; h < g->nv; h++) {
            size_t hk = h / (g->nv / g->nk), i = t * g->nv + h;
            const float *q = g->qkv + t * width + hk * g->dk, *k = q + g->nk * g->dk;
            const float *v = g->qkv + t * width + 2 * g->nk * g->dk + h * g->dv;
            double x = (double)g->a[i] + g->dt_bias[h], sp = x > 30 ? x : log1p(exp(x)), alpha = exp(-exp(g->A_log[h]) * sp);
            double beta = 1 / (1 + exp(-(double)g->b[i])), qi = l2_inv(q, g->dk) / sqrt((double)g->dk), ki = l2_inv(k, g->dk);
            double *S = state + h * g->dk * g->dv;
            for (size_t e = 0; e < g->dk * g->dv; e++) S[e] *= alpha;
            for (size_t c = 0; c < g->dv; c++) {
                double m = 0, y = 0;
                for (size_t r = 0; r < g->dk; r++) m += S[r * g->dv + c] * k[r] * ki;
                double d = beta * (v[c] - m);
                for (size_t r = 0; r < g->dk; r++) y += (S[r * g->dv + c] += k[r] * ki * d) * q[r] * qi;
                o[i * g->dv + c] = y;
            }
        }
}
