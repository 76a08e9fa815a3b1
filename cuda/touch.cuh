/* What memory an operation reads and writes, so that a recording knows which of them may stand side by side. */
#ifndef MLA_CUDA_TOUCH_CUH
#define MLA_CUDA_TOUCH_CUH
#include <cuda.h>

#include "cuda/be.cuh"

/* Memory that an operation touches: all of it, or only `width` bytes every `pitch`. */
struct Touch {
    uintptr_t at, end;
    size_t pitch, width;
};
static inline Touch touch(const void *p, size_t rows, size_t pitch, size_t width)
{
    const bool apart = rows > 1 && pitch > width;
    return Touch{(uintptr_t)p, (uintptr_t)p + (rows - 1) * pitch + width, apart ? pitch : 0, apart ? width : 0};
}
static inline bool meets(const Touch &a, const Touch &b)
{
    if (a.at >= b.end || b.at >= a.end) return false;
    const size_t p = a.pitch < b.pitch ? a.pitch : b.pitch, wide = a.pitch > b.pitch ? a.pitch : b.pitch;
    if (!p || wide % p) return true;
    const size_t d = b.at >= a.at ? (b.at - a.at) % p : (p - (a.at - b.at) % p) % p; /* from a's columns to b's */
    return d < a.width || d + b.width > p;
}
struct Use {
    Touch write, read[3];
};
static inline bool conflict(const Use &a, const Use &b)
{
    bool yes = meets(a.write, b.write);
    for (int i = 0; i < 3; i++) yes |= meets(a.write, b.read[i]) || meets(b.write, a.read[i]);
    return yes;
}

/* Where the allocation that p lies in ends. */
static inline uintptr_t memory_end(const void *p)
{
    CUresult (*range)(CUdeviceptr *, size_t *, CUdeviceptr) = NULL;
    cudaDriverEntryPointQueryResult found;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", (void **)&range, 12000, cudaEnableDefault, &found) != cudaSuccess || found != cudaDriverEntryPointSuccess ||
        range(&base, &bytes, (CUdeviceptr)p) != CUDA_SUCCESS)
        return UINTPTR_MAX;
    return (uintptr_t)base + bytes;
}
static inline Use use_of(const mla_rope_args *a)
{
    const bool even = a->T == 1 || a->ldx % a->head_stride == 0;
    const size_t half = a->rot / 2, rows = (a->T - 1) * (a->ldx / a->head_stride) + a->heads;
    Use u = {};
    u.write = even ? touch(a->x, rows, a->head_stride * 4, a->rot * 4) : touch(a->x, 1, 0, ((a->T - 1) * a->ldx + (a->heads - 1) * a->head_stride + a->rot) * 4);
    u.read[0] = touch(a->cos, a->T, half * 4, half * 4), u.read[1] = touch(a->sin, a->T, half * 4, half * 4);
    if (a->at) u.read[0].end = memory_end(a->cos), u.read[1].end = memory_end(a->sin); /* as many rows as there are */
    return u;
}
static inline Use use_of(const mla_kv_write_args *a)
{
    const size_t e = mla_dtype_bits(a->to.dtype) / 8;
    Use u = {};
    u.write = touch((const char *)a->to.data + a->to.col * e, a->at->pool * a->to.page_tokens, a->to.row_elems * e, a->width * e);
    u.read[0] = touch(a->x, a->T, a->ldx * 4, a->width * 4);
    return u;
}
static inline Use use_of(const mla_linear_job *j)
{
    Use u = {};
    u.write = touch(j->a.y, j->a.T, j->a.ldy * 4, j->w->out * 4);
    u.read[0] = touch(j->a.x, j->a.T, j->a.ldx * 4, j->w->in * 4);
    if (j->a.bias) u.read[1] = touch(j->a.bias, 1, 0, j->w->out * 4);
    return u;
}
#endif
