/* The pipeline, step by step, and its steps as commands of their own. */
#include "retrofit/build/build.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/version.h"
#include "io/file.h"
#include "io/sha256.h"
#include "linalg/gemm.h"
#include "retrofit/build/deepseek.h"
#include "retrofit/stats/gather.h"
#include "retrofit/build/graft.h"
#include "retrofit/stats/merge.h"
#include "retrofit/solve/nested.h"
#include "retrofit/solve/prefix.h"
#include "retrofit/solve/ranks.h"
#include "retrofit/build/receipt.h"
#include "retrofit/shared_rotary/shared_graft.h"
#include "retrofit/stats/stats_file.h"
#include "retrofit/build/workdir.h"

/* Digest of everything that decides the output: what a resumed build must share with the one that was killed. */
static mla_status work_key(unsigned char key[32], const mla_inputs *in, const mla_recipe *r, const char *engine, mla_err *err)
{
    mla_json *d;
    mla_str s = MLA_STR_MAX(1 << 16);
    char hex[65];
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *o = mla_json_root(d);
    mla_jv_set_str(o, "version", MLA_VERSION);
    mla_jv_set_str(o, "engine", engine);
    mla_recipe_to_json(r, mla_jv_set_obj(o, "recipe"));
    const unsigned char *digest[] = {in->base_digest, in->fit_digest, in->held_digest};
    const char *name[] = {"base", "fit", "held"};
    for (size_t i = 0; i < 3; i++) {
        mla_hex(digest[i], 32, hex);
        mla_jv_set_str(o, name[i], hex);
    }
    st = mla_json_print(&s, o, false, err);
    if (st == MLA_OK) mla_sha256_bytes(s.s, s.len, key);
    mla_str_free(&s);
    mla_json_free(d);
    return st;
}

/* The same for a graft: base and factors file by digest, and the ranks taken. */
static mla_status graft_key(unsigned char key[32], const mla_inputs *in, const mla_recipe *r, const mla_factorization *f, mla_err *err)
{
    mla_str s = MLA_STR_MAX(1 << 20);
    unsigned char base[32];
    mla_status st = work_key(base, in, r, "graft", err);
    for (size_t i = 0; i < 32; i++) mla_str_printf(&s, "%02x", base[i]);
    for (size_t i = 0; i < f->layers; i++) mla_str_printf(&s, " %zu", f->result[i].rank);
    if (st == MLA_OK && !mla_str_ok(&s)) st = mla_fail(err, MLA_ENOMEM, "key of the work folder");
    if (st == MLA_OK) mla_sha256_bytes(s.s, s.len, key);
    mla_str_free(&s);
    return st;
}

/* What the numbers were computed with; the thread count does not belong here, since it changes nothing. */
static void engine_text(char *buf, size_t cap, const mla_build_opts *o)
{
    snprintf(buf, cap, "%s %s %s, %s", o->be->ops->name, mla_isa_name(), o->precision == MLA_PREC_F32 ? "reference" : "fast", mla_blas_name());
}

static mla_gather_opts gather_opts(const mla_build_opts *o, const mla_inputs *in, const mla_recipe *r, const char *dir, bool held)
{
    return (mla_gather_opts){.model = in->model, .recipe = r, .be = o->be, .pool = o->pool, .precision = o->precision,
                             .stream_layers = o->stream_layers, .dir = dir, .name = held ? "held-out" : "calibration",
                             .base_digest = in->base_digest, .corpus_digest = held ? in->held_digest : in->fit_digest, .log = o->log};
}

static bool other_base(const mla_stats *s, const mla_inputs *in) { return memcmp(s->base_digest, in->base_digest, 32) != 0; }

static void tell_other_base(const mla_build_opts *o, const char *file, const mla_stats *s, const mla_inputs *in)
{
    char theirs[65], ours[65];
    if (!other_base(s, in)) return;
    mla_hex(s->base_digest, 32, theirs);
    mla_hex(in->base_digest, 32, ours);
    mla_warn(o->log, "%s was collected on another base (%.12s) than this one (%.12s): ranks and losses are those of the other base", file, theirs, ours);
}

static mla_status statistics(mla_stats *fit, mla_stats *held, const mla_build_opts *o, const mla_inputs *in, const mla_recipe *r,
                             const char *dir, mla_err *err)
{
    if (o->stats) {
        mla_status st = mla_stats_read(fit, o->stats, err);
        if (st == MLA_OK) tell_other_base(o, o->stats, fit, in);
        return st == MLA_OK && o->held_stats ? mla_stats_read(held, o->held_stats, err) : st;
    }
    mla_gather_opts g = gather_opts(o, in, r, dir, false);
    mla_status st = mla_gather(fit, &g, in->fit, in->n_fit, err);
    if (st == MLA_OK && o->held_stats) return mla_stats_read(held, o->held_stats, err);
    if (st == MLA_OK && in->n_held) {
        g = gather_opts(o, in, r, dir, true);
        st = mla_gather(held, &g, in->held, in->n_held, err);
    }
    return st;
}

static mla_status factorize(mla_build_result *out, const mla_build_opts *o, const mla_inputs *in, const mla_stats *fit, const mla_stats *held,
                            const char *dir, mla_err *err)
{
    mla_probe *probe = NULL;
    mla_refiner *refiner = NULL;
    mla_factorize_opts fo = {.model = in->model, .recipe = &out->recipe, .fit = fit, .held = held, .pool = o->pool, .dir = dir, .log = o->log,
                             .eigen = {o->be, o->log}};
    mla_status st = MLA_OK;
    if (st == MLA_OK && (out->recipe.refine_steps || out->recipe.sequential)) {
        const mla_recipe *r = &out->recipe;
        mla_refine_opts ro = {.rows = {.model = in->model, .be = o->be, .pool = o->pool, .precision = o->precision,
                                       .stream_layers = o->stream_layers, .layout = r->layout, .groups = r->groups,
                                       .row_tokens = r->row_tokens, .dir = dir, .log = o->log},
                              .fit = in->fit, .held = in->held, .n_fit = in->n_fit, .n_held = in->n_held,
                              .tokens = r->refine_tokens, .steps = r->refine_steps, .follows = r->sequential};
        st = mla_refiner_new(&refiner, &ro, err);
        fo.refiner = refiner;
    }
    if (st == MLA_OK && (out->recipe.allocation == MLA_ALLOC_PROBE || out->recipe.balance_scan)) { /* it keeps the weights: after the recorder's are gone */
        mla_probe_opts po = {.model = in->model, .be = o->be, .pool = o->pool, .precision = o->precision, .row_tokens = out->recipe.row_tokens, .log = o->log};
        st = mla_probe_new(&probe, &po, in->held, in->n_held, err);
        fo.probe = probe;
    }
    if (st == MLA_OK) st = mla_factorize(&out->f, &fo, err);
    if (st == MLA_OK && out->f.rotary_width && !out->recipe.rotary_width && !out->f.shares)
        mla_info(o->log, "%zu of the cached values are rotary: the width of least predicted loss", out->f.rotary_width);
    if (st == MLA_OK && !out->f.shares) out->recipe.rotary_width = out->f.rotary_width;
    if (st == MLA_OK && out->f.f32 && out->recipe.factors_dtype == MLA_FACTORS_AUTO && out->recipe.layout != MLA_LAYOUT_DEEPSEEK)
        mla_info(o->log, "factors stored in f32: bf16 would lose more than the rank does");
    mla_refiner_free(refiner);
    mla_probe_free(probe);
    return st;
}

static mla_status fit_shared(mla_build_result *out, const mla_build_opts *o, const mla_inputs *in, const char *dir, mla_err *err)
{
    mla_shared_fit_opts fo = {.rows = {.model = in->model, .be = o->be, .precision = o->precision, .stream_layers = o->stream_layers,
                                       .row_tokens = out->recipe.row_tokens, .dir = dir, .log = o->log},
                              .pool = o->pool, .recipe = &out->recipe, .fit = in->fit, .held = in->held, .n_fit = in->n_fit, .n_held = in->n_held};
    const char *why;
    mla_status st = mla_dir_make(dir, err);
    if (o->be->ops->fit) mla_info(o->log, "layout shared-rotary: maps are fitted on the host");
    if (st == MLA_OK) st = mla_shared_fit_all(&out->shared, &fo, err);
    if (st == MLA_OK && !mla_shared_servable(in->model, out->shared.keys, &why))
        mla_info(o->log, "the plugin that serves such files cannot take this model: %s", why);
    return st;
}

static mla_status graft_any(mla_build_result *out, const mla_build_opts *o, const mla_inputs *in, const mla_stats *fit, const char *dir, mla_err *err)
{
    char source[65];
    if (out->recipe.layout == MLA_LAYOUT_DEEPSEEK) {
        mla_factors_dtype asked = out->recipe.factors_dtype;
        mla_dtype whole = asked == MLA_FACTORS_F32 ? MLA_F32 : asked == MLA_FACTORS_BF16 ? MLA_BF16 : mla_graft_dtype(in->model);
        out->f.f32 = whole == MLA_F32; /* what the receipt tells */
        return mla_deepseek_write(dir, in->model, &out->f, whole, o->log, err);
    }
    if (out->recipe.layout != MLA_LAYOUT_SHARED) return mla_graft(dir, in->model, &out->f, out->recipe.old_names, o->log, err);
    mla_hex(fit->corpus_digest, 32, source);
    return mla_shared_graft(dir, in->model, &out->shared, source, o->log, err);
}

/* src: the factors file of a graft; NULL: solved here. */
static mla_status finish(mla_build_result *out, const mla_build_opts *o, const mla_inputs *in, const mla_stats *fit, const mla_factor_source *src,
                         mla_workdir *w, mla_err *err)
{
    char engine[256];
    engine_text(engine, sizeof engine, o);
    mla_receipt_content rc = {.in = in, .recipe = &out->recipe, .f = &out->f, .tokens = fit->tokens, .stats_digest = fit->corpus_digest,
                              .source = src, .computed_with = engine};
    if (out->shared.layers) rc.shared = &out->shared;
    else if (o->stats && !src && other_base(fit, in)) rc.stats_base = fit->base_digest;
    mla_status st = graft_any(out, o, in, fit, w->partial, err);
    if (st == MLA_OK) st = mla_dir_remove(w->work, err); /* pieces are not part of the result */
    if (st == MLA_OK) st = mla_receipt_write(w->partial, &rc, o->pool, o->log, out->root, err);
    if (st == MLA_OK) st = mla_workdir_finish(w, err);
    return st;
}

static mla_status budget_is_lossless(bool *yes, const mla_inputs *in, const mla_recipe *r, mla_err *err)
{
    size_t rank, n;
    const mla_config *c = mla_model_config(in->model);
    *yes = false;
    if (r->layout == MLA_LAYOUT_SHARED) return mla_shared_rank(&rank, c, r->rotary_keys, r->budget, err);
    mla_status st = mla_recipe_rank(&rank, r, c, err);
    if (st == MLA_OK) st = mla_factors_dims(c, r->layout, r->groups, &n, err);
    size_t slots = r->layout == MLA_LAYOUT_ABSORBED || r->layout == MLA_LAYOUT_DEEPSEEK ? c->kv_heads * c->rope.rot : 0; /* all of them */
    if (st == MLA_OK) *yes = slots ? r->rotary_width == slots && r->freq_fold == 1 && rank >= n - slots : rank == n * r->groups;
    return st;
}

/* What needs text goes where there is none: allocation by probe (when nobody asked for it by name) and refinement. */
static void settle_text_steps(mla_recipe *r, const mla_inputs *in, bool lossless, mla_log *log)
{
    bool text = !lossless && in->n_held >= r->row_tokens && in->n_fit >= r->row_tokens;
    if (r->allocation == MLA_ALLOC_AUTO) r->allocation = text ? MLA_ALLOC_PROBE : MLA_ALLOC_UNIFORM;
    if (!text && !lossless && (r->refine_steps || r->sequential)) mla_info(log, "no rows of text to refine on: the closed form is kept");
    if (!text) r->refine_steps = 0, r->sequential = false;
}

mla_status mla_build(mla_build_result *out, const mla_build_opts *o, mla_err *err)
{
    *out = (mla_build_result){.recipe = o->recipe};
    mla_inputs in = {0};
    mla_workdir w = {0};
    mla_stats fit = {0}, held = {0};
    unsigned char key[32];
    char engine[256];
    bool lossless = false;
    engine_text(engine, sizeof engine, o);
    mla_status st = mla_inputs_open_base(&in, &out->recipe, &o->in, err);
    if (st == MLA_OK) st = budget_is_lossless(&lossless, &in, &out->recipe, err); /* refuses an impossible budget before any work */
    if (st == MLA_OK && !lossless && o->in.n_corpus) st = mla_inputs_read_text(&in, &out->recipe, &o->in, err);
    bool probed = out->recipe.allocation == MLA_ALLOC_PROBE || out->recipe.balance_scan;
    if (st == MLA_OK && !lossless && probed && in.n_held < out->recipe.row_tokens)
        st = mla_fail(err, MLA_EINVAL, "allocation or balance by probe: %zu held-out tokens, a row of %zu is needed (--held-out FILE, or a longer corpus)", in.n_held,
                      out->recipe.row_tokens);
    if (st == MLA_OK) settle_text_steps(&out->recipe, &in, lossless, o->log);
    if (st == MLA_OK) st = work_key(key, &in, &out->recipe, engine, err);
    if (st == MLA_OK) st = mla_workdir_open(&w, o->out, key, o->log, err);
    if (st == MLA_OK && lossless) {
        mla_info(o->log, "full rank: exact factors, no statistics needed");
        st = mla_factorize_identity(&out->f, in.model, &out->recipe, err);
    } else if (st == MLA_OK && out->recipe.layout == MLA_LAYOUT_SHARED) {
        if (o->stats) st = mla_fail(err, MLA_EINVAL, "layout shared-rotary is fitted on text itself, not on statistics of other layouts");
        if (st == MLA_OK) st = fit_shared(out, o, &in, w.work, err);
        fit.tokens = (double)in.n_fit;
        memcpy(fit.corpus_digest, in.fit_digest, 32);
    } else if (st == MLA_OK) {
        st = statistics(&fit, &held, o, &in, &out->recipe, w.work, err);
        if (st == MLA_OK) mla_info(o->log, "solving %zu layers", fit.layers);
        if (st == MLA_OK) st = factorize(out, o, &in, &fit, held.layers ? &held : NULL, w.work, err);
    }
    if (st == MLA_OK) st = finish(out, o, &in, &fit, NULL, &w, err);
    mla_stats_free(&fit);
    mla_stats_free(&held);
    mla_workdir_close(&w);
    mla_inputs_close(&in);
    if (st != MLA_OK) mla_build_result_free(out);
    return st;
}

void mla_build_result_free(mla_build_result *r)
{
    mla_factorization_free(&r->f);
    mla_shared_fit_free(&r->shared);
}

static mla_status one_step_only(const mla_recipe *r, mla_err *err)
{
    if (r->layout != MLA_LAYOUT_SHARED) return MLA_OK;
    return mla_fail(err, MLA_EINVAL, "layout shared-rotary is fitted on text itself, layer by layer: use mla-retrofit build");
}

mla_status mla_build_stats(const mla_build_opts *o, const char *stats_out, mla_err *err)
{
    mla_recipe r = o->recipe;
    mla_inputs in = {0};
    mla_stats fit = {0};
    mla_status st = mla_inputs_open_base(&in, &r, &o->in, err);
    if (st == MLA_OK) st = one_step_only(&r, err);
    if (st == MLA_OK) st = mla_inputs_read_text(&in, &r, &o->in, err);
    if (st == MLA_OK) {
        mla_gather_opts g = gather_opts(o, &in, &r, NULL, false);
        st = mla_gather(&fit, &g, in.fit, in.n_fit, err);
    }
    if (st == MLA_OK) st = mla_stats_write(&fit, stats_out, NULL, o->pool, err);
    if (st == MLA_OK) mla_info(o->log, "%s: %zu layers, %.0f tokens", stats_out, fit.layers, fit.tokens);
    mla_stats_free(&fit);
    mla_inputs_close(&in);
    return st;
}

mla_status mla_build_solve(mla_build_result *out, const mla_build_opts *o, const char *const *stats, size_t n_stats, const char *factors_out,
                           mla_err *err)
{
    *out = (mla_build_result){.recipe = o->recipe};
    mla_inputs in = {0};
    mla_stats sum = {0}, held = {0};
    mla_status st = mla_inputs_open_base(&in, &out->recipe, &o->in, err);
    if (st == MLA_OK) st = one_step_only(&out->recipe, err);
    if (st == MLA_OK) st = mla_stats_read_all(&sum, stats, n_stats, mla_model_config(in.model), out->recipe.layout, o->pool, err);
    if (st == MLA_OK && o->held_stats) st = mla_stats_read(&held, o->held_stats, err);
    if (st == MLA_OK && n_stats) tell_other_base(o, stats[0], &sum, &in);
    if (st == MLA_OK) settle_text_steps(&out->recipe, &in, false, NULL);
    mla_factorize_opts fo = {.model = in.model, .recipe = &out->recipe, .fit = &sum, .held = o->held_stats ? &held : NULL, .pool = o->pool, .nested = o->nested,
                             .eigen = {o->be, o->log}};
    if (st == MLA_OK) st = mla_factorize(&out->f, &fo, err);
    if (st == MLA_OK && !out->f.shares) out->recipe.rotary_width = out->f.rotary_width;
    if (st == MLA_OK)
        st = o->nested ? mla_nested_write(factors_out, in.model, out->f.nested, out->f.layers, out->f.f32, out->root, err)
                       : mla_factors_write(factors_out, in.model, &out->f, out->root, err);
    mla_stats_free(&sum);
    mla_stats_free(&held);
    mla_inputs_close(&in);
    if (st != MLA_OK) mla_build_result_free(out);
    return st;
}

mla_status mla_build_graft(mla_build_result *out, const mla_build_opts *o, const char *factors, mla_err *err)
{
    *out = (mla_build_result){.recipe = o->recipe};
    mla_inputs in = {0};
    mla_workdir w = {0};
    mla_stats none = {0};
    mla_factor_source src = {0};
    mla_file_digest fd = {.path = factors};
    mla_str note = MLA_STR_MAX(1024);
    unsigned char key[32];
    mla_status st = mla_inputs_open_base(&in, &out->recipe, &o->in, err);
    if (st == MLA_OK) st = mla_sha256_files(&fd, 1, o->pool, NULL, err);
    if (st == MLA_OK) st = mla_factor_source_read(&src, factors, in.model, err);
    if (st == MLA_OK) {
        out->recipe.layout = src.deepseek ? MLA_LAYOUT_DEEPSEEK : src.layer[0].f.layout;
        out->recipe.groups = src.layer[0].f.groups;
        out->recipe.balance = 0;
        st = mla_recipe_settle(&out->recipe, mla_model_config(in.model), err);
    }
    mla_prefix_opts po = {.recipe = &out->recipe, .rank = o->rank, .n_rank = o->n_rank};
    if (st == MLA_OK) st = mla_prefix(&out->f, &src, mla_model_config(in.model), &po, &note, err);
    if (st == MLA_OK) {
        if (note.len) mla_warn(o->log, "%s", mla_str_c(&note));
        out->recipe.factors_dtype = out->f.f32 ? MLA_FACTORS_F32 : MLA_FACTORS_BF16;
        if (out->recipe.allocation == MLA_ALLOC_AUTO) out->recipe.allocation = MLA_ALLOC_UNIFORM;
        out->recipe.rotary_width = out->f.rotary_width;
        if (out->f.freq_fold) out->recipe.freq_fold = out->f.freq_fold;
        if (src.deepseek) st = mla_recipe_deepseek(&out->recipe, mla_model_config(in.model), err);
        out->recipe.refine_steps = 0; /* what the factors went through stands in their file */
        if (src.refined && !(out->f.refined = mla_strdup(src.refined))) st = mla_fail(err, MLA_ENOMEM, "graft");
    }
    if (st == MLA_OK) {
        memcpy(in.fit_digest, fd.digest, 32); /* the factors file takes the corpus's place in key and receipt */
        st = graft_key(key, &in, &out->recipe, &out->f, err);
    }
    if (st == MLA_OK) st = mla_workdir_open(&w, o->out, key, o->log, err);
    memcpy(none.corpus_digest, fd.digest, 32);
    if (st == MLA_OK) st = finish(out, o, &in, &none, &src, &w, err);
    mla_str_free(&note);
    mla_factor_source_free(&src);
    mla_workdir_close(&w);
    mla_inputs_close(&in);
    if (st != MLA_OK) mla_build_result_free(out);
    return st;
}
