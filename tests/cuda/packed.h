/* What tests of packed weights share: weights, products, bounds of products with bf16, drawn codes. */
#ifndef MLA_TESTS_CUDA_PACKED_H
#define MLA_TESTS_CUDA_PACKED_H
#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "tell.h"
#include "tensor/bound.h"
#include "tensor/coded.h"
#include "tensor/fp.h"

static mla_backend *cpu, *gpu;

static inline mla_mem *mem(mla_backend *be, const void *src, size_t bytes)
{
    mla_mem *p;
    must(be->ops->alloc(be, &p, bytes, &err), "memory");
    must(be->ops->upload(be, p, src, bytes, &err), "upload");
    return p;
}

/* y (T, out) on the host; caller frees. bias (out) and added (T, out): NULL without. */
static inline float *product_on(mla_backend *be, const mla_weight *w, const float *x, size_t T, size_t in, size_t out, const float *bias, const float *added)
{
    float *y = mla_alloc(T, out, sizeof *y);
    for (size_t i = 0; i < T * out; i++) y[i] = NAN; /* every output is written */
    mla_mem *X = mem(be, x, T * in * 4), *Y = mem(be, added ? added : y, T * out * 4), *B = mem(be, bias ? bias : x, bias ? out * 4 : 4);
    mla_linear_args a = {.y = Y, .ldy = out, .x = X, .ldx = in, .T = T, .bias = bias ? B : NULL, .accumulate = added != NULL};
    must(be->ops->linear(be, w, &a, &err), "linear");
    must(be->ops->download(be, y, Y, T * out * 4, &err), "download");
    be->ops->free(be, X);
    be->ops->free(be, Y);
    be->ops->free(be, B);
    return y;
}
static inline float *product(mla_backend *be, const mla_weight *w, const float *x, size_t T, size_t in, size_t out) { return product_on(be, w, x, T, in, out, NULL, NULL); }
static inline float *normals(size_t n, uint64_t seed)
{
    float *x = mla_alloc(n, 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)mla_rng_normal(seed, i);
    return x;
}
static inline mla_weight *weight(mla_backend *be, const mla_weight_desc *d)
{
    mla_weight *w;
    must(be->ops->weight_new(be, &w, d, &err), "weight");
    return w;
}

static inline mla_status no_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *e)
{
    (void)ctx, (void)row0, (void)n, (void)dst;
    return mla_fail(e, MLA_EINTERNAL, "asked for decoded rows");
}
/* One to eight tokens with bf16 products: weights as they are, x rounded to bf16. Sums of s v x and of m x, each of the size of
 * the row's numbers, in fp32 or by tensor cores, which may cut where fp32 rounds: twice as much; three tokens with bias and added. One token
 * alone has the bits that it has among eight. */
static inline void few_products(const char *name, const mla_weight *b, const float *w, const float *x, size_t out, size_t in)
{
    const double g = 2 * mla_gamma_prob(MLA_F32, in + 20);
    static const size_t COUNT[] = {1, 3, 8};
    float *alone = NULL;
    for (size_t n = 0; n < sizeof COUNT / sizeof *COUNT; n++) {
        size_t T = COUNT[n];
        float *bias = T == 3 ? normals(out, 6) : NULL, *added = T == 3 ? normals(T * out, 7) : NULL;
        for (size_t i = 0; bias && i < T * out; i++) added[i] *= 1e4f, bias[i % out] *= i < out ? 1e4f : 1; /* above the other sums' bounds */
        float *y = product_on(gpu, b, x, T, in, out, bias, added);
        bool near = true;
        for (size_t t = 0; t < T; t++)
            for (size_t o = 0; o < out; o++) {
                double want = 0, top = 0, sum = 0;
                for (size_t i = 0; i < in; i++) {
                    double v = mla_bf16_f32(mla_f32_bf16(x[t * in + i])), k = w[o * in + i];
                    want += k * v, sum += fabs(v), top = fmax(top, fabs(k));
                }
                double last = T == 3 ? fabs(bias[o]) + fabs(added[t * out + o]) : 0; /* two more sums, of the size of all */
                if (T == 3) want += (double)bias[o] + (double)added[t * out + o];
                near &= fabs(y[t * out + o] - want) <= 4 * g * top * sum + 0x1p-23 * (top * sum + last);
            }
        if (T == 8) near &= !memcmp(y, alone, out * 4);
        check(near, name, T == 1 ? "product of one token" : "products of few tokens");
        if (T == 1) alone = y;
        else mla_free(y);
        mla_free(bias), mla_free(added);
    }
    mla_free(alone);
}

/* Drawn codes in sizes that fill no word, no octet and no tile of a warp; their numbers are read from the CPU's packed form. */
typedef struct {
    mla_code code;
    unsigned bits;
    mla_scale_kind scale;
    mla_offset_kind offset;
    size_t out, in, group, super;
    bool moved, bad; /* columns in another order; one code that is no number */
} drawn;

static inline mla_status draw_row(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *e)
{
    const drawn *d = c->ctx;
    (void)e;
    for (size_t i = 0; i < c->in; i++) {
        uint32_t q = (uint32_t)mla_rng_u64(1, row * 32768 + i) & ((1u << d->bits) - 1);
        uint16_t h = mla_f32_f16((float)(q % 1000) * 0.37f - 180);
        if (d->code == MLA_CODE_E4M3 && (q & 0x7f) == 0x7f) q = 0;
        if (d->bad && row == d->out - 1 && i == c->in - 1) q = 0x7f;
        if (d->bits == 16) memcpy(to->code + 2 * i, &h, 2);
        else to->code[i] = (uint8_t)q;
    }
    for (size_t g = 0; g * c->group < c->in; g++) {
        uint16_t h = (uint16_t)(0x3800 + mla_rng_u64(2, row * 4096 + g) % 0x700), o = (uint16_t)(0x3800 + mla_rng_u64(3, row * 4096 + g) % 0x700), b = mla_f32_bf16(mla_f16_f32(h));
        float f = mla_f16_f32(h) * 1.0001f;
        size_t size = mla_scale_size(d->scale);
        memcpy(to->scale + size * g, d->scale == MLA_SCALE_F32 ? (void *)&f : d->scale == MLA_SCALE_BF16 ? (void *)&b : (void *)&h, size);
        memcpy(to->offset + mla_offset_size(d->offset) * g, &o, mla_offset_size(d->offset));
    }
    for (size_t u = 0; d->super && u * d->super < c->in; u++) {
        to->super[u] = (uint16_t)(0x3800 + mla_rng_u64(4, row * 64 + u) % 0x700);
        if (d->offset >= MLA_OFFSET_SUPER_U8) to->super_off[u] = (uint16_t)(0x3800 + mla_rng_u64(5, row * 64 + u) % 0x700);
    }
    return MLA_OK;
}

static inline mla_coded drawn_codes(const drawn *d)
{
    mla_coded c = {.out = d->out, .in = d->in, .code = d->code, .group = d->group, .scale = d->scale, .offset = d->offset, .super_group = d->super, .fill = draw_row, .ctx = d};
    for (unsigned k = 0; k < 16; k++) c.lo[k] = (float)(k & (d->bits < 4 ? 3 : 15)) - 3, c.hi[k] = (float)((k & (d->bits == 6 ? 3u : 1u)) * (d->bits < 4 ? 4 : 16));
    for (unsigned k = 0; k < 256; k++) c.table[k] = (float)k * 0.013f - 1;
    return c;
}
#endif
