/* Opening a device by name and the names of the instruction sets. */
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
