/* Hostile safetensors files: a header text, some data, and what is wrong with them. */
#include <string.h>

#include "io/bad_parts.h"

#define A "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}"
#define B "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}"
#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

typedef struct {
    const char *name, *expect;
    const char *header;
    size_t data;        /* data bytes that follow the header */
    uint64_t say;       /* header length to claim; 0: the true one */
    uint64_t grow;      /* sparse file size; 0: none */
    void (*make)(bytes *b); /* writes the whole file instead */
} bad_st;

static void nothing(bytes *b) { (void)b; }
static void seven_bytes(bytes *b) { put_text(b, "\x01\x02\x03\x04\x05\x06\x07"); }
static void zero_header(bytes *b) { put_u64(b, 0); }

static void with_header(bytes *b, const bytes *header, size_t data)
{
    put_u64(b, header->n);
    put(b, header->p, header->n);
    put_fill(b, 1, data);
}

static void long_name(bytes *b) /* 64 KiB */
{
    bytes h = {0};
    put_text(&h, "{\"");
    put_fill(&h, 'n', 65536);
    put_text(&h, "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}");
    with_header(b, &h, 4);
    drop(&h);
}

static void nested(bytes *b, size_t depth)
{
    bytes h = {0};
    put_text(&h, "{\"a\":");
    put_fill(&h, '[', depth);
    put_fill(&h, ']', depth);
    put_text(&h, "}");
    with_header(b, &h, 0);
    drop(&h);
}
static void deep(bytes *b) { nested(b, 65); }
static void abyss(bytes *b) { nested(b, 3000000); } /* would exhaust the stack of a careless parser */

static void many_values(bytes *b)
{
    bytes h = {0};
    put_text(&h, "{\"a\":[0");
    for (size_t i = 0; i < ((size_t)1 << 22); i++) put(&h, ",0", 2);
    put_text(&h, "]}");
    with_header(b, &h, 0);
    drop(&h);
}

static void nul_padding(bytes *b)
{
    bytes h = {0};
    put_text(&h, "{" A "}");
    put_fill(&h, 0, 8);
    with_header(b, &h, 4);
    drop(&h);
}

static const bad_st CASE[] = {
    {"empty-file", "0 bytes", .make = nothing},
    {"seven-bytes", "7 bytes", .make = seven_bytes},
    {"header-length-zero", "does not begin with '{'", .make = zero_header},
    {"header-length-beyond-file", "header of 1000 bytes", "{" A "}", 4, .say = 1000},
    {"header-length-one-too-much", "header", "{" A "}", 0, .say = sizeof "{" A "}"},
    {"header-length-2-64-minus-1", "header of 18446744073709551615 bytes", "{" A "}", 4, .say = UINT64_MAX},
    {"header-length-plus-8-wraps", "header of 18446744073709551608 bytes", "{" A "}", 4, .say = UINT64_MAX - 7},
    {"header-length-over-100-mb", "at most 100000000", "{" A "}", 4, .say = 100000001, .grow = 100000100},
    {"header-length-too-short", "header: ends early", "{" A "}", 4, .say = 20},
    {"header-leading-space", "does not begin with '{'", " {" A "}", 4, 0, 0, NULL},
    {"header-is-a-list", "does not begin with '{'", "[" "1" "]", 0, 0, 0, NULL},
    {"header-text-after-the-end", "after the end", "{" A "}x", 4, 0, 0, NULL},
    {"header-padded-with-nul", "after the end", .make = nul_padding},
    {"header-unclosed", "ends early", "{" A, 4, 0, 0, NULL},
    {"header-comment", "expected a string", "{/**/" A "}", 4, 0, 0, NULL},
    {"header-not-utf8", "not valid UTF-8", "{\"\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"header-overlong-utf8", "not valid UTF-8", "{\"\xc0\xaf\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"header-nested-65-deep", "deeper than 64", .make = deep},
    {"header-nested-3-million-deep", "deeper than 64", .make = abyss},
    {"header-4-million-values", "more values", .make = many_values},
    {"name-duplicate", "duplicate key \"a\"", "{" A "," A "}", 4, 0, 0, NULL},
    {"name-duplicate-escaped", "duplicate key \"a\"", "{" A ",\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"name-with-nul", "NUL", "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"name-lone-surrogate", "lone surrogate", "{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"name-64-kib", "a name of 65536 bytes", .make = long_name},
    {"key-duplicate-in-entry", "duplicate key \"dtype\"", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"metadata-number", "__metadata__ \"k\" is number", "{\"__metadata__\":{\"k\":1}," A "}", 4, 0, 0, NULL},
    {"metadata-nested", "__metadata__ \"k\" is object", "{\"__metadata__\":{\"k\":{}}," A "}", 4, 0, 0, NULL},
    {"metadata-list", "__metadata__ is array", "{\"__metadata__\":[]," A "}", 4, 0, 0, NULL},
    {"metadata-duplicate", "duplicate key \"__metadata__\"", "{\"__metadata__\":{},\"__metadata__\":{}," A "}", 4, 0, 0, NULL},
    {"entry-not-an-object", "\"a\": its entry is not an object", "{\"a\":[0,4]}", 4, 0, 0, NULL},
    {"dtype-missing", "\"a\": no \"dtype\"", "{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"dtype-number", "\"a\": no \"dtype\"", ONE("8", "[4]", "[0,4]"), 4, 0, 0, NULL},
    {"dtype-unknown", "\"a\": unknown dtype \"U9\"", ONE("\"U9\"", "[4]", "[0,4]"), 4, 0, 0, NULL},
    {"dtype-lower-case", "unknown dtype \"u8\"", ONE("\"u8\"", "[4]", "[0,4]"), 4, 0, 0, NULL},
    {"shape-missing", "\"a\": no \"shape\"", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"shape-number", "\"a\": no \"shape\"", ONE("\"U8\"", "4", "[0,4]"), 4, 0, 0, NULL},
    {"shape-negative", "\"a\": a dimension", ONE("\"U8\"", "[-4,-1]", "[0,4]"), 4, 0, 0, NULL},
    {"shape-fraction", "\"a\": a dimension", ONE("\"U8\"", "[4.5]", "[0,4]"), 4, 0, 0, NULL},
    {"shape-text", "\"a\": a dimension", ONE("\"U8\"", "[\"4\"]", "[0,4]"), 4, 0, 0, NULL},
    {"shape-beyond-2-53", "\"a\": a dimension", ONE("\"U8\"", "[18446744073709551620]", "[0,4]"), 4, 0, 0, NULL},
    {"shape-nine-dimensions", "\"a\": 9 dimensions", ONE("\"U8\"", "[4,1,1,1,1,1,1,1,1]", "[0,4]"), 4, 0, 0, NULL},
    {"shape-product-wraps-to-4", "\"a\": the product of its shape overflows", ONE("\"F32\"", "[4194305,4194305,211106198978564]", "[0,16]"), 16, 0, 0, NULL},
    {"shape-bytes-wrap-to-0", "\"a\": its size in bits overflows", ONE("\"F64\"", "[4503599627370496,64]", "[0,0]"), 0, 0, 0, NULL},
    {"shape-sub-byte", "\"a\": its sub-byte values", ONE("\"F4\"", "[3]", "[0,2]"), 2, 0, 0, NULL},
    {"offsets-missing", "\"a\": \"data_offsets\"", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4, 0, 0, NULL},
    {"offsets-one", "\"a\": \"data_offsets\"", ONE("\"U8\"", "[4]", "[0]"), 4, 0, 0, NULL},
    {"offsets-three", "\"a\": \"data_offsets\"", ONE("\"U8\"", "[4]", "[0,4,8]"), 4, 0, 0, NULL},
    {"offsets-negative", "\"a\": \"data_offsets\"", ONE("\"U8\"", "[4]", "[-4,0]"), 4, 0, 0, NULL},
    {"offsets-object", "\"a\": \"data_offsets\"", ONE("\"U8\"", "[4]", "{\"x\":0,\"y\":4}"), 4, 0, 0, NULL},
    {"offsets-reversed", "\"a\": \"data_offsets\" ends before", ONE("\"U8\"", "[4]", "[4,0]"), 4, 0, 0, NULL},
    {"offsets-beyond-2-53", "\"a\": \"data_offsets\"", ONE("\"U8\"", "[4]", "[18446744073709551612,18446744073709551616]"), 4, 0, 0, NULL},
    {"span-too-small", "\"a\": U8 [4] needs 4 bytes, data_offsets span 3", ONE("\"U8\"", "[4]", "[0,3]"), 3, 0, 0, NULL},
    {"span-too-large", "\"a\": U8 [4] needs 4 bytes, data_offsets span 8", ONE("\"U8\"", "[4]", "[0,8]"), 8, 0, 0, NULL},
    {"hole-at-the-start", "\"a\": begins at byte 4 of the data, a hole: expected 0", ONE("\"U8\"", "[4]", "[4,8]"), 8, 0, 0, NULL},
    {"hole-in-the-middle", "\"b\": begins at byte 5", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[5,9]}}", 9, 0, 0, NULL},
    {"overlap", "\"b\": begins at byte 3 of the data, an overlap: expected 4", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}", 7, 0, 0, NULL},
    {"overlap-same-span", "\"b\": begins at byte 0 of the data, an overlap", "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 0, 0, NULL},
    {"overlap-empty-tensor-inside", "\"z\": begins at byte 2", "{" A ",\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}", 4, 0, 0, NULL},
    {"data-cut-short", "\"b\": ends at byte 8 of the data, the file has 7", "{" A "," B "}", 7, 0, 0, NULL},
    {"data-absent", "\"a\": ends at byte 4 of the data, the file has 0", "{" A "}", 0, 0, 0, NULL},
    {"data-far-beyond-the-file", "\"a\": ends at byte 4294967296", ONE("\"U8\"", "[4294967296]", "[0,4294967296]"), 4, 0, 0, NULL},
    {"data-trailing-bytes", "1 bytes after the last tensor", "{" A "," B "}", 9, 0, 0, NULL},
    {"data-without-tensors", "4 bytes after the last tensor", "{}", 4, 0, 0, NULL},
};

size_t bad_st_count(void) { return sizeof CASE / sizeof *CASE; }

bool bad_st_write(size_t i, const char *path, const char **name, const char **expect)
{
    const bad_st *c = &CASE[i];
    bytes b = {0};
    *name = c->name;
    *expect = c->expect;
    if (!path) return true;
    if (c->make) {
        c->make(&b);
    } else {
        put_u64(&b, c->say ? c->say : strlen(c->header));
        put_text(&b, c->header);
        put_fill(&b, 1, c->data);
    }
    return save_sparse(path, &b, c->grow);
}

void good_st(bytes *b, const char *a, const char *c)
{
    bytes h = {0};
    put_text(&h, "{\"__metadata__\":{\"format\":\"pt\"},\"");
    put_text(&h, a);
    put_text(&h, "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"");
    put_text(&h, c);
    put_text(&h, "\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[4,8]}}");
    with_header(b, &h, 8);
    drop(&h);
}
