/* Layout absorbed-rope in the local problem: keys [K_h c | z] and queries [q | Rq q], read forwards and backwards. */
#include <string.h>

#include "backend/fit.h"
#include "linalg/gemm.h"
#include "retrofit/refine/refine_work.h"

/* q without its rotation: the transposed rotation carries the attention factor twice. */
static void plain_query(float *q, const mla_local *p, size_t t, size_t d)
{
    float twice = p->cos[0] * p->cos[0]; /* angle 0 */
    mla_local_rotate(q, p, t, -1);
    for (size_t i = 0; i < p->rot && i < d; i++) q[i] /= twice;
}

void mla_slots_inputs(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f)
{
    size_t T = row->T, d = p->d, gd = p->G * d, kw = d + w->w, hk = p->H * kw, Hd = p->H * d;
    for (size_t t = 0; t < T; t++) {
        memcpy(w->kr + t * gd, row->y + t * p->n, gd * sizeof(float));
        for (size_t g = 0; g < p->G; g++) mla_local_rotate(w->kr + t * gd + g * d, p, t, 1);
    }
    mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = w->w, .K = gd, .alpha = 1, .a = w->kr, .lda = gd, .b = f->Er, .ldb = gd, .c = w->z, .ldc = w->w});
    for (size_t h = 0; h < p->H; h++) {
        const float *Rq = f->Rq + h / (p->H / p->G) * w->w * d;
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = w->w, .K = d, .alpha = 1, .a = row->q + h * d, .lda = Hd, .b = Rq, .ldb = d,
                                    .c = w->Q + h * kw + d, .ldc = hk});
        for (size_t t = 0; t < T; t++) {
            float *q = w->Q + t * hk + h * kw, *k = w->K + (h * T + t) * kw;
            memcpy(q, row->q + t * Hd + h * d, d * sizeof *q);
            plain_query(q, p, t, d);
            memcpy(k, w->Yh + t * w->nd + h * d, d * sizeof *k);
            memcpy(k + d, w->z + t * w->w, w->w * sizeof *k);
        }
    }
}

mla_head mla_slots_head(const mla_local *p, const mla_local_work *w, const mla_local_row *row, size_t h)
{
    size_t T = row->T, d = p->d, kw = d + w->w;
    mla_span s = mla_local_span(row);
    return (mla_head){.dk = kw, .dv = d, .scale = p->scale, .q = w->Q + h * kw, .ldq = p->H * kw, .k = w->K + h * T * kw, .ldk = kw,
                      .v = w->Yh + p->H * d + h / (p->H / p->G) * d, .ldv = w->nd, .P = w->P + h * mla_span_queries(&s) * T};
}

void mla_slots_back(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f, mla_factors *grad)
{
    size_t T = row->T, d = p->d, gd = p->G * d, kw = d + w->w, Hd = p->H * d, m = p->H / p->G;
    mla_span s = mla_local_span(row);
    memset(w->dY, 0, T * w->nd * sizeof(float));
    memset(w->dz, 0, T * w->w * sizeof(float));
    memset(grad->Rq, 0, w->w * gd * sizeof(float));
    for (size_t h = 0; h < p->H; h++) {
        mla_head head = mla_slots_head(p, w, row, h);
        mla_head_grad g = {.dk = w->dK, .lddk = kw, .dv = w->dY + Hd + h / m * d, .lddv = w->nd, .dq = w->dq, .lddq = w->w, .from = d, .S = w->S};
        memset(w->dK, 0, T * kw * sizeof(float));
        mla_head_backward(&head, &s, w->o + h * d, Hd, &g);
        for (size_t t = 0; t < T; t++) {
            memcpy(w->dY + t * w->nd + h * d, w->dK + t * kw, d * sizeof(float));
            for (size_t i = 0; i < w->w; i++) w->dz[t * w->w + i] += w->dK[t * kw + d + i];
        }
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = w->w, .N = d, .K = mla_span_queries(&s), .alpha = 1, .beta = 1, .a = w->dq, .lda = w->w,
                                    .b = row->q + s.phase * Hd + h * d, .ldb = s.stride * Hd, .c = grad->Rq + h / m * w->w * d, .ldc = d});
    }
    mla_sgemm(&(mla_sgemm_args){.ta = true, .M = w->w, .N = gd, .K = T, .alpha = 1, .a = w->dz, .lda = w->w, .b = w->kr, .ldb = gd, .c = grad->Er, .ldc = gd});
    mla_commute(grad->Er, f->Er, w->w, gd, d, p->rot);
    for (size_t g = 0; g < p->G; g++) mla_commute(grad->Rq + g * w->w * d, f->Rq + g * w->w * d, w->w, d, d, p->rot);
}
