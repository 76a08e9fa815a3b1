/* The gate's stages that run the model: kernels against fp64, and parity over all references as one sample. */
#include <string.h>

#include "base/alloc.h"
#include "verify/gate/gate_parts.h"
#include "verify/parity/parity_run.h"
#include "verify/reference/record.h"
#include "verify/selfcheck/selfcheck.h"

void mla_gate_selfcheck(mla_gate *g)
{
    mla_err why = {0};
    mla_verdict v;
    mla_jv *report = mla_jv_set_obj(g->reports, "selfcheck");
    mla_selfcheck_opts o = {.cfg = g->model ? mla_model_config(g->model) : NULL, .far = g->p->far, .slots = g->p->slots, .ranks = g->p->ranks, .tested = g->in->tested,
                            .allow_untested = g->in->allow_untested, .log = g->in->log};
    if (mla_selfcheck(report, g->in->be, &o, &v, &why) != MLA_OK) {
        mla_jv_remove(g->reports, "selfcheck");
        mla_gate_unjudged(g, "selfcheck", "kernels", &why);
        return;
    }
    mla_gate_take(g, "selfcheck", report, NULL);
}

/* The base answers long prompts greedily; its answers become cases of the reference. */
static void add_contexts(mla_gate *g)
{
    mla_err why = {0};
    size_t added = 0;
    if (!g->p->n_context) return;
    if (!g->base_rt || !g->corpus.ids.n) {
        mla_gate_add(g, &MLA_RULE("parity", "long contexts", MLA_NO_EVIDENCE), "not measured: they need --against BASE and text");
        return;
    }
    size_t most = mla_model_config(g->model)->max_pos;
    mla_contexts c = {.length = g->p->context, .n = g->p->n_context, .answer_tokens = g->p->answer_tokens, .most = most, .text = &g->corpus.ids};
    mla_record_opts o = {.chunk = g->p->chunk, .min_margin = g->p->min_margin, .log = g->in->log};
    mla_status st = mla_record_contexts(&g->ref, &added, mla_jv_set_arr(g->doc, "contexts_left_out"), g->base_rt, &c, &o, &why);
    if (st != MLA_OK) mla_gate_unjudged(g, "parity", "long contexts", &why);
    else if (!added) mla_gate_skip(g, "parity", "long contexts", "none lies between the answer's length and the model's maximum of %zu tokens", most);
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
