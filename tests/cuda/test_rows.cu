/* Row-wise and element-wise operations and the cache on the GPU against the CPU reference: odd widths, padded rows with poison between
 * them, every cache type, pages in any order. */
#include "ops.h"
#include "pages.h"

static void rows(void)
{
    for (size_t d : {1, 31, 128, 1000, 1001, 5120, 5127}) {
        if (!next_case()) continue;
        const size_t n = 5, ld = d + 3;
        const Vec x = normals(n * ld, 6), g = normals(d, 7), z = normals(n * ld, 8, 3.f);
        both("rmsnorm", 1e-6, [&](mla_backend *be) {
            Mem X(be, x), G(be, g), Y(be, Vec(n * ld, POISON));
            mla_norm_args a = {Y, ld, X, ld, n, d, G, 1e-6};
            OK(be->ops->rmsnorm(be, &a, &err));
            return Y.get();
        });
        both("gated norm", 1e-6, [&](mla_backend *be) {
            Mem X(be, x), G(be, g), Z(be, z), Y(be, Vec(n * d, POISON));
            mla_gated_norm_args a = {Y, X, Z, G, n, d, 1e-6};
            OK(be->ops->gated_norm(be, &a, &err));
            return Y.get();
        });
        both("gated norm in place", 1e-6, [&](mla_backend *be) {
            Mem X(be, x), G(be, g), Z(be, z);
            mla_gated_norm_args a = {X, X, Z, G, n, d, 1e-6};
            OK(be->ops->gated_norm(be, &a, &err));
            return X.get();
        });
    }
    const size_t shapes[][3] = {{5, 1, 4}, {5, 31, 34}, {5, 128, 131}, {5, 1000, 1003}, {5, 5120, 5123}, {70, 1000, 1003}, {70, 1000, 1004}, {70, 998, 1000}}; /* from 2^16 values on by fours */
    for (auto &k : shapes)
        if (next_case()) both("elementwise", 1e-6, [&](mla_backend *be) {
            const size_t n = k[0], d = k[1], ld = k[2];
            const Vec x = normals(n * ld, 6), z = normals(n * ld, 8, 3.f);
            Mem A(be, x), B(be, z), C(be, z), D(be, x), E(be, Vec(n * ld, POISON)), F(be, Vec(n * d, POISON));
            OK(be->ops->add(be, A, B, n * d, &err));
            OK(be->ops->add_rows(be, B, ld, n, d, A, -1.f, &err));
            OK(be->ops->silu_mul(be, F, C, D, n * d, &err));
            OK(be->ops->sigmoid_mul(be, D, C, n, d, ld, &err));
            OK(be->ops->copy_rows(be, E, ld, C, d, n, d, &err));
            Vec r = A.get();
            append(r, B.get()), append(r, D.get()), append(r, E.get()), append(r, F.get());
            return r;
        });
    for (size_t n : {1, 4097})
        if (next_case()) both("copy and zero", 0, [&](mla_backend *be) { /* parts of buffers; a copy behind a kernel, a kernel behind a copy */
            Mem A(be, normals(3 * n, 6)), B(be, normals(3 * n, 7));
            OK(be->ops->add(be, A, B, 3 * n, &err));
            OK(be->ops->copy(be, mla_at(B, n), A, n * 4, &err));
            OK(be->ops->zero(be, mla_at(A, 2 * n), n * 4, &err));
            OK(be->ops->add(be, A, B, 3 * n, &err));
            Vec r = A.get();
            append(r, B.get());
            return r;
        });
    for (size_t rot : {2, 64, 128})
        if (next_case()) both("rope", 1e-6, [&](mla_backend *be) {
            const size_t T = 3, heads = 4, stride = 130, ld = heads * stride + 5;
            Vec c(T * rot / 2), s(T * rot / 2);
            for (size_t i = 0; i < c.size(); i++) c[i] = cosf((float)i), s[i] = sinf((float)i);
            Mem X(be, normals(T * ld, 9)), C(be, c), S(be, s);
            mla_rope_args a = {X, ld, T, heads, stride, rot, C, S, NULL};
            OK(be->ops->rope(be, &a, &err));
            return X.get();
        });
    for (size_t n : {1, 1000})
        if (next_case()) both("range", 1e-12, [&](mla_backend *be) {
            Vec x = normals(n * 40, 10);
            if (n > 1) x[77] = NAN, x[4000] = INFINITY, x[39] = NAN; /* column 39 is padding */
            Mem X(be, x);
            mla_range r;
            OK(be->ops->range(be, X, n, 37, 40, &r, &err));
            return Vec{(float)r.amax, (float)r.sum2, (float)r.n, (float)r.nonfinite};
        });
}

static void cache(void)
{
    for (mla_dtype t : {MLA_F32, MLA_BF16, MLA_F8_E4M3})
        for (int paged = 0; paged < 2; paged++)
            if (next_case()) both(std::string("kv write and read ") + mla_dtype_name(t), 0, [&](mla_backend *be) {
                const size_t P = 16, row = 50, width = 33, T = 37, slots = 12 * P;
                Vec x = normals(T * (width + 1), 11, 200.f);
                for (size_t i = 0; i < 64; i++) x[100 + i] = 1.7f * (1 + (float)(2 * (i % 8) + 1) / 16) * (float)(1 << i / 8); /* between two numbers of e4m3 */
                x[5] = 1e6f, x[6] = -1e6f, x[7] = 1e-9f, x[8] = 0.f;
                std::vector<uint8_t> pool(slots * row * elem(t), 0x11);
                Mem X(be, x), KV(be, pool.data(), pool.size()), Y(be, Vec(T * (width + 2), POISON));
                mla_kv_view v = {KV, paged ? PAGES.data() : NULL, P, row, 9, 0, t, t == MLA_F8_E4M3 ? 1.7f : 1.f};
                mla_kv_write_args w = {v, X, width + 1, T, width, 5, NULL};
                OK(be->ops->kv_write(be, &w, &err));
                mla_kv_read_args r = {v, Y, width + 2, 5, T, width};
                OK(be->ops->kv_read(be, &r, &err));
                std::vector<uint8_t> bytes(pool.size());
                OK(be->ops->download(be, bytes.data(), KV, bytes.size(), &err));
                Vec out = Y.get();
                for (uint8_t b : bytes) out.push_back(b);
                return out;
            });
}

int main(int argc, char **argv)
{
    const Section section[] = {{"rows", rows}, {"cache", cache}};
    return ops_main("cuda_rows", 42, section, argc, argv);
}
