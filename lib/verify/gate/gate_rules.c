/* The gate's rules over a finished parity report: agreement, strata, divergence. */
#include <stdio.h>
#include <string.h>

#include "verify/gate/gate_parts.h"
#include "verify/report/report.h"

static size_t count(const mla_jv *o, const char *key)
{
    size_t n = 0;
    (void)mla_jv_size(mla_jv_get(o, key), &n);
    return n;
}

/* One agreement against its threshold, by the lower end of Wilson's interval. */
static void agreement(mla_gate *g, const char *name, const mla_jv *o, double min)
{
    size_t n = count(o, "positions"), agree = count(o, "agree");
    mla_interval w = mla_wilson(agree, n, MLA_Z95);
    mla_verdict v = min > 0 ? mla_gate_agreement(agree, n, min) : n ? MLA_PASS : MLA_NO_EVIDENCE;
    mla_gate_rule r = {"parity", name, v, n ? (double)agree / (double)n : (double)NAN, w.low, w.high, min};
    if (v == MLA_NO_EVIDENCE)
        mla_gate_add(g, &r, "%zu of %zu positions agree; at least %zu are needed to show %g", agree, n, mla_wilson_needed(min > 0 ? min : 0.5, MLA_Z95), min);
    else
        mla_gate_add(g, &r, "%zu of %zu positions agree; lower bound %.5f (by prompt %.5f), required %g", agree, n, w.low, mla_doc_num(o, "bootstrap_low"), min);
}

/* ---- strata ---- */
static bool same_stratum(const mla_policy_stratum *s, const mla_jv *o)
{
    const char *by = mla_doc_str(o, "by", "");
    if (strcmp(by, s->by)) return false;
    if (!strcmp(by, "context")) return isnan(s->from) || mla_doc_num(o, "from") == s->from;
    return !s->is[0] || !strcmp(mla_doc_str(o, by, ""), s->is);
}

static void name_stratum(char *out, size_t room, const mla_jv *o)
{
    const char *by = mla_doc_str(o, "by", "");
    if (!strcmp(by, "context"))
        (void)snprintf(out, room, "context %.0f-%.0f", mla_doc_num(o, "from"), mla_doc_num(o, "below") - 1);
    else
        (void)snprintf(out, room, "%s %.60s", by, mla_doc_str(o, by, ""));
}

static void stratum(mla_gate *g, const mla_policy_stratum *s, const mla_jv *list)
{
    char name[96];
    size_t seen = 0;
    for (const mla_jv *o = mla_jv_first(list); o; o = mla_jv_next(o)) {
        if (!same_stratum(s, o)) continue;
        const mla_jv *sure = mla_jv_get(o, "confident");
        seen++;
        name_stratum(name, sizeof name, o);
        bool named = s->is[0] || !isnan(s->from);
        if (!named && count(sure, "positions") < s->min_positions)
            mla_gate_skip(g, "parity", name, "%zu confident positions; the policy judges strata of %zu and more", count(sure, "positions"), s->min_positions);
        else
            agreement(g, name, sure, s->min_agreement);
    }
    if (seen) return;
    if (!s->is[0] && isnan(s->from)) {
        mla_gate_skip(g, "parity", s->by, "no case tells its %s", s->by);
        return;
    }
    if (s->is[0]) (void)snprintf(name, sizeof name, "%s %s", s->by, s->is);
    else (void)snprintf(name, sizeof name, "context from %.0f", s->from);
    mla_gate_rule r = MLA_RULE("parity", name, MLA_NO_EVIDENCE);
    r.threshold = s->min_agreement;
    mla_gate_add(g, &r, "no position of the sample lies in this stratum");
}

/* ---- divergence: passes when the upper end of the interval is within the limit ---- */
static void at_most(mla_gate *g, const char *name, const char *unit, mla_gate_rule r)
{
    r.section = "parity";
    r.name = name;
    if (isnan(r.value)) {
        r.verdict = MLA_NO_EVIDENCE;
        mla_gate_add(g, &r, "not measured: it needs --against BASE and text");
        return;
    }
    double top = isnan(r.high) ? r.value : r.high;
    r.verdict = top <= r.threshold ? MLA_PASS : r.value > r.threshold ? MLA_FAIL : MLA_NO_EVIDENCE;
    mla_gate_add(g, &r, "%.6g%s, %s %.6g, allowed %g", r.value, unit, isnan(r.high) ? "judged as" : "upper bound", top, r.threshold);
}

static double num(const mla_jv *o, const char *key) { return mla_jv_is_num(mla_jv_get(o, key)) ? mla_doc_num(o, key) : (double)NAN; }

static void exact_decodes(mla_gate *g, const mla_jv *report)
{
    const mla_jv *fd = mla_jv_get(report, "free_decode");
    size_t n = count(fd, "cases"), exact = count(fd, "exact");
    mla_gate_rule r = MLA_RULE("parity", "free answers", MLA_NO_EVIDENCE);
    mla_interval w = mla_wilson(exact, n, MLA_Z95);
    r.threshold = g->p->min_exact_decodes;
    if (n) {
        r.value = (double)exact / (double)n;
        r.low = w.low;
        r.high = w.high;
        r.verdict = r.value >= r.threshold ? MLA_PASS : MLA_FAIL;
    }
    mla_gate_add(g, &r, "%zu of %zu free answers are identical to their end, required a share of %g", exact, n, r.threshold);
}

void mla_gate_rules_parity(mla_gate *g, const mla_jv *report)
{
    static const char *const OWN[] = {"agreement", "kld", NULL};
    const mla_policy *p = g->p;
    const mla_jv *kld = mla_jv_get(report, "kld"), *ppl = mla_jv_get(report, "ppl");
    if (!isnan(p->min_agreement)) agreement(g, "agreement at confident positions", mla_jv_get(report, "confident"), p->min_agreement);
    if (!isnan(p->min_agreement_all)) agreement(g, "agreement at all positions", report, p->min_agreement_all);
    mla_gate_take(g, "parity", report, OWN);
    if (!isnan(p->min_exact_decodes)) exact_decodes(g, report);
    for (size_t i = 0; i < p->n_stratum; i++) stratum(g, &p->stratum[i], mla_jv_get(report, "strata"));
    mla_gate_rule r = MLA_RULE("", "", MLA_PASS);
    if (!isnan(p->max_kld)) {
        r.value = num(kld, "mean"), r.low = num(kld, "mean_low"), r.high = num(kld, "mean_high"), r.threshold = p->max_kld;
        at_most(g, "mean KL divergence", " nats", r);
    }
    r.low = r.high = NAN;
    if (!isnan(p->max_kld_p99)) {
        r.value = num(kld, "p99"), r.threshold = p->max_kld_p99;
        at_most(g, "KL divergence, 99th percentile", " nats", r);
    }
    if (!isnan(p->max_ppl_ratio)) {
        r.value = num(ppl, "ratio"), r.low = num(ppl, "ratio_low"), r.high = num(ppl, "ratio_high"), r.threshold = p->max_ppl_ratio;
        at_most(g, "perplexity ratio", "", r);
    }
}
