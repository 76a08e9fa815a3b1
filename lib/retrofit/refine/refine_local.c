/* Forward and backward through encoder, decoder, rotation and attention of one row. */
#include "retrofit/refine/refine_local.h"

#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"
#include "retrofit/refine/refine_work.h"

mla_status mla_local_work_new(mla_local_work **out, const mla_local *p, size_t r, size_t rotary, mla_err *err)
{
    size_t T = p->max_T, Hd = p->H * p->d, F = p->groups * p->n, kw = p->d + rotary;
    mla_local_work *w = mla_alloc(1, 1, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "scratch of a local refinement");
    w->w = rotary;
    w->nd = rotary ? Hd + p->G * p->d : p->n;
    struct { float **to; size_t count; } const part[] = {
        {&w->P, p->H * T}, {&w->S, MLA_HEAD_BLOCK}, {&w->Yc, F}, {&w->Yh, p->groups * w->nd}, {&w->dY, p->groups * w->nd}, {&w->c, p->groups * r},
        {&w->dc, p->groups * r}, {&w->K, (rotary ? p->H : p->G) * kw}, {&w->dK, kw}, {&w->o, Hd}, {&w->A, Hd}, {&w->B, Hd},
        {&w->Q, rotary ? p->H * kw : 0}, {&w->kr, rotary ? p->G * p->d : 0}, {&w->z, rotary}, {&w->dz, rotary}, {&w->dq, rotary},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].count && !(*part[i].to = mla_alloc_raw(T, part[i].count, sizeof(float)))) {
            mla_local_work_free(w);
            return mla_fail(err, MLA_ENOMEM, "scratch of a local refinement: rows of %zu tokens, %zu heads", T, p->H);
        }
    *out = w;
    return MLA_OK;
}

void mla_local_work_free(mla_local_work *w)
{
    if (!w) return;
    float *const all[] = {w->P, w->S, w->Yc, w->Yh, w->dY, w->c, w->dc, w->K, w->dK, w->o, w->A, w->B, w->Q, w->kr, w->z, w->dz, w->dq};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mla_free(all[i]);
    mla_free(w);
}

/* Rotary keys stand beside the latent as they are. */
static bool beside(const mla_local *p) { return p->layout == MLA_LAYOUT_N || p->layout == MLA_LAYOUT_P; }

/* Where KV head g's key and value begin in a row of features, and how many key dims are there. */
typedef struct {
    size_t key, value, dk, ld;
} place;

static place place_of(const mla_local *p, size_t g)
{
    size_t per = p->G / p->groups, a = g / per, i = g % per, dk = beside(p) ? p->d - p->rot : p->d;
    return (place){.key = a * p->n + i * dk, .value = a * p->n + per * dk + i * p->d, .dk = dk, .ld = p->groups * p->n};
}

void mla_local_rotate(float *x, const mla_local *p, size_t t, float s)
{
    size_t half = p->rot / 2;
    const float *cs = p->cos + t * half, *sn = p->sin + t * half;
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cs[i] - s * b * sn[i];
        x[i + half] = b * cs[i] + s * a * sn[i];
    }
}

/* Layout P: the key's latent dims k times the norm's gain over the token's divisor; its own transpose. */
static void divide(float *k, const mla_local *p, const mla_local_row *row, size_t t, size_t g, size_t dk)
{
    float inv = row->inv_rms[t * p->G + g];
    for (size_t i = 0; i < dk; i++) k[i] *= p->gain[i] * inv;
}

/* K (G, T, d) from features y (T, groups, n). */
static void keys_of(float *K, const mla_local *p, const mla_local_row *row, const float *y)
{
    size_t d = p->d, rot = p->rot;
    for (size_t g = 0; g < p->G; g++) {
        place at = place_of(p, g);
        for (size_t t = 0; t < row->T; t++) {
            float *k = K + (g * row->T + t) * d;
            memcpy(k + d - at.dk, y + t * at.ld + at.key, at.dk * sizeof *k);
            if (beside(p)) memcpy(k, row->k_rot + (t * p->G + g) * rot, rot * sizeof *k);
            else mla_local_rotate(k, p, t, 1);
            if (p->layout == MLA_LAYOUT_P) divide(k + rot, p, row, t, g, at.dk);
        }
    }
}

/* Head h as attention sees it, its key from K (G, T, d), its value in y (T, groups, n). */
static mla_head head_at(const mla_local *p, const mla_local_work *w, const mla_local_row *row, const float *y, size_t h)
{
    size_t g = h / (p->H / p->G), d = p->d;
    place at = place_of(p, g);
    mla_span s = mla_local_span(row);
    return (mla_head){.dk = d, .dv = d, .scale = p->scale, .q = row->q + h * d, .ldq = p->H * d, .k = w->K + g * row->T * d, .ldk = d,
                      .v = y + at.value, .ldv = at.ld, .P = w->P + h * mla_span_queries(&s) * row->T};
}

static mla_output output_of(const mla_local *p, const mla_local_work *w, const mla_local_row *row)
{
    return (mla_output){.width = p->H * p->d, .WW = p->WW, .gamma = row->gamma, .o = row->o, .A = w->A, .B = w->B};
}

void mla_local_target(float *o, const mla_local *p, mla_local_work *w, const mla_local_row *row)
{
    mla_span s = mla_local_span(row);
    keys_of(w->K, p, row, row->y);
    for (size_t h = 0; h < p->H; h++) {
        mla_head head = head_at(p, w, row, row->y, h);
        mla_head_forward(&head, &s, o + h * p->d, p->H * p->d);
    }
}

void mla_local_weights(double *w, const mla_local *p, mla_local_work *work, const mla_local_row *row)
{
    size_t T = row->T;
    mla_local_target(work->o, p, work, row);
    memset(w, 0, T * sizeof *w);
    for (size_t i = 0; i < p->H * T; i++)
        for (size_t s = 0; s <= i % T; s++) w[s] += (double)work->P[i * T + s] * work->P[i * T + s];
}

double mla_local_energy(const mla_local *p, mla_local_work *w, const mla_local_row *row)
{
    mla_output x = output_of(p, w, row);
    mla_span s = mla_local_span(row);
    return mla_output_loss(&x, &s, NULL);
}

/* c and what the factors decode it to: D c, and the mean where features are decoded. Absorbed-rope decodes keys of query
 * heads, whose mean is free, and then values. */
static void code(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f)
{
    size_t T = row->T, n = p->n, nd = w->nd, r = f->r, gn = p->groups * n, gd = p->groups * nd, gr = p->groups * r;
    size_t free = w->w ? p->H * p->d : 0, shift = w->w ? p->G * p->d : 0; /* decoded rows without a mean; where the others' means begin */
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < gn; i++) w->Yc[t * gn + i] = row->y[t * gn + i] - f->mu[i];
        memset(w->Yh + t * gd, 0, free * sizeof(float));
        memcpy(w->Yh + t * gd + free, f->mu + shift, (gn - shift) * sizeof(float));
    }
    for (size_t a = 0; a < p->groups; a++) {
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = r, .K = n, .alpha = 1, .a = w->Yc + a * n, .lda = gn, .b = f->E + a * r * n,
                                    .ldb = n, .c = w->c + a * r, .ldc = gr});
        mla_sgemm(&(mla_sgemm_args){.tb = true, .M = T, .N = nd, .K = r, .alpha = 1, .beta = 1, .a = w->c + a * r, .lda = gr,
                                    .b = f->D + a * nd * r, .ldb = r, .c = w->Yh + a * nd, .ldc = gd});
    }
    if (w->w) mla_slots_inputs(p, w, row, f);
    else keys_of(w->K, p, row, w->Yh);
}

/* dY from dL/do^ in w->o. */
static void attend_back(const mla_local *p, mla_local_work *w, const mla_local_row *row)
{
    size_t T = row->T, d = p->d, Hd = p->H * d, per = p->H / p->G;
    mla_span span = mla_local_span(row);
    for (size_t g = 0; g < p->G; g++) {
        place at = place_of(p, g);
        mla_head_grad grad = {.dk = w->dK, .lddk = d, .dv = w->dY + at.value, .lddv = at.ld, .S = w->S};
        memset(w->dK, 0, T * d * sizeof *w->dK);
        for (size_t t = 0; t < T; t++) memset(grad.dv + t * at.ld, 0, d * sizeof(float));
        for (size_t h = g * per; h < (g + 1) * per; h++) {
            mla_head head = head_at(p, w, row, w->Yh, h);
            mla_head_backward(&head, &span, w->o + h * d, Hd, &grad);
        }
        for (size_t t = 0; t < T; t++) {
            float *k = w->dK + t * d;
            if (!beside(p)) mla_local_rotate(k, p, t, -1);
            if (p->layout == MLA_LAYOUT_P) divide(k + p->rot, p, row, t, g, at.dk);
            memcpy(w->dY + t * at.ld + at.key, k + d - at.dk, at.dk * sizeof *k);
        }
    }
}

/* grad of E, D, mu from dY, and c and y - mu as code() left them. */
static void code_back(mla_factors *grad, const mla_local *p, mla_local_work *w, size_t T, const mla_factors *f)
{
    size_t n = p->n, nd = w->nd, r = f->r, gn = p->groups * n, gd = p->groups * nd, gr = p->groups * r;
    size_t shift = w->w ? p->G * p->d : 0, free = nd - (n - shift);
    for (size_t a = 0; a < p->groups; a++) {
        float *mu = grad->mu + a * n;
        const float *E = f->E + a * r * n;
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = nd, .N = r, .K = T, .alpha = 1, .a = w->dY + a * nd, .lda = gd, .b = w->c + a * r, .ldb = gr,
                                    .c = grad->D + a * nd * r, .ldc = r});
        mla_sgemm(&(mla_sgemm_args){.M = T, .N = r, .K = nd, .alpha = 1, .a = w->dY + a * nd, .lda = gd, .b = f->D + a * nd * r, .ldb = r,
                                    .c = w->dc + a * r, .ldc = gr});
        mla_sgemm(&(mla_sgemm_args){.ta = true, .M = r, .N = n, .K = T, .alpha = 1, .a = w->dc + a * r, .lda = gr, .b = w->Yc + a * n, .ldb = gn,
                                    .c = grad->E + a * r * n, .ldc = n});
        memset(mu, 0, n * sizeof *mu); /* mu: once as offset of what is decoded, once subtracted before E */
        for (size_t t = 0; t < T; t++)
            for (size_t i = shift; i < n; i++) mu[i] += w->dY[t * gd + a * nd + free + i - shift];
        for (size_t k = 0; k < r; k++) {
            float sum = 0;
            for (size_t t = 0; t < T; t++) sum += w->dc[t * gr + a * r + k];
            for (size_t i = 0; i < n; i++) mu[i] -= sum * E[k * n + i];
        }
    }
}

double mla_local_loss(const mla_local *p, mla_local_work *w, const mla_local_row *row, const mla_factors *f, mla_factors *grad)
{
    mla_output x = output_of(p, w, row);
    mla_span s = mla_local_span(row);
    code(p, w, row, f);
    for (size_t h = 0; h < p->H; h++) {
        mla_head head = w->w ? mla_slots_head(p, w, row, h) : head_at(p, w, row, w->Yh, h);
        mla_head_forward(&head, &s, w->o + h * p->d, x.width);
    }
    double loss = mla_output_loss(&x, &s, w->o);
    if (!grad) return loss;
    mla_output_back(&x, &s, w->o);
    if (w->w) mla_slots_back(p, w, row, f, grad);
    else attend_back(p, w, row);
    code_back(grad, p, w, row->T, f);
    return loss;
}
