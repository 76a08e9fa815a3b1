/* Receipts: files against the recorded list, and the report. */
#include "verify/folder/receipts.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/sha256.h"
#include "verify/folder/consumers.h"
#include "verify/report/report.h"

#define RECEIPT_MAX ((size_t)256 << 20)
#define SELF_KEY "\"receipt_sha256\": \""

bool mla_receipt_self_ok(const char *text, size_t n, bool *present)
{
    const char *at = memmem(text, n, SELF_KEY, sizeof SELF_KEY - 1);
    *present = at != NULL;
    if (!at) return true;
    size_t off = (size_t)(at - text) + sizeof SELF_KEY - 1;
    if (n - off < 65) return false;
    char *zeroed = mla_strndup(text, n);
    if (!zeroed) return false;
    unsigned char d[32];
    char hex[65];
    memset(zeroed + off, '0', 64);
    mla_sha256_bytes(zeroed, n, d);
    mla_hex(d, 32, hex);
    mla_free(zeroed);
    return !memcmp(hex, text + off, 64) && text[off + 64] == '"';
}

/* The receipt's text is what the writer prints: anything else was edited. */
static bool is_canonical(const char *text, size_t n, const mla_jv *root)
{
    mla_str s = MLA_STR_MAX(RECEIPT_MAX);
    mla_err err;
    bool same = mla_json_print(&s, root, true, &err) == MLA_OK && s.len == n && !memcmp(s.s, text, n);
    mla_str_free(&s);
    return same;
}

/* *json stays NULL, with a finding, when the text is no receipt. Absent is an error. */
static mla_status read_receipt(mla_json **json, mla_manifest *m, mla_findings *f, const char *dir, mla_err *err)
{
    char *path = mla_path_join(dir, MLA_RECEIPT_NAME), *text = NULL;
    size_t n = 0;
    bool present;
    mla_err why = {0};
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s", dir);
    if (st == MLA_OK && !mla_path_is_dir(dir)) st = mla_fail(err, MLA_EIO, "%s: expected a folder with a receipt", dir);
    if (st == MLA_OK && !mla_path_exists(path)) st = mla_fail(err, MLA_EIO, "%s: no %s in this folder", dir, MLA_RECEIPT_NAME);
    if (st == MLA_OK) st = mla_file_read(&text, &n, path, RECEIPT_MAX, err);
    if (st == MLA_OK) {
        if (mla_json_parse(json, text, n, MLA_RECEIPT_NAME, &why) != MLA_OK) {
            mla_findings_add(f, "%s", why.msg);
        } else if (mla_manifest_from_json(m, mla_json_root(*json), &why) != MLA_OK) {
            mla_findings_add(f, "%s: %s", MLA_RECEIPT_NAME, why.msg);
            mla_json_free(*json);
            *json = NULL;
        } else {
            if (!is_canonical(text, n, mla_json_root(*json))) mla_findings_add(f, "%s: not the text that a build writes: edited", MLA_RECEIPT_NAME);
            if (!mla_receipt_self_ok(text, n, &present)) mla_findings_add(f, "%s: receipt_sha256 is not the digest of the rest of it", MLA_RECEIPT_NAME);
        }
        if (why.status == MLA_ENOMEM) st = mla_fail(err, MLA_ENOMEM, "%s", why.msg);
    }
    mla_free(text);
    mla_free(path);
    return st;
}

/* The base folder against the list that the receipt keeps of it. */
static mla_status check_base(mla_findings *f, const mla_jv *root, const mla_receipts_opts *o, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_manifest recorded = {0}, found = {0};
    mla_err why = {0};
    const mla_jv *base = mla_jv_get(root, "base");
    mla_status st = MLA_OK;
    if (mla_manifest_from_json(&recorded, base, &why) != MLA_OK) {
        mla_findings_add(f, "%s: base: %s", MLA_RECEIPT_NAME, base ? why.msg : "absent");
    } else {
        st = mla_manifest_scan(&found, o->base, SKIP, o->pool, o->log, err);
        if (st == MLA_OK) mla_manifest_diff(f, &recorded, &found);
    }
    mla_manifest_free(&recorded);
    mla_manifest_free(&found);
    return st;
}

static mla_status put_model(mla_jv *doc, const char *dir, const mla_manifest *found, mla_err *err)
{
    unsigned char root[32];
    char hex[65], text[80] = "sha256:";
    double bytes = 0;
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t b = n;
    while (b > 0 && dir[b - 1] != '/') b--;
    mla_status st = mla_manifest_root(found, root, err);
    if (st != MLA_OK) return st;
    char *name = mla_strndup(dir + b, n - b);
    for (size_t i = 0; i < found->n; i++) bytes += (double)found->file[i].size;
    mla_hex(root, 32, hex);
    memcpy(text + 7, hex, 65);
    mla_jv *m = mla_jv_set_obj(doc, "model");
    mla_jv_set_str(m, "name", name && name[0] != '.' && mla_utf8_valid(name, strlen(name)) ? name : "model");
    mla_jv_set_str(m, "root_digest", text);
    mla_jv_set_size(m, "files", found->n);
    mla_jv_set_f64(m, "bytes", bytes);
    mla_free(name);
    return MLA_OK;
}

typedef struct {
    mla_jv *gates, *list;
    const char *dir;
    size_t findings;
} lists;

/* One gate and its findings; a line of a mla_findings is one finding. */
static void put_gate(lists *l, const char *name, const char *passed, const mla_findings *f)
{
    char reason[32];
    mla_jv *g = mla_jv_add_obj(l->gates);
    mla_jv_set_str(g, "name", name);
    mla_jv_set_str(g, "verdict", f->n ? "fail" : "pass");
    (void)snprintf(reason, sizeof reason, "%zu finding%s", f->n, f->n == 1 ? "" : "s");
    mla_jv_set_str(g, "reason", f->n ? reason : passed);
    l->findings += f->n;
    for (const char *p = mla_str_c(&f->text); *p;) {
        size_t n = strcspn(p, "\n");
        char *line = n ? mla_doc_local(p, n, l->dir) : NULL;
        if (line) {
            mla_jv *o = mla_jv_add_obj(l->list);
            mla_jv_set_str(o, "name", name);
            mla_jv_set_str(o, "text", mla_utf8_valid(line, strlen(line)) ? line : "a finding whose text is no UTF-8");
        }
        mla_free(line);
        p += n + (p[n] == '\n');
    }
}

/* The gates that need the model opened, when it could not be. */
static void put_unjudged(lists *l, const char *why)
{
    static const char *const NAME[] = {"config", "scales", "weights"};
    char *text = mla_doc_local(why, strlen(why), l->dir);
    for (size_t i = 0; i < 3; i++) {
        mla_jv *g = mla_jv_add_obj(l->gates);
        mla_jv_set_str(g, "name", NAME[i]);
        mla_jv_set_str(g, "verdict", mla_verdict_name(MLA_NO_EVIDENCE));
        mla_jv_set_str(g, "reason", text);
    }
    mla_free(text);
}

static void put_findings(mla_jv *doc, const mla_receipts_findings *r, const char *dir, const mla_receipts_opts *o, mla_verdict *verdict)
{
    mla_jv_set_str(doc, "verdict", "");
    lists l = {.gates = mla_jv_set_arr(doc, "gates"), .list = mla_jv_set_arr(doc, "findings"), .dir = dir};
    if (!o->no_receipt) put_gate(&l, "files", "every recorded file is there, nothing else is, all digests hold", &r->f[MLA_RF_FILES]);
    if (r->unsupported[0]) {
        put_unjudged(&l, r->unsupported);
    } else {
        put_gate(&l, "config", "the configuration agrees with the tensors", &r->f[MLA_RF_CONFIG]);
        put_gate(&l, "scales", "no KV scale is missing, zero or not finite", &r->f[MLA_RF_SCALES]);
        put_gate(&l, "weights", o->values ? "every scale and every value is finite" : "every stored scale of a quantized weight is finite",
                 &r->f[MLA_RF_WEIGHTS]);
    }
    if (o->consumers && !r->unsupported[0]) put_gate(&l, "consumers", "every stored KV scale arrives", &r->f[MLA_RF_CONSUMERS]);
    if (o->base) put_gate(&l, "base", "the base is the recorded one", &r->f[MLA_RF_BASE]);
    *verdict = l.findings ? MLA_FAIL : r->unsupported[0] ? MLA_NO_EVIDENCE : MLA_PASS;
    mla_jv_set_str(doc, "verdict", mla_verdict_name(*verdict));
}

mla_status mla_receipts_check(mla_jv *doc, const char *dir, const mla_receipts_opts *o, mla_verdict *verdict, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_receipts_findings r = {0};
    mla_manifest recorded = {0}, found = {0};
    mla_json *json = NULL;
    *verdict = MLA_NO_EVIDENCE;
    mla_status st = o->no_receipt ? MLA_OK : read_receipt(&json, &recorded, &r.f[MLA_RF_FILES], dir, err);
    if (st == MLA_OK) {
        st = mla_manifest_scan(&found, dir, SKIP, o->pool, o->log, err);
        if (st == MLA_EUNSUPPORTED || st == MLA_EFORMAT) { /* a name or a kind of entry that no receipt lists */
            mla_findings_add(&r.f[MLA_RF_FILES], "%s", err->msg);
            st = MLA_OK;
        } else if (st == MLA_OK && json) {
            mla_manifest_diff(&r.f[MLA_RF_FILES], &recorded, &found);
        }
    }
    for (size_t i = 0; st == MLA_OK && i < o->consumers; i++)
        if (!mla_consumer_find(o->consumer[i])) st = mla_fail(err, MLA_EINVAL, "consumer %s is not known", o->consumer[i]);
    if (st == MLA_OK && o->consumers && !(r.consumers = mla_jv_set_arr(doc, "consumers"))) st = mla_fail(err, MLA_ENOMEM, "consumer reports");
    if (st == MLA_OK) mla_receipts_config(&r, dir, o, &found, json ? mla_json_root(json) : NULL);
    if (st == MLA_OK && o->base && json) st = check_base(&r.f[MLA_RF_BASE], mla_json_root(json), o, err);
    if (st == MLA_OK) st = put_model(doc, dir, &found, err);
    if (st == MLA_OK) put_findings(doc, &r, dir, o, verdict);
    for (size_t i = 0; i < MLA_RF_N; i++) mla_findings_free(&r.f[i]);
    mla_manifest_free(&recorded);
    mla_manifest_free(&found);
    mla_json_free(json);
    return st;
}

void mla_receipts_text(mla_str *out, const mla_jv *doc)
{
    const mla_jv *m = mla_jv_get(doc, "model");
    char buf[32];
    mla_doc_line(out, mla_doc_str(m, "name", "model"));
    mla_str_printf(out, ": %.0f files, %s, root digest %s\n", mla_doc_num(m, "files"), mla_bytes_text(buf, sizeof buf, mla_doc_num(m, "bytes")),
                   mla_doc_str(m, "root_digest", "?"));
    for (const mla_jv *f = mla_jv_first(mla_jv_get(doc, "findings")); f; f = mla_jv_next(f)) {
        mla_str_printf(out, "  %-7s ", mla_doc_str(f, "name", ""));
        mla_doc_line(out, mla_doc_str(f, "text", ""));
        mla_str_put(out, "\n");
    }
    for (const mla_jv *k = mla_jv_first(mla_jv_get(doc, "consumers")); k; k = mla_jv_next(k))
        mla_str_printf(out, "%s (%s): %.0f KV scales consumed, %.0f dropped; %.0f of %.0f attention layers calibrated\n", mla_doc_str(k, "consumer", "?"),
                       mla_doc_str(k, "about", ""), mla_doc_num(k, "consumed"), mla_doc_num(k, "dropped"), mla_doc_num(k, "calibrated_layers"),
                       mla_doc_num(k, "attention_layers"));
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g))
        mla_str_printf(out, "%-5s %s: %s\n", mla_doc_str(g, "verdict", ""), mla_doc_str(g, "name", ""), mla_doc_str(g, "reason", ""));
    mla_str_printf(out, "verdict: %s\n", mla_doc_str(doc, "verdict", "?"));
}
