/* Packing: the manifest first, then every file's parts chunk by chunk, the index and the tail last.
 * Files are mapped before they are hashed and looked at again after the last chunk: what is packed is what was hashed. */
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/bundle_impl.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "io/zst.h"

typedef struct {
    const char *dir;
    mla_names names;
    mla_mapped *map;       /* of names, before the manifest */
    mla_manifest man;
    mla_bundle_file *file; /* parts, in the manifest's order, which is that of names */
    mla_out *out;
    mla_batch batch;
    mla_progress prog;
    mla_bundle_sum *sum;
} writer;

static mla_status add_part(mla_bundle_file *f, mla_planes kind, size_t bytes, const mla_tensor *t, mla_err *err)
{
    mla_bundle_part *p = &f->part[f->n];
    size_t chunks = bytes / MLA_BUNDLE_CHUNK + (bytes % MLA_BUNDLE_CHUNK != 0);
    *p = (mla_bundle_part){.kind = kind, .bytes = bytes, .frames = chunks * mla_planes_count(kind)};
    f->n++;
    p->frame = mla_alloc(p->frames, 1, sizeof *p->frame);
    if (t) {
        p->tensor = *t;
        p->tensor.data = NULL;
        p->tensor.name = mla_strdup(t->name);
    }
    return p->frame && (!t || p->tensor.name) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "index of the bundle");
}

/* A shard's header is text, its tensors follow it without a hole (the reader checked that). */
static mla_status shard_parts(mla_bundle_file *f, const char *path, mla_err *err)
{
    mla_st *s;
    mla_status st = mla_st_open(&s, path, err);
    if (st != MLA_OK) return st;
    size_t data = 0, n = mla_st_count(s);
    for (size_t i = 0; i < n; i++) data += mla_st_at(s, i)->nbytes;
    f->part = mla_alloc(n + 1, 1, sizeof *f->part);
    if (!f->part) st = mla_fail(err, MLA_ENOMEM, "index of %zu tensors", n);
    if (st == MLA_OK) st = add_part(f, MLA_PLANES_TEXT, mla_st_file(s)->size - data, NULL, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        const mla_tensor *t = mla_st_at(s, i);
        st = add_part(f, mla_planes_of(t->dtype), t->nbytes, t, err);
    }
    mla_st_close(s);
    return st;
}

static mla_status plain_part(mla_bundle_file *f, const char *name, size_t bytes, mla_err *err)
{
    f->part = mla_alloc(1, 1, sizeof *f->part);
    if (!f->part) return mla_fail(err, MLA_ENOMEM, "index of the bundle");
    return add_part(f, mla_ends_with(name, ".gguf") ? MLA_PLANES_BYTES : MLA_PLANES_TEXT, bytes, NULL, err);
}

static mla_status flush(writer *w, uint32_t *frame, mla_err *err)
{
    mla_status st = mla_batch_run(&w->batch, true, err);
    for (size_t i = 0; st == MLA_OK && i < w->batch.used; i++) {
        const mla_chunk *c = &w->batch.slot[i];
        for (size_t j = 0; j < mla_planes_count(c->kind); j++) *frame++ = (uint32_t)c->size[j]; /* a chunk is 1 MiB */
        st = mla_out_write(w->out, c->out, c->stored, err);
        mla_progress_add(&w->prog, (double)c->n / 1048576.0);
        if (c->kind != MLA_PLANES_F16) continue;
        w->sum->float_bytes += c->n;
        w->sum->float_stored += c->stored;
    }
    w->batch.used = 0;
    return st;
}

static mla_status write_part(writer *w, mla_bundle_part *p, const unsigned char *src, mla_err *err)
{
    mla_status st = MLA_OK;
    size_t done = 0; /* frames of flushed chunks */
    p->at = (size_t)mla_out_size(w->out);
    for (size_t at = 0; st == MLA_OK && at < p->bytes; at += MLA_BUNDLE_CHUNK) {
        mla_chunk *c = &w->batch.slot[w->batch.used++];
        size_t left = p->bytes - at;
        c->kind = p->kind;
        c->in = src + at;
        c->n = left < MLA_BUNDLE_CHUNK ? left : MLA_BUNDLE_CHUNK;
        c->out = c->own;
        if (w->batch.used < w->batch.slots && left > MLA_BUNDLE_CHUNK) continue;
        size_t k = w->batch.used * mla_planes_count(p->kind);
        st = flush(w, p->frame + done, err);
        done += k;
    }
    p->stored = (size_t)mla_out_size(w->out) - p->at;
    return st;
}

static mla_status write_file(writer *w, size_t i, mla_err *err)
{
    const char *name = w->names.name[i];
    const mla_mapped *m = &w->map[i];
    mla_bundle_file *f = &w->file[i];
    size_t at = 0;
    mla_status st = mla_ends_with(name, ".safetensors") ? shard_parts(f, m->path, err) : plain_part(f, name, m->size, err);
    for (size_t j = 0; st == MLA_OK && j < f->n; j++) {
        if (f->part[j].bytes > m->size - at) return mla_fail(err, MLA_EIO, "%s changed while it was packed", name);
        st = write_part(w, &f->part[j], m->data + at, err);
        at += f->part[j].bytes;
    }
    return st;
}

static mla_status map_files(writer *w, mla_err *err)
{
    mla_status st = mla_dir_list(&w->names, w->dir, err);
    if (st != MLA_OK) return st;
    if (!w->names.n) return mla_fail(err, MLA_EINVAL, "%s: nothing to pack", w->dir);
    w->map = mla_alloc(w->names.n, 1, sizeof *w->map);
    w->file = mla_alloc(w->names.n, 1, sizeof *w->file);
    if (!w->map || !w->file) return mla_fail(err, MLA_ENOMEM, "list of %zu files", w->names.n);
    for (size_t i = 0; st == MLA_OK && i < w->names.n; i++) {
        char *path = mla_path_join(w->dir, w->names.name[i]);
        st = path ? mla_file_map(&w->map[i], path, err) : mla_fail(err, MLA_ENOMEM, "path of %s", w->names.name[i]);
        mla_free(path);
    }
    return st;
}

static mla_status hash_files(writer *w, mla_log *log, mla_err *err)
{
    mla_status st = mla_manifest_scan(&w->man, w->dir, NULL, w->batch.pool, log, err);
    if (st == MLA_OK && w->man.n != w->names.n) st = mla_fail(err, MLA_EIO, "%s: files came or went while it was packed", w->dir);
    for (size_t i = 0; st == MLA_OK && i < w->names.n; i++)
        if (strcmp(w->man.file[i].name, w->names.name[i]) || w->man.file[i].size != w->map[i].size)
            st = mla_fail(err, MLA_EIO, "%s changed while it was packed", w->map[i].path);
    return st;
}

/* False when memory is out. */
static bool part_json(mla_jv *arr, const mla_bundle_part *p)
{
    mla_jv *o = mla_jv_add_obj(arr);
    bool ok = o != NULL;
    if (p->tensor.name) {
        ok = ok && mla_jv_put_str(o, "tensor", p->tensor.name) && mla_jv_put_str(o, "dtype", mla_dtype_name(p->tensor.dtype));
        mla_jv *shape = mla_jv_set_arr(o, "shape");
        for (size_t i = 0; ok && i < p->tensor.ndim; i++) ok = mla_jv_add_size(shape, p->tensor.shape[i]) != NULL;
        ok = ok && shape;
    }
    ok = ok && mla_jv_put_str(o, "kind", mla_planes_name(p->kind)) && mla_jv_put_size(o, "bytes", p->bytes) && mla_jv_put_size(o, "at", p->at);
    mla_jv *frames = mla_jv_set_arr(o, "frames");
    for (size_t i = 0; ok && i < p->frames; i++) ok = mla_jv_add_size(frames, p->frame[i]) != NULL;
    return ok && frames;
}

static mla_status index_text(writer *w, mla_str *text, mla_err *err)
{
    mla_json *d;
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(d);
    bool ok = mla_jv_set_str(o, "format", MLA_BUNDLE_FORMAT) && mla_jv_set_size(o, "chunk_bytes", MLA_BUNDLE_CHUNK);
    st = mla_manifest_to_json(&w->man, o, err);
    mla_jv *content = mla_jv_set_arr(o, "content");
    for (size_t i = 0; ok && i < w->man.n; i++) {
        mla_jv *parts = mla_jv_add_arr(content);
        ok = parts != NULL;
        for (size_t j = 0; ok && j < w->file[i].n; j++) ok = part_json(parts, &w->file[i].part[j]);
    }
    if (st == MLA_OK && !ok) st = mla_fail(err, MLA_ENOMEM, "index of the bundle");
    if (st == MLA_OK) st = mla_json_print(text, o, false, err);
    mla_json_free(d);
    return st;
}

static mla_status write_index(writer *w, mla_err *err)
{
    mla_bundle_tail tail = {.at = mla_out_size(w->out)};
    mla_str text = MLA_STR_MAX(MLA_BUNDLE_INDEX_MAX);
    unsigned char *frame = NULL;
    size_t n = 0, cap = 0;
    mla_status st = index_text(w, &text, err);
    if (st == MLA_OK) {
        cap = mla_zst_bound(text.len);
        frame = mla_alloc_raw(cap, 1, 1);
        if (!frame) st = mla_fail(err, MLA_ENOMEM, "index of %zu bytes", text.len);
    }
    if (st == MLA_OK) st = mla_zst_pack(frame, cap, &n, text.s, text.len, 3, err);
    if (st == MLA_OK) st = mla_out_write(w->out, frame, n, err);
    if (st == MLA_OK) {
        tail.stored = n;
        tail.bytes = text.len;
        mla_sha256_bytes(text.s, text.len, tail.sha256);
        memcpy(tail.magic, MLA_BUNDLE_MAGIC, 8);
        st = mla_out_write(w->out, &tail, sizeof tail, err);
    }
    mla_str_free(&text);
    mla_free(frame);
    return st;
}

static mla_status pack_all(writer *w, mla_log *log, mla_err *err)
{
    mla_status st = map_files(w, err);
    if (st == MLA_OK) st = hash_files(w, log, err);
    if (st == MLA_OK) st = mla_out_write(w->out, MLA_BUNDLE_MAGIC, 8, err);
    for (size_t i = 0; st == MLA_OK && i < w->names.n; i++) w->sum->bytes += w->map[i].size;
    w->prog = mla_progress_begin(log, "packing", (double)w->sum->bytes / 1048576.0, "MiB");
    for (size_t i = 0; st == MLA_OK && i < w->names.n; i++) st = write_file(w, i, err);
    mla_progress_end(&w->prog);
    for (size_t i = 0; st == MLA_OK && i < w->names.n; i++) st = mla_file_unchanged(&w->map[i], err);
    if (st == MLA_OK) st = write_index(w, err);
    return st;
}

mla_status mla_bundle_write(const char *path, const char *dir, mla_pool *pool, mla_log *log, mla_bundle_sum *sum, mla_err *err)
{
    writer w = {.dir = dir, .sum = sum};
    *sum = (mla_bundle_sum){0};
    mla_status st = mla_batch_new(&w.batch, pool, MLA_BUNDLE_CHUNK, err);
    if (st == MLA_OK) st = mla_out_open(&w.out, path, err);
    if (st == MLA_OK) st = pack_all(&w, log, err);
    sum->files = w.names.n;
    if (w.out) sum->stored = mla_out_size(w.out);
    if (st == MLA_OK) st = mla_out_commit(w.out, err);
    else mla_out_abort(w.out);
    mla_bundle_files_free(w.file, w.names.n);
    for (size_t i = 0; w.map && i < w.names.n; i++) mla_file_unmap(&w.map[i]);
    mla_free(w.map);
    mla_names_free(&w.names);
    mla_manifest_free(&w.man);
    mla_batch_free(&w.batch);
    return st;
}
