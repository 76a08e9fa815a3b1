/* Drafting: gates and figures. */
#include <math.h>
#include <stdio.h>

#include "verify/paths/drafts.h"
#include "verify/report/report.h"

mla_interval mla_newcombe(size_t a, size_t n, size_t b, size_t m)
{
    mla_interval p = mla_wilson(a, n, MLA_Z95), q = mla_wilson(b, m, MLA_Z95);
    double x = n ? (double)a / (double)n : 0.5, y = m ? (double)b / (double)m : 0.5, d = x - y;
    return (mla_interval){d - hypot(x - p.low, q.high - y), d + hypot(p.high - x, y - q.low)};
}

static void put(mla_jv *doc, const char *key, const mla_drafts *r, size_t most)
{
    mla_jv *list = mla_jv_set_arr(doc, key);
    for (size_t k = 0; k < most; k++) {
        mla_jv *o = mla_jv_add_obj(list);
        double rounds = r[k].rounds ? (double)r[k].rounds : 1, sum = 1;
        mla_jv_set_size(o, "drafts", r[k].k);
        mla_jv_set_size(o, "rounds", r[k].rounds);
        mla_jv_set_size(o, "answers", r[k].answers);
        mla_jv_set_size(o, "exact", r[k].exact);
        mla_jv_set_size(o, "near_ties", r[k].near_ties);
        mla_jv *a = mla_jv_set_arr(o, "acceptance");
        for (size_t i = 0; i < r[k].k; i++) {
            mla_jv_add_f64(a, (double)r[k].accepted[i] / rounds);
            sum += (double)r[k].accepted[i] / rounds;
        }
        mla_jv_set_f64(o, "tokens_per_round", sum);
    }
}

static void judge(mla_verdict *worst, mla_verdict v)
{
    if (v == MLA_FAIL || (v == MLA_NO_EVIDENCE && *worst == MLA_PASS)) *worst = v;
}

static mla_verdict equal_answers(mla_jv *gates, const mla_drafts *r)
{
    char name[48];
    (void)snprintf(name, sizeof name, "answers with %zu draft%s", r->k, r->k == 1 ? "" : "s");
    mla_verdict v = r->parted ? MLA_FAIL : r->rounds ? MLA_PASS : MLA_NO_EVIDENCE;
    if (r->parted) mla_doc_gate(gates, name, v, "drafting changes the answer beyond a near-tie: %s", r->where);
    else mla_doc_gate(gates, name, v, "%zu of %zu answers equal those without drafts, %zu part at a near-tie; %zu tokens in %zu rounds", r->exact, r->answers, r->near_ties, r->tokens, r->rounds);
    return v;
}

static mla_verdict acceptance(mla_jv *gates, const mla_drafts *m, const mla_drafts *b, size_t i, double max_loss)
{
    char name[48];
    mla_interval w = mla_newcombe(b->accepted[i], b->rounds, m->accepted[i], m->rounds);
    bool some = m->rounds && b->rounds;
    double own = some ? (double)m->accepted[i] / (double)m->rounds : 0, base = some ? (double)b->accepted[i] / (double)b->rounds : 0;
    bool sharp = some && (w.high - w.low) / 2 <= max_loss; /* enough rounds to see a loss of the size that is allowed */
    mla_verdict v = some && base - own > max_loss && w.low > 0 ? MLA_FAIL : sharp && base - own <= max_loss ? MLA_PASS : MLA_NO_EVIDENCE;
    (void)snprintf(name, sizeof name, "acceptance at step %zu", i + 1);
    mla_jv *g = mla_doc_gate(gates, name, v, "%.4f of %zu rounds, the base %.4f of %zu; a loss of %.4f [%.4f, %.4f], allowed %g", own, m->rounds, base, b->rounds,
                             base - own, w.low, w.high, max_loss);
    mla_jv_set_f64(g, "value", base - own);
    mla_jv_set_f64(g, "low", w.low);
    mla_jv_set_f64(g, "high", w.high);
    mla_jv_set_f64(g, "threshold", max_loss);
    return v;
}

void mla_drafts_report(mla_jv *doc, const mla_drafts *model, const mla_drafts *base, size_t most, double max_loss, mla_verdict *verdict)
{
    mla_jv *gates = mla_jv_set_arr(doc, "gates");
    *verdict = MLA_PASS;
    for (size_t k = 0; k < most; k++) judge(verdict, equal_answers(gates, &model[k]));
    for (size_t i = 0; base && !isnan(max_loss) && i < most; i++) judge(verdict, acceptance(gates, &model[most - 1], &base[most - 1], i, max_loss));
    put(doc, "model", model, most);
    if (base) put(doc, "base", base, most);
}
