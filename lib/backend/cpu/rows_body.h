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

MLA_VEC v16 silu(v16 x) { return v16_mul(x, v16_sigmoid(x)); }

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

/* n <= 16 scaled logits, minus infinity in the other lanes so that their probability is exactly zero */
MLA_VEC v16 logits16(const float *s, size_t n, v16 scale)
{
    float t[16];
    v16 x = v16_mul(v16_load(s), scale);
    if (n >= 16) return x;
    v16_store(t, x);
    for (size_t i = n; i < 16; i++) t[i] = -INFINITY;
    return v16_load(t);
}

/* Sixteen rows at a time: maxima first, then the sixteen factors at once, then the rows' exponentials. */
static void row_softmax(const mla_softmax_rows *r)
{
    v16 scale = v16_set(r->scale);
    for (size_t r0 = 0; r0 < r->rows; r0 += 16) {
        size_t rows = r->rows - r0 < 16 ? r->rows - r0 : 16;
        float top[16] = {0}, factor[16] = {0};
        for (size_t i = 0; i < rows; i++) {
            const float *s = r->s + (r0 + i) * MLA_BLOCK;
            v16 m = v16_set(-INFINITY);
            for (size_t b = 0; b < r->n[r0 + i]; b += 16) m = v16_max(m, logits16(s + b, r->n[r0 + i] - b, scale));
            float old = r->m[r0 + i], hi = v16_hmax(m);
            top[i] = old > hi ? old : hi;
            factor[i] = old - top[i];
        }
        v16_store(factor, v16_exp(v16_load(factor)));
        for (size_t i = 0; i < rows; i++) {
            const float *s = r->s + (r0 + i) * MLA_BLOCK;
            size_t n = r->n[r0 + i], to = r->to[r0 + i];
            v16 sum = v16_set(0), m = v16_set(top[i]);
            if (n == 0) continue;
            if (n == MLA_BLOCK) { /* the common case, its four exponentials interleaved */
                v16 p[MLA_BLOCK / 16];
                MLA_UNROLL
                for (size_t b = 0; b < MLA_BLOCK / 16; b++) p[b] = v16_exp(v16_sub(v16_mul(v16_load(s + 16 * b), scale), m));
                MLA_UNROLL
                for (size_t b = 0; b < MLA_BLOCK / 16; b++) {
                    v16_store(r->p + to * MLA_LDA + 16 * b, p[b]);
                    sum = v16_add(sum, p[b]);
                }
                n = 0;
            }
            for (size_t b = 0; b < n; b += 16) {
                v16 p = v16_exp(v16_sub(logits16(s + b, n - b, scale), m));
                v16_store(r->p + to * MLA_LDA + b, p);
                sum = v16_add(sum, p);
            }
            r->al[to] = factor[i];
            r->m[r0 + i] = top[i];
            r->l[r0 + i] = fmaf(r->l[r0 + i], factor[i], v16_sum(sum));
        }
    }
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

/* w <= 16 stored values from element i on, times s; t is a constant in every call */
MLA_VEC v16 load_stored(const mla_dtype t, const void *row, size_t i, size_t w, v16 s)
{
    if (t == MLA_F32) return v16_mul(v16_loadn((const float *)row + i, w), s);
    if (t == MLA_BF16) {
        uint16_t tail[16] = {0};
        const uint16_t *p = (const uint16_t *)row + i;
        if (w < 16) p = memcpy(tail, p, w * sizeof *p);
        return v16_mul(v16_load_bf16(p), s);
    }
    uint8_t tail[16] = {0};
    const uint8_t *p = (const uint8_t *)row + i;
    if (w < 16) p = memcpy(tail, p, w);
    return v16_mul(v16_load_e4m3(p), s);
}

#define MLA_LINE 64 /* bytes brought by one prefetch */

MLA_VEC void values_of(const mla_dtype t, float *dst, const mla_stored_rows *r)
{
    const size_t bytes = t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1;
    size_t w0 = r->d < 16 ? r->d : 16, w1 = r->d - w0;
    v16 s = v16_set(r->scale);
    for (size_t i = 0; i < r->n; i++, dst += MLA_NR) {
        __builtin_prefetch((const char *)r->next[i] + r->col * bytes, 0, 2);
        if (t == MLA_F32) __builtin_prefetch((const char *)r->next[i] + r->col * bytes + MLA_LINE, 0, 2);
        if (w1 == 16) {
            v16_store(dst, load_stored(t, r->row[i], r->col, 16, s));
            v16_store(dst + 16, load_stored(t, r->row[i], r->col + 16, 16, s));
        } else {
            v16_store(dst, load_stored(t, r->row[i], r->col, w0, s));
            v16_store(dst + 16, w1 ? load_stored(t, r->row[i], r->col + 16, w1, s) : v16_set(0));
        }
    }
}

static void row_values(float *dst, const mla_stored_rows *r)
{
    if (r->dtype == MLA_BF16)
        values_of(MLA_BF16, dst, r);
    else if (r->dtype == MLA_F8_E4M3)
        values_of(MLA_F8_E4M3, dst, r);
    else
        values_of(MLA_F32, dst, r);
}

#if !defined(MLA_SIMD_REF) && defined(__AVX512F__)
#define GDN_VECS 2 /* column vectors walked together: as many as the registers hold */
#else
#define GDN_VECS 1
#endif

#define GDN_AHEAD 6 /* tokens */

typedef struct { /* S'k and S'q of 16 columns, even and odd rows apart so that the chains are half as long */
    v16 k[GDN_VECS][2], q[GDN_VECS][2];
} gdn_sums;

typedef struct { /* one token's part in a pass */
    const float *k;        /* (dk) updates the state with delta; only when update */
    v16 delta[GDN_VECS], al;
    const float *kn, *qn;  /* (dk) of the token whose sums are taken; only when sum */
} gdn_token;

/* Row i of the state: updated, then added to the sums. update and sum are constants in every call. */
MLA_VEC void gdn_row(const bool update, const bool sum, float *s, const gdn_token *t, size_t i, const size_t parity, gdn_sums *u)
{
    MLA_UNROLL
    for (size_t v = 0; v < GDN_VECS; v++) {
        v16 x = v16_load(s + 16 * v);
        if (update) {
            x = v16_fma(v16_set(t->k[i]), t->delta[v], v16_mul(t->al, x));
            v16_store(s + 16 * v, x);
        }
        if (sum) {
            u->k[v][parity] = v16_fma(v16_set(t->kn[i]), x, u->k[v][parity]);
            u->q[v][parity] = v16_fma(v16_set(t->qn[i]), x, u->q[v][parity]);
        }
    }
}

MLA_VEC void gdn_pass(const bool update, const bool sum, float *s, size_t lds, size_t dk, const gdn_token *t, gdn_sums *out)
{
    gdn_sums u;
    gdn_token tok = *t; /* a local copy: stores to the state cannot change it */
    MLA_UNROLL
    for (size_t v = 0; v < GDN_VECS; v++) u.k[v][0] = u.k[v][1] = u.q[v][0] = u.q[v][1] = v16_set(0);
    size_t i = 0;
    for (; i + 2 <= dk; i += 2) {
        gdn_row(update, sum, s + i * lds, &tok, i, 0, &u);
        gdn_row(update, sum, s + (i + 1) * lds, &tok, i + 1, 1, &u);
    }
    if (i < dk) gdn_row(update, sum, s + i * lds, &tok, i, 0, &u);
    *out = u;
}

/* Columns c .. of the block. One pass over the state per token: S <- alpha S + k delta' and, on the way, the next
 * token's S'k and S'q; then delta = beta (v - alpha S'k), o = alpha S'q + (k.q) delta. */
MLA_VEC void gdn_columns(const mla_gdn_block *g, size_t c)
{
    gdn_sums u;
    gdn_token tok = {.al = v16_set(0), .kn = g->k, .qn = g->q};
    float *s = g->s + c;
    for (size_t v = 0; v < GDN_VECS; v++) tok.delta[v] = tok.al;
    gdn_pass(false, true, s, g->lds, g->dk, &tok, &u);
    for (size_t t = 0; t < g->T; t++) {
        if (t + GDN_AHEAD < g->T) /* rows of v and o lie pages apart: no hardware prefetcher follows them */
            for (size_t v = 0; v < GDN_VECS; v++) {
                __builtin_prefetch(g->v + (t + GDN_AHEAD) * g->ldv + c + 16 * v);
                __builtin_prefetch(g->o + (t + GDN_AHEAD) * g->ldo + c + 16 * v, 1);
            }
        v16 be = v16_set(g->beta[t * g->ldg]), kq = v16_set(g->kq[t * g->ldkq]);
        tok.al = v16_set(g->alpha[t * g->ldg]);
        for (size_t v = 0; v < GDN_VECS && c + 16 * v < g->n; v++) {
            size_t at = c + 16 * v, w = g->n - at < 16 ? g->n - at : 16;
            v16 ks = v16_mul(tok.al, v16_add(u.k[v][0], u.k[v][1])), qs = v16_mul(tok.al, v16_add(u.q[v][0], u.q[v][1]));
            tok.delta[v] = v16_mul(be, v16_sub(v16_loadn(g->v + t * g->ldv + at, w), ks));
            v16_storen(g->o + t * g->ldo + at, v16_fma(kq, tok.delta[v], qs), w);
        }
        tok.k = g->k + t * g->ldqk;
        tok.kn = tok.k + g->ldqk;
        tok.qn = g->q + (t + 1) * g->ldqk;
        if (t + 1 < g->T)
            gdn_pass(true, true, s, g->lds, g->dk, &tok, &u);
        else
            gdn_pass(true, false, s, g->lds, g->dk, &tok, &u);
    }
}

static void row_gdn(const mla_gdn_block *g)
{
    for (size_t c = 0; c < g->n; c += 16 * GDN_VECS) gdn_columns(g, c);
}

static void fill_rows(mla_cpu_kern *k)
{
    k->widen = row_widen, k->sumsq = row_sumsq, k->dot = row_dot, k->norm = row_norm, k->gated = row_gated, k->add = row_add;
    k->scale = row_scale, k->silu_mul = row_silu_mul, k->sigmoid_mul = row_sigmoid_mul, k->rope = row_rope, k->exp = row_exp;
    k->values = row_values, k->softmax = row_softmax, k->probs = row_probs, k->conv = row_conv, k->gdn = row_gdn;
}
#endif
