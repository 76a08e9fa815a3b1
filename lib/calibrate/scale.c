/* From ranges to scales. */
#include <math.h>
#include <string.h>

#include "calibrate/parts.h"
#include "tensor/fp.h"

bool mla_cal_spelling_parse(const char *name, mla_cal_spelling *out)
{
    if (!strcmp(name, "compressed-tensors")) *out = MLA_CAL_CT;
    else if (!strcmp(name, "modelopt")) *out = MLA_CAL_MODELOPT;
    else return false;
    return true;
}

mla_cal_spelling mla_cal_spelling_of(const mla_config *c)
{
    return c->quant_method && !strcmp(c->quant_method, "modelopt") ? MLA_CAL_MODELOPT : MLA_CAL_CT;
}

/* Smallest bin edge that `percent` of the values do not exceed. */
static double percentile(const mla_cal_part *p, double percent)
{
    double need = (double)p->n * percent / 100, sum = 0;
    for (size_t i = 0; i < CAL_BINS; i++) {
        sum += (double)p->hist[i];
        if (sum >= need) return fmin(p->amax, mla_bits_f32((uint32_t)((i + 1) << CAL_BIN_SHIFT)));
    }
    return p->amax;
}

static float stored(double scale, mla_dtype t)
{
    float s = (float)scale;
    return t == MLA_BF16 ? mla_bf16_f32(mla_f32_bf16(s)) : s;
}

static mla_status choose(const mla_cal *c, size_t layer, mla_cal_part *p, mla_err *err)
{
    char text[32];
    if (!p->n) return mla_fail(err, MLA_EFORMAT, "%s: its %s were never observed", mla_cal_layer_text(layer, text), p->name);
    if (!(p->amax > 0)) return mla_fail(err, MLA_EFORMAT, "%s: all %llu %s are zero", mla_cal_layer_text(layer, text), (unsigned long long)p->n, p->name);
    if (p->bound > 0 && !(p->amax <= p->bound * 1.001))
        return mla_fail(err, MLA_EINTERNAL, "%s: %s reach %g, beyond their analytic bound %g", mla_cal_layer_text(layer, text), p->name, p->amax, p->bound);
    double limit = p->amax;
    if (p->hist) limit = p->percentile = percentile(p, c->o.percentile);
    limit *= c->o.headroom;
    if (p->bound > 0 && limit > p->bound) limit = p->bound; /* nothing can be beyond */
    p->base = (float)(limit / 448);
    p->scale = cal_aligned(c, p, 0);
    if (!(isfinite(p->scale) && p->scale > 0 && isfinite(cal_aligned(c, p, CAL_TRIES))))
        return mla_fail(err, MLA_EFORMAT, "%s: scale %g of its %s (up to %g) is not finite and positive", mla_cal_layer_text(layer, text),
                        (double)p->scale, p->name, p->amax);
    return MLA_OK;
}

float cal_aligned(const mla_cal *c, const mla_cal_part *p, size_t j)
{
    return stored((double)p->base * exp2((double)j / CAL_TRIES), c->scale_dtype);
}

mla_status cal_limits(mla_cal *c, const mla_config *cfg, mla_cal_spelling s, mla_err *err)
{
    c->scale_dtype = !c->retrofit && s == MLA_CAL_CT && cfg->dtype == MLA_BF16 ? MLA_BF16 : MLA_F32;
    mla_status st = MLA_OK;
    for (size_t i = 0; i < c->n && st == MLA_OK; i++) {
        mla_cal_layer *l = &c->layer[i];
        st = choose(c, l->layer, &l->k, err);
        if (st == MLA_OK && l->v.name) st = choose(c, l->layer, &l->v, err);
        if (!l->v.name) l->v.scale = l->k.scale;
    }
    return st;
}

mla_status mla_cal_apply(const mla_cal *c, mla_rt *rt, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; i < c->n && st == MLA_OK; i++)
        st = mla_rt_set_kv_scale(rt, c->layer[i].layer, (mla_kv_scale){true, c->layer[i].k.scale, c->layer[i].v.scale}, err);
    return st;
}
