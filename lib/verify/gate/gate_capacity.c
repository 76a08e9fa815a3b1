/* The gate's rules about capacity: what the release claims about cache bytes and sequences. */
#include <string.h>

#include "verify/folder/capacity.h"
#include "verify/gate/gate_parts.h"

static mla_status figures(mla_capacity *out, const mla_gate *g, const mla_model *m, const char *kv, mla_err *err)
{
    const mla_config *c = mla_model_config(m);
    mla_capacity_model what = {.cfg = c, .kv = mla_gate_kv(kv), .weight_bytes = (double)mla_model_stored_bytes(m)};
    mla_capacity_machine on = {.gpu_bytes = isnan(g->p->gpu_memory) ? 1e15 : g->p->gpu_memory, .utilisation = MLA_GPU_UTILISATION,
                               .reserve = MLA_GPU_RESERVE, .context = g->p->context_tokens ? g->p->context_tokens : c->max_pos};
    if (what.kv.dtype == MLA_F32) what.kv.dtype = MLA_BF16; /* the reference cache stands for the bf16 one of an engine */
    return mla_capacity_of(out, &what, &on, err);
}

static void limit(mla_gate *g, const char *name, double value, double max, const char *unit)
{
    mla_gate_rule r = {"capacity", name, value <= max ? MLA_PASS : MLA_FAIL, value, NAN, NAN, max};
    mla_gate_add(g, &r, "%.6g%s, allowed %g", value, unit, max);
}

void mla_gate_capacity(mla_gate *g)
{
    const mla_policy *p = g->p;
    mla_capacity own, base;
    mla_err why = {0};
    if (!g->model) {
        mla_gate_add(g, &MLA_RULE("capacity", "capacity", MLA_NO_EVIDENCE), "the model could not be opened");
        return;
    }
    if (figures(&own, g, g->model, p->kv_dtype, &why) != MLA_OK) {
        mla_gate_unjudged(g, "capacity", "capacity", &why);
        return;
    }
    mla_jv *o = mla_jv_set_obj(g->reports, "capacity");
    mla_jv_set_f64(o, "kv_bytes_per_token", own.kv_bytes_per_token);
    mla_jv_set_f64(o, "state_bytes_per_sequence", own.state_bytes_per_sequence);
    mla_jv_set_f64(o, "weight_bytes", own.weight_bytes);
    mla_jv_set_size(o, "slot_limit", (size_t)own.slot_limit);
    if (!isnan(p->max_kv_bytes)) limit(g, "KV bytes per token", own.kv_bytes_per_token, p->max_kv_bytes, " bytes");
    if (!isnan(p->max_kv_ratio)) {
        if (!g->base) mla_gate_add(g, &MLA_RULE("capacity", "KV bytes over the base's", MLA_NO_EVIDENCE), "not compared: it needs --against BASE");
        else if (figures(&base, g, g->base, "bf16", &why) != MLA_OK) mla_gate_unjudged(g, "capacity", "KV bytes over the base's", &why);
        else limit(g, "KV bytes over the base's", own.kv_bytes_per_token / base.kv_bytes_per_token, p->max_kv_ratio, " of the base's bf16 cache");
    }
    if (isnan(p->gpu_memory)) return;
    mla_jv_set_f64(o, "sequences", own.sequences);
    if (!isnan(p->min_sequences)) {
        mla_gate_rule r = {"capacity", "sequences", own.sequences >= p->min_sequences ? MLA_PASS : MLA_FAIL, own.sequences, NAN, NAN, p->min_sequences};
        mla_gate_add(g, &r, "%.2f sequences of %zu tokens fit into %.6g GB, required %g", own.sequences,
                     p->context_tokens ? p->context_tokens : mla_model_config(g->model)->max_pos, p->gpu_memory / 1e9, p->min_sequences);
    }
    if (p->int32_slots) {
        mla_gate_rule r = {"capacity", "int32 slots", own.slot_exceeded ? MLA_FAIL : MLA_PASS, own.cached_tokens, NAN, NAN, (double)own.slot_limit};
        mla_gate_add(g, &r, "%.0f slots of %zu values in use; 32-bit element offsets reach %zu", own.cached_tokens, own.row_values, (size_t)own.slot_limit);
    }
}
