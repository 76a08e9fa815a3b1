/* The .mlatok file: docs/format-tokens.md is its description. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/json.h"
#include "io/msg.h"
#include "io/sha256.h"
#include "io/zst.h"
#include "text/corpus_impl.h"

#define MAGIC "MLATOK1\n"
#define SCHEMA "mla-tokens/1"
#define FRAME ((size_t)1 << 18)    /* numbers in a full frame */
#define HEADER_MAX ((size_t)16 << 20)
#define LEVEL 9

/* Numbers as byte planes: byte k of all numbers, then byte k + 1 of all. */
static void to_planes(unsigned char *out, const uint64_t *v, size_t n, size_t width)
{
    for (size_t k = 0; k < width; k++)
        for (size_t i = 0; i < n; i++) out[k * n + i] = (unsigned char)(v[i] >> 8 * k);
}

static void from_planes(uint64_t *v, const unsigned char *in, size_t n, size_t width)
{
    memset(v, 0, n * sizeof *v);
    for (size_t k = 0; k < width; k++)
        for (size_t i = 0; i < n; i++) v[i] |= (uint64_t)in[k * n + i] << 8 * k;
}

typedef struct { /* scratch for one frame */
    uint64_t *v;           /* [FRAME] */
    unsigned char *planes; /* [8 * FRAME] */
    unsigned char *packed; /* writing: [mla_zst_bound(8 * FRAME)] */
} frame_buf;

static mla_status frame_buf_new(frame_buf *b, bool packing, mla_err *err)
{
    size_t cap = mla_zst_bound(8 * FRAME);
    *b = (frame_buf){mla_alloc_raw(FRAME, 1, 8), mla_alloc_raw(FRAME, 8, 1), packing ? mla_alloc_raw(cap, 1, 1) : NULL};
    return b->v && b->planes && (b->packed || !packing) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "token file buffers");
}

static void frame_buf_free(frame_buf *b)
{
    mla_free(b->v);
    mla_free(b->planes);
    mla_free(b->packed);
}

/* Number i of a series: an id, or the length of a document. */
static uint64_t number(const mla_corpus *c, bool docs, size_t i)
{
    if (!docs) return (uint64_t)(uint32_t)c->ids.id[i];
    return c->doc_end[i] - (i ? c->doc_end[i - 1] : 0);
}

static size_t frames_of(size_t n) { return n / FRAME + (n % FRAME != 0); }

/* Packs a series into consecutive frames at the end of *out and appends their sizes to list. */
static mla_status pack_series(const mla_corpus *c, bool docs, frame_buf *b, mla_str *out, mla_jv *list, mla_err *err)
{
    size_t n = docs ? c->docs : c->ids.n, width = docs ? 8 : 4;
    for (size_t first = 0; first < n; first += FRAME) {
        size_t m = n - first < FRAME ? n - first : FRAME, size;
        for (size_t i = 0; i < m; i++) b->v[i] = number(c, docs, first + i);
        to_planes(b->planes, b->v, m, width);
        mla_status st = mla_zst_pack(b->packed, mla_zst_bound(8 * FRAME), &size, b->planes, m * width, LEVEL, err);
        if (st) return st;
        mla_str_putn(out, (const char *)b->packed, size);
        if (!mla_jv_add_size(list, size)) return mla_fail(err, MLA_ENOMEM, "token file header");
    }
    return MLA_OK;
}

static mla_status header(const mla_corpus *c, mla_jv *root, mla_err *err)
{
    static const unsigned char NONE[32];
    unsigned char digest[32];
    char hex[65];
    mla_sha256_bytes(c->ids.n ? (const void *)c->ids.id : "", 4 * c->ids.n, digest);
    mla_hex(digest, 32, hex);
    bool ok = mla_jv_set_str(root, "schema", SCHEMA) && mla_jv_set_size(root, "ids", c->ids.n) &&
              mla_jv_set_size(root, "docs", c->docs) && mla_jv_set_size(root, "bytes", c->bytes) &&
              mla_jv_set_str(root, "sha256", hex);
    mla_hex(c->tokenizer_sha256, 32, hex);
    if (ok && memcmp(c->tokenizer_sha256, NONE, 32)) ok = mla_jv_set_str(root, "tokenizer_sha256", hex) != NULL;
    return ok ? MLA_OK : mla_fail(err, MLA_ENOMEM, "token file header");
}

mla_status mla_corpus_write(const mla_corpus *c, const char *path, mla_err *err)
{
    frame_buf b = {0};
    mla_json *doc = NULL;
    mla_out *out = NULL;
    mla_str frames = MLA_STR_MAX((size_t)1 << 40), text = MLA_STR_MAX(HEADER_MAX);
    mla_jv *ids = NULL, *docs = NULL;
    mla_status st = frame_buf_new(&b, true, err);
    if (!st) st = mla_json_new_object(&doc, err);
    if (!st) st = header(c, mla_json_root(doc), err);
    if (!st) {
        ids = mla_jv_set_arr(mla_json_root(doc), "id_frames");
        docs = mla_jv_set_arr(mla_json_root(doc), "doc_frames");
        if (!ids || !docs) st = mla_fail(err, MLA_ENOMEM, "token file header");
    }
    if (!st) st = pack_series(c, false, &b, &frames, ids, err);
    if (!st) st = pack_series(c, true, &b, &frames, docs, err);
    if (!st) st = mla_json_print(&text, mla_json_root(doc), false, err);
    if (!st && !(mla_str_ok(&text) && mla_str_ok(&frames))) st = mla_fail(err, MLA_ENOMEM, "token file of %zu ids", c->ids.n);
    if (!st) st = mla_out_open(&out, path, err);
    if (st) goto done;
    unsigned char head[16] = MAGIC;
    for (size_t k = 0; k < 8; k++) head[8 + k] = (unsigned char)((uint64_t)text.len >> 8 * k);
    st = mla_out_write(out, head, sizeof head, err);
    if (!st) st = mla_out_write(out, mla_str_c(&text), text.len, err);
    if (!st) st = mla_out_write(out, mla_str_c(&frames), frames.len, err);
    if (!st) {
        st = mla_out_commit(out, err);
        out = NULL;
    }
done:
    mla_out_abort(out);
    mla_json_free(doc);
    mla_str_free(&frames);
    mla_str_free(&text);
    frame_buf_free(&b);
    return st;
}

typedef struct {
    mla_corpus *c;
    const unsigned char *data; /* what is left of the file */
    size_t left, vocab;
    frame_buf buf;
    mla_err *err;
} reader;

/* One number of a series onto the corpus. *end: where the next document begins among the ids. */
static mla_status accept(reader *r, bool docs, uint64_t v, size_t *end)
{
    if (!docs) return mla_corpus_push(r->c, v > INT32_MAX ? -1 : (int64_t)v, r->vocab, r->err);
    if (v > r->c->ids.n - *end) return mla_fail(r->err, MLA_EFORMAT, "the documents are longer than the %zu ids", r->c->ids.n);
    *end += (size_t)v;
    size_t all = r->c->ids.n;
    r->c->ids.n = *end; /* a document ends at the ids so far */
    mla_status st = mla_corpus_end_doc(r->c, r->err);
    r->c->ids.n = all;
    return st;
}

/* Reads n numbers from the frames that `list` gives the sizes of. */
static mla_status unpack_series(reader *r, bool docs, const mla_jv *list, size_t n, size_t *end)
{
    const char *what = docs ? "doc_frames" : "id_frames";
    size_t width = docs ? 8 : 4, first = 0;
    if (!mla_jv_is_arr(list) || mla_jv_len(list) != frames_of(n))
        return mla_fail(r->err, MLA_EFORMAT, "%s: expected an array of %zu sizes", what, frames_of(n));
    for (const mla_jv *k = mla_jv_first(list); k; k = mla_jv_next(k), first += FRAME) {
        size_t m = n - first < FRAME ? n - first : FRAME, size;
        if (!mla_jv_size(k, &size) || size > r->left)
            return mla_fail(r->err, MLA_EFORMAT, "%s: frame %zu is longer than the %zu bytes left", what, first / FRAME, r->left);
        mla_status st = mla_zst_unpack(r->buf.planes, m * width, r->data, size, r->err);
        if (st) return mla_wrap(r->err, "%s: frame %zu", what, first / FRAME);
        from_planes(r->buf.v, r->buf.planes, m, width);
        for (size_t i = 0; i < m && !st; i++) st = accept(r, docs, r->buf.v[i], end);
        if (st) return mla_wrap(r->err, "%s: frame %zu", what, first / FRAME);
        r->data += size;
        r->left -= size;
    }
    return MLA_OK;
}

/* 64 lowercase hex digits under key into digest; `need`: absence is an error, else it leaves digest alone. */
static mla_status read_digest(const mla_jv *root, const char *key, bool need, unsigned char digest[32], mla_err *err)
{
    static const char DIGIT[] = "0123456789abcdef";
    const char *s = mla_jv_str(mla_jv_get(root, key));
    if (!need && !mla_jv_get(root, key)) return MLA_OK;
    if (!s || strlen(s) != 64 || strspn(s, DIGIT) != 64) return mla_fail(err, MLA_EFORMAT, "%s: expected 64 hex digits", key);
    for (size_t i = 0; i < 32; i++)
        digest[i] = (unsigned char)((strchr(DIGIT, s[2 * i]) - DIGIT) << 4 | (strchr(DIGIT, s[2 * i + 1]) - DIGIT));
    return MLA_OK;
}

static mla_status read_body(reader *r, const mla_jv *root)
{
    size_t n, docs, bytes, first = r->c->ids.n, end = first;
    unsigned char want[32], got[32];
    mla_quoted q;
    const char *schema = mla_jv_str(mla_jv_get(root, "schema"));
    if (!schema || strcmp(schema, SCHEMA))
        return mla_fail(r->err, MLA_EUNSUPPORTED, "schema \"%s\", expected " SCHEMA, schema ? mla_quote(&q, schema, strlen(schema)) : "");
    if (!mla_jv_size(mla_jv_get(root, "ids"), &n) || !mla_jv_size(mla_jv_get(root, "docs"), &docs) ||
        !mla_jv_size(mla_jv_get(root, "bytes"), &bytes))
        return mla_fail(r->err, MLA_EFORMAT, "ids, docs, bytes: expected whole numbers");
    mla_status st = read_digest(root, "sha256", true, want, r->err);
    if (!st) st = read_digest(root, "tokenizer_sha256", false, r->c->tokenizer_sha256, r->err);
    if (!st) st = unpack_series(r, false, mla_jv_get(root, "id_frames"), n, &end);
    if (!st) st = unpack_series(r, true, mla_jv_get(root, "doc_frames"), docs, &end);
    if (st) return st;
    if (end != r->c->ids.n) return mla_fail(r->err, MLA_EFORMAT, "the documents hold %zu of the %zu ids", end - first, n);
    if (r->left) return mla_fail(r->err, MLA_EFORMAT, "%zu bytes behind the last frame", r->left);
    mla_sha256_bytes(n ? (const void *)(r->c->ids.id + first) : "", 4 * n, got);
    if (memcmp(want, got, 32)) return mla_fail(r->err, MLA_EFORMAT, "sha256 of the ids differs from the header's");
    r->c->bytes += bytes;
    return MLA_OK;
}

mla_status mla_corpus_read_tok(mla_corpus *c, const unsigned char *data, size_t n, size_t vocab, mla_err *err)
{
    reader r = {.c = c, .vocab = vocab, .err = err};
    mla_json *doc = NULL;
    uint64_t len = 0;
    if (n < 16 || memcmp(data, MAGIC, 8)) return mla_fail(err, MLA_EFORMAT, "no token file: it does not begin with \"MLATOK1\"");
    for (size_t k = 0; k < 8; k++) len |= (uint64_t)data[8 + k] << 8 * k;
    if (len > HEADER_MAX || len > n - 16)
        return mla_fail(err, MLA_EFORMAT, "a header of %llu bytes in a file of %zu", (unsigned long long)len, n);
    r.data = data + 16 + len;
    r.left = n - 16 - (size_t)len;
    mla_status st = mla_json_parse(&doc, (const char *)data + 16, (size_t)len, "the header", err);
    if (!st) st = frame_buf_new(&r.buf, false, err);
    if (!st) st = read_body(&r, mla_json_root(doc));
    frame_buf_free(&r.buf);
    mla_json_free(doc);
    return st;
}
