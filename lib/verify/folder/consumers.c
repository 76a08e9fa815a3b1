/* Replaying a consumer: config first, then every stored scale's name, then what each layer is left with. */
#include "verify/folder/consumers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/kv_names.h"
#include "verify/folder/consumer_names.h"

const mla_consumer *mla_consumer_at(size_t i) { return i < MLA_CONSUMERS ? &MLA_CONSUMER[i] : NULL; }
const char *mla_consumer_name(const mla_consumer *c) { return c->name; }
const char *mla_consumer_about(const mla_consumer *c) { return c->about; }

const mla_consumer *mla_consumer_find(const char *name)
{
    for (size_t i = 0; i < MLA_CONSUMERS; i++)
        if (!strcmp(MLA_CONSUMER[i].name, name)) return &MLA_CONSUMER[i];
    return NULL;
}

typedef struct {
    const mla_consumer *c;
    const mla_model *m;
    const mla_config *cfg;
    bool latent;             /* the trunk's attention layers cache a latent */
    char why_not[200];       /* why the engine reads no stored scale at all; "": it reads them */
    unsigned char *got;      /* per layer: bit 0 keys, bit 1 values arrived */
    mla_jv *scales;
    mla_findings *f;
    size_t dropped, consumed;
    bool folded;             /* scales stand in the weights */
} replay;

static const char *renamed(const mla_rename *pass, const char *name)
{
    for (; pass && pass->from; pass++)
        if (!strcmp(pass->from, name)) return pass->to;
    return name;
}

/* The text behind the last "layers.N." */
static const char *behind_layer(const char *name)
{
    const char *at = name;
    for (const char *p = strstr(name, "layers."); p; p = strstr(p + 1, "layers.")) at = p + 7;
    at += strspn(at, "0123456789");
    return *at == '.' ? at + 1 : at;
}

static void arrive(replay *r, const mla_tensor *t, size_t layer, bool head, const mla_kv_spelling *sp, char *to, size_t cap, char *why, size_t why_cap)
{
    const mla_consumer *c = r->c;
    const char *name = behind_layer(t->name);
    bool latent = r->latent && !head, hybrid = r->cfg->family == MLA_FAM_QWEN3_5 || r->cfg->family == MLA_FAM_QWEN3_NEXT;
    *why = 0;
    for (size_t i = 0; i < 2; i++) name = renamed(latent ? c->pass_mla[i] : c->pass[i], name);
    (void)snprintf(to, cap, "%s", name);
    const char *const *param = latent ? c->param_mla : c->param;
    bool k = param[0] && !strcmp(name, param[0]), v = param[1] && !strcmp(name, param[1]);
    float value;
    if (r->why_not[0]) (void)snprintf(why, why_cap, "%s", r->why_not);
    else if (!param[0]) (void)snprintf(why, why_cap, "the engine has no scale for a latent cache");
    else if (!k && !v) (void)snprintf(why, why_cap, "its loader looks for %s", sp->part == MLA_KV_V ? param[1] : param[0]);
    else if (c->loses_hybrid && hybrid && !strcmp(sp->producer, "compressed-tensors")) (void)snprintf(why, why_cap, "this spelling never reaches the Qwen3.5 family");
    else if (!mla_kv_scale_value(t, &value)) (void)snprintf(why, why_cap, "it has more than one element");
    else if (!(isfinite(value) && value > 0)) (void)snprintf(why, why_cap, "it is %s", mla_kv_scale_state(t));
    else if (c->f32_scalar && t->dtype != MLA_F32) (void)snprintf(why, why_cap, "it is %s, expected F32", mla_dtype_name(t->dtype));
    if (*why || head) return;
    r->got[layer] |= (unsigned char)((k ? 1 : 0) | (v ? 2 : 0));
}

static bool is_mtp(const char *name) { return !strncmp(name, "mtp.", 4) || strstr(name, ".mtp.") != NULL; }

static mla_status one_scale(replay *r, const mla_tensor *t, mla_err *err)
{
    size_t layer;
    char to[160], why[240] = "";
    const mla_kv_spelling *sp = mla_kv_spelling_of(t->name, &layer);
    bool head = is_mtp(t->name);
    if (!sp || !mla_kv_part_cached(sp->part) || (!head && layer >= r->cfg->layers)) return MLA_OK;
    if (r->c->own) { /* the model is open: what it did not bind it would have refused */
        mla_kv_scale s;
        mla_status st = mla_model_kv_scale(r->m, head ? MLA_MTP(layer) : layer, &s, err);
        if (st != MLA_OK) return st;
        (void)snprintf(to, sizeof to, "%s", behind_layer(t->name));
        bool base = r->latent && !head && sp->part != MLA_KV_LATENT && sp->part != MLA_KV_ROPE;
        if (base) (void)snprintf(why, sizeof why, "a scale of the base's keys or values means nothing to a latent");
        else if (!s.present) (void)snprintf(why, sizeof why, "the model was opened without it");
        else if (!head) r->got[layer] = 3;
    } else arrive(r, t, layer, head, sp, to, sizeof to, why, sizeof why);
    mla_jv *o = mla_jv_add_obj(r->scales);
    bool ok = mla_jv_set_str(o, "tensor", t->name) && mla_jv_set_size(o, "layer", layer) && mla_jv_set_str(o, "part", mla_kv_part_name(sp->part)) &&
              mla_jv_set_str(o, "renamed", to) && mla_jv_set_str(o, "verdict", *why ? "dropped" : "consumed") && (!*why || mla_jv_set_str(o, "reason", why));
    if (!ok) return mla_fail(err, MLA_ENOMEM, "report of %s", t->name);
    if (*why) mla_findings_add(r->f, "%s: %s drops it: %s", t->name, r->c->name, why);
    r->dropped += *why != 0;
    r->consumed += *why == 0;
    return MLA_OK;
}

/* Which configurations make an engine create scales to load into. */
static void read_config(replay *r)
{
    const char *method = r->cfg->quant_method ? r->cfg->quant_method : "";
    const mla_json *doc = mla_model_config_json(r->m);
    const mla_jv *root = doc ? mla_json_root(doc) : NULL, *q = mla_jv_get(root, "quantization_config");
    if (!q) q = mla_jv_get(mla_jv_get(root, "text_config"), "quantization_config");
    if (r->c->needs != MLA_NEEDS_KV_METHOD) return;
    if (!*method) (void)snprintf(r->why_not, sizeof r->why_not, "config.json has no quantization_config, so attention layers get no scales to load into");
    else if (!strcmp(method, "fp8") || !strcmp(method, "quark")) return;
    else if (!strcmp(method, "compressed-tensors") && !r->cfg->kv_scheme)
        (void)snprintf(r->why_not, sizeof r->why_not, "quantization_config of compressed-tensors has no kv_cache_scheme");
    else if (!strcmp(method, "modelopt") && !r->cfg->kv_scheme && !mla_jv_str(mla_jv_get(q, "kv_cache_quant_algo")))
        (void)snprintf(r->why_not, sizeof r->why_not, "quantization_config of modelopt has neither kv_cache_quant_algo nor kv_cache_scheme");
    else if (strcmp(method, "compressed-tensors") && strcmp(method, "modelopt"))
        (void)snprintf(r->why_not, sizeof r->why_not, "quantization method %s gives attention layers no KV-cache method", method);
}

static mla_status read_hf_quant(replay *r, const char *dir, mla_err *err)
{
    char *path = mla_path_join(dir, "hf_quant_config.json");
    mla_json *d = NULL;
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of hf_quant_config.json");
    if (st == MLA_OK && !mla_path_exists(path)) (void)snprintf(r->why_not, sizeof r->why_not, "hf_quant_config.json is missing");
    else if (st == MLA_OK) st = mla_json_read(&d, path, (size_t)64 << 20, err);
    if (st == MLA_OK && d) {
        const char *algo = mla_jv_str(mla_jv_get(mla_jv_get(mla_json_root(d), "quantization"), "kv_cache_quant_algo"));
        if (!algo || strcmp(algo, "FP8"))
            (void)snprintf(r->why_not, sizeof r->why_not, "hf_quant_config.json: kv_cache_quant_algo: expected FP8, found %.40s", algo ? algo : "nothing");
    }
    mla_json_free(d);
    mla_free(path);
    return st;
}

/* One scale per layer for keys and values alike, every layer of the model listed, tensor-parallel rank by rank. */
static mla_status read_side_file(replay *r, const char *dir, mla_jv *out, mla_err *err)
{
    char *path = mla_path_join(dir, r->c->side_file), key[24];
    mla_json *d = NULL;
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of %s", r->c->side_file);
    bool there = st == MLA_OK && mla_path_exists(path);
    if (there) st = mla_json_read(&d, path, (size_t)64 << 20, err);
    mla_free(path);
    if (st != MLA_OK || !there) return st;
    const mla_jv *kv = mla_jv_get(mla_json_root(d), "kv_cache"), *rank0 = mla_jv_get(mla_jv_get(kv, "scaling_factor"), "0");
    const char *dtype = mla_jv_str(mla_jv_get(kv, "dtype"));
    size_t bad = 0;
    if (!dtype || strcmp(dtype, "float8_e4m3fn")) bad++, mla_findings_add(r->f, "%s: kv_cache.dtype: expected float8_e4m3fn, found %s", r->c->side_file, dtype ? dtype : "nothing");
    if (mla_jv_len(rank0) != r->cfg->layers)
        bad++, mla_findings_add(r->f, "%s: kv_cache.scaling_factor.0: expected all %zu layers, found %zu", r->c->side_file, r->cfg->layers, mla_jv_len(rank0));
    for (size_t l = 0; l < r->cfg->layers && !r->latent; l++) {
        double v;
        (void)snprintf(key, sizeof key, "%zu", l);
        if (r->cfg->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (mla_jv_f64(mla_jv_get(rank0, key), &v) && v > 0) r->got[l] |= 3;
        else bad++, mla_findings_add(r->f, "%s: layer %zu: expected a scale above zero", r->c->side_file, l);
    }
    mla_json_free(d);
    return mla_jv_set_str(out, "side_file", bad ? "wrong" : "read") ? MLA_OK : mla_fail(err, MLA_ENOMEM, "consumer report");
}

static mla_status left_with(replay *r, mla_jv *out, mla_err *err)
{
    mla_jv *list = mla_jv_set_arr(out, "layers");
    size_t calibrated = 0, full = 0;
    for (size_t l = 0; l < r->cfg->layers; l++) {
        if (r->cfg->layer_kind[l] != MLA_LAYER_FULL) continue;
        mla_jv *o = mla_jv_add_obj(list);
        unsigned char g = r->got[l];
        full++;
        calibrated += g != 0;
        if (!mla_jv_set_size(o, "layer", l) || !mla_jv_set_str(o, "verdict", r->folded ? "folded" : g == 3 ? "calibrated" : g ? "one scale for both" : "at 1.0"))
            return mla_fail(err, MLA_ENOMEM, "consumer report");
    }
    if (calibrated && calibrated < full) mla_findings_add(r->f, "%s: %zu of %zu attention layers calibrated, the others run at 1.0", r->c->name, calibrated, full);
    if (!calibrated && r->cfg->kv_scheme && !r->dropped)
        mla_findings_add(r->f, "%s: the configuration declares an FP8 KV cache, no scale arrives: every layer runs at 1.0", r->c->name);
    bool ok = mla_jv_set_size(out, "consumed", r->consumed) && mla_jv_set_size(out, "dropped", r->dropped) && mla_jv_set_size(out, "calibrated_layers", calibrated) &&
              mla_jv_set_size(out, "attention_layers", full);
    return ok ? MLA_OK : mla_fail(err, MLA_ENOMEM, "consumer report");
}

mla_status mla_consumer_replay(mla_jv *out, mla_findings *f, const mla_model *m, const mla_consumer *c, mla_err *err)
{
    const mla_ckpt *ck = mla_model_ckpt(m);
    replay r = {.c = c, .m = m, .cfg = mla_model_config(m), .f = f};
    if (!ck) return mla_fail(err, MLA_EUNSUPPORTED, "%s: a GGUF file has no KV scales", mla_model_path(m));
    r.latent = r.cfg->mla.layout != MLA_LAYOUT_NONE || r.cfg->family == MLA_FAM_DEEPSEEK;
    r.got = mla_alloc(r.cfg->layers, 1, 1);
    if (!r.got || !mla_jv_set_str(out, "consumer", c->name) || !mla_jv_set_str(out, "about", c->about) || !(r.scales = mla_jv_set_arr(out, "scales"))) {
        mla_free(r.got);
        return mla_fail(err, MLA_ENOMEM, "consumer report");
    }
    read_config(&r);
    const mla_json *doc = mla_model_config_json(m);
    const mla_jv *own = doc ? mla_jv_get(mla_json_root(doc), "mla_kv_scales") : NULL;
    if (mla_jv_bool(mla_jv_get(own, "folded"), &r.folded) && r.folded) memset(r.got, 3, r.cfg->layers); /* right at 1.0, for everybody */
    mla_status st = c->needs == MLA_NEEDS_HF_QUANT ? read_hf_quant(&r, mla_ckpt_dir(ck), err) : MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < mla_ckpt_count(ck); i++) st = one_scale(&r, mla_ckpt_at(ck, i), err);
    if (st == MLA_OK && c->side_file) st = read_side_file(&r, mla_ckpt_dir(ck), out, err);
    if (st == MLA_OK) st = left_with(&r, out, err);
    mla_free(r.got);
    return st;
}
