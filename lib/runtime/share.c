/* Runtimes on borrowed weights: another cache dtype beside the first, or one thread of several. */
#include <string.h>

#include "base/alloc.h"
#include "runtime/rt.h"

/* Copies of the layers whose weights are borrowed; caches, pool and scratch are new. */
static mla_status share_layers(mla_rt *rt, const mla_rt *of, mla_err *err)
{
    rt->layer = mla_alloc(rt->n_layer, sizeof *rt->layer, 1);
    if (!rt->layer) return mla_fail(err, MLA_ENOMEM, "runtime of %zu layers", rt->n_layer);
    for (size_t i = 0; i < rt->n_layer; i++) {
        rt_layer *l = &rt->layer[i];
        const rt_layer *from = &of->layer[i];
        if (!rt->o.stream_layers) {
            *l = *from;
            l->f = (mla_factors){0};
            l->sh.E = NULL; /* the sizes stay, the host copy is the other's */
        } else {
            *l = (rt_layer){.index = from->index, .kind = from->kind, .dim = from->dim, .scale = from->scale};
            memcpy(l->width, from->width, sizeof l->width);
            if (from->f.layout != MLA_LAYOUT_NONE) RT_TRY(mla_factors_copy(&l->f, &from->f, err));
            if (from->sh.r) RT_TRY(mla_shared_copy(&l->sh, &from->sh, err));
        }
        l->cache = (rt_buf){0};
    }
    return MLA_OK;
}

mla_status mla_rt_share(mla_rt **out, mla_rt *of, mla_dtype kv_dtype, mla_err *err)
{
    *out = NULL;
    if (of->parent) of = of->parent;
    RT_TRY(rt_check_dtype(kv_dtype, err));
    mla_rt *rt = mla_alloc(1, sizeof *rt, 1);
    if (!rt) return mla_fail(err, MLA_ENOMEM, "runtime");
    *rt = *of;
    rt->single = NULL;
    rt->o.kv_dtype = kv_dtype;
    rt->bytes = rt->peak = rt->open_seqs = rt->children = 0;
    memset(rt->tape, 0, sizeof rt->tape); /* of its own sequences */
    rt->parent = of;
    rt->codec = NULL;
    memset(rt->scratch, 0, sizeof rt->scratch);
    rt_pool_init(rt);
    of->children++;
    mla_status st = share_layers(rt, of, err);
    if (st != MLA_OK) {
        mla_rt_close(rt);
        return st;
    }
    *out = rt;
    return MLA_OK;
}

mla_status mla_rt_single(mla_rt **out, mla_rt *of, mla_err *err)
{
    mla_backend *be;
    *out = NULL;
    if (!of->be->ops->single || of->o.stream_layers || of->codec) return MLA_OK;
    RT_TRY(RT_OP(of, single, &be, err));
    mla_status st = mla_rt_share(out, of, of->o.kv_dtype, err);
    if (st == MLA_OK) (*out)->be = (*out)->single = be;
    else mla_backend_close(be);
    return st;
}
