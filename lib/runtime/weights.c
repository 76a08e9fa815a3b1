/* A layer's weights, read from the model into the device and dropped again. Resident mode loads every layer once;
 * streaming mode calls the same functions around each layer's work. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/rt.h"

const char *rt_layer_text(const rt_layer *l, char *buf)
{
    if (l->index >= MLA_MTP(0)) snprintf(buf, 32, "MTP layer %zu", l->index - MLA_MTP(0));
    else snprintf(buf, 32, "layer %zu", l->index);
    return buf;
}

mla_status rt_layer_find(mla_rt *rt, size_t index, rt_layer **out, mla_err *err)
{
    size_t at = index >= MLA_MTP(0) ? rt->n_trunk + (index - MLA_MTP(0)) : index;
    if ((index < MLA_MTP(0) && index >= rt->n_trunk) || at >= rt->n_layer)
        return mla_fail(err, MLA_EINVAL, "layer %zu: the runtime has %zu layers and %zu MTP layers", index, rt->n_trunk,
                        rt->n_layer - rt->n_trunk);
    *out = &rt->layer[at];
    return MLA_OK;
}

/* Stored DeepSeek attention: one latent and one rotary key for all heads, heads with their own rows of kv_b. */
static void ds_dims(const mla_config *c, rt_layer *l)
{
    l->kind = RT_LATENT_DS;
    l->dim = (rt_dims){.H = c->heads, .G = c->heads, .d = c->qk_nope_dim + c->qk_rope_dim, .dv = c->v_head_dim,
                       .rot = c->qk_rope_dim, .q_rot = c->qk_nope_dim, .q_nope = 0, .dn = c->qk_nope_dim,
                       .groups = 1, .r = c->kv_lora_rank, .G2 = 1, .qd = c->qk_nope_dim + c->qk_rope_dim, .kh = c->heads,
                       .kr = c->qk_rope_dim};
}

mla_status rt_layer_dims(const mla_rt *rt, rt_layer *l, mla_err *err)
{
    const mla_config *c = rt->cfg;
    bool mtp = l->index >= MLA_MTP(0);
    if (!mtp && c->layer_kind[l->index] == MLA_LAYER_LINEAR) {
        l->kind = RT_GDN;
        memset(l->width, 0, sizeof l->width);
        return MLA_OK;
    }
    const mla_factors *f = &l->f;
    if (c->family == MLA_FAM_DEEPSEEK) {
        ds_dims(c, l);
    } else if (l->sh.r) { /* every query head has its own rows of the decoder */
        l->kind = RT_LATENT_SHARED;
        l->dim = (rt_dims){.H = c->heads, .G = c->heads, .d = c->head_dim, .dv = c->head_dim, .rot = l->sh.R * l->sh.rot, .dn = c->head_dim,
                           .groups = 1, .r = l->sh.r, .G2 = 1, .qd = c->head_dim, .kh = c->heads, .kr = l->sh.R * l->sh.rot};
    } else {
        static const rt_kind KIND[MLA_LAYOUTS] = {[MLA_LAYOUT_NONE] = RT_GQA, [MLA_LAYOUT_N] = RT_LATENT_N, [MLA_LAYOUT_REBUILD] = RT_LATENT_REBUILD,
                                                  [MLA_LAYOUT_P] = RT_LATENT_P, [MLA_LAYOUT_ABSORBED] = RT_LATENT_ABSORBED};
        l->kind = KIND[f->layout];
        l->dim = (rt_dims){.H = c->heads, .G = c->kv_heads, .d = c->head_dim, .dv = c->head_dim, .rot = c->rope.rot,
                           .q_rot = 0, .q_nope = c->rope.rot, .groups = f->groups, .r = f->r, .n = f->n};
        bool absorbed = l->kind == RT_LATENT_ABSORBED;
        bool beside = l->kind == RT_LATENT_N || l->kind == RT_LATENT_P; /* rotary keys beside the latent */
        l->dim.dn = beside ? c->head_dim - c->rope.rot : c->head_dim;
        l->dim.G2 = beside ? c->kv_heads : absorbed;
        l->dim.kr = absorbed ? f->w : c->rope.rot;
        l->dim.qd = c->head_dim + (absorbed ? f->w : 0);
        l->dim.kh = absorbed ? c->heads : c->kv_heads;
        if (absorbed) l->dim.q_nope = 0, l->dim.q_rot = c->head_dim; /* of the query that attention takes */
        l->dim.divs = mla_layout_divisors(c, f->layout);
    }
    rt_dims *m = &l->dim;
    m->scale = (float)mla_config_attn_scale(c);
    bool gqa = l->kind == RT_GQA;
    l->width[MLA_KV_FIRST] = gqa ? m->G * m->d : m->groups * m->r;
    l->width[MLA_KV_SECOND] = gqa ? m->G * m->d : m->G2 * m->kr;
    l->width[MLA_KV_DIVISORS] = m->divs;
    if (m->G == 0 || m->H % m->G || (l->kind != RT_GQA && (m->groups == 0 || m->G % m->groups || m->r == 0)))
        return mla_fail(err, MLA_EINVAL, "layer %zu: %zu query heads, %zu KV heads, %zu groups, rank %zu do not fit together",
                        l->index, m->H, m->G, m->groups, m->r);
    return MLA_OK;
}

/* An optional bias vector of the linear layer l. */
static mla_status bias(mla_rt *rt, rt_lin *l, mla_wkind k, size_t layer, mla_err *err)
{
    return mla_model_has(rt->model, k, layer) ? rt_vec(rt, &l->bias, k, layer, l->out, err) : MLA_OK;
}

mla_status rt_attn_kv_load(mla_rt *rt, rt_layer *l, mla_err *err)
{
    size_t i = l->index;
    if (l->k.w && l->v.w) return MLA_OK;
    RT_TRY(rt_lin_model(rt, &l->k, MLA_W_K, i, err));
    RT_TRY(rt_lin_model(rt, &l->v, MLA_W_V, i, err));
    RT_TRY(bias(rt, &l->k, MLA_W_K_BIAS, i, err));
    RT_TRY(bias(rt, &l->v, MLA_W_V_BIAS, i, err));
    return rt->cfg->qk_norm ? rt_vec(rt, &l->k_norm, MLA_W_K_NORM, i, l->dim.d, err) : MLA_OK;
}

static mla_status load_attn(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const rt_dims *m = &l->dim;
    size_t i = l->index;
    RT_TRY(rt_lin_model(rt, &l->q, MLA_W_Q, i, err));
    RT_TRY(rt_lin_model(rt, &l->o, MLA_W_O, i, err));
    RT_TRY(bias(rt, &l->q, MLA_W_Q_BIAS, i, err));
    RT_TRY(bias(rt, &l->o, MLA_W_O_BIAS, i, err));
    if (rt->cfg->qk_norm) RT_TRY(rt_vec(rt, &l->q_norm, MLA_W_Q_NORM, i, m->d, err));
    if (l->kind == RT_LATENT_SHARED) return rt_shared_load(rt, l, err); /* no keys and values of the base */
    RT_TRY(rt_attn_kv_load(rt, l, err));
    return l->f.layout == MLA_LAYOUT_NONE ? MLA_OK : rt_latent_load(rt, l, err);
}

static mla_status load_gdn(mla_rt *rt, rt_layer *l, mla_err *err)
{
    const mla_config *c = rt->cfg;
    size_t i = l->index, C = 2 * c->lin_k_heads * c->lin_k_dim + c->lin_v_heads * c->lin_v_dim;
    RT_TRY(rt_lin_model(rt, &l->gdn_qkv, MLA_W_GDN_QKV, i, err));
    RT_TRY(rt_lin_model(rt, &l->gdn_z, MLA_W_GDN_Z, i, err));
    RT_TRY(rt_lin_model(rt, &l->gdn_b, MLA_W_GDN_B, i, err));
    RT_TRY(rt_lin_model(rt, &l->gdn_a, MLA_W_GDN_A, i, err));
    RT_TRY(rt_lin_model(rt, &l->gdn_out, MLA_W_GDN_OUT, i, err));
    RT_TRY(rt_vec(rt, &l->a_log, MLA_W_GDN_A_LOG, i, c->lin_v_heads, err));
    RT_TRY(rt_vec(rt, &l->dt_bias, MLA_W_GDN_DT_BIAS, i, c->lin_v_heads, err));
    RT_TRY(rt_vec(rt, &l->gdn_norm, MLA_W_GDN_NORM, i, c->lin_v_dim, err));
    mla_mat m;
    RT_TRY(mla_model_mat(rt->model, MLA_W_GDN_CONV, i, &m, err));
    if (m.out != C || m.in != c->lin_conv)
        return mla_fail(err, MLA_EFORMAT, "layer %zu: convolution is (%zu, %zu), expected (%zu, %zu)", i, m.out, m.in, C, c->lin_conv);
    float *w = mla_alloc_raw(C, c->lin_conv, sizeof *w);
    if (!w) return mla_fail(err, MLA_ENOMEM, "layer %zu: convolution", i);
    mla_status st = mla_mat_rows(&m, 0, C, w, err);
    if (st == MLA_OK) st = rt_upload(rt, &l->conv_w, w, C * c->lin_conv, err);
    mla_free(w);
    return st;
}

static mla_status load_mlp(mla_rt *rt, rt_layer *l, mla_err *err)
{
    size_t i = l->index;
    RT_TRY(rt_lin_model(rt, &l->gate, MLA_W_GATE, i, err));
    RT_TRY(rt_lin_model(rt, &l->up, MLA_W_UP, i, err));
    RT_TRY(rt_lin_model(rt, &l->down, MLA_W_DOWN, i, err));
    RT_TRY(bias(rt, &l->gate, MLA_W_GATE_BIAS, i, err));
    RT_TRY(bias(rt, &l->up, MLA_W_UP_BIAS, i, err));
    return bias(rt, &l->down, MLA_W_DOWN_BIAS, i, err);
}

mla_status rt_layer_load(mla_rt *rt, rt_layer *l, mla_err *err)
{
    char text[32];
    if (l->loaded) return MLA_OK;
    l->loaded = true; /* a partly loaded layer is dropped like a whole one */
    mla_status st = rt_vec(rt, &l->in_norm, MLA_W_INPUT_NORM, l->index, rt->cfg->hidden, err);
    if (st == MLA_OK) st = rt_vec(rt, &l->post_norm, MLA_W_POST_NORM, l->index, rt->cfg->hidden, err);
    if (st == MLA_OK) st = l->kind == RT_GDN ? load_gdn(rt, l, err) : l->kind == RT_LATENT_DS ? rt_ds_load(rt, l, err) : load_attn(rt, l, err);
    if (st == MLA_OK) st = load_mlp(rt, l, err);
    if (st == MLA_OK) return MLA_OK;
    rt_layer_drop(rt, l);
    return mla_wrap(err, "%s", rt_layer_text(l, text));
}

void rt_layer_want(mla_rt *rt, const rt_layer *l)
{
    mla_mat m;
    mla_err none;
    for (int k = 0; k < MLA_W_N; k++)
        if (mla_model_has(rt->model, (mla_wkind)k, l->index) && mla_model_mat(rt->model, (mla_wkind)k, l->index, &m, &none) == MLA_OK) mla_mat_want(&m);
}

void rt_layer_drop(mla_rt *rt, rt_layer *l)
{
    rt_buf *vec[] = {&l->in_norm, &l->post_norm, &l->q_norm, &l->k_norm, &l->conv_w, &l->a_log, &l->dt_bias, &l->gdn_norm,
                     &l->ds_q_a_norm, &l->ds_kv_a_norm};
    rt_lin *lin[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->gdn_qkv, &l->gdn_z, &l->gdn_b, &l->gdn_a,
                     &l->gdn_out, &l->ds_q_a, &l->ds_kv_a};
    for (size_t i = 0; i < sizeof vec / sizeof *vec; i++) rt_buf_free(rt, vec[i]);
    for (size_t i = 0; i < sizeof lin / sizeof *lin; i++) rt_lin_free(rt, lin[i]);
    rt_latent_drop(rt, l);
    l->loaded = false;
}

mla_status rt_embed_load(mla_rt *rt, mla_err *err)
{
    return rt->embed.w ? MLA_OK : rt_lin_model(rt, &rt->embed, MLA_W_EMBED, 0, err);
}

void rt_embed_drop(mla_rt *rt)
{
    if (!rt->head.borrowed) rt_lin_free(rt, &rt->embed);
}

/* A tied head is the embedding's own weight. */
mla_status rt_head_load(mla_rt *rt, mla_err *err)
{
    if (!rt->final_norm.p) RT_TRY(rt_vec(rt, &rt->final_norm, MLA_W_FINAL_NORM, 0, rt->cfg->hidden, err));
    if (rt->head.w) return MLA_OK;
    if (!rt->cfg->tied) return rt_lin_model(rt, &rt->head, MLA_W_LM_HEAD, 0, err);
    RT_TRY(rt_embed_load(rt, err));
    rt->head = rt->embed;
    rt->head.borrowed = true;
    return MLA_OK;
}

void rt_head_drop(mla_rt *rt)
{
    bool tied = rt->head.borrowed;
    rt_buf_free(rt, &rt->final_norm);
    rt_lin_free(rt, &rt->head);
    if (tied) rt_lin_free(rt, &rt->embed);
}

mla_status rt_mtp_load(mla_rt *rt, mla_err *err)
{
    if (rt->mtp_fc.w) return MLA_OK;
    size_t D = rt->cfg->hidden;
    mla_status st = rt_lin_model(rt, &rt->mtp_fc, MLA_W_MTP_FC, MLA_MTP(0), err);
    if (st == MLA_OK) st = rt_vec(rt, &rt->mtp_embed_norm, MLA_W_MTP_EMBED_NORM, MLA_MTP(0), D, err);
    if (st == MLA_OK) st = rt_vec(rt, &rt->mtp_hidden_norm, MLA_W_MTP_HIDDEN_NORM, MLA_MTP(0), D, err);
    if (st == MLA_OK) st = rt_vec(rt, &rt->mtp_norm, MLA_W_MTP_NORM, MLA_MTP(0), D, err);
    if (st == MLA_OK) return MLA_OK;
    rt_mtp_drop(rt);
    return mla_wrap(err, "MTP head");
}

void rt_mtp_drop(mla_rt *rt)
{
    rt_lin_free(rt, &rt->mtp_fc);
    rt_buf_free(rt, &rt->mtp_embed_norm);
    rt_buf_free(rt, &rt->mtp_hidden_norm);
    rt_buf_free(rt, &rt->mtp_norm);
}
