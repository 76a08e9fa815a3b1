/* One decode problem on the device: a paged pool, block tables, queries, poisoned outputs, plan and workspace. */
#ifndef MLA_TESTS_CUDA_DECODE_CASE_H
#define MLA_TESTS_CUDA_DECODE_CASE_H
#include <algorithm>
#include <string>

#include "cuda/decode.h"
#include "cut.h"

struct CaseSpec {
    const char *name;
    mla_dtype cache;
    size_t lat, rope, rope_heads, H, groups, s_q;
    std::vector<int> len;
    float spread;      /* standard deviation of the logits, about */
    bool q32;          /* queries f32 instead of bf16 */
    size_t extra;      /* pages of the pool that no table names */
    float q_size;      /* magnitude of q; the softmax scale makes up for it */
    bool gqa = false;  /* values of their own behind the keys; rope 0 */
    float lean = 1.f;  /* factor of the first half of a query's latents */
};

static __global__ void fill_pool(void *pool, mla_dtype t, size_t n, uint64_t seed, float size)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const float x = cut_normal(seed, i) * size;
        if (t == MLA_BF16) ((__nv_bfloat16 *)pool)[i] = __float2bfloat16_rn(x);
        else ((__nv_fp8_e4m3 *)pool)[i] = __nv_fp8_e4m3(x);
    }
}
/* Slots beyond each sequence's length in its last page become NaN. */
static __global__ void poison_tails(void *pool, mla_dtype t, size_t row, const int32_t *table, size_t ts, const int32_t *len)
{
    const int b = blockIdx.x, n = len[b];
    if (n % 64 == 0) return;
    for (int s = n; s < (n + 63) / 64 * 64; s++)
        for (size_t e = threadIdx.x; e < row; e += blockDim.x) {
            const size_t i = ((size_t)table[b * ts + s / 64] * 64 + s % 64) * row + e;
            if (t == MLA_BF16) ((uint16_t *)pool)[i] = 0x7fc1;
            else ((uint8_t *)pool)[i] = 0x7f;
        }
}
static __global__ void fill_rows(void *p, bool f32, size_t n, uint64_t seed, float size, size_t row = 1, float lean = 1.f)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const float x = cut_normal(seed, i) * (i % row < row / 2 ? lean * size : size);
        if (f32) ((float *)p)[i] = x;
        else ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    }
}

struct DecodeCase {
    mla_decode d = {};
    void *pool = NULL, *q = NULL, *q2 = NULL;
    float *o = NULL;
    int32_t *table = NULL, *len = NULL;
    std::vector<int32_t> htable;
    size_t row, tstride, nout, maxlen = 0, tokens = 0, el;
    static constexpr size_t GUARD = 256;

    DecodeCase(const CaseSpec &s, uint64_t seed)
    {
        const size_t B = s.len.size();
        el = s.cache == MLA_BF16 ? 2 : 1;
        row = s.groups * s.lat * (s.gqa ? 2 : 1) + s.rope * s.rope_heads;
        size_t used = 0;
        for (int n : s.len) used += (size_t)(n + 63) / 64, maxlen = std::max(maxlen, (size_t)n), tokens += (size_t)n;
        tstride = (maxlen + 63) / 64 + 3;
        const size_t pages = used + s.extra + 1;
        std::vector<int32_t> perm(pages);
        for (size_t i = 0; i < pages; i++) perm[i] = (int32_t)i;
        for (size_t i = pages - 1; i > 0; i--) std::swap(perm[i], perm[cut_hash(seed + i) % (i + 1)]);
        std::swap(perm[0], *std::find(perm.begin(), perm.end(), (int32_t)pages - 1)); /* the last page is used */
        htable.assign(B * tstride, -1);
        size_t next = 0;
        for (size_t b = 0; b < B; b++)
            for (int i = 0; i < (s.len[b] + 63) / 64; i++) htable[b * tstride + (size_t)i] = perm[next++];
        const size_t n = pages * 64 * row;
        CU(cudaMalloc(&pool, n * el));
        fill_pool<<<2048, 256>>>(pool, s.cache, n, seed, 1.f);
        CU(cudaMalloc(&table, htable.size() * 4 + 4));
        CU(cudaMemcpy(table, htable.data(), htable.size() * 4, cudaMemcpyHostToDevice));
        CU(cudaMalloc(&len, B * 4));
        CU(cudaMemcpy(len, s.len.data(), B * 4, cudaMemcpyHostToDevice));
        poison_tails<<<(unsigned)B, 128>>>(pool, s.cache, row, table, tstride, len);
        const size_t rows = B * s.s_q * s.H, qe = s.q32 ? 4 : 2;
        CU(cudaMalloc(&q, rows * s.lat * qe));
        CU(cudaMalloc(&q2, rows * std::max<size_t>(s.rope, 1) * qe));
        fill_rows<<<512, 256>>>(q, s.q32, rows * s.lat, seed + 1, s.q_size, s.lat, s.lean);
        fill_rows<<<512, 256>>>(q2, s.q32, rows * s.rope, seed + 2, s.q_size);
        nout = rows * s.lat;
        CU(cudaMalloc(&o, (nout + GUARD) * 4));
        d.B = B, d.s_q = s.s_q, d.H = s.H, d.groups = s.groups, d.lat = s.lat, d.rope = s.rope, d.rope_heads = s.rope_heads;
        d.cache = s.cache;
        const float ks = s.cache == MLA_BF16 ? 1.f : 0.75f;
        d.c = {pool, (int64_t)row, 0, ks};
        d.r = {pool, (int64_t)row, (int64_t)(s.groups * s.lat), s.cache == MLA_BF16 ? 1.f : 1.5f};
        if (s.gqa) d.v = {pool, (int64_t)row, (int64_t)(s.groups * s.lat), s.cache == MLA_BF16 ? 1.f : 1.25f};
        d.pages = pages;
        d.table = table, d.table_stride = (int64_t)tstride, d.len = len;
        const mla_dtype qt = s.q32 ? MLA_F32 : MLA_BF16;
        d.q = {q, (int64_t)(s.s_q * s.H * s.lat), (int64_t)(s.H * s.lat), (int64_t)s.lat, qt};
        d.q2 = {q2, (int64_t)(s.s_q * s.H * s.rope), (int64_t)(s.H * s.rope), (int64_t)s.rope, qt};
        d.o = {o, (int64_t)(s.s_q * s.H * s.lat), (int64_t)(s.H * s.lat), (int64_t)s.lat, MLA_F32};
        CU(cudaMalloc((void **)&d.lse, rows * 4));
        d.scale = s.spread / (s.q_size * sqrtf((float)(s.lat + s.rope)));
        const size_t ws = mla_decode_ws_bytes(&d);
        CU(cudaMalloc(&d.ws, ws ? ws : 1));
        CU(cudaMemset(d.ws, 0xff, ws ? ws : 1));
        poison();
        CU(cudaDeviceSynchronize());
    }
    DecodeCase(const DecodeCase &) = delete;
    ~DecodeCase()
    {
        void *all[] = {pool, q, q2, o, table, len, d.ws, d.lse};
        for (void *p : all) cudaFree(p);
    }
    void poison() { CU(cudaMemset(o, 0xff, (nout + GUARD) * 4)); }
    std::vector<float> output() const
    {
        std::vector<float> h(nout + GUARD);
        CU(cudaDeviceSynchronize());
        CU(cudaMemcpy(h.data(), o, h.size() * 4, cudaMemcpyDeviceToHost));
        return h;
    }
    std::vector<float> reference() const
    {
        float *r;
        double *scratch;
        mla_err err;
        CU(cudaMalloc(&r, nout * 4));
        CU(cudaMalloc(&scratch, d.B * d.s_q * d.H * std::max<size_t>(maxlen, 1) * 8));
        CU(cudaMemset(r, 0xff, nout * 4));
        if (mla_decode_reference(&d, r, scratch, maxlen, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
        std::vector<float> h(nout);
        CU(cudaDeviceSynchronize());
        CU(cudaMemcpy(h.data(), r, nout * 4, cudaMemcpyDeviceToHost));
        cudaFree(r);
        cudaFree(scratch);
        return h;
    }
};
#endif
