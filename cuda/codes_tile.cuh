/* How codes_mma.cu wants packed weights to stand: tiles of 16 rows, cut into units of 256 inputs, one after another. A unit is what a
 * warp multiplies at a time: its codes in steps of 64 inputs, in the order in which lanes read them (16 bytes of neighbouring lanes are
 * neighbours), high bits of codes, scales, offsets, super scales and super offsets of its rows. What a lane (g, q) has of a product of 16
 * inputs, a fragment, is inputs 4 q .. 4 q + 3 of rows g and g + 8: eight codes, four pairs. A row's last unit has as many steps as it needs. */
#ifndef MLA_CUDA_CODES_TILE_CUH
#define MLA_CUDA_CODES_TILE_CUH
#include <stdint.h>

enum { CODE_ROWS = 16, CODE_UNIT = 256, CODE_STEP = 64, UNIT_STEPS = CODE_UNIT / CODE_STEP, UNIT_OCTETS = CODE_UNIT / 8 };

/* Bytes of 64 inputs of 16 rows in a plane of so many bits. */
static inline __host__ __device__ constexpr int step_bytes(int bits) { return CODE_ROWS * CODE_STEP / 8 * bits; }
/* Bytes: byte of the fragment of lane `lane` in product m of a step, and in it of input 4 q + e of row g (half 0) or g + 8 (1). */
static inline __host__ __device__ constexpr int bytes_at(int lane, int m) { return m / 2 * 512 + lane * 16 + m % 2 * 8; }
static inline __host__ __device__ constexpr int byte_at(int half, int e) { return e / 2 * 4 + half + e % 2 * 2; }
/* Planes of up to 4 bits: word among those of a step, and first bit in it of pair p of product m, whose second code is 16 bits further; p is
 * half + 2 (e / 2), the second is that of e odd. Words are rotated to the left so that codes of m = p = 0 stand where a product wants them. */
static inline __host__ __device__ constexpr int word_at(int bits, int lane, int m) { return lane * bits + m * bits / 4; }
static inline __host__ __device__ constexpr int pair_at(int bits, int m, int p) { return 4 * bits * m % 16 + bits * p; }
/* Codes of e2m1: bit b of code p (hi: p + 4) of a fragment, so that e2m1_pair takes few instructions: sign and magnitude at bits 15 and 8 .. 6
 * of a half, rotated. */
static inline __host__ __device__ constexpr int e2m1_bit(int p, int hi, int b)
{
    return ((b == 3 ? 15 : b + 6) + 16 * hi + (p == 0 ? 0 : p == 1 ? 4 : p == 2 ? 10 : b ? 6 : 14)) % 32;
}
/* Place among its unit's of the scale of group n of row r; of a super scale. Two groups of rows g and g + 8 lie together. */
static inline __host__ __device__ constexpr int scale_place(int groups, int n, int r) { return groups > 1 ? (n / 2 * 8 + r % 8) * 4 + n % 2 * 2 + r / 8 : r % 8 * 2 + r / 8; }
static inline __host__ __device__ constexpr int super_place(int n, int r) { return n * CODE_ROWS + r % 8 * 2 + r / 8; }
#endif
