/* One row per dtype: name, bits, epsilon, and its conversions. */
#include "tensor/dtype.h"

#include <string.h>

#include "tensor/fp.h"

typedef struct {
    const char *name;
    unsigned bits;
    double eps;
} info;

static const info DTYPE[] = {
    [MLA_BOOL] = {"BOOL", 8, 0},
    [MLA_F4] = {"F4", 4, 0x1p-1},
    [MLA_F6_E2M3] = {"F6_E2M3", 6, 0x1p-3},
    [MLA_F6_E3M2] = {"F6_E3M2", 6, 0x1p-2},
    [MLA_U8] = {"U8", 8, 0},
    [MLA_I8] = {"I8", 8, 0},
    [MLA_F8_E5M2] = {"F8_E5M2", 8, 0x1p-2},
    [MLA_F8_E4M3] = {"F8_E4M3", 8, 0x1p-3},
    [MLA_F8_E8M0] = {"F8_E8M0", 8, 0},
    [MLA_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, 0x1p-3},
    [MLA_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, 0x1p-2},
    [MLA_I16] = {"I16", 16, 0},
    [MLA_U16] = {"U16", 16, 0},
    [MLA_F16] = {"F16", 16, 0x1p-10},
    [MLA_BF16] = {"BF16", 16, 0x1p-7},
    [MLA_I32] = {"I32", 32, 0},
    [MLA_U32] = {"U32", 32, 0},
    [MLA_F32] = {"F32", 32, 0x1p-23},
    [MLA_C64] = {"C64", 64, 0x1p-23},
    [MLA_F64] = {"F64", 64, 0x1p-52},
    [MLA_I64] = {"I64", 64, 0},
    [MLA_U64] = {"U64", 64, 0},
};
_Static_assert(sizeof DTYPE / sizeof *DTYPE == MLA_DTYPE_N, "one row per dtype");

const char *mla_dtype_name(mla_dtype t) { return (unsigned)t < MLA_DTYPE_N ? DTYPE[t].name : "?"; }
unsigned mla_dtype_bits(mla_dtype t) { return (unsigned)t < MLA_DTYPE_N ? DTYPE[t].bits : 0; }
double mla_dtype_eps(mla_dtype t) { return (unsigned)t < MLA_DTYPE_N ? DTYPE[t].eps : 0; }

bool mla_dtype_parse(const char *name, mla_dtype *out)
{
    for (unsigned i = 0; i < MLA_DTYPE_N; i++)
        if (!strcmp(DTYPE[i].name, name)) {
            *out = (mla_dtype)i;
            return true;
        }
    return false;
}

bool mla_to_f32(float *dst, const void *src, mla_dtype t, size_t n)
{
    const unsigned char *b = src;
    for (size_t i = 0; i < n; i++) {
        switch (t) {
        case MLA_F32: memcpy(dst + i, b + 4 * i, 4); break;
        case MLA_F64: { double v; memcpy(&v, b + 8 * i, 8); dst[i] = (float)v; break; }
        case MLA_BF16: { uint16_t v; memcpy(&v, b + 2 * i, 2); dst[i] = mla_bf16_f32(v); break; }
        case MLA_F16: { uint16_t v; memcpy(&v, b + 2 * i, 2); dst[i] = mla_f16_f32(v); break; }
        case MLA_F8_E4M3: dst[i] = mla_e4m3_f32(b[i]); break;
        case MLA_F8_E5M2: dst[i] = mla_f16_f32((uint16_t)(b[i] << 8)); break;
        case MLA_F8_E8M0: dst[i] = mla_e8m0_f32(b[i]); break;
        case MLA_U8: case MLA_BOOL: dst[i] = b[i]; break;
        case MLA_I8: dst[i] = (int8_t)b[i]; break;
        case MLA_I32: { int32_t v; memcpy(&v, b + 4 * i, 4); dst[i] = (float)v; break; }
        case MLA_I64: { int64_t v; memcpy(&v, b + 8 * i, 8); dst[i] = (float)v; break; }
        default: return false;
        }
    }
    return true;
}

bool mla_from_f32(void *dst, const float *src, mla_dtype t, size_t n)
{
    unsigned char *b = dst;
    for (size_t i = 0; i < n; i++) {
        switch (t) {
        case MLA_F32: memcpy(b + 4 * i, src + i, 4); break;
        case MLA_F64: { double v = src[i]; memcpy(b + 8 * i, &v, 8); break; }
        case MLA_BF16: { uint16_t v = mla_f32_bf16(src[i]); memcpy(b + 2 * i, &v, 2); break; }
        case MLA_F16: { uint16_t v = mla_f32_f16(src[i]); memcpy(b + 2 * i, &v, 2); break; }
        case MLA_F8_E4M3: b[i] = mla_f32_e4m3(src[i]); break;
        default: return false;
        }
    }
    return true;
}
