/* What was measured and judged, for people and for machines. */
#include <math.h>
#include <stdio.h>

#include "calibrate/parts.h"
#include "io/sha256.h"

static double share(uint64_t part, uint64_t of) { return of ? (double)part / (double)of : 0; }

static void text_part(const mla_cal *c, size_t layer, const mla_cal_part *p, mla_str *out)
{
    char text[32], bound[32] = "";
    if (!p->name) return;
    if (p->bound > 0) snprintf(bound, sizeof bound, ", bound %.4g", p->bound);
    mla_str_printf(out, "%s %s: scale %.6g, max %.4g%s, rms %.4g", mla_cal_layer_text(layer, text), p->name, (double)p->scale, p->amax, bound,
                   sqrt(p->sum2 / (double)p->n));
    if (c->o.percentile > 0) mla_str_printf(out, ", %g%% %.4g", c->o.percentile, p->percentile);
    if (p->judged)
        mla_str_printf(out, ", saturated %llu, underflowed %.3g %%", (unsigned long long)p->saturated, 100 * share(p->underflowed, p->judged));
    if (p->wide) mla_str_put(out, ", judged in bf16");
    mla_str_put(out, "\n");
}

void mla_cal_text(const mla_cal *c, mla_str *out)
{
    for (size_t i = 0; i < c->n; i++) {
        text_part(c, c->layer[i].layer, &c->layer[i].k, out);
        text_part(c, c->layer[i].layer, &c->layer[i].v, out);
    }
    const mla_cal_verdict *v = &c->verdict;
    if (!v->positions) return;
    mla_str_printf(out, "%s against bf16 cache over %zu positions: KLD mean %.3g, p99 %.3g, max %.3g nat; top-1 agreement %.5f\n", c->keys16 ? "fp8-keys16" : "FP8", v->positions,
                   v->kld_mean, v->kld_p99, v->kld_max, (double)v->agree / (double)v->positions);
}

static void json_part(const mla_cal *c, const mla_cal_part *p, mla_jv *o)
{
    mla_jv_set_str(o, "what", p->name);
    mla_jv_set_f64(o, "scale", (double)p->scale);
    mla_jv_set_f64(o, "amax", p->amax);
    mla_jv_set_f64(o, "rms", sqrt(p->sum2 / (double)p->n));
    if (p->bound > 0) mla_jv_set_f64(o, "bound", p->bound);
    if (c->o.percentile > 0) mla_jv_set_f64(o, "percentile", p->percentile);
    mla_jv_set_f64(o, "observed", (double)p->n);
    if (p->error[0] > 0) {
        mla_jv *e = mla_jv_set_arr(o, "alignment_errors");
        for (size_t j = 0; j < CAL_TRIES; j++) mla_jv_add_f64(e, p->error[j]);
    }
    if (!p->judged) return;
    mla_jv_set_f64(o, "judged", (double)p->judged);
    mla_jv_set_f64(o, "saturated", (double)p->saturated);
    mla_jv_set_f64(o, "underflowed", (double)p->underflowed);
}

mla_status mla_cal_json(mla_json **doc, const mla_cal *c, mla_err *err)
{
    char hex[65];
    mla_status st = mla_json_new_object(doc, err);
    if (st != MLA_OK) return st;
    mla_jv *root = mla_json_root(*doc), *o, *layers;
    mla_jv_set_str(root, "format", MLA_KV_SCALES_FORMAT);
    mla_jv_set_str(root, "dtype", "float8_e4m3fn");
    if (c->keys16) mla_jv_set_str(root, "cache", "fp8-keys16");
    mla_jv_set_str(root, "method", c->o.percentile > 0 ? "percentile" : "absmax");
    if (c->o.percentile > 0) mla_jv_set_f64(root, "percentile", c->o.percentile);
    mla_jv_set_f64(root, "headroom", c->o.headroom);
    o = mla_jv_set_obj(root, "corpus");
    mla_jv_set_size(o, "tokens", c->tokens);
    mla_jv_set_size(o, "rows", c->rows);
    mla_jv_set_size(o, "row_tokens", c->o.row_tokens);
    if (c->has_corpus_sha256) {
        mla_hex(c->corpus_sha256, 32, hex);
        mla_jv_set_str(o, "sha256", hex);
    }
    layers = mla_jv_set_obj(root, "layers");
    for (size_t i = 0; i < c->n; i++) {
        const mla_cal_layer *l = &c->layer[i];
        char key[32];
        if (l->layer >= MLA_MTP(0)) snprintf(key, sizeof key, "mtp.%zu", l->layer - MLA_MTP(0));
        else snprintf(key, sizeof key, "%zu", l->layer);
        o = mla_jv_set_obj(layers, key);
        json_part(c, &l->k, mla_jv_set_obj(o, "k"));
        if (l->v.name) json_part(c, &l->v, mla_jv_set_obj(o, "v"));
    }
    if (c->verdict.positions) {
        o = mla_jv_set_obj(root, "fp8_against_bf16");
        mla_jv_set_size(o, "positions", c->verdict.positions);
        mla_jv_set_size(o, "top1_equal", c->verdict.agree);
        mla_jv_set_f64(o, "kld_mean", c->verdict.kld_mean);
        mla_jv_set_f64(o, "kld_p99", c->verdict.kld_p99);
        mla_jv_set_f64(o, "kld_max", c->verdict.kld_max);
    }
    return MLA_OK;
}
