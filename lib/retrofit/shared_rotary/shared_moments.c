/* Sums over recorded rows. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"
#include "retrofit/shared_rotary/shared_solve.h"

#define TILE 128

mla_status mla_shared_moments_new(mla_shared_moments *m, const mla_config *c, size_t max_T, mla_err *err)
{
    size_t H = c->heads, G = c->kv_heads, d = c->head_dim, n = 2 * G * d, N = c->hidden + n;
    *m = (mla_shared_moments){.H = H, .G = G, .d = d, .rot = c->rope.rot, .D = c->hidden, .n = n, .max_T = max_T};
    m->Z = mla_alloc(N, N, sizeof *m->Z);
    m->mean = mla_alloc(N, 1, sizeof *m->mean);
    m->q2 = mla_alloc(H, d * d, sizeof *m->q2);
    m->gate = mla_alloc(H, d * d, sizeof *m->gate);
    m->mass = mla_alloc(H, max_T, sizeof *m->mass);
    if (m->Z && m->mean && m->q2 && m->gate && m->mass) return MLA_OK;
    mla_shared_moments_free(m);
    return mla_fail(err, MLA_ENOMEM, "moments of %zu inputs and %zu features", c->hidden, n);
}

void mla_shared_moments_free(mla_shared_moments *m)
{
    mla_free(m->Z);
    mla_free(m->mean);
    mla_free(m->q2);
    mla_free(m->gate);
    mla_free(m->mass);
    *m = (mla_shared_moments){0};
}

typedef struct {
    mla_shared_moments *m;
    const mla_shared_row *row;
    const mla_shared_problem *p;
    const double *z;  /* (T, N) */
    double *head;     /* per worker: (T, d) */
    float *P, *qk;    /* per worker: (T, T), 2 x (T, d); NULL: no attention wanted */
} job;

/* Rows [TILE b, ...) of the lower triangle of Z. */
static void gram_tile(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    const job *j = ctx;
    size_t N = j->m->D + j->m->n, T = j->row->T;
    for (size_t k = b; k < e; k++) {
        size_t i0 = k * TILE, rows = N - i0 < TILE ? N - i0 : TILE;
        mla_dgemm(&(mla_dgemm_args){.ta = true, .M = rows, .N = i0 + rows, .K = T, .alpha = 1, .a = j->z + i0, .lda = N, .b = j->z, .ldb = N,
                                    .beta = 1, .c = j->m->Z + i0 * N, .ldc = N});
    }
}

static void head_gram(double *acc, const float *x, size_t T, size_t ld, size_t d, double *buf)
{
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < d; i++) buf[t * d + i] = x[t * ld + i];
    mla_dgemm(&(mla_dgemm_args){.ta = true, .M = d, .N = d, .K = T, .alpha = 1, .a = buf, .lda = d, .b = buf, .ldb = d, .beta = 1, .c = acc, .ldc = d});
}

/* Attention mass of head h by distance, on the base's own keys. */
static void head_mass(const job *j, size_t h, float *P, float *qk)
{
    const mla_shared_moments *m = j->m;
    size_t T = j->row->T, d = m->d, g = h / (m->H / m->G);
    float *q = qk, *k = qk + T * d;
    double *mass = m->mass + h * m->max_T;
    for (size_t t = 0; t < T; t++) {
        memcpy(q + t * d, j->row->q + (t * m->H + h) * d, d * sizeof *q);
        memcpy(k + t * d, j->row->k + (t * m->G + g) * d, d * sizeof *k);
    }
    mla_shared_turn(j->p, q, (size_t[]){T, d, 1, d}, m->rot, false);
    mla_shared_turn(j->p, k, (size_t[]){T, d, 1, d}, m->rot, false);
    mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = T, .K = d, .alpha = j->p->scale, .a = q, .lda = d, .b = k, .ldb = d, .c = P, .ldc = T});
    for (size_t t = 0; t < T; t++) {
        float *x = P + t * T, mx = x[0];
        double sum = 0;
        for (size_t s = 1; s <= t; s++) mx = x[s] > mx ? x[s] : mx;
        for (size_t s = 0; s <= t; s++) sum += x[s] = expf(x[s] - mx);
        for (size_t s = 0; s <= t; s++) mass[t - s] += x[s] / sum;
    }
}

static void one_head(void *ctx, size_t b, size_t e, size_t worker)
{
    const job *j = ctx;
    mla_shared_moments *m = j->m;
    size_t T = j->row->T, d = m->d, Hd = m->H * d;
    for (size_t h = b; h < e; h++) {
        double *buf = j->head + worker * T * d;
        head_gram(m->q2 + h * d * d, j->row->q + h * d, T, Hd, d, buf);
        if (j->row->gamma) head_gram(m->gate + h * d * d, j->row->gamma + h * d, T, Hd, d, buf);
        else
            for (size_t i = 0; i < d * d; i++) m->gate[h * d * d + i] += (double)T;
        if (j->P) head_mass(j, h, j->P + worker * T * T, j->qk + worker * 2 * T * d);
    }
}

mla_status mla_shared_moments_add(mla_shared_moments *m, const mla_shared_row *row, const mla_shared_problem *p, bool with_mass, mla_pool *pool,
                                  mla_err *err)
{
    size_t T = row->T, D = m->D, gd = m->G * m->d, N = D + m->n, workers = mla_pool_threads(pool);
    double *z = mla_alloc_raw(T, N, sizeof *z), *head = mla_alloc_raw(workers, T * m->d, sizeof *head);
    float *P = with_mass ? mla_alloc_raw(workers, T * T, sizeof *P) : NULL, *qk = with_mass ? mla_alloc_raw(workers, 2 * T * m->d, sizeof *qk) : NULL;
    mla_status st = z && head && (!with_mass || (P && qk)) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "moments of a row of %zu tokens", T);
    if (st == MLA_OK) {
        for (size_t t = 0; t < T; t++) {
            double *to = z + t * N;
            for (size_t i = 0; i < D; i++) to[i] = row->x[t * D + i];
            for (size_t i = 0; i < gd; i++) to[D + i] = row->k[t * gd + i], to[D + gd + i] = row->v[t * gd + i];
            for (size_t i = 0; i < N; i++) m->mean[i] += to[i];
        }
        job j = {m, row, p, z, head, P, qk};
        mla_par_for(pool, (N + TILE - 1) / TILE, 1, gram_tile, &j);
        mla_par_for(pool, m->H, 1, one_head, &j);
        m->tokens += (double)T;
    }
    mla_free(z);
    mla_free(head);
    mla_free(P);
    mla_free(qk);
    return st;
}
