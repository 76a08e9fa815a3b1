/* The gate's stages over the ways a server runs the model: layers against the base, paths, drafting. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/paths/drafts.h"
#include "verify/gate/gate_parts.h"
#include "verify/parity/layers.h"
#include "verify/paths/paths.h"

#define TINY_ERROR 1e-3 /* relative mixer errors below are rounding: what part of them is constant says nothing */

static mla_jv *put_layers(mla_jv *reports, const mla_config *c, const mla_layer_errors *e)
{
    static const char *const KEY[] = {"mixer_error", "query_error", "key_error", "value_error"};
    mla_jv *list = mla_jv_set_arr(reports, "layers");
    for (size_t l = 0; l < c->layers; l++) {
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_size(o, "layer", l);
        mla_jv_set_str(o, "kind", c->layer_kind[l] == MLA_LAYER_FULL ? "attention" : "delta net");
        for (size_t p = 0; p < MLA_PARTS; p++)
            if (!isnan(e[l].error[p])) mla_jv_set_f64(o, KEY[p], e[l].error[p]);
        if (!isnan(e[l].constant)) mla_jv_set_f64(o, "constant_share", e[l].constant);
    }
    return list;
}

/* The first layer whose part lies beyond max, else the worst one. */
static void layer_rule(mla_gate *g, const char *name, const mla_config *c, const mla_layer_errors *e, size_t from, size_t to, double max)
{
    mla_gate_rule r = MLA_RULE("layers", name, MLA_NO_EVIDENCE);
    size_t layer = 0, part = from, seen = 0;
    r.threshold = max;
    for (size_t l = 0; l < c->layers && r.verdict != MLA_FAIL; l++)
        for (size_t p = from; p <= to && r.verdict != MLA_FAIL; p++) {
            double x = e[l].error[p];
            if (isnan(x)) continue;
            if (!seen++ || x > r.value || !(x <= max)) r.value = x, layer = l, part = p;
            r.verdict = x <= max ? MLA_PASS : MLA_FAIL;
        }
    const char *what = mla_layer_part_name((mla_layer_part)part), *kind = c->layer_kind[layer] == MLA_LAYER_FULL ? "attention" : "delta net";
    if (!seen) mla_gate_skip(g, "layers", name, "this layout does not compute what the base does");
    else if (r.verdict == MLA_FAIL)
        mla_gate_add(g, &r, "layer %zu (%s) is the first whose %s part from the base's: relative error %.3g, allowed %g", layer, kind, what, r.value, max);
    else mla_gate_add(g, &r, "relative error at most %.3g (layer %zu, %s), allowed %g", r.value, layer, what, max);
}

static void constant_rule(mla_gate *g, const mla_config *c, const mla_layer_errors *e, double max)
{
    mla_gate_rule r = MLA_RULE("layers", "constant errors", MLA_PASS);
    size_t layer = 0, seen = 0;
    r.threshold = max;
    for (size_t l = 0; l < c->layers; l++) {
        double x = e[l].constant;
        if (isnan(x) || !(e[l].error[MLA_PART_MIXER] > TINY_ERROR)) continue;
        if (!seen++ || x > r.value) r.value = x, layer = l;
    }
    if (!seen) {
        mla_gate_skip(g, "layers", r.name, "no layer has errors beyond rounding");
        return;
    }
    r.verdict = r.value <= max ? MLA_PASS : MLA_FAIL;
    mla_gate_add(g, &r, "layer %zu: %.3g of its error's energy is the same for every token%s, allowed %g", layer, r.value,
                 r.verdict == MLA_FAIL ? ": a mean that is not taken off, or not put back" : "", max);
}

void mla_gate_layers(mla_gate *g)
{
    mla_err why = {0};
    const mla_ids *ids = &g->corpus.ids;
    if (!g->base_rt || !ids->n) {
        mla_gate_add(g, &MLA_RULE("layers", "mixer outputs", MLA_NO_EVIDENCE), "not compared: they need --against BASE and text");
        return;
    }
    const mla_config *c = mla_rt_config(g->rt);
    mla_layer_errors *e = mla_alloc(c->layers, 1, sizeof *e);
    mla_status st = e ? mla_layers_compare(e, g->base_rt, g->rt, ids->id, ids->n, &why)
                      : mla_fail(&why, MLA_ENOMEM, "%zu layers", c->layers);
    if (st != MLA_OK) {
        mla_gate_unjudged(g, "layers", "mixer outputs", &why);
    } else {
        put_layers(g->reports, c, e);
        layer_rule(g, "mixer outputs", c, e, MLA_PART_MIXER, MLA_PART_MIXER, g->p->max_layer_error);
        if (!isnan(g->p->max_projection_error)) layer_rule(g, "queries, keys and values", c, e, MLA_PART_Q, MLA_PART_V, g->p->max_projection_error);
        if (!isnan(g->p->max_constant_share)) constant_rule(g, c, e, g->p->max_constant_share);
    }
    mla_free(e);
}

void mla_gate_paths(mla_gate *g)
{
    mla_err why = {0};
    mla_verdict v;
    int32_t *buffer = NULL;
    const char *name[MLA_POLICY_LIST];
    size_t n = 0;
    bool fast = !strcmp(g->p->precision, "fast");
    mla_path_text *text = mla_alloc(g->p->path_cases, 1, sizeof *text);
    mla_path_source from = {.ref = &g->ref, .corpus = g->corpus.ids.id, .n_corpus = g->corpus.ids.n, .cases = g->p->path_cases, .tokens = g->p->path_tokens};
    mla_status st = text ? mla_paths_texts(text, &n, &buffer, &from, &why) : mla_fail(&why, MLA_ENOMEM, "%zu texts", g->p->path_cases);
    for (size_t i = 0; i < g->p->n_check; i++) name[i] = g->p->check[i];
    mla_paths_opts o = {.rt = g->rt, .other = g->other_rt, .be = g->in->be, .kv = mla_gate_kv(g->p->kv_dtype), .text = text, .n_text = n,
                        .near_tie = g->p->near_tie, .max_logprob = g->p->max_first_logprob,
                        .max_change = isnan(g->p->max_change) ? MLA_PATHS_CHANGE(fast) : g->p->max_change, .max_fp8_kld = g->p->max_fp8_kld,
                        .max_split_error = fast ? 0.02 : 1e-4, .log = g->in->log};
    mla_jv *report = mla_jv_set_obj(g->reports, "paths");
    if (st == MLA_OK && !n) st = mla_fail(&why, MLA_EFORMAT, "no text: give --reference FILE or --against BASE");
    if (st == MLA_OK) st = mla_paths_check(report, &o, name, g->p->n_check, &v, &why);
    if (st == MLA_OK) {
        mla_gate_take(g, "paths", report, NULL);
    } else {
        mla_jv_remove(g->reports, "paths");
        mla_gate_unjudged(g, "paths", "paths", &why);
    }
    mla_free(text);
    mla_free(buffer);
}

/* ---- drafting ---- */
static mla_status prompts_of(const mla_gate *g, mla_path_text **out, size_t *n, mla_err *err)
{
    *out = mla_alloc(g->p->mtp_cases, 1, sizeof **out);
    if (!*out) return mla_fail(err, MLA_ENOMEM, "%zu prompts", g->p->mtp_cases);
    for (size_t pass = 0; pass < 2; pass++) /* answers first, then given texts */
        for (size_t k = 0; k < g->ref.n && *n < g->p->mtp_cases; k++) {
            const mla_ref_case *c = &g->ref.c[k];
            if (c->prompt && c->forced == (pass == 1) && c->n_prompt <= 2048) (*out)[(*n)++] = (mla_path_text){c->name, c->prompt, c->n_prompt};
        }
    return *n ? MLA_OK : mla_fail(err, MLA_EFORMAT, "no prompts: give --reference FILE");
}

static mla_status draft_with(mla_drafts *out, const mla_gate *g, const mla_model *m, const char *kv, const mla_drafts_opts *o, mla_err *err)
{
    mla_rt *rt;
    mla_status st = mla_gate_open_runtime(&rt, g, m, kv, true, g->in->be, err);
    if (st == MLA_OK) {
        st = mla_drafts_run(out, rt, o, err);
        mla_rt_close(rt);
    }
    return st;
}

void mla_gate_mtp(mla_gate *g)
{
    mla_drafts own[MLA_DRAFTS_MAX], base[MLA_DRAFTS_MAX];
    mla_err why = {0};
    mla_verdict v;
    mla_path_text *prompt = NULL;
    size_t n = 0;
    if (!mla_model_config(g->model)->mtp_layers) {
        size_t notes = mla_model_note_count(g->model);
        mla_gate_add(g, &MLA_RULE("mtp", "head", MLA_FAIL), "the policy judges drafting, but the model has no MTP head%s%s", notes ? ": " : "",
                     notes ? mla_model_note_at(g->model, 0) : "");
        return;
    }
    bool with_base = g->base && mla_model_config(g->base)->mtp_layers;
    if (!isnan(g->p->max_acceptance_loss) && !with_base)
        mla_gate_add(g, &MLA_RULE("mtp", "acceptance", MLA_NO_EVIDENCE), "not compared: it needs --against BASE with an MTP head");
    mla_status st = prompts_of(g, &prompt, &n, &why);
    mla_drafts_opts o = {.prompt = prompt, .n_prompt = n, .tokens = g->p->mtp_tokens, .most = g->p->drafts, .near_tie = g->p->near_tie, .log = g->in->log};
    if (st == MLA_OK) st = draft_with(own, g, g->model, g->p->kv_dtype, &o, &why);
    if (st == MLA_OK && with_base) st = draft_with(base, g, g->base, g->p->against_kv_dtype, &o, &why);
    if (st == MLA_OK) {
        mla_jv *report = mla_jv_set_obj(g->reports, "mtp");
        mla_drafts_report(report, own, with_base ? base : NULL, o.most, g->p->max_acceptance_loss, &v);
        mla_gate_take(g, "mtp", report, NULL);
    } else {
        mla_gate_unjudged(g, "mtp", "drafting", &why);
    }
    mla_free(prompt);
}
