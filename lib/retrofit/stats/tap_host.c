/* Downloads from taps. */
#include "retrofit/stats/tap_host.h"

#include <string.h>

#include "base/alloc.h"

mla_status mla_tap_fetch(mla_backend *be, float *dst, const mla_mem *src, size_t n, mla_err *err)
{
    return be->ops->download(be, dst, src, n * sizeof *dst, err);
}

mla_status mla_tap_fetch_gate(mla_backend *be, float *dst, const mla_tap_attn *a, size_t T, size_t H, size_t d, mla_err *err)
{
    size_t span = (T - 1) * a->gate_ld + (H - 1) * a->gate_h + d;
    if (a->gate_h == d && a->gate_ld == H * d) return mla_tap_fetch(be, dst, a->gate, T * H * d, err);
    float *raw = mla_alloc_raw(span, 1, sizeof *raw);
    if (!raw) return mla_fail(err, MLA_ENOMEM, "gate of %zu tokens", T);
    mla_status st = mla_tap_fetch(be, raw, a->gate, span, err);
    for (size_t t = 0; st == MLA_OK && t < T; t++)
        for (size_t h = 0; h < H; h++) memcpy(dst + (t * H + h) * d, raw + t * a->gate_ld + h * a->gate_h, d * sizeof *dst);
    mla_free(raw);
    return st;
}
