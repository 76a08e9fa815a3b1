/* EXL3's eight steps of a lane in registers: the windows of 16 bits of its part of a ring, and the codebook's f16 numbers of them.
 * Private to trellis_few.cu. */
#ifndef MLA_CUDA_TRELLIS_VALUES_CUH
#define MLA_CUDA_TRELLIS_VALUES_CUH
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t bits(__half2 x) { return *(const uint32_t *)&x; }
static __device__ __forceinline__ __half2 halves(uint32_t x) { return *(const __half2 *)&x; }

/* Where a lane's windows stand. TK: bits per value, doubled. The first one begins at bit first(lane) of the ring, that of step j
 * after(j) - SHIFT bits later. Where all lanes begin at the same bit SHIFT of a word (4 and 8 bits a value), words stay as they are;
 * elsewhere they are moved to begin with the first window. */
template <int TK> struct Windows {
    static constexpr int RING = 4 * TK; /* words */
    static constexpr bool ALIKE = TK % 8 == 0;
    static constexpr int SHIFT = ALIKE ? (TK / 2 + 16) % 32 : 0;
    static __host__ __device__ constexpr int after(int j) { return SHIFT + TK * (j + 1) / 2 - TK / 2; }
    static constexpr int HELD = (after(7) + 16 + 31) / 32, WORDS = ALIKE ? HELD : (31 + after(7) + 16 + 31) / 32; /* words of all windows, as loaded */
    static __device__ __forceinline__ int first(int lane)
    {
        const int end = 4 * TK * lane + TK / 2;
        return end >= 16 ? end - 16 : end + 128 * TK - 16;
    }
    /* Of the windows one or two whole bytes before window j, and j, the first: 32 bits that begin with it hold j, too. */
    static __host__ __device__ constexpr int anchor(int j)
    {
        int a = after(j);
        for (int i = 0; i < j; i++)
            if ((after(j) - after(i)) % 8 == 0 && after(j) - after(i) <= 16 && after(i) < a) a = after(i);
        return a;
    }
};

/* Window J as a number, alone in its word: half a word as it is in shared memory (word i at off[i] of the tile), or from a word's
 * beginning, middle or end, or from those of 32 bits that are shared with other windows. */
template <int TK, int J, int N, int M> static __device__ __forceinline__ uint32_t window(const uint32_t (&w)[N], const unsigned char *tile, const int (&off)[M])
{
    constexpr int AT = Windows<TK>::after(J), FROM = AT % 8 == 0 && AT % 32 <= 16 ? AT / 32 * 32 : Windows<TK>::anchor(J);
    if constexpr (Windows<TK>::ALIKE && AT % 16 == 0) return *(const uint16_t *)(tile + off[AT / 32] + (AT % 32 ? 0 : 2));
    uint32_t x = w[FROM / 32];
    if constexpr (FROM % 32) x = __funnelshift_l(w[FROM / 32 + 1], x, FROM % 32);
    return AT - FROM == 0 ? x >> 16 : AT - FROM == 8 ? __byte_perm(x, 0, 0x4421) : x & 0xffffu;
}

/* The codebook's number of state s, twice in a word: then nothing has to be put together of two numbers. SUM: that of sums of bytes. */
template <bool SUM> static __device__ __forceinline__ uint32_t value_twice(uint32_t s, uint32_t mul, uint32_t add)
{
    const uint32_t x = s * mul + add;
    uint32_t u;
    if (SUM) { /* n k + c, rounded once; 1024 + a sum of four bytes, 1020 at most, are the bits of n, which is whole and below 2048 */
        asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(u) : "r"(x), "r"(0u), "r"(0x6400u));
        return bits(__hfma2(__low2half2(halves(u)), halves(0x1eee1eeeu), halves(0xc931c931u)));
    }
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(u) : "r"(x), "r"(0x8fff8fffu), "r"(0x3b603b60u)); /* (x & .) ^ ., of which the compiler makes two */
    return bits(__hadd2(__low2half2(halves(u)), __high2half2(halves(u))));
}
template <int TK, bool SUM, int J = 0, int N, int M>
static __device__ __forceinline__ void values_twice(uint32_t (&v)[8], const uint32_t (&w)[N], const unsigned char *tile, const int (&off)[M], uint32_t mul, uint32_t add)
{
    if constexpr (J < 8) {
        v[J] = value_twice<SUM>(window<TK, J>(w, tile, off), mul, add);
        values_twice<TK, SUM, J + 1>(v, w, tile, off, mul, add);
    }
}
#endif
