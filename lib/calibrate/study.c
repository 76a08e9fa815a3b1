/* Cache formats through the runtime's codec door: ranges per group of values first, then every format in step. */
#include "calibrate/study.h"

#include <math.h>

#include "base/alloc.h"
#include "calibrate/parts.h"

typedef struct { /* one part of one layer */
    size_t layer, width, head;
    size_t group, per_head;    /* values of a group, groups of a head */
    float *amax;               /* (width / head, per_head) */
    double most;               /* largest of them */
    float fp8;                 /* the scale that mla_cal_measure chose */
    bool keys;                 /* rotary keys beside a latent, or keys beside values */
} part;

typedef struct {
    mla_rt *rt;
    part *part;                /* (2 layers): 2 i + part */
    size_t layers, cap;
    double headroom;
} ranges;

typedef struct { /* one format's codec */
    const ranges *r;
    mla_kv_format f;
} coder;

static part *find(const ranges *r, size_t layer, size_t which)
{
    for (size_t i = 0; i < r->layers; i++)
        if (r->part[2 * i].layer == layer) return &r->part[2 * i + which];
    return NULL;
}

static mla_status describe(const ranges *r, part *p, const mla_kv_rows *x, mla_err *err)
{
    const mla_config *c = mla_rt_config(r->rt);
    bool retro = c->family == MLA_FAM_DEEPSEEK || mla_rt_layout(r->rt, x->layer) != MLA_LAYOUT_NONE, latent = x->part == 0 && retro;
    p->keys = (x->part == 1) == retro;
    p->width = x->width;
    p->head = x->head;
    p->group = latent && x->head > MLA_KV_LATENT_GROUP ? MLA_KV_LATENT_GROUP : x->head;
    p->per_head = x->head / p->group + (x->head % p->group != 0);
    p->amax = mla_alloc(x->width / x->head, p->per_head * sizeof *p->amax, 1);
    return p->amax ? MLA_OK : mla_fail(err, MLA_ENOMEM, "ranges of a layer");
}

/* fn over every group of every row, with its index within the row. */
#define EACH_GROUP(p, x)                                                                                    \
    for (size_t row_ = 0; row_ < (x)->rows; row_++)                                                         \
        for (size_t g = 0, heads_ = (p)->width / (p)->head; g < heads_ * (p)->per_head; g++)

typedef struct {
    float *x;
    size_t n;
} run;

static run group_of(const part *p, const mla_kv_rows *x, size_t row, size_t g)
{
    size_t in_head = g % p->per_head * p->group, n = p->head - in_head < p->group ? p->head - in_head : p->group;
    return (run){x->x + row * x->width + g / p->per_head * p->head + in_head, n};
}

/* A codec that changes nothing and looks. Values that are not finite are the measuring tap's to refuse. */
static mla_status look(void *ctx, const mla_kv_rows *x, mla_err *err)
{
    ranges *r = ctx;
    part *p = find(r, x->layer, x->part);
    if (!p) {
        if (r->layers == r->cap) return mla_fail(err, MLA_EINTERNAL, "more caching layers than %zu", r->cap);
        r->part[2 * r->layers].layer = r->part[2 * r->layers + 1].layer = x->layer;
        r->layers++;
        p = find(r, x->layer, x->part);
    }
    if (!p->amax) {
        mla_status st = describe(r, p, x, err);
        if (st != MLA_OK) return st;
    }
    EACH_GROUP(p, x)
    {
        run v = group_of(p, x, row_, g);
        for (size_t i = 0; i < v.n; i++) p->amax[g] = fmaxf(p->amax[g], fabsf(v.x[i]));
    }
    return MLA_OK;
}

static float scale_of(const coder *c, mla_kv_format f, const part *p, size_t g)
{
    if (f == MLA_KV_FP8) return p->fp8;
    double amax = mla_kv_format_headwise(f) && p->amax[g] > 0 ? (double)p->amax[g] : p->most;
    return mla_kv_format_scale(f, amax, c->r->headroom);
}

static mla_status code(void *ctx, const mla_kv_rows *x, mla_err *err)
{
    const coder *c = ctx;
    const part *p = find(c->r, x->layer, x->part);
    if (!p || p->width != x->width) return mla_fail(err, MLA_EINTERNAL, "a cache part that was never measured");
    mla_kv_format f = mla_kv_format_part(c->f, p->keys);
    EACH_GROUP(p, x)
    {
        run v = group_of(p, x, row_, g);
        mla_kv_code(f, v.x, v.n, mla_kv_format_static(f) ? scale_of(c, f, p, g) : 0);
    }
    return MLA_OK;
}

static mla_status measure(ranges *r, mla_study *out, const mla_study_texts *t, const mla_cal_opts *o, mla_err *err)
{
    mla_cal cal;
    mla_rt_set_codec(r->rt, look, r);
    mla_status st = mla_cal_measure(&cal, r->rt, t->ids, t->n, MLA_CAL_MODELOPT, o, err);
    mla_rt_set_codec(r->rt, NULL, NULL);
    for (size_t i = 0; i < 2 * r->layers && st == MLA_OK; i++) {
        part *p = &r->part[i];
        const mla_cal_layer *l = cal_layer(&cal, p->layer);
        if (!p->amax) continue;
        if (!l) st = mla_fail(err, MLA_EINTERNAL, "layer %zu caches and was not measured", p->layer);
        else p->most = i % 2 ? l->v.amax : l->k.amax, p->fp8 = i % 2 ? l->v.scale : l->k.scale;
    }
    r->headroom = cal.o.headroom;
    out->tokens = t->n;
    out->row_tokens = cal.o.row_tokens;
    out->retrofit = cal.retrofit;
    mla_cal_free(&cal);
    return st;
}

static void count_bytes(const ranges *r, mla_study *out)
{
    double values = 0, all = (double)mla_rt_kv_bytes_per_token(r->rt) / 2; /* a bf16 cache */
    for (size_t i = 0; i < 2 * r->layers; i++) {
        const part *p = &r->part[i];
        if (!p->amax) continue;
        values += (double)p->width;
        for (size_t f = 0; f < MLA_KV_FORMATS; f++) out->row[f].bytes += mla_kv_format_bytes(mla_kv_format_part((mla_kv_format)f, p->keys), p->width, p->head, p->group);
    }
    for (size_t f = 0; f < MLA_KV_FORMATS; f++) out->row[f].bytes += (all - values) * (f == MLA_KV_BF16 ? 2 : 1);
    out->f32_bytes = 4 * all;
}

static mla_status judge(const ranges *r, mla_study *out, const mla_study_texts *t, mla_log *log, mla_err *err)
{
    coder c[MLA_KV_FORMATS];
    void *ctx[MLA_KV_FORMATS];
    mla_cal_verdict v[MLA_KV_FORMATS];
    mla_rt *f32, *rt[1 + MLA_KV_FORMATS];
    mla_status st = mla_rt_share(&f32, r->rt, MLA_F32, err);
    if (st != MLA_OK) return st;
    for (size_t f = 0; f < MLA_KV_FORMATS; f++) {
        c[f] = (coder){r, (mla_kv_format)f};
        ctx[f] = &c[f];
    }
    for (size_t i = 0; i <= MLA_KV_FORMATS; i++) rt[i] = f32;
    cal_comparison x = {.rt = rt, .n = 1 + MLA_KV_FORMATS, .ids = t->judge, .tokens = t->n_judge, .row_tokens = out->row_tokens, .codec = code,
                        .codec_ctx = ctx, .log = log};
    st = cal_compare(&x, v, err);
    for (size_t f = 0; f < MLA_KV_FORMATS && st == MLA_OK; f++) out->row[f].format = (mla_kv_format)f, out->row[f].v = v[f];
    mla_rt_close(f32);
    return st;
}

mla_status mla_study_run(mla_study *out, mla_rt *rt, const mla_study_texts *t, const mla_cal_opts *o, mla_err *err)
{
    ranges r = {.rt = rt, .cap = mla_rt_config(rt)->layers};
    *out = (mla_study){0};
    if (mla_rt_has_mtp(rt)) return mla_fail(err, MLA_EINVAL, "a study of the trunk's cache: expected a runtime without the MTP head");
    if (!t->n_judge) return mla_fail(err, MLA_EINVAL, "nothing to judge: no tokens");
    r.part = mla_alloc(2 * r.cap, sizeof *r.part, 1);
    mla_status st = r.part ? measure(&r, out, t, o, err) : mla_fail(err, MLA_ENOMEM, "ranges of %zu layers", r.cap);
    if (st == MLA_OK) {
        count_bytes(&r, out);
        st = judge(&r, out, t, o ? o->log : NULL, err);
    }
    for (size_t i = 0; r.part && i < 2 * r.layers; i++) mla_free(r.part[i].amax);
    mla_free(r.part);
    return st;
}
