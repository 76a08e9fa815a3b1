/* Cache formats side by side: what each costs in bytes and in KL divergence, on the same text, against an f32 cache.
 *
 * Stored scales come from the ranges over one text, figures from another. fp8 has the scales that mla_cal_measure
 * chooses; every format is calibrate/codec.h's definition, passed through the runtime's codec door, so that a format
 * needs no kernel to be judged. */
#ifndef MLA_CALIBRATE_STUDY_H
#define MLA_CALIBRATE_STUDY_H
#include "calibrate/calibrate.h"
#include "calibrate/codec.h"

typedef struct {
    mla_kv_format format;
    double bytes;              /* of one token over all layers that cache, the divisors of layout P included */
    mla_cal_verdict v;         /* against the f32 cache */
} mla_study_row;

typedef struct {
    mla_study_row row[MLA_KV_FORMATS];
    double f32_bytes;          /* of the reference */
    size_t tokens, row_tokens; /* of the ranges */
    bool retrofit;
} mla_study;

typedef struct {
    const int32_t *ids, *judge; /* (n), (n_judge) */
    size_t n, n_judge;
} mla_study_texts;

/* rt: opened with a bf16 cache, without the MTP head (its cache changes no logits of the trunk). o as in
 * mla_cal_measure, whose refusals hold. */
MLA_CHECKED mla_status mla_study_run(mla_study *out, mla_rt *rt, const mla_study_texts *t, const mla_cal_opts *o, mla_err *err);
/* A table. */
void mla_study_text(const mla_study *s, mla_str *out);
/* "mla-kv-study/1" */
MLA_CHECKED mla_status mla_study_json(mla_json **doc, const mla_study *s, mla_err *err);
/* Mean KLD of every format as bars. */
MLA_CHECKED mla_status mla_study_svg(mla_str *out, const mla_study *s, mla_err *err);
#endif
