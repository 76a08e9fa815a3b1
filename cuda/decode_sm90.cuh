/* MLA decode for Hopper, what its kernels share: a block's consumer warpgroups and a copying warp walk its share of
 * the cached pages.
 *
 * A page is 64 tokens x (lat + rope) in boxes of 64 x 128 bytes, fetched by the bulk tensor engine into a ring of
 * slots. Tiles are transposed: tokens or latents lie on wgmma's 64 rows and the N query rows on its columns, so few heads
 * waste nothing and every query row (heads x s_q) shares one read of the cache.
 *   S^T (64 tokens x N)   = K Q^T
 *   O^T (lat x N)        += V^T P^T
 * decode_solo.cuh: each warpgroup takes whole pages and keeps a whole O; decode_pair.cuh: two share a page and O.
 * bf16: both operands from shared memory. e4m3: the A operand goes through registers, converted exactly to f16; the
 * order of latents and tokens inside a tile is chosen so that every shared load is wide and free of bank conflicts:
 * tok8 permutes tokens within 8, and q is stored with its latents permuted within 64 to match. */
#ifndef MLA_CUDA_DECODE_SM90_CUH
#define MLA_CUDA_DECODE_SM90_CUH
#include "cuda/decode_queries.cuh"
#include "cuda/decode_ring.cuh"
#include "cuda/decode_tiles.cuh"
#endif
