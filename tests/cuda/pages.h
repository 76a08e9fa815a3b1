/* Pages of a cache in no order, and the size of its elements. */
#ifndef MLA_TESTS_CUDA_PAGES_H
#define MLA_TESTS_CUDA_PAGES_H
#include <vector>

#include "tensor/dtype.h"

static const std::vector<int32_t> PAGES = {7, 2, 9, 0, 4, 11, 1, 3, 10, 5};

static size_t elem(mla_dtype t) { return t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1; }
#endif
