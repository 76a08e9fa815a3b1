/* Manifests: what a folder holds, as digests; to and from JSON; and what differs between two of them. */
#include "io/receipt.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/msg.h"
#include "io/sha256.h"

#define GIT_MAX ((uint64_t)10 << 20) /* the Hub keeps larger files outside git: they have no blob id to compare with */
#define FINDINGS_MAX ((size_t)64 << 20)

/* ---- scanning ---- */
static bool skipped(const char *name, const char *const *skip)
{
    for (; skip && *skip; skip++)
        if (!strcmp(name, *skip)) return true;
    return false;
}

/* Small files are read once and give both digests; large ones are left to mla_sha256_files. */
static mla_status hash_small(mla_receipt_file *f, const char *path, mla_err *err)
{
    char *text;
    size_t n;
    mla_status st = mla_file_read(&text, &n, path, (size_t)GIT_MAX, err);
    if (st != MLA_OK) return st;
    f->size = n;
    mla_sha256_bytes(text, n, f->sha256);
    mla_git_blob_sha1(text, n, f->git_sha1);
    f->has_git = true;
    mla_free(text);
    return MLA_OK;
}

typedef struct { /* scratch of one scan; all arrays have one slot per file */
    char **path;
    mla_file_digest *large;
    size_t *file_of; /* large[k] is file file_of[k] */
    size_t n, nlarge;
    double bytes;
} scan;

static mla_status name_files(mla_manifest *m, scan *s, const char *dir, const mla_names *l, const char *const *skip, mla_err *err)
{
    mla_quoted q;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->name[i];
        if (skipped(name, skip)) continue;
        if (!mla_path_is_safe_relative(name) || !mla_utf8_valid(name, strlen(name)))
            return mla_fail(err, MLA_EUNSUPPORTED, "%s: a file name that a receipt cannot hold: \"%s\"", dir,
                            mla_quote(&q, name, strlen(name)));
        m->file[m->n].name = mla_strdup(name);
        s->path[m->n] = mla_path_join(dir, name);
        m->n++;
        s->n = m->n;
        if (!m->file[m->n - 1].name || !s->path[m->n - 1]) return mla_fail(err, MLA_ENOMEM, "path of %s", name);
    }
    return MLA_OK;
}

static mla_status hash_files(mla_manifest *m, scan *s, mla_pool *pool, mla_log *log, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; i < m->n && st == MLA_OK; i++) {
        uint64_t size;
        st = mla_file_size(&size, s->path[i], err);
        if (st == MLA_OK && size <= GIT_MAX) st = hash_small(&m->file[i], s->path[i], err);
        if (st != MLA_OK || size <= GIT_MAX) continue;
        s->large[s->nlarge].path = s->path[i];
        s->file_of[s->nlarge++] = i;
        s->bytes += (double)size;
    }
    if (st != MLA_OK || s->nlarge == 0) return st;
    mla_progress prog = mla_progress_begin(log, "sha256", s->bytes / 1048576, "MiB");
    st = mla_sha256_files(s->large, s->nlarge, pool, &prog, err);
    mla_progress_end(&prog);
    for (size_t k = 0; k < s->nlarge && st == MLA_OK; k++) {
        m->file[s->file_of[k]].size = s->large[k].size;
        memcpy(m->file[s->file_of[k]].sha256, s->large[k].digest, 32);
    }
    return st;
}

mla_status mla_manifest_scan(mla_manifest *out, const char *dir, const char *const *skip, mla_pool *pool, mla_log *log, mla_err *err)
{
    mla_names l;
    scan s = {0};
    *out = (mla_manifest){0};
    mla_status st = mla_dir_list(&l, dir, err);
    if (st != MLA_OK) return st;
    out->file = mla_alloc(l.n, 1, sizeof *out->file);
    s.path = mla_alloc(l.n, 1, sizeof *s.path);
    s.large = mla_alloc(l.n, 1, sizeof *s.large);
    s.file_of = mla_alloc(l.n, 1, sizeof *s.file_of);
    if (!out->file || !s.path || !s.large || !s.file_of)
        st = mla_fail(err, MLA_ENOMEM, "%s: list of %zu files", dir, l.n);
    if (st == MLA_OK) st = name_files(out, &s, dir, &l, skip, err); /* the list is sorted, so the manifest is */
    if (st == MLA_OK) st = hash_files(out, &s, pool, log, err);
    for (size_t i = 0; i < s.n; i++) mla_free(s.path[i]);
    mla_free(s.path);
    mla_free(s.large);
    mla_free(s.file_of);
    mla_names_free(&l);
    if (st != MLA_OK) mla_manifest_free(out);
    return st;
}

void mla_manifest_free(mla_manifest *m)
{
    for (size_t i = 0; i < m->n; i++) mla_free(m->file[i].name);
    mla_free(m->file);
    *m = (mla_manifest){0};
}

mla_status mla_manifest_root(const mla_manifest *m, unsigned char root[32], mla_err *err)
{
    mla_sha256 *h;
    mla_status st = mla_sha256_new(&h, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < m->n; i++) mla_sha256_update(h, m->file[i].sha256, 32);
    mla_sha256_get(h, root);
    mla_sha256_free(h);
    return st;
}

/* ---- JSON ---- */
static mla_status root_text(const mla_manifest *m, char text[72], mla_err *err)
{
    unsigned char root[32];
    mla_status st = mla_manifest_root(m, root, err);
    memcpy(text, "sha256:", 8);
    if (st == MLA_OK) mla_hex(root, 32, text + 7);
    return st;
}

mla_status mla_manifest_to_json(const mla_manifest *m, mla_jv *obj, mla_err *err)
{
    char hex[72];
    mla_jv *list = mla_jv_set_arr(obj, "files");
    bool ok = list != NULL;
    for (size_t i = 0; i < m->n && ok; i++) {
        const mla_receipt_file *f = &m->file[i];
        mla_jv *e = mla_jv_add_obj(list);
        ok = mla_jv_set_str(e, "name", f->name) && mla_jv_set_size(e, "size", (size_t)f->size);
        mla_hex(f->sha256, 32, hex);
        ok = ok && mla_jv_set_str(e, "sha256", hex);
        mla_hex(f->git_sha1, 20, hex);
        ok = ok && (!f->has_git || mla_jv_set_str(e, "git_blob_sha1", hex));
    }
    mla_status st = root_text(m, hex, err);
    if (st != MLA_OK) return st;
    if (!ok || !mla_jv_set_str(obj, "root_digest", hex)) return mla_fail(err, MLA_ENOMEM, "manifest of %zu files as JSON", m->n);
    return MLA_OK;
}

static bool from_hex(const char *s, unsigned char *out, size_t n) /* lowercase only: one spelling per digest */
{
    if (!s || strlen(s) != 2 * n) return false;
    for (size_t i = 0; i < 2 * n; i++) {
        bool digit = s[i] >= '0' && s[i] <= '9';
        if (!digit && (s[i] < 'a' || s[i] > 'f')) return false;
        unsigned v = digit ? (unsigned)(s[i] - '0') : (unsigned)(s[i] - 'a') + 10;
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | v : v << 4);
    }
    return true;
}

static mla_status read_file(mla_manifest *m, const mla_jv *e, mla_err *err)
{
    mla_quoted q;
    mla_receipt_file *f = &m->file[m->n];
    const char *name = mla_jv_str(mla_jv_get(e, "name"));
    const mla_jv *git = mla_jv_get(e, "git_blob_sha1");
    size_t size;
    if (!name) return mla_fail(err, MLA_EFORMAT, "files[%zu]: no \"name\" string", m->n);
    mla_quote(&q, name, strlen(name));
    if (!mla_path_is_safe_relative(name)) return mla_fail(err, MLA_EFORMAT, "files[%zu]: \"%s\" is no path within the folder", m->n, q.s);
    if (m->n && strcmp(m->file[m->n - 1].name, name) >= 0)
        return mla_fail(err, MLA_EFORMAT, "files[%zu]: \"%s\" does not follow \"%s\": names must be unique and sorted", m->n, q.s,
                        m->file[m->n - 1].name);
    if (!mla_jv_size(mla_jv_get(e, "size"), &size)) return mla_fail(err, MLA_EFORMAT, "\"%s\": no \"size\" in bytes", q.s);
    f->size = size;
    if (!from_hex(mla_jv_str(mla_jv_get(e, "sha256")), f->sha256, 32))
        return mla_fail(err, MLA_EFORMAT, "\"%s\": \"sha256\" is not 64 lowercase hex digits", q.s);
    f->has_git = git != NULL;
    if (git && !from_hex(mla_jv_str(git), f->git_sha1, 20))
        return mla_fail(err, MLA_EFORMAT, "\"%s\": \"git_blob_sha1\" is not 40 lowercase hex digits", q.s);
    f->name = mla_strdup(name);
    if (!f->name) return mla_fail(err, MLA_ENOMEM, "file name");
    m->n++;
    return MLA_OK;
}

mla_status mla_manifest_from_json(mla_manifest *out, const mla_jv *obj, mla_err *err)
{
    const mla_jv *list = mla_jv_get(obj, "files");
    const char *root = mla_jv_str(mla_jv_get(obj, "root_digest"));
    char own[72];
    *out = (mla_manifest){0};
    if (!mla_jv_is_arr(list)) return mla_fail(err, MLA_EFORMAT, "\"files\" is %s, expected an array", mla_jv_kind(list));
    out->file = mla_alloc(mla_jv_len(list), 1, sizeof *out->file);
    mla_status st = out->file ? MLA_OK : mla_fail(err, MLA_ENOMEM, "manifest of %zu files", mla_jv_len(list));
    for (const mla_jv *e = mla_jv_first(list); e && st == MLA_OK; e = mla_jv_next(e)) st = read_file(out, e, err);
    if (st == MLA_OK) st = root_text(out, own, err);
    if (st == MLA_OK && (!root || strcmp(root, own))) {
        mla_quoted q;
        st = mla_fail(err, MLA_EFORMAT, "root_digest: recorded \"%s\", its own files give \"%s\"",
                      root ? mla_quote(&q, root, strlen(root)) : "nothing", own);
    }
    if (st != MLA_OK) mla_manifest_free(out);
    return st;
}

/* ---- differences ---- */
static void diff_file(mla_findings *f, const mla_receipt_file *want, const mla_receipt_file *got)
{
    char a[72], b[72];
    if (want->size != got->size) {
        mla_findings_add(f, "%s: size expected %" PRIu64 ", found %" PRIu64, want->name, want->size, got->size);
    } else if (memcmp(want->sha256, got->sha256, 32)) {
        mla_hex(want->sha256, 32, a);
        mla_hex(got->sha256, 32, b);
        mla_findings_add(f, "%s: sha256 expected %s, found %s", want->name, a, b);
    } else if (want->has_git && got->has_git && memcmp(want->git_sha1, got->git_sha1, 20)) {
        mla_hex(want->git_sha1, 20, a); /* the content is right: the record contradicts itself */
        mla_hex(got->git_sha1, 20, b);
        mla_findings_add(f, "%s: git_blob_sha1 expected %s, found %s", want->name, a, b);
    }
}

void mla_manifest_diff(mla_findings *f, const mla_manifest *recorded, const mla_manifest *found)
{
    size_t i = 0, k = 0;
    while (i < recorded->n || k < found->n) { /* both are sorted by name */
        int c = i == recorded->n ? 1 : k == found->n ? -1 : strcmp(recorded->file[i].name, found->file[k].name);
        if (c == 0)
            diff_file(f, &recorded->file[i], &found->file[k]);
        else if (c < 0)
            mla_findings_add(f, "%s: recorded, but absent", recorded->file[i].name);
        else
            mla_findings_add(f, "%s: present, but not recorded", found->file[k].name);
        i += c <= 0;
        k += c >= 0;
    }
}

void mla_findings_add(mla_findings *f, const char *fmt, ...)
{
    va_list ap;
    if (!f->text.max) f->text = MLA_STR_MAX(FINDINGS_MAX);
    va_start(ap, fmt);
    mla_str_vprintf(&f->text, fmt, ap);
    va_end(ap);
    mla_str_put(&f->text, "\n");
    f->n++; /* counted even when the text is full: a verdict never turns good for lack of memory */
}

void mla_findings_free(mla_findings *f)
{
    mla_str_free(&f->text);
    *f = (mla_findings){0};
}

mla_status mla_receipt_write_sealed(const char *path, mla_jv *obj, mla_err *err)
{
    static const char KEY[] = "\"receipt_sha256\": \"";
    char hex[65];
    unsigned char d[32];
    mla_str text = MLA_STR_MAX((size_t)64 << 20);
    memset(hex, '0', 64);
    hex[64] = 0;
    mla_status st = mla_jv_set_str(obj, "receipt_sha256", hex) ? mla_json_print(&text, obj, true, err) : mla_fail(err, MLA_ENOMEM, "receipt");
    char *at = st == MLA_OK ? strstr(text.s, KEY) : NULL;
    if (st == MLA_OK && !at) st = mla_fail(err, MLA_EINTERNAL, "receipt without a place for its digest");
    if (st == MLA_OK) {
        mla_sha256_bytes(text.s, text.len, d);
        mla_hex(d, 32, hex);
        memcpy(at + sizeof KEY - 1, hex, 64);
        st = mla_file_write(path, text.s, text.len, err);
    }
    mla_str_free(&text);
    return st;
}
