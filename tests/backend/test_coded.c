/* Packed weights: every golden matrix of every format against the decoded weight bit by bit and against fp64; every kind of
 * code with odd sizes and groups; EXL3's states one by one, its products within a derived bound; the same bits in every
 * variant, for every thread count and number of rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "lab.h"
#include "quant/coded.h"
#include "quant/exl3_tile.h"
#include "quant/fp4.h"
#include "quant/qconfig.h"
#include "tensor/bound.h"
#include "tensor/fp.h"

static const size_t ROWS[] = {1, 2, 15, 17, 240}; /* one, a few, past a tile, past a block of tokens */
#define NROWS (sizeof ROWS / sizeof *ROWS)

static const mla_tensor *find_in_st(const void *ctx, const char *name) { return mla_st_find(ctx, name); }

static mla_status qmat_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    return mla_qmat_rows_f32(ctx, row0, n, dst, err);
}

typedef struct { /* one matrix to multiply with, decoded for the references */
    const char *name;
    mla_qmat q;
    mla_coded c;
    bool fits;
    float *w; /* (out, in) */
} matrix;

static void matrix_take(matrix *m, const char *name)
{
    mla_err err = {0};
    m->name = name;
    ck_ok(mla_qmat_coded(&m->c, &m->fits, &m->q, &err));
    m->w = mla_alloc(m->q.out, m->q.in, sizeof *m->w);
    ck_ok(mla_qmat_rows_f32(&m->q, 0, m->q.out, m->w, &err));
}

static void matrix_drop(matrix *m)
{
    mla_coded_free(&m->c);
    mla_free(m->w);
}

static float *product(mla_backend *be, const mla_weight *w, const float *x, size_t in, size_t out, size_t T)
{
    mla_err err = {0};
    float *y = lab_poisoned(T * (out + 3));
    ck_ok(be->ops->linear(be, w, &(mla_linear_args){.y = dev(y), .ldy = out + 3, .x = dev(x), .ldx = in, .T = T}, &err));
    for (size_t t = 0; t < T; t++) {
        for (size_t i = 0; i < 3; i++) ck_assert_msg(isnan(y[t * (out + 3) + out + i]), "wrote past the row");
        memmove(y + t * out, y + t * (out + 3), out * sizeof *y);
    }
    return y;
}

/* |y - x W'| <= gamma_in sum |x w| in fp64, which both orders of the sum keep */
static void near_fp64(const matrix *m, const float *x, const float *y, size_t T)
{
    size_t in = m->q.in, out = m->q.out;
    for (size_t t = 0; t < T; t++)
        for (size_t o = 0; o < out; o++) {
            double want = 0, mag = 0;
            for (size_t i = 0; i < in; i++) {
                double p = (double)x[t * in + i] * m->w[o * in + i];
                want += p, mag += fabs(p);
            }
            double e = fabs(y[t * out + o] - want), tol = mla_gamma(MLA_F32, in + 2) * mag;
            ck_assert_msg(e <= tol, "%s (%zu, %zu): error %g > %g", m->name, t, o, e, tol);
        }
}

/* One backend: packed (and undecoded) against decoded, rows of one call against calls of one row. */
static void check_matrix(const matrix *m, mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    size_t in = m->q.in, out = m->q.out;
    mla_weight *dense, *packed = NULL, *lazy;
    mla_weight_desc d = {.out = out, .in = in, .precision = MLA_PREC_F32, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q};
    float *x = lab_normals(ROWS[NROWS - 1] * in, 7, 1);
    ck_ok(be->ops->weight_new(be, &dense, &d, &err));
    if (m->fits) {
        d.coded = &m->c;
        ck_ok(be->ops->weight_new(be, &packed, &d, &err));
        d.coded = NULL;
    }
    d.undecoded = true;
    ck_ok(be->ops->weight_new(be, &lazy, &d, &err));
    ck_assert_uint_eq(be->ops->weight_bytes(lazy), 0);
    for (size_t r = 0; r < NROWS; r++) {
        size_t T = isa == MLA_ISA_REF && ROWS[r] > 20 ? 20 : ROWS[r];
        float *want = product(be, dense, x, in, out, T), *got = product(be, lazy, x, in, out, T);
        ck_assert_msg(lab_same_bits(m->name, got, want, T * out), "%s, undecoded, %zu rows", m->name, T);
        mla_free(got);
        if (packed) {
            got = product(be, packed, x, in, out, T);
            if (T <= 2) near_fp64(m, x, got, T);
            if (!m->c.perm) ck_assert_msg(lab_same_bits(m->name, got, want, T * out), "%s, %zu rows", m->name, T);
            float *last = product(be, packed, x + (T - 1) * in, in, out, 1);
            ck_assert_msg(lab_same_bits(m->name, last, got + (T - 1) * out, out), "%s: row %zu alone", m->name, T - 1);
            mla_free(last), mla_free(got);
        }
        mla_free(want);
    }
    be->ops->weight_free(be, dense), be->ops->weight_free(be, packed), be->ops->weight_free(be, lazy);
    mla_free(x);
}

static const matrix *now; /* of the callback below */
static void check_now(mla_backend *be, mla_isa isa) { check_matrix(now, be, isa); }
/* Rows out of a packed table, and counted bytes: no more than 1.15 of what is stored, edges and short last panels aside. */
static void check_embed_and_bytes(const matrix *m)
{
    mla_err err = {0};
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    mla_weight *w;
    size_t in = m->q.in, n = 5, padded = (m->q.out + 31) / 32 * 32;
    int32_t ids[5] = {0, (int32_t)m->q.out - 1, 3, (int32_t)m->q.out / 2, 3};
    float *y = lab_poisoned(n * in);
    mla_weight_desc d = {.out = m->q.out, .in = in, .precision = MLA_PREC_F32, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q, .coded = &m->c};
    ck_ok(be->ops->weight_new(be, &w, &d, &err));
    ck_ok(be->ops->embed(be, w, dev(y), ids, n, &err));
    for (size_t t = 0; t < n; t++) ck_assert(lab_same_bits(m->name, y + t * in, m->w + (size_t)ids[t] * in, in));
    double stored = (double)mla_qmat_bytes(&m->q) / (double)m->q.out * (double)padded;
    ck_assert_msg((double)be->ops->weight_bytes(w) <= 1.15 * stored + 1024, "%s: %zu bytes for %.0f stored", m->name, be->ops->weight_bytes(w), stored);
    be->ops->weight_free(be, w);
    mla_backend_close(be);
    mla_free(y);
}

static const char *const CASE[] = {
    "ct_int4_sym_g128", "ct_int4_sym_g32", "ct_int4_asym_g128", "ct_int4_asym_g64_odd", "ct_int4_channel", "ct_int8_pack_g128",
    "ct_int4_actorder", "ct_int8_channel", "ct_fp8_tensor", "ct_fp8_channel", "ct_fp8_block128", "fp8_hf_block128",
    "fp8_hf_block128_ue8m0", "ct_nvfp4", "ct_mxfp4", "awq_gemm_g128", "awq_gemm_g64", "gptq_v1_sym_g128", "gptq_v1_asym_g128",
    "gptq_v1_sym_g128_descact", "gptq_v2_asym_g128", "gptq_v1_asym_g128_zero0", "gptq_v2_asym_g128_zero0",
};

START_TEST(golden)
{
    mla_err err = {0};
    mla_st *s;
    mla_json *j;
    mla_qconfig *cfg;
    matrix m = {0};
    char path[128];
    snprintf(path, sizeof path, "golden-quant/%s.safetensors", CASE[_i]);
    ck_ok(mla_st_open(&s, mla_fixture(path), &err));
    snprintf(path, sizeof path, "golden-quant/%s.json", CASE[_i]);
    ck_ok(mla_json_read(&j, mla_fixture(path), 1 << 20, &err));
    ck_ok(mla_qconfig_read(&cfg, mla_jv_get(mla_json_root(j), "quantization_config"), &err));
    ck_ok(mla_qmat_open_with(&m.q, &(mla_qsource){find_in_st, s}, "m", cfg, &err));
    matrix_take(&m, CASE[_i]);
    ck_assert_msg(m.fits, "%s has no packed form", m.name);
    ck_assert(!m.c.perm == !(strstr(m.name, "actorder") || strstr(m.name, "descact")));
    now = &m;
    lab_each_isa(m.name, 2, check_now);
    check_embed_and_bytes(&m);
    matrix_drop(&m);
    mla_qconfig_free(cfg);
    mla_json_free(j);
    mla_st_close(s);
}
END_TEST

static const struct {
    const char *file;
    uint32_t type;
    bool fits;
} GGUF[] = {
    {"bf16", MLA_GT_BF16, true},     {"f16", MLA_GT_F16, true},       {"q4_0", MLA_GT_Q4_0, true}, {"q4_1", MLA_GT_Q4_1, true},
    {"q5_0", MLA_GT_Q5_0, true},     {"q5_1", MLA_GT_Q5_1, true},     {"q8_0", MLA_GT_Q8_0, true}, {"q2_k", MLA_GT_Q2_K, true},
    {"q3_k", MLA_GT_Q3_K, true},     {"q4_k", MLA_GT_Q4_K, true},     {"q5_k", MLA_GT_Q5_K, true}, {"q6_k", MLA_GT_Q6_K, true},
    {"iq4_nl", MLA_GT_IQ4_NL, true}, {"iq4_xs", MLA_GT_IQ4_XS, true}, {"tq1_0", MLA_GT_TQ1_0, false},
    {"tq2_0", MLA_GT_TQ2_0, true},   {"mxfp4", MLA_GT_MXFP4, true},
};

START_TEST(golden_gguf)
{
    mla_err err = {0};
    mla_st *s;
    matrix m = {0};
    char path[128];
    snprintf(path, sizeof path, "golden-gguf/gguf_%s.safetensors", GGUF[_i].file);
    ck_ok(mla_st_open(&s, mla_fixture(path), &err));
    const mla_tensor *b = mla_st_find(s, "m.blocks"), *want = mla_st_find(s, "m.dequantized");
    mla_gguf_tensor t = {.name = GGUF[_i].file, .type = GGUF[_i].type, .ndim = 2, .ne = {want->shape[1], want->shape[0], 1, 1},
                         .data = b->data, .nbytes = b->nbytes};
    ck_ok(mla_qmat_gguf(&m.q, &t, &err));
    matrix_take(&m, GGUF[_i].file);
    ck_assert_msg(m.fits == GGUF[_i].fits, "%s: packed form %d", m.name, m.fits);
    now = &m;
    lab_each_isa(m.name, 2, check_now);
    if (m.fits) check_embed_and_bytes(&m);
    matrix_drop(&m);
    mla_st_close(s);
}
END_TEST

/* Drawn codes: any kind with any scale, sizes that fill no word, no panel and no block, groups that straddle blocks. */
typedef struct {
    mla_code code;
    unsigned bits;
    mla_scale_kind scale;
    mla_offset_kind offset;
    size_t out, in, group, super;
    enum { ODD, WHOLE, MIDDLE, E2M1, TINY } values; /* i - 3, i, i - half; fp4 under E4M3 over a factor; MIDDLE under tiny scales */
} drawn;

static const drawn DRAWN[] = {
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 37, 300, 40, 0, ODD},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 1, 8, 8, 0, ODD},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_BF16, MLA_OFFSET_ZERO, 65, 1, 64, 0, ODD},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 96, 531, 1000, 0, ODD},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_NONE, 33, 263, 24, 0, ODD},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 31, 777, 16, 256, ODD},
    {MLA_CODE_CRUMB, 2, MLA_SCALE_SUPER_U4, MLA_OFFSET_SUPER_U4, 34, 530, 16, 256, ODD},
    {MLA_CODE_CRUMB_BIT, 3, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, 64, 270, 32, 128, ODD},
    {MLA_CODE_INT8, 8, MLA_SCALE_F16, MLA_OFFSET_ZERO, 35, 259, 48, 0, ODD},
    {MLA_CODE_E4M3, 8, MLA_SCALE_F32, MLA_OFFSET_NONE, 70, 300, 104, 0, ODD},
    {MLA_CODE_BF16, 16, MLA_SCALE_ONE, MLA_OFFSET_NONE, 39, 521, 521, 0, ODD},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 97, 300, 40, 0, WHOLE},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 65, 777, 40, 0, MIDDLE},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 70, 531, 16, 0, E2M1},
    {MLA_CODE_NIBBLE, 4, MLA_SCALE_F32, MLA_OFFSET_NONE, 65, 300, 40, 0, TINY},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F16, MLA_OFFSET_F16, 33, 779, 24, 0, WHOLE},
    {MLA_CODE_NIBBLE_BIT, 5, MLA_SCALE_F32, MLA_OFFSET_NONE, 64, 259, 24, 0, MIDDLE},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_F16, MLA_OFFSET_F16, 66, 333, 56, 0, WHOLE},
    {MLA_CODE_NIBBLE_CRUMB, 6, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 31, 777, 16, 256, MIDDLE},
};

static uint32_t draw(size_t row, size_t i, unsigned what) { return mla_f32_bits((float)mla_rng_normal(77 + what, row * 4096 + i)) >> 3; }
static uint16_t half_near_1(size_t row, size_t g, unsigned what) { return (uint16_t)(0x3800 + draw(row, g, what) % 0x700); }

static mla_status drawn_fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    const drawn *d = c->ctx;
    (void)err;
    for (size_t i = 0; i < c->in; i++) {
        uint32_t q = draw(row, i, 0) & ((1u << d->bits) - 1);
        if (d->code == MLA_CODE_E4M3 && (q & 0x7f) == 0x7f) q = 0;
        if (d->code == MLA_CODE_BF16) {
            uint16_t h = mla_f32_bf16((float)(q % 1000) * 0.37f - 180);
            memcpy(to->code + 2 * i, &h, 2);
        } else to->code[i] = (uint8_t)q;
    }
    for (size_t g = 0; d->scale != MLA_SCALE_ONE && g * c->group < c->in; g++) {
        uint16_t h = half_near_1(row, g, 1), o = half_near_1(row, g, 2);
        float f = mla_f16_f32(h) * (d->values == TINY && g % 2 ? 0x1.01p-125f : 1.0001f);
        uint16_t b = mla_f32_bf16(f);
        if (d->scale == MLA_SCALE_F32) memcpy(to->scale + 4 * g, &f, 4);
        else if (d->scale == MLA_SCALE_F16) memcpy(to->scale + 2 * g, &h, 2);
        else if (d->scale == MLA_SCALE_BF16) memcpy(to->scale + 2 * g, &b, 2);
        else to->scale[g] = (uint8_t)draw(row, g, 3);
        if (d->values == E2M1 && (to->scale[g] & 0x7f) == 0x7f) to->scale[g] = 0x81;
        if (d->offset == MLA_OFFSET_F16) memcpy(to->offset + 2 * g, &o, 2);
        else if (mla_offset_size(d->offset)) to->offset[g] = (uint8_t)draw(row, g, 4);
    }
    for (size_t u = 0; d->super && u * d->super < c->in; u++) to->super[u] = half_near_1(row, u, 5), to->super_off[u] = half_near_1(row, u, 6);
    return MLA_OK;
}

/* The definition in plain C. */
static float drawn_value(const mla_coded *c, const mla_coded_row *r, size_t i)
{
    const drawn *d = c->ctx;
    size_t g = i / c->group, u = d->super ? i / d->super : 0;
    uint16_t h = 0, o = 0;
    float f = 0, v, s = 1, m = 0;
    unsigned low = d->bits < 4 ? 2 : 4;
    if (d->code == MLA_CODE_BF16) return memcpy(&h, r->code + 2 * i, 2), mla_bf16_f32(h);
    if (d->code == MLA_CODE_INT8) v = (int8_t)r->code[i];
    else if (d->code == MLA_CODE_E4M3) v = mla_e4m3_f32(r->code[i]);
    else v = c->lo[r->code[i] & ((1u << low) - 1)] + (d->bits > low ? c->hi[r->code[i] >> low] : 0);
    if (mla_scale_size(d->scale) == 2) memcpy(&h, r->scale + 2 * g, 2);
    if (d->scale == MLA_SCALE_F32) memcpy(&f, r->scale + 4 * g, 4);
    switch (d->scale) {
    case MLA_SCALE_F32: s = f; break;
    case MLA_SCALE_F16: s = mla_f16_f32(h); break;
    case MLA_SCALE_BF16: s = mla_bf16_f32(h); break;
    case MLA_SCALE_TABLE: s = c->table[r->scale[g]]; break;
    case MLA_SCALE_SUPER_I8: s = mla_f16_f32(r->super[u]) * (float)(int8_t)r->scale[g]; break;
    case MLA_SCALE_SUPER_U4: s = mla_f16_f32(r->super[u]) * (float)(r->scale[g] & 15); break;
    default: break;
    }
    if (d->offset == MLA_OFFSET_F16) memcpy(&o, r->offset + 2 * g, 2), m = mla_f16_f32(o);
    if (d->offset == MLA_OFFSET_ZERO) m = -((float)(int8_t)r->offset[g] * s);
    if (d->offset == MLA_OFFSET_SUPER_U8) m = -(mla_f16_f32(r->super_off[u]) * (float)r->offset[g]);
    if (d->offset == MLA_OFFSET_SUPER_U4) m = -(mla_f16_f32(r->super_off[u]) * (float)(r->scale[g] >> 4));
    return s * v + m; /* s v is exact where there is an m */
}

static mla_status drawn_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    const mla_coded *c = ctx;
    uint8_t code[2 * 1024], scale[4 * 256], offset[2 * 256];
    uint16_t super[16], off[16];
    mla_coded_row r = {code, scale, offset, super, off};
    for (size_t k = 0; k < n; k++) {
        mla_status st = c->fill(c, row0 + k, &r, err);
        if (st != MLA_OK) return st;
        for (size_t p = 0; p < c->in; p++) dst[k * c->in + (c->perm ? c->perm[p] : p)] = drawn_value(c, &r, p);
    }
    return MLA_OK;
}

static void drawn_make(mla_coded *c, const drawn *d)
{
    *c = (mla_coded){.out = d->out, .in = d->in, .code = d->code, .group = d->group, .scale = d->scale, .offset = d->offset,
                     .super_group = d->super, .fill = drawn_fill, .ctx = d};
    unsigned low = d->bits < 4 ? 3 : 15, high = d->bits == 6 ? 3 : 1;
    float zero = d->values == ODD ? 3 : d->values == WHOLE ? 0 : (float)(1u << (d->bits - 1));
    for (unsigned i = 0; i < 16; i++) c->lo[i] = d->values == E2M1 ? MLA_E2M1[i] : (float)(i & low) - zero, c->hi[i] = (float)((i & high) * (low + 1));
    for (unsigned i = 0; i < 256; i++) c->table[i] = d->values == E2M1 ? mla_e4m3_f32((uint8_t)i) / 0.3701f : (float)i * 0.013f - 1;
}

static void check_drawn(mla_backend *be, mla_isa isa)
{
    static float *ref[sizeof DRAWN / sizeof *DRAWN]; /* of the first variant */
    for (size_t i = 0; i < sizeof DRAWN / sizeof *DRAWN; i++) {
        mla_err err = {0};
        mla_coded c;
        mla_weight *w, *dense;
        drawn_make(&c, &DRAWN[i]);
        mla_weight_desc d = {.out = c.out, .in = c.in, .precision = MLA_PREC_F32, .rows = drawn_rows, .ctx = &c};
        ck_ok(be->ops->weight_new(be, &dense, &d, &err));
        d.coded = &c;
        ck_ok(be->ops->weight_new(be, &w, &d, &err));
        float *x = lab_normals(17 * c.in, 3 + i, 1), *want = product(be, dense, x, c.in, c.out, 17), *got = product(be, w, x, c.in, c.out, 17);
        ck_assert_msg(lab_same_bits("drawn", got, want, 17 * c.out), "case %zu", i);
        float *one = product(be, w, x, c.in, c.out, 1);
        ck_assert_msg(lab_same_bits("drawn", one, want, c.out), "case %zu, one row", i);
        if (isa == MLA_ISA_REF) ref[i] = lab_copy(got, 17 * c.out);
        ck_assert_msg(lab_same_bits("drawn", got, ref[i], 17 * c.out), "case %zu: another variant's bits", i);
        be->ops->weight_free(be, w), be->ops->weight_free(be, dense);
        mla_free(x), mla_free(want), mla_free(got), mla_free(one);
    }
}

START_TEST(every_code_in_odd_sizes) { lab_each_isa("codes", 3, check_drawn); }
END_TEST

/* bf16 runs, every kind of code: activations are rounded; from 16 rows on weights may be, too, half an ulp of bf16 each. */
static void check_bf16(mla_backend *be, mla_isa isa)
{
    (void)isa;
    for (size_t n = 0; n < sizeof DRAWN / sizeof *DRAWN; n++) {
        mla_err err = {0};
        mla_coded c;
        drawn_make(&c, &DRAWN[n]);
        mla_weight_desc d = {.out = c.out, .in = c.in, .precision = MLA_PREC_BF16, .rows = drawn_rows, .ctx = &c, .coded = &c};
        mla_weight *w;
        ck_ok(be->ops->weight_new(be, &w, &d, &err));
        float *x = lab_normals(40 * c.in, 5, 1), *rows = mla_alloc(c.out, c.in, sizeof *rows);
        ck_ok(drawn_rows(&c, 0, c.out, rows, &err));
        for (size_t T = 1; T <= 40; T += 13) {
            float *y = product(be, w, x, c.in, c.out, T);
            for (size_t t = 0; t < T; t++)
                for (size_t o = 0; o < c.out; o++) {
                    double want = 0, mag = 0;
                    for (size_t i = 0; i < c.in; i++) {
                        double xr = mla_bf16_f32(mla_f32_bf16(x[t * c.in + i])), p = xr * rows[o * c.in + i];
                        want += p, mag += fabs(p);
                    }
                    double tol = mla_gamma(MLA_F32, c.in + 1) * mag + (T < 16 ? 0 : 0x1p-8 * mag);
                    ck_assert_msg(fabs(y[t * c.out + o] - want) <= tol, "case %zu, %zu rows (%zu, %zu): error %g > %g", n, T, t, o, fabs(y[t * c.out + o] - want), tol);
                }
            mla_free(y);
        }
        be->ops->weight_free(be, w);
        mla_free(x), mla_free(rows);
    }
}

START_TEST(bf16_products) { lab_each_isa("codes, bf16", 2, check_bf16); }
END_TEST

#if defined(__x86_64__)
/* The step from a decoded panel to pairs needs no bf16 instruction: the same words as from the rows themselves. */
START_TEST(pairs_of_a_panel)
{
    mla_cpu_kern ref, k;
    if (!mla_cpu_pick(MLA_ISA_REF, &ref) || !mla_cpu_pick(MLA_ISA_AVX512, &k)) {
        mla_test_skip("pairs of a panel", "this CPU lacks AVX-512", 1);
        return;
    }
    mla_cpu_fill_avx512bf16(&k);
    for (size_t n = 1; n <= 256; n += 51) {
        float *rows = lab_normals(MLA_NR * n, 31 + n, 1), *panel = mla_alloc(n + 1, MLA_NR, sizeof *panel);
        uint32_t *want = mla_alloc((n + 1) / 2, MLA_NR, sizeof *want), *got = mla_alloc((n + 1) / 2, MLA_NR, sizeof *got);
        ref.pack_f32(panel, rows, n, MLA_NR, n);
        ref.pack_bf16(want, rows, n, MLA_NR, n);
        k.pair_rows(got, panel, n);
        ck_assert(!memcmp(got, want, (n + 1) / 2 * MLA_NR * sizeof *got));
        mla_free(rows), mla_free(panel), mla_free(want), mla_free(got);
    }
}
END_TEST
#endif

/* A moved order of columns is the same sum in another order: inputs follow. */
START_TEST(columns_in_another_order)
{
    mla_err err = {0};
    mla_coded c;
    uint32_t perm[300];
    drawn_make(&c, &DRAWN[0]);
    for (uint32_t i = 0; i < 300; i++) perm[i] = i * 7 % 300;
    c.perm = perm;
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    mla_weight *w;
    float *rows = mla_alloc(c.out, c.in, sizeof *rows), *x = lab_normals(30 * c.in, 8, 1);
    ck_ok(drawn_rows(&c, 0, c.out, rows, &err));
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = c.out, .in = c.in, .rows = drawn_rows, .ctx = &c, .coded = &c}, &err));
    matrix m = {.name = "moved", .q = {.out = c.out, .in = c.in}, .w = rows};
    for (size_t T = 1; T <= 30; T += 29) {
        float *y = product(be, w, x, c.in, c.out, T);
        near_fp64(&m, x, y, T);
        mla_free(y);
    }
    float *row = lab_poisoned(c.in);
    ck_ok(be->ops->embed(be, w, dev(row), (int32_t[]){5}, 1, &err));
    ck_assert(lab_same_bits("moved row", row, rows + 5 * c.in, c.in));
    be->ops->weight_free(be, w);
    mla_backend_close(be);
    mla_free(row), mla_free(rows), mla_free(x);
}
END_TEST

static mla_status nan_fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err)
{
    mla_status st = drawn_fill(c, row, to, err);
    if (row == 33) to->scale[1] = 0x7e;
    return st;
}

/* A scale that is no number is refused when the weight is made; running out of memory leaves nothing behind. */
START_TEST(refused)
{
    mla_err err = {0};
    mla_coded c;
    mla_weight *w = NULL;
    drawn_make(&c, &DRAWN[0]);
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    mla_weight_desc d = {.out = c.out, .in = c.in, .rows = drawn_rows, .ctx = &c, .coded = &c};
    c.fill = nan_fill;
    ck_refused(be->ops->weight_new(be, &w, &d, &err), MLA_EFORMAT, "not finite");
    c.fill = drawn_fill;
    for (long k = 0;; k++) {
        mla_alloc_fail_after(k);
        mla_status st = be->ops->weight_new(be, &w, &d, &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_int_eq(st, MLA_ENOMEM);
    }
    be->ops->weight_free(be, w);
    mla_backend_close(be);
}
END_TEST

static const char *const EXL3[] = {"k1_mul1", "k2_mul1", "k2p5_mul1", "k3_mcg", "k3_3inst", "k3p5_mul1",
                                   "k4_mul1", "k4_mcg", "k5_mul1", "k5_3inst", "k6_mul1", "k8_mul1"};

/* Every value of every tile as the dequantizer's, in every variant. */
static void check_tiles(const matrix *m, mla_backend *be, const mla_weight *w)
{
    const mla_trellis *t = &m->c.trellis;
    mla_cpu *c = mla_cpu_of(be);
    float got[256 * MLA_NR], want[16 * 16];
    for (size_t p = 0; p < w->panels; p++)
        for (size_t kp = 0; kp * MLA_KP < w->in; kp++) {
            size_t tiles = mla_min_size(MLA_KP, w->in - kp * MLA_KP) / 16;
            mla_cpu_code_tile(c->k, w, p, kp, got, NULL);
            for (size_t a = 0; a < tiles; a++)
                for (size_t b = 0; b < 2; b++) {
                    size_t at = (kp * 16 + a) * (t->out128 / 16) + 2 * p + b;
                    mla_exl3_tile(want, 16, t->tiles + at * 16 * t->twice_k, t->twice_k, (mla_qcodebook)(t->codebook + MLA_QC_3INST));
                    for (size_t r = 0; r < 16; r++)
                        for (size_t col = 0; col < 16; col++) {
                            float g = got[(a * 16 + r) * MLA_NR + col / 8 * 16 + b * 8 + col % 8];
                            ck_assert_msg(g == want[r * 16 + col], "%s: tile %zu value (%zu, %zu): %g, want %g", m->name, at, r, col, (double)g, (double)want[r * 16 + col]);
                        }
                }
        }
}

/* Transforms without their factors are sqrt(128) times orthogonal, so rounding errors keep their norms: stages 2 x 7 with
 * their scalings, a product of length n between them. With V the codebook values of the 128 outputs around o,
 *   |error of y_o| <= g |sv_o| |V|_F |su x|_2,   g = gamma_prob(n + 20) here + gamma_prob(20) of the rows compared with. */
static double exl3_bound(const matrix *m, const float *su, const float *sv, const float *x, size_t o)
{
    double v = 0, s = 0, g = mla_gamma_prob(MLA_F32, m->q.in + 20) + mla_gamma_prob(MLA_F32, 20);
    for (size_t r = o / 128 * 128; r < o / 128 * 128 + 128; r++)
        for (size_t i = 0; i < m->q.in; i++) v += pow((double)m->w[r * m->q.in + i] / ((double)su[i] * sv[r]), 2);
    for (size_t i = 0; i < m->q.in; i++) s += pow((double)su[i] * x[i], 2);
    return g * fabs((double)sv[o]) * sqrt(v) * sqrt(s);
}

static float *exl3_first; /* product of the reference variant */
static void check_exl3(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    const matrix *m = now;
    size_t in = m->q.in, out = m->q.out, T = 16;
    mla_weight *w;
    float *x = lab_normals(T * in, 21, 1), *su = mla_alloc(in, 1, sizeof *su), *sv = mla_alloc(out, 1, sizeof *sv);
    m->c.sides(&m->c, su, sv);
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = out, .in = in, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q, .coded = &m->c}, &err));
    check_tiles(m, be, w);
    float *y = product(be, w, x, in, out, T), *one = product(be, w, x + 3 * in, in, out, 1);
    ck_assert(lab_same_bits("exl3 row alone", one, y + 3 * out, out));
    if (isa == MLA_ISA_REF) exl3_first = lab_copy(y, T * out);
    ck_assert_msg(lab_same_bits("exl3", y, exl3_first, T * out), "%s: another variant's bits", m->name);
    for (size_t o = 0; o < out; o += 37) {
        double want = 0, tol = exl3_bound(m, su, sv, x, o);
        for (size_t i = 0; i < in; i++) want += (double)x[i] * m->w[o * in + i];
        ck_assert_msg(fabs(y[o] - want) <= tol, "%s output %zu: error %g > %g", m->name, o, fabs(y[o] - want), tol);
        ck_assert_double_lt(tol, 1e-2 * fabs(want) + 1e-2); /* the bound means something */
    }
    be->ops->weight_free(be, w);
    mla_free(x), mla_free(su), mla_free(sv), mla_free(y), mla_free(one);
}

START_TEST(exl3)
{
    mla_err err = {0};
    mla_st *s;
    matrix m = {0};
    ck_ok(mla_st_open(&s, mla_fixture("golden-quant/exl3.safetensors"), &err));
    ck_ok(mla_qmat_open(&m.q, &(mla_qsource){find_in_st, s}, EXL3[_i], &err));
    matrix_take(&m, EXL3[_i]);
    ck_assert(m.fits);
    now = &m;
    lab_each_isa(m.name, 2, check_exl3);
    mla_free(exl3_first);
    matrix_drop(&m);
    mla_st_close(s);
}
END_TEST

/* Every state of every codebook: at 8 bits a state is two bytes, and so many drawn tiles hold all pairs. */
enum { STATES_IN = 1024, STATES_OUT = 2048, STATES_TILES = STATES_IN / 16 * (STATES_OUT / 16) };

static void ones(const mla_coded *c, float *su, float *sv)
{
    for (size_t i = 0; i < c->trellis.out128; i++) su[i < c->trellis.in128 ? i : 0] = sv[i] = 1;
}

static void check_states(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    mla_weight *w;
    (void)isa;
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = STATES_OUT, .in = STATES_IN, .rows = qmat_rows, .coded = &now->c}, &err));
    check_tiles(now, be, w), be->ops->weight_free(be, w);
}

START_TEST(every_state)
{
    unsigned char *tiles = mla_alloc(STATES_TILES, 256, 1), *seen = mla_alloc(1, 65536, 1);
    size_t n = 0;
    for (size_t i = 0; i < (size_t)256 * STATES_TILES; i++) tiles[i] = (unsigned char)(mla_rng_u64(31, i) >> 40);
    for (size_t t = 0; t < STATES_TILES; t++)
        for (size_t i = 0; i < 256; i++) seen[tiles[256 * t + (i ^ 3)] << 8 | tiles[256 * t + ((i + 1) % 256 ^ 3)]] = 1;
    for (size_t s = 0; s < 65536; s++) n += seen[s];
    ck_assert_uint_eq(n, 65536);
    mla_coded c = {.out = STATES_OUT, .in = STATES_IN, .code = MLA_CODE_TRELLIS, .group = STATES_IN, .sides = ones, .trellis = {tiles, 16, (unsigned)_i, STATES_IN, STATES_OUT}};
    matrix m = {.name = _i == 0 ? "3inst" : _i == 1 ? "mcg" : "mul1", .q.in = STATES_IN, .q.out = STATES_OUT, .c = c};
    now = &m, lab_each_isa(m.name, 2, check_states);
    mla_free(tiles), mla_free(seen);
}
END_TEST

Suite *suite_coded(void)
{
    Suite *s = suite_create("coded");
    TCase *c = tcase_create("coded");
    tcase_add_loop_test(c, golden, 0, sizeof CASE / sizeof *CASE);
    tcase_add_loop_test(c, golden_gguf, 0, sizeof GGUF / sizeof *GGUF);
    tcase_add_loop_test(c, exl3, 0, sizeof EXL3 / sizeof *EXL3);
    tcase_add_loop_test(c, every_state, 0, 3);
    tcase_add_test(c, every_code_in_odd_sizes);
    tcase_add_test(c, bf16_products);
#if defined(__x86_64__)
    tcase_add_test(c, pairs_of_a_panel);
#endif
    tcase_add_test(c, columns_in_another_order);
    tcase_add_test(c, refused);
    suite_add_tcase(s, c);
    return s;
}
