/* Paged MLA/GLA decode: s_q new tokens of each sequence attend over its cached rows.
 *
 * logit(b,t,h,s) = scale * ( k_scale q[b,t,h] . c[s, group(h)] + kr_scale q2[b,t,h] . r[s, h k2h/H] ),  s <= len_b - s_q + t
 * o[b,t,h] = k_scale * sum_s softmax(logit)_s c[s, group(h)], or of values of their own (GQA; bf16, no rotary part apart)
 * c = latent (groups x lat), r = rotary keys (rope_heads x rope) of the cached row; pages of 64 tokens, row of token s
 * in slot table[b][s / 64] * 64 + s % 64. Rows are bf16 or e4m3. All strides are 64-bit and in elements.
 * Sums in fp32; products in bf16 (bf16 cache) or f16 (e4m3 cache: e4m3 -> f16 is exact, queries are rounded to f16 after
 * an exact power-of-two scaling of each row). Deterministic: the same inputs and plan give the same bits. */
#ifndef MLA_CUDA_DECODE_H
#define MLA_CUDA_DECODE_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "tensor/dtype.h"
#ifdef __cplusplus
extern "C" {
#endif

enum { MLA_DECODE_PAGE = 64 };

typedef struct {
    const void *base;   /* device; element 0 of slot 0 (16-byte aligned) */
    int64_t stride;     /* elements between slots (a multiple of 16 bytes) */
    int64_t col;        /* first element of this part within the row */
    float scale;        /* value = stored * scale; 1 for bf16 */
} mla_decode_part;

typedef struct {
    const void *p;      /* device; bf16 or f32 */
    int64_t b, t, h;    /* elements between sequences, tokens, heads */
    mla_dtype dtype;
} mla_decode_rows;

typedef struct {
    size_t B, s_q, H, groups, lat;  /* lat: latent values per group, a multiple of 128 */
    size_t rope, rope_heads;        /* rope * rope_heads a multiple of 64; rope == 0: no rotary part */
    mla_dtype cache;                /* MLA_BF16 or MLA_F8_E4M3 */
    mla_decode_part c, r;
    mla_decode_part v;              /* base NULL: c serves as keys and values; otherwise values apart (GQA), lat wide, too */
    size_t pages;                   /* pages in the pool: table entries are below it */
    const int32_t *table;           /* device (B, table_stride) */
    int64_t table_stride;
    const int32_t *len;             /* device (B): cached tokens, the s_q new ones included; 0: outputs are zero */
    mla_decode_rows q, q2, o;       /* o: written, bf16 or f32 */
    float *lse;                     /* device (B, s_q, H) natural log-sum-exp of the logits, or NULL */
    float scale;
    void *ws;                       /* device workspace of mla_decode_ws_bytes */
    int variant;                    /* 0: best for the device; 1: the plain kernel */
    size_t max_parts;               /* most parts the cached tokens are cut into; 0: as many as fill the device */
} mla_decode;

/* Device bytes that plan and run need for these shapes on the current device. 0: shape not supported. */
size_t mla_decode_ws_bytes(const mla_decode *d);
/* Distributes the cached tokens over the SMs into d->ws; valid for every layer with the same lengths and shapes. */
MLA_CHECKED mla_status mla_decode_plan(const mla_decode *d, void *stream, mla_err *err);
/* Queues the decode on the stream. EUNSUPPORTED names the shape no kernel was built for. */
MLA_CHECKED mla_status mla_decode_run(const mla_decode *d, void *stream, mla_err *err);
/* The reference in fp64, one thread per output value: o as f32 (B, s_q, H, lat) dense. scratch: B*s_q*H*maxlen doubles. */
MLA_CHECKED mla_status mla_decode_reference(const mla_decode *d, float *o, double *scratch, size_t maxlen, void *stream,
                                            mla_err *err);
#ifdef __cplusplus
}
#endif
#endif
