/* What the format files share: finding the stored parts of a module, checking their shapes, reading words and scales.
 * Inside the quant layer only. Messages name the stored tensor, what was expected and what was found. */
#ifndef MLA_QUANT_PARTS_H
#define MLA_QUANT_PARTS_H
#include <string.h>

#include "quant/qconfig.h"
#include "quant/quant.h"
#include "tensor/fp.h"

/* "module.suffix", or NULL when absent (or the name is longer than any tensor's may be). */
const mla_tensor *mla_qpart(const mla_qsource *src, const char *module, const char *suffix);
MLA_CHECKED mla_status mla_qpart_need(const mla_tensor **out, const mla_qsource *src, const char *module, const char *suffix,
                                      mla_err *err);

/* t is of this dtype and shape, and its bytes span it. */
MLA_CHECKED mla_status mla_qpart_is(const mla_tensor *t, mla_dtype dtype, size_t ndim, const size_t *shape, mla_err *err);
/* Its bytes span its shape. */
MLA_CHECKED mla_status mla_qpart_spans(const mla_tensor *t, mla_err *err);
/* A scale of type F32, F16 or BF16. */
MLA_CHECKED mla_status mla_qscale_type(const mla_tensor *t, mla_err *err);

/* Scales over a matrix [out, in]: scale[o / group_out, i / group_in], row-major, cols = ceil(in / group_in).
 * Settles the grid of m (out, in and bits filled) from the shape of t and from `want`, and appends t as a scale part:
 * one element = per tensor; [out, 1] or [out] = per channel; [ceil(out/bh), ceil(in/bw)] = blocks, 128 x 128 unless
 * want says otherwise; [out, in/g] = groups, where by_groups allows them. *strategy is what was found. */
MLA_CHECKED mla_status mla_qgrid_settle(mla_qmat *m, const mla_tensor *t, const mla_qscheme *want, bool by_groups,
                                        mla_qstrategy *strategy, mla_err *err);
/* The scale of group column c of row o, from part p. */
float mla_qgrid_at(const mla_qmat *m, size_t p, size_t o, size_t c);
/* dst[0..in) *= the scales of row o (in order of inputs). */
void mla_qgrid_scale_row(const mla_qmat *m, size_t p, size_t o, float *dst);

/* AWQ and GPTQ: `groups` rows of scales over m->in inputs; settles m->group_in, with `want`'s group size or evenly. */
MLA_CHECKED mla_status mla_qgroups_settle(mla_qmat *m, const mla_tensor *scales, size_t groups, const mla_qscheme *want,
                                          mla_err *err);

/* Appends a part; false when there is no room (a broken invariant). */
void mla_qadd(mla_qmat *m, const mla_tensor *t, bool scale);

/* I32 [in], every entry in [0, groups). natural: entry i is i / group. */
MLA_CHECKED mla_status mla_qgidx_check(const mla_tensor *t, size_t in, size_t groups, size_t group, bool *natural, mla_err *err);

/* ceil(a / b), b > 0 */
static inline size_t mla_qceil(size_t a, size_t b) { return a / b + (a % b != 0); }

/* Stored words need no alignment. */
static inline uint32_t mla_qword(const void *base, size_t i)
{
    uint32_t w;
    memcpy(&w, (const unsigned char *)base + 4 * i, 4);
    return w;
}

static inline float mla_qf16(const void *base, size_t i)
{
    uint16_t h;
    memcpy(&h, (const unsigned char *)base + 2 * i, 2);
    return mla_f16_f32(h);
}

/* One stored scale; types as mla_to_f32. */
static inline float mla_qscale(const mla_tensor *t, size_t i)
{
    float s = 0;
    (void)mla_to_f32(&s, (const unsigned char *)t->data + i * (mla_dtype_bits(t->dtype) / 8), t->dtype, 1);
    return s;
}
#endif
