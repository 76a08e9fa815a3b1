/* inspect: JSON files (index, config.json, receipt, reference, reports) and the framed files of the toolkit. */
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/sha256.h"
#include "verify/inspect/inspect_parts.h"
#include "verify/reference/reference.h"

#define JSON_MAX ((size_t)512 << 20)
#define FRAME_HEADER_MAX ((size_t)64 << 20)

/* ---- model.safetensors.index.json: what it maps and which shards lie beside it ---- */
static mla_status inspect_index(mla_jv *doc, const mla_jv *root, const char *path, mla_err *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? mla_strndup(path, (size_t)(slash - path) + 1) : mla_strdup(".");
    mla_map *shards = NULL;
    mla_status st = dir ? mla_map_new(&shards, err) : mla_fail(err, MLA_ENOMEM, "%s", path);
    mla_inspect_set_kind(doc, "index");
    mla_jv *totals = mla_jv_set_obj(doc, "totals"), *files = mla_jv_set_arr(doc, "files"), *list = mla_jv_set_arr(doc, "tensors");
    size_t n = 0;
    for (mla_jv *v = mla_jv_first(mla_jv_get(root, "weight_map")); v && st == MLA_OK; v = mla_jv_next(v), n++) {
        const char *file = mla_jv_str(v);
        bool existed = false;
        if (!file || !mla_path_is_safe_relative(file)) {
            st = mla_fail(err, MLA_EFORMAT, "%s: weight_map \"%.200s\": expected a file name inside the folder, found %s", path, mla_jv_key(v),
                          file ? "a path that leaves it" : mla_jv_kind(v));
            break;
        }
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_put_str(o, "name", mla_jv_key(v));
        mla_jv_put_str(o, "file", file);
        st = mla_map_add(shards, file, strlen(file), 0, &existed, err);
        if (st != MLA_OK || existed) continue;
        char *p = mla_path_join(dir, file);
        mla_jv *f = mla_jv_add_obj(files);
        mla_jv_set_str(f, "name", file);
        mla_jv_set_bool(f, "present", p && mla_path_exists(p));
        if (p && !mla_path_exists(p)) mla_inspect_note(doc, "%s: named by the index, absent beside it", file);
        mla_free(p);
    }
    mla_jv_set_size(totals, "tensors", n);
    size_t declared;
    if (mla_jv_size(mla_jv_get(mla_jv_get(root, "metadata"), "total_size"), &declared)) mla_jv_set_size(totals, "declared_bytes", declared);
    mla_map_free(shards);
    mla_free(dir);
    return st;
}

static mla_status inspect_reference(mla_jv *doc, const mla_jv *root, const char *path, mla_err *err)
{
    mla_reference r = {0};
    mla_status st = mla_reference_from_json(&r, root, err);
    if (st != MLA_OK) return mla_wrap(err, "%s", path);
    mla_inspect_set_kind(doc, "reference");
    mla_jv *o = mla_jv_set_obj(doc, "reference");
    mla_jv_set_str(o, "format", r.probe ? "probe" : MLA_REFERENCE_FORMAT);
    if (r.model) mla_jv_set_str(o, "model", r.model);
    if (r.engine) mla_jv_set_str(o, "engine", r.engine);
    if (r.dtype) mla_jv_set_str(o, "dtype", r.dtype);
    mla_jv_set_f64(o, "min_margin_nats", r.min_margin);
    size_t confident = 0, forced = 0;
    for (size_t k = 0; k < r.n; k++) {
        forced += r.c[k].forced;
        for (size_t i = 0; i < r.c[k].n; i++) confident += r.c[k].confident[i];
    }
    mla_jv_set_size(o, "cases", r.n);
    mla_jv_set_size(o, "forced_cases", forced);
    mla_jv_set_size(o, "positions", mla_reference_positions(&r));
    mla_jv_set_size(o, "confident_positions", confident);
    mla_jv_set_size(o, "longest_tokens", mla_reference_longest(&r));
    mla_reference_free(&r);
    return MLA_OK;
}

static mla_status inspect_receipt(mla_jv *doc, const mla_jv *root, const char *path, mla_err *err)
{
    mla_manifest m = {0};
    unsigned char digest[32];
    char hex[65];
    mla_status st = mla_manifest_from_json(&m, root, err);
    if (st != MLA_OK) return mla_wrap(err, "%s", path);
    st = mla_manifest_root(&m, digest, err);
    if (st != MLA_OK) {
        mla_manifest_free(&m);
        return st;
    }
    mla_inspect_set_kind(doc, "receipt");
    mla_hex(digest, 32, hex);
    mla_jv *o = mla_jv_set_obj(doc, "receipt");
    for (mla_jv *v = mla_jv_first(root); v; v = mla_jv_next(v))
        if (strcmp(mla_jv_key(v), "files")) mla_jv_set_copy(o, mla_jv_key(v), v);
    mla_jv_set_size(o, "files", m.n);
    mla_jv_set_str(o, "computed_root_sha256", hex);
    mla_jv *files = mla_jv_set_arr(doc, "files");
    for (size_t i = 0; i < m.n; i++) {
        mla_jv *f = mla_jv_add_obj(files);
        mla_hex(m.file[i].sha256, 32, hex);
        mla_jv_set_str(f, "name", m.file[i].name);
        mla_jv_set_f64(f, "bytes", (double)m.file[i].size);
        mla_jv_set_str(f, "sha256", hex);
    }
    mla_manifest_free(&m);
    return MLA_OK;
}

static mla_status inspect_config_file(mla_jv *doc, const mla_jv *root, const char *path, mla_err *err)
{
    mla_config c = {0};
    mla_inspect_set_kind(doc, "config");
    mla_status st = mla_config_from_json(&c, root, err);
    if (st == MLA_OK) mla_inspect_config(doc, &c);
    mla_config_free(&c);
    return st == MLA_OK ? st : mla_wrap(err, "%s", path);
}

/* Any other object: its schema where it says one, and its top-level keys. */
static void inspect_other(mla_jv *doc, const mla_jv *root)
{
    const char *schema = mla_jv_str(mla_jv_get(root, "schema"));
    mla_inspect_set_kind(doc, schema && mla_starts_with(schema, "mla-") ? "report" : "json");
    mla_jv *o = mla_jv_set_obj(doc, "header");
    size_t n = 0;
    for (mla_jv *v = mla_jv_first(root); v && n < 256; v = mla_jv_next(v), n++) {
        bool plain = !mla_jv_is_obj(v) && !mla_jv_is_arr(v);
        if (plain)
            mla_jv_set_copy(o, mla_jv_key(v), v);
        else
            mla_jv_set_str(o, mla_jv_key(v), mla_jv_kind(v));
    }
}

mla_status mla_inspect_json(mla_jv *doc, const char *path, mla_err *err)
{
    mla_json *d = NULL;
    mla_status st = mla_json_read(&d, path, JSON_MAX, err);
    const mla_jv *root = st == MLA_OK ? mla_json_root(d) : NULL;
    if (st == MLA_OK && !mla_jv_is_obj(root))
        st = mla_fail(err, MLA_EFORMAT, "%s: expected a JSON object, found %s", path, mla_jv_kind(root));
    const char *format = mla_jv_str(mla_jv_get(root, "format"));
    if (st != MLA_OK) {
        /* worded already */
    } else if (mla_jv_is_obj(mla_jv_get(root, "weight_map"))) {
        st = inspect_index(doc, root, path, err);
    } else if ((format && mla_starts_with(format, "mla-reference/")) || (mla_jv_get(root, "cases") && mla_jv_get(root, "min_margin_nats"))) {
        st = inspect_reference(doc, root, path, err);
    } else if (mla_jv_is_arr(mla_jv_get(root, "files")) && mla_jv_get(root, "root_digest")) {
        st = inspect_receipt(doc, root, path, err);
    } else if (mla_jv_get(root, "architectures") || mla_jv_get(root, "model_type")) {
        st = inspect_config_file(doc, root, path, err);
    } else {
        inspect_other(doc, root);
    }
    mla_json_free(d);
    return st;
}

/* ---- framed files: 8 bytes of magic, u64 header length, JSON header, zstd frames ---- */
static const struct {
    char magic[9];
    const char *kind;
} FRAMED[] = {{"MLASTAT1", "statistics"}, {"MLATOK1\n", "tokens"}};

bool mla_inspect_is_framed(const unsigned char magic[8])
{
    for (size_t i = 0; i < sizeof FRAMED / sizeof *FRAMED; i++)
        if (!memcmp(magic, FRAMED[i].magic, 8)) return true;
    return false;
}

mla_status mla_inspect_framed(mla_jv *doc, const char *path, mla_err *err)
{
    mla_mapped m = {0};
    mla_json *d = NULL;
    mla_status st = mla_file_map(&m, path, err);
    uint64_t n = 0;
    for (size_t i = 0; st == MLA_OK && i < sizeof FRAMED / sizeof *FRAMED; i++)
        if (m.size >= 8 && !memcmp(m.data, FRAMED[i].magic, 8)) mla_inspect_set_kind(doc, FRAMED[i].kind);
    if (st == MLA_OK && m.size < 16) st = mla_fail(err, MLA_EFORMAT, "%s: expected a header, found %zu bytes", path, m.size);
    if (st == MLA_OK) {
        memcpy(&n, m.data + 8, 8);
        if (n > m.size - 16 || n > FRAME_HEADER_MAX)
            st = mla_fail(err, MLA_EFORMAT, "%s: header length %llu, only %zu bytes follow", path, (unsigned long long)n, m.size - 16);
    }
    if (st == MLA_OK) st = mla_json_parse(&d, (const char *)m.data + 16, (size_t)n, path, err);
    if (st == MLA_OK) mla_jv_set_copy(doc, "header", mla_json_root(d));
    if (st == MLA_OK) mla_jv_set_size(doc, "frame_bytes", m.size - 16 - (size_t)n);
    mla_json_free(d);
    mla_file_unmap(&m);
    return st;
}
