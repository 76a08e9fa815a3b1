/* Quantized folders: which config says how weights are stored, the whole folder against it, and one matrix opened. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/model_impl.h"

#define HF_QUANT "hf_quant_config.json"
#define HF_QUANT_MAX ((size_t)16 << 20)

static const mla_tensor *find_in_ckpt(const void *ctx, const char *name) { return mla_ckpt_find(ctx, name); }

const mla_jv *mla_quant_object(const mla_jv *root)
{
    const mla_jv *q = mla_jv_get(root, "quantization_config");
    if (!q || mla_jv_is_null(q)) q = mla_jv_get(mla_jv_get(root, "text_config"), "quantization_config");
    return q && !mla_jv_is_null(q) ? q : NULL;
}

/* ModelOpt's own file speaks where config.json is silent. A retrofit's config.json says everything: the file beside it
 * was carried along from the base. */
static mla_status read_hf_quant(mla_model *m, mla_err *err)
{
    char *path = mla_path_join(m->path, HF_QUANT);
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path");
    if (st == MLA_OK && m->cfg.mla.layout == MLA_LAYOUT_NONE && mla_path_exists(path)) st = mla_json_read(&m->hf_quant, path, HF_QUANT_MAX, err);
    mla_free(path);
    if (st != MLA_OK || !m->hf_quant) return st;
    const mla_jv *q = mla_jv_get(mla_json_root(m->hf_quant), "quantization");
    const char *algo = mla_jv_str(mla_jv_get(q, "quant_algo"));
    m->cfg.quant_method = mla_strdup("modelopt");
    m->cfg.weights_quantized = algo && strcmp(algo, "NO_QUANT");
    m->cfg.kv_scheme = mla_jv_is_str(mla_jv_get(q, "kv_cache_quant_algo"));
    return m->cfg.quant_method ? MLA_OK : mla_fail(err, MLA_ENOMEM, "quantization method");
}

mla_status mla_bind_read_quant(mla_model *m, mla_err *err)
{
    const mla_jv *q = mla_quant_object(mla_json_root(m->json));
    const char *file = "config.json";
    if (!q) {
        mla_status st = read_hf_quant(m, err);
        if (st != MLA_OK) return st;
        if (m->hf_quant) q = mla_json_root(m->hf_quant), file = HF_QUANT;
    }
    return mla_qconfig_read(&m->qcfg, q, err) == MLA_OK ? MLA_OK : mla_wrap(err, "%s/%s", m->path, file);
}

bool mla_stored_quantized(const mla_model *m, const char *weight)
{
    static const char *const CODES[] = {"weight_packed", "qweight", "trellis"};
    const mla_tensor *t = mla_ckpt_find(m->ckpt, weight);
    mla_str name = MLA_STR_MAX(512);
    if (t) return t->dtype != MLA_F32 && t->dtype != MLA_F16 && t->dtype != MLA_BF16 && t->dtype != MLA_F64;
    bool found = false;
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES && !found; i++) {
        mla_str_clear(&name);
        mla_str_putn(&name, weight, strlen(weight) - strlen("weight"));
        mla_str_put(&name, CODES[i]);
        found = mla_ckpt_find(m->ckpt, mla_str_c(&name)) != NULL;
    }
    mla_str_free(&name);
    return found;
}

/* Tensors of a quantized module that are no part of its values: shapes and markers (checked by the format), and what
 * belongs to the activations that a retrofit leaves in full precision. */
static mla_status claim_module(mla_model *m, const char *module, const mla_qmat *q, mla_err *err)
{
    static const char *const BESIDE[] = {"weight_shape", "weight_g_idx", "g_idx", "mcg", "mul1", "input_scale", "input_zero_point",
                                         "input_global_scale"};
    mla_str name = MLA_STR_MAX(512);
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < q->nparts; i++) st = mla_claim(m, q->part[i].name, err);
    for (size_t i = 0; st == MLA_OK && i < sizeof BESIDE / sizeof *BESIDE; i++) {
        mla_str_clear(&name);
        mla_str_printf(&name, "%s.%s", module, BESIDE[i]);
        if (mla_ckpt_find(m->ckpt, mla_str_c(&name))) st = mla_claim(m, mla_str_c(&name), err);
    }
    mla_str_free(&name);
    return st;
}

mla_status mla_bind_quantized(mla_model *m, const char *weight, size_t out, size_t in, mla_qmat *q, mla_err *err)
{
    mla_qsource src = {find_in_ckpt, m->ckpt};
    char *module = mla_strndup(weight, strlen(weight) - strlen(".weight"));
    if (!module) return mla_fail(err, MLA_ENOMEM, "%s", weight);
    mla_status st = mla_qmat_open_with(q, &src, module, m->qcfg, err);
    if (st == MLA_OK) st = mla_qmat_expect(q, out, in, err);
    if (st == MLA_OK) st = claim_module(m, module, q, err);
    mla_free(module);
    return st;
}

mla_status mla_bind_check_quant(const mla_model *m, mla_err *err)
{
    mla_qsummary sum;
    return mla_qconfig_method(m->qcfg) == MLA_QM_NONE ? MLA_OK : mla_qconfig_check(m->qcfg, m->ckpt, &sum, err);
}
