/* Shape and config.json of a DeepSeek-style export. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "model/writer.h"
#include "retrofit/build/deepseek.h"

void mla_deepseek_shape_free(mla_deepseek_shape *s)
{
    mla_free(s->slot);
    mla_free(s->freq);
    *s = (mla_deepseek_shape){0};
}

/* Slots by frequency, ties in their order: neighbours in the list then differ little from the base's own spacing. */
static void by_frequency(mla_deepseek_shape *s, const size_t *freq)
{
    size_t at = 0;
    for (size_t f = 0; f < s->d / 2; f++)
        for (size_t i = 0; i < s->w / 2; i++)
            if (freq[i] == f) s->slot[at] = i, s->freq[at++] = f;
}

mla_status mla_deepseek_shape_of(mla_deepseek_shape *out, const mla_model *base, const mla_factorization *f, mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    const mla_factors *first = f->factors;
    *out = (mla_deepseek_shape){0};
    if (f->layers != c->layers || first->layout != MLA_LAYOUT_ABSORBED)
        return mla_fail(err, MLA_EINVAL, "layout deepseek needs absorbed-rope factors of all %zu layers", c->layers);
    mla_deepseek_shape s = {.H = c->heads, .G = c->kv_heads, .d = c->head_dim, .D = c->hidden, .w = first->w, .rank = first->r, .fold = f->freq_fold};
    size_t half = s.w / 2, *freq = mla_alloc(half, 1, sizeof *freq), fold;
    s.q_lora = c->q_bias ? c->hidden + 1 : 0;
    s.slot = mla_alloc(half, 1, sizeof *s.slot);
    s.freq = mla_alloc(half, 1, sizeof *s.freq);
    size_t *mine = mla_alloc(half, 1, sizeof *mine);
    mla_status st = freq && s.slot && s.freq && mine ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu rotary slots", half);
    for (size_t l = 0; st == MLA_OK && l < f->layers; l++) {
        const mla_factors *x = &f->factors[l];
        if (x->w != s.w || x->r != s.rank) {
            st = mla_fail(err, MLA_EINVAL, "layer %zu: rank %zu and %zu rotary values, the first layer has %zu and %zu: a DeepSeek model has one of each",
                          l, x->r, x->w, s.rank, s.w);
            break;
        }
        st = mla_factors_slots(mine, &fold, x, x->d, err);
        for (size_t i = 0; st == MLA_OK && i < half; i++) mine[i] = mine[i] / s.fold * s.fold;
        if (st == MLA_OK && l == 0) memcpy(freq, mine, half * sizeof *freq);
        if (st == MLA_OK && (fold > s.fold || memcmp(freq, mine, half * sizeof *freq)))
            st = mla_fail(err, MLA_EINVAL, "layer %zu: its rotary values turn with other frequencies than the first layer's: a DeepSeek model has one table", l);
    }
    if (st == MLA_OK) by_frequency(&s, freq);
    mla_free(freq);
    mla_free(mine);
    if (st == MLA_OK) *out = s;
    else mla_deepseek_shape_free(&s);
    return st;
}

static mla_status no_memory(mla_err *err) { return mla_fail(err, MLA_ENOMEM, "config.json: document"); }

static bool keep(mla_jv *to, const mla_jv *from, const char *key)
{
    const mla_jv *v = mla_jv_get(from, key);
    return !v || mla_jv_set_copy(to, key, v);
}

/* One slot for every frequency, or for every fold-th, in order: the same kind of RoPE on a width of w. */
static bool regular(const mla_deepseek_shape *s)
{
    if (s->w * s->fold != s->d) return false;
    for (size_t i = 0; i < s->w / 2; i++)
        if (s->freq[i] != i * s->fold) return false;
    return true;
}

/* The base's own settings. YaRN's magnitude is written out: DeepSeek reads mscale_all_dim as a softmax scale, too. */
static mla_status rope_as_is(mla_jv *o, const mla_jv *base, const mla_config *c, mla_err *err)
{
    static const char *const KEY[] = {"rope_theta", "rope_scaling", "rope_parameters"};
    bool ok = true;
    for (size_t i = 0; i < 3; i++) ok = ok && keep(o, base, KEY[i]);
    for (size_t i = 1; ok && i < 3; i++) {
        mla_jv *r = mla_jv_get(o, KEY[i]);
        if (!mla_jv_is_obj(r)) continue;
        mla_jv_remove(r, "mscale");
        mla_jv_remove(r, "mscale_all_dim");
        mla_jv_remove(r, "partial_rotary_factor");
        if (c->rope.kind == MLA_ROPE_YARN || c->rope.kind == MLA_ROPE_LONGROPE)
            ok = mla_jv_set_f64(r, "factor", c->rope.factor) && mla_jv_set_f64(r, "attention_factor", c->rope.attention_factor) &&
                 mla_jv_set_size(r, "original_max_position_embeddings", c->rope.original_max);
    }
    return ok ? MLA_OK : no_memory(err);
}

/* Any frequencies: RoPE of kind longrope divides the plain ones of width w by factors of one's own. */
static mla_status rope_by_factors(mla_jv *o, const mla_config *c, const mla_deepseek_shape *s, mla_err *err)
{
    const mla_rope_config *r = &c->rope;
    bool two = r->long_inv_freq != NULL;
    mla_jv *p = mla_jv_set_obj(o, "rope_scaling"), *list[2] = {p ? mla_jv_set_arr(p, "short_factor") : NULL, p ? mla_jv_set_arr(p, "long_factor") : NULL};
    bool ok = list[0] && list[1] && mla_jv_set_f64(o, "rope_theta", r->theta) && mla_jv_set_str(p, "rope_type", "longrope") &&
              mla_jv_set_f64(p, "factor", r->factor > 1 ? r->factor : 1) && mla_jv_set_f64(p, "attention_factor", r->attention_factor) &&
              mla_jv_set_size(p, "original_max_position_embeddings", two ? r->original_max : c->max_pos);
    for (size_t i = 0; ok && i < s->w / 2; i++)
        for (size_t k = 0; ok && k < 2; k++) {
            double want = (k && two ? r->long_inv_freq : r->inv_freq)[s->freq[i]];
            ok = mla_jv_add_f64(list[k], pow(r->theta, -2.0 * (double)i / (double)s->w) / want) != NULL;
        }
    return ok ? MLA_OK : no_memory(err);
}

static bool sizes(mla_jv *o, const mla_config *c, const mla_deepseek_shape *s)
{
    const struct { const char *key; size_t v; } K[] = {
        {"vocab_size", c->vocab}, {"hidden_size", c->hidden}, {"intermediate_size", c->intermediate}, {"num_hidden_layers", c->layers},
        {"num_attention_heads", c->heads}, {"num_key_value_heads", c->heads}, {"max_position_embeddings", c->max_pos},
        {"kv_lora_rank", s->rank + 1}, {"qk_nope_head_dim", s->d}, {"qk_rope_head_dim", s->w}, {"v_head_dim", s->d},
        /* no layer has experts; loaders want the keys all the same */
        {"first_k_dense_replace", c->layers}, {"moe_intermediate_size", c->intermediate}, {"n_routed_experts", 1}, {"n_shared_experts", 1},
        {"num_experts_per_tok", 1}, {"n_group", 1}, {"topk_group", 1}, {"num_nextn_predict_layers", 0}};
    for (size_t i = 0; i < sizeof K / sizeof *K; i++)
        if (!mla_jv_set_size(o, K[i].key, K[i].v)) return false;
    return s->q_lora ? mla_jv_set_size(o, "q_lora_rank", s->q_lora) : mla_jv_set_null(o, "q_lora_rank");
}

mla_status mla_deepseek_config(mla_json **doc, const mla_model *base, const mla_deepseek_shape *s, mla_dtype dtype, mla_err *err)
{
    static const char *const KEEP[] = {"bos_token_id", "eos_token_id", "pad_token_id", "initializer_range"};
    const mla_config *c = mla_model_config(base);
    mla_json *from = NULL;
    *doc = NULL;
    mla_status st = mla_writer_config(&from, base, NULL, NULL, err);
    if (st == MLA_OK) st = mla_json_new_object(doc, err);
    if (st == MLA_OK) {
        mla_jv *o = mla_json_root(*doc), *arch = mla_jv_set_arr(o, "architectures");
        const char *type = dtype == MLA_F32 ? "float32" : "bfloat16";
        bool ok = arch && mla_jv_add_str(arch, "DeepseekV3ForCausalLM") && mla_jv_set_str(o, "model_type", "deepseek_v3") && sizes(o, c, s) &&
                  mla_jv_set_bool(o, "attention_bias", true) && mla_jv_set_f64(o, "attention_dropout", 0) && mla_jv_set_str(o, "hidden_act", "silu") &&
                  mla_jv_set_f64(o, "rms_norm_eps", c->rms_eps) && mla_jv_set_bool(o, "rope_interleave", true) &&
                  mla_jv_set_bool(o, "tie_word_embeddings", c->tied) && mla_jv_set_bool(o, "use_cache", true) && mla_jv_set_str(o, "torch_dtype", type);
        for (size_t i = 0; ok && i < sizeof KEEP / sizeof *KEEP; i++) ok = keep(o, mla_json_root(from), KEEP[i]);
        if (!ok) st = no_memory(err);
    }
    bool same = regular(s) && (s->fold == 1 || c->rope.kind == MLA_ROPE_DEFAULT || c->rope.kind == MLA_ROPE_LINEAR || c->rope.kind == MLA_ROPE_LLAMA3);
    if (st == MLA_OK) st = same ? rope_as_is(mla_json_root(*doc), mla_json_root(from), c, err) : rope_by_factors(mla_json_root(*doc), c, s, err);
    mla_json_free(from);
    if (st != MLA_OK) {
        mla_json_free(*doc);
        *doc = NULL;
    }
    return st;
}
