/* Scales into a checkpoint folder. Order: scales file (a stray file until the index names it), side file, index, config
 * (which announces the scales): whoever opens the folder in between sees a valid checkpoint. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "model/writer.h"
#include "tensor/fp.h"

typedef struct { /* the stored scales, k and v of every layer */
    mla_tensor *t;
    char (*name)[160];
    unsigned char (*bytes)[4];
    size_t n;
} tensors;

static void free_tensors(tensors *s)
{
    mla_free(s->t);
    mla_free(s->name);
    mla_free(s->bytes);
}

/* Names after "...self_attn."; the MTP head keeps plain keys and values in a retrofit, too. */
static const char *suffix(const mla_cal_layer *l, mla_cal_spelling s, bool second)
{
    if (!strcmp(l->k.name, "latent")) return second ? "mla.rope_scale" : "mla.latent_scale";
    if (s == MLA_CAL_MODELOPT) return second ? "v_proj.v_scale" : "k_proj.k_scale";
    return second ? "v_scale" : "k_scale";
}

static mla_status build(tensors *s, const mla_cal *c, const mla_model *m, mla_cal_spelling sp, mla_err *err)
{
    *s = (tensors){0};
    s->t = mla_alloc(2 * c->n, sizeof *s->t, 1);
    s->name = mla_alloc(2 * c->n, sizeof *s->name, 1);
    s->bytes = mla_alloc(2 * c->n, sizeof *s->bytes, 1);
    if (!s->t || !s->name || !s->bytes) return mla_fail(err, MLA_ENOMEM, "scales of %zu layers", c->n);
    for (size_t i = 0; i < 2 * c->n; i++) {
        const mla_cal_layer *l = &c->layer[i / 2];
        bool second = i % 2, scalar = sp == MLA_CAL_MODELOPT && strcmp(l->k.name, "latent") != 0;
        float v = second ? l->v.scale : l->k.scale;
        char layer[120];
        if (l->layer >= MLA_MTP(0)) snprintf(layer, sizeof layer, "mtp.layers.%zu", l->layer - MLA_MTP(0));
        else snprintf(layer, sizeof layer, "%slayers.%zu", mla_model_prefix(m), l->layer);
        snprintf(s->name[i], sizeof s->name[i], "%s.self_attn.%s", layer, suffix(l, sp, second));
        mla_from_f32(s->bytes[i], &v, c->scale_dtype, 1);
        s->t[i] = (mla_tensor){.name = s->name[i], .dtype = c->scale_dtype, .ndim = scalar ? 0 : 1, .shape = {1}, .data = s->bytes[i],
                               .nbytes = mla_dtype_bits(c->scale_dtype) / 8};
    }
    s->n = 2 * c->n;
    return MLA_OK;
}

/* Scales that came with the base stand in one of its own files: adding ours would leave two truths. */
static mla_status check_target(const mla_cal *c, const mla_model *m, mla_err *err)
{
    const mla_ckpt *k = mla_model_ckpt(m);
    char text[32];
    bool ours = false;
    if (!k) return mla_fail(err, MLA_EUNSUPPORTED, "%s: a GGUF file has no place for KV scales; build a checkpoint folder from it first", mla_model_path(m));
    if (!mla_path_is_dir(mla_ckpt_dir(k))) return mla_fail(err, MLA_EINVAL, "%s: expected a checkpoint folder", mla_ckpt_dir(k));
    for (size_t i = 0; i < mla_ckpt_shard_count(k); i++) ours |= !strcmp(mla_ckpt_shard_name(k, i), MLA_KV_SCALES_FILE);
    for (size_t i = 0; i < c->n && !ours; i++) {
        mla_kv_scale s;
        mla_status st = mla_model_kv_scale(m, c->layer[i].layer, &s, err);
        if (st != MLA_OK) return st;
        if (s.present)
            return mla_fail(err, MLA_EINVAL, "%s has KV scales already, not in %s: remove them first", mla_cal_layer_text(c->layer[i].layer, text), MLA_KV_SCALES_FILE);
    }
    return MLA_OK;
}

/* kv_cache_scheme as compressed-tensors spells it; ModelOpt reads the same two keys. */
static void set_scheme(mla_jv *q)
{
    mla_jv *k = mla_jv_set_obj(q, "kv_cache_scheme");
    mla_jv_set_size(k, "num_bits", 8);
    mla_jv_set_str(k, "type", "float");
    mla_jv_set_str(k, "strategy", "tensor");
    mla_jv_set_bool(k, "dynamic", false);
    mla_jv_set_bool(k, "symmetric", true);
}

/* An unquantized base needs a quantization_config to carry scales at all: dense, no groups, only the cache. Other
 * quantization methods have their own KV handling, and their block stays as it is. */
static void announce(mla_jv *root, mla_jv *text, const mla_config *c, mla_cal_spelling s)
{
    mla_jv *q = mla_jv_get(root, "quantization_config");
    if (!q) q = mla_jv_get(text, "quantization_config");
    if (q && !mla_jv_is_null(q)) {
        const char *method = c->quant_method ? c->quant_method : "";
        if (!strcmp(method, "compressed-tensors") || !strcmp(method, "modelopt")) set_scheme(q);
        if (!strcmp(method, "modelopt")) mla_jv_set_str(q, "kv_cache_quant_algo", "FP8");
        return;
    }
    q = mla_jv_set_obj(root, "quantization_config");
    mla_jv_set_str(q, "quant_method", s == MLA_CAL_MODELOPT ? "modelopt" : "compressed-tensors");
    if (s == MLA_CAL_MODELOPT) {
        mla_jv_set_str(q, "quant_algo", "NO_QUANT");
        mla_jv_set_str(q, "kv_cache_quant_algo", "FP8");
    } else {
        mla_jv_set_str(q, "format", "dense");
        mla_jv_set_str(q, "quantization_status", "compressed");
        mla_jv_set_obj(q, "config_groups");
        mla_jv_set_arr(q, "ignore");
    }
    set_scheme(q);
}

static mla_status write_config(const mla_cal *c, const mla_model *m, mla_cal_spelling s, const unsigned char digest[32], mla_err *err)
{
    mla_json *doc;
    char hex[65], *path = mla_path_join(mla_ckpt_dir(mla_model_ckpt(m)), "config.json");
    mla_status st = path ? mla_writer_config(&doc, m, NULL, NULL, err) : mla_fail(err, MLA_ENOMEM, "path of config.json");
    if (st == MLA_OK) {
        mla_jv *root = mla_json_root(doc), *b;
        if (!c->retrofit) announce(root, mla_writer_text_config(doc), mla_model_config(m), s);
        b = mla_jv_set_obj(root, "mla_kv_scales");
        mla_hex(digest, 32, hex);
        mla_jv_set_str(b, "format", MLA_KV_SCALES_FORMAT);
        mla_jv_set_str(b, "file", MLA_KV_SCALES_FILE);
        mla_jv_set_str(b, "sha256", hex);
        mla_jv_set_str(b, "dtype", "float8_e4m3fn");
        if (c->keys16) mla_jv_set_str(b, "cache", "fp8-keys16");
        mla_jv_set_str(b, "spelling", c->retrofit ? "mla" : s == MLA_CAL_MODELOPT ? "modelopt" : "compressed-tensors");
        st = mla_json_write(path, root, err);
        mla_json_free(doc);
    }
    mla_free(path);
    return st;
}

static mla_status write_side(const mla_cal *c, const char *dir, mla_err *err)
{
    mla_json *doc;
    char *path = mla_path_join(dir, MLA_KV_SCALES_JSON);
    mla_status st = path ? mla_cal_json(&doc, c, err) : mla_fail(err, MLA_ENOMEM, "path of %s", MLA_KV_SCALES_JSON);
    if (st == MLA_OK) {
        st = mla_json_write(path, mla_json_root(doc), err);
        mla_json_free(doc);
    }
    mla_free(path);
    return st;
}

/* What a reader will find is what was meant: every scale out of the written bytes, finite, positive, equal. */
static mla_status check_written(const mla_cal *c, const char *dir, mla_err *err)
{
    mla_model *m;
    char text[32];
    mla_status st = mla_model_open(&m, dir, err);
    for (size_t i = 0; i < c->n && st == MLA_OK; i++) {
        const mla_cal_layer *l = &c->layer[i];
        mla_kv_scale s;
        st = mla_model_kv_scale(m, l->layer, &s, err);
        if (st == MLA_OK && !(s.present && isfinite(s.k) && s.k > 0 && isfinite(s.v) && s.v > 0 && s.k == l->k.scale && s.v == l->v.scale))
            st = mla_fail(err, MLA_EINTERNAL, "%s: wrote scales %g and %g, read back %s %g and %g", mla_cal_layer_text(l->layer, text),
                          (double)l->k.scale, (double)l->v.scale, s.present ? "as" : "nothing:", (double)s.k, (double)s.v);
    }
    mla_model_close(m);
    return st;
}

mla_status mla_cal_write(const mla_cal *c, const mla_model *m, mla_cal_spelling s, mla_err *err)
{
    tensors t = {0};
    unsigned char digest[32];
    const char *added[1] = {MLA_KV_SCALES_FILE};
    mla_status st = check_target(c, m, err);
    if (st != MLA_OK) return st;
    const char *dir = mla_ckpt_dir(mla_model_ckpt(m));
    char *path = mla_path_join(dir, MLA_KV_SCALES_FILE);
    st = path ? build(&t, c, m, s, err) : mla_fail(err, MLA_ENOMEM, "path of %s", MLA_KV_SCALES_FILE);
    if (st == MLA_OK) st = mla_st_write(path, t.t, t.n, digest, err);
    if (st == MLA_OK) st = write_side(c, dir, err);
    if (st == MLA_OK) st = mla_writer_index(m, dir, added, 1, err);
    if (st == MLA_OK) st = write_config(c, m, s, digest, err);
    if (st == MLA_OK) st = check_written(c, dir, err);
    free_tensors(&t);
    mla_free(path);
    return st;
}
