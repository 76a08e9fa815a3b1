/* EXL3 with up to 8 tokens: the codebook's f16 numbers go from their rings straight into mma.m16n8k16, exactly; activations,
 * transformed and brought to one power of two a token, are rounded to f16. A lane of a tile has the eight steps 8 l .. 8 l + 7
 * of its ring, which are the fragment that a product's A needs: outputs on 16 rows, inputs along k.
 * A block has 16 outputs, its warps take tiles in turn and add up in order. */
#include "cuda/trellis.cuh"

enum { WARPS = 8, TOKENS = 8, AHEAD = 4, SMEM_MOST = 200 << 10 };

static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ uint32_t bits(__half2 x) { return *(const uint32_t *)&x; }
static __device__ __forceinline__ __half2 halves(uint32_t x) { return *(const __half2 *)&x; }

/* The codebook's numbers of two states. */
static __device__ __forceinline__ uint32_t values_of(uint32_t s, uint32_t t, int codebook)
{
    if (codebook == 2) { /* n k + c, rounded once: n is whole and below 2048, so f16 holds it */
        const uint32_t x = s * 0x83dcd12du, y = t * 0x83dcd12du;
        const uint32_t n = 0x6400 + __vsadu4(x, 0), m = 0x6400 + __vsadu4(y, 0); /* the bits of 1024 + a sum of four bytes, 1020 at most */
        return bits(__hfma2(halves(n | m << 16), halves(0x1eee1eeeu), halves(0xc931c931u)));
    }
    const uint32_t mul = codebook == 1 ? 0xcbac1fedu : 89226354u, add = codebook == 1 ? 0u : 64248484u;
    const uint32_t x = ((s * mul + add) & 0x8fff8fffu) ^ 0x3b603b60u, y = ((t * mul + add) & 0x8fff8fffu) ^ 0x3b603b60u;
    return bits(__hadd2(halves(__byte_perm(x, y, 0x5410)), halves(__byte_perm(x, y, 0x7632))));
}

struct FewTrellis {
    const float *x; /* (tokens, in128), transformed */
    float *y;
    int tokens, in128, stride; /* stride: of a token in shared memory, elements */
};

/* Shared x (tokens, in128) as f16 over 2^e, and the 2^e of every token. */
static __device__ void stage(const FewTrellis &a, __half *xs, float *size)
{
    __shared__ uint32_t top[WARPS];
    const int quads = a.in128 / 4;
    for (int t = 0; t < a.tokens; t++) {
        const float4 *x = (const float4 *)(a.x + (size_t)t * a.in128);
        float m = 0.f;
#pragma unroll 5
        for (int i = threadIdx.x; i < quads; i += WARPS * 32) {
            const float4 v = x[i];
            m = fmaxf(fmaxf(m, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
        }
        const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(m)); /* numbers that are not negative have the order of their bits */
        if (threadIdx.x % 32 == 0) top[threadIdx.x / 32] = most;
        __syncthreads();
        uint32_t all = top[0];
        for (int i = 1; i < WARPS; i++) all = max(all, top[i]);
        __syncthreads();
        const int e = (int)(all >> 23); /* to below 2^8: f16 keeps 11 bits of what is down to 2^-22 of the largest */
        const float f = __uint_as_float((uint32_t)(e < 10 ? 2 : e > 250 ? 243 : e - 7) << 23), by = 1.f / f;
        if (threadIdx.x == 0) size[t] = f;
#pragma unroll 5
        for (int i = threadIdx.x; i < quads; i += WARPS * 32) {
            const float4 v = x[i];
            *(uint2 *)(xs + t * a.stride + 4 * i) = make_uint2(bits(__floats2half2_rn(v.x * by, v.y * by)), bits(__floats2half2_rn(v.z * by, v.w * by)));
        }
    }
    __syncthreads();
}

/* TK: bits per value, doubled. */
template <int TK> static __global__ void __launch_bounds__(WARPS * 32, 2) trellis_mma(const Trellis w, const FewTrellis a)
{
    constexpr int RING = 4 * TK, LAST = TK * 8 / 2 - TK / 2, WORDS = (31 + 16 + LAST + 31) / 32, HELD = (16 + LAST + 31) / 32; /* words of a ring; bits to the last state */
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ float part[WARPS][16][TOKENS], size[TOKENS];
    __half *xs = (__half *)smem;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane >> 2, q = lane & 3, tiles = w.in128 / 16, wide = w.out128 / 16;
    stage(a, xs, size);
    const int end = 4 * TK * lane + TK / 2, p = end >= 16 ? end - 16 : end + 128 * TK - 16;
    const __half *xt = xs + (g < a.tokens ? g : 0) * a.stride + 2 * q;
    for (int col = blockIdx.x; col < wide; col += gridDim.x) {
        uint32_t next[AHEAD][WORDS];
        float sum[4] = {};
        auto fetch = [&](int k) { /* this warp's tiles k, k + WARPS .. */
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const int tile = k + u * WARPS;
                const uint32_t *ring = (const uint32_t *)(w.tiles + ((size_t)(tile < tiles ? tile : tiles - 1) * (size_t)wide + (size_t)col) * 16 * TK);
#pragma unroll
                for (int i = 0; i < WORDS; i++) next[u][i] = __ldg(ring + (p / 32 + i) % RING);
            }
        };
        fetch(warp);
        for (int k = warp; k < tiles; k += AHEAD * WARPS) {
            uint32_t now[AHEAD][WORDS];
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
#pragma unroll
                for (int i = 0; i < WORDS; i++) now[u][i] = next[u][i];
            if (k + AHEAD * WARPS < tiles) fetch(k + AHEAD * WARPS);
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                if (k + u * WARPS >= tiles) break;
                uint32_t at[HELD + 1], s[8], v[4];
#pragma unroll
                for (int i = 0; i < HELD; i++) at[i] = __funnelshift_l(i + 1 < WORDS ? now[u][i + 1 < WORDS ? i + 1 : i] : 0u, now[u][i], p % 32);
                at[HELD] = 0;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    constexpr int FIRST = TK / 2;
                    const int b = TK * (j + 1) / 2 - FIRST;
                    s[j] = __funnelshift_l(at[b / 32 + 1], at[b / 32], b % 32) >> 16;
                }
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = values_of(s[2 * i], s[2 * i + 1], w.codebook);
                const int k0 = (k + u * WARPS) * 16;
                const uint32_t frag[4] = {v[0], v[2], v[1], v[3]}; /* steps 2, 3: k + 8; 4, 5: outputs + 8 */
                mma_f16(sum, frag, *(const uint32_t *)(xt + k0), *(const uint32_t *)(xt + k0 + 8));
            }
        }
        *(float2 *)&part[warp][g][2 * q] = make_float2(sum[0], sum[1]);
        *(float2 *)&part[warp][g + 8][2 * q] = make_float2(sum[2], sum[3]);
        __syncthreads();
        const int r = threadIdx.x % 16, t = threadIdx.x / 16;
        if (t < a.tokens) {
            float v = part[0][r][t];
            for (int i = 1; i < WARPS; i++) v += part[i][r][t];
            a.y[(size_t)t * w.out128 + col * 16 + r] = v * size[t];
        }
        __syncthreads();
    }
}

static size_t smem_of(const Trellis *t, size_t T) { return T * ((size_t)t->in128 + 8) * 2; }
bool trellis_few_fits(const Trellis *t, size_t T) { return T <= TOKENS && smem_of(t, T) <= SMEM_MOST; }

mla_status trellis_few(mla_cuda *c, const Trellis *t, const float *x2, float *y2, size_t T, mla_err *err)
{
    static const struct {
        void (*of)(Trellis, FewTrellis);
    } KERNEL[] = {{trellis_mma<2>}, {trellis_mma<3>}, {trellis_mma<4>}, {trellis_mma<5>}, {trellis_mma<6>}, {trellis_mma<7>}, {trellis_mma<8>}, {trellis_mma<9>}, {trellis_mma<10>},
                  {trellis_mma<11>}, {trellis_mma<12>}, {trellis_mma<13>}, {trellis_mma<14>}, {trellis_mma<15>}, {trellis_mma<16>}};
    if (t->twice_k < 2 || t->twice_k > 16) return mla_fail(err, MLA_EUNSUPPORTED, "packed EXL3: %d half bits a value, 2 to 16", t->twice_k);
    const auto kernel = KERNEL[t->twice_k - 2].of;
    const size_t smem = smem_of(t, T);
    const int tiles = t->out128 / 16, most = 2 * c->sms;
    const mla_status st = cu_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MOST), "packed EXL3: shared memory", err);
    if (st) return st;
    const FewTrellis p = {x2, y2, (int)T, t->in128, t->in128 + 8};
    kernel<<<(unsigned)(tiles < most ? tiles : most), WARPS * 32, smem, c->stream>>>(*t, p);
    return launched("packed EXL3", err);
}
