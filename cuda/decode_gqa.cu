/* Decode kernels for keys and values of their own (decode_gqa.cuh). */
#include "cuda/decode_gqa.cuh"

#define GQA(D) {D, GQA_ROWS, 0, false, 0, 0, 1, (const void *)decode_gqa<D>}
extern const DecodeKernel mla_decode_gqa[] = {
    GQA(128),
    GQA(256),
    {},
};
