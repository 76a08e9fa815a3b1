/* Row kernels, written once on sixteen lanes (simd.h) and compiled by each variant's file, which fills its table from
 * the functions below. Everything here gives the same bits in every variant. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_ROWS_BODY_H
#define MLA_BACKEND_CPU_ROWS_BODY_H
#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"

static float row_dot(const float *x, const float *y, size_t n)
{
    v16 a[4] = {v16_set(0), v16_set(0), v16_set(0), v16_set(0)};
    size_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (size_t j = 0; j < 4; j++) a[j] = v16_fma(v16_load(x + i + 16 * j), v16_load(y + i + 16 * j), a[j]);
    for (; i + 16 <= n; i += 16) a[0] = v16_fma(v16_load(x + i), v16_load(y + i), a[0]);
    if (i < n) a[0] = v16_fma(v16_loadn(x + i, n - i), v16_loadn(y + i, n - i), a[0]);
    return v16_sum(v16_add(v16_add(a[0], a[1]), v16_add(a[2], a[3])));
}

static float row_sumsq(const float *x, size_t n) { return row_dot(x, x, n); }

static void row_norm(float *y, const float *x, const float *gain, float inv, size_t n)
{
    v16 s = v16_set(inv);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), s), v16_load(gain + i)));
    if (i < n) v16_storen(y + i, v16_mul(v16_mul(v16_loadn(x + i, n - i), s), v16_loadn(gain + i, n - i)), n - i);
}

MLA_INLINE v16 silu(v16 x) { return v16_mul(x, v16_sigmoid(x)); }

static void row_gated(float *y, const float *x, const float *gain, const float *z, float inv, size_t n)
{
    v16 s = v16_set(inv);
    for (size_t i = 0; i < n; i += 16) {
        size_t w = n - i < 16 ? n - i : 16;
        v16 a = v16_mul(v16_mul(v16_loadn(x + i, w), s), v16_loadn(gain + i, w));
        v16_storen(y + i, v16_mul(a, silu(v16_loadn(z + i, w))), w);
    }
}

static void row_add(float *y, const float *x, float s, size_t n)
{
    v16 f = v16_set(s);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(y + i, v16_fma(v16_load(x + i), f, v16_load(y + i)));
    if (i < n) v16_storen(y + i, v16_fma(v16_loadn(x + i, n - i), f, v16_loadn(y + i, n - i)), n - i);
}

static void row_scale(float *y, const float *x, float s, size_t n)
{
    v16 f = v16_set(s);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(y + i, v16_mul(v16_load(x + i), f));
    if (i < n) v16_storen(y + i, v16_mul(v16_loadn(x + i, n - i), f), n - i);
}

static void row_silu_mul(float *y, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t w = n - i < 16 ? n - i : 16;
        v16_storen(y + i, v16_mul(silu(v16_loadn(a + i, w)), v16_loadn(b + i, w)), w);
    }
}

static void row_sigmoid_mul(float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t w = n - i < 16 ? n - i : 16;
        v16_storen(x + i, v16_mul(v16_loadn(x + i, w), v16_sigmoid(v16_loadn(gate + i, w))), w);
    }
}

static void row_rope(float *x, const float *c, const float *s, size_t half)
{
    for (size_t i = 0; i < half; i += 16) {
        size_t w = half - i < 16 ? half - i : 16;
        v16 a = v16_loadn(x + i, w), b = v16_loadn(x + half + i, w), cs = v16_loadn(c + i, w), sn = v16_loadn(s + i, w);
        v16_storen(x + i, v16_sub(v16_mul(a, cs), v16_mul(b, sn)), w);
        v16_storen(x + half + i, v16_add(v16_mul(b, cs), v16_mul(a, sn)), w);
    }
}

static void row_exp(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t w = n - i < 16 ? n - i : 16;
        v16_storen(y + i, v16_exp(v16_loadn(x + i, w)), w);
    }
}

static float row_softmax(const mla_softmax_row *r)
{
    v16 sc = v16_set(r->scale), top = v16_set(-INFINITY), x[MLA_BLOCK / 16];
    size_t nb = (r->n + 15) / 16;
    for (size_t b = 0; b < nb; b++) {
        size_t w = r->n - 16 * b < 16 ? r->n - 16 * b : 16;
        x[b] = v16_mul(v16_load(r->s + 16 * b), sc);
        if (w < 16) { /* lanes past n: minus infinity, so that their probability is exactly zero */
            float t[16];
            v16_store(t, x[b]);
            for (size_t i = w; i < 16; i++) t[i] = -INFINITY;
            x[b] = v16_load(t);
        }
        top = v16_max(top, x[b]);
    }
    float m_old = *r->m, hi = v16_hmax(top), m = m_old > hi ? m_old : hi;
    v16 sum = v16_set(0), mv = v16_set(m);
    for (size_t b = 0; b < nb; b++) {
        v16 p = v16_exp(v16_sub(x[b], mv));
        v16_store(r->p + 16 * b, p);
        sum = v16_add(sum, p);
    }
    float d[16] = {0};
    d[0] = m_old - m;
    v16_store(d, v16_exp(v16_load(d)));
    *r->m = m;
    *r->l = fmaf(*r->l, d[0], v16_sum(sum));
    return d[0];
}

static void row_probs(float *p, const float *s, size_t n, float scale, float m, float inv)
{
    v16 sc = v16_set(scale), mv = v16_set(m), iv = v16_set(inv);
    for (size_t i = 0; i < n; i += 16) {
        size_t w = n - i < 16 ? n - i : 16;
        v16_storen(p + i, v16_mul(v16_exp(v16_sub(v16_mul(v16_loadn(s + i, w), sc), mv)), iv), w);
    }
}

static void row_conv(float *y, const float *w, size_t ldw, const float *const *x, size_t K, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        size_t k = n - i < 16 ? n - i : 16;
        v16 a = v16_set(0);
        for (size_t j = 0; j < K; j++) a = v16_fma(v16_loadn(w + j * ldw + i, k), v16_loadn(x[j] + i, k), a);
        v16_storen(y + i, silu(a), k);
    }
}

static void row_widen(float *dst, const void *src, mla_dtype t, size_t n, float scale)
{
    v16 s = v16_set(scale);
    size_t i = 0;
    if (t == MLA_BF16) {
        const uint16_t *p = src;
        for (; i + 16 <= n; i += 16) v16_store(dst + i, v16_mul(v16_load_bf16(p + i), s));
        for (; i < n; i++) dst[i] = mla_bf16_f32(p[i]) * scale;
    } else if (t == MLA_F8_E4M3) {
        const uint8_t *p = src;
        for (; i + 16 <= n; i += 16) v16_store(dst + i, v16_mul(v16_load_e4m3(p + i), s));
        for (; i < n; i++) dst[i] = mla_e4m3_f32(p[i]) * scale;
    } else {
        row_scale(dst, src, scale, n);
    }
}

/* One step: S <- alpha S + k delta, delta = beta (v - alpha S'k), o = alpha S'q + (k.q) delta. The dots run over four
 * interleaved partial sums so that the chain is short. */
static void row_gdn(const mla_gdn_block *g)
{
    for (size_t t = 0; t < g->T; t++) {
        const float *q = g->q + t * g->ldqk, *k = g->k + t * g->ldqk;
        v16 ks[4], qs[4], al = v16_set(g->alpha[t * g->ldg]), be = v16_set(g->beta[t * g->ldg]);
        for (size_t j = 0; j < 4; j++) ks[j] = qs[j] = v16_set(0);
        size_t i = 0;
        for (; i + 4 <= g->dk; i += 4) {
            MLA_UNROLL
            for (size_t j = 0; j < 4; j++) {
                v16 s = v16_load(g->s + (i + j) * MLA_GDN_COLS);
                ks[j] = v16_fma(v16_set(k[i + j]), s, ks[j]);
                qs[j] = v16_fma(v16_set(q[i + j]), s, qs[j]);
            }
        }
        for (size_t j = 0; i + j < g->dk; j++) {
            v16 s = v16_load(g->s + (i + j) * MLA_GDN_COLS);
            ks[j] = v16_fma(v16_set(k[i + j]), s, ks[j]);
            qs[j] = v16_fma(v16_set(q[i + j]), s, qs[j]);
        }
        v16 sk = v16_add(v16_add(ks[0], ks[1]), v16_add(ks[2], ks[3]));
        v16 sq = v16_add(v16_add(qs[0], qs[1]), v16_add(qs[2], qs[3]));
        v16 delta = v16_mul(be, v16_sub(v16_loadn(g->v + t * g->ldv, g->n), v16_mul(al, sk)));
        v16 o = v16_fma(v16_set(g->kq[t * g->ldkq]), delta, v16_mul(al, sq));
        v16_storen(g->o + t * g->ldo, o, g->n);
        for (i = 0; i < g->dk; i++) {
            float *s = g->s + i * MLA_GDN_COLS;
            v16_store(s, v16_fma(v16_set(k[i]), delta, v16_mul(al, v16_load(s))));
        }
    }
}

#define MLA_ROW_KERNELS                                                                                            \
    .widen = row_widen, .sumsq = row_sumsq, .dot = row_dot, .norm = row_norm, .gated = row_gated, .add = row_add,  \
    .scale = row_scale, .silu_mul = row_silu_mul, .sigmoid_mul = row_sigmoid_mul, .rope = row_rope, .exp = row_exp, \
    .softmax = row_softmax, .probs = row_probs, .conv = row_conv, .gdn = row_gdn
#endif
