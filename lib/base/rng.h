/* Counter-based random numbers: value i of stream `seed` is a pure function of (seed, i), so any thread
 * can draw any value and results never depend on order. Mixing function: SplitMix64 (Steele et al. 2014). */
#ifndef MLA_BASE_RNG_H
#define MLA_BASE_RNG_H
#include <stdint.h>

static inline uint64_t mla_rng_u64(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1), 53 bits. */
static inline double mla_rng_unit(uint64_t seed, uint64_t i) { return (double)(mla_rng_u64(seed, i) >> 11) * 0x1p-53; }

/* Uniform in [0, n), n > 0, without modulo bias that could matter (128-bit multiply-shift). */
static inline uint64_t mla_rng_below(uint64_t seed, uint64_t i, uint64_t n)
{
    __extension__ typedef unsigned __int128 u128;
    return (uint64_t)(((u128)mla_rng_u64(seed, i) * n) >> 64);
}

/* Standard normal (Box-Muller on values 2i and 2i+1). */
double mla_rng_normal(uint64_t seed, uint64_t i);
#endif
