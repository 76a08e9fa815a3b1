/* Opening a device by name, the names of the instruction sets, compound operations made of single ones. */
#include "backend/backend.h"

#include <string.h>

#include "backend/cpu/cpu.h"

static const struct {
    const char *name;
    mla_isa isa;
} ISA[] = {
    {"auto", MLA_ISA_AUTO},     {"ref", MLA_ISA_REF},       {"avx2", MLA_ISA_AVX2},
    {"avx512", MLA_ISA_AVX512}, {"avx512bf16", MLA_ISA_AVX512BF16},
};

bool mla_isa_parse(const char *name, mla_isa *out)
{
    for (size_t i = 0; i < sizeof ISA / sizeof *ISA; i++)
        if (!strcmp(name, ISA[i].name)) {
            *out = ISA[i].isa;
            return true;
        }
    return false;
}

const char *mla_isa_name(void)
{
    mla_cpu_kern k;
    (void)mla_cpu_pick(MLA_ISA_AUTO, &k); /* the portable variant at least */
    return k.name;
}

mla_status mla_backend_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err)
{
    mla_backend_opts o = opts ? *opts : (mla_backend_opts){0};
    if (!o.device || !strcmp(o.device, "cpu")) return mla_cpu_open(out, &o, err);
    if (!strncmp(o.device, "cuda", 4) && (o.device[4] == 0 || o.device[4] == ':')) {
        if (mla_cuda_open) return mla_cuda_open(out, &o, err);
        return mla_fail(err, MLA_EUNSUPPORTED, "device %s: this build has no CUDA", o.device);
    }
    return mla_fail(err, MLA_EINVAL, "device %s: expected cpu or cuda:N", o.device);
}

void mla_backend_close(mla_backend *be)
{
    if (be) be->ops->destroy(be);
}

mla_status mla_linears_singly(mla_backend *be, const mla_norm_args *norm, const mla_linear_job *jobs, size_t n, mla_err *err)
{
    mla_status st = norm ? be->ops->rmsnorm(be, norm, err) : MLA_OK;
    for (size_t i = 0; i < n && st == MLA_OK; i++) st = be->ops->linear(be, jobs[i].w, &jobs[i].a, err);
    return st;
}

mla_status mla_gated_singly(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, mla_err *err)
{
    size_t out = a->out;
    mla_linear_job jobs[2] = {{a->gate, {.y = a->g, .ldy = out, .x = a->x, .ldx = a->ldx, .T = a->T}},
                              {a->up, {.y = a->u, .ldy = out, .x = a->x, .ldx = a->ldx, .T = a->T}}};
    mla_status st = mla_linears_singly(be, norm, jobs, 2, err);
    return st == MLA_OK ? be->ops->silu_mul(be, a->g, a->g, a->u, a->T * out, err) : st;
}

mla_status mla_mlp_singly(mla_backend *be, const mla_norm_args *norm, const mla_gated_args *a, const mla_linear_job *down, mla_err *err)
{
    mla_status st = be->ops->gated(be, norm, a, err);
    return st == MLA_OK ? be->ops->linear(be, down->w, &down->a, err) : st;
}

mla_status mla_delta_singly(mla_backend *be, const mla_norm_args *norm, const mla_delta_args *a, mla_err *err)
{
    size_t V = a->nv * a->dv, C = 2 * a->nk * a->dk + V;
    mla_mem *x = a->in[0].a.y;
    mla_status st = be->ops->linears(be, norm, a->in, 4, err);
    for (size_t i = 0, row = 0; i < a->n && st == MLA_OK; row += a->seq[i++].T) {
        const mla_delta_seq *s = &a->seq[i];
        mla_conv_args cv = {.y = mla_at(a->mixed, row * C), .x = mla_at(x, row * C), .w = a->conv_w, .state = s->conv, .T = s->T, .C = C, .K = a->K};
        mla_gdn_args g = {.o = mla_at(a->o, row * V), .qkv = cv.y, .a = mla_at(a->in[3].a.y, row * a->nv), .b = mla_at(a->in[2].a.y, row * a->nv),
                          .A_log = a->A_log, .dt_bias = a->dt_bias, .state = s->state, .T = s->T, .nk = a->nk, .nv = a->nv, .dk = a->dk, .dv = a->dv,
                          .chunk = s->T > 1 ? a->chunk : 0};
        st = be->ops->conv(be, &cv, err);
        if (st == MLA_OK) st = be->ops->gdn(be, &g, err);
    }
    /* in place, so that a device which records may join the steps: the convolution's inputs are not written */
    mla_gated_norm_args gn = {.y = a->o, .x = a->o, .z = a->in[1].a.y, .gain = a->gain, .rows = a->T * a->nv, .d = a->dv, .eps = a->eps};
    mla_linear_args out = a->out->a;
    out.x = a->o;
    if (st == MLA_OK) st = be->ops->gated_norm(be, &gn, err);
    return st == MLA_OK ? be->ops->linear(be, a->out->w, &out, err) : st;
}
