/* Judging: a bf16 and an FP8 cache side by side, and what the FP8 cache does to the values it is given. */
#include <math.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "tensor/fp.h"

static mla_status count(void *ctx, const mla_tap *t, mla_err *err)
{
    cal_pass *pass = ctx;
    mla_cal_part *p = cal_part(pass->c, t);
    const float *x;
    if (!p || p->wide) return MLA_OK;
    mla_status st = cal_fetch(pass, t, &x, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < t->rows; i++)
        for (size_t k = 0; k < t->width; k++) {
            float v = x[i * t->ld + k] / p->scale;
            p->saturated += fabsf(v) > 448;
            p->underflowed += v != 0 && (mla_f32_e4m3(v) & 0x7f) == 0;
        }
    p->judged += t->rows * t->width;
    return MLA_OK;
}

mla_status mla_cal_judge(mla_cal *c, mla_rt *rt, const int32_t *ids, size_t n, mla_err *err)
{
    cal_pass pass = {.c = c};
    mla_rt *pair[2] = {NULL, NULL};
    for (size_t i = 0; i < c->n; i++) {
        mla_cal_part *p[2] = {&c->layer[i].k, &c->layer[i].v};
        for (size_t k = 0; k < 2; k++) p[k]->judged = p[k]->saturated = p[k]->underflowed = 0;
    }
    mla_status st = mla_rt_share(&pair[0], rt, MLA_BF16, err);
    if (st == MLA_OK) st = mla_rt_share(&pair[1], rt, MLA_F8_E4M3, err);
    if (st == MLA_OK) st = mla_cal_apply(c, pair[1], err);
    cal_comparison x = {.rt = pair, .n = 2, .ids = ids, .tokens = n, .row_tokens = c->o.row_tokens, .tap = count, .ctx = &pass, .log = c->o.log};
    c->verdict = (mla_cal_verdict){0};
    if (st == MLA_OK) st = cal_compare(&x, &c->verdict, err);
    for (size_t k = 0; k < 2; k++) mla_rt_close(pair[k]);
    mla_free(pass.host);
    return st;
}
