/* A study for people, for machines, and as a chart. */
#include <stdio.h>

#include "base/svg.h"
#include "calibrate/study.h"

static double share(const mla_cal_verdict *v) { return v->positions ? (double)v->agree / (double)v->positions : 0; }

void mla_study_text(const mla_study *s, mla_str *out)
{
    mla_str_printf(out, "%s caches against f32 (%.0f bytes per token) over %zu positions; scales from %zu tokens\n",
                   s->retrofit ? "latent" : "key and value", s->f32_bytes, s->row[0].v.positions, s->tokens);
    mla_str_printf(out, "%-11s %11s %10s %10s %10s  %s\n", "cache", "bytes/token", "KLD mean", "p99", "max", "top-1 equal");
    for (size_t i = 0; i < MLA_KV_FORMATS; i++) {
        const mla_study_row *r = &s->row[i];
        mla_str_printf(out, "%-11s %11.0f %10.3g %10.3g %10.3g  %.5f\n", mla_kv_format_name(r->format), r->bytes, r->v.kld_mean, r->v.kld_p99,
                       r->v.kld_max, share(&r->v));
    }
}

mla_status mla_study_json(mla_json **doc, const mla_study *s, mla_err *err)
{
    mla_status st = mla_json_new_object(doc, err);
    if (st != MLA_OK) return st;
    mla_jv *root = mla_json_root(*doc), *list;
    mla_jv_set_str(root, "schema", "mla-kv-study/1");
    mla_jv_set_str(root, "reference", "f32");
    mla_jv_set_f64(root, "reference_bytes_per_token", s->f32_bytes);
    mla_jv_set_bool(root, "retrofit", s->retrofit);
    mla_jv_set_size(root, "tokens", s->tokens);
    mla_jv_set_size(root, "row_tokens", s->row_tokens);
    mla_jv_set_size(root, "positions", s->row[0].v.positions);
    list = mla_jv_set_arr(root, "caches");
    for (size_t i = 0; i < MLA_KV_FORMATS; i++) {
        const mla_study_row *r = &s->row[i];
        mla_jv *o = mla_jv_add_obj(list);
        mla_jv_set_str(o, "format", mla_kv_format_name(r->format));
        mla_jv_set_f64(o, "bytes_per_token", r->bytes);
        mla_jv_set_f64(o, "kld_mean", r->v.kld_mean);
        mla_jv_set_f64(o, "kld_p99", r->v.kld_p99);
        mla_jv_set_f64(o, "kld_max", r->v.kld_max);
        mla_jv_set_size(o, "top1_equal", r->v.agree);
    }
    return MLA_OK;
}

mla_status mla_study_svg(mla_str *out, const mla_study *s, mla_err *err)
{
    char label[MLA_KV_FORMATS][48];
    mla_svg_series series[MLA_KV_FORMATS];
    for (size_t i = 0; i < MLA_KV_FORMATS; i++) {
        (void)snprintf(label[i], sizeof label[i], "%s, %.0f bytes", mla_kv_format_name(s->row[i].format), s->row[i].bytes);
        series[i] = (mla_svg_series){.label = label[i], .y = &s->row[i].v.kld_mean, .n = 1, .kind = MLA_SVG_BARS};
    }
    mla_svg_chart c = {.title = "KV cache formats against an f32 cache", .x_label = "format, bytes per token", .y_label = "mean KL divergence (nat)",
                       .log_y = true, .series = series, .n = MLA_KV_FORMATS};
    return mla_svg_write(out, &c, err);
}
