/* Cache and state sizes of a model; what fits on a GPU. */
#include "verify/folder/capacity.h"

#include <math.h>
#include <string.h>

uint64_t mla_slot_limit(size_t row) { return ((uint64_t)1 << 31) / row; }

typedef struct { /* what a layer caches per token */
    size_t width[MLA_KV_PARTS];
    bool latent;
} cached;

static cached base_row(const mla_config *c)
{
    if (c->family == MLA_FAM_DEEPSEEK) return (cached){{c->kv_lora_rank, c->qk_rope_dim, 0}, true};
    return (cached){{c->kv_heads * c->head_dim, c->kv_heads * c->head_dim, 0}, false};
}

static size_t values_of(cached r) { return r.width[MLA_KV_FIRST] + r.width[MLA_KV_SECOND] + r.width[MLA_KV_DIVISORS]; }
static double base_values(const mla_config *c) { return (double)values_of(base_row(c)); }
static double row_bytes(mla_kv_type t, cached r) { return (double)mla_kv_row_of(t, r.width, r.latent).bytes; }

/* The what-if's latent width per layer, 0 when the model is taken as it is. */
static mla_status what_if_rank(const mla_capacity_model *m, size_t *rank, size_t *rotary, mla_err *err)
{
    const mla_config *c = m->cfg;
    bool partial = c->rope.rot < c->head_dim;
    size_t d_key = partial ? c->head_dim - c->rope.rot : c->head_dim, n = c->kv_heads * (d_key + c->head_dim);
    *rank = m->rank;
    *rotary = partial ? c->kv_heads * c->rope.rot : 0;
    if (!m->rank && !(m->keep > 0)) return MLA_OK;
    if (c->mla.layout != MLA_LAYOUT_NONE || c->family == MLA_FAM_DEEPSEEK)
        return mla_fail(err, MLA_EINVAL, "a what-if rank is asked of a model that caches a latent already");
    if (!m->rank) {
        double r = floor(m->keep * base_values(c) - (double)*rotary + 1e-9);
        if (!(r >= 1)) return mla_fail(err, MLA_EINVAL, "keep %g leaves no latent: %zu of %g values are rotary keys", m->keep, *rotary, base_values(c));
        *rank = (size_t)r;
    }
    if (*rank > n) return mla_fail(err, MLA_EINVAL, "rank %zu: expected at most %zu (features of a layer)", *rank, n);
    return MLA_OK;
}

/* Factors of one what-if layer in bf16: E and D (r x n each), mean (n). */
static double factor_bytes(const mla_config *c, size_t rank)
{
    size_t d_key = c->rope.rot < c->head_dim ? c->head_dim - c->rope.rot : c->head_dim;
    double n = (double)(c->kv_heads * (d_key + c->head_dim));
    return 2 * (2 * (double)rank * n + n);
}

static void size_caches(mla_capacity *o, const mla_capacity_model *m, size_t rank, size_t rotary)
{
    const mla_config *c = m->cfg;
    size_t full = 0;
    for (size_t l = 0; l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        cached r = base_row(c);
        if (rank) {
            r = (cached){{rank, rotary, 0}, true};
            o->weight_bytes += factor_bytes(c, rank);
        } else if (c->mla.layout != MLA_LAYOUT_NONE) {
            r = (cached){{c->mla.rank[l], mla_config_rotary_values(c, l), mla_layout_divisors(c, c->mla.layout)}, true};
        }
        size_t row = r.latent ? values_of(r) : r.width[MLA_KV_FIRST];
        o->kv_bytes_per_token += row_bytes(m->kv, r);
        if (row > o->row_values) o->row_values = row;
        full++;
    }
    if (m->mtp) o->kv_bytes_per_token += (double)c->mtp_layers * row_bytes(m->kv, base_row(c));
    double linear = (double)(c->layers - full);
    double conv = (double)(2 * c->lin_k_heads * c->lin_k_dim + c->lin_v_heads * c->lin_v_dim) * (c->lin_conv ? (double)(c->lin_conv - 1) : 0);
    o->state_bytes_per_sequence = linear * 4 * ((double)c->lin_v_heads * (double)c->lin_k_dim * (double)c->lin_v_dim + conv);
}

mla_status mla_capacity_of(mla_capacity *out, const mla_capacity_model *m, const mla_capacity_machine *g, mla_err *err)
{
    mla_capacity o = {.weight_bytes = m->weight_bytes, .layout = m->cfg->mla.layout};
    size_t rank, rotary;
    if (!(g->gpu_bytes > 0) || !(g->utilisation > 0 && g->utilisation <= 1) || !(g->reserve >= 0) || g->context == 0)
        return mla_fail(err, MLA_EINVAL, "GPU of %g bytes at utilisation %g, reserve %g, context %zu", g->gpu_bytes, g->utilisation, g->reserve, g->context);
    if (what_if_rank(m, &rank, &rotary, err) != MLA_OK) return err->status;
    if (rank) o.layout = rotary ? MLA_LAYOUT_N : MLA_LAYOUT_REBUILD;
    size_caches(&o, m, rank, rotary);
    double left = g->gpu_bytes * g->utilisation - g->reserve - o.weight_bytes;
    o.fits = left > 0;
    o.budget = left > 0 ? left : 0;
    o.kv_bytes_per_sequence = o.kv_bytes_per_token * (double)g->context;
    double per_sequence = o.kv_bytes_per_sequence + o.state_bytes_per_sequence;
    o.sequences = per_sequence > 0 ? o.budget / per_sequence : 0;
    double for_one = o.budget - o.state_bytes_per_sequence;
    o.tokens = for_one > 0 && o.kv_bytes_per_token > 0 ? floor(for_one / o.kv_bytes_per_token) : 0;
    o.cached_tokens = o.sequences * (double)g->context;
    o.slot_limit = o.row_values ? mla_slot_limit(o.row_values) : 0;
    o.slot_exceeded = o.row_values && o.cached_tokens > (double)o.slot_limit;
    *out = o;
    return MLA_OK;
}

double mla_weight_bits(const char *kind)
{
    static const struct {
        const char *kind;
        double bits;
    } T[] = {{"bf16", 16}, {"fp8", 9.07}, {"int4", 6.75}, {"exl3", 5.36}};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++)
        if (!strcmp(T[i].kind, kind)) return T[i].bits;
    return 0;
}

/* ---- parameters from the configuration ---- */
static double vision_params(const mla_jv *v)
{
    static const char *const KEY[] = {"depth", "hidden_size", "intermediate_size", "in_channels", "patch_size", "temporal_patch_size",
                                      "spatial_merge_size", "out_hidden_size", "num_position_embeddings"};
    double k[9] = {0};
    for (size_t i = 0; i < 9; i++)
        if (!mla_jv_f64(mla_jv_get(v, KEY[i]), &k[i])) return 0;
    double h = k[1], f = k[2], merged = h * k[6] * k[6];
    double block = 4 * h + 3 * h * h + 3 * h + h * h + h + 2 * h * f + f + h;
    return h * k[3] * k[4] * k[4] * k[5] + h + k[8] * h + k[0] * block + 2 * h + merged * merged + merged + k[7] * merged + k[7];
}

static double attention_params(const mla_config *c)
{
    double H = (double)c->hidden, q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    if (c->family == MLA_FAM_DEEPSEEK) {
        double nh = (double)c->heads, dq = (double)(c->qk_nope_dim + c->qk_rope_dim), r = (double)c->kv_lora_rank;
        double up = nh * (double)(c->qk_nope_dim + c->v_head_dim), lora = (double)c->q_lora_rank;
        double query = c->q_lora_rank ? lora * H + lora + nh * dq * lora : nh * dq * H;
        return query + (r + (double)c->qk_rope_dim) * H + r + up * r + H * nh * (double)c->v_head_dim;
    }
    double n = q * H * (c->attn_gate ? 2 : 1) + 2 * kv * H + H * q;
    if (c->qk_norm) n += 2 * (double)c->head_dim;
    if (c->q_bias) n += q;
    if (c->kv_bias) n += 2 * kv;
    if (c->o_bias) n += H;
    return n;
}

static double linear_params(const mla_config *c)
{
    double H = (double)c->hidden, k = (double)(c->lin_k_heads * c->lin_k_dim), v = (double)(c->lin_v_heads * c->lin_v_dim), nv = (double)c->lin_v_heads;
    return (2 * k + v) * H + v * H + 2 * nv * H + (2 * k + v) * (double)c->lin_conv + 2 * nv + (double)c->lin_v_dim + H * v;
}

mla_status mla_param_count(double *out, const mla_config *c, const mla_jv *config_json, mla_err *err)
{
    if (c->experts) return mla_fail(err, MLA_EUNSUPPORTED, "the parameters of a mixture of experts are not counted from its configuration");
    double H = (double)c->hidden, mlp = 3 * H * (double)c->intermediate + (c->mlp_bias ? 2 * (double)c->intermediate + H : 0), n = 0;
    n += (double)c->vocab * H * (c->tied ? 1 : 2) + H;
    for (size_t l = 0; l < c->layers; l++) n += (c->layer_kind[l] == MLA_LAYER_FULL ? attention_params(c) : linear_params(c)) + mlp + 2 * H;
    n += (double)c->mtp_layers * (2 * H * H + 3 * H + attention_params(c) + mlp + 2 * H);
    if (c->mtp_layers && c->mtp_own_embeddings) n += (double)c->vocab * H;
    *out = n + vision_params(mla_jv_get(config_json, "vision_config"));
    return MLA_OK;
}
