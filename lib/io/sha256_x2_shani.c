/* SHA-256 compression (FIPS 180-4, 6.2.2) with SHA-NI; the x2 form interleaves two streams instruction by instruction.
 *
 * Register layout is the instructions' own: one register holds words A B E F, the other C D G H. Four rounds take one
 * register of message words plus constants: two rounds from its low half, two from its high half. */
#include "io/sha256_x2.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static const uint32_t K[64] __attribute__((aligned(16))) = { /* FIPS 180-4, 4.2.2 */
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

bool mla_sha256_x2_usable(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1); /* leaf 7, EBX bit 29: SHA */
}

/* h0..h7 to and from the two registers */
static inline void load_state(const uint32_t h[8], __m128i *abef, __m128i *cdgh)
{
    __m128i dcba = _mm_loadu_si128((const void *)h), hgfe = _mm_loadu_si128((const void *)(h + 4));
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
    *abef = _mm_alignr_epi8(cdab, efgh, 8);
    *cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
}

static inline void store_state(uint32_t h[8], __m128i abef, __m128i cdgh)
{
    __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((void *)h, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((void *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#define SWAP _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203) /* message words are big-endian */
#define LOAD(p, i) _mm_shuffle_epi8(_mm_loadu_si128((const void *)((p) + 16 * (i))), SWAP)

#define PLUS_K(m, g) _mm_add_epi32(m, _mm_load_si128((const void *)(K + 4 * (g))))
/* Rounds 4g..4g+3 of one stream with message words m. */
#define ROUNDS(g, m)                                                              \
    do {                                                                          \
        const __m128i t_ = PLUS_K(m, g);                                          \
        cd0 = _mm_sha256rnds2_epu32(cd0, ab0, t_);                                \
        ab0 = _mm_sha256rnds2_epu32(ab0, cd0, _mm_shuffle_epi32(t_, 0x0E));       \
    } while (0)
/* The same of both streams: while one waits for its last result (4 cycles), the other uses the unit (2 cycles). */
#define PAIR(g, m, n)                                                             \
    do {                                                                          \
        const __m128i t_ = PLUS_K(m, g), u_ = PLUS_K(n, g);                       \
        cd0 = _mm_sha256rnds2_epu32(cd0, ab0, t_);                                \
        cd1 = _mm_sha256rnds2_epu32(cd1, ab1, u_);                                \
        ab0 = _mm_sha256rnds2_epu32(ab0, cd0, _mm_shuffle_epi32(t_, 0x0E));       \
        ab1 = _mm_sha256rnds2_epu32(ab1, cd1, _mm_shuffle_epi32(u_, 0x0E));       \
    } while (0)
/* The next four message words from the last sixteen (w..z, oldest first) replace the oldest. */
#define EXPAND(w, x, y, z) \
    w = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w, x), _mm_alignr_epi8(z, y, 4)), z)

void mla_sha256_x1_blocks(uint32_t a[8], const unsigned char *pa, size_t blocks)
{
    __m128i ab0, cd0;
    load_state(a, &ab0, &cd0);
    for (; blocks; blocks--, pa += 64) {
        const __m128i ab0_ = ab0, cd0_ = cd0;
        __m128i m0 = LOAD(pa, 0), m1 = LOAD(pa, 1), m2 = LOAD(pa, 2), m3 = LOAD(pa, 3);
#define GROUP(g, w, x, y, z) ROUNDS(g, w); EXPAND(w, x, y, z)
        GROUP(0, m0, m1, m2, m3); GROUP(1, m1, m2, m3, m0); GROUP(2, m2, m3, m0, m1); GROUP(3, m3, m0, m1, m2);
        GROUP(4, m0, m1, m2, m3); GROUP(5, m1, m2, m3, m0); GROUP(6, m2, m3, m0, m1); GROUP(7, m3, m0, m1, m2);
        GROUP(8, m0, m1, m2, m3); GROUP(9, m1, m2, m3, m0); GROUP(10, m2, m3, m0, m1); GROUP(11, m3, m0, m1, m2);
#undef GROUP
        ROUNDS(12, m0); ROUNDS(13, m1); ROUNDS(14, m2); ROUNDS(15, m3);
        ab0 = _mm_add_epi32(ab0, ab0_);
        cd0 = _mm_add_epi32(cd0, cd0_);
    }
    store_state(a, ab0, cd0);
}

void mla_sha256_x2_blocks(uint32_t a[8], const unsigned char *pa, uint32_t b[8], const unsigned char *pb, size_t blocks)
{
    __m128i ab0, cd0, ab1, cd1;
    load_state(a, &ab0, &cd0);
    load_state(b, &ab1, &cd1);
    for (; blocks; blocks--, pa += 64, pb += 64) {
        const __m128i ab0_ = ab0, cd0_ = cd0, ab1_ = ab1, cd1_ = cd1;
        __m128i m0 = LOAD(pa, 0), m1 = LOAD(pa, 1), m2 = LOAD(pa, 2), m3 = LOAD(pa, 3);
        __m128i n0 = LOAD(pb, 0), n1 = LOAD(pb, 1), n2 = LOAD(pb, 2), n3 = LOAD(pb, 3);
#define GROUP(g, w, x, y, z)                       \
    PAIR(g, m##w, n##w);                           \
    EXPAND(m##w, m##x, m##y, m##z); EXPAND(n##w, n##x, n##y, n##z)
        GROUP(0, 0, 1, 2, 3); GROUP(1, 1, 2, 3, 0); GROUP(2, 2, 3, 0, 1); GROUP(3, 3, 0, 1, 2);
        GROUP(4, 0, 1, 2, 3); GROUP(5, 1, 2, 3, 0); GROUP(6, 2, 3, 0, 1); GROUP(7, 3, 0, 1, 2);
        GROUP(8, 0, 1, 2, 3); GROUP(9, 1, 2, 3, 0); GROUP(10, 2, 3, 0, 1); GROUP(11, 3, 0, 1, 2);
#undef GROUP
        PAIR(12, m0, n0); PAIR(13, m1, n1); PAIR(14, m2, n2); PAIR(15, m3, n3);
        ab0 = _mm_add_epi32(ab0, ab0_);
        cd0 = _mm_add_epi32(cd0, cd0_);
        ab1 = _mm_add_epi32(ab1, ab1_);
        cd1 = _mm_add_epi32(cd1, cd1_);
    }
    store_state(a, ab0, cd0);
    store_state(b, ab1, cd1);
}
#else
bool mla_sha256_x2_usable(void) { return false; }
void mla_sha256_x2_blocks(uint32_t a[8], const unsigned char *pa, uint32_t b[8], const unsigned char *pb, size_t blocks)
{
    (void)a, (void)pa, (void)b, (void)pb, (void)blocks;
}
void mla_sha256_x1_blocks(uint32_t a[8], const unsigned char *pa, size_t blocks) { (void)a, (void)pa, (void)blocks; }
#endif
