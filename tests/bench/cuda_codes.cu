/* Packed weights with few tokens, as decode steps meet them: time of one linear layer of the 27B shape (gate: 5120 to 17408)
 * in each storage format, recorded and replayed, as a share of the time its stored bytes need at read_bw and against bf16.
 * Four matrices of a format take turns, so that L2 holds none of them. Codes are random, scales of a size. */
#include <chrono>

#include "backend/backend.h"
#include "cuda_ceilings.h"
#include "tensor/coded.h"

enum { IN = 5120, OUT = 17408, COPIES = 4, CALLS = 24, RANDOM = 1 << 20 };

static mla_backend *be;
static mla_err err;
static std::vector<uint8_t> noise(RANDOM + 2 * IN);

struct Format {
    const char *name;
    mla_code code;
    unsigned bits;
    size_t group, super;
    mla_scale_kind scale;
    mla_offset_kind offset;
    double least; /* share of read_bw: an aim of our own */
};
static const Format FORMATS[] = {
    {"bf16", MLA_CODE_BF16, 16, IN, 0, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0.80},
    {"fp8, blocks of 128", MLA_CODE_E4M3, 8, 128, 0, MLA_SCALE_F32, MLA_OFFSET_NONE, 0.75},
    {"int8, groups of 32 (Q8_0)", MLA_CODE_INT8, 8, 32, 0, MLA_SCALE_F16, MLA_OFFSET_NONE, 0.75},
    {"int4, groups of 128", MLA_CODE_NIBBLE, 4, 128, 0, MLA_SCALE_BF16, MLA_OFFSET_NONE, 0.6},
    {"Q4_K", MLA_CODE_NIBBLE, 4, 32, 256, MLA_SCALE_SUPER_I8, MLA_OFFSET_SUPER_U8, 0.6},
    {"NVFP4", MLA_CODE_NIBBLE, 4, 16, 0, MLA_SCALE_TABLE, MLA_OFFSET_NONE, 0.6},
    {"Q6_K", MLA_CODE_NIBBLE_CRUMB, 6, 16, 256, MLA_SCALE_SUPER_I8, MLA_OFFSET_NONE, 0.6},
    {"EXL3, 4 bits", MLA_CODE_TRELLIS, 4, IN, 0, MLA_SCALE_ONE, MLA_OFFSET_NONE, 0.3},
};

static mla_status fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *)
{
    const uint8_t *from = noise.data() + row * 4093 % RANDOM;
    const size_t groups = IN / c->group, supers = c->super_group ? IN / c->super_group : 0;
    const unsigned bits = *(const unsigned *)c->ctx;
    for (size_t i = 0; i < IN; i++) {
        const uint16_t wide = (uint16_t)(0x3c00 | (from[i] & 0x7f) | (from[i] & 0x80) << 8); /* bf16: of the size of 1/128 */
        if (bits == 16) memcpy(to->code + 2 * i, &wide, 2);
        else to->code[i] = c->code == MLA_CODE_E4M3 && (from[i] & 0x7f) == 0x7f ? 0 : (uint8_t)(from[i] & ((1u << bits) - 1));
    }
    const float f = 0.01f;
    const uint16_t half = 0x211f, brain = 0x3c24; /* 0.01 each */
    for (size_t g = 0; g < groups; g++) {
        if (c->scale == MLA_SCALE_F32) memcpy(to->scale + 4 * g, &f, 4);
        else if (c->scale == MLA_SCALE_F16) memcpy(to->scale + 2 * g, &half, 2);
        else if (c->scale == MLA_SCALE_BF16) memcpy(to->scale + 2 * g, &brain, 2);
        else if (c->scale != MLA_SCALE_ONE) to->scale[g] = from[g] & 63;
        if (c->offset == MLA_OFFSET_SUPER_U8) to->offset[g] = from[g] & 63;
    }
    for (size_t u = 0; u < supers; u++) {
        to->super[u] = half;
        if (c->offset == MLA_OFFSET_SUPER_U8) to->super_off[u] = half;
    }
    return MLA_OK;
}
static void sides(const mla_coded *, float *su, float *sv)
{
    for (size_t i = 0; i < IN; i++) su[i] = i % 3 ? 0.1f : -0.1f;
    for (size_t i = 0; i < OUT; i++) sv[i] = i % 5 ? 0.1f : -0.1f;
}
static mla_status no_rows(void *, size_t, size_t, float *, mla_err *e) { return mla_fail(e, MLA_EINTERNAL, "asked for decoded rows"); }

static mla_weight *weight(const Format &f, const std::vector<unsigned char> &tiles)
{
    mla_coded c = {};
    c.out = OUT, c.in = IN, c.code = f.code, c.group = f.group, c.super_group = f.super, c.scale = f.scale, c.offset = f.offset, c.fill = fill, c.ctx = &f.bits;
    static const float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const bool table = f.scale == MLA_SCALE_TABLE, whole = f.offset != MLA_OFFSET_NONE; /* NVFP4; Q4_K, whose codes are not negative */
    for (int i = 0; i < 16; i++) c.lo[i] = table ? (i & 8 ? -E2M1[i & 7] : E2M1[i & 7]) : (float)(whole ? i : i - 8), c.hi[i] = (float)((i & 3) * 16);
    for (int i = 0; i < 256; i++) c.table[i] = (float)i * 1e-3f;
    if (f.code == MLA_CODE_TRELLIS) {
        c.trellis.tiles = tiles.data(), c.trellis.twice_k = 2 * f.bits, c.trellis.codebook = 1, c.trellis.in128 = IN, c.trellis.out128 = OUT;
        c.sides = sides;
    }
    const mla_weight_desc d = {OUT, IN, MLA_PREC_BF16, no_rows, NULL, &c, false};
    mla_weight *w = NULL;
    OK(be->ops->weight_new(be, &w, &d, &err));
    return w;
}

/* Microseconds of one layer. */
static double time_of(mla_weight *const *w, mla_mem *y, mla_mem *x, size_t T)
{
    mla_tape *tape = NULL;
    const mla_linear_args a = {y, OUT, x, IN, T, NULL, false};
    OK(be->ops->linear(be, w[0], &a, &err)); /* scratch grows */
    OK(be->ops->record(be, &err));
    for (int i = 0; i < CALLS; i++) OK(be->ops->linear(be, w[i % COPIES], &a, &err));
    OK(be->ops->record_end(be, &tape, &err));
    std::vector<double> us;
    for (int r = 0; r < 6; r++) {
        OK(be->ops->sync(be, &err));
        const auto t0 = std::chrono::steady_clock::now();
        for (int i = 0; i < 4; i++) OK(be->ops->replay(be, tape, &err));
        OK(be->ops->sync(be, &err));
        if (r) us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - t0).count() / (4 * CALLS));
    }
    be->ops->tape_free(be, tape);
    return median(us);
}

int main(void)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_codes", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    double read_bw = 0, copy_bw = 0;
    ceilings(&read_bw, &copy_bw);
    const mla_backend_opts o = {"cuda:0", 0, MLA_ISA_AUTO};
    OK(mla_backend_open(&be, &o, &err));
    for (size_t i = 0; i < noise.size(); i++) noise[i] = (uint8_t)cut_hash(i);
    std::vector<unsigned char> tiles((size_t)IN / 16 * (OUT / 16) * 16 * 8);
    for (size_t i = 0; i < tiles.size(); i++) tiles[i] = noise[i % RANDOM];
    mla_mem *x, *y;
    const std::vector<float> ones(8 * (size_t)IN, 0.5f);
    OK(be->ops->alloc(be, &x, ones.size() * 4, &err));
    OK(be->ops->upload(be, x, ones.data(), ones.size() * 4, &err));
    OK(be->ops->alloc(be, &y, 8 * (size_t)OUT * 4, &err));
    printf("read_bw %.0f GB/s; %d x %d, medians of 5\n\ngoals: row, measured, least and aimed at\n", read_bw, OUT, IN);
    double bf16[9] = {};
    for (const Format &f : FORMATS) {
        mla_weight *w[COPIES];
        for (mla_weight *&i : w) i = weight(f, tiles);
        const double bytes = (double)be->ops->weight_bytes(w[0]);
        for (size_t T : {1, 4, 8}) {
            const double us = time_of(w, y, x, T);
            char what[100];
            if (f.code == MLA_CODE_BF16) bf16[T] = us;
            snprintf(what, sizeof what, "%s, %zu token%s: %.1f us; share of read_bw", f.name, T, T > 1 ? "s" : "", us);
            goal("P", what, bytes / 1e3 / us / read_bw, f.least, 0.85, true);
            if (f.code != MLA_CODE_BF16) printf("     bf16's time over it %.2f, bytes' ratio %.2f\n", bf16[T] / us, (double)IN * OUT * 2 / bytes);
        }
        for (mla_weight *i : w) be->ops->weight_free(be, i);
    }
    std::vector<float> out(OUT);
    OK(be->ops->download(be, out.data(), y, OUT * 4, &err));
    size_t bad = 0;
    for (float v : out) bad += !isfinite(v);
    if (bad) printf("%zu values are not finite\n", bad);
    mla_backend_close(be);
    return bad != 0;
}
