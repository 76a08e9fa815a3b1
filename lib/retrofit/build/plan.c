/* Arithmetic of a build before it runs. */
#include "retrofit/build/plan.h"

#include "model/factors.h"
#include "model/shared.h"
#include "retrofit/refine/fit_rows.h"
#include "retrofit/solve/metric.h"
#include "retrofit/solve/ranks.h"
#include "retrofit/refine/refine_rows.h"
#include "retrofit/shared_rotary/shared_rows.h"

/* What the same bytes per token buy with every number of shared rotary keys, and with exact ones (layout n). */
static void price(mla_plan *p, const mla_config *c)
{
    mla_err none = {0};
    size_t G = c->kv_heads, rot = c->rope.rot;
    if (mla_shared_fits(c, &none) != MLA_OK) return;
    if (p->cached_values > G * rot) p->price[p->n_price++] = (mla_plan_price){.layout = MLA_LAYOUT_N, .rotary = G * rot, .latent = p->cached_values - G * rot};
    for (size_t k = 0; k < 2; k++)
        for (size_t R = k ? G : G - 1; R >= 1; R--) /* R = G in layout n is the exact one */
            if (p->cached_values > R * rot && p->n_price < MLA_PLAN_PRICES)
                p->price[p->n_price++] = (mla_plan_price){.layout = k ? MLA_LAYOUT_SHARED : MLA_LAYOUT_N, .keys = R, .rotary = R * rot, .latent = p->cached_values - R * rot};
}

mla_status mla_plan_make(mla_plan *p, const mla_model *m, const mla_recipe *r, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    *p = (mla_plan){.full_layers = mla_config_full_layers(c), .groups = r->groups};
    p->linear_layers = c->layers - p->full_layers;
    size_t n, G = c->kv_heads, d = c->head_dim, H = c->heads;
    bool shared = r->layout == MLA_LAYOUT_SHARED;
    mla_status st = shared ? mla_shared_rank(&p->rank, c, r->rotary_keys, r->budget, err) : mla_factors_dims(c, r->layout, r->groups, &n, err);
    mla_recipe q = *r;
    if (r->layout == MLA_LAYOUT_ABSORBED && !r->rotary_width) q.rotary_width = q.budget.rotary = c->rope.rot; /* build takes it from the statistics */
    if (st == MLA_OK && !shared) st = mla_recipe_rank(&p->rank, &q, c, err);
    if (st != MLA_OK) return st;
    p->rank += r->layout == MLA_LAYOUT_DEEPSEEK; /* the constant coordinate */
    if (shared) n = 2 * G * d;
    p->features = shared ? 0 : n * r->groups;
    p->rotary_values = shared ? r->rotary_keys * c->rope.rot : q.rotary_width + mla_layout_rotary(c, r->layout);
    p->divisors = mla_layout_divisors(c, r->layout);
    p->base_values = 2 * G * d;
    p->cached_values = p->rank + p->rotary_values + p->divisors;
    p->base_kv_bytes = 2ull * p->base_values * p->full_layers;
    p->kv_bytes = 2ull * p->cached_values * p->full_layers;
    uint64_t bytes = r->factors_dtype == MLA_FACTORS_BF16 ? 2 : 4; /* auto: the larger */
    bool slots = r->layout == MLA_LAYOUT_ABSORBED; /* decodes a key per query head; rotary maps are f32 */
    if (slots) p->features = p->rotary_values < G * c->rope.rot ? 0 : p->features - p->rotary_values;
    p->shares = slots && !r->rotary_width && r->allocation != MLA_ALLOC_UNIFORM;
    p->factor_bytes = p->full_layers * ((uint64_t)p->rank * (n + (slots ? (H + G) * d : n)) * bytes + (uint64_t)n * r->groups * 4 +
                                        (slots ? 8ull * p->rotary_values * G * d : 0));
    if (shared) p->factor_bytes = mla_shared_file_bytes(c, p->rank, r->rotary_keys);
    p->base_bytes = mla_model_stored_bytes(m);
    price(p, c);
    size_t blocks, dim, all = G * (mla_layout_key_dims(c, r->layout) + d), dk = all / G - d;
    mla_metric_blocks(H, G, d, &blocks, &dim);
    uint64_t gate = c->attn_gate ? (uint64_t)blocks * dim * dim : 0;
    uint64_t wide = c->hidden + 2 * (uint64_t)G * d; /* shared-rotary: one layer at a time */
    p->stats_bytes = shared ? 8 * (wide * wide + 2 * (uint64_t)H * d * d + (uint64_t)c->hidden * c->hidden + 3ull * n * c->hidden) : 8 * p->full_layers * ((uint64_t)all * all + 2 * all + (uint64_t)G * dk * dk + (uint64_t)H * H + gate);
    uint64_t params = (uint64_t)c->vocab * c->hidden * (c->tied ? 1 : 2) +
                      (uint64_t)c->layers * (3ull * c->hidden * c->intermediate + 2ull * c->hidden * H * d + 2ull * c->hidden * G * d);
    uint64_t row = (uint64_t)r->row_tokens * (c->hidden * 6ull + c->intermediate * 3ull) * 4 + (uint64_t)r->row_tokens * r->row_tokens * H * 4;
    p->peak_bytes = params * 4 + 2 * p->stats_bytes + row;
    if (!shared && r->refine_steps && (!p->features || p->rank < p->features))
        p->work_bytes = p->full_layers * (uint64_t)mla_rows_bytes(c, r->layout, r->row_tokens) * (r->refine_tokens / r->row_tokens + MLA_FIT_HELD);
    if (shared) p->work_bytes = (uint64_t)r->calibration_tokens * p->full_layers * mla_shared_row_bytes(c);
    p->disk_new_bytes = p->factor_bytes + (mla_model_gguf(m) ? params * 4 : 0);
    p->forward_flops = 2.0 * (double)params * (double)r->calibration_tokens;
    return MLA_OK;
}

void mla_plan_to_json(const mla_plan *p, const mla_recipe *r, mla_jv *o)
{
    mla_jv_set_str(o, "schema", "mla-plan/1");
    mla_recipe_to_json(r, mla_jv_set_obj(o, "recipe"));
    mla_jv_set_size(o, "full_attention_layers", p->full_layers);
    mla_jv_set_size(o, "other_layers", p->linear_layers);
    mla_jv_set_size(o, "rank", p->rank);
    mla_jv_set_size(o, "lossless_rank", p->features);
    mla_jv_set_size(o, "rotary_values", p->rotary_values);
    if (p->divisors) mla_jv_set_size(o, "divisor_values", p->divisors);
    mla_jv_set_size(o, "base_values_per_token_layer", p->base_values);
    mla_jv_set_size(o, "cached_values_per_token_layer", p->cached_values);
    mla_jv_set_f64(o, "keep", (double)p->cached_values / (double)p->base_values);
    mla_jv_set_size(o, "base_kv_bytes_per_token", p->base_kv_bytes);
    mla_jv_set_size(o, "kv_bytes_per_token", p->kv_bytes);
    mla_jv_set_size(o, "factor_bytes", p->factor_bytes);
    mla_jv_set_size(o, "base_weight_bytes", p->base_bytes);
    mla_jv_set_size(o, "peak_memory_bytes", p->peak_bytes);
    mla_jv_set_size(o, "work_disk_bytes", p->work_bytes);
    mla_jv_set_size(o, "new_disk_bytes", p->disk_new_bytes);
    mla_jv_set_f64(o, "forward_flops", p->forward_flops);
    mla_jv *list = p->n_price ? mla_jv_set_arr(o, "at_equal_bytes") : NULL;
    for (size_t i = 0; i < p->n_price; i++) {
        mla_jv *e = mla_jv_add_obj(list);
        mla_jv_set_str(e, "layout", mla_layout_name(p->price[i].layout));
        if (p->price[i].keys) mla_jv_set_size(e, "rotary_keys", p->price[i].keys);
        mla_jv_set_size(e, "rotary_values", p->price[i].rotary);
        mla_jv_set_size(e, "latent_values", p->price[i].latent);
    }
}

void mla_plan_table(const mla_plan *p, const mla_recipe *r, mla_str *s)
{
    char a[32], b[32];
    mla_str_printf(s, "layout                 %s, %zu group%s\n", mla_layout_name(r->layout), r->groups, r->groups == 1 ? "" : "s");
    mla_str_printf(s, "attention layers       %zu full, %zu other\n", p->full_layers, p->linear_layers);
    if (p->features) mla_str_printf(s, "rank                   %zu of %zu (lossless), per token and layer\n", p->rank, p->features);
    else mla_str_printf(s, "rank                   %zu, per token and layer; no rank is lossless here\n", p->rank);
    if (r->rank_set.n) {
        mla_str_put(s, "ranks of layers        from ");
        for (size_t i = 0; i < r->rank_set.n; i++) mla_str_printf(s, "%s%zu", i ? ", " : "", r->rank_set.rank[i]);
        mla_str_put(s, r->allocation == MLA_ALLOC_UNIFORM ? " (the largest that fits, in all layers)\n" : " (spread at building, at most the rank above on average)\n");
    }
    mla_str_printf(s, "cached values          %zu = %zu latent + %zu rotary", p->cached_values, p->rank, p->rotary_values);
    if (p->divisors) mla_str_printf(s, " + %zu divisors", p->divisors);
    mla_str_printf(s, "; the base caches %zu (keep %.3f)\n", p->base_values, (double)p->cached_values / (double)p->base_values);
    if (p->shares) mla_str_put(s, "                       at building each layer shares its values between latent and rotary keys anew\n");
    mla_str_printf(s, "KV bytes per token     %llu bf16, %llu FP8; the base %llu bf16\n", (unsigned long long)p->kv_bytes,
                   (unsigned long long)p->kv_bytes / 2, (unsigned long long)p->base_kv_bytes);
    mla_str_printf(s, "added weights          %s beside %s of base weights\n", mla_bytes_text(a, sizeof a, (double)p->factor_bytes),
                   mla_bytes_text(b, sizeof b, (double)p->base_bytes));
    mla_str_printf(s, "new on disk            %s (base shards are linked where the file system allows)\n",
                   mla_bytes_text(a, sizeof a, (double)p->disk_new_bytes));
    if (p->work_bytes) mla_str_printf(s, "on disk while building %s of recorded activations, for refinement (none with --fast, or on a GPU that has the room)\n", mla_bytes_text(a, sizeof a, (double)p->work_bytes));
    mla_str_printf(s, "memory, about          %s with resident f32 weights\n", mla_bytes_text(a, sizeof a, (double)p->peak_bytes));
    mla_str_printf(s, "calibration            up to %zu tokens, %.3g TFLOP; at 0.2 TFLOP/s about %.0f s\n", r->calibration_tokens,
                   p->forward_flops / 1e12, p->forward_flops / 0.2e12);
    if (p->n_price) mla_str_printf(s, "\nthe same %zu values per token and layer as       rotary   latent\n", p->cached_values);
    for (size_t i = 0; i < p->n_price; i++) {
        const mla_plan_price *e = &p->price[i];
        if (!e->keys) mla_str_printf(s, "  n: exact rotary keys of every KV head       %8zu %8zu\n", e->rotary, e->latent);
        else mla_str_printf(s, "  %s, %zu shared key%s per frequency%*s %8zu %8zu\n", mla_layout_name(e->layout), e->keys, e->keys == 1 ? "" : "s",
                            (e->layout == MLA_LAYOUT_N ? 12 : 0) + 1 + (e->keys == 1), "", e->rotary, e->latent);
    }
}
