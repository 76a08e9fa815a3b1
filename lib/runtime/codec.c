/* The door for cache formats that have no kernel: rows to the host, through the caller's codec, and back. */
#include "base/alloc.h"
#include "runtime/rt.h"

void mla_rt_set_codec(mla_rt *rt, mla_kv_codec_fn fn, void *ctx)
{
    rt->codec = fn;
    rt->codec_ctx = ctx;
}

mla_status rt_code(mla_rt *rt, const rt_layer *l, rt_rows x, mla_kv_rows r, mla_err *err)
{
    if (!rt->codec || !r.rows) return MLA_OK;
    size_t rows = r.rows, n = (rows - 1) * x.ld + r.width;
    float *host = mla_alloc_raw(n, 1, sizeof *host);
    if (!host) return mla_fail(err, MLA_ENOMEM, "%zu rows of a cache", rows);
    mla_status st = RT_OP(rt, download, host, x.p, n * sizeof *host, err);
    r.layer = l->index;
    r.rows = x.ld == r.width ? rows : 1;
    for (size_t i = 0; i < rows && st == MLA_OK; i += r.rows) {
        r.x = host + i * x.ld;
        st = rt->codec(rt->codec_ctx, &r, err);
    }
    if (st == MLA_OK) st = RT_OP(rt, upload, x.p, host, n * sizeof *host, err);
    mla_free(host);
    return st;
}
