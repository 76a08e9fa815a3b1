/* Opening and closing the runtime, and what may be changed between runs: factors and KV scales of a layer. */
#include "runtime/runtime.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "runtime/rt.h"
#include "tensor/compare.h"

mla_status rt_check_dtype(mla_dtype t, mla_err *err)
{
    if (t == MLA_F32 || t == MLA_BF16 || t == MLA_F8_E4M3) return MLA_OK;
    return mla_fail(err, MLA_EINVAL, "KV cache in %s: expected F32, BF16 or F8_E4M3", mla_dtype_name(t));
}

static mla_status check_opts(const mla_model *m, const mla_rt_opts *o, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    RT_TRY(rt_check_dtype(o->kv_dtype, err));
    if (o->page_tokens > 1 << 20) return mla_fail(err, MLA_EINVAL, "pages of %zu tokens: expected at most %d", o->page_tokens, 1 << 20);
    if (c->experts) return mla_fail(err, MLA_EUNSUPPORTED, "%s: running a mixture of %zu experts is not supported", c->architecture, c->experts);
    if (c->sliding_window) return mla_fail(err, MLA_EUNSUPPORTED, "%s: a sliding window of %zu tokens is not supported", c->architecture, c->sliding_window);
    if (o->mtp && !c->mtp_layers) return mla_fail(err, MLA_EINVAL, "%s: the model has no MTP head", c->architecture);
    if (o->mtp && c->mtp_layers > 1) return mla_fail(err, MLA_EUNSUPPORTED, "%s: an MTP head of %zu layers, expected 1", c->architecture, c->mtp_layers);
    return MLA_OK;
}

/* Stored factors and scales of every attention layer, and the widths that follow. */
static mla_status describe_layers(mla_rt *rt, mla_err *err)
{
    const mla_config *c = rt->cfg;
    for (size_t i = 0; i < rt->n_layer; i++) {
        rt_layer *l = &rt->layer[i];
        bool trunk = i < rt->n_trunk;
        l->index = trunk ? i : MLA_MTP(i - rt->n_trunk);
        bool full = !trunk || c->layer_kind[i] == MLA_LAYER_FULL;
        bool retro = full && trunk && c->mla.layout != MLA_LAYOUT_NONE && c->mla.rank[i];
        if (retro && c->mla.layout == MLA_LAYOUT_SHARED) RT_TRY(mla_model_shared(rt->model, i, &l->sh, err));
        else if (retro) RT_TRY(mla_model_factors(rt->model, i, &l->f, err));
        if (full) RT_TRY(mla_model_kv_scale(rt->model, l->index, &l->scale, err));
        RT_TRY(rt_layer_dims(rt, l, err));
    }
    return MLA_OK;
}

static mla_status load_all(mla_rt *rt, mla_err *err)
{
    RT_TRY(rt_embed_load(rt, err));
    mla_progress p = mla_progress_begin(rt->o.log, "loading", (double)rt->n_layer, "layers");
    mla_status st = MLA_OK;
    for (size_t i = 0; i < rt->n_layer && st == MLA_OK; i++) {
        st = rt_layer_load(rt, &rt->layer[i], err);
        mla_progress_add(&p, 1);
    }
    if (st == MLA_OK) st = rt_head_load(rt, err);
    if (st == MLA_OK && rt->o.mtp) st = rt_mtp_load(rt, err);
    if (st == MLA_OK) st = RT_OP(rt, sync, err); /* all of it is there, or what is wrong is said */
    mla_progress_end(&p);
    return st;
}

mla_status mla_rt_open(mla_rt **out, const mla_model *m, mla_backend *be, const mla_rt_opts *o, mla_err *err)
{
    *out = NULL;
    RT_TRY(check_opts(m, o, err));
    if (o->keys16 && !be->ops->mixed_rows)
        return mla_fail(err, MLA_EUNSUPPORTED, "fp8-keys16: the %s backend has no cache rows of two element types", be->ops->name);
    mla_rt *rt = mla_alloc(1, sizeof *rt, 1);
    if (!rt) return mla_fail(err, MLA_ENOMEM, "runtime");
    rt->model = m;
    rt->cfg = mla_model_config(m);
    rt->be = be;
    rt->o = *o;
    if (!rt->o.page_tokens) rt->o.page_tokens = 64;
    rt_pool_init(rt);
    rt->n_trunk = rt->cfg->layers;
    rt->n_layer = rt->n_trunk + (o->mtp ? 1 : 0);
    rt->layer = mla_alloc(rt->n_layer, sizeof *rt->layer, 1);
    mla_status st = rt->layer ? describe_layers(rt, err) : mla_fail(err, MLA_ENOMEM, "runtime of %zu layers", rt->n_layer);
    if (st == MLA_OK && !o->stream_layers) st = load_all(rt, err);
    if (st != MLA_OK) {
        mla_rt_close(rt);
        return st;
    }
    *out = rt;
    return MLA_OK;
}

/* What stays of a runtime that borrowed its resident weights. */
static void forget_weights(mla_rt *rt)
{
    for (size_t i = 0; rt->layer && i < rt->n_layer; i++) {
        mla_factors_free(&rt->layer[i].f);
        mla_shared_free(&rt->layer[i].sh);
        rt->layer[i] = (rt_layer){.cache = rt->layer[i].cache};
    }
    rt->embed = rt->head = rt->mtp_fc = (rt_lin){0};
    rt->final_norm = rt->mtp_embed_norm = rt->mtp_hidden_norm = rt->mtp_norm = (rt_buf){0};
}

void mla_rt_close(mla_rt *rt)
{
    if (!rt) return;
    if (rt->parent) {
        rt->parent->children--;
        if (!rt->o.stream_layers) forget_weights(rt);
    }
    for (size_t i = 0; rt->layer && i < rt->n_layer; i++) {
        rt_layer_drop(rt, &rt->layer[i]);
        mla_factors_free(&rt->layer[i].f);
        mla_shared_free(&rt->layer[i].sh);
    }
    if (rt->layer) rt_pool_drop(rt);
    rt_mtp_drop(rt);
    rt_head_drop(rt);
    rt_embed_drop(rt);
    for (size_t i = 0; i < RT_S_N; i++) rt_buf_free(rt, &rt->scratch[i]);
    mla_free(rt->layer);
    mla_backend_close(rt->single);
    mla_free(rt);
}

const mla_config *mla_rt_config(const mla_rt *rt) { return rt->cfg; }
const mla_model *mla_rt_model(const mla_rt *rt) { return rt->model; }
bool mla_rt_has_mtp(const mla_rt *rt) { return rt->o.mtp; }

mla_layout mla_rt_layout(const mla_rt *rt, size_t layer)
{
    for (size_t i = 0; i < rt->n_layer; i++)
        if (rt->layer[i].index == layer)
            return rt->layer[i].kind == RT_LATENT_N         ? MLA_LAYOUT_N
                   : rt->layer[i].kind == RT_LATENT_REBUILD ? MLA_LAYOUT_REBUILD
                   : rt->layer[i].kind == RT_LATENT_P       ? MLA_LAYOUT_P
                   : rt->layer[i].kind == RT_LATENT_SHARED  ? MLA_LAYOUT_SHARED
                   : rt->layer[i].kind == RT_LATENT_ABSORBED ? MLA_LAYOUT_ABSORBED
                                                            : MLA_LAYOUT_NONE;
    return MLA_LAYOUT_NONE;
}
bool mla_rt_keys16(const mla_rt *rt) { return rt->o.keys16; }
size_t mla_rt_peak_bytes(const mla_rt *rt) { return rt->peak; }

size_t mla_rt_kv_bytes_per_token(const mla_rt *rt)
{
    size_t n = 0;
    for (size_t i = 0; i < rt->n_layer; i++) n += rt_row(rt, &rt->layer[i]).bytes;
    return n;
}

static mla_status check_factors(const mla_rt *rt, const rt_layer *l, const mla_factors *f, mla_err *err)
{
    const mla_config *c = rt->cfg;
    size_t n, first, g = f->groups;
    if (f->layout != MLA_LAYOUT_N && l->index >= MLA_MTP(0))
        return mla_fail(err, MLA_EUNSUPPORTED, "the %s layout in the MTP head is not supported", mla_layout_name(f->layout));
    RT_TRY(mla_factors_dims(c, f->layout, g, &n, err));
    RT_TRY(mla_layout_fits(c, f->layout, err));
    for (size_t h = 0; f->center && h < f->heads; h++)
        if (f->heads != c->kv_heads || !(isfinite(f->center[h]) && f->center[h] > 0))
            return mla_fail(err, MLA_EINVAL, "centre %zu of %zu divisors: %g, expected a positive one for each of %zu KV heads", h, f->heads,
                            (double)f->center[h], c->kv_heads);
    if (f->n != n || !f->r || f->r > n) return mla_fail(err, MLA_EINVAL, "factors of (%zu, %zu), expected rank 1 to %zu of %zu features", f->r, f->n, n, n);
    const struct { const char *name; const float *v; size_t n; } part[] = {{"E", f->E, g * f->r * n}, {"D", f->D, g * f->nd * f->r}, {"mu", f->mu, g * n},
          {"Er", f->Er, f->w * (n / 2)}, {"Rq", f->Rq, f->w * (n / 2)}};
    bool absorbed = f->layout == MLA_LAYOUT_ABSORBED;
    if (f->nd != (absorbed ? (c->heads + c->kv_heads) * c->head_dim : n) || (absorbed && (!f->Er || !f->Rq || f->d != c->head_dim)))
        return mla_fail(err, MLA_EINVAL, "factors with %zu decoder rows do not fit %zu query and %zu KV heads", f->nd, c->heads, c->kv_heads);
    for (size_t i = 0; i < (absorbed ? 5u : 3u); i++)
        if (mla_count_nonfinite(part[i].v, part[i].n, &first))
            return mla_fail(err, MLA_EINVAL, "factor %s: element %zu is not finite", part[i].name, first);
    return MLA_OK;
}

static mla_status check_shared(const mla_rt *rt, const rt_layer *l, const mla_shared *s, mla_err *err)
{
    const mla_config *c = rt->cfg;
    size_t first;
    if (l->index >= MLA_MTP(0)) return mla_fail(err, MLA_EUNSUPPORTED, "the shared-rotary layout in the MTP head is not supported");
    RT_TRY(mla_shared_fits(c, err));
    if (s->H != c->heads || s->d != c->head_dim || s->rot != c->rope.rot || s->D != c->hidden || s->r == 0 || s->R == 0)
        return mla_fail(err, MLA_EINVAL, "shared-rotary factors of %zu heads of %zu, %zu rotated, hidden %zu: expected %zu, %zu, %zu, %zu", s->H, s->d, s->rot,
                        s->D, c->heads, c->head_dim, c->rope.rot, c->hidden);
    if (mla_count_nonfinite(s->E, mla_shared_floats(s), &first)) return mla_fail(err, MLA_EINVAL, "shared-rotary factors: element %zu is not finite", first);
    return MLA_OK;
}

/* The new row width empties the caches; the old projections go only when the new ones are in place. */
static mla_status swap_factors(mla_rt *rt, rt_layer *l, const mla_factors *f, const mla_shared *sh, mla_err *err)
{
    rt_layer old = *l;
    l->lat = (rt_latent){0};
    l->sh_key = (rt_lin){0};
    l->sh_query = NULL;
    l->sh = (mla_shared){0};
    l->f = (mla_factors){0};
    mla_status st = f ? mla_factors_copy(&l->f, f, err) : MLA_OK;
    if (st == MLA_OK && sh) st = mla_shared_copy(&l->sh, sh, err);
    if (st == MLA_OK) st = rt_layer_dims(rt, l, err);
    if (st == MLA_OK && l->loaded && f) st = rt_latent_load(rt, l, err);
    if (st == MLA_OK && l->loaded && sh) st = rt_shared_load(rt, l, err);
    if (st == MLA_OK && l->loaded && !sh) st = rt_attn_kv_load(rt, l, err); /* a shared-rotary layer may have come without them */
    if (st != MLA_OK) {
        rt_layer failed = *l;
        rt_latent_drop(rt, l);
        mla_factors_free(&l->f);
        mla_shared_free(&l->sh);
        *l = old;
        l->k = failed.k, l->v = failed.v, l->k_norm = failed.k_norm;
        return st;
    }
    rt_latent_drop(rt, &old);
    mla_factors_free(&old.f);
    mla_shared_free(&old.sh);
    l->scale = (mla_kv_scale){0}; /* scales belong to what was cached before */
    rt_pool_drop(rt);
    return MLA_OK;
}

static mla_status set_factors(mla_rt *rt, size_t layer, const mla_factors *f, const mla_shared *sh, mla_err *err)
{
    rt_layer *l;
    char text[32];
    RT_TRY(rt_layer_find(rt, layer, &l, err));
    if (rt->open_seqs) return mla_fail(err, MLA_EINVAL, "%s: factors cannot change while %zu sequences are open", rt_layer_text(l, text), rt->open_seqs);
    if (rt->parent || rt->children)
        return mla_fail(err, MLA_EINVAL, "%s: factors cannot change while runtimes share their weights", rt_layer_text(l, text));
    if (l->kind == RT_GDN || l->kind == RT_LATENT_DS)
        return mla_fail(err, MLA_EINVAL, "%s has no keys and values of its own to compress", rt_layer_text(l, text));
    if (f && f->layout == MLA_LAYOUT_NONE) f = NULL;
    mla_status st = f ? check_factors(rt, l, f, err) : sh ? check_shared(rt, l, sh, err) : MLA_OK;
    if (st == MLA_OK) st = swap_factors(rt, l, f, sh, err);
    return st == MLA_OK ? st : mla_wrap(err, "%s", rt_layer_text(l, text));
}

mla_status mla_rt_set_factors(mla_rt *rt, size_t layer, const mla_factors *f, mla_err *err) { return set_factors(rt, layer, f, NULL, err); }
mla_status mla_rt_set_shared(mla_rt *rt, size_t layer, const mla_shared *s, mla_err *err) { return set_factors(rt, layer, NULL, s, err); }

mla_status mla_rt_set_kv_scale(mla_rt *rt, size_t layer, mla_kv_scale s, mla_err *err)
{
    rt_layer *l;
    char text[32];
    RT_TRY(rt_layer_find(rt, layer, &l, err));
    if (!rt_row(rt, l).bytes) return mla_fail(err, MLA_EINVAL, "%s caches nothing per token", rt_layer_text(l, text));
    if (s.present && !(isfinite(s.k) && s.k > 0 && isfinite(s.v) && s.v > 0))
        return mla_fail(err, MLA_EINVAL, "%s: KV scales %g and %g, expected finite and positive", rt_layer_text(l, text), (double)s.k, (double)s.v);
    l->scale = s;
    rt->moved++;
    return MLA_OK;
}
