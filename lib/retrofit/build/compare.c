/* One statistics file, one probe, one solution per layout. */
#include "retrofit/build/compare.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "retrofit/stats/gather.h"
#include "retrofit/stats/stats_file.h"

static const mla_layout LAYOUT[MLA_COMPARE_LAYOUTS] = {MLA_LAYOUT_REBUILD, MLA_LAYOUT_ABSORBED, MLA_LAYOUT_DEEPSEEK};

/* The recipe with this layout, closed form only; what belongs to another layout is left out. */
static mla_recipe with_layout(const mla_recipe *from, mla_layout l)
{
    mla_recipe r = *from;
    r.layout = l;
    mla_recipe_fast(&r);
    r.factors_dtype = MLA_FACTORS_F32;
    r.budget.rotary = 0;
    if (l == MLA_LAYOUT_REBUILD) r.rotary_width = 0, r.freq_fold = 1;
    return r;
}

static mla_status one(mla_compared *out, const mla_build_opts *o, const mla_model *m, const mla_stats *fit, mla_probe *probe, mla_err *err)
{
    mla_recipe r = with_layout(&o->recipe, out->layout);
    mla_err why = {0};
    mla_factorization f = {0};
    out->kld = -1;
    if (mla_recipe_resolve(&r, mla_model_config(m), &why) != MLA_OK) {
        if (why.status != MLA_EINVAL) return mla_fail(err, why.status, "%s", why.msg);
        snprintf(out->why, sizeof out->why, "%.250s", why.msg);
        return MLA_OK;
    }
    mla_status st = mla_factorize(&f, &(mla_factorize_opts){.model = m, .recipe = &r, .fit = fit, .pool = o->pool, .log = o->log,
                                                            .eigen = {o->be, o->log}}, err);
    if (st != MLA_OK) return mla_wrap(err, "layout %s", mla_layout_name(out->layout));
    out->possible = true;
    out->latent = f.result[0].rank + (out->layout == MLA_LAYOUT_DEEPSEEK);
    out->rotary = f.rotary_width;
    size_t *layer = mla_alloc(f.layers, 1, sizeof *layer);
    if (!layer) st = mla_fail(err, MLA_ENOMEM, "%zu layers", f.layers);
    for (size_t i = 0; st == MLA_OK && i < f.layers; i++) {
        layer[i] = f.result[i].layer;
        out->predicted += f.result[i].predicted / (double)f.layers;
    }
    if (st == MLA_OK && r.freq_fold == 1) st = mla_probe_kld(probe, &out->kld, f.factors, layer, f.layers, err);
    mla_free(layer);
    mla_factorization_free(&f);
    return st;
}

mla_status mla_compare_layouts(mla_compared out[MLA_COMPARE_LAYOUTS], const mla_build_opts *o, mla_err *err)
{
    mla_inputs in = {0};
    mla_stats fit = {0};
    mla_probe *probe = NULL;
    mla_recipe r = with_layout(&o->recipe, MLA_LAYOUT_REBUILD);
    mla_input_opts io = o->in;
    io.force = io.force || o->stats; /* the calibration text is not used then */
    mla_status st = mla_inputs_open_base(&in, &r, &io, err);
    const mla_config *c = st == MLA_OK ? mla_model_config(in.model) : NULL;
    if (st == MLA_OK && c->rope.rot < c->head_dim)
        st = mla_fail(err, MLA_EINVAL, "this model has key dims without rotation: layout n caches its rotary keys exactly; mla-retrofit plan says what shared ones would buy");
    if (st == MLA_OK) st = mla_inputs_read_text(&in, &r, &io, err);
    if (st == MLA_OK && in.n_held < r.row_tokens)
        st = mla_fail(err, MLA_EINVAL, "%zu held-out tokens: a row of %zu is needed to measure (--held-out FILE)", in.n_held, r.row_tokens);
    if (st == MLA_OK && o->stats) st = mla_stats_read(&fit, o->stats, err);
    if (st == MLA_OK && !o->stats) {
        mla_gather_opts g = {.model = in.model, .recipe = &r, .be = o->be, .pool = o->pool, .precision = o->precision, .stream_layers = o->stream_layers,
                             .name = "calibration", .base_digest = in.base_digest, .corpus_digest = in.fit_digest, .log = o->log};
        st = mla_gather(&fit, &g, in.fit, in.n_fit, err);
    }
    mla_probe_opts po = {.model = in.model, .be = o->be, .pool = o->pool, .precision = o->precision, .row_tokens = r.row_tokens, .log = o->log};
    if (st == MLA_OK) st = mla_probe_new(&probe, &po, in.held, in.n_held, err);
    for (size_t i = 0; st == MLA_OK && i < MLA_COMPARE_LAYOUTS; i++) {
        out[i] = (mla_compared){.layout = LAYOUT[i]};
        st = one(&out[i], o, in.model, &fit, probe, err);
    }
    mla_probe_free(probe);
    mla_stats_free(&fit);
    mla_inputs_close(&in);
    return st;
}

void mla_compared_to_json(const mla_compared c[MLA_COMPARE_LAYOUTS], mla_jv *arr)
{
    for (size_t i = 0; i < MLA_COMPARE_LAYOUTS; i++) {
        mla_jv *o = mla_jv_add_obj(arr);
        mla_jv_set_str(o, "layout", mla_layout_name(c[i].layout));
        if (!c[i].possible) {
            mla_jv_set_str(o, "refused", c[i].why);
            continue;
        }
        mla_jv_set_size(o, "latent_values", c[i].latent);
        mla_jv_set_size(o, "rotary_values", c[i].rotary);
        mla_jv_set_f64(o, "predicted_loss", c[i].predicted);
        if (c[i].kld >= 0) mla_jv_set_f64(o, "kld", c[i].kld);
    }
}

void mla_compared_table(const mla_compared c[MLA_COMPARE_LAYOUTS], mla_str *s)
{
    mla_str_put(s, "layout          latent  rotary  cached   predicted   KLD, held-out text\n");
    for (size_t i = 0; i < MLA_COMPARE_LAYOUTS; i++) {
        mla_str_printf(s, "%-14s ", mla_layout_name(c[i].layout));
        if (!c[i].possible) {
            mla_str_printf(s, "refused: %s\n", c[i].why);
            continue;
        }
        mla_str_printf(s, "%7zu %7zu %7zu %10.3g%%   ", c[i].latent, c[i].rotary, c[i].latent + c[i].rotary, 100 * c[i].predicted);
        if (c[i].kld >= 0) mla_str_printf(s, "%.5f\n", c[i].kld);
        else mla_str_put(s, "not measured: folded frequencies\n");
    }
    mla_str_put(s, "closed form, one rank for all layers; predicted losses are each layout's own measure and compare within a row only\n");
}
