/* Finding out what a path is, and the parts of the document that all kinds share. */
#include "verify/inspect/inspect.h"

#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file.h"
#include "verify/inspect/inspect_parts.h"

void mla_inspect_set_kind(mla_jv *doc, const char *kind) { mla_jv_set_str(doc, "kind", kind); }

void mla_inspect_note(mla_jv *doc, const char *fmt, ...)
{
    mla_str s = MLA_STR_MAX(4096);
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(&s, fmt, ap);
    va_end(ap);
    mla_jv *notes = mla_jv_get(doc, "notes");
    if (!notes) notes = mla_jv_set_arr(doc, "notes");
    char *t = mla_inspect_clean(mla_str_c(&s), s.len);
    mla_jv_add_str(notes, t);
    mla_free(t);
    mla_str_free(&s);
}

char *mla_inspect_clean(const char *s, size_t n)
{
    char *t = mla_strndup(s, n);
    bool valid = mla_utf8_valid(s, n);
    for (size_t i = 0; t && i < n; i++)
        if (t[i] == '\0' || (!valid && ((unsigned char)t[i] & 0x80))) t[i] = '?';
    return t;
}

void mla_inspect_put_text(mla_jv *obj, const char *key, const char *s, size_t n)
{
    char *t = mla_inspect_clean(s, n);
    mla_jv_set_str(obj, key, t);
    mla_free(t);
}

void mla_inspect_sum(mla_inspect_sums *s, const char *name, double bytes)
{
    size_t i = 0;
    while (i < s->n && strcmp(s->row[i].name, name)) i++;
    if (i == sizeof s->row / sizeof *s->row) i--; /* more kinds than the formats of all libraries together */
    if (i == s->n) s->row[s->n++].name = name;
    s->row[i].count++;
    s->row[i].bytes += bytes;
}

void mla_inspect_put_sums(mla_jv *totals, const char *key, const char *name_key, const char *count_key, mla_inspect_sums *s)
{
    bool used[sizeof s->row / sizeof *s->row] = {false};
    mla_jv *a = mla_jv_set_arr(totals, key);
    for (size_t k = 0; k < s->n; k++) {
        size_t best = s->n;
        for (size_t i = 0; i < s->n; i++)
            if (!used[i] && (best == s->n || s->row[i].bytes > s->row[best].bytes)) best = i;
        used[best] = true;
        mla_jv *o = mla_jv_add_obj(a);
        mla_jv_set_str(o, name_key, s->row[best].name);
        mla_jv_set_size(o, count_key, s->row[best].count);
        mla_jv_set_f64(o, "bytes", s->row[best].bytes);
    }
}

/* First bytes of a file; shorter files give fewer. */
static mla_status peek(const char *path, unsigned char head[16], size_t *n, mla_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t k = fd >= 0 ? read(fd, head, 16) : -1;
    if (fd >= 0) close(fd);
    if (k < 0) { /* the reader words the refusal of what cannot be opened or is no file */
        mla_mapped m = {0};
        mla_status st = mla_file_map(&m, path, err);
        mla_file_unmap(&m);
        return st != MLA_OK ? st : mla_fail(err, MLA_EIO, "%s: cannot read", path);
    }
    *n = (size_t)k;
    return MLA_OK;
}

static mla_status dispatch(mla_jv *doc, const char *path, mla_err *err)
{
    unsigned char head[16] = {0};
    size_t n = 0;
    if (mla_path_is_dir(path)) return mla_inspect_folder(doc, path, err);
    if (peek(path, head, &n, err) != MLA_OK) return err->status;
    if (n >= 4 && !memcmp(head, "GGUF", 4)) return mla_inspect_gguf(doc, path, err);
    if (mla_ends_with(path, ".gguf")) return mla_inspect_gguf(doc, path, err);
    if (mla_ends_with(path, ".safetensors")) return mla_inspect_safetensors(doc, path, err);
    if (n >= 8 && mla_inspect_is_framed(head)) return mla_inspect_framed(doc, path, err);
    if (n >= 9 && head[8] == '{') return mla_inspect_safetensors(doc, path, err);
    if (mla_ends_with(path, ".json") || (n > 0 && head[0] == '{')) return mla_inspect_json(doc, path, err);
    return mla_fail(err, MLA_EUNSUPPORTED, "%s: not a checkpoint, safetensors, GGUF or JSON file, nor a file of this toolkit", path);
}

/* The last part of the path: a report names no folder of this machine. */
static void set_name(mla_jv *doc, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t b = n;
    while (b > 0 && path[b - 1] != '/') b--;
    mla_inspect_put_text(doc, "name", path + b, n - b);
}

mla_status mla_inspect(mla_json **out, const char *path, mla_err *err)
{
    mla_json *d = NULL;
    *out = NULL;
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *doc = mla_json_root(d);
    mla_jv_set_str(doc, "schema", MLA_INSPECT_SCHEMA);
    mla_jv_set_str(doc, "kind", "unknown");
    set_name(doc, path);
    st = dispatch(doc, path, err);
    if (st == MLA_OK)
        *out = d;
    else
        mla_json_free(d);
    return st;
}
