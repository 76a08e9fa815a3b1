/* Receipts: what config.json claims against what the tensors are. */
#include <stdio.h>
#include <string.h>

#include "io/sha256.h"
#include "model/kv_names.h"
#include "model/model.h"
#include "model/shared.h"
#include "tensor/compare.h"
#include "verify/folder/consumers.h"
#include "verify/folder/receipts.h"

static const mla_receipt_file *find_file(const mla_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (!strcmp(m->file[i].name, name)) return &m->file[i];
    return NULL;
}

/* config.json names the factor file and its digest. */
static void check_factor_file(mla_findings *f, const mla_config *c, const mla_manifest *found)
{
    const mla_receipt_file *file = find_file(found, c->mla.factors_file);
    char want[65], got[65];
    if (!file) {
        if (found->n) mla_findings_add(f, "config.json: mla.factors_file \"%s\": no such file", c->mla.factors_file);
        return;
    }
    mla_hex(c->mla.factors_sha256, 32, want);
    mla_hex(file->sha256, 32, got);
    if (memcmp(c->mla.factors_sha256, file->sha256, 32))
        mla_findings_add(f, "config.json: mla.factors_sha256: expected %s (of %s), found %s", got, c->mla.factors_file, want);
}

/* Shapes and types were checked when they were bound; their values and ranks are here. */
static void check_factors(mla_findings *f, const mla_model *m)
{
    const mla_config *c = mla_model_config(m);
    for (size_t l = 0; l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        mla_factors x = {0};
        mla_err why = {0};
        if (mla_model_factors(m, l, &x, &why) != MLA_OK) {
            mla_findings_add(f, "layer %zu: %s", l, why.msg);
            continue;
        }
        if (x.layout != c->mla.layout || x.groups != c->mla.groups || x.groups * x.r != c->mla.rank[l])
            mla_findings_add(f, "layer %zu: config.json claims rank %zu in %zu groups, the factors have %zu in %zu", l, c->mla.rank[l], c->mla.groups,
                             x.groups * x.r, x.groups);
        size_t ed = x.groups * x.r * x.n;
        size_t bad = mla_count_nonfinite(x.E, ed, NULL) + mla_count_nonfinite(x.D, ed, NULL) + mla_count_nonfinite(x.mu, x.groups * x.n, NULL);
        if (bad) mla_findings_add(f, "layer %zu: %zu factor values are not finite", l, bad);
        mla_factors_free(&x);
    }
}

/* Values of a shared-rotary file, and whether it was made for these weights. */
static void check_shared(mla_findings *f, const mla_model *m)
{
    const mla_config *c = mla_model_config(m);
    mla_teacher want, got;
    mla_err why = {0};
    for (size_t l = 0; l < c->layers; l++) {
        mla_shared s;
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (mla_model_shared(m, l, &s, &why) != MLA_OK) mla_findings_add(f, "layer %zu: %s", l, why.msg);
        mla_shared_free(&s);
    }
    if (mla_model_shared_teacher(m, &got, &why) != MLA_OK || mla_teacher_of(&want, m, &why) != MLA_OK) mla_findings_add(f, "%s", why.msg);
    else if (!strcmp(got.format, want.format) && strcmp(got.fingerprint, want.fingerprint)) /* a GGUF base is written anew: another format */
        mla_findings_add(f, "%s: made for other weights: teacher fingerprint %s, this folder's is %s", c->mla.factors_file, got.fingerprint, want.fingerprint);
}

/* The receipt's table of layers against the configuration. */
static void check_layers(mla_findings *f, const mla_config *c, const mla_jv *root)
{
    const mla_jv *list = mla_jv_get(root, "layers");
    bool deepseek = c->family == MLA_FAM_DEEPSEEK; /* one rank for all, beside the constant coordinate */
    size_t n = 0;
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v), n++) {
        size_t layer, rank;
        if (!mla_jv_size(mla_jv_get(v, "layer"), &layer) || !mla_jv_size(mla_jv_get(v, "rank"), &rank) || layer >= c->layers) {
            mla_findings_add(f, "%s: layers[%zu]: expected layer and rank of this model", MLA_RECEIPT_NAME, n);
        } else if (rank != (deepseek ? c->kv_lora_rank - 1 : c->mla.rank[layer])) {
            mla_findings_add(f, "layer %zu: the receipt says rank %zu, config.json %zu", layer, rank,
                             deepseek ? c->kv_lora_rank - 1 : c->mla.rank[layer]);
        }
    }
    if (list && n != mla_config_full_layers(c))
        mla_findings_add(f, "%s: layers: expected %zu (full-attention layers), found %zu", MLA_RECEIPT_NAME, mla_config_full_layers(c), n);
}

/* A retrofit that became a stock model: its receipt tells of layers, its configuration has no "mla" block. */
static bool exported_as_deepseek(const mla_config *c, const mla_jv *root)
{
    const char *layout = mla_jv_str(mla_jv_get(mla_jv_get(root, "recipe"), "layout"));
    return c->family == MLA_FAM_DEEPSEEK && layout && !strcmp(layout, mla_layout_name(MLA_LAYOUT_DEEPSEEK));
}

static void check_scales(mla_findings *f, const mla_model *m)
{
    const mla_config *c = mla_model_config(m);
    const mla_ckpt *ck = mla_model_ckpt(m);
    size_t with = 0, full = mla_config_full_layers(c), layer;
    for (size_t i = 0; ck && i < mla_ckpt_count(ck); i++) {
        const mla_tensor *t = mla_ckpt_at(ck, i);
        if (mla_kv_spelling_of(t->name, &layer) && strcmp(mla_kv_scale_state(t), "ok"))
            mla_findings_add(f, "%s: a KV scale must be finite and above zero, this one is %s", t->name, mla_kv_scale_state(t));
    }
    for (size_t l = 0; l < c->layers; l++) {
        mla_kv_scale s = {0};
        mla_err why = {0};
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (mla_model_kv_scale(m, l, &s, &why) != MLA_OK) {
            mla_findings_add(f, "layer %zu: %s", l, why.msg);
            continue;
        }
        with += s.present;
        if (!s.present && c->kv_scheme) mla_findings_add(f, "layer %zu: config.json declares an FP8 KV cache, but this layer has no scale", l);
    }
    if (with && with < full && !c->kv_scheme) mla_findings_add(f, "%zu of %zu full-attention layers have KV scales: expected all or none", with, full);
}

void mla_receipts_config(mla_receipts_findings *r, const char *dir, const mla_receipts_opts *o, const mla_manifest *found, const mla_jv *root)
{
    mla_model *m = NULL;
    mla_err why = {0};
    mla_findings *f = &r->f[MLA_RF_CONFIG];
    mla_status st = mla_model_open(&m, dir, &why);
    if (st != MLA_OK) { /* what this toolkit does not know is no contradiction, and no proof either */
        if (st == MLA_EUNSUPPORTED) (void)snprintf(r->unsupported, sizeof r->unsupported, "%.390s", why.msg);
        else mla_findings_add(f, "%s", why.msg);
        return;
    }
    const mla_config *c = mla_model_config(m);
    if (c->mla.layout != MLA_LAYOUT_NONE) {
        check_factor_file(f, c, found);
        if (c->mla.layout == MLA_LAYOUT_SHARED) check_shared(f, m);
        else check_factors(f, m);
        if (root) check_layers(f, c, root);
    } else if (root && exported_as_deepseek(c, root)) {
        check_layers(f, c, root);
    } else if (root && mla_jv_get(root, "layers")) {
        mla_findings_add(f, "config.json: the receipt tells of a retrofit, the configuration has no \"mla\" block");
    }
    check_scales(&r->f[MLA_RF_SCALES], m);
    mla_receipts_side_file(&r->f[MLA_RF_SCALES], m, dir);
    for (size_t i = 0; i < o->consumers; i++) {
        mla_jv *report = mla_jv_add_obj(r->consumers);
        if (mla_consumer_replay(report, &r->f[MLA_RF_CONSUMERS], m, mla_consumer_find(o->consumer[i]), &why) != MLA_OK)
            mla_findings_add(&r->f[MLA_RF_CONSUMERS], "%s: %s", o->consumer[i], why.msg);
    }
    const mla_ckpt *ck = mla_model_ckpt(m);
    const mla_json *json = mla_model_config_json(m);
    if (ck && mla_receipts_weights(&r->f[MLA_RF_WEIGHTS], ck, json ? mla_json_root(json) : NULL, o, &why) != MLA_OK)
        mla_findings_add(&r->f[MLA_RF_WEIGHTS], "%s", why.msg);
    mla_model_close(m);
}
