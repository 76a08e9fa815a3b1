/* Encoding of tensor maps through the driver's entry point, looked up once. */
#include "cuda/tmap.cuh"

#include "cuda/check.cuh"

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                              const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static mla_status entry_point(encode_fn *fn, const char *what, mla_err *err)
{
    static encode_fn known; /* every thread finds the same */
    cudaDriverEntryPointQueryResult found;
    void *p = (void *)__atomic_load_n(&known, __ATOMIC_ACQUIRE);
    if (!p) {
        mla_status st = cu_ok(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found), what, err);
        if (st) return st;
        if (!p) return mla_fail(err, MLA_EUNSUPPORTED, "%s: the driver makes no tensor maps", what);
        __atomic_store_n(&known, (encode_fn)p, __ATOMIC_RELEASE);
    }
    *fn = (encode_fn)p;
    return MLA_OK;
}

mla_status tensor_box_map(CUtensorMap *m, const void *base, const TensorBox *b, const char *what, mla_err *err)
{
    encode_fn encode = NULL;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    mla_status st = entry_point(&encode, what, err);
    if (st) return st;
    const CUresult r = encode(m, b->elem == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, (cuuint32_t)b->rank, (void *)base,
                              b->dims, b->strides, b->box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              !b->swizzle ? CU_TENSOR_MAP_SWIZZLE_NONE : b->box[0] * (unsigned)b->elem == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                              b->stream ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS) return MLA_OK;
    return mla_fail(err, MLA_EINVAL, "%s: tensor map of %llu x %llu, rows of %llu bytes: driver error %d", what, (unsigned long long)b->dims[0],
                    (unsigned long long)b->dims[b->rank - 1], (unsigned long long)b->strides[0], (int)r);
}
