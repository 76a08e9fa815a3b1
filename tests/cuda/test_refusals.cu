/* What a GPU refuses, and that it goes on working: devices that are none, memory that is not there, arguments that do not fit. */
#include "ops.h"

static void refusals(void)
{
    mla_backend *be = NULL;
    mla_backend_opts o = {"cuda:900", 1, MLA_ISA_AUTO};
    cut_check(mla_backend_open(&be, &o, &err) == MLA_EUNSUPPORTED && !be, "a device that is not there");
    o.device = "cuda:x";
    cut_check(mla_backend_open(&be, &o, &err) == MLA_EINVAL && !be, "a device name that is none");
    mla_mem *p = NULL;
    cut_check(gpu->ops->alloc(gpu, &p, (size_t)1 << 50, &err) == MLA_ENOMEM && !p, "a petabyte of memory");
    const Vec x = normals(8, 28);
    Mem X(gpu, x);
    cut_check(X.get() == x, "works after a failed allocation");
    mla_rope_args r = {X, 8, 1, 1, 8, 3, X, X, NULL};
    cut_check(gpu->ops->rope(gpu, &r, &err) == MLA_EINVAL, "odd rotary width");
    mla_gdn_args g = {X, X, X, X, X, X, X, 1, 2, 3, 4, 4, 0};
    cut_check(gpu->ops->gdn(gpu, &g, &err) == MLA_EINVAL, "heads that do not divide");
}

int main(int argc, char **argv)
{
    const Section section[] = {{"refusals", refusals}};
    return ops_main("cuda_refusals", 6, section, argc, argv);
}
