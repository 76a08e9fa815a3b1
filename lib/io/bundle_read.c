/* Reading a bundle: totals, single tensors, whole files. */
#include "io/bundle_read.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"

const mla_manifest *mla_bundle_manifest(const mla_bundle *b) { return &b->man; }
const unsigned char *mla_bundle_digest(const mla_bundle *b) { return b->sha256; }

void mla_bundle_totals(const mla_bundle *b, mla_bundle_sum *out)
{
    *out = (mla_bundle_sum){.files = b->man.n, .stored = b->map.size};
    for (size_t i = 0; i < b->man.n; i++) {
        out->bytes += b->man.file[i].size;
        for (size_t j = 0; j < b->file[i].n; j++) {
            const mla_bundle_part *p = &b->file[i].part[j];
            if (p->kind != MLA_PLANES_F16) continue;
            out->float_bytes += p->bytes;
            out->float_stored += p->stored;
        }
    }
}

const mla_tensor *mla_bundle_tensor_find(const mla_bundle *b, const char *name)
{
    for (size_t i = 0; i < b->man.n; i++)
        for (size_t j = 0; j < b->file[i].n; j++) {
            const mla_tensor *t = &b->file[i].part[j].tensor;
            if (t->name && strcmp(t->name, name) == 0) return t;
        }
    return NULL;
}

/* Where decoded chunks go: into memory, or into a file in order. */
typedef struct {
    unsigned char *dst;
    mla_out *out;
    mla_progress *prog;
} sink;

static mla_status flush(mla_batch *batch, const sink *s, mla_err *err)
{
    mla_status st = mla_batch_run(batch, false, err);
    for (size_t i = 0; st == MLA_OK && i < batch->used; i++) {
        if (s->out) st = mla_out_write(s->out, batch->slot[i].out, batch->slot[i].n, err);
        if (s->prog) mla_progress_add(s->prog, (double)batch->slot[i].n / 1048576.0);
    }
    batch->used = 0;
    return st;
}

static mla_status read_part(const mla_bundle *b, const mla_bundle_part *p, mla_batch *batch, const sink *s, mla_err *err)
{
    mla_status st = MLA_OK;
    size_t w = mla_planes_count(p->kind), from = p->at;
    for (size_t at = 0, k = 0; st == MLA_OK && at < p->bytes; at += b->chunk, k += w) {
        mla_chunk *c = &batch->slot[batch->used++];
        size_t left = p->bytes - at;
        c->kind = p->kind;
        c->in = b->map.data + from;
        c->n = left < b->chunk ? left : b->chunk;
        c->out = s->dst ? s->dst + at : c->own;
        c->stored = 0;
        for (size_t j = 0; j < w; j++) c->stored += c->size[j] = p->frame[k + j];
        from += c->stored;
        if (batch->used == batch->slots || left <= b->chunk) st = flush(batch, s, err);
    }
    return st;
}

mla_status mla_bundle_tensor_read(const mla_bundle *b, const mla_tensor *t, void *dst, mla_pool *pool, mla_err *err)
{
    const mla_bundle_part *p = (const mla_bundle_part *)(const void *)((const char *)t - offsetof(mla_bundle_part, tensor));
    mla_batch batch;
    mla_status st = mla_batch_new(&batch, pool, b->chunk, err);
    if (st != MLA_OK) return st;
    sink s = {.dst = dst};
    st = read_part(b, p, &batch, &s, err);
    mla_batch_free(&batch);
    return st == MLA_OK ? MLA_OK : mla_wrap(err, "%s", t->name);
}

static mla_status right_bytes(const mla_out *out, const mla_receipt_file *r, mla_err *err)
{
    unsigned char found[32];
    char want[65], is[65];
    mla_out_sha256(out, found);
    if (memcmp(found, r->sha256, 32) == 0) return MLA_OK;
    mla_hex(r->sha256, 32, want);
    mla_hex(found, 32, is);
    return mla_fail(err, MLA_EFORMAT, "sha256: expected %s, found %s", want, is);
}

mla_status mla_bundle_extract(const mla_bundle *b, size_t i, const char *path, mla_pool *pool, mla_progress *prog, mla_err *err)
{
    const mla_receipt_file *r = &b->man.file[i];
    mla_batch batch = {0};
    sink s = {.prog = prog};
    mla_status st = mla_batch_new(&batch, pool, b->chunk, err);
    if (st == MLA_OK) st = mla_out_open(&s.out, path, err);
    if (st == MLA_OK) st = mla_out_reserve(s.out, r->size, err);
    for (size_t j = 0; st == MLA_OK && j < b->file[i].n; j++) st = read_part(b, &b->file[i].part[j], &batch, &s, err);
    if (st == MLA_OK) st = right_bytes(s.out, r, err);
    if (st == MLA_OK) st = mla_out_commit(s.out, err);
    else mla_out_abort(s.out);
    mla_batch_free(&batch);
    return st == MLA_OK ? MLA_OK : mla_wrap(err, "%s", r->name);
}
