/* Cached rows: slots by page in 64-bit arithmetic, rounding on write, widening on read. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define CHUNK 256 /* elements divided by the scale at a time */

size_t mla_kv_elem_bytes(mla_dtype t)
{
    return t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : t == MLA_F8_E4M3 ? 1 : 0;
}

mla_status mla_kv_check(const mla_kv_view *v, const char *what, mla_err *err)
{
    if (!mla_kv_elem_bytes(v->dtype))
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: cache dtype %s: expected F32, BF16 or F8_E4M3", what, mla_dtype_name(v->dtype));
    if (v->pages && !v->page_tokens) return mla_fail(err, MLA_EINVAL, "%s: pages of 0 tokens", what);
    if (!(v->scale > 0)) return mla_fail(err, MLA_EINVAL, "%s: scale %g: expected > 0", what, (double)v->scale);
    return MLA_OK;
}

mla_status mla_cursor_get(const mla_cursor *at, size_t T, size_t *pos0, const int32_t **pages, const char *what, mla_err *err)
{
    if (!at) return MLA_OK;
    int32_t len = *(const int32_t *)(const void *)at->len;
    if (len < 0 || (size_t)len < T) return mla_fail(err, MLA_EINVAL, "%s: the cursor says %d tokens, %zu of them new", what, (int)len, T);
    *pos0 = (size_t)len - T;
    if (pages) *pages = (const int32_t *)(const void *)at->pages;
    return MLA_OK;
}

char *mla_kv_at(const mla_kv_view *v, size_t elem_bytes, size_t s, size_t col)
{
    size_t slot = v->pages ? (size_t)v->pages[s / v->page_tokens] * v->page_tokens + s % v->page_tokens : s;
    return (char *)v->data + (slot * v->row_elems + v->col + col) * elem_bytes;
}

typedef struct {
    const mla_cpu_kern *k;
    const void *a;
} kv_job;

static void write_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const kv_job *j = ctx;
    const mla_kv_write_args *a = j->a;
    size_t es = mla_kv_elem_bytes(a->to.dtype);
    (void)worker;
    for (size_t t = begin; t < end; t++) {
        const float *x = mla_cf32p(a->x) + t * a->ldx;
        char *dst = mla_kv_at(&a->to, es, a->pos0 + t, 0);
        for (size_t i = 0; i < a->width; i += CHUNK) {
            size_t n = mla_min_size(CHUNK, a->width - i);
            float tmp[CHUNK];
            for (size_t e = 0; e < n; e++) tmp[e] = x[i + e] / a->to.scale;
            (void)mla_from_f32(dst + i * es, tmp, a->to.dtype, n); /* dtype was checked */
        }
    }
}

mla_status mla_cpu_kv_write(mla_backend *be, const mla_kv_write_args *a, mla_err *err)
{
    mla_kv_write_args at = *a;
    mla_status st = mla_cursor_get(a->at, a->T, &at.pos0, &at.to.pages, "kv_write", err);
    if (st == MLA_OK) st = mla_kv_check(&at.to, "kv_write", err);
    if (st != MLA_OK) return st;
    kv_job j = {mla_cpu_of(be)->k, &at};
    mla_par_for(mla_cpu_of(be)->pool, a->T, 16, write_rows, &j);
    return MLA_OK;
}

static void read_rows(void *ctx, size_t begin, size_t end, size_t worker)
{
    const kv_job *j = ctx;
    const mla_kv_read_args *a = j->a;
    size_t es = mla_kv_elem_bytes(a->from.dtype);
    (void)worker;
    for (size_t t = begin; t < end; t++)
        j->k->widen(mla_f32p(a->y) + t * a->ldy, mla_kv_at(&a->from, es, a->s0 + t, 0), a->from.dtype, a->width, a->from.scale);
}

mla_status mla_cpu_kv_read(mla_backend *be, const mla_kv_read_args *a, mla_err *err)
{
    mla_status st = mla_kv_check(&a->from, "kv_read", err);
    if (st != MLA_OK) return st;
    kv_job j = {mla_cpu_of(be)->k, a};
    mla_par_for(mla_cpu_of(be)->pool, a->n, 16, read_rows, &j);
    return MLA_OK;
}
