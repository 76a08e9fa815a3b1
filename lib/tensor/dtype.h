/* Scalar types as stored in checkpoints. Names and bit widths are those of the safetensors format
 * (formats page, section "safetensors"); F8_E4M3 is e4m3fn: max 448, NaN 0x7f/0xff, no infinity. */
#ifndef MLA_TENSOR_DTYPE_H
#define MLA_TENSOR_DTYPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef enum { /* the enum order of the reference implementation: increasing alignment */
    MLA_BOOL, MLA_F4, MLA_F6_E2M3, MLA_F6_E3M2, MLA_U8, MLA_I8, MLA_F8_E5M2, MLA_F8_E4M3, MLA_F8_E8M0,
    MLA_F8_E4M3FNUZ, MLA_F8_E5M2FNUZ, MLA_I16, MLA_U16, MLA_F16, MLA_BF16, MLA_I32, MLA_U32, MLA_F32,
    MLA_C64, MLA_F64, MLA_I64, MLA_U64,
    MLA_DTYPE_N
} mla_dtype;

const char *mla_dtype_name(mla_dtype t);       /* "BF16" */
unsigned mla_dtype_bits(mla_dtype t);          /* 16 */
bool mla_dtype_parse(const char *name, mla_dtype *out);
/* Machine epsilon (distance from 1 to the next value) of a float type; 0 for the others. */
double mla_dtype_eps(mla_dtype t);

/* Rows of n values to and from f32; only F64 F32 BF16 F16 F8_E4M3 (and, to f32, F8_E5M2 F8_E8M0 and integers).
 * to: exact (F64, I64 and I32 round). from: round to nearest even; F8_E4M3 saturates finite values to +-448 and keeps NaN.
 * Return false when the type has no such conversion. */
bool mla_to_f32(float *dst, const void *src, mla_dtype t, size_t n);
bool mla_from_f32(void *dst, const float *src, mla_dtype t, size_t n);

#ifdef __cplusplus
}
#endif
#endif
