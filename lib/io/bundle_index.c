/* Opening a bundle: tail, index and every part's frames, checked against the bytes that are there. */
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "io/bundle_read.h"
#include "io/sha256.h"
#include "io/zst.h"

/* The next frames must stand right behind those before: *at moves over them. */
static mla_status frames_from(mla_bundle *b, mla_bundle_part *p, const mla_jv *list, size_t *at, mla_err *err)
{
    size_t chunks = p->bytes / b->chunk + (p->bytes % b->chunk != 0), want;
    if (!mla_mul(&want, chunks, mla_planes_count(p->kind)) || mla_jv_len(list) != want)
        return mla_fail(err, MLA_EFORMAT, "frames: expected %zu sizes for %zu bytes, found %zu", want, p->bytes, mla_jv_len(list));
    if (p->bytes % mla_planes_count(p->kind)) return mla_fail(err, MLA_EFORMAT, "%zu bytes are no whole elements of %s", p->bytes, mla_planes_name(p->kind));
    if (p->at != *at) return mla_fail(err, MLA_EFORMAT, "at: expected %zu, where the part before ends, found %zu", *at, p->at);
    p->frame = mla_alloc(want, 1, sizeof *p->frame);
    if (!p->frame) return mla_fail(err, MLA_ENOMEM, "%zu frames", want);
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        size_t n;
        if (!mla_jv_size(v, &n) || n == 0 || n > UINT32_MAX || n > b->data_end - *at)
            return mla_fail(err, MLA_EFORMAT, "frame %zu: expected a size of 1 to the %zu bytes left", p->frames, b->data_end - *at);
        p->frame[p->frames++] = (uint32_t)n;
        *at += n;
    }
    p->stored = *at - p->at;
    return MLA_OK;
}

static mla_status tensor_from(mla_bundle_part *p, const mla_jv *o, mla_err *err)
{
    const char *name = mla_jv_str(mla_jv_get(o, "tensor"));
    const mla_jv *shape = mla_jv_get(o, "shape");
    mla_tensor *t = &p->tensor;
    if (!name || !mla_dtype_parse(mla_jv_str(mla_jv_get(o, "dtype")) ? mla_jv_str(mla_jv_get(o, "dtype")) : "", &t->dtype) || !mla_jv_is_arr(shape) ||
        mla_jv_len(shape) > MLA_MAX_DIMS)
        return mla_fail(err, MLA_EFORMAT, "expected a tensor name, dtype and shape of at most %d dimensions", MLA_MAX_DIMS);
    size_t n = mla_dtype_bits(t->dtype);
    for (const mla_jv *v = mla_jv_first(shape); v; v = mla_jv_next(v)) {
        if (!mla_jv_size(v, &t->shape[t->ndim]) || !mla_mul(&n, n, t->shape[t->ndim])) return mla_fail(err, MLA_EFORMAT, "%s: the shape is no shape", name);
        t->ndim++;
    }
    if (n % 8 || n / 8 != p->bytes) return mla_fail(err, MLA_EFORMAT, "%s: dtype and shape give %zu bits, the part holds %zu bytes", name, n, p->bytes);
    t->nbytes = p->bytes;
    t->name = mla_strdup(name);
    return t->name ? MLA_OK : mla_fail(err, MLA_ENOMEM, "tensor name");
}

static mla_status part_from(mla_bundle *b, mla_bundle_part *p, const mla_jv *o, size_t *at, mla_err *err)
{
    const char *kind = mla_jv_str(mla_jv_get(o, "kind"));
    if (!mla_planes_parse(kind, &p->kind)) return mla_fail(err, MLA_EUNSUPPORTED, "kind: expected text, bytes, f16 or f32, found %s", kind ? kind : "none");
    if (!mla_jv_size(mla_jv_get(o, "bytes"), &p->bytes) || !mla_jv_size(mla_jv_get(o, "at"), &p->at))
        return mla_fail(err, MLA_EFORMAT, "expected the numbers bytes and at");
    mla_status st = frames_from(b, p, mla_jv_get(o, "frames"), at, err);
    if (st == MLA_OK && mla_jv_get(o, "tensor")) st = tensor_from(p, o, err);
    return st;
}

static mla_status file_from(mla_bundle *b, size_t i, const mla_jv *list, size_t *at, mla_err *err)
{
    mla_bundle_file *f = &b->file[i];
    const mla_receipt_file *r = &b->man.file[i];
    size_t sum = 0, n = mla_jv_len(list);
    f->part = mla_alloc(n, 1, sizeof *f->part);
    if (!f->part) return mla_fail(err, MLA_ENOMEM, "%s: %zu parts", r->name, n);
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        mla_bundle_part *p = &f->part[f->n++];
        if (part_from(b, p, v, at, err) != MLA_OK) return mla_wrap(err, "%s: part %zu", r->name, f->n - 1);
        if (!mla_add(&sum, sum, p->bytes)) return mla_fail(err, MLA_EFORMAT, "%s: parts of more bytes than can be", r->name);
    }
    if (sum != r->size) return mla_fail(err, MLA_EFORMAT, "%s: expected parts of %llu bytes, found %zu", r->name, (unsigned long long)r->size, sum);
    return MLA_OK;
}

static mla_status index_from(mla_bundle *b, const mla_jv *o, mla_err *err)
{
    const char *format = mla_jv_str(mla_jv_get(o, "format"));
    const mla_jv *content = mla_jv_get(o, "content");
    if (!format || strcmp(format, MLA_BUNDLE_FORMAT)) return mla_fail(err, MLA_EUNSUPPORTED, "format: expected %s, found %s", MLA_BUNDLE_FORMAT, format ? format : "none");
    if (!mla_jv_size(mla_jv_get(o, "chunk_bytes"), &b->chunk) || b->chunk < 4 || b->chunk > MLA_BUNDLE_CHUNK_MAX || b->chunk % 4)
        return mla_fail(err, MLA_EFORMAT, "chunk_bytes: expected a multiple of 4 up to %zu", MLA_BUNDLE_CHUNK_MAX);
    mla_status st = mla_manifest_from_json(&b->man, o, err);
    if (st != MLA_OK) return st;
    if (!mla_jv_is_arr(content) || mla_jv_len(content) != b->man.n)
        return mla_fail(err, MLA_EFORMAT, "content: expected the parts of %zu files, found %zu", b->man.n, mla_jv_len(content));
    b->file = mla_alloc(b->man.n, 1, sizeof *b->file);
    if (!b->file) return mla_fail(err, MLA_ENOMEM, "%zu files", b->man.n);
    size_t at = 8, i = 0;
    for (const mla_jv *v = mla_jv_first(content); v; v = mla_jv_next(v), i++)
        if ((st = file_from(b, i, v, &at, err)) != MLA_OK) return st;
    if (at != b->data_end) return mla_fail(err, MLA_EFORMAT, "expected frames up to byte %zu, found their end at %zu", b->data_end, at);
    return MLA_OK;
}

static mla_status read_index(mla_bundle *b, mla_err *err)
{
    mla_bundle_tail t;
    const size_t n = b->map.size;
    if (n < 8 + sizeof t || memcmp(b->map.data, MLA_BUNDLE_MAGIC, 8)) return mla_fail(err, MLA_EFORMAT, "not a bundle: it does not begin with " MLA_BUNDLE_MAGIC);
    memcpy(&t, b->map.data + n - sizeof t, sizeof t);
    if (memcmp(t.magic, MLA_BUNDLE_MAGIC, 8)) return mla_fail(err, MLA_EFORMAT, "the bundle is cut short: it does not end with " MLA_BUNDLE_MAGIC);
    const size_t end = n - sizeof t;
    if (t.at < 8 || t.at > end || t.stored != end - t.at || t.bytes > MLA_BUNDLE_INDEX_MAX)
        return mla_fail(err, MLA_EFORMAT, "tail: an index of %llu bytes at %llu does not fit the file of %zu", (unsigned long long)t.stored,
                        (unsigned long long)t.at, n);
    char *text = mla_alloc_raw((size_t)t.bytes + 1, 1, 1);
    if (!text) return mla_fail(err, MLA_ENOMEM, "index of %llu bytes", (unsigned long long)t.bytes);
    mla_json *d = NULL;
    mla_status st = mla_zst_unpack(text, (size_t)t.bytes, b->map.data + t.at, (size_t)t.stored, err);
    if (st == MLA_OK) {
        mla_sha256_bytes(text, (size_t)t.bytes, b->sha256);
        if (memcmp(b->sha256, t.sha256, 32)) st = mla_fail(err, MLA_EFORMAT, "the index is not the one that the tail's sha256 names");
    }
    if (st == MLA_OK) st = mla_json_parse(&d, text, (size_t)t.bytes, "index", err);
    mla_free(text);
    b->data_end = (size_t)t.at;
    if (st == MLA_OK) st = index_from(b, mla_json_root(d), err);
    mla_json_free(d);
    return st;
}

mla_status mla_bundle_open(mla_bundle **out, const char *path, mla_err *err)
{
    mla_bundle *b = mla_alloc(1, 1, sizeof *b);
    *out = NULL;
    if (!b) return mla_fail(err, MLA_ENOMEM, "bundle");
    mla_status st = mla_file_map(&b->map, path, err);
    if (st == MLA_OK && read_index(b, err) != MLA_OK) st = mla_wrap(err, "%s", path);
    if (st != MLA_OK) {
        mla_bundle_close(b);
        return st;
    }
    *out = b;
    return MLA_OK;
}

void mla_bundle_close(mla_bundle *b)
{
    if (!b) return;
    mla_bundle_files_free(b->file, b->man.n);
    mla_manifest_free(&b->man);
    mla_file_unmap(&b->map);
    mla_free(b);
}
