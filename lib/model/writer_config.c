/* The output's config.json: the base's with the retrofit's architecture and block, or one made from GGUF metadata. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"
#include "model/arch.h"
#include "model/shared.h"
#include "model/writer_impl.h"

mla_jv *mla_writer_text_config(const mla_json *doc)
{
    mla_jv *root = mla_json_root(doc), *text = mla_jv_get(root, "text_config");
    return mla_jv_is_obj(text) ? text : root;
}

static mla_status no_memory(mla_err *err) { return mla_fail(err, MLA_ENOMEM, "config.json: document"); }

static mla_status check_ranks(const mla_config *c, const mla_retrofit_config *r, mla_err *err)
{
    size_t n = c->hidden;
    mla_status st = r->layout == MLA_LAYOUT_SHARED ? mla_shared_fits(c, err) : mla_factors_dims(c, r->layout, r->groups, &n, err);
    for (size_t l = 0; st == MLA_OK && l < c->layers; l++) {
        size_t lo = c->layer_kind[l] == MLA_LAYER_FULL ? r->groups : 0, hi = lo ? r->groups * n : 0;
        if (r->rank[l] < lo || r->rank[l] > hi || r->rank[l] % r->groups)
            st = mla_fail(err, MLA_EINVAL, "layer %zu: rank %zu, expected a multiple of %zu from %zu to %zu", l, r->rank[l], r->groups, lo, hi);
    }
    return st;
}

static size_t rotary_width(const mla_config *c, const mla_retrofit_config *r)
{
    return r->layout == MLA_LAYOUT_SHARED || r->layout == MLA_LAYOUT_ABSORBED ? r->rotary_width : mla_layout_rotary(c, r->layout);
}

/* Shared-rotary: the plugin's own block, and its names where it can serve the model. */
static mla_status set_shared(mla_json *doc, const mla_model *base, const mla_retrofit_config *r, mla_err *err)
{
    char hex[65];
    mla_jv *b = mla_jv_set_obj(mla_writer_text_config(doc), "shared_mla"), *arch;
    mla_hex(r->factors_sha256, 32, hex);
    bool ok = mla_jv_set_str(b, "artifact", r->factors_file) && mla_jv_set_str(b, "artifact_sha256", hex);
    if (ok && mla_shared_servable(base, r->rotary_width / mla_model_config(base)->rope.rot, NULL)) {
        arch = mla_jv_set_arr(mla_json_root(doc), "architectures");
        ok = mla_jv_add_str(arch, MLA_ARCH_SABI) && mla_jv_set_str(mla_json_root(doc), "model_type", MLA_TYPE_SABI);
    }
    return ok ? MLA_OK : no_memory(err);
}

/* The retrofit's keys: in an object "mla", or in the older spelling one by one (ranks by layer, "latent_groups"). */
static mla_status set_block(mla_jv *at, const mla_config *c, const mla_retrofit_config *r, mla_err *err)
{
    static const char *const NEW[] = {"format", "layout", "groups", "ranks", "rotary_width", "dtype", "factors_file", "factors_sha256"};
    static const char *const OLD[] = {"mvla_format", "mvla_layout", "mvla_latent_groups", "mvla_ranks", "mvla_rotary_width", "mvla_dtype",
                                      "mvla_factors_file", "mvla_factors_sha256"};
    const char *const *k = r->old_names ? OLD : NEW;
    char hex[65], name[24];
    mla_jv *b = !at || r->old_names ? at : mla_jv_set_obj(at, "mla"), *ranks = NULL;
    mla_hex(r->factors_sha256, 32, hex);
    bool ok = b && mla_jv_set_str(b, k[0], "mla-factors/1") && mla_jv_set_str(b, k[1], mla_layout_name(r->layout)) && mla_jv_set_size(b, k[2], r->groups);
    if (ok) ranks = r->old_names ? mla_jv_set_obj(b, k[3]) : mla_jv_set_arr(b, k[3]);
    ok = ok && ranks;
    for (size_t l = 0; ok && l < c->layers; l++) {
        snprintf(name, sizeof name, "%zu", l);
        if (!r->old_names) ok = mla_jv_add_size(ranks, r->rank[l]) != NULL;
        else if (r->rank[l]) ok = mla_jv_set_size(ranks, name, r->rank[l]);
    }
    mla_jv *widths = ok && r->width ? mla_jv_set_arr(b, "rotary_widths") : NULL;
    ok = ok && (widths || !r->width);
    for (size_t l = 0; ok && widths && l < c->layers; l++) ok = mla_jv_add_size(widths, r->width[l]) != NULL;
    ok = ok && (r->freq_fold < 2 || mla_jv_set_size(b, "freq_fold", r->freq_fold)) && mla_jv_set_size(b, k[4], rotary_width(c, r)) && mla_jv_set_str(b, k[5], r->dtype == MLA_F32 ? "float32" : "bfloat16") &&
         mla_jv_set_str(b, k[6], r->factors_file) && mla_jv_set_str(b, k[7], hex);
    return ok ? MLA_OK : no_memory(err);
}

static mla_status set_arch(mla_json *doc, const char *arch, mla_err *err)
{
    mla_jv *list = mla_jv_set_arr(mla_json_root(doc), "architectures");
    return list && mla_jv_add_str(list, arch) ? MLA_OK : no_memory(err);
}

/* The base's KV scales are of its keys and values: a retrofit that still declared them would announce scales it lacks. */
static void drop_kv_scheme(mla_json *doc, const mla_config *c)
{
    mla_jv *at[] = {mla_json_root(doc), mla_writer_text_config(doc)};
    for (size_t i = 0; c->kv_scheme && i < 2; i++) {
        mla_jv *q = mla_jv_get(at[i], "quantization_config");
        mla_jv_remove(q, "kv_cache_scheme");
        mla_jv_remove(q, "kv_cache_quant_algo");
        if (!c->weights_quantized) mla_jv_remove(at[i], "quantization_config");
    }
}

static mla_status retrofit(mla_json *doc, const mla_model *base, const mla_retrofit_config *r, mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    const char *arch = mla_jv_str(mla_jv_first(mla_jv_get(mla_json_root(doc), "architectures")));
    if (!arch) arch = c->architecture;
    if (c->mla.layout != MLA_LAYOUT_NONE) return mla_fail(err, MLA_EINVAL, "%s: is a retrofit already", mla_model_path(base));
    if ((r->dtype != MLA_BF16 && r->dtype != MLA_F32) || !r->factors_file || !r->rank)
        return mla_fail(err, MLA_EINVAL, "retrofit: expected ranks, a factors file and dtype BF16 or F32");
    if (!mla_arch_find(arch, NULL)) return mla_fail(err, MLA_EINVAL, "architecture %s has no retrofit", arch);
    mla_status st = check_ranks(c, r, err);
    if (st == MLA_OK) st = mla_layout_fits(c, r->layout, err);
    if (st != MLA_OK) return st;
    char *name = mla_arch_retrofit_name(arch, r->old_names);
    st = name ? set_arch(doc, name, err)
              : mla_fail(err, MLA_EUNSUPPORTED, "architecture %s has no retrofit%s", arch, r->old_names ? " with an older name" : "");
    mla_free(name);
    drop_kv_scheme(doc, c);
    if (st == MLA_OK) st = mla_writer_extend_quant(doc, base, r, err);
    if (st == MLA_OK && r->layout == MLA_LAYOUT_SHARED) st = set_shared(doc, base, r, err);
    return st == MLA_OK ? set_block(mla_writer_text_config(doc), c, r, err) : st;
}

static mla_status copy_of(mla_json **doc, const mla_json *from, mla_err *err)
{
    mla_status st = mla_json_new_object(doc, err);
    for (const mla_jv *v = mla_jv_first(mla_json_root(from)); st == MLA_OK && v; v = mla_jv_next(v))
        if (!mla_jv_set_copy(mla_json_root(*doc), mla_jv_key(v), v)) st = no_memory(err);
    return st;
}

mla_status mla_writer_config(mla_json **doc, const mla_model *base, const mla_retrofit_config *r, const mla_writer_opts *opts, mla_err *err)
{
    mla_writer_opts none = {0};
    *doc = NULL;
    mla_status st = mla_model_config_json(base) ? copy_of(doc, mla_model_config_json(base), err)
                                                : mla_writer_gguf_config(doc, base, opts ? opts : &none, err);
    if (st == MLA_OK) st = mla_writer_adopt_quant(*doc, base, err);
    if (st == MLA_OK && r) st = retrofit(*doc, base, r, err);
    if (st != MLA_OK) {
        mla_json_free(*doc);
        *doc = NULL;
    }
    return st;
}

static bool rope(mla_jv *o, const mla_config *c, bool hybrid)
{
    const mla_rope_config *r = &c->rope;
    mla_jv *s = NULL, *sec = NULL;
    double partial = (double)r->rot / (double)c->head_dim;
    if (hybrid) { /* the family's own spelling */
        if (!(s = mla_jv_set_obj(o, "rope_parameters")) || !mla_jv_set_f64(s, "rope_theta", r->theta) ||
            !mla_jv_set_f64(s, "partial_rotary_factor", partial))
            return false;
        size_t sum = r->mrope_section[0] + r->mrope_section[1] + r->mrope_section[2];
        if (sum && (!mla_jv_set_bool(s, "mrope_interleaved", r->mrope_interleaved) || !(sec = mla_jv_set_arr(s, "mrope_section")))) return false;
        for (size_t i = 0; sum && i < 3; i++)
            if (!mla_jv_add_size(sec, r->mrope_section[i])) return false;
        if (r->kind == MLA_ROPE_DEFAULT) return mla_jv_set_str(s, "rope_type", "default");
    } else {
        if (!mla_jv_set_f64(o, "rope_theta", r->theta) || (r->rot != c->head_dim && !mla_jv_set_f64(o, "partial_rotary_factor", partial))) return false;
        if (r->kind == MLA_ROPE_DEFAULT) return true;
        if (!(s = mla_jv_set_obj(o, "rope_scaling"))) return false;
    }
    bool ok = mla_jv_set_f64(s, "factor", r->factor);
    if (r->kind == MLA_ROPE_LINEAR) return ok && mla_jv_set_str(s, "rope_type", "linear");
    ok = ok && mla_jv_set_size(s, "original_max_position_embeddings", r->original_max);
    if (r->kind == MLA_ROPE_LLAMA3)
        return ok && mla_jv_set_str(s, "rope_type", "llama3") && mla_jv_set_f64(s, "low_freq_factor", r->low_freq) &&
               mla_jv_set_f64(s, "high_freq_factor", r->high_freq);
    return ok && mla_jv_set_str(s, "rope_type", "yarn") && mla_jv_set_f64(s, "beta_fast", r->beta_fast) &&
           mla_jv_set_f64(s, "beta_slow", r->beta_slow) && mla_jv_set_f64(s, "attention_factor", r->attention_factor);
}

static bool hybrid_keys(mla_jv *o, const mla_config *c)
{
    mla_jv *t = mla_jv_set_arr(o, "layer_types");
    bool ok = t != NULL;
    for (size_t l = 0; ok && l < c->layers; l++)
        ok = mla_jv_add_str(t, c->layer_kind[l] == MLA_LAYER_FULL ? "full_attention" : "linear_attention") != NULL;
    return ok && mla_jv_set_size(o, "linear_conv_kernel_dim", c->lin_conv) && mla_jv_set_size(o, "linear_key_head_dim", c->lin_k_dim) &&
           mla_jv_set_size(o, "linear_value_head_dim", c->lin_v_dim) && mla_jv_set_size(o, "linear_num_key_heads", c->lin_k_heads) &&
           mla_jv_set_size(o, "linear_num_value_heads", c->lin_v_heads) && mla_jv_set_bool(o, "attn_output_gate", true) &&
           mla_jv_set_size(o, "mtp_num_hidden_layers", c->mtp_layers);
}

static bool tokens(mla_jv *o, const mla_config *c)
{
    if (c->bos >= 0 && !mla_jv_set_size(o, "bos_token_id", (size_t)c->bos)) return false;
    if (c->n_eos == 1) return mla_jv_set_size(o, "eos_token_id", (size_t)c->eos[0]);
    mla_jv *l = c->n_eos ? mla_jv_set_arr(o, "eos_token_id") : NULL;
    for (size_t i = 0; l && i < c->n_eos; i++)
        if (!mla_jv_add_size(l, (size_t)c->eos[i])) return false;
    return c->n_eos == 0 || l;
}

mla_status mla_writer_gguf_config(mla_json **doc, const mla_model *base, const mla_writer_opts *opts, mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    const mla_arch_group *g = mla_arch_of_gguf(c->architecture, strlen(c->architecture));
    if (!g) return mla_fail(err, MLA_EINTERNAL, "%s: no group", c->architecture);
    if (c->rope.custom)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: rope_freqs.weight follows no scaling that config.json can name", mla_model_path(base));
    mla_status st = mla_json_new_object(doc, err);
    if (st == MLA_OK) st = set_arch(*doc, g->hf, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(*doc);
    bool hybrid = g->flags & MLA_AF_HYBRID;
    bool ok = mla_jv_set_str(o, "model_type", hybrid ? "qwen3_5_text" : g->name) &&
              mla_jv_set_str(o, "torch_dtype", opts->dtype == MLA_F32 ? "float32" : "bfloat16") && mla_jv_set_size(o, "vocab_size", c->vocab) &&
              mla_jv_set_size(o, "hidden_size", c->hidden) && mla_jv_set_size(o, "intermediate_size", c->intermediate) &&
              mla_jv_set_size(o, "num_hidden_layers", c->layers) && mla_jv_set_size(o, "num_attention_heads", c->heads) &&
              mla_jv_set_size(o, "num_key_value_heads", c->kv_heads) && mla_jv_set_size(o, "head_dim", c->head_dim) &&
              mla_jv_set_str(o, "hidden_act", "silu") && mla_jv_set_size(o, "max_position_embeddings", c->max_pos) &&
              mla_jv_set_f64(o, "rms_norm_eps", c->rms_eps) && mla_jv_set_bool(o, "tie_word_embeddings", c->tied);
    if (ok && (g->flags & MLA_AF_ATTN_BIAS)) ok = mla_jv_set_bool(o, "attention_bias", c->q_bias);
    if (ok && (g->flags & MLA_AF_MLP_BIAS)) ok = mla_jv_set_bool(o, "mlp_bias", c->mlp_bias);
    ok = ok && rope(o, c, hybrid) && (!hybrid || hybrid_keys(o, c)) && tokens(o, c);
    return ok ? MLA_OK : no_memory(err);
}
