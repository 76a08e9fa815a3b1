/* From scales to edits of tensors, and one edit carried out. */
#include "calibrate/fold_edits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/kv_names.h"
#include "tensor/dtype.h"

typedef struct {
    mla_fold_edits *x;
    const mla_model *m;
    const mla_config *c;
    mla_str name;
} plan;

static mla_status add(plan *p, const char *name, float factor, bool plus_one, size_t first, mla_err *err)
{
    mla_fold_edits *x = p->x;
    if (factor == 1) return MLA_OK;
    if (x->n == x->cap) return mla_fail(err, MLA_EINTERNAL, "more than %zu edits", x->cap);
    x->e[x->n] = (mla_fold_edit){.name = mla_strdup(name), .factor = factor, .plus_one = plus_one, .first = first};
    return x->e[x->n++].name ? MLA_OK : mla_fail(err, MLA_ENOMEM, "edit of %s", name);
}

/* A stored matrix or vector of the model, when it has one. */
static mla_status edit_kind(plan *p, mla_wkind k, size_t layer, float factor, bool needed, mla_err *err)
{
    if (!mla_model_has(p->m, k, layer)) {
        if (!needed) return MLA_OK;
        return mla_fail(err, MLA_EUNSUPPORTED, "layer %zu has no matrix to fold a scale into", layer);
    }
    mla_str_clear(&p->name);
    mla_status st = mla_model_name(p->m, k, layer, &p->name, err);
    return st == MLA_OK ? add(p, mla_str_c(&p->name), factor, false, 0, err) : st;
}

/* A norm's gain, the first `first` of its values (0: all). factor 1: only whether it is stored as 1 + w is looked at. */
static mla_status edit_gain(plan *p, mla_wkind k, size_t layer, float factor, size_t first, bool *plus_one, mla_err *err)
{
    float *gain = NULL, w = 0;
    mla_str_clear(&p->name);
    mla_status st = mla_model_name(p->m, k, layer, &p->name, err);
    if (st == MLA_OK) st = mla_model_vec(p->m, k, layer, p->c->head_dim, &gain, err);
    const mla_tensor *t = st == MLA_OK ? mla_ckpt_find(mla_model_ckpt(p->m), mla_str_c(&p->name)) : NULL;
    if (st == MLA_OK && (!t || !mla_to_f32(&w, t->data, t->dtype, 1))) st = mla_fail(err, MLA_EUNSUPPORTED, "%s: expected a plain vector", mla_str_c(&p->name));
    if (st == MLA_OK) *plus_one = fabsf(gain[0] - (1 + w)) < fabsf(gain[0] - w);
    if (st == MLA_OK) st = add(p, t->name, factor, *plus_one, first, err);
    mla_free(gain);
    return st;
}

static float power(int e) { return ldexpf(1, e); }

static mla_status fold_keys(plan *p, size_t layer, int *exponent, size_t first, mla_err *err)
{
    mla_status st;
    int e = *exponent;
    bool plus_one = false;
    if (mla_model_has(p->m, MLA_W_K_NORM, layer)) {
        st = edit_gain(p, MLA_W_K_NORM, layer, 1, first, &plus_one, err);
        if (plus_one && e < 0) *exponent = e = 0;
        if (st == MLA_OK) st = edit_gain(p, MLA_W_K_NORM, layer, power(-e), first, &plus_one, err);
        return st == MLA_OK ? edit_gain(p, MLA_W_Q_NORM, layer, power(e), first, &plus_one, err) : st;
    }
    if (first) return mla_fail(err, MLA_EUNSUPPORTED, "layer %zu: rotary keys without a norm cannot be folded apart from the others", layer);
    st = edit_kind(p, MLA_W_K, layer, power(-e), true, err);
    if (st == MLA_OK) st = edit_kind(p, MLA_W_K_BIAS, layer, power(-e), false, err);
    if (st == MLA_OK) st = edit_kind(p, MLA_W_Q, layer, power(e), true, err);
    return st == MLA_OK ? edit_kind(p, MLA_W_Q_BIAS, layer, power(e), false, err) : st;
}

static mla_status fold_values(plan *p, size_t layer, int e, mla_err *err)
{
    mla_status st = edit_kind(p, MLA_W_V, layer, power(-e), true, err);
    if (st == MLA_OK) st = edit_kind(p, MLA_W_V_BIAS, layer, power(-e), false, err);
    return st == MLA_OK ? edit_kind(p, MLA_W_O, layer, power(e), true, err) : st; /* its bias comes after */
}

static mla_status fold_latent(plan *p, size_t layer, int e, mla_err *err)
{
    static const char *const PART[] = {"encoder", "decoder"};
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < 2; i++) {
        mla_str_clear(&p->name);
        mla_str_printf(&p->name, "%slayers.%zu.self_attn.mla.%s.weight", mla_model_prefix(p->m), layer, PART[i]);
        st = add(p, mla_str_c(&p->name), power(i ? e : -e), false, 0, err);
    }
    return st;
}

/* Queries grow by what keys lost, and so does a stored scale of theirs. */
static mla_status fold_queries(plan *p, size_t layer, int e, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < MLA_KV_SPELLINGS; i++) {
        if (MLA_KV_SPELLING[i].part != MLA_KV_Q) continue;
        mla_str_clear(&p->name);
        mla_kv_scale_name(&p->name, p->m, layer, MLA_KV_SPELLING[i].suffix);
        if (mla_ckpt_find(mla_model_ckpt(p->m), mla_str_c(&p->name))) st = add(p, mla_str_c(&p->name), power(e), false, 0, err);
    }
    return st;
}

static mla_status one_layer(plan *p, size_t layer, mla_err *err)
{
    mla_kv_scale s;
    mla_fold_edits *x = p->x;
    mla_status st = mla_model_kv_scale(p->m, layer, &s, err);
    if (st != MLA_OK) return st;
    if (!s.present) return mla_fail(err, MLA_EINVAL, "layer %zu has no KV scales to fold: run mla-calibrate fp8 first", layer);
    int k = (int)ceil(log2((double)s.k)), v = (int)ceil(log2((double)s.v));
    bool latent = p->c->mla.layout != MLA_LAYOUT_NONE && layer < MLA_MTP(0);
    x->layer[x->layers] = layer;
    x->k[x->layers] = k;
    x->v[x->layers++] = v;
    if (!latent) {
        st = fold_keys(p, layer, &x->k[x->layers - 1], 0, err);
        if (st == MLA_OK) st = fold_queries(p, layer, x->k[x->layers - 1], err);
        return st == MLA_OK ? fold_values(p, layer, v, err) : st;
    }
    st = fold_latent(p, layer, k, err);
    return st == MLA_OK && p->c->mla.rotary_width ? fold_keys(p, layer, &x->v[x->layers - 1], p->c->rope.rot, err) : st;
}

mla_status mla_fold_plan(mla_fold_edits *x, const mla_model *m, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    plan p = {.x = x, .m = m, .c = c, .name = MLA_STR_MAX(1024)};
    size_t most = c->layers + c->mtp_layers;
    *x = (mla_fold_edits){.cap = 12 * most};
    if (c->mla.layout != MLA_LAYOUT_NONE && c->mla.layout != MLA_LAYOUT_N && c->mla.layout != MLA_LAYOUT_REBUILD)
        return mla_fail(err, MLA_EUNSUPPORTED, "layout %s: what it caches beside the latent is no weight's product, so there is nothing to fold into",
                        mla_layout_name(c->mla.layout));
    if (!mla_model_ckpt(m) || c->family == MLA_FAM_DEEPSEEK) return mla_fail(err, MLA_EUNSUPPORTED, "%s: only folders of GQA models and retrofits are folded", mla_model_path(m));
    x->e = mla_alloc(x->cap, 1, sizeof *x->e);
    x->layer = mla_alloc(most, 1, sizeof *x->layer);
    x->k = mla_alloc(most, 1, sizeof *x->k);
    x->v = mla_alloc(most, 1, sizeof *x->v);
    mla_status st = x->e && x->layer && x->k && x->v ? MLA_OK : mla_fail(err, MLA_ENOMEM, "edits of %zu layers", most);
    for (size_t i = 0; st == MLA_OK && i < most; i++)
        if (i >= c->layers || c->layer_kind[i] == MLA_LAYER_FULL) st = one_layer(&p, i < c->layers ? i : MLA_MTP(i - c->layers), err);
    mla_str_free(&p.name);
    return st;
}

void mla_fold_edits_free(mla_fold_edits *x)
{
    for (size_t i = 0; x->e && i < x->n; i++) mla_free(x->e[i].name);
    mla_free(x->e);
    mla_free(x->layer);
    mla_free(x->k);
    mla_free(x->v);
    *x = (mla_fold_edits){0};
}

const mla_fold_edit *mla_fold_find(const mla_fold_edits *x, const char *name)
{
    for (size_t i = 0; i < x->n; i++)
        if (!strcmp(x->e[i].name, name)) return &x->e[i];
    return NULL;
}

mla_status mla_fold_apply(const mla_fold_edit *e, const mla_tensor *t, void *dst, mla_fold_sum *sum, mla_err *err)
{
    char text[96];
    size_t n = mla_tensor_numel(t), width = mla_dtype_bits(t->dtype) / 8;
    if (t->dtype != MLA_BF16 && t->dtype != MLA_F16 && t->dtype != MLA_F32)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: expected plain weights to fold a scale into, found %s", t->name, mla_tensor_text(t, text, sizeof text));
    memcpy(dst, t->data, t->nbytes);
    if (e->first && e->first < n) n = e->first;
    for (size_t i = 0; i < n; i++) {
        float w, back;
        (void)mla_to_f32(&w, (const char *)t->data + i * width, t->dtype, 1);
        float gain = e->plus_one ? 1 + w : w, want = gain * e->factor, put = e->plus_one ? want - 1 : want;
        (void)mla_from_f32((char *)dst + i * width, &put, t->dtype, 1);
        (void)mla_to_f32(&back, (const char *)dst + i * width, t->dtype, 1);
        float is = e->plus_one ? 1 + back : back;
        if (!isfinite(is) || (is == 0 && want != 0)) return mla_fail(err, MLA_EUNSUPPORTED, "%s: value %zu, %g, leaves %s when it is multiplied by %g", t->name, i, (double)w, mla_dtype_name(t->dtype), (double)e->factor);
        if (is == want) continue;
        sum->rounded++;
        sum->worst = fmax(sum->worst, fabs(((double)is - (double)want) / (double)want));
    }
    sum->tensors++;
    return MLA_OK;
}
