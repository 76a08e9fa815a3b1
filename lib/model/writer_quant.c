/* The quantization config of a retrofit's folder: the base's, which now also says that the added factors are plain.
 *
 * Loaders that turn every Linear of a layer into a quantized one must be told of the factor modules; each method has its
 * own list for that. Everything else of the config stays as it is. */
#include <string.h>

#include "base/alloc.h"
#include "model/model_impl.h"
#include "model/writer_impl.h"

static mla_status no_memory(mla_err *err) { return mla_fail(err, MLA_ENOMEM, "quantization_config: document"); }

mla_status mla_writer_adopt_quant(mla_json *doc, const mla_model *base, mla_err *err)
{
    if (!base->hf_quant || !base->cfg.weights_quantized) return MLA_OK;
    const mla_jv *from = mla_jv_get(mla_json_root(base->hf_quant), "quantization");
    mla_jv *q = mla_jv_set_obj(mla_json_root(doc), "quantization_config");
    bool ok = q && mla_jv_set_str(q, "quant_method", "modelopt");
    for (const mla_jv *v = mla_jv_first(from); ok && v; v = mla_jv_next(v)) ok = mla_jv_set_copy(q, mla_jv_key(v), v) != NULL;
    return ok ? MLA_OK : no_memory(err);
}

typedef bool (*add_fn)(mla_jv *to, const char *module);

static bool add_name(mla_jv *to, const char *module) { return mla_jv_add_str(to, module) != NULL; }

/* auto-round: 16 bits are plain. */
static bool add_extra(mla_jv *to, const char *module)
{
    mla_jv *o = mla_jv_set_obj(to, module);
    return o && mla_jv_set_size(o, "bits", 16) && mla_jv_set_str(o, "data_type", "float");
}

/* "PREFIXlayers.N.self_attn.mla.encoder" and ".decoder" of every retrofitted layer. */
static mla_status each_module(mla_jv *to, add_fn add, const mla_model *base, const mla_retrofit_config *r, mla_err *err)
{
    static const char *const PART[] = {"encoder", "decoder"};
    mla_str name = MLA_STR_MAX(512);
    bool ok = to != NULL;
    for (size_t i = 0; ok && i < 2 * base->cfg.layers; i++) {
        if (r->rank[i / 2] == 0) continue;
        mla_str_clear(&name);
        mla_str_printf(&name, "%slayers.%zu.self_attn.mla.%s", base->prefix, i / 2, PART[i % 2]);
        ok = mla_str_ok(&name) && add(to, mla_str_c(&name));
    }
    mla_str_free(&name);
    return ok ? MLA_OK : no_memory(err);
}

static bool lm_head_is_plain(const mla_model *m)
{
    const mla_binding *b = mla_binding_of(m, MLA_W_LM_HEAD, 0);
    return b && b->q.ops->layout == MLA_QL_DENSE;
}

/* The list of left-out names under whichever of two keys the config has; a new one under `fresh`. */
static mla_jv *left_out(mla_jv *q, const char *first, const char *second, const char *fresh)
{
    mla_jv *a = mla_jv_get(q, first), *b = mla_jv_get(q, second);
    return mla_jv_is_arr(a) ? a : mla_jv_is_arr(b) ? b : mla_jv_set_arr(q, fresh);
}

/* fp8 loaders leave lm_head out of their own accord only while there is no list. */
static mla_jv *fp8_list(mla_jv *q, const mla_model *base)
{
    bool had = mla_jv_is_arr(mla_jv_get(q, "modules_to_not_convert")) || mla_jv_is_arr(mla_jv_get(q, "ignored_layers"));
    mla_jv *list = left_out(q, "modules_to_not_convert", "ignored_layers", "modules_to_not_convert");
    return !had && lm_head_is_plain(base) && !mla_jv_add_str(list, "lm_head") ? NULL : list;
}

/* GPTQ has no list of names, but patterns of which the first match counts; a list of what is quantized needs none. */
static mla_status gptq(mla_jv *q, mla_err *err)
{
    mla_json *first = NULL;
    if (mla_jv_len(mla_jv_get(q, "modules_in_block_to_quantize"))) return MLA_OK;
    mla_status st = mla_json_new_object(&first, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(first);
    bool ok = mla_jv_set_obj(o, "-:.*\\.self_attn\\.mla\\.") != NULL;
    for (const mla_jv *v = mla_jv_first(mla_jv_get(q, "dynamic")); ok && v; v = mla_jv_next(v)) ok = mla_jv_set_copy(o, mla_jv_key(v), v) != NULL;
    ok = ok && mla_jv_set_copy(q, "dynamic", o);
    mla_json_free(first);
    return ok ? MLA_OK : no_memory(err);
}

/* ModelOpt's two spellings; MIXED_PRECISION lists what is quantized. */
static mla_jv *modelopt_list(mla_jv *q)
{
    bool groups = mla_jv_is_obj(mla_jv_get(q, "config_groups"));
    return left_out(q, groups ? "ignore" : "exclude_modules", groups ? "exclude_modules" : "ignore", groups ? "ignore" : "exclude_modules");
}

mla_status mla_writer_extend_quant(mla_json *doc, const mla_model *base, const mla_retrofit_config *r, mla_err *err)
{
    mla_jv *root = mla_json_root(doc), *q = mla_jv_get(root, "quantization_config");
    if (!base->cfg.weights_quantized) return MLA_OK;
    if (!mla_jv_is_obj(q)) q = mla_jv_get(mla_writer_text_config(doc), "quantization_config");
    const char *algo = mla_jv_str(mla_jv_get(q, "quant_algo"));
    mla_jv *extra;
    switch (mla_qconfig_method(base->qcfg)) {
    case MLA_QM_CT: return each_module(left_out(q, "ignore", "ignore", "ignore"), add_name, base, r, err);
    case MLA_QM_AWQ: return each_module(left_out(q, "modules_to_not_convert", "", "modules_to_not_convert"), add_name, base, r, err);
    case MLA_QM_FP8: return each_module(fp8_list(q, base), add_name, base, r, err);
    case MLA_QM_MODELOPT:
        if (algo && !strcmp(algo, "MIXED_PRECISION")) return MLA_OK;
        return each_module(modelopt_list(q), add_name, base, r, err);
    case MLA_QM_AUTOROUND:
        extra = mla_jv_get(q, "extra_config");
        return each_module(mla_jv_is_obj(extra) ? extra : mla_jv_set_obj(q, "extra_config"), add_extra, base, r, err);
    case MLA_QM_GPTQ: return gptq(q, err);
    case MLA_QM_EXL3: /* its loaders go by the tensors */
    case MLA_QM_NONE: break;
    }
    return MLA_OK;
}
