/* Pages of the KV caches. A page id stands for page_tokens slots in every layer's buffer, trunk and MTP head alike;
 * sequences own ids through their block tables. Buffers grow by doubling, up to what the open sequences may need. */
#include <stdint.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "runtime/rt.h"

void rt_pool_init(mla_rt *rt) { rt->pool = (rt_pool){.page_tokens = rt->o.page_tokens}; }

void rt_pool_drop(mla_rt *rt)
{
    for (size_t i = 0; i < rt->n_layer; i++) rt_buf_free(rt, &rt->layer[i].cache);
    mla_free(rt->pool.free_id);
    mla_free(rt->pool.refs);
    rt_pool_init(rt);
}

static mla_status grow_layer(mla_rt *rt, rt_layer *l, size_t from, size_t to, mla_err *err)
{
    size_t page, bytes; /* bytes of one page in this layer */
    rt_buf b;
    mla_kv_row row = rt_row(rt, l);
    if (!row.bytes) return MLA_OK;
    if (!mla_mul(&page, row.bytes, rt->pool.page_tokens) || !mla_mul(&bytes, page, to))
        return mla_fail(err, MLA_ENOMEM, "KV cache of %zu pages does not fit the address space", to);
    RT_TRY(rt_buf_new(rt, &b, to, page, err));
    mla_status st = MLA_OK;
    if (from) st = RT_OP(rt, copy, b.p, l->cache.p, from * page, err);
    if (st == MLA_OK) st = RT_OP(rt, sync, err);
    if (st != MLA_OK) {
        rt_buf_free(rt, &b);
        return st;
    }
    rt_buf_free(rt, &l->cache);
    l->cache = b;
    return MLA_OK;
}

static mla_status grow(mla_rt *rt, mla_err *err)
{
    rt_pool *p = &rt->pool;
    size_t to = p->cap < 4 ? 8 : 2 * p->cap;
    if (to > p->want) to = p->want;
    if (to <= p->cap) to = p->cap + 1;
    if (to > INT32_MAX) return mla_fail(err, MLA_ENOMEM, "KV cache needs more than %d pages", INT32_MAX);
    int32_t *ids = mla_realloc(p->free_id, to, sizeof *ids);
    if (!ids) return mla_fail(err, MLA_ENOMEM, "KV cache of %zu pages", to);
    p->free_id = ids;
    ids = mla_realloc(p->refs, to, sizeof *ids);
    if (!ids) return mla_fail(err, MLA_ENOMEM, "KV cache of %zu pages", to);
    p->refs = ids;
    for (size_t i = 0; i < rt->n_layer; i++) RT_TRY(grow_layer(rt, &rt->layer[i], p->cap, to, err));
    p->cap = to;
    return MLA_OK;
}

mla_status rt_pool_take(mla_rt *rt, int32_t *id, mla_err *err)
{
    rt_pool *p = &rt->pool;
    if (!p->n_free && p->used == p->cap) RT_TRY(grow(rt, err));
    *id = p->n_free ? p->free_id[--p->n_free] : (int32_t)p->used++;
    p->refs[*id] = 1;
    return MLA_OK;
}

void rt_pool_share(mla_rt *rt, int32_t id) { rt->pool.refs[id]++; }

void rt_pool_give(mla_rt *rt, int32_t id)
{
    rt_pool *p = &rt->pool;
    if (--p->refs[id] == 0) p->free_id[p->n_free++] = id;
}
