/* Files beside the weights from which engines other than vLLM read KV scales (formats page, section 5). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "io/file.h"

#define HF_QUANT "hf_quant_config.json"

bool mla_cal_consumer_parse(const char *name, mla_cal_consumer *out)
{
    static const char *const NAME[] = {"mla-toolkit", "vllm", "vllm-remap", "sglang", "tensorrt-llm"};
    for (size_t i = 0; i < sizeof NAME / sizeof *NAME; i++) {
        if (strcmp(NAME[i], name) != 0) continue;
        *out = (mla_cal_consumer)i;
        return true;
    }
    return false;
}

mla_cal_spelling mla_cal_consumer_spelling(mla_cal_consumer k, const mla_config *c)
{
    if (k == MLA_CAL_FOR_REMAP || k == MLA_CAL_FOR_TRTLLM) return MLA_CAL_MODELOPT;
    return k == MLA_CAL_FOR_SELF ? mla_cal_spelling_of(c) : MLA_CAL_CT;
}

/* One scale a layer, for keys and values alike: the larger of the two saturates neither. Layers without keys and values
 * must be listed, too; their number is never used. */
static mla_status sglang(const mla_cal *c, const mla_model *m, const char *path, mla_err *err)
{
    const mla_config *cfg = mla_model_config(m);
    mla_json *d;
    char key[24];
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *root = mla_json_root(d), *kv, *rank;
    const mla_json *doc = mla_model_config_json(m);
    const char *type = doc ? mla_jv_str(mla_jv_get(mla_json_root(doc), "model_type")) : NULL;
    bool ok = mla_jv_set_str(root, "model_type", type ? type : "") != NULL;
    kv = mla_jv_set_obj(root, "kv_cache");
    ok = ok && mla_jv_set_str(kv, "dtype", "float8_e4m3fn");
    rank = mla_jv_set_obj(mla_jv_set_obj(kv, "scaling_factor"), "0");
    for (size_t l = 0; ok && l < cfg->layers; l++) {
        double v = 1;
        for (size_t i = 0; i < c->n; i++)
            if (c->layer[i].layer == l) v = fmax((double)c->layer[i].k.scale, (double)c->layer[i].v.scale);
        (void)snprintf(key, sizeof key, "%zu", l);
        ok = mla_jv_set_f64(rank, key, v) != NULL;
    }
    st = ok ? mla_json_write(path, root, err) : mla_fail(err, MLA_ENOMEM, "%s", path);
    mla_json_free(d);
    return st;
}

/* The base's own file with the cache announced, or a new one that quantizes nothing else. */
static mla_status hf_quant(const char *path, mla_err *err)
{
    mla_json *d = NULL;
    mla_status st = mla_path_exists(path) ? mla_json_read(&d, path, (size_t)64 << 20, err) : mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *root = mla_json_root(d), *q = mla_jv_get(root, "quantization");
    bool ok = true;
    if (!q) {
        mla_jv *p = mla_jv_set_obj(root, "producer");
        ok = mla_jv_set_str(p, "name", "mla-toolkit") != NULL;
        q = mla_jv_set_obj(root, "quantization");
        ok = ok && mla_jv_set_str(q, "quant_algo", "NO_QUANT") && mla_jv_set_arr(q, "exclude_modules");
    }
    ok = ok && mla_jv_set_str(q, "kv_cache_quant_algo", "FP8");
    st = ok ? mla_json_write(path, root, err) : mla_fail(err, MLA_EFORMAT, "%s: \"quantization\" is %s, expected an object", path, mla_jv_kind(q));
    mla_json_free(d);
    return st;
}

mla_status mla_cal_side_files(const mla_cal *c, const mla_model *m, mla_cal_consumer k, mla_err *err)
{
    const char *name = k == MLA_CAL_FOR_SGLANG ? MLA_SGLANG_SCALES : k == MLA_CAL_FOR_TRTLLM ? HF_QUANT : NULL;
    if (!name) return MLA_OK;
    char *path = mla_path_join(mla_ckpt_dir(mla_model_ckpt(m)), name);
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of %s", name);
    if (st == MLA_OK) st = k == MLA_CAL_FOR_SGLANG ? sglang(c, m, path, err) : hf_quant(path, err);
    mla_free(path);
    return st;
}
