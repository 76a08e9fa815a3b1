/* Depthwise causal convolution with SiLU: channels in fixed blocks, each job walks all tokens of its channels and
 * replaces its columns of the state. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define CHANNELS 512 /* per job: K rows of it stay in L1 */
#define MAX_K 16

typedef struct {
    const mla_cpu_kern *k;
    const mla_conv_args *a;
    float *wt; /* (K, C): taps by rows */
    float *st; /* (K-1, C): the new state */
} conv_job;

/* Row of the input at token t - back; before token 0 the state answers. */
static const float *input(const mla_conv_args *a, size_t t, size_t back)
{
    if (back <= t) return mla_cf32p(a->x) + (t - back) * a->C;
    return mla_cf32p(a->state) + (a->K - 1 - (back - t)) * a->C;
}

static void conv_channels(void *ctx, size_t begin, size_t end, size_t worker)
{
    const conv_job *j = ctx;
    const mla_conv_args *a = j->a;
    const float *x[MAX_K];
    size_t n = end - begin;
    (void)worker;
    for (size_t i = 0; i < a->K; i++)
        for (size_t c = begin; c < end; c++) j->wt[i * a->C + c] = mla_cf32p(a->w)[c * a->K + i];
    for (size_t t = 0; t < a->T; t++) {
        for (size_t i = 0; i < a->K; i++) x[i] = input(a, t, a->K - 1 - i) + begin;
        j->k->conv(mla_f32p(a->y) + t * a->C + begin, j->wt + begin, a->C, x, a->K, n);
    }
    for (size_t i = 0; i + 1 < a->K; i++) memcpy(j->st + i * a->C + begin, input(a, a->T, a->K - 1 - i) + begin, n * sizeof(float));
    for (size_t i = 0; i + 1 < a->K; i++)
        memcpy(mla_f32p(a->state) + i * a->C + begin, j->st + i * a->C + begin, n * sizeof(float));
}

mla_status mla_cpu_conv(mla_backend *be, const mla_conv_args *a, mla_err *err)
{
    mla_cpu *c = mla_cpu_of(be);
    if (a->K < 1 || a->K > MAX_K) return mla_fail(err, MLA_EUNSUPPORTED, "convolution of %zu taps: expected 1..%d", a->K, MAX_K);
    size_t total = 0, w_at, s_at;
    char *mem;
    if (!mla_cut(&total, &w_at, a->K, a->C, sizeof(float)) || !mla_cut(&total, &s_at, a->K, a->C, sizeof(float)))
        return mla_fail(err, MLA_ENOMEM, "convolution over %zu channels", a->C);
    mla_status st = mla_cpu_scratch(c, total, "convolution", &mem, err);
    if (st != MLA_OK) return st;
    conv_job j = {c->k, a, (float *)(void *)(mem + w_at), (float *)(void *)(mem + s_at)};
    mla_par_for(a->C * a->T < 16384 ? NULL : c->pool, a->C, CHANNELS, conv_channels, &j);
    return MLA_OK;
}
