/* Hostile GGUF files: counts, metadata and tensor infos, each with one defect. */
#include <string.h>

#include "io/bad_parts.h"

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64 };

static void str(bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put_text(b, s);
}

static void key(bytes *b, const char *k, uint32_t type)
{
    str(b, k);
    put_u32(b, type);
}

static void arch(bytes *b)
{
    key(b, "general.architecture", STRING);
    str(b, "llama");
}

/* ---- metadata ---- */
#define KV(fn, ...) static void fn(bytes *b) { __VA_ARGS__; }
KV(kv_good, arch(b); key(b, "general.alignment", U32); put_u32(b, 32))
KV(kv_key_wraps, put_u64(b, UINT64_MAX); put_fill(b, 'k', 64))
KV(kv_key_beyond, put_u64(b, 100000); put_fill(b, 'k', 64))
KV(kv_key_long, put_u64(b, 65536); put_fill(b, 'k', 65536); put_u32(b, U8); put_fill(b, 1, 1))
KV(kv_key_empty, key(b, "", U8); put_fill(b, 1, 40))
KV(kv_key_nul, put_u64(b, 3); put(b, "a\0b", 3); put_u32(b, U8); put_fill(b, 1, 40))
KV(kv_key_utf8, key(b, "a\xff", U8); put_fill(b, 1, 40))
KV(kv_duplicate, arch(b); arch(b))
KV(kv_type_unknown, key(b, "k", 13); put_fill(b, 1, 40))
KV(kv_type_huge, key(b, "k", UINT32_MAX); put_fill(b, 1, 40))
KV(kv_string_wraps, key(b, "k", STRING); put_u64(b, UINT64_MAX); put_fill(b, 1, 40))
KV(kv_string_beyond, key(b, "k", STRING); put_u64(b, 1u << 30); put_fill(b, 1, 40))
KV(kv_bool_two, key(b, "k", BOOL); put_fill(b, 2, 1); put_fill(b, 1, 40))
KV(kv_array_nested, key(b, "k", ARRAY); put_u32(b, ARRAY); put_u64(b, 1); put_fill(b, 1, 40))
KV(kv_array_type, key(b, "k", ARRAY); put_u32(b, 99); put_u64(b, 1); put_fill(b, 1, 40))
KV(kv_array_wraps, key(b, "k", ARRAY); put_u32(b, U64); put_u64(b, (uint64_t)1 << 61); put_fill(b, 1, 40))
KV(kv_array_beyond, key(b, "k", ARRAY); put_u32(b, U8); put_u64(b, 1u << 30); put_fill(b, 1, 40))
KV(kv_array_strings, key(b, "k", ARRAY); put_u32(b, STRING); put_u64(b, (uint64_t)1 << 40); put_fill(b, 1, 40))
KV(kv_array_item_wraps, key(b, "k", ARRAY); put_u32(b, STRING); put_u64(b, 2); str(b, "x"); put_u64(b, UINT64_MAX); put_fill(b, 1, 40))
KV(kv_array_bool, key(b, "k", ARRAY); put_u32(b, BOOL); put_u64(b, 2); put(b, "\x01\x07", 2); put_fill(b, 1, 40))
#define ALIGN(fn, type, ...) KV(fn, key(b, "general.alignment", type); __VA_ARGS__; put_fill(b, 1, 40))
ALIGN(kv_align_zero, U32, put_u32(b, 0))
ALIGN(kv_align_odd, U32, put_u32(b, 24))
ALIGN(kv_align_huge, U32, put_u32(b, 1u << 31))
ALIGN(kv_align_u64, U64, put_u64(b, 32))
ALIGN(kv_align_text, STRING, str(b, "32"))

/* ---- tensors ---- */
static void info(bytes *b, const char *name, uint32_t nd, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    str(b, name);
    put_u32(b, nd);
    for (uint32_t i = 0; i < nd; i++) put_u64(b, ne[i]);
    put_u32(b, type);
    put_u64(b, offset);
}
#define NE(...) (const uint64_t[]){__VA_ARGS__}
#define T(fn, ...) static void fn(bytes *b) { __VA_ARGS__; }
#define TF32 0
#define TQ4_0 2
#define TI8 24
T(t_good, info(b, "a", 2, NE(32, 2), TQ4_0, 0); info(b, "b", 1, NE(4), TF32, 64)) /* 36 bytes, padded to 64; 16 bytes */
T(t_name_empty, info(b, "", 1, NE(4), TF32, 0))
T(t_name_64, info(b, "0123456789012345678901234567890123456789012345678901234567890123", 1, NE(4), TF32, 0))
T(t_name_wraps, put_u64(b, UINT64_MAX); put_fill(b, 'n', 40))
T(t_name_nul, put_u64(b, 3); put(b, "a\0b", 3); put_u32(b, 1); put_u64(b, 4); put_u32(b, TF32); put_u64(b, 0))
T(t_duplicate, info(b, "a", 1, NE(8), TF32, 0); info(b, "a", 1, NE(4), TF32, 32))
T(t_dims_5, info(b, "a", 5, NE(4, 1, 1, 1, 1), TF32, 0))
T(t_dims_huge, str(b, "a"); put_u32(b, UINT32_MAX); put_fill(b, 1, 40))
T(t_ne_negative, info(b, "a", 1, NE(UINT64_MAX), TF32, 0))
T(t_ne_max_times_2, info(b, "a", 2, NE(INT64_MAX, 2), TF32, 0))
T(t_ne_wraps, info(b, "a", 3, NE(4194305, 4194305, 211106198978564u), TF32, 0))
T(t_ne_pad_wraps, info(b, "a", 3, NE(4, 1073741823, 1073741825), TF32, 0))
T(t_ne_bytes_wrap, info(b, "a", 1, NE((uint64_t)1 << 62), TF32, 0))
T(t_type_removed, info(b, "a", 1, NE(32), 4, 0))
T(t_type_unknown, info(b, "a", 1, NE(32), 200, 0))
T(t_type_huge, info(b, "a", 1, NE(32), UINT32_MAX, 0))
T(t_row_not_whole, info(b, "a", 2, NE(16, 2), TQ4_0, 0))
T(t_offset_first, info(b, "a", 1, NE(4), TF32, 32))
T(t_offset_overlap, info(b, "a", 1, NE(8), TF32, 0); info(b, "b", 1, NE(4), TF32, 0))
T(t_offset_gap, info(b, "a", 1, NE(8), TF32, 0); info(b, "b", 1, NE(4), TF32, 64))
T(t_offset_unaligned, info(b, "a", 1, NE(4), TF32, 0); info(b, "b", 1, NE(4), TF32, 16))
T(t_offset_huge, info(b, "a", 1, NE(4), TF32, UINT64_MAX - 15))
#define HALF ((uint64_t)INT64_MAX - 31) /* a multiple of 32 */
T(t_sum_wraps, info(b, "a", 1, NE(HALF), TI8, 0); info(b, "b", 1, NE(HALF), TI8, HALF); info(b, "c", 1, NE(128), TI8, 2 * HALF))
T(t_beyond_file, info(b, "a", 1, NE(1u << 20), TF32, 0))

typedef struct {
    const char *name, *expect;
    void (*kv)(bytes *b);
    unsigned nkv;
    void (*tensors)(bytes *b);
    unsigned nt;
    size_t data;            /* data bytes after the padding */
    uint64_t say_kv, say_nt; /* counts to claim; 0: the true ones */
    uint32_t version;       /* 0: 3 */
    const char *magic;      /* NULL: "GGUF" */
    size_t only;            /* cut the file to so many bytes; 0: whole */
} bad_gguf;

#define META(what, text, fn, n) {.name = what, .expect = text, .kv = fn, .nkv = n}
#define INFO(what, text, fn, n) {.name = what, .expect = text, .kv = kv_good, .nkv = 2, .tensors = fn, .nt = n, .data = 128}
#define HEAD(...) {.kv = kv_good, .nkv = 2, .tensors = t_good, .nt = 2, .data = 80, __VA_ARGS__}
static const bad_gguf CASE[] = {
    HEAD(.name = "magic-wrong", .expect = "does not begin with \"GGUF\"", .magic = "GGML"),
    HEAD(.name = "magic-cut", .expect = "magic: needs 4 bytes", .only = 3),
    HEAD(.name = "version-1", .expect = "version 1, expected", .version = 1),
    HEAD(.name = "version-4", .expect = "version 4, expected", .version = 4),
    HEAD(.name = "version-big-endian", .expect = "big-endian", .version = 0x03000000u),
    HEAD(.name = "counts-cut", .expect = "metadata count: needs 8 bytes", .only = 20),
    HEAD(.name = "metadata-count-2-64-minus-1", .expect = "18446744073709551615 metadata entries cannot fit", .say_kv = UINT64_MAX),
    HEAD(.name = "metadata-count-times-size-wraps", .expect = "metadata entries cannot fit", .say_kv = UINT64_MAX / 56 + 2),
    HEAD(.name = "metadata-count-too-high", .expect = "tensor name 0", .say_kv = 3),
    HEAD(.name = "tensor-count-2-64-minus-1", .expect = "18446744073709551615 tensors cannot fit", .say_nt = UINT64_MAX),
    HEAD(.name = "tensor-count-times-size-wraps", .expect = "tensors cannot fit", .say_nt = UINT64_MAX / 72 + 2),
    HEAD(.name = "tensor-count-too-high", .expect = "tensor", .say_nt = 3),
    META("key-length-2-64-minus-1", "metadata key 0: a string of 18446744073709551615 bytes", kv_key_wraps, 1),
    META("key-length-beyond-file", "metadata key 0: a string of 100000 bytes", kv_key_beyond, 1),
    META("key-of-65536-bytes", "at most 65535", kv_key_long, 1),
    META("key-empty", "metadata key 0: an empty name", kv_key_empty, 1),
    META("key-with-nul", "control character", kv_key_nul, 1),
    META("key-not-utf8", "is not UTF-8", kv_key_utf8, 1),
    META("key-duplicate", "duplicate name \"general.architecture\"", kv_duplicate, 2),
    META("value-type-13", "metadata \"k\": unknown value type 13", kv_type_unknown, 1),
    META("value-type-huge", "metadata \"k\": unknown value type 4294967295", kv_type_huge, 1),
    META("string-length-2-64-minus-1", "metadata \"k\": value: a string of 18446744073709551615 bytes", kv_string_wraps, 1),
    META("string-length-beyond-file", "metadata \"k\": value: a string of 1073741824 bytes", kv_string_beyond, 1),
    META("bool-of-two", "metadata \"k\": a boolean of value 2", kv_bool_two, 1),
    META("array-of-arrays", "metadata \"k\": an array of arrays", kv_array_nested, 1),
    META("array-type-unknown", "metadata \"k\": an array of unknown type 99", kv_array_type, 1),
    META("array-length-times-8-wraps", "metadata \"k\": an array of 2305843009213693952 items", kv_array_wraps, 1),
    META("array-length-beyond-file", "metadata \"k\": an array of 1073741824 items", kv_array_beyond, 1),
    META("array-of-strings-beyond-file", "metadata \"k\": an array of 1099511627776 items", kv_array_strings, 1),
    META("array-string-length-2-64-minus-1", "metadata \"k\": array item: a string of 18446744073709551615", kv_array_item_wraps, 1),
    META("array-bool-of-seven", "metadata \"k\": a boolean of value 7", kv_array_bool, 1),
    META("alignment-zero", "general.alignment is 0", kv_align_zero, 1),
    META("alignment-24", "general.alignment is 24, expected a power of two", kv_align_odd, 1),
    META("alignment-2-gib", "general.alignment is 2147483648, at most", kv_align_huge, 1),
    META("alignment-u64", "general.alignment is of type 10", kv_align_u64, 1),
    META("alignment-text", "general.alignment is of type 8", kv_align_text, 1),
    INFO("tensor-name-empty", "tensor name 0: an empty name", t_name_empty, 1),
    INFO("tensor-name-of-64-bytes", "a string of 64 bytes, at most 63", t_name_64, 1),
    INFO("tensor-name-length-2-64-minus-1", "tensor name 0: a string of 18446744073709551615 bytes", t_name_wraps, 1),
    INFO("tensor-name-with-nul", "control character", t_name_nul, 1),
    INFO("tensor-name-duplicate", "duplicate name \"a\"", t_duplicate, 2),
    INFO("tensor-five-dimensions", "tensor \"a\": 5 dimensions", t_dims_5, 1),
    INFO("tensor-dimensions-huge", "tensor \"a\": 4294967295 dimensions", t_dims_huge, 1),
    INFO("tensor-dimension-negative", "tensor \"a\": dimension 0 is 18446744073709551615 (negative", t_ne_negative, 1),
    INFO("tensor-product-int64-max-times-2", "tensor \"a\": the product of its dimensions overflows", t_ne_max_times_2, 1),
    INFO("tensor-product-wraps-to-4", "tensor \"a\": the product of its dimensions overflows", t_ne_wraps, 1),
    INFO("tensor-padded-size-wraps-to-0", "tensor \"a\": its size in bytes overflows", t_ne_pad_wraps, 1),
    INFO("tensor-bytes-wrap-to-0", "tensor \"a\": its size in bytes overflows", t_ne_bytes_wrap, 1),
    INFO("tensor-type-removed", "tensor \"a\": unknown tensor type 4", t_type_removed, 1),
    INFO("tensor-type-unknown", "tensor \"a\": unknown tensor type 200", t_type_unknown, 1),
    INFO("tensor-type-huge", "tensor \"a\": unknown tensor type 4294967295", t_type_huge, 1),
    INFO("tensor-row-not-whole-blocks", "tensor \"a\": rows of 16 values are no multiple of Q4_0's block of 32", t_row_not_whole, 1),
    INFO("offset-first-not-zero", "tensor \"a\": offset 32, expected 0", t_offset_first, 1),
    INFO("offset-overlap", "tensor \"b\": offset 0, expected 32", t_offset_overlap, 2),
    INFO("offset-gap", "tensor \"b\": offset 64, expected 32", t_offset_gap, 2),
    INFO("offset-unaligned", "tensor \"b\": offset 16, expected 32", t_offset_unaligned, 2),
    INFO("offset-huge", "tensor \"a\": offset 18446744073709551600, expected 0", t_offset_huge, 1),
    INFO("sum-of-sizes-wraps", "tensor \"c\": the sum of the tensor sizes overflows", t_sum_wraps, 3),
    INFO("tensor-data-beyond-file", "tensor \"a\": its 4194304 bytes at byte 0 of the data end behind the file", t_beyond_file, 1),
    {"tensor-data-one-byte-short", "tensor \"b\": its 16 bytes at byte 64", kv_good, 2, t_good, 2, .data = 79},
    {"tensor-data-absent", "end behind the file", kv_good, 2, t_good, 2, .data = 0},
};

static void build(bytes *b, const bad_gguf *c)
{
    put_text(b, c->magic ? c->magic : "GGUF");
    put_u32(b, c->version ? c->version : 3);
    put_u64(b, c->say_nt ? c->say_nt : c->nt);
    put_u64(b, c->say_kv ? c->say_kv : c->nkv);
    if (c->kv) c->kv(b);
    if (c->tensors) c->tensors(b);
    if (c->data) {
        put_fill(b, 0, (32 - b->n % 32) % 32);
        put_fill(b, 5, c->data);
    }
    if (c->only) b->n = c->only;
}

size_t bad_gguf_count(void) { return sizeof CASE / sizeof *CASE; }

bool bad_gguf_write(size_t i, const char *path, const char **name, const char **expect)
{
    bytes b = {0};
    *name = CASE[i].name;
    *expect = CASE[i].expect;
    if (!path) return true;
    build(&b, &CASE[i]);
    return save(path, &b);
}

void good_gguf(bytes *b)
{
    static const bad_gguf GOOD = HEAD(.name = "good");
    build(b, &GOOD);
}
