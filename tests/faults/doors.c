/* Faults of a runtime, for a build of mla-verify that the tests alone link (mk/faults.mk): the linker puts the functions of
 * this file in front of mla_backend_open and mla_seq_fork. The programs that users run hold nothing of it.
 *
 * MLA_FAULT names the fault; without it everything is as it was.
 *     int32-slots    cached rows are addressed with 32-bit element offsets that wrap
 *     decode-chunk   a chunk of 2 to 4 tokens behind others is taken for that many decode steps of the same length
 *     stale-prefix   a continued sequence gets the recurrent states of the one continued before it */
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "runtime/rt.h"

mla_status __real_mla_backend_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err);
mla_status __wrap_mla_backend_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err);
mla_status __real_mla_seq_fork(mla_seq **out, const mla_seq *src, size_t max_tokens, mla_err *err);
mla_status __wrap_mla_seq_fork(mla_seq **out, const mla_seq *src, size_t max_tokens, mla_err *err);

static const mla_backend_ops *real_ops; /* one kind of backend a process */
static mla_backend_ops faulty_ops;

static bool planted(const char *name)
{
    const char *f = getenv("MLA_FAULT");
    return f && !strcmp(f, name);
}

/* ---- int32 slots ---- */
/* The pages that 32-bit offsets would reach: beyond 2^31 elements they come round to low ones. Caller frees. */
static int32_t *wrapped(const mla_kv_view *v, size_t tokens)
{
    size_t n = (tokens + v->page_tokens - 1) / v->page_tokens, page = v->page_tokens * v->row_elems;
    if (!v->pages || !n) return NULL;
    int32_t *p = mla_alloc(n, 1, sizeof *p);
    for (size_t i = 0; p && i < n; i++) p[i] = (int32_t)(((size_t)v->pages[i] * page & 0x7fffffff) / page);
    return p;
}

static mla_status wrap_attention(mla_backend *be, const mla_attn_args *args, mla_err *err)
{
    mla_attn_args a = *args;
    size_t tokens = a.pos0 + a.T;
    int32_t *p[3] = {wrapped(&a.k, tokens), a.k2.data ? wrapped(&a.k2, tokens) : NULL, wrapped(&a.v, tokens)};
    mla_kv_view *v[3] = {&a.k, &a.k2, &a.v};
    for (size_t i = 0; i < 3; i++)
        if (p[i]) v[i]->pages = p[i];
    mla_status st = real_ops->attention(be, &a, err);
    for (size_t i = 0; i < 3; i++) mla_free(p[i]);
    return st;
}

/* ---- last chunk as decode ---- */
static mla_status step_attention(mla_backend *be, const mla_attn_args *args, mla_err *err)
{
    if (args->T < 2 || args->T > 4 || !args->pos0) return real_ops->attention(be, args, err);
    for (size_t t = 0; t < args->T; t++) {
        mla_attn_args a = *args;
        a.T = 1; /* every query at the first one's place: none sees the tokens of its own chunk */
        a.q = mla_at(a.q, t * a.ldq);
        if (a.q2) a.q2 = mla_at(a.q2, t * a.ldq2);
        a.o = mla_at(a.o, t * a.ldo);
        mla_status st = real_ops->attention(be, &a, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

mla_status __wrap_mla_backend_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err)
{
    mla_status st = __real_mla_backend_open(out, opts, err);
    if (st != MLA_OK || (!planted("int32-slots") && !planted("decode-chunk"))) return st;
    real_ops = (*out)->ops;
    faulty_ops = *real_ops;
    faulty_ops.attention = planted("int32-slots") ? wrap_attention : step_attention;
    (*out)->ops = &faulty_ops;
    return MLA_OK;
}

/* ---- stale prefix ---- */
#define LAYERS_MAX 128
static void *stale[LAYERS_MAX]; /* states as the last continued sequence had them */

mla_status __wrap_mla_seq_fork(mla_seq **out, const mla_seq *src, size_t max_tokens, mla_err *err)
{
    mla_status st = __real_mla_seq_fork(out, src, max_tokens, err);
    mla_rt *rt = src->rt;
    for (size_t i = 0; st == MLA_OK && planted("stale-prefix") && i < rt->n_layer && i < LAYERS_MAX; i++) {
        const rt_buf *own = &src->state[i];
        if (!own->p) continue;
        if (stale[i]) st = rt->be->ops->upload(rt->be, (*out)->state[i].p, stale[i], own->bytes, err);
        if (!stale[i]) stale[i] = malloc(own->bytes);
        if (st == MLA_OK && stale[i]) st = rt->be->ops->download(rt->be, stale[i], own->p, own->bytes, err);
    }
    return st;
}
