/* Chunks in parallel: buffers per slot, one loop over the used slots. */
#include "base/alloc.h"
#include "io/bundle_impl.h"

mla_status mla_batch_new(mla_batch *b, mla_pool *pool, size_t chunk, mla_err *err)
{
    *b = (mla_batch){.slots = 4 * mla_pool_threads(pool), .pool = pool};
    b->slot = mla_alloc(b->slots, 1, sizeof *b->slot);
    size_t bound = mla_planes_bound(MLA_PLANES_F32, chunk); /* the largest of all kinds */
    for (size_t i = 0; b->slot && i < b->slots; i++) {
        b->slot[i].own = mla_alloc_raw(bound, 1, 1);
        b->slot[i].scratch = mla_alloc_raw(chunk, 1, 1);
        if (b->slot[i].own && b->slot[i].scratch) continue;
        mla_batch_free(b);
    }
    return b->slot ? MLA_OK : mla_fail(err, MLA_ENOMEM, "buffers of %zu-byte chunks", chunk);
}

void mla_batch_free(mla_batch *b)
{
    for (size_t i = 0; b->slot && i < b->slots; i++) {
        mla_free(b->slot[i].own);
        mla_free(b->slot[i].scratch);
    }
    mla_free(b->slot);
    *b = (mla_batch){0};
}

static void pack_some(void *ctx, size_t begin, size_t end, size_t worker)
{
    mla_batch *b = ctx;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        mla_chunk *c = &b->slot[i];
        c->stored = 0;
        c->st = mla_planes_pack(c->kind, c->out, mla_planes_bound(c->kind, c->n), c->size, c->in, c->n, c->scratch, &c->err);
        for (size_t j = 0; c->st == MLA_OK && j < mla_planes_count(c->kind); j++) c->stored += c->size[j];
    }
}

static void unpack_some(void *ctx, size_t begin, size_t end, size_t worker)
{
    mla_batch *b = ctx;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        mla_chunk *c = &b->slot[i];
        c->st = mla_planes_unpack(c->kind, c->out, c->n, c->in, c->stored, c->size, c->scratch, &c->err);
    }
}

mla_status mla_batch_run(mla_batch *b, bool pack, mla_err *err)
{
    mla_par_for(b->pool, b->used, 1, pack ? pack_some : unpack_some, b);
    for (size_t i = 0; i < b->used; i++)
        if (b->slot[i].st != MLA_OK) return mla_fail(err, b->slot[i].st, "%s", b->slot[i].err.msg);
    return MLA_OK;
}

void mla_bundle_files_free(mla_bundle_file *f, size_t n)
{
    for (size_t i = 0; f && i < n; i++) {
        for (size_t j = 0; f[i].part && j < f[i].n; j++) {
            mla_free(f[i].part[j].frame);
            mla_free((void *)(uintptr_t)f[i].part[j].tensor.name);
        }
        mla_free(f[i].part);
    }
    mla_free(f);
}
