/* The gate's rules about files: receipts, the base's weights, the tokenizer, KV scales. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/receipt.h"
#include "verify/gate/gate_parts.h"
#include "verify/folder/receipts.h"
#include "verify/report/report.h"

/* The receipt's list of the base's files against its list of this folder's: both lists are proven by other rules. */
static mla_status unchanged(size_t *same, mla_findings *f, const char *dir, mla_err *err)
{
    mla_manifest own = {0}, base = {0};
    mla_json *d = NULL;
    char *path = mla_path_join(dir, MLA_RECEIPT_NAME);
    mla_status st = path ? mla_json_read(&d, path, (size_t)256 << 20, err) : mla_fail(err, MLA_ENOMEM, "path of the receipt");
    if (st == MLA_OK) st = mla_manifest_from_json(&own, mla_json_root(d), err);
    if (st == MLA_OK) st = mla_manifest_from_json(&base, mla_jv_get(mla_json_root(d), "base"), err);
    for (size_t i = 0; st == MLA_OK && i < base.n; i++) {
        const mla_receipt_file *b = &base.file[i], *o = NULL;
        if (!mla_ends_with(b->name, ".safetensors")) continue;
        for (size_t k = 0; k < own.n && !o; k++)
            if (!strcmp(own.file[k].name, b->name)) o = &own.file[k];
        if (!o) mla_findings_add(f, "%s: a weight file of the base that is not here", b->name);
        else if (memcmp(o->sha256, b->sha256, 32)) mla_findings_add(f, "%s: not the base's weights, byte for byte", b->name);
        else (*same)++;
    }
    mla_manifest_free(&own);
    mla_manifest_free(&base);
    mla_json_free(d);
    mla_free(path);
    return st;
}

/* Every line of f as a finding; the first one is the rule's reason. */
static void add_findings(mla_gate *g, const char *name, const mla_findings *f)
{
    for (const char *p = mla_str_c(&f->text); *p;) {
        size_t n = strcspn(p, "\n");
        char *line = mla_strndup(p, n);
        if (line && n) {
            mla_jv *o = mla_jv_add_obj(g->findings);
            mla_jv_set_str(o, "name", name);
            mla_jv_set_str(o, "text", line);
        }
        mla_free(line);
        p += n + (p[n] == '\n');
    }
}

static void base_unchanged(mla_gate *g)
{
    mla_findings f = {0};
    mla_err why = {0};
    size_t same = 0;
    if (unchanged(&same, &f, g->in->dir, &why) != MLA_OK) {
        mla_gate_unjudged(g, "receipts", "base weights", &why);
    } else {
        mla_gate_rule r = MLA_RULE("receipts", "base weights", f.n ? MLA_FAIL : same ? MLA_PASS : MLA_NO_EVIDENCE);
        if (f.n) mla_gate_add(g, &r, "%zu weight files differ: %.200s", f.n, mla_str_c(&f.text));
        else mla_gate_add(g, &r, "%zu weight files of the base are here, byte for byte", same);
        add_findings(g, "base weights", &f);
    }
    mla_findings_free(&f);
}

static void tokenizer(mla_gate *g)
{
    const mla_jv *list = mla_jv_get(g->doc, "references");
    const char *own = g->id.tokenizer_sha256;
    mla_gate_rule r = MLA_RULE("receipts", "tokenizer", MLA_PASS);
    if (!g->model || !own[0] || !mla_jv_first(list)) {
        r.verdict = MLA_NO_EVIDENCE;
        mla_gate_add(g, &r, "%s", !g->model ? "the model could not be opened" : !own[0] ? "the model has no tokenizer" : "no reference to compare with");
        return;
    }
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        const char *told = mla_doc_str(v, "tokenizer_sha256", "");
        if (told[0] && !strcmp(told, own)) continue;
        r.verdict = told[0] ? MLA_FAIL : MLA_NO_EVIDENCE;
        if (told[0])
            mla_gate_add(g, &r, "%s was recorded with another tokenizer: expected %s, the model has %s", mla_doc_str(v, "name", ""), told, own);
        else
            mla_gate_add(g, &r, "%s does not say which tokenizer it was recorded with", mla_doc_str(v, "name", ""));
        return;
    }
    mla_gate_add(g, &r, "the references were recorded with the model's own tokenizer");
}

void mla_gate_receipts(mla_gate *g)
{
    const mla_policy *p = g->p;
    mla_err why = {0};
    mla_verdict v;
    mla_jv *report = mla_jv_set_obj(g->reports, "receipts");
    const char *consumer[MLA_POLICY_LIST];
    for (size_t i = 0; i < p->n_consumer; i++) consumer[i] = p->consumer[i];
    mla_receipts_opts o = {.base = p->base ? g->in->against : NULL, .values = p->values, .consumer = consumer, .consumers = p->n_consumer,
                           .pool = g->in->pool, .log = g->in->log};
    if (mla_receipts_check(report, g->in->dir, &o, &v, &why) != MLA_OK) {
        mla_jv_remove(g->reports, "receipts");
        mla_gate_unjudged(g, "receipts", "receipts", &why);
    } else {
        mla_gate_take(g, "receipts", report, NULL);
    }
    if (p->base && !g->in->against)
        mla_gate_add(g, &MLA_RULE("receipts", "base", MLA_NO_EVIDENCE), "not compared: it needs --against BASE");
    if (p->base_unchanged) base_unchanged(g);
    if (p->tokenizer) tokenizer(g);
}

void mla_gate_scales(mla_gate *g)
{
    mla_gate_rule r = MLA_RULE("scales", "stored", MLA_PASS);
    size_t with = 0, full = 0;
    if (!g->model) {
        r.verdict = MLA_NO_EVIDENCE;
        mla_gate_add(g, &r, "the model could not be opened");
        return;
    }
    const mla_config *c = mla_model_config(g->model);
    for (size_t l = 0; l < c->layers; l++) {
        mla_kv_scale s = {0};
        mla_err why = {0};
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        full++;
        if (mla_model_kv_scale(g->model, l, &s, &why) != MLA_OK) {
            r.verdict = MLA_FAIL;
            mla_gate_add(g, &r, "layer %zu: %s", l, why.msg);
            return;
        }
        with += s.present;
        if (s.present || !g->p->scales_required) continue;
        r.verdict = MLA_FAIL;
        mla_gate_add(g, &r, "layer %zu has no KV scale: an FP8 cache would use 1.0 there", l);
        return;
    }
    if (with && with < full) r.verdict = MLA_FAIL;
    mla_gate_add(g, &r, "%zu of %zu full-attention layers have finite KV scales above zero", with, full);
}
