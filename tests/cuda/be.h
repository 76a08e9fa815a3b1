/* What tests of the backend's operations share: device memory of a test, random values, weights. */
#ifndef MLA_TESTS_CUDA_BE_H
#define MLA_TESTS_CUDA_BE_H
#include <utility>

#include "backend/backend.h"
#include "cut.h"

typedef std::vector<float> Vec;
static mla_err err;

#define OK(x)                                                                    \
    do {                                                                         \
        if ((x) != MLA_OK) fprintf(stderr, "%s: %s\n", #x, err.msg), exit(3);    \
    } while (0)

static inline Vec normals(size_t n, uint64_t seed, float scale = 1.f)
{
    Vec v(n);
    for (size_t i = 0; i < n; i++) v[i] = cut_normal(seed, i) * scale;
    return v;
}

/* Device memory of one closure run. */
struct Mem {
    mla_backend *be;
    mla_mem *p = NULL;
    size_t bytes;
    Mem(mla_backend *b, const void *src, size_t n) : be(b), bytes(n)
    {
        OK(be->ops->alloc(be, &p, n, &err));
        OK(be->ops->upload(be, p, src, n, &err));
    }
    Mem(mla_backend *b, const Vec &v) : Mem(b, v.data(), v.size() * 4) {}
    Mem(const Mem &) = delete;
    ~Mem() { be->ops->free(be, p); }
    operator mla_mem *() const { return p; }
    Vec get() const
    {
        Vec v(bytes / 4);
        OK(be->ops->download(be, v.data(), p, bytes, &err));
        return v;
    }
};

static inline mla_status dense_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *)
{
    const std::pair<const Vec *, size_t> *d = (const std::pair<const Vec *, size_t> *)ctx;
    memcpy(dst, d->first->data() + row0 * d->second, n * d->second * 4);
    return MLA_OK;
}
static inline mla_weight *weight(mla_backend *be, const Vec &w, size_t out, size_t in, mla_precision p)
{
    std::pair<const Vec *, size_t> ctx(&w, in);
    mla_weight_desc d = {out, in, p, dense_rows, &ctx, NULL, false};
    mla_weight *r = NULL;
    OK(be->ops->weight_new(be, &r, &d, &err));
    return r;
}
#endif
