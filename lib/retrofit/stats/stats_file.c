/* Writing and strict reading of statistics files. */
#include "retrofit/stats/stats_file.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"
#include "io/zst.h"

#define MAGIC "MLASTAT1"
#define HEADER_MAX ((size_t)64 << 20)
#define DIM_MAX 65536 /* per dimension: keeps every product within 64 bits */

/* Byte plane b of value i goes to out[b * n + i]: exponents compress, mantissas do not disturb them. */
static void planes_split(unsigned char *out, const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char b[8];
        memcpy(b, v + i, 8);
        for (size_t k = 0; k < 8; k++) out[k * n + i] = b[k];
    }
}

static void planes_join(double *v, const unsigned char *in, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char b[8];
        for (size_t k = 0; k < 8; k++) b[k] = in[k * n + i];
        memcpy(v + i, b, 8);
    }
}

static void put_hex(mla_jv *o, const char *key, const unsigned char d[32])
{
    char hex[65];
    mla_hex(d, 32, hex);
    mla_jv_set_str(o, key, hex);
}

static mla_status header_json(mla_str *out, const mla_stats *s, const size_t *frame_bytes, mla_err *err)
{
    mla_json *d;
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(d);
    mla_jv_set_str(o, "schema", MLA_STATS_SCHEMA);
    mla_jv_set_str(o, "layout", mla_layout_name(s->layout));
    if (s->plain) mla_jv_set_str(o, "weights", "plain");
    mla_jv_set_f64(o, "tokens", s->tokens);
    mla_jv_set_size(o, "rows", s->rows);
    mla_jv_set_size(o, "row_tokens", s->row_tokens);
    put_hex(o, "base_digest", s->base_digest);
    put_hex(o, "corpus_digest", s->corpus_digest);
    mla_jv *ls = mla_jv_set_arr(o, "layers");
    for (size_t i = 0; i < s->layers; i++) {
        const mla_layer_stats *l = &s->layer[i];
        mla_jv *lo = mla_jv_add_obj(ls);
        mla_jv_set_size(lo, "layer", l->layer);
        mla_jv_set_size(lo, "heads", l->H);
        mla_jv_set_size(lo, "kv_heads", l->G);
        mla_jv_set_size(lo, "head_dim", l->d);
        mla_jv_set_size(lo, "key_dim", l->dk);
        mla_jv_set_size(lo, "frequencies", l->half);
        mla_jv_set_size(lo, "gate_blocks", l->gate_blocks);
        mla_jv_set_size(lo, "gate_dim", l->gate_dim);
        mla_jv_set_f64(lo, "tokens", l->tokens);
        mla_jv_set_f64(lo, "weight", l->wsum);
        mla_jv *fr = mla_jv_set_arr(lo, "frame_bytes");
        for (size_t k = 0; k < MLA_STATS_ARRAYS && frame_bytes[i * MLA_STATS_ARRAYS + k]; k++) mla_jv_add_size(fr, frame_bytes[i * MLA_STATS_ARRAYS + k]);
    }
    st = mla_json_print(out, o, false, err);
    mla_json_free(d);
    return st;
}

typedef struct {
    const mla_stats *s;
    unsigned char **frame; /* (layers * MLA_STATS_ARRAYS) each */
    size_t *bytes;
    mla_err *err;
} packing;

static mla_status pack_array(packing *p, size_t at, mla_err *err)
{
    mla_stats_array a[MLA_STATS_ARRAYS];
    size_t k = at % MLA_STATS_ARRAYS;
    if (k >= mla_stats_arrays(&p->s->layer[at / MLA_STATS_ARRAYS], a)) return MLA_OK;
    size_t n = a[k].count, cap = mla_zst_bound(n * 8);
    unsigned char *raw = mla_alloc_raw(n, 1, 8);
    p->frame[at] = mla_alloc_raw(cap, 1, 1);
    mla_status st = raw && p->frame[at] ? MLA_OK : mla_fail(err, MLA_ENOMEM, "statistics array %s of %zu values", a[k].name, n);
    if (st == MLA_OK) {
        planes_split(raw, a[k].data, n);
        st = mla_zst_pack(p->frame[at], cap, &p->bytes[at], raw, n * 8, 3, err);
    }
    mla_free(raw);
    return st;
}

static void pack_some(void *ctx, size_t b, size_t e, size_t worker)
{
    (void)worker;
    packing *p = ctx;
    for (size_t i = b; i < e; i++) p->err[i].status = pack_array(p, i, &p->err[i]);
}

/* Packs every array; frames are kept in memory (statistics are tens of MB a layer before packing). */
static mla_status pack_all(const mla_stats *s, unsigned char **frame, size_t *bytes, mla_pool *pool, mla_err *err)
{
    size_t n = s->layers * MLA_STATS_ARRAYS;
    packing p = {s, frame, bytes, mla_alloc(n, 1, sizeof *p.err)};
    if (!p.err) return mla_fail(err, MLA_ENOMEM, "statistics of %zu layers", s->layers);
    mla_par_for(pool, n, 1, pack_some, &p);
    mla_status st = mla_first_error(p.err, n, err);
    mla_free(p.err);
    return st;
}

mla_status mla_stats_write(const mla_stats *s, const char *path, unsigned char digest[32], mla_pool *pool, mla_err *err)
{
    size_t nf = s->layers * MLA_STATS_ARRAYS;
    unsigned char **frame = mla_alloc(nf, 1, sizeof *frame);
    size_t *bytes = mla_alloc(nf, 1, sizeof *bytes);
    mla_str head = MLA_STR_MAX(HEADER_MAX);
    mla_out *o = NULL;
    mla_status st = frame && bytes ? MLA_OK : mla_fail(err, MLA_ENOMEM, "statistics file of %zu frames", nf);
    if (st == MLA_OK) st = pack_all(s, frame, bytes, pool, err);
    if (st == MLA_OK) st = header_json(&head, s, bytes, err);
    if (st == MLA_OK) st = mla_out_open(&o, path, err);
    uint64_t n = head.len;
    if (st == MLA_OK) st = mla_out_write(o, MAGIC, 8, err);
    if (st == MLA_OK) st = mla_out_write(o, &n, 8, err);
    if (st == MLA_OK) st = mla_out_write(o, head.s, head.len, err);
    for (size_t i = 0; st == MLA_OK && i < nf; i++) st = mla_out_write(o, frame[i], bytes[i], err);
    if (st == MLA_OK) {
        if (digest) mla_out_sha256(o, digest);
        st = mla_out_commit(o, err);
    } else {
        mla_out_abort(o);
    }
    for (size_t i = 0; frame && i < nf; i++) mla_free(frame[i]);
    mla_free(frame);
    mla_free(bytes);
    mla_str_free(&head);
    return st == MLA_OK ? st : mla_wrap(err, "%s", path);
}

static mla_status need_size(const mla_jv *o, const char *key, size_t max, size_t *out, mla_err *err)
{
    if (!mla_jv_size(mla_jv_get(o, key), out) || *out > max)
        return mla_fail(err, MLA_EFORMAT, "header key %s: expected an integer of at most %zu, found %s", key, max, mla_jv_kind(mla_jv_get(o, key)));
    return MLA_OK;
}

static mla_status need_digest(const mla_jv *o, const char *key, unsigned char out[32], mla_err *err)
{
    const char *s = mla_jv_str(mla_jv_get(o, key));
    for (size_t i = 0; s && strlen(s) == 64 && i < 64; i++) {
        const char *hex = "0123456789abcdef", *p = strchr(hex, s[i]);
        if (!p) break;
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | (p - hex) : (p - hex) << 4);
        if (i == 63) return MLA_OK;
    }
    return mla_fail(err, MLA_EFORMAT, "header key %s: expected 64 hex digits", key);
}

typedef struct {
    const unsigned char *at, *end;
} cursor;

static mla_status read_array(const mla_stats_array *a, const mla_jv *bytes, cursor *c, mla_err *err)
{
    size_t n;
    if (!mla_jv_size(bytes, &n) || n > (size_t)(c->end - c->at))
        return mla_fail(err, MLA_EFORMAT, "array %s: frame runs past the end of the file", a->name);
    unsigned char *raw = mla_alloc_raw(a->count, 1, 8);
    if (!raw) return mla_fail(err, MLA_ENOMEM, "array %s of %zu values", a->name, a->count);
    mla_status st = mla_zst_unpack(raw, a->count * 8, c->at, n, err);
    if (st == MLA_OK) planes_join(a->data, raw, a->count);
    mla_free(raw);
    c->at += n;
    for (size_t i = 0; st == MLA_OK && i < a->count; i++)
        if (!isfinite(a->data[i])) st = mla_fail(err, MLA_EFORMAT, "array %s: value %zu is not finite", a->name, i);
    return st == MLA_OK ? st : mla_wrap(err, "array %s", a->name);
}

static mla_status read_layer(mla_layer_stats *l, const mla_jv *o, bool divs, cursor *c, mla_err *err)
{
    mla_status st;
    if ((st = need_size(o, "layer", DIM_MAX, &l->layer, err)) != MLA_OK || (st = need_size(o, "heads", 4096, &l->H, err)) != MLA_OK ||
        (st = need_size(o, "kv_heads", 4096, &l->G, err)) != MLA_OK || (st = need_size(o, "head_dim", 4096, &l->d, err)) != MLA_OK ||
        (st = need_size(o, "key_dim", 4096, &l->dk, err)) != MLA_OK || (st = need_size(o, "gate_blocks", 4096, &l->gate_blocks, err)) != MLA_OK ||
        (st = need_size(o, "gate_dim", DIM_MAX, &l->gate_dim, err)) != MLA_OK)
        return st;
    if (mla_jv_get(o, "frequencies") && (st = need_size(o, "frequencies", 4096, &l->half, err)) != MLA_OK) return st; /* older files: none */
    if (l->half && 2 * l->half > l->dk) return mla_fail(err, MLA_EFORMAT, "layer %zu: %zu frequencies for keys of %zu dims", l->layer, l->half, l->dk);
    l->n = l->G * (l->dk + l->d);
    if (l->n > DIM_MAX || !mla_jv_f64(mla_jv_get(o, "tokens"), &l->tokens) || !mla_jv_f64(mla_jv_get(o, "weight"), &l->wsum))
        return mla_fail(err, MLA_EFORMAT, "layer %zu: %zu features, tokens and weight must be numbers", l->layer, l->n);
    /* a frame cannot hold more than its bytes can decode to (zstd: at most ~ 128 KiB per 3 bytes): bound by the file */
    size_t left = (size_t)(c->end - c->at), need;
    if (!mla_mul(&need, l->n, l->n) || need / 65536 > left)
        return mla_fail(err, MLA_EFORMAT, "layer %zu: %zu features in %zu bytes", l->layer, l->n, left);
    if ((st = mla_stats_alloc(l, divs, err)) != MLA_OK) return st;
    mla_stats_array a[MLA_STATS_ARRAYS];
    size_t arrays = mla_stats_arrays(l, a);
    const mla_jv *fb = mla_jv_first(mla_jv_get(o, "frame_bytes"));
    for (size_t k = 0; k < arrays; k++, fb = mla_jv_next(fb)) {
        if (!fb) return mla_fail(err, MLA_EFORMAT, "layer %zu: frame_bytes has fewer than %zu entries", l->layer, arrays);
        if ((st = read_array(&a[k], fb, c, err)) != MLA_OK) return mla_wrap(err, "layer %zu", l->layer);
    }
    return MLA_OK;
}

static mla_status read_body(mla_stats *s, const mla_jv *o, cursor c, mla_err *err)
{
    const char *schema = mla_jv_str(mla_jv_get(o, "schema")), *layout = mla_jv_str(mla_jv_get(o, "layout"));
    if (!schema || strcmp(schema, MLA_STATS_SCHEMA))
        return mla_fail(err, MLA_EFORMAT, "schema: expected %s, found %s", MLA_STATS_SCHEMA, schema ? schema : "none");
    if (!layout || !mla_layout_parse(layout, &s->layout))
        return mla_fail(err, MLA_EFORMAT, "layout: expected one of " MLA_LAYOUT_LIST ", found %s", layout ? layout : "none");
    const mla_jv *w = mla_jv_get(o, "weights");
    s->plain = w && mla_jv_str(w) && !strcmp(mla_jv_str(w), "plain");
    if (w && !s->plain) return mla_fail(err, MLA_EFORMAT, "weights: expected \"plain\" or no such key, found %s", mla_jv_str(w) ? mla_jv_str(w) : mla_jv_kind(w));
    mla_status st;
    if (!mla_jv_f64(mla_jv_get(o, "tokens"), &s->tokens)) return mla_fail(err, MLA_EFORMAT, "header key tokens: expected a number");
    if ((st = need_size(o, "rows", SIZE_MAX, &s->rows, err)) != MLA_OK || (st = need_size(o, "row_tokens", SIZE_MAX, &s->row_tokens, err)) != MLA_OK ||
        (st = need_digest(o, "base_digest", s->base_digest, err)) != MLA_OK ||
        (st = need_digest(o, "corpus_digest", s->corpus_digest, err)) != MLA_OK)
        return st;
    const mla_jv *ls = mla_jv_get(o, "layers");
    size_t n = mla_jv_len(ls);
    if (!mla_jv_is_arr(ls) || n == 0 || n > DIM_MAX) return mla_fail(err, MLA_EFORMAT, "layers: expected an array of 1 to %d", DIM_MAX);
    s->layer = mla_alloc(n, 1, sizeof *s->layer);
    if (!s->layer) return mla_fail(err, MLA_ENOMEM, "%zu layers", n);
    for (const mla_jv *l = mla_jv_first(ls); l; l = mla_jv_next(l))
        if ((st = read_layer(&s->layer[s->layers++], l, s->layout == MLA_LAYOUT_P, &c, err)) != MLA_OK) return st;
    if (c.at != c.end) return mla_fail(err, MLA_EFORMAT, "%zu bytes after the last frame", (size_t)(c.end - c.at));
    return MLA_OK;
}

mla_status mla_stats_read(mla_stats *out, const char *path, mla_err *err)
{
    mla_mapped m = {0};
    mla_json *d = NULL;
    *out = (mla_stats){0};
    mla_status st = mla_file_map(&m, path, err);
    if (st != MLA_OK) return st;
    uint64_t n = 0;
    if (m.size >= 16) memcpy(&n, m.data + 8, 8);
    if (m.size < 16 || memcmp(m.data, MAGIC, 8) || n > HEADER_MAX || n > m.size - 16)
        st = mla_fail(err, MLA_EFORMAT, "not a statistics file (magic %s and a header within the file expected)", MAGIC);
    if (st == MLA_OK) st = mla_json_parse(&d, (const char *)m.data + 16, (size_t)n, "header", err);
    if (st == MLA_OK) st = read_body(out, mla_json_root(d), (cursor){m.data + 16 + n, m.data + m.size}, err);
    mla_json_free(d);
    mla_file_unmap(&m);
    if (st == MLA_OK) return st;
    mla_stats_free(out);
    return mla_wrap(err, "%s", path);
}
