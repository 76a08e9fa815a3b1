/* One token through the linear layers of SmolLM2-135M (30 layers, the head left out) in every weight format: products of one
 * row with packed codes, on the fast path and on the reference path, beside the same products with weights decoded to bf16 and f32.
 *
 * usage: bench_codes threads repetitions [layers [format ...]]
 * formats: those named, beside bf16. int4: with zero points; int4_sym:
 * without. Codes and scales are drawn (never zeros), every matrix its own, so that together they do not fit a core's cache. Prints,
 * for each format NAME: codes_NAME and reference_NAME (passes per second, median; formats alternate) and codes_NAME_bytes (of all
 * matrices). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "lab.h"
#include "tensor/fp.h"

static const struct { /* (out, in) of a layer: q, k, v, o, gate, up, down */
    size_t out, in;
} SHAPE[] = {{576, 576}, {192, 576}, {192, 576}, {576, 576}, {1536, 576}, {1536, 576}, {576, 1536}};
enum { N_SHAPE = sizeof SHAPE / sizeof *SHAPE };

static const struct {
    const char *name;
    mla_precision precision; /* decoded */
    mla_code code;           /* MLA_CODE_N: decoded */
    mla_scale_kind scale;
    mla_offset_kind offset;
    size_t group, super;
    unsigned codebook;
} FORMAT[] = {
    {"bf16", MLA_PREC_BF16, MLA_CODE_N, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0, 0, 0},
    {"f32", MLA_PREC_F32, MLA_CODE_N, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0, 0, 0},
    {"q4_1", MLA_PREC_F32, MLA_CODE_NIBBLE, MLA_SCALE_F16, MLA_OFFSET_F16, 32, 0, 0},
    {"q4_k", MLA_PREC_F32, MLA_CODE_NIBBLE, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, 32, 256, 0},
    {"q6_k", MLA_PREC_F32, MLA_CODE_NIBBLE_CRUMB, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 16, 256, 0},
    {"q8_0", MLA_PREC_F32, MLA_CODE_INT8, MLA_SCALE_F16, MLA_OFFSET_NONE, 32, 0, 0},
    {"int4", MLA_PREC_F32, MLA_CODE_NIBBLE, MLA_SCALE_F16, MLA_OFFSET_ZERO, 64, 0, 0},
    {"int4_sym", MLA_PREC_F32, MLA_CODE_NIBBLE, MLA_SCALE_BF16, MLA_OFFSET_NONE, 128, 0, 0},
    {"nvfp4", MLA_PREC_F32, MLA_CODE_NIBBLE, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 16, 0, 0},
    {"fp8", MLA_PREC_F32, MLA_CODE_E4M3, MLA_SCALE_BF16, MLA_OFFSET_NONE, 128, 0, 0},
    {"exl3_mul1", MLA_PREC_F32, MLA_CODE_TRELLIS, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0, 0, 2},
    {"exl3_mcg", MLA_PREC_F32, MLA_CODE_TRELLIS, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0, 0, 1},
    {"exl3_3inst", MLA_PREC_F32, MLA_CODE_TRELLIS, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0, 0, 0},
};
enum { N_FORMAT = sizeof FORMAT / sizeof *FORMAT, MAX_MATS = 64 * N_SHAPE };

static mla_status normal_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    size_t in = *(const size_t *)ctx;
    (void)err;
    for (size_t i = 0; i < n * in; i++) dst[i] = (float)mla_rng_normal(row0 + 1, i) * 0.02f;
    return MLA_OK;
}

/* e4m3 codes of normals at 4 sigma = 448, as a quantizer makes them; other codes uniform */
static mla_status drawn_fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    uint16_t half = 0x2c00; /* 2^-4 */
    uint32_t r = (uint32_t)row * 2654435761u + 12345;
    (void)err;
    for (size_t i = 0; i < c->in; i++) {
        r = r * 1664525u + 1013904223u;
        if (c->code == MLA_CODE_E4M3) to->code[i] = mla_f32_e4m3((float)mla_rng_normal(row, i) * 112);
        else to->code[i] = (uint8_t)(r >> 24 & (c->code == MLA_CODE_NIBBLE ? 15 : c->code == MLA_CODE_NIBBLE_CRUMB ? 63 : 255));
    }
    for (size_t g = 0; g * c->group < c->in; g++) {
        size_t n = mla_scale_size(c->scale), m = mla_offset_size(c->offset);
        if (n == 2) memcpy(to->scale + 2 * g, &half, 2);
        else to->scale[g] = (uint8_t)(17 + g % 40);
        if (m == 2) memcpy(to->offset + 2 * g, &half, 2);
        else if (m) to->offset[g] = (uint8_t)(g % 16);
    }
    for (size_t u = 0; c->super_group && u * c->super_group < c->in; u++) to->super[u] = to->super_off[u] = half;
    return MLA_OK;
}

static void drawn_sides(const mla_coded *c, float *su, float *sv)
{
    for (size_t i = 0; i < c->trellis.in128; i++) su[i] = i % 3 ? 1 : -1;
    for (size_t o = 0; o < c->trellis.out128; o++) sv[o] = o % 5 ? 0.1f : -0.1f;
}

static mla_weight *matrix(mla_backend *be, size_t f, mla_precision precision, size_t out, size_t in, const unsigned char *tiles)
{
    mla_err err = {0};
    mla_weight *w = NULL;
    mla_coded c = {.out = out, .in = in, .code = FORMAT[f].code, .group = FORMAT[f].group, .scale = FORMAT[f].scale,
                   .offset = FORMAT[f].offset, .super_group = FORMAT[f].super, .fill = drawn_fill, .sides = drawn_sides,
                   .trellis = {tiles, 8, FORMAT[f].codebook, (in + 127) / 128 * 128, (out + 127) / 128 * 128}};
    static const float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int zero = c.offset == MLA_OFFSET_NONE ? c.code == MLA_CODE_NIBBLE_CRUMB ? 32 : 8 : 0;
    for (int i = 0; i < 16; i++) {
        c.lo[i] = c.scale == MLA_SCALE_TABLE ? (i & 8 ? -E2M1[i & 7] : E2M1[i & 7]) : (float)(i - zero);
        c.hi[i] = (float)((i & 3) * 16);
    }
    for (int i = 0; i < 256; i++) c.table[i] = mla_e4m3_f32((uint8_t)(i & 0x7f)) * 0.0123f;
    mla_weight_desc d = {.out = out, .in = in, .precision = precision, .rows = normal_rows, .ctx = &in,
                         .coded = c.code == MLA_CODE_N ? NULL : &c};
    lab_must(be->ops->weight_new(be, &w, &d, &err), &err);
    return w;
}

typedef struct {
    mla_weight *w[MAX_MATS];
    size_t bytes;
    lab_series s;
} series;

static bool wanted(size_t f, int argc, char **argv)
{
    bool yes = f == 0 || argc <= 4;
    for (int i = 4; i < argc; i++) yes |= !strcmp(argv[i], FORMAT[f].name);
    return yes;
}

static void make(series *r, mla_backend *be, size_t f, mla_precision p, size_t n, const unsigned char *tiles)
{
    for (size_t m = 0; m < n; m++) {
        r->w[m] = matrix(be, f, p, SHAPE[m % N_SHAPE].out, SHAPE[m % N_SHAPE].in, tiles);
        r->bytes += be->ops->weight_bytes(r->w[m]);
    }
}

static void pass(series *r, mla_backend *be, size_t n, float *x, float *y, bool counts)
{
    mla_err err = {0};
    if (!r->bytes) return;
    double t = lab_now();
    for (size_t m = 0; m < n; m++) {
        mla_linear_args a = {.y = (mla_mem *)(void *)y, .ldy = 1536, .x = (mla_mem *)(void *)x, .ldx = 1536, .T = 1};
        lab_must(be->ops->linear(be, r->w[m], &a, &err), &err);
    }
    if (counts) lab_add(&r->s, 1 / (lab_now() - t));
}

int main(int argc, char **argv)
{
    mla_backend *be;
    static series fast[N_FORMAT], reference[N_FORMAT];
    size_t reps = lab_arg(argc, argv, 2, 5), layers = lab_arg(argc, argv, 3, 30), n = layers * N_SHAPE;
    if (n > MAX_MATS || reps > LAB_MAX) return 2;
    be = lab_backend(lab_arg(argc, argv, 1, 1));
    unsigned char *tiles = (unsigned char *)lab_area((size_t)1 << 20);
    float *x = mla_alloc(1536, sizeof *x, 1), *y = mla_alloc(1536, sizeof *y, 1);
    if (!x || !y) return 3;
    for (size_t i = 0; i < 1536; i++) x[i] = (float)mla_rng_normal(9, i);
    for (size_t f = 0; f < N_FORMAT; f++)
        if (wanted(f, argc, argv)) {
            bool packed = FORMAT[f].code != MLA_CODE_N;
            make(&fast[f], be, f, packed ? MLA_PREC_BF16 : FORMAT[f].precision, n, tiles);
            if (packed) make(&reference[f], be, f, MLA_PREC_F32, n, tiles);
        }
    for (size_t r = 0; r <= reps; r++) /* the first round warms up */
        for (size_t f = 0; f < N_FORMAT; f++) {
            pass(&fast[f], be, n, x, y, r > 0);
            pass(&reference[f], be, n, x, y, r > 0);
        }
    for (size_t f = 0; f < N_FORMAT; f++) {
        char key[64];
        if (!fast[f].bytes) continue;
        snprintf(key, sizeof key, "codes_%s", FORMAT[f].name);
        lab_print(key, &fast[f].s);
        snprintf(key, sizeof key, "codes_%s_bytes", FORMAT[f].name);
        lab_print_value(key, (double)fast[f].bytes);
        snprintf(key, sizeof key, "reference_%s", FORMAT[f].name);
        if (reference[f].bytes) lab_print(key, &reference[f].s);
        for (size_t m = 0; m < n; m++) be->ops->weight_free(be, fast[f].w[m]), be->ops->weight_free(be, reference[f].w[m]);
    }
    mla_free(tiles), mla_free(x), mla_free(y);
    mla_backend_close(be);
    return 0;
}
