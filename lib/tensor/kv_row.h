/* A cached row: the parts that stand side by side for one token of one layer, and their element types.
 *
 *   first       keys, or latents
 *   second      values, or the rotary keys beside a latent
 *   divisors    of layout P: f32, f16 or log2 codes, as wide as the first part's elements
 *
 * Every part begins at a multiple of its elements' size, the row ends at a multiple of the largest: a row of one type has no
 * padding, and any part can be addressed in whole elements of its own type. */
#ifndef MLA_TENSOR_KV_ROW_H
#define MLA_TENSOR_KV_ROW_H
#include "tensor/dtype.h"

typedef struct { /* what a cache holds */
    mla_dtype dtype; /* MLA_F32, MLA_BF16, MLA_F8_E4M3 */
    bool keys16;     /* of an FP8 cache: the part that carries most of its error stays bf16: rotary keys, or keys beside values */
} mla_kv_type;
#define MLA_KV_TYPES "f32|bf16|fp8|fp8-keys16"
bool mla_kv_type_parse(const char *name, mla_kv_type *out); /* one of MLA_KV_TYPES */
const char *mla_kv_type_name(mla_kv_type t);

enum { MLA_KV_FIRST, MLA_KV_SECOND, MLA_KV_DIVISORS, MLA_KV_PARTS };

typedef struct {
    mla_dtype dtype[MLA_KV_PARTS];
    size_t at[MLA_KV_PARTS]; /* bytes before each part */
    size_t bytes;
} mla_kv_row;
/* width: elements of every part. latent: the first part holds latents. */
mla_kv_row mla_kv_row_of(mla_kv_type t, const size_t width[MLA_KV_PARTS], bool latent);
#endif
