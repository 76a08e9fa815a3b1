/* inspect: FP8 KV-cache scales, where they come from, and which engines will not find them. */
#include <math.h>
#include <string.h>

#include "model/kv_names.h"
#include "verify/inspect/inspect_parts.h"

typedef struct {
    size_t n, bad, differing, layers; /* layers: distinct ones, while names come sorted by layer text */
    float first;
    size_t last_layer;
    const char *producer; /* of the first scale; several spellings at once are noted */
    bool mixed;
} tally;

static void put_scale(mla_jv *doc, mla_jv *list, const mla_tensor *t, tally *k)
{
    size_t layer;
    const mla_kv_spelling *sp = mla_kv_spelling_of(t->name, &layer);
    float v = (float)NAN;
    if (!sp) return;
    const char *state = mla_kv_scale_state(t);
    mla_jv *o = mla_jv_add_obj(list);
    mla_jv_set_str(o, "name", t->name);
    mla_jv_set_size(o, "layer", layer);
    mla_jv_set_str(o, "part", mla_kv_part_name(sp->part));
    mla_jv_set_str(o, "spelling", sp->producer);
    if (mla_kv_scale_value(t, &v)) mla_jv_set_f64(o, "value", (double)v);
    mla_jv_set_str(o, "state", state);
    if (strcmp(state, "ok")) {
        k->bad++;
        mla_inspect_note(doc, "%s: KV scale is %s: engines refuse it or replace it by 1.0 silently", t->name, state);
    }
    if (k->n == 0) k->first = v, k->producer = sp->producer;
    k->mixed = k->mixed || strcmp(k->producer, sp->producer);
    k->layers += k->n == 0 || layer != k->last_layer;
    k->last_layer = layer;
    k->n++;
    k->differing += k->n > 1 && !(v == k->first);
}

/* Calibrated scales that a loader drops equal no calibration. */
static void note_consumers(mla_jv *doc, const mla_config *c, const tally *k)
{
    size_t full = mla_config_full_layers(c);
    bool hybrid = c->family == MLA_FAM_QWEN3_5 || c->family == MLA_FAM_QWEN3_NEXT;
    if (c->kv_scheme && k->n == 0)
        mla_inspect_note(doc, "config.json declares an FP8 KV cache, but no scale is stored: engines run it at 1.0");
    if (k->n == 0) return;
    if (k->layers < full) mla_inspect_note(doc, "KV scales in %zu of %zu full-attention layers", k->layers, full);
    if (k->mixed) mla_inspect_note(doc, "KV scales in more than one spelling: a loader that knows one of them drops the others");
    bool own = !strcmp(k->producer, "mla-toolkit");
    if (!own && !c->quant_method)
        mla_inspect_note(doc, "KV scales are stored, but config.json has no quantization_config: engines then load none of them");
    if (!own && c->mla.layout == MLA_LAYOUT_NONE && c->family != MLA_FAM_DEEPSEEK && hybrid && strcmp(k->producer, "ModelOpt"))
        mla_inspect_note(doc, "vLLM before 0.33 does not load KV scales of this spelling (%s) in the Qwen3.5 family: the cache runs at 1.0", k->producer);
    if (!own && (c->mla.layout != MLA_LAYOUT_NONE || c->family == MLA_FAM_DEEPSEEK))
        mla_inspect_note(doc, "vLLM 0.33 loads no stored KV scale into an MLA layer: fold it into the weights for that engine");
    if (!strcmp(k->producer, "fused") || !strcmp(k->producer, "engine-internal"))
        mla_inspect_note(doc, "KV scales of the %s spelling are dropped by loaders that rename names twice or not at all", k->producer);
}

void mla_inspect_kv_scales(mla_jv *doc, const mla_ckpt *ck, const mla_config *c)
{
    tally k = {0};
    mla_jv *sum = mla_jv_set_obj(doc, "kv_scales"), *list = mla_jv_set_arr(doc, "scales");
    for (size_t i = 0; i < mla_ckpt_count(ck); i++) put_scale(doc, list, mla_ckpt_at(ck, i), &k);
    /* one value everywhere was never measured: it is a policy (mostly 1.0), whatever a config claims */
    bool constant = k.n && k.differing == 0 && (k.n > 2 || k.first == 1);
    const char *provenance = k.n == 0 ? "absent" : k.bad ? "invalid" : constant ? "constant" : "calibrated";
    mla_jv_set_str(sum, "provenance", provenance);
    mla_jv_set_size(sum, "tensors", k.n);
    if (k.producer) mla_jv_set_str(sum, "spelling", k.producer);
    if (c) mla_jv_set_size(sum, "full_attention_layers", mla_config_full_layers(c));
    if (c) mla_jv_set_bool(sum, "declared", c->kv_scheme);
    if (!strcmp(provenance, "constant"))
        mla_inspect_note(doc, "all %zu KV scales equal %g: a constant, not a calibration", k.n, (double)k.first);
    if (c) note_consumers(doc, c, &k);
}
