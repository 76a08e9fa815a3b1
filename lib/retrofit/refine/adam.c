/* Moments, rates and the update of one span of parameters. */
#include "retrofit/refine/adam.h"

#include <math.h>

#include "backend/fit.h"
#include "base/alloc.h"

#define STEP 0.01 /* of the mean magnitude */
#define SPAN 4096 /* parameters per piece of an update */

double mla_adam_rate(const mla_adam_part *p)
{
    double sum = 0;
    size_t moving = 0;
    for (size_t i = 0; i < p->n; i++) sum += fabs((double)p->x[i]), moving += !p->sparse || p->x[i] != 0;
    return moving ? STEP * sum / (double)moving : 0;
}

mla_adam_pace mla_adam_pace_at(double rate, size_t step, size_t steps)
{
    double left = 1 - (double)step / (double)steps, t = (double)(step + 1);
    return (mla_adam_pace){rate * left, 1 - pow(MLA_ADAM_BETA1, t), 1 - pow(MLA_ADAM_BETA2, t)};
}

mla_status mla_adam_begin(mla_adam_part *p, size_t parts, mla_err *err)
{
    size_t total = 0;
    bool held = true;
    for (size_t k = 0; k < parts; k++) {
        p[k].rate = mla_adam_rate(&p[k]);
        p[k].m = mla_alloc(p[k].n, 1, sizeof(float));
        p[k].v = mla_alloc(p[k].n, 1, sizeof(float));
        held = held && p[k].m && p[k].v;
        total += p[k].n;
    }
    if (held) return MLA_OK;
    mla_adam_end(p, parts);
    return mla_fail(err, MLA_ENOMEM, "moments of %zu parameters", total);
}

void mla_adam_end(mla_adam_part *p, size_t parts)
{
    for (size_t k = 0; k < parts; k++) {
        mla_free(p[k].m);
        mla_free(p[k].v);
        p[k].m = p[k].v = NULL;
    }
}

typedef struct {
    mla_adam_part *p;
    const float *grad[MLA_ADAM_SLOTS];
    size_t slots;
    mla_adam_pace at;
} update;

static void update_span(void *ctx, size_t begin, size_t end, size_t worker)
{
    (void)worker;
    update *u = ctx;
    mla_adam_part *p = u->p;
    for (size_t i = begin; i < end; i++) {
        float g = 0;
        for (size_t k = 0; k < u->slots; k++) g += u->grad[k][i];
        mla_adam_move(p->x + i, p->m + i, p->v + i, g, u->at.rate, u->at.fix1, u->at.fix2);
    }
}

void mla_adam_step(mla_adam_part *p, size_t parts, size_t step, size_t steps, mla_pool *pool, mla_adam_grad *grad, size_t slots, const void *ctx)
{
    for (size_t k = 0; k < parts; k++) {
        update u = {.p = &p[k], .slots = slots, .at = mla_adam_pace_at(p[k].rate, step, steps)};
        for (size_t i = 0; i < slots; i++) u.grad[i] = grad(ctx, i, k);
        mla_par_for(pool, p[k].n, SPAN, update_span, &u);
    }
}
