/* Packed weights larger than one piece of anything: outputs that are decoded in several tiles, tokens that shared memory does not hold at
 * once; with bias, added to what is there. */
#include <stdio.h>

#include "packed.h"

/* f32: the CPU's bits. bf16: within the bounds of few_products, and of 20 tokens, whose weights are rounded, too: 2^-9 of each number. */
static void codes(const char *name, const drawn *d)
{
    enum { T = 20 };
    mla_coded c = drawn_codes(d);
    mla_weight_desc desc = {.out = d->out, .in = d->in, .rows = no_rows, .coded = &c};
    mla_weight *ref = weight(cpu, &desc), *f = weight(gpu, &desc);
    desc.precision = MLA_PREC_BF16;
    mla_weight *b = weight(gpu, &desc);
    size_t out = d->out, in = d->in;
    float *x = normals(T * in, 5), *bias = normals(out, 6), *added = normals(T * out, 7), *w = mla_alloc(out, in, sizeof *w);
    int32_t *ids = mla_alloc(out, 1, sizeof *ids);
    for (size_t o = 0; o < out; o++) ids[o] = (int32_t)o;
    for (size_t i = 0; i < T * in; i++) x[i] = mla_bf16_f32(mla_f32_bf16(x[i]));
    mla_mem *W = mem(cpu, w, out * in * 4);
    must(cpu->ops->embed(cpu, ref, W, ids, out, &err), "embed");
    must(cpu->ops->download(cpu, w, W, out * in * 4, &err), "download");
    cpu->ops->free(cpu, W);
    float *want = product_on(cpu, ref, x, T, in, out, bias, added), *got = product_on(gpu, f, x, T, in, out, bias, added), *rough = product_on(gpu, b, x, T, in, out, bias, added);
    check(!memcmp(want, got, T * out * 4), name, "products in f32");
    bool near = true;
    for (size_t t = 0; t < T; t++)
        for (size_t o = 0; o < out; o++) {
            double s = 0;
            for (size_t i = 0; i < in; i++) s += pow((double)x[t * in + i] * w[o * in + i], 2);
            near &= fabs(rough[t * out + o] - want[t * out + o]) <= 8 * sqrt(s) * 0x1p-9; /* 8: the tail, as in tensor/bound.h */
        }
    check(near, name, "products of many tokens");
    few_products(name, b, w, x, out, in);
    gpu->ops->weight_free(gpu, f), gpu->ops->weight_free(gpu, b), cpu->ops->weight_free(cpu, ref);
    mla_free(x), mla_free(bias), mla_free(added), mla_free(w), mla_free(ids), mla_free(want), mla_free(got), mla_free(rough);
}

static void sides(const mla_coded *c, float *su, float *sv)
{
    for (size_t i = 0; i < c->trellis.in128; i++) su[i] = mla_f16_f32(mla_f32_f16((float)mla_rng_normal(8, i)));
    for (size_t o = 0; o < c->trellis.out128; o++) sv[o] = mla_f16_f32(mla_f32_f16((float)mla_rng_normal(9, o)));
}
static double off(const float *a, const float *b, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) d += pow((double)a[i] - (double)b[i], 2), all += pow(b[i], 2);
    return sqrt(d / all);
}
/* Against the CPU's product, of its norm: sums of `in` terms, u (in / 2)^1/2 on each side, twice where tensor cores cut, and 40 u as in
 * test_codes.c; up to 8 tokens are two f16 numbers each, 2^-23, more of them, and the numbers, rounded to bf16. Bits depend neither on how many
 * the few tokens are nor on which of them a token is. */
static void trellis(const char *name, size_t out, size_t in, unsigned twice_k, unsigned codebook)
{
    enum { T = 20 };
    mla_coded c = {.out = out, .in = in, .code = MLA_CODE_TRELLIS, .sides = sides, .trellis = {.twice_k = twice_k, .codebook = codebook, .in128 = (in + 127) / 128 * 128, .out128 = (out + 127) / 128 * 128}};
    const size_t n = mla_trellis_bytes(&c.trellis) / 8;
    uint64_t *tiles = mla_alloc(n, 1, sizeof *tiles);
    for (size_t i = 0; i < n; i++) tiles[i] = mla_rng_u64(10, i);
    c.trellis.tiles = (const unsigned char *)tiles;
    mla_weight_desc desc = {.out = out, .in = in, .rows = no_rows, .coded = &c};
    mla_weight *ref = weight(cpu, &desc), *f = weight(gpu, &desc);
    desc.precision = MLA_PREC_BF16;
    mla_weight *b = weight(gpu, &desc);
    float *x = normals(T * in, 11), *bias = normals(out, 12), *added = normals(T * out, 13);
    float *want = product_on(cpu, ref, x, T, in, out, bias, added), *got = product_on(gpu, f, x, T, in, out, bias, added);
    float *few = product_on(gpu, b, x, 8, in, out, bias, added), *many = product_on(gpu, b, x, T, in, out, bias, added);
    const double sums = (4 * sqrt((double)in / 2) + 40) * 0x1p-24;
    check(off(got, want, T * out) <= sums, name, "products in f32");
    check(off(few, want, 8 * out) <= sums + 0x1p-23, name, "products of few tokens");
    check(off(many, want, T * out) <= sums + 0x1p-8, name, "products of many tokens");
    bool same = true;
    for (size_t t = 1; t < 8; t++) { /* the tokens from t on */
        float *y = product_on(gpu, b, x + t * in, 8 - t, in, out, bias, added + t * out);
        same &= !memcmp(y, few + t * out, (8 - t) * out * 4);
        mla_free(y);
    }
    check(same, name, "products of one to seven tokens");
    gpu->ops->weight_free(gpu, f), gpu->ops->weight_free(gpu, b), cpu->ops->weight_free(cpu, ref);
    mla_free(tiles), mla_free(x), mla_free(bias), mla_free(added), mla_free(want), mla_free(got), mla_free(few), mla_free(many);
}

int main(void)
{
    static const drawn NIBBLES = {MLA_CODE_NIBBLE, 4, MLA_SCALE_F16, MLA_OFFSET_F16, 2100, 16384, 128, 0, false, false}; /* two and three tiles; 4 tokens at once */
    static const drawn HALVES = {MLA_CODE_F16, 16, MLA_SCALE_ONE, MLA_OFFSET_NONE, 40, 16400, 16400, 0, false, false};     /* by the kernel without tensor cores; 6 tokens at once */
    if (mla_backend_open(&gpu, &(mla_backend_opts){.device = "cuda:0"}, &err) != MLA_OK) {
        printf("SKIP large packed weights on a GPU: %s (14)\n", err.msg);
        printf("cuda_packed: 0 passed, 0 failed, 14 skipped\n");
        return 0;
    }
    must(mla_backend_open(&cpu, &(mla_backend_opts){.threads = 4}, &err), "cpu");
    codes("nibbles in tiles", &NIBBLES);
    codes("f16 in tiles", &HALVES);
    trellis("EXL3 in tiles", 8300, 4000, 5, 2);
    mla_backend_close(gpu);
    mla_backend_close(cpu);
    printf("cuda_packed: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
