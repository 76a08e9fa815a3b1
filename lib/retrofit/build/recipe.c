/* Recipe defaults, strict JSON in, JSON out. */
#include "retrofit/build/recipe.h"

#include <string.h>

#include "model/shared.h"

mla_recipe mla_recipe_default(void)
{
    return (mla_recipe){.layout = MLA_LAYOUT_NONE, .groups = 1, .calibration_tokens = 131072, .row_tokens = 512,
                        .allocation_rounds = 2, .refine_steps = 125, .refine_tokens = 65536, .freq_fold = 1};
}

double mla_recipe_balance(mla_layout layout) { return layout == MLA_LAYOUT_REBUILD ? 3.0 : 1.0; }

void mla_recipe_fast(mla_recipe *r)
{
    r->allocation = MLA_ALLOC_UNIFORM;
    r->refine_steps = 0;
}

static const char *const ALLOC[] = {[MLA_ALLOC_AUTO] = "auto", [MLA_ALLOC_UNIFORM] = "uniform", [MLA_ALLOC_SPECTRUM] = "spectrum",
                                    [MLA_ALLOC_PROBE] = "probe"};

static const char *const FACTORS[] = {[MLA_FACTORS_AUTO] = "auto", [MLA_FACTORS_BF16] = "bfloat16", [MLA_FACTORS_F32] = "float32"};

static bool name_index(size_t *out, const char *s, const char *const *name, size_t n)
{
    for (*out = 0; *out < n; ++*out)
        if (!strcmp(s, name[*out])) return true;
    return false;
}

bool mla_allocation_parse(const char *s, mla_allocation *out)
{
    size_t i;
    if (!name_index(&i, s, ALLOC, sizeof ALLOC / sizeof *ALLOC)) return false;
    *out = (mla_allocation)i;
    return true;
}

bool mla_factors_dtype_parse(const char *s, mla_factors_dtype *out)
{
    size_t i;
    if (!name_index(&i, s, FACTORS, sizeof FACTORS / sizeof *FACTORS)) return false;
    *out = (mla_factors_dtype)i;
    return true;
}

bool mla_recipe_layout(const char *s, mla_layout *out)
{
    if (strcmp(s, "auto")) return mla_layout_parse(s, out);
    *out = MLA_LAYOUT_NONE;
    return true;
}

static mla_status bad(const char *key, const char *want, const mla_jv *v, mla_err *err)
{
    return mla_fail(err, MLA_EFORMAT, "%s: expected %s, found %s", key, want, mla_jv_kind(v));
}

static mla_status read_budget(mla_budget *b, const mla_jv *o, mla_err *err)
{
    *b = (mla_budget){0};
    if (!mla_jv_is_obj(o)) return bad("budget", "an object", o, err);
    for (const mla_jv *v = mla_jv_first(o); v; v = mla_jv_next(v)) {
        const char *k = mla_jv_key(v);
        bool ok = !strcmp(k, "keep") ? mla_jv_f64(v, &b->keep) : !strcmp(k, "rank") ? mla_jv_size(v, &b->rank)
                : !strcmp(k, "kv_bytes") ? mla_jv_size(v, &b->kv_bytes) : false;
        if (!ok) return mla_fail(err, MLA_EFORMAT, "budget.%s: expected one of keep, rank, kv_bytes with a number", k);
    }
    return MLA_OK;
}

static mla_status read_calibration(mla_recipe *r, const mla_jv *o, mla_err *err)
{
    if (!mla_jv_is_obj(o)) return bad("calibration", "an object", o, err);
    for (const mla_jv *v = mla_jv_first(o); v; v = mla_jv_next(v)) {
        const char *k = mla_jv_key(v);
        size_t *to = !strcmp(k, "tokens") ? &r->calibration_tokens : !strcmp(k, "row_tokens") ? &r->row_tokens : NULL;
        if (!to) return mla_fail(err, MLA_EFORMAT, "calibration.%s: unknown field (tokens, row_tokens)", k);
        if (!mla_jv_size(v, to) || *to == 0) return bad(k, "a positive integer", v, err);
    }
    return MLA_OK;
}

static mla_status read_set(mla_rank_set *set, const mla_jv *list, mla_err *err)
{
    *set = (mla_rank_set){0};
    if (!mla_jv_is_arr(list) || !mla_jv_len(list) || mla_jv_len(list) > MLA_RANK_SET_MAX) return bad("rank_set", "a list of 1 to 16 ranks", list, err);
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v))
        if (!mla_jv_size(v, &set->rank[set->n++])) return bad("rank_set", "integers", v, err);
    return MLA_OK;
}

static mla_status read_refinement(mla_recipe *r, const mla_jv *o, mla_err *err)
{
    if (!mla_jv_is_obj(o)) return bad("refinement", "an object", o, err);
    for (const mla_jv *v = mla_jv_first(o); v; v = mla_jv_next(v)) {
        const char *k = mla_jv_key(v);
        size_t *to = !strcmp(k, "steps") ? &r->refine_steps : !strcmp(k, "tokens") ? &r->refine_tokens : NULL;
        if (!to) return mla_fail(err, MLA_EFORMAT, "refinement.%s: unknown field (steps, tokens)", k);
        if (!mla_jv_size(v, to)) return bad(k, "an integer", v, err);
    }
    return MLA_OK;
}

static mla_status read_field(mla_recipe *r, const char *k, const mla_jv *v, mla_err *err)
{
    const char *s = mla_jv_str(v);
    if (!strcmp(k, "schema")) return s && !strcmp(s, MLA_RECIPE_SCHEMA) ? MLA_OK : bad(k, "\"" MLA_RECIPE_SCHEMA "\"", v, err);
    if (!strcmp(k, "comment")) return MLA_OK;
    if (!strcmp(k, "layout")) return s && mla_recipe_layout(s, &r->layout) ? MLA_OK : bad(k, "one of auto, " MLA_LAYOUT_LIST, v, err);
    if (!strcmp(k, "groups")) return mla_jv_size(v, &r->groups) && r->groups ? MLA_OK : bad(k, "a positive integer", v, err);
    if (!strcmp(k, "budget")) return read_budget(&r->budget, v, err);
    if (!strcmp(k, "calibration")) return read_calibration(r, v, err);
    if (!strcmp(k, "objective"))
        return s && mla_objective_parse(s, &r->objective) ? MLA_OK : bad(k, "ours, svd, joint-svd, cov-separate or balanced-pca", v, err);
    if (!strcmp(k, "rotary_width")) return mla_jv_size(v, &r->rotary_width) && r->rotary_width ? MLA_OK : bad(k, "a positive integer", v, err);
    if (!strcmp(k, "freq_fold")) return mla_jv_size(v, &r->freq_fold) && r->freq_fold ? MLA_OK : bad(k, "a positive integer", v, err);
    if (!strcmp(k, "balance")) {
        r->balance_scan = s && !strcmp(s, "scan");
        return r->balance_scan || (mla_jv_f64(v, &r->balance) && r->balance > 0) ? MLA_OK : bad(k, "a positive number or \"scan\"", v, err);
    }
    if (!strcmp(k, "factors_dtype"))
        return s && mla_factors_dtype_parse(s, &r->factors_dtype) ? MLA_OK : bad(k, "auto, bfloat16 or float32", v, err);
    if (!strcmp(k, "allocation"))
        return s && mla_allocation_parse(s, &r->allocation) ? MLA_OK : bad(k, "auto, uniform, spectrum or probe", v, err);
    if (!strcmp(k, "allocation_rounds"))
        return mla_jv_size(v, &r->allocation_rounds) && r->allocation_rounds ? MLA_OK : bad(k, "a positive integer", v, err);
    if (!strcmp(k, "refinement")) return read_refinement(r, v, err);
    if (!strcmp(k, "sequential")) return mla_jv_bool(v, &r->sequential) ? MLA_OK : bad(k, "true or false", v, err);
    if (!strcmp(k, "rank_set")) return read_set(&r->rank_set, v, err);
    if (!strcmp(k, "names")) {
        if (!s || (strcmp(s, "mla") && strcmp(s, "mvla"))) return bad(k, "mla or mvla", v, err);
        r->old_names = !strcmp(s, "mvla");
        return MLA_OK;
    }
    if (!strcmp(k, "rotary_keys")) return mla_jv_size(v, &r->rotary_keys) && r->rotary_keys ? MLA_OK : bad(k, "a positive integer", v, err);
    return mla_fail(err, MLA_EFORMAT, "%s: unknown field", k);
}

mla_status mla_recipe_read(mla_recipe *r, const char *path, mla_err *err)
{
    mla_json *d;
    mla_status st = mla_json_read(&d, path, 1 << 20, err);
    if (st != MLA_OK) return st;
    const mla_jv *o = mla_json_root(d);
    if (!mla_jv_is_obj(o)) st = bad("recipe", "an object", o, err);
    for (const mla_jv *v = mla_jv_first(o); st == MLA_OK && v; v = mla_jv_next(v)) st = read_field(r, mla_jv_key(v), v, err);
    mla_json_free(d);
    return st == MLA_OK ? st : mla_wrap(err, "recipe %s", path);
}

/* What the shared-rotary file cannot hold, with the reason. */
static mla_status resolve_shared(mla_recipe *r, const mla_config *c, mla_err *err)
{
    if (r->rotary_keys == 0) r->rotary_keys = 1;
    if (r->rotary_keys > c->kv_heads)
        return mla_fail(err, MLA_EINVAL, "rotary_keys %zu: at most one per KV head, %zu", r->rotary_keys, c->kv_heads);
    if (r->rank_set.n || r->old_names) return mla_fail(err, MLA_EINVAL, "a rank set and names mvla are not for layout shared-rotary");
    if (r->groups != 1) return mla_fail(err, MLA_EINVAL, "groups %zu: layout shared-rotary has one latent for all heads", r->groups);
    if (r->allocation == MLA_ALLOC_SPECTRUM || r->allocation == MLA_ALLOC_PROBE)
        return mla_fail(err, MLA_EINVAL, "allocation %s: a shared-rotary file has one rank for all layers", ALLOC[r->allocation]);
    if (r->factors_dtype == MLA_FACTORS_BF16) return mla_fail(err, MLA_EINVAL, "factors_dtype bfloat16: a shared-rotary file holds f32");
    if (r->objective != MLA_OBJ_OURS) return mla_fail(err, MLA_EINVAL, "objective %s: not for layout shared-rotary", mla_objective_name(r->objective));
    if (r->sequential) return mla_fail(err, MLA_EINVAL, "sequential: not for layout shared-rotary");
    if (r->balance_scan) return mla_fail(err, MLA_EINVAL, "balance scan: not for layout shared-rotary, whose refinement moves keys and values together");
    r->factors_dtype = MLA_FACTORS_F32;
    r->allocation = MLA_ALLOC_UNIFORM;
    if (r->balance == 0) r->balance = 1;
    return MLA_OK;
}

mla_status mla_recipe_deepseek(const mla_recipe *r, const mla_config *c, mla_err *err)
{
    const char *why = NULL;
    if (c->qk_norm) why = "this model normalises queries and keys, which kv_a_proj and kv_b_proj, being linear, cannot: use layout rebuild or absorbed-rope";
    else if (c->attn_gate) why = "this model gates the attention output, and DeepSeek attention has no gate: use layout n";
    else if (c->mlp_bias) why = "this model has MLP biases, and DeepSeek MLPs have none";
    else if (c->experts) why = "this model is a mixture of experts of another kind";
    else if (c->sliding_window) why = "this model attends through a sliding window, and DeepSeek attention has none";
    else if (c->rope.custom) why = "this model's rotary frequencies come from a file and follow no kind that config.json can name";
    else if (r->allocation != MLA_ALLOC_UNIFORM) why = "its config.json has one kv_lora_rank for all layers: allocation must be uniform";
    if (why) return mla_fail(err, MLA_EINVAL, "layout deepseek: %s", why);
    size_t per = c->head_dim / r->freq_fold;
    bool plain = r->rotary_width == per;
    if (r->rotary_width % per)
        return mla_fail(err, MLA_EINVAL, "layout deepseek: rotary width %zu, expected a multiple of %zu (all layers share one table of frequencies)",
                        r->rotary_width, per);
    if (c->rope.kind == MLA_ROPE_DYNAMIC && (!plain || r->freq_fold > 1))
        return mla_fail(err, MLA_EINVAL, "layout deepseek: dynamic RoPE needs one rotary key for every frequency (rotary width %zu, no folding)", c->head_dim);
    return MLA_OK;
}

/* absorbed-rope and deepseek: widths, folding, and what the model must be like. */
static mla_status resolve_slots(mla_recipe *r, const mla_config *c, mla_err *err)
{
    const size_t *s = c->rope.mrope_section;
    bool deepseek = r->layout == MLA_LAYOUT_DEEPSEEK;
    size_t n, half = c->rope.rot / 2, all = c->kv_heads * c->rope.rot;
    if (r->layout != MLA_LAYOUT_ABSORBED && !deepseek) {
        if (r->freq_fold > 1 || r->rotary_width)
            return mla_fail(err, MLA_EINVAL, "rotary_width and freq_fold belong to layouts absorbed-rope and deepseek, not to %s", mla_layout_name(r->layout));
        return MLA_OK;
    }
    if (r->freq_fold > 1 && (s[0] | s[1] | s[2]))
        return mla_fail(err, MLA_EINVAL, "freq_fold %zu: neighbouring frequencies of this model's multi-axis RoPE follow different axes (time, height, "
                        "width), so turning them as one breaks image tokens", r->freq_fold);
    mla_status st = mla_factors_dims(c, r->layout, r->groups, &n, err);
    if (st != MLA_OK) return st;
    if (r->freq_fold == 0 || half % r->freq_fold) return mla_fail(err, MLA_EINVAL, "freq_fold %zu: must divide %zu frequencies", r->freq_fold, half);
    if (r->freq_fold > 1 && r->allocation == MLA_ALLOC_PROBE)
        return mla_fail(err, MLA_EINVAL, "freq_fold changes the frequencies of the whole model: allocation by probe, layer by layer, cannot measure that");
    if (r->freq_fold > 1) r->refine_steps = 0; /* its keys turn at other speeds than the model's */
    if (r->allocation == MLA_ALLOC_AUTO && (deepseek || r->freq_fold > 1)) r->allocation = MLA_ALLOC_UNIFORM;
    double latent;
    if (!r->rotary_width && deepseek) r->rotary_width = c->head_dim / r->freq_fold;
    mla_budget b = r->budget;
    if (!r->rotary_width && (b.keep > 0 || b.kv_bytes) && mla_latent_budget(&latent, c, r->layout, b, NULL) == MLA_OK && latent >= 2.0 * (double)(c->kv_heads * c->head_dim))
        r->rotary_width = all; /* lossless: every rotated dim in a slot */
    if (!r->rotary_width && b.rank)
        return mla_fail(err, MLA_EINVAL, "layout absorbed-rope with a rank needs a rotary width, too (or keep or kv_bytes for both together)");
    if (r->rotary_width && (r->rotary_width < 2 || r->rotary_width % 2 || r->rotary_width > all))
        return mla_fail(err, MLA_EINVAL, "rotary width %zu: an even number from 2 to %zu", r->rotary_width, all);
    if (deepseek && (st = mla_recipe_deepseek(r, c, err)) != MLA_OK) return st;
    if (r->objective != MLA_OBJ_OURS)
        return mla_fail(err, MLA_EINVAL, "objective %s: comparison methods are defined for layouts n and rebuild, not for %s", mla_objective_name(r->objective),
                        mla_layout_name(r->layout));
    r->budget.rotary = r->rotary_width;
    return MLA_OK;
}

mla_status mla_recipe_resolve(mla_recipe *r, const mla_config *c, mla_err *err)
{
    if (c->mla.layout != MLA_LAYOUT_NONE) return mla_fail(err, MLA_EUNSUPPORTED, "the base is a retrofit already (layout %s)", mla_layout_name(c->mla.layout));
    if (c->family == MLA_FAM_DEEPSEEK) return mla_fail(err, MLA_EUNSUPPORTED, "the base (%s) already is an MLA model", c->architecture);
    if (mla_config_full_layers(c) == 0) return mla_fail(err, MLA_EUNSUPPORTED, "the base has no full-attention layer");
    if (r->layout == MLA_LAYOUT_NONE) r->layout = c->rope.rot < c->head_dim ? MLA_LAYOUT_N : MLA_LAYOUT_REBUILD;
    mla_status st = mla_layout_fits(c, r->layout, err);
    if (st == MLA_OK && r->layout == MLA_LAYOUT_SHARED) st = resolve_shared(r, c, err);
    if (st != MLA_OK) return st;
    if (r->layout == MLA_LAYOUT_N && r->rotary_keys) { /* the same features, rotary keys shared: layout absorbed-rope holds them */
        if (r->rotary_keys > c->kv_heads)
            return mla_fail(err, MLA_EINVAL, "rotary_keys %zu: at most one per KV head, %zu", r->rotary_keys, c->kv_heads);
        r->layout = MLA_LAYOUT_ABSORBED;
        r->rotary_width = r->rotary_keys * c->rope.rot;
        r->rotary_keys = 0;
    }
    if (r->layout != MLA_LAYOUT_SHARED && r->rotary_keys)
        return mla_fail(err, MLA_EINVAL, "rotary_keys %zu: the choice belongs to layouts n and shared-rotary, not to %s", r->rotary_keys,
                        mla_layout_name(r->layout));
    if (r->groups == 0 || c->kv_heads % r->groups)
        return mla_fail(err, MLA_EINVAL, "groups %zu: must divide the model's %zu KV heads", r->groups, c->kv_heads);
    st = resolve_slots(r, c, err);
    if (st != MLA_OK) return st;
    if (r->objective != MLA_OBJ_OURS && (r->balance_scan || (r->balance != 0 && r->balance != 1)))
        return mla_fail(err, MLA_EINVAL, "balance %g: objective %s has its own; balance belongs to objective ours", r->balance,
                        mla_objective_name(r->objective));
    if (r->objective != MLA_OBJ_OURS && r->allocation == MLA_ALLOC_AUTO) mla_recipe_fast(r); /* published methods as published */
    if (r->objective != MLA_OBJ_OURS && r->allocation != MLA_ALLOC_UNIFORM)
        return mla_fail(err, MLA_EINVAL, "allocation %s: objective %s is a published method with one rank for all layers", ALLOC[r->allocation],
                        mla_objective_name(r->objective));
    if (r->objective != MLA_OBJ_OURS && r->layout == MLA_LAYOUT_P)
        return mla_fail(err, MLA_EINVAL, "layout p: objective %s is a published method and knows no divisors", mla_objective_name(r->objective));
    if (r->objective != MLA_OBJ_OURS) r->balance = 1;
    if (r->layout == MLA_LAYOUT_P && r->allocation == MLA_ALLOC_AUTO) r->allocation = MLA_ALLOC_UNIFORM;
    if (r->sequential && r->layout != MLA_LAYOUT_N && r->layout != MLA_LAYOUT_REBUILD)
        return mla_fail(err, MLA_EINVAL, "sequential: for layouts n and rebuild, whose encoder takes a correction of its input; not for %s", mla_layout_name(r->layout));
    if (r->sequential && r->objective != MLA_OBJ_OURS) return mla_fail(err, MLA_EINVAL, "sequential: not for objective %s", mla_objective_name(r->objective));
    if (r->row_tokens < 32 || r->row_tokens > c->max_pos)
        return mla_fail(err, MLA_EINVAL, "row_tokens %zu: between 32 and the model's %zu positions", r->row_tokens, c->max_pos);
    return mla_recipe_settle(r, c, err);
}

mla_status mla_recipe_settle(mla_recipe *r, const mla_config *c, mla_err *err)
{
    if (r->balance == 0) r->balance = mla_recipe_balance(r->layout);
    if (r->layout == MLA_LAYOUT_SHARED) return MLA_OK; /* one rank, none of a set */
    if (r->layout == MLA_LAYOUT_P && !r->rank_set.n) return mla_rank_set_default(&r->rank_set, c, r->layout, r->groups, err);
    return mla_rank_set_check(&r->rank_set, c, r->layout, r->groups, err);
}

mla_status mla_recipe_rank(size_t *out, const mla_recipe *r, const mla_config *c, mla_err *err)
{
    size_t rank;
    mla_status st = mla_rank_uniform(&rank, c, r->layout, r->groups, r->budget, err);
    if (st != MLA_OK) return st;
    if (r->allocation == MLA_ALLOC_UNIFORM) return mla_rank_in_set(out, &r->rank_set, rank, err);
    *out = rank;
    return r->rank_set.n && rank < r->rank_set.rank[0] ? mla_rank_in_set(out, &r->rank_set, rank, err) : MLA_OK;
}

void mla_recipe_to_json(const mla_recipe *r, mla_jv *o)
{
    mla_jv_set_str(o, "schema", MLA_RECIPE_SCHEMA);
    mla_jv_set_str(o, "layout", r->layout == MLA_LAYOUT_NONE ? "auto" : mla_layout_name(r->layout));
    mla_jv_set_size(o, "groups", r->groups);
    mla_jv *b = mla_jv_set_obj(o, "budget");
    if (r->budget.keep > 0) mla_jv_set_f64(b, "keep", r->budget.keep);
    if (r->budget.rank) mla_jv_set_size(b, "rank", r->budget.rank);
    if (r->budget.kv_bytes) mla_jv_set_size(b, "kv_bytes", r->budget.kv_bytes);
    mla_jv *c = mla_jv_set_obj(o, "calibration");
    mla_jv_set_size(c, "tokens", r->calibration_tokens);
    mla_jv_set_size(c, "row_tokens", r->row_tokens);
    mla_jv_set_str(o, "objective", mla_objective_name(r->objective));
    if (r->balance_scan) mla_jv_set_str(o, "balance", "scan");
    else mla_jv_set_f64(o, "balance", r->balance);
    if (r->rotary_width) mla_jv_set_size(o, "rotary_width", r->rotary_width);
    if (r->freq_fold > 1) mla_jv_set_size(o, "freq_fold", r->freq_fold);
    mla_jv_set_str(o, "factors_dtype", FACTORS[r->factors_dtype]);
    mla_jv_set_str(o, "allocation", ALLOC[r->allocation]);
    mla_jv *set = r->rank_set.n ? mla_jv_set_arr(o, "rank_set") : NULL;
    for (size_t i = 0; i < r->rank_set.n; i++) mla_jv_add_size(set, r->rank_set.rank[i]);
    if (r->old_names) mla_jv_set_str(o, "names", "mvla");
    if (r->allocation == MLA_ALLOC_PROBE) mla_jv_set_size(o, "allocation_rounds", r->allocation_rounds);
    if (r->sequential) mla_jv_set_bool(o, "sequential", true);
    mla_jv *f = mla_jv_set_obj(o, "refinement");
    mla_jv_set_size(f, "steps", r->refine_steps);
    if ((r->refine_steps || r->sequential) && r->layout != MLA_LAYOUT_SHARED) mla_jv_set_size(f, "tokens", r->refine_tokens); /* shared-rotary: all of them */
    if (r->layout == MLA_LAYOUT_SHARED) mla_jv_set_size(o, "rotary_keys", r->rotary_keys);
}
