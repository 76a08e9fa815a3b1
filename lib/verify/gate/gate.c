/* The gate: its stages in order, and the document that they fill. */
#include "verify/gate/gate.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"
#include "verify/gate/gate_parts.h"
#include "verify/report/report.h"

#define REASON_MAX 2048

static void set_num(mla_jv *o, const char *key, double v)
{
    if (!isnan(v)) mla_jv_set_f64(o, key, v);
}

static void put_rule(mla_gate *g, const mla_gate_rule *r, const char *verdict, const char *reason)
{
    char name[160];
    mla_jv *o = mla_jv_add_obj(g->rules);
    (void)snprintf(name, sizeof name, "%s: %.120s", r->section, r->name);
    mla_jv_set_str(o, "name", name);
    mla_jv_set_str(o, "verdict", verdict);
    set_num(o, "value", r->value);
    set_num(o, "low", r->low);
    set_num(o, "high", r->high);
    set_num(o, "threshold", r->threshold);
    mla_jv_set_str(o, "reason", mla_utf8_valid(reason, strlen(reason)) ? reason : "a reason whose text is no UTF-8");
}

static void worsen(mla_gate *g, mla_verdict v)
{
    if (v == MLA_FAIL || (v == MLA_NO_EVIDENCE && g->worst == MLA_PASS)) g->worst = v;
}

void mla_gate_add(mla_gate *g, const mla_gate_rule *r, const char *fmt, ...)
{
    mla_str s = MLA_STR_MAX(REASON_MAX);
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(&s, fmt, ap);
    va_end(ap);
    put_rule(g, r, mla_verdict_name(r->verdict), mla_str_c(&s));
    worsen(g, r->verdict);
    mla_str_free(&s);
}

void mla_gate_skip(mla_gate *g, const char *section, const char *name, const char *fmt, ...)
{
    mla_str s = MLA_STR_MAX(REASON_MAX);
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(&s, fmt, ap);
    va_end(ap);
    put_rule(g, &MLA_RULE(section, name, MLA_PASS), MLA_NOT_APPLICABLE, mla_str_c(&s));
    mla_str_free(&s);
}

/* Reports name no folder of this machine: model, base and the folders of references and corpora are taken out. */
static char *localize(const mla_gate *g, const char *msg)
{
    char *text = mla_strdup(msg);
    const char *dir[2] = {g->in->dir, g->in->against};
    for (size_t i = 0; text && i < 2 + g->in->n_reference + g->in->n_corpus; i++) {
        const char *path = i < 2 ? dir[i] : i < 2 + g->in->n_reference ? g->in->reference[i - 2] : g->in->corpus[i - 2 - g->in->n_reference];
        const char *slash = path ? strrchr(path, '/') : NULL;
        if (!path || (i >= 2 && (!slash || slash == path))) continue;
        char *folder = i < 2 ? mla_strdup(path) : mla_strndup(path, (size_t)(slash - path));
        char *next = folder ? mla_doc_local(text, strlen(text), folder) : NULL;
        mla_free(folder);
        mla_free(text);
        text = next;
    }
    return text;
}

void mla_gate_unjudged(mla_gate *g, const char *section, const char *name, const mla_err *why)
{
    char *text = localize(g, why->msg);
    mla_gate_add(g, &MLA_RULE(section, name, MLA_NO_EVIDENCE), "could not be judged: %s", text ? text : "out of memory");
    mla_free(text);
}

/* The first finding of a gate of a report; NULL: none. */
static const char *finding_of(const mla_jv *report, const char *name)
{
    for (const mla_jv *f = mla_jv_first(mla_jv_get(report, "findings")); f; f = mla_jv_next(f))
        if (!strcmp(mla_doc_str(f, "name", ""), name)) return mla_doc_str(f, "text", NULL);
    return NULL;
}

void mla_gate_take(mla_gate *g, const char *section, const mla_jv *report, const char *const *leave)
{
    for (const mla_jv *r = mla_jv_first(mla_jv_get(report, "gates")); r; r = mla_jv_next(r)) {
        const char *name = mla_doc_str(r, "name", "gate"), *v = mla_doc_str(r, "verdict", "");
        bool left = false;
        for (size_t i = 0; leave && leave[i]; i++) left = left || !strcmp(leave[i], name);
        if (left) continue;
        mla_gate_rule rule = MLA_RULE(section, name, !strcmp(v, "pass") ? MLA_PASS : !strcmp(v, "fail") ? MLA_FAIL : MLA_NO_EVIDENCE);
        const struct { const char *key; double *to; } num[] = {{"value", &rule.value}, {"low", &rule.low}, {"high", &rule.high}, {"threshold", &rule.threshold}};
        for (size_t i = 0; i < 4; i++) (void)mla_jv_f64(mla_jv_get(r, num[i].key), num[i].to);
        if (!strcmp(v, MLA_NOT_APPLICABLE)) {
            put_rule(g, &rule, v, mla_doc_str(r, "reason", ""));
        } else {
            const char *first = rule.verdict == MLA_FAIL ? finding_of(report, name) : NULL;
            mla_gate_add(g, &rule, "%s%s%s", mla_doc_str(r, "reason", "no reason given"), first ? ": " : "", first ? first : "");
        }
    }
    for (const mla_jv *f = mla_jv_first(mla_jv_get(report, "findings")); f; f = mla_jv_next(f)) {
        mla_jv *o = mla_jv_add_obj(g->findings);
        mla_jv_set_str(o, "name", mla_doc_str(f, "name", section));
        mla_jv_set_str(o, "text", mla_doc_str(f, "text", ""));
    }
}

/* ---- inputs: digests of everything that was compared ---- */
static mla_status digest_of(char hex[65], const char *path, mla_err *err)
{
    mla_file_digest f = {.path = path};
    mla_status st = mla_sha256_files(&f, 1, NULL, NULL, err);
    if (st == MLA_OK) mla_hex(f.digest, 32, hex);
    return st;
}

static mla_status read_reference(mla_gate *g, mla_jv *list, const char *path, mla_err *err)
{
    mla_reference r = {0};
    char hex[65];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    mla_status st = mla_reference_read(&r, path, err);
    if (st == MLA_OK) st = digest_of(hex, path, err);
    if (st == MLA_OK) {
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_str(o, "name", mla_utf8_valid(name, strlen(name)) ? name : "reference");
        mla_jv_set_str(o, "sha256", hex);
        if (r.model) mla_jv_set_str(o, "model", r.model);
        if (r.engine) mla_jv_set_str(o, "engine", r.engine);
        if (r.tokenizer_sha256) mla_jv_set_str(o, "tokenizer_sha256", r.tokenizer_sha256);
        mla_jv_set_f64(o, "min_margin_nats", r.min_margin);
        mla_jv_set_size(o, "cases", r.n);
        mla_jv_set_size(o, "positions", mla_reference_positions(&r));
        st = mla_reference_append(&g->ref, &r, g->in->n_reference > 1 ? name : NULL, err);
    }
    mla_reference_free(&r);
    return st;
}

/* A reference that cannot be read is a rule of its own; what the others show is judged all the same. */
static void read_references(mla_gate *g)
{
    mla_jv *list = mla_jv_set_arr(g->doc, "references");
    for (size_t i = 0; i < g->in->n_reference; i++) {
        mla_err why = {0};
        if (read_reference(g, list, g->in->reference[i], &why) != MLA_OK) mla_gate_unjudged(g, "inputs", "reference", &why);
    }
}

static mla_status open_one(mla_model **m, mla_identity *id, const char *path, const mla_gate *g, mla_err *err)
{
    mla_status st = mla_model_open(m, path, err);
    if (st == MLA_OK) st = mla_identity_of(id, *m, g->in->pool, NULL, err);
    if (st != MLA_OK) {
        mla_model_close(*m);
        *m = NULL;
    }
    return st;
}

static void open_models(mla_gate *g)
{
    mla_err why = {0};
    if (open_one(&g->model, &g->id, g->in->dir, g, &why) != MLA_OK) mla_gate_unjudged(g, "inputs", "model", &why);
    else mla_identity_put(g->doc, "model", &g->id, g->model);
    if (!g->in->against) return;
    if (open_one(&g->base, &g->base_id, g->in->against, g, &why) != MLA_OK) mla_gate_unjudged(g, "inputs", "base", &why);
    else mla_identity_put(g->doc, "base", &g->base_id, g->base);
}

/* Text for comparisons with the base, tokenized by the model. */
static mla_status read_corpus(mla_gate *g, mla_err *err)
{
    mla_tok *tok = NULL;
    char hex[65];
    if (!g->model || !g->in->n_corpus) return MLA_OK;
    mla_err why;
    mla_status st = mla_model_tokenizer_if_any(g->model, &tok, &why, err);
    if (st != MLA_OK) return st;
    g->corpus.no_tokenizer = why.msg;
    for (size_t i = 0; i < g->in->n_corpus && st == MLA_OK; i++)
        st = mla_corpus_add(&g->corpus, g->in->corpus[i], tok, mla_model_config(g->model)->vocab, err);
    g->corpus.no_tokenizer = NULL;
    mla_tok_free(tok);
    if (st != MLA_OK) return st;
    mla_corpus_finish(&g->corpus);
    mla_jv *o = mla_jv_set_obj(g->doc, "corpus");
    mla_hex(g->corpus.sha256, 32, hex);
    mla_jv_set_str(o, "ids_sha256", hex);
    mla_jv_set_size(o, "tokens", g->corpus.ids.n);
    return MLA_OK;
}

mla_kv_type mla_gate_kv(const char *name)
{
    mla_kv_type t = {MLA_F32, false};
    (void)mla_kv_type_parse(name, &t); /* the policy was checked */
    return t;
}

/* On the second backend one layer's weights are held at a time: it is there to compare, not to be quick. */
mla_status mla_gate_open_runtime(mla_rt **rt, const mla_gate *g, const mla_model *m, const char *kv, bool mtp, mla_backend *be, mla_err *err)
{
    bool fast = !strcmp(g->p->precision, "fast");
    mla_rt_opts o = {.precision = fast ? MLA_PREC_BF16 : MLA_PREC_F32, .kv_dtype = mla_gate_kv(kv).dtype, .keys16 = mla_gate_kv(kv).keys16, .gdn_chunk = fast ? 64 : 0, .mtp = mtp,
                     .stream_layers = be != g->in->be, .log = g->in->log};
    return mla_rt_open(rt, m, be, &o, err);
}

static bool policy_checks(const mla_policy *p, const char *path)
{
    for (size_t i = 0; i < p->n_check; i++)
        if (!strcmp(p->check[i], path)) return true;
    return false;
}

/* The sections that run the model on text. Drafting comes last, with weights of its own: a head that writes behind the
 * trunk keeps sequences from sharing pages, which the other paths are there to try. */
static void run_models(mla_gate *g)
{
    const mla_policy *p = g->p;
    const struct { bool wanted; const char *section; void (*run)(mla_gate *); } STAGE[] = {
        {p->layers, "layers", mla_gate_layers}, {p->parity, "parity", mla_gate_parity}, {p->paths, "paths", mla_gate_paths}};
    mla_err why = {0};
    mla_status st = g->model ? MLA_OK : mla_fail(&why, MLA_EFORMAT, "the model could not be opened");
    bool text = p->layers || p->parity || p->paths;
    if (st == MLA_OK && text) st = mla_gate_open_runtime(&g->rt, g, g->model, p->kv_dtype, false, g->in->be, &why);
    if (st == MLA_OK && text && g->base) st = mla_gate_open_runtime(&g->base_rt, g, g->base, p->against_kv_dtype, false, g->in->be, &why);
    if (st == MLA_OK && p->paths && g->in->other && policy_checks(p, "threads"))
        st = mla_gate_open_runtime(&g->other_rt, g, g->model, p->kv_dtype, false, g->in->other, &why);
    for (size_t i = 0; i < 3; i++) {
        if (!STAGE[i].wanted) continue;
        if (st == MLA_OK) STAGE[i].run(g);
        else mla_gate_unjudged(g, STAGE[i].section, "runtime", &why);
    }
    mla_rt_close(g->other_rt);
    mla_rt_close(g->rt);
    mla_rt_close(g->base_rt);
    g->rt = g->base_rt = g->other_rt = NULL;
    if (!p->mtp) return;
    if (g->model) mla_gate_mtp(g);
    else mla_gate_unjudged(g, "mtp", "head", &why);
}

static void put_head(mla_gate *g)
{
    mla_jv *p = mla_jv_set_obj(g->doc, "policy");
    mla_jv_set_str(p, "name", g->p->name);
    mla_jv_set_str(p, "sha256", g->p->sha256);
    mla_jv *s = mla_jv_set_obj(g->doc, "settings");
    mla_jv_set_str(s, "kv_dtype", g->p->kv_dtype);
    if (g->in->against) mla_jv_set_str(s, "base_kv_dtype", g->p->against_kv_dtype);
    mla_jv_set_str(s, "precision", g->p->precision);
    mla_jv_set_str(s, "backend", g->in->be->ops->name);
}

mla_status mla_gate_run(mla_jv *doc, const mla_gate_input *in, const mla_policy *p, mla_verdict *verdict, mla_err *err)
{
    mla_gate g = {.in = in, .p = p, .doc = doc, .worst = MLA_PASS};
    mla_err why = {0};
    *verdict = MLA_NO_EVIDENCE;
    put_head(&g);
    g.rules = mla_jv_set_arr(doc, "gates");
    g.findings = mla_jv_set_arr(doc, "findings");
    open_models(&g);
    read_references(&g);
    if (read_corpus(&g, &why) != MLA_OK) mla_gate_unjudged(&g, "inputs", "corpus", &why);
    g.reports = mla_jv_set_obj(doc, "reports");
    if (p->receipts) mla_gate_receipts(&g);
    if (p->scales) mla_gate_scales(&g);
    if (p->capacity) mla_gate_capacity(&g);
    if (p->selfcheck) mla_gate_selfcheck(&g);
    run_models(&g);
    *verdict = g.worst;
    mla_jv_set_str(doc, "verdict", mla_verdict_name(g.worst));
    bool whole = g.reports && mla_jv_first(g.rules) && mla_jv_get(doc, "verdict");
    mla_model_close(g.model);
    mla_model_close(g.base);
    mla_reference_free(&g.ref);
    mla_corpus_free(&g.corpus);
    return whole ? MLA_OK : mla_fail(err, MLA_ENOMEM, "verdict of policy %s", p->name);
}
