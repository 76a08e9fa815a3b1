/* Score divisors of layout P: one root mean square per token and KV head, stored beside the token's latent. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "tensor/fp.h"
#include "tensor/log2code.h"

#define F16_LO 0x1p-14f /* normal f16 only: full precision, and no infinity */
#define F16_HI 65504.0f

static size_t elem_bytes(mla_dtype t) { return t == MLA_F32 ? 4 : t == MLA_F16 ? 2 : t == MLA_U8 ? 1 : 0; }

mla_status mla_divisor_check(const mla_kv_view *v, const char *what, mla_err *err)
{
    if (!elem_bytes(v->dtype))
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: divisors in %s: expected F32, F16 or U8 (log2 code)", what, mla_dtype_name(v->dtype));
    if (v->pages && !v->page_tokens) return mla_fail(err, MLA_EINVAL, "%s: pages of 0 tokens", what);
    return MLA_OK;
}

static void write_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const mla_divisor_args *a = ctx;
    const float *center = mla_cf32p(a->center);
    (void)worker;
    for (size_t t = begin; t < end; t++) {
        char *dst = mla_kv_at(&a->to, elem_bytes(a->to.dtype), a->pos0 + t, 0);
        for (size_t h = 0; h < a->heads; h++) {
            const float *x = mla_cf32p(a->x) + t * a->ldx + h * a->d;
            double sum = 0;
            for (size_t i = 0; i < a->d; i++) sum += (double)x[i] * x[i];
            float v = (float)(sqrt(sum / (double)a->d + a->eps) / center[h]);
            if (a->to.dtype == MLA_F32) ((float *)(void *)dst)[h] = v;
            else if (a->to.dtype == MLA_F16) ((uint16_t *)(void *)dst)[h] = mla_f32_f16(v < F16_LO ? F16_LO : v > F16_HI ? F16_HI : v);
            else ((uint8_t *)dst)[h] = mla_log2_encode(v);
        }
    }
}

mla_status mla_cpu_divisor(mla_backend *be, const mla_divisor_args *a, mla_err *err)
{
    mla_status st = mla_divisor_check(&a->to, "divisors", err);
    if (st == MLA_OK) mla_par_for(mla_cpu_of(be)->pool, a->T, 16, write_rows, (void *)(uintptr_t)a);
    return st;
}

void mla_divisor_inverse(float *m, const mla_kv_view *v, size_t head, size_t s0, size_t n)
{
    size_t es = elem_bytes(v->dtype);
    for (size_t s = 0; s < n; s++) {
        const char *p = mla_kv_at(v, es, s0 + s, head);
        float d = v->dtype == MLA_F32 ? *(const float *)(const void *)p
                : v->dtype == MLA_F16 ? mla_f16_f32(*(const uint16_t *)(const void *)p) : mla_log2_decode(*(const uint8_t *)p);
        m[s] = 1 / d;
    }
}
