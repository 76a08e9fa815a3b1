/* Forward and backward of one attention layer with shared-rotary factors. */
#include "retrofit/shared_rotary/shared_local.h"

#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"
#include "retrofit/refine/attend.h"

struct mla_shared_work {
    float *P;        /* (H, T, T) probabilities, kept from forward to backward */
    float *S;        /* (MLA_HEAD_BLOCK, T) */
    float *c, *dc;   /* (T, r) */
    float *z, *dz;   /* (T, w) rotated shared keys, w = R rot */
    float *key;      /* (T, d + w) of one head: [K_h c | z] */
    float *dkey;     /* its derivative */
    float *query;    /* (T, d + w) of one head: [q | Q2_h q turned] */
    float *dq2;      /* (T, w) */
    float *v, *dv;   /* (T, d) of one head */
    float *o, *A, *B;/* (T, H, d) */
};

mla_status mla_shared_work_new(mla_shared_work **out, const mla_shared_problem *p, const mla_shared *s, mla_err *err)
{
    size_t T = p->max_T, w = s->R * s->rot, kw = s->d + w, Hd = s->H * s->d;
    mla_shared_work *k = mla_alloc(1, 1, sizeof *k);
    if (!k) return mla_fail(err, MLA_ENOMEM, "scratch of a local refinement");
    struct { float **to; size_t n; } const part[] = {
        {&k->P, s->H * T}, {&k->S, MLA_HEAD_BLOCK}, {&k->c, s->r}, {&k->dc, s->r}, {&k->z, w}, {&k->dz, w}, {&k->key, kw}, {&k->dkey, kw},
        {&k->query, kw}, {&k->dq2, w}, {&k->v, s->d}, {&k->dv, s->d}, {&k->o, Hd}, {&k->A, Hd}, {&k->B, Hd},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (!(*part[i].to = mla_alloc_raw(T, part[i].n, sizeof(float)))) {
            mla_shared_work_free(k);
            return mla_fail(err, MLA_ENOMEM, "scratch of a local refinement: rows of %zu tokens, %zu heads", T, s->H);
        }
    *out = k;
    return MLA_OK;
}

void mla_shared_work_free(mla_shared_work *k)
{
    if (!k) return;
    float *const all[] = {k->P, k->S, k->c, k->dc, k->z, k->dz, k->key, k->dkey, k->query, k->dq2, k->v, k->dv, k->o, k->A, k->B};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mla_free(all[i]);
    mla_free(k);
}

void mla_shared_turn(const mla_shared_problem *p, float *x, const size_t shape[4], size_t rot, bool back)
{
    size_t half = rot / 2;
    float sign = back ? -1 : 1;
    for (size_t t = 0; t < shape[0]; t++) {
        const float *cs = p->cos + t * half, *sn = p->sin + t * half;
        for (size_t h = 0; h < shape[2]; h++) {
            float *v = x + t * shape[1] + h * shape[3];
            for (size_t i = 0; i < half; i++) {
                float a = v[i], b = v[i + half];
                v[i] = a * cs[i] - sign * b * sn[i];
                v[i + half] = b * cs[i] + sign * a * sn[i];
            }
        }
    }
}

typedef struct {
    const mla_shared_problem *p;
    mla_shared_work *k;
    const mla_shared_row *row;
    const mla_shared *s;
    mla_shared *g;
} job;

/* y (T, out) [+]= x (T, in) W^T */
static void apply(float *y, size_t ldy, const float *x, size_t ldx, const float *W, const size_t n[3] /* T, out, in */)
{
    mla_sgemm(&(mla_sgemm_args){.tb = true, .M = n[0], .N = n[1], .K = n[2], .alpha = 1, .a = x, .lda = ldx, .b = W, .ldb = n[2], .c = y, .ldc = ldy});
}

/* dW (out, in) = dy^T x */
static void weight_grad(float *dW, const float *dy, size_t ldy, const float *x, size_t ldx, const size_t n[3])
{
    mla_sgemm(&(mla_sgemm_args){.ta = true, .M = n[1], .N = n[2], .K = n[0], .alpha = 1, .a = dy, .lda = ldy, .b = x, .ldb = ldx, .c = dW, .ldc = n[2]});
}

/* dx (T, in) += dy (T, out) W */
static void input_grad(float *dx, size_t ldx, const float *dy, size_t ldy, const float *W, const size_t n[3])
{
    mla_sgemm(&(mla_sgemm_args){.M = n[0], .N = n[2], .K = n[1], .alpha = 1, .beta = 1, .a = dy, .lda = ldy, .b = W, .ldb = n[2], .c = dx, .ldc = ldx});
}

/* Queries, keys and values of head h as its attention sees them. */
static void head_inputs(const job *j, size_t h)
{
    const mla_shared *s = j->s;
    mla_shared_work *k = j->k;
    size_t T = j->row->T, d = s->d, w = s->R * s->rot, kw = d + w, Hd = s->H * d;
    const float *mu = s->mu + h * d;
    apply(k->key, kw, k->c, s->r, s->K + h * d * s->r, (size_t[]){T, d, s->r});
    apply(k->v, d, k->c, s->r, s->V + h * d * s->r, (size_t[]){T, d, s->r});
    apply(k->query + d, kw, j->row->q + h * d, Hd, s->Q2 + h * w * s->rot, (size_t[]){T, w, s->rot});
    mla_shared_turn(j->p, k->query + d, (size_t[]){T, kw, s->R, s->rot}, s->rot, false);
    for (size_t t = 0; t < T; t++) {
        memcpy(k->key + t * kw + d, k->z + t * w, w * sizeof(float));
        memcpy(k->query + t * kw, j->row->q + t * Hd + h * d, d * sizeof(float));
        for (size_t i = 0; i < d; i++) k->v[t * d + i] += mu[i];
    }
}

static mla_span whole(const job *j) { return (mla_span){j->row->T, 0, 1}; }

static mla_head head_at(const job *j, size_t h)
{
    const mla_shared_work *k = j->k;
    size_t T = j->row->T, d = j->s->d, kw = d + j->s->R * j->s->rot;
    return (mla_head){.dk = kw, .dv = d, .scale = j->p->scale, .q = k->query, .ldq = kw, .k = k->key, .ldk = kw, .v = k->v, .ldv = d, .P = k->P + h * T * T};
}

static void head_forward(const job *j, size_t h)
{
    mla_span s = whole(j);
    mla_head head = head_at(j, h);
    head_inputs(j, h);
    mla_head_forward(&head, &s, j->k->o + h * j->s->d, j->s->H * j->s->d);
}

/* dkey, dv and dq2 of head h from dL/do in o; the head's inputs are formed again. */
static void head_attend_back(const job *j, size_t h)
{
    mla_shared_work *k = j->k;
    size_t T = j->row->T, d = j->s->d, w = j->s->R * j->s->rot, kw = d + w, Hd = j->s->H * d;
    mla_span s = whole(j);
    mla_head head = head_at(j, h);
    head_inputs(j, h);
    memset(k->dkey, 0, T * kw * sizeof(float));
    memset(k->dv, 0, T * d * sizeof(float));
    mla_head_grad g = {.dk = k->dkey, .lddk = kw, .dv = k->dv, .lddv = d, .dq = k->dq2, .lddq = w, .from = d, .S = k->S};
    mla_head_backward(&head, &s, k->o + h * d, Hd, &g);
}

static void head_back(const job *j, size_t h)
{
    const mla_shared *s = j->s;
    mla_shared_work *k = j->k;
    mla_shared *g = j->g;
    size_t T = j->row->T, d = s->d, r = s->r, w = s->R * s->rot, kw = d + w, Hd = s->H * d;
    head_attend_back(j, h);
    weight_grad(g->K + h * d * r, k->dkey, kw, k->c, r, (size_t[]){T, d, r});
    weight_grad(g->V + h * d * r, k->dv, d, k->c, r, (size_t[]){T, d, r});
    input_grad(k->dc, r, k->dkey, kw, s->K + h * d * r, (size_t[]){T, d, r});
    input_grad(k->dc, r, k->dv, d, s->V + h * d * r, (size_t[]){T, d, r});
    mla_shared_turn(j->p, k->dq2, (size_t[]){T, w, s->R, s->rot}, s->rot, true);
    weight_grad(g->Q2 + h * w * s->rot, k->dq2, w, j->row->q + h * d, Hd, (size_t[]){T, w, s->rot});
    float *mu = g->mu + h * d;
    memset(mu, 0, d * sizeof *mu);
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < d; i++) mu[i] += k->dv[t * d + i];
        for (size_t i = 0; i < w; i++) k->dz[t * w + i] += k->dkey[t * kw + d + i];
    }
}

double mla_shared_loss(const mla_shared_problem *p, mla_shared_work *k, const mla_shared_row *row, const mla_shared *s, double *energy, mla_shared *grad)
{
    job j = {p, k, row, s, grad};
    size_t T = row->T, w = s->R * s->rot;
    mla_span span = whole(&j);
    mla_output x = {.width = s->H * s->d, .WW = p->WW, .gamma = row->gamma, .o = row->o, .A = k->A, .B = k->B};
    if (energy) *energy = mla_output_loss(&x, &span, NULL);
    apply(k->c, s->r, row->x, s->D, s->E, (size_t[]){T, s->r, s->D});
    apply(k->z, w, row->x, s->D, s->KR, (size_t[]){T, w, s->D});
    mla_shared_turn(p, k->z, (size_t[]){T, w, s->R, s->rot}, s->rot, false);
    for (size_t h = 0; h < s->H; h++) head_forward(&j, h);
    double loss = mla_output_loss(&x, &span, k->o);
    if (!grad) return loss;
    mla_output_back(&x, &span, k->o);
    memset(k->dc, 0, T * s->r * sizeof(float));
    memset(k->dz, 0, T * w * sizeof(float));
    for (size_t h = 0; h < s->H; h++) head_back(&j, h);
    weight_grad(grad->E, k->dc, s->r, row->x, s->D, (size_t[]){T, s->r, s->D});
    mla_shared_turn(p, k->dz, (size_t[]){T, w, s->R, s->rot}, s->rot, true);
    weight_grad(grad->KR, k->dz, w, row->x, s->D, (size_t[]){T, w, s->D});
    return loss;
}
