/* GGUF v3 reader (v2 has the same layout and is read, too). Opening checks every length against the bytes that are left, every name for duplicates, every
 * offset against the running padded sum; tensor views borrow the mapping. Block types decode in quant/. */
#ifndef MLA_IO_GGUF_H
#define MLA_IO_GGUF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/file.h"

typedef enum { /* metadata value types, numbered as in the file */
    MLA_GV_U8, MLA_GV_I8, MLA_GV_U16, MLA_GV_I16, MLA_GV_U32, MLA_GV_I32, MLA_GV_F32, MLA_GV_BOOL,
    MLA_GV_STRING, MLA_GV_ARRAY, MLA_GV_U64, MLA_GV_I64, MLA_GV_F64,
    MLA_GV_N
} mla_gguf_vtype;

typedef enum { /* ggml tensor types, numbered as in the file */
    MLA_GT_F32 = 0, MLA_GT_F16 = 1, MLA_GT_Q4_0 = 2, MLA_GT_Q4_1 = 3, MLA_GT_Q5_0 = 6, MLA_GT_Q5_1 = 7,
    MLA_GT_Q8_0 = 8, MLA_GT_Q8_1 = 9, MLA_GT_Q2_K = 10, MLA_GT_Q3_K = 11, MLA_GT_Q4_K = 12, MLA_GT_Q5_K = 13, MLA_GT_Q6_K = 14,
    MLA_GT_Q8_K = 15, MLA_GT_IQ2_XXS = 16, MLA_GT_IQ2_XS = 17, MLA_GT_IQ3_XXS = 18, MLA_GT_IQ1_S = 19,
    MLA_GT_IQ4_NL = 20, MLA_GT_IQ3_S = 21, MLA_GT_IQ2_S = 22, MLA_GT_IQ4_XS = 23, MLA_GT_I8 = 24, MLA_GT_I16 = 25, MLA_GT_I32 = 26, MLA_GT_I64 = 27,
    MLA_GT_F64 = 28, MLA_GT_IQ1_M = 29, MLA_GT_BF16 = 30, MLA_GT_TQ1_0 = 34, MLA_GT_TQ2_0 = 35, MLA_GT_MXFP4 = 39,
    MLA_GT_NVFP4 = 40
} mla_ggml_type;

typedef struct {
    const char *name;      /* "Q4_1"; NULL for an unknown type */
    uint32_t type;
    size_t block, bytes;   /* values per block, bytes per block */
} mla_ggml_info;
const mla_ggml_info *mla_ggml_type_info(uint32_t type); /* NULL when unknown */

typedef struct {
    const char *name;      /* NUL-terminated, owned by the file */
    uint32_t type;         /* a known mla_ggml_type */
    size_t ndim;
    size_t ne[4];          /* ne[0] innermost (in_features); unused = 1 */
    const unsigned char *data;
    size_t nbytes;
} mla_gguf_tensor;

/* One metadata entry. Strings are not NUL-terminated in the file: use ptr and len. */
typedef struct {
    const char *key;       /* NUL-terminated, owned by the file */
    mla_gguf_vtype type;
    mla_gguf_vtype item;   /* arrays: the element type */
    size_t n;              /* arrays: element count; strings: byte length */
    const unsigned char *data; /* raw little-endian value(s); strings: the bytes; string arrays: (u64 len, bytes)* */
    size_t nbytes;         /* of data */
} mla_gguf_kv;

typedef struct mla_gguf mla_gguf;
MLA_CHECKED mla_status mla_gguf_open(mla_gguf **out, const char *path, mla_err *err);
void mla_gguf_close(mla_gguf *g); /* NULL is fine */
const mla_mapped *mla_gguf_file(const mla_gguf *g);
size_t mla_gguf_alignment(const mla_gguf *g);

size_t mla_gguf_count(const mla_gguf *g);
const mla_gguf_tensor *mla_gguf_at(const mla_gguf *g, size_t i);
const mla_gguf_tensor *mla_gguf_find(const mla_gguf *g, const char *name);

size_t mla_gguf_kv_count(const mla_gguf *g);
const mla_gguf_kv *mla_gguf_kv_at(const mla_gguf *g, size_t i);
const mla_gguf_kv *mla_gguf_kv_find(const mla_gguf *g, const char *key);
/* Typed reads; false when absent or of another kind. Integers of any width convert when the value fits. */
bool mla_gguf_u64(const mla_gguf *g, const char *key, uint64_t *out);
bool mla_gguf_f64(const mla_gguf *g, const char *key, double *out); /* f32, f64 and integers */
bool mla_gguf_bool(const mla_gguf *g, const char *key, bool *out);
bool mla_gguf_str(const mla_gguf *g, const char *key, const char **s, size_t *n);
/* Walks a string array: start with *pos = 0; false at the end. Lengths were checked at open. */
bool mla_gguf_str_next(const mla_gguf_kv *kv, size_t *pos, const char **s, size_t *n);
#endif
