/* Tensor maps: the driver's description of a tiled copy, made on the host. */
#ifndef MLA_CUDA_TMAP_CUH
#define MLA_CUDA_TMAP_CUH
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "base/err.h"

/* Elements along each dimension, the innermost first; bytes between steps of dimensions 1, 2, ..; the box of one copy. */
struct TensorBox {
    int rank, elem;          /* elem: 2 = bf16, 1 = bytes */
    uint64_t dims[5], strides[4];
    uint32_t box[5];
    bool swizzle;            /* by the box's own rows of 128 or 64 bytes, or none */
    bool stream;             /* read once: L2 fetches 128 bytes at a time; otherwise 256. Measured: 4.40 against 4.09 TB/s */
};

/* what: the caller's name in errors. Elements outside the tensor read as zero. */
mla_status tensor_box_map(CUtensorMap *m, const void *base, const TensorBox *b, const char *what, mla_err *err);
#endif
