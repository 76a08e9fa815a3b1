/* safetensors files: every tensor of an accepted one is whole and inside it. */
#include "fuzz.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_st *s;
    mla_status st = mla_st_open(&s, fuzz_file(data, n), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    for (size_t i = 0; i < mla_st_count(s); i++) {
        const mla_tensor *t = mla_st_at(s, i);
        fuzz_inside(t->data, t->nbytes, mla_st_file(s));
        if (mla_st_find(s, t->name) != t) fuzz_broken("a name finds another tensor");
        if (mla_tensor_numel(t) * mla_dtype_bits(t->dtype) != 8 * t->nbytes) fuzz_broken("shape and bytes disagree");
    }
    mla_st_close(s);
    return 0;
}
