/* RoPE settings in both spellings: rope_parameters, or rope_theta with rope_scaling, into one resolved form. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "model/config_parts.h"

static const struct {
    const char *name;
    mla_rope_kind kind;
} KIND[] = {
    {"default", MLA_ROPE_DEFAULT}, {"mrope", MLA_ROPE_DEFAULT}, {"linear", MLA_ROPE_LINEAR},
    {"dynamic", MLA_ROPE_DYNAMIC}, {"llama3", MLA_ROPE_LLAMA3}, {"yarn", MLA_ROPE_YARN},
    {"longrope", MLA_ROPE_LONGROPE}, {"su", MLA_ROPE_LONGROPE},
};

/* A number that may stand in the rope object and beside it; both must say the same. */
static double either(mla_rd *rope, mla_rd *text, const char *key, double lo, double hi, double def)
{
    double a = mla_rd_f64(rope, key, lo, hi, -1), b = mla_rd_f64(text, key, lo, hi, -1);
    if (a >= 0 && b >= 0 && a != b && *text->st == MLA_OK)
        mla_rd_fail(text, MLA_EFORMAT, key, "%.15g, but %s%s is %.15g", b, rope->where, key, a);
    return a >= 0 ? a : b >= 0 ? b : def;
}

static const char *type_of(mla_rd *rope) { return mla_rd_str(rope, "rope_type", mla_rd_str(rope, "type", "default")); }

static void read_kind(mla_rd *rope, mla_rope_config *r)
{
    const char *name = type_of(rope);
    char q[96];
    for (size_t i = 0; i < sizeof KIND / sizeof *KIND; i++)
        if (!strcmp(name, KIND[i].name)) {
            r->kind = KIND[i].kind;
            return;
        }
    mla_rd_fail(rope, MLA_EUNSUPPORTED, "rope_type", "\"%s\" is not supported (default, mrope, linear, dynamic, llama3, yarn, longrope)",
                mla_printable(name, q, sizeof q));
}

/* Three section sizes; interleaved sections must find their places (H at 1, 4, ..., W at 2, 5, ...). */
static void read_mrope(mla_rd *rope, mla_rope_config *r, bool vision)
{
    double s[3];
    size_t n = r->rot / 2;
    r->mrope_interleaved = mla_rd_bool(rope, "mrope_interleaved", true);
    if (mla_rd_get(rope, "mrope_section")) {
        if (!mla_rd_f64s(rope, "mrope_section", s, 3, 0, 65536)) return;
    } else if (vision && n == 32) {
        s[0] = s[1] = 11, s[2] = 10; /* the family's default */
    } else {
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        r->mrope_section[i] = (size_t)s[i];
        if ((double)r->mrope_section[i] != s[i]) mla_rd_fail(rope, MLA_EFORMAT, "mrope_section", "expected integers, found %g", s[i]);
    }
    size_t sum = r->mrope_section[0] + r->mrope_section[1] + r->mrope_section[2];
    if (sum != n)
        mla_rd_fail(rope, MLA_EFORMAT, "mrope_section", "[%zu, %zu, %zu] sums to %zu, but %zu of the head's dims rotate, so %zu is expected",
                    r->mrope_section[0], r->mrope_section[1], r->mrope_section[2], sum, r->rot, n);
    for (size_t i = 1; i < 3 && r->mrope_interleaved; i++)
        if (r->mrope_section[i] && 3 * (r->mrope_section[i] - 1) + i >= n)
            mla_rd_fail(rope, MLA_EFORMAT, "mrope_section", "entry %zu = %zu does not fit interleaved into %zu frequencies", i,
                        r->mrope_section[i], n);
}

static void read_yarn(mla_rd *rope, mla_rope_config *r, size_t max_pos)
{
    double bf = mla_rd_f64(rope, "beta_fast", 0, 1e6, 0), bs = mla_rd_f64(rope, "beta_slow", 0, 1e6, 0);
    r->beta_fast = bf > 0 ? bf : 32;
    r->beta_slow = bs > 0 ? bs : 1;
    r->truncate = mla_rd_bool(rope, "truncate", true);
    if (r->factor <= 0) r->factor = (double)max_pos / (double)r->original_max;
    double m = mla_rd_f64(rope, "mscale", 0, 1e3, 0), all = mla_rd_f64(rope, "mscale_all_dim", 0, 1e3, 0);
    r->mscale_all_dim = all;
    double given = mla_rd_f64(rope, "attention_factor", 0, 1e3, 0);
    if (given > 0) r->attention_factor = given;
    else if (m > 0 && all > 0) r->attention_factor = mla_yarn_mscale(r->factor, m) / mla_yarn_mscale(r->factor, all);
    else r->attention_factor = mla_yarn_mscale(r->factor, 1);
}

static void read_longrope(mla_rd *rope, mla_rope_config *r, size_t max_pos, double *factors)
{
    size_t n = r->rot / 2;
    if (!mla_rd_f64s(rope, "short_factor", factors, n, 1e-6, 1e6) || !mla_rd_f64s(rope, "long_factor", factors + n, n, 1e-6, 1e6)) {
        mla_rd_fail(rope, MLA_EFORMAT, "short_factor", "longrope needs short_factor and long_factor");
        return;
    }
    if (r->factor <= 0) r->factor = (double)max_pos / (double)r->original_max;
    double given = mla_rd_f64(rope, "attention_factor", 0, 1e3, 0);
    r->attention_factor = given > 0                               ? given
                          : r->factor <= 1 || r->original_max < 2 ? 1
                          : sqrt(1 + log(r->factor) / log((double)r->original_max));
}

static void read_scaling(mla_rd *rope, mla_rd *text, mla_config *c, double *factors)
{
    mla_rope_config *r = &c->rope;
    bool derived = r->kind == MLA_ROPE_YARN || r->kind == MLA_ROPE_LONGROPE; /* factor may follow from the lengths */
    r->original_max = c->max_pos;
    if (r->kind == MLA_ROPE_LLAMA3 || derived) {
        size_t in = mla_rd_size(rope, "original_max_position_embeddings", 1, MLA_MAX_POS, c->max_pos);
        r->original_max = mla_rd_size(text, "original_max_position_embeddings", 1, MLA_MAX_POS, in);
    }
    if (r->kind == MLA_ROPE_DEFAULT) return;
    r->factor = mla_rd_f64(rope, "factor", 1, 1e6, derived ? 0 : NAN);
    if (r->kind == MLA_ROPE_LLAMA3) {
        r->low_freq = mla_rd_f64(rope, "low_freq_factor", 1e-6, 1e6, NAN);
        r->high_freq = mla_rd_f64(rope, "high_freq_factor", 1e-6, 1e6, NAN);
        if (*rope->st == MLA_OK && !(r->high_freq > r->low_freq))
            mla_rd_fail(rope, MLA_EFORMAT, "high_freq_factor", "%g is not above low_freq_factor %g", r->high_freq, r->low_freq);
    }
    if (*rope->st != MLA_OK) return;
    if (r->kind == MLA_ROPE_YARN) read_yarn(rope, r, c->max_pos);
    if (r->kind == MLA_ROPE_LONGROPE) read_longrope(rope, r, c->max_pos, factors);
}

static void read_width(mla_rd *rope, mla_rd *text, mla_config *c, const mla_arch_group *g)
{
    mla_rope_config *r = &c->rope;
    double partial = either(rope, text, "partial_rotary_factor", 0, 1, g->partial);
    r->rot = c->family == MLA_FAM_DEEPSEEK ? c->qk_rope_dim : (size_t)((double)c->head_dim * partial);
    bool choice = c->family == MLA_FAM_DEEPSEEK && strcmp(g->name, "deepseek_v2"); /* v2 has no key: always pairs */
    r->interleaved_pairs = choice ? mla_rd_bool(text, "rope_interleave", true) : c->family == MLA_FAM_DEEPSEEK;
    if (r->rot < 2 || r->rot % 2)
        mla_rd_fail(text, MLA_EFORMAT, c->family == MLA_FAM_DEEPSEEK ? "qk_rope_head_dim" : "partial_rotary_factor",
                    "%zu of %zu head dims rotate: expected an even number of at least 2", r->rot, c->head_dim);
}

void mla_config_read_rope(mla_rd *text, mla_config *c, const mla_arch_group *g)
{
    const mla_jv *params = mla_rd_obj(text, "rope_parameters"), *scaling = mla_rd_obj(text, "rope_scaling");
    char where[64];
    mla_rd rope = *text;
    strcpy(where, text->where);
    strcat(where, scaling ? "rope_scaling." : "rope_parameters.");
    rope.obj = scaling ? scaling : params;
    rope.where = where;
    if (mla_jv_is_obj(mla_jv_get(params, "full_attention")) || mla_jv_is_obj(mla_jv_get(params, "sliding_attention"))) {
        mla_rd_fail(text, MLA_EUNSUPPORTED, "rope_parameters", "settings per layer type are not supported");
        return;
    }
    if (params && scaling) { /* two spellings in one file: they must name the same kind */
        mla_rd other = rope;
        other.obj = params;
        const char *a = type_of(&rope), *b = type_of(&other);
        if (*text->st == MLA_OK && strcmp(a, b)) mla_rd_fail(text, MLA_EFORMAT, "rope_scaling", "disagrees with rope_parameters on the rope type");
    }
    mla_rope_config *r = &c->rope;
    r->attention_factor = r->factor = 1;
    double theta_params = -1;
    if (params && scaling) {
        mla_rd p = rope;
        p.obj = params;
        theta_params = mla_rd_f64(&p, "rope_theta", 1e-3, 1e12, -1);
    }
    r->theta = either(&rope, text, "rope_theta", 1e-3, 1e12, theta_params > 0 ? theta_params : 10000);
    read_kind(&rope, r);
    read_width(&rope, text, c, g);
    if (*text->st != MLA_OK) return;
    if (r->theta <= 1) mla_rd_fail(&rope, MLA_EFORMAT, "rope_theta", "expected more than 1, found %g", r->theta);
    double *factors = mla_alloc(r->rot, 1, sizeof *factors); /* short (rot/2), long (rot/2) */
    if (!factors) {
        *text->st = mla_fail(text->err, MLA_ENOMEM, "config: rope factors");
        return;
    }
    read_scaling(&rope, text, c, factors);
    if (c->family == MLA_FAM_QWEN3_5) read_mrope(&rope, r, c->has_vision);
    bool both = r->kind == MLA_ROPE_LONGROPE;
    if (*text->st == MLA_OK) *text->st = mla_rope_resolve(r, both ? factors : NULL, both ? factors + r->rot / 2 : NULL, text->err);
    mla_free(factors);
}
