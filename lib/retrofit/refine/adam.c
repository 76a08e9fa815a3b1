/* Moments, rates and the update of one span of parameters. */
#include "retrofit/refine/adam.h"

#include <math.h>

#include "base/alloc.h"

#define STEP 0.01 /* of the mean magnitude */
#define BETA1 0.9
#define BETA2 0.999
#define SPAN 4096 /* parameters per piece of an update */

mla_status mla_adam_begin(mla_adam_part *p, size_t parts, mla_err *err)
{
    size_t total = 0;
    bool held = true;
    for (size_t k = 0; k < parts; k++) {
        double sum = 0;
        size_t moving = 0;
        for (size_t i = 0; i < p[k].n; i++) sum += fabs((double)p[k].x[i]), moving += !p[k].sparse || p[k].x[i] != 0;
        p[k].rate = moving ? STEP * sum / (double)moving : 0;
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
    double step, fix1, fix2; /* learning rate; 1 - beta^t */
} update;

static void update_span(void *ctx, size_t begin, size_t end, size_t worker)
{
    (void)worker;
    update *u = ctx;
    mla_adam_part *p = u->p;
    for (size_t i = begin; i < end; i++) {
        float g = 0;
        for (size_t k = 0; k < u->slots; k++) g += u->grad[k][i];
        p->m[i] = (float)(BETA1 * p->m[i] + (1 - BETA1) * g);
        p->v[i] = (float)(BETA2 * p->v[i] + (1 - BETA2) * g * g);
        double s = sqrt(p->v[i] / u->fix2);
        if (s > 0) p->x[i] -= (float)(u->step * (p->m[i] / u->fix1) / s);
    }
}

void mla_adam_step(mla_adam_part *p, size_t parts, size_t step, size_t steps, mla_pool *pool, mla_adam_grad *grad, size_t slots, const void *ctx)
{
    double left = 1 - (double)step / (double)steps, t = (double)(step + 1);
    for (size_t k = 0; k < parts; k++) {
        update u = {.p = &p[k], .slots = slots, .step = p[k].rate * left, .fix1 = 1 - pow(BETA1, t), .fix2 = 1 - pow(BETA2, t)};
        for (size_t i = 0; i < slots; i++) u.grad[i] = grad(ctx, i, k);
        mla_par_for(pool, p[k].n, SPAN, update_span, &u);
    }
}
