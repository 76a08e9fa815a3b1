/* The gate's stages that run the model: kernels against fp64, and parity over all references as one sample. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "verify/gate_parts.h"
#include "verify/parity_run.h"
#include "verify/record.h"
#include "verify/selfcheck.h"

void mla_gate_selfcheck(mla_gate *g)
{
    mla_err why = {0};
    mla_verdict v;
    mla_jv *report = mla_jv_set_obj(g->reports, "selfcheck");
    mla_selfcheck_opts o = {.cfg = g->model ? mla_model_config(g->model) : NULL, .far = g->p->far, .tested = g->in->tested, .allow_untested = g->in->allow_untested, .log = g->in->log};
    if (mla_selfcheck(report, g->in->be, &o, &v, &why) != MLA_OK) {
        mla_jv_remove(g->reports, "selfcheck");
        mla_gate_unjudged(g, "selfcheck", "kernels", &why);
        return;
    }
    mla_gate_take(g, "selfcheck", report, NULL);
}

/* Prompts from the corpus, repeated where it is too short, that end at the policy's lengths together with their answers. */
static mla_status long_prompts(mla_prompts *out, const mla_gate *g, mla_jv *skipped, mla_err *err)
{
    const mla_ids *text = &g->corpus.ids;
    size_t most = mla_model_config(g->model)->max_pos;
    out->p = mla_alloc(g->p->n_context, 1, sizeof *out->p);
    if (!out->p) return mla_fail(err, MLA_ENOMEM, "%zu prompts", g->p->n_context);
    for (size_t i = 0; i < g->p->n_context; i++) {
        size_t n = g->p->context[i];
        char name[48];
        if ((most && n > most) || n <= g->p->answer_tokens) {
            mla_jv_add_size(skipped, n);
            continue;
        }
        mla_prompt *p = &out->p[out->n++];
        (void)snprintf(name, sizeof name, "context-%zu", n);
        p->name = mla_strdup(name);
        if (!p->name) return mla_fail(err, MLA_ENOMEM, "prompt name");
        for (size_t k = 0; k < n - g->p->answer_tokens; k++) {
            mla_status st = mla_ids_push(&p->prompt, text->id[k % text->n], err);
            if (st != MLA_OK) return st;
        }
    }
    return MLA_OK;
}

/* The base answers long prompts greedily; its answers become cases of the reference. */
static void add_contexts(mla_gate *g)
{
    mla_prompts prompts = {0};
    mla_reference r = {0};
    mla_err why = {0};
    if (!g->p->n_context) return;
    if (!g->base_rt || !g->corpus.ids.n) {
        mla_gate_add(g, &MLA_RULE("parity", "long contexts", MLA_NO_EVIDENCE), "not measured: they need --against BASE and text");
        return;
    }
    mla_jv *skipped = mla_jv_set_arr(g->doc, "contexts_left_out");
    mla_record_opts o = {.max_tokens = g->p->answer_tokens, .chunk = g->p->chunk, .min_margin = g->p->min_margin, .log = g->in->log};
    mla_status st = long_prompts(&prompts, g, skipped, &why);
    if (st == MLA_OK && prompts.n) st = mla_record(&r, g->base_rt, &prompts, &o, &why);
    if (st == MLA_OK && prompts.n) st = mla_reference_append(&g->ref, &r, NULL, &why);
    if (st != MLA_OK) mla_gate_unjudged(g, "parity", "long contexts", &why);
    else if (!prompts.n) mla_gate_skip(g, "parity", "long contexts", "none lies between the answer's length and the model's maximum of %zu tokens", mla_model_config(g->model)->max_pos);
    mla_reference_free(&r);
    mla_prompts_free(&prompts);
}

static mla_parity_opts parity_opts(const mla_policy *p, mla_log *log)
{
    mla_parity_opts o = mla_parity_defaults();
    o.chunk = p->chunk;
    o.aa_positions = p->aa_positions;
    if (!isnan(p->min_agreement)) o.min_agreement = p->min_agreement;
    o.min_margin = p->min_margin;
    o.near_tie = p->near_tie;
    o.bootstrap.resamples = p->resamples;
    o.bootstrap.seed = p->seed;
    o.log = log;
    return o;
}

void mla_gate_parity(mla_gate *g)
{
    mla_parity result = {0};
    mla_err why = {0};
    mla_verdict v;
    bool divergence = !isnan(g->p->max_kld) || !isnan(g->p->max_kld_p99) || !isnan(g->p->max_ppl_ratio);
    add_contexts(g);
    mla_parity_input in = {.model = g->rt, .ref = g->ref.n ? &g->ref : NULL};
    if (g->base_rt && g->corpus.ids.n >= 2 && (divergence || !g->ref.n)) {
        size_t most = g->p->rows * g->p->row_tokens;
        in.base = g->base_rt;
        in.corpus = g->corpus.ids.id;
        in.n_corpus = g->p->rows && g->corpus.ids.n > most ? most : g->corpus.ids.n;
        in.row_tokens = g->p->row_tokens;
    }
    if (!in.ref && !in.base) {
        mla_gate_add(g, &MLA_RULE("parity", "parity", MLA_NO_EVIDENCE), "nothing to compare with: give --reference FILE, --against BASE, or both");
        return;
    }
    mla_parity_opts o = parity_opts(g->p, g->in->log);
    mla_jv *report = mla_jv_set_obj(g->reports, "parity");
    mla_status st = mla_parity_run(&result, &in, &o, &why);
    if (st == MLA_OK) st = mla_parity_report(report, &result, &v, &why);
    if (st != MLA_OK) {
        mla_jv_remove(g->reports, "parity");
        mla_gate_unjudged(g, "parity", "parity", &why);
    } else {
        mla_gate_rules_parity(g, report);
    }
    mla_parity_free(&result);
}
