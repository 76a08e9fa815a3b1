/* Names of cache types, and where the parts of a row stand. */
#include "tensor/kv_row.h"

#include <string.h>

static const struct {
    const char *name;
    mla_kv_type type;
} TYPE[] = {{"f32", {MLA_F32, false}}, {"bf16", {MLA_BF16, false}}, {"fp8", {MLA_F8_E4M3, false}}, {"fp8-keys16", {MLA_F8_E4M3, true}}};

bool mla_kv_type_parse(const char *name, mla_kv_type *out)
{
    for (size_t i = 0; i < sizeof TYPE / sizeof *TYPE; i++)
        if (!strcmp(name, TYPE[i].name)) {
            *out = TYPE[i].type;
            return true;
        }
    return false;
}

const char *mla_kv_type_name(mla_kv_type t)
{
    for (size_t i = 0; i < sizeof TYPE / sizeof *TYPE; i++)
        if (TYPE[i].type.dtype == t.dtype && TYPE[i].type.keys16 == (t.keys16 && t.dtype == MLA_F8_E4M3)) return TYPE[i].name;
    return mla_dtype_name(t.dtype);
}

mla_kv_row mla_kv_row_of(mla_kv_type t, const size_t width[MLA_KV_PARTS], bool latent)
{
    mla_dtype d = t.dtype;
    mla_kv_row r = {.dtype = {d, d, d == MLA_F32 ? MLA_F32 : d == MLA_BF16 ? MLA_F16 : MLA_U8}};
    if (d == MLA_F8_E4M3 && t.keys16) r.dtype[latent ? MLA_KV_SECOND : MLA_KV_FIRST] = MLA_BF16;
    size_t most = 1;
    for (size_t i = 0; i < MLA_KV_PARTS; i++) {
        size_t e = mla_dtype_bits(r.dtype[i]) / 8;
        if (width[i] && e > most) most = e;
        if (width[i]) r.bytes = (r.bytes + e - 1) / e * e;
        r.at[i] = r.bytes;
        r.bytes += width[i] * e;
    }
    r.bytes = (r.bytes + most - 1) / most * most;
    return r;
}
