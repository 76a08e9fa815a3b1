/* Capacity: the document and its tables. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "verify/folder/capacity.h"
#include "verify/report/report.h"

static double two_decimals(double x) { return round(x * 100) / 100; }

static void put_figures(mla_jv *o, const mla_capacity *c, mla_kv_type kv)
{
    mla_jv_set_str(o, "layout", c->layout == MLA_LAYOUT_NONE ? "base" : mla_layout_name(c->layout));
    mla_jv_set_str(o, "kv_dtype", mla_kv_type_name(kv));
    mla_jv_set_f64(o, "kv_bytes_per_token", c->kv_bytes_per_token);
    mla_jv_set_f64(o, "kv_bytes_per_sequence", c->kv_bytes_per_sequence);
    mla_jv_set_f64(o, "state_bytes_per_sequence", c->state_bytes_per_sequence);
    mla_jv_set_f64(o, "weight_bytes", round(c->weight_bytes));
    mla_jv_set_bool(o, "fits", c->fits);
    mla_jv_set_f64(o, "kv_budget_bytes", floor(c->budget));
    mla_jv_set_f64(o, "sequences", two_decimals(c->sequences));
    mla_jv_set_f64(o, "tokens_of_one_sequence", c->tokens);
    mla_jv *s = mla_jv_set_obj(o, "slots");
    mla_jv_set_size(s, "row_values", c->row_values);
    mla_jv_set_f64(s, "int32_limit", (double)c->slot_limit);
    mla_jv_set_f64(s, "cached_tokens", floor(c->cached_tokens));
    mla_jv_set_bool(s, "exceeds_int32", c->slot_exceeded);
}

/* What people plan with: the model as asked, half the KV values, FP8 caches, the usual weight formats. */
typedef struct {
    char name[64];
    mla_capacity_model m;
} scenario;
#define SCENARIOS 6

static size_t list_scenarios(scenario *s, const mla_capacity_query *q)
{
    static const char *const KIND[] = {"fp8", "int4", "exl3"};
    mla_capacity_model m = q->model;
    bool latent = m.cfg->mla.layout != MLA_LAYOUT_NONE || m.cfg->family == MLA_FAM_DEEPSEEK, asked = m.rank || m.keep > 0;
    const char *what = latent ? "as stored" : asked ? "as asked" : "keep 0.5";
    size_t n = 0;
    s[n] = (scenario){.name = "as asked", .m = m};
    n++;
    if (!latent && !asked) m.keep = 0.5;
    for (size_t i = 0; i < 2; i++, n++) {
        m.kv = (mla_kv_type){i ? MLA_F8_E4M3 : MLA_BF16, i && m.kv.keys16};
        s[n].m = m;
        (void)snprintf(s[n].name, sizeof s[n].name, "%s, %s KV", what, mla_kv_type_name(m.kv));
    }
    for (size_t i = 0; i < 3 && q->params > 0; i++, n++) {
        m.weight_bytes = q->params * mla_weight_bits(KIND[i]) / 8;
        s[n].m = m;
        (void)snprintf(s[n].name, sizeof s[n].name, "%s, fp8 KV, %s weights", what, KIND[i]);
    }
    return n;
}

static mla_status put_scenarios(mla_jv *doc, const scenario *s, size_t n, const mla_capacity_machine *g, mla_err *err)
{
    mla_jv *list = mla_jv_set_arr(doc, "scenarios");
    for (size_t i = 0; i < n; i++) {
        mla_capacity c;
        if (mla_capacity_of(&c, &s[i].m, g, err) != MLA_OK) return mla_wrap(err, "%s", s[i].name);
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_str(o, "name", s[i].name);
        put_figures(o, &c, s[i].m.kv);
    }
    return MLA_OK;
}

static mla_status put_gpus(mla_jv *doc, const mla_capacity_query *q, const scenario *s, size_t n, mla_err *err)
{
    mla_jv *list = mla_jv_set_arr(doc, "gpus");
    for (size_t i = 0; i < q->n_gpus; i++) {
        mla_capacity_machine g = q->machine;
        g.gpu_bytes = q->gpus[i];
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_f64(o, "gpu_memory_bytes", g.gpu_bytes);
        mla_status st = put_scenarios(o, s, n, &g, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

mla_status mla_capacity_report(mla_json **out, const mla_capacity_query *q, mla_err *err)
{
    mla_capacity c;
    mla_json *d = NULL;
    *out = NULL;
    mla_status st = mla_capacity_of(&c, &q->model, &q->machine, err);
    if (st == MLA_OK) st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_jv *doc = mla_json_root(d);
    mla_jv_set_str(doc, "schema", MLA_CAPACITY_SCHEMA);
    mla_jv *m = mla_jv_set_obj(doc, "model");
    mla_jv_set_str(m, "name", q->name);
    mla_jv_set_str(m, "architecture", q->model.cfg->architecture);
    if (q->params > 0) mla_jv_set_f64(m, "parameters", q->params);
    mla_jv *a = mla_jv_set_obj(doc, "assumptions");
    mla_jv_set_f64(a, "gpu_memory_bytes", q->machine.gpu_bytes);
    mla_jv_set_f64(a, "utilisation", q->machine.utilisation);
    mla_jv_set_f64(a, "reserve_bytes", q->machine.reserve);
    mla_jv_set_size(a, "context", q->machine.context);
    mla_jv_set_str(a, "weights", q->weight_source);
    put_figures(doc, &c, q->model.kv);
    scenario s[SCENARIOS];
    size_t n = list_scenarios(s, q);
    st = put_scenarios(doc, s, n, &q->machine, err);
    if (st == MLA_OK) st = put_gpus(doc, q, s, n, err);
    if (st == MLA_OK && !mla_jv_get(doc, "gpus")) st = mla_fail(err, MLA_ENOMEM, "capacity report");
    if (st == MLA_OK)
        *out = d;
    else
        mla_json_free(d);
    return st;
}

static void put_bytes(mla_str *out, double bytes)
{
    char buf[32];
    mla_str_printf(out, "%12s", mla_bytes_text(buf, sizeof buf, bytes));
}

static bool flag(const mla_jv *o, const char *key)
{
    bool b = false;
    (void)mla_jv_bool(mla_jv_get(o, key), &b);
    return b;
}

static void put_own(mla_str *out, const mla_jv *doc)
{
    const mla_jv *a = mla_jv_get(doc, "assumptions"), *s = mla_jv_get(doc, "slots");
    mla_doc_line(out, mla_doc_str(mla_jv_get(doc, "model"), "name", "model"));
    mla_str_printf(out, ": %s KV, %.0f bytes per token", mla_doc_str(doc, "kv_dtype", ""), mla_doc_num(doc, "kv_bytes_per_token"));
    mla_str_put(out, "\n  KV of one sequence ");
    put_bytes(out, mla_doc_num(doc, "kv_bytes_per_sequence"));
    mla_str_printf(out, "  at %.0f tokens\n  delta-net state    ", mla_doc_num(a, "context"));
    put_bytes(out, mla_doc_num(doc, "state_bytes_per_sequence"));
    mla_str_put(out, "  per sequence\n  weights            ");
    put_bytes(out, mla_doc_num(doc, "weight_bytes"));
    mla_str_put(out, "  ");
    mla_doc_line(out, mla_doc_str(a, "weights", ""));
    mla_str_put(out, "\n  left for caches    ");
    put_bytes(out, mla_doc_num(doc, "kv_budget_bytes"));
    mla_str_printf(out, "  of %.1f GB x %g utilisation - %.2f GiB reserve\n", mla_doc_num(a, "gpu_memory_bytes") / 1e9,
                   mla_doc_num(a, "utilisation"), mla_doc_num(a, "reserve_bytes") / 1073741824.0);
    if (!flag(doc, "fits")) mla_str_put(out, "  weights and reserve alone do not fit\n");
    mla_str_printf(out, "  sequences          %12.2f\n  longest sequence   %12.0f tokens\n", mla_doc_num(doc, "sequences"),
                   mla_doc_num(doc, "tokens_of_one_sequence"));
    mla_str_printf(out, "  int32 slot limit   %12.0f slots of %.0f values; %.0f in use%s\n", mla_doc_num(s, "int32_limit"),
                   mla_doc_num(s, "row_values"), mla_doc_num(s, "cached_tokens"),
                   flag(s, "exceeds_int32") ? ": EXCEEDED, kernels with 32-bit element offsets wrap" : "");
}

static void put_cards(mla_str *out, const mla_jv *doc)
{
    const mla_jv *cards = mla_jv_get(doc, "gpus"), *own = mla_jv_first(mla_jv_get(doc, "scenarios"));
    if (!mla_jv_first(cards)) return;
    mla_str_printf(out, "\nlongest sequence, tokens\n  %-32s", "");
    for (const mla_jv *g = mla_jv_first(cards); g; g = mla_jv_next(g)) mla_str_printf(out, " %8.1f GB", mla_doc_num(g, "gpu_memory_bytes") / 1e9);
    mla_str_put(out, "\n");
    for (size_t i = 0; own; own = mla_jv_next(own), i++) {
        mla_str_printf(out, "  %-32s", mla_doc_str(own, "name", ""));
        for (const mla_jv *g = mla_jv_first(cards); g; g = mla_jv_next(g)) {
            const mla_jv *s = mla_jv_first(mla_jv_get(g, "scenarios"));
            for (size_t k = 0; s && k < i; k++) s = mla_jv_next(s);
            if (flag(s, "fits"))
                mla_str_printf(out, " %11.0f", mla_doc_num(s, "tokens_of_one_sequence"));
            else
                mla_str_printf(out, " %11s", "no room");
        }
        mla_str_put(out, "\n");
    }
}

void mla_capacity_text(mla_str *out, const mla_jv *doc)
{
    const mla_jv *a = mla_jv_get(doc, "assumptions");
    put_own(out, doc);
    mla_str_printf(out, "\non %.1f GB at %.0f tokens\n  %-32s %11s %12s %10s\n", mla_doc_num(a, "gpu_memory_bytes") / 1e9,
                   mla_doc_num(a, "context"), "", "weights", "KV/sequence", "sequences");
    for (const mla_jv *v = mla_jv_first(mla_jv_get(doc, "scenarios")); v; v = mla_jv_next(v)) {
        mla_str_printf(out, "  %-32s", mla_doc_str(v, "name", ""));
        put_bytes(out, mla_doc_num(v, "weight_bytes"));
        put_bytes(out, mla_doc_num(v, "kv_bytes_per_sequence"));
        mla_str_printf(out, " %10.2f%s\n", mla_doc_num(v, "sequences"),
                       flag(mla_jv_get(v, "slots"), "exceeds_int32") ? "  beyond the int32 slot limit" : "");
    }
    put_cards(out, doc);
}
