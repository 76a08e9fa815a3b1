/* Linear layers on the GPU against the CPU reference: f32 by bits, bf16 within its sums; several at once, with norm, gate and the layer after;
 * embeddings; weights that cross as they are stored. */
#include "ops.h"
#include "stored.h"

/* The single operations of compound() on the GPU's own roundings: products of the same bf16 inputs differ by fp32 sums alone. */
static void stages(const std::string &what, size_t T, size_t in, bool normed)
{
    const size_t outs[3] = {130, 1, 48}, ld = in + 4;
    Vec x = normals(T * ld, 31), z;
    if (normed) {
        Mem X(gpu, x), N(gpu, Vec(T * ld, 0.f)), G(gpu, normals(in, 32));
        const mla_norm_args norm = {N, ld, X, ld, T, in, G, 1e-6};
        OK(gpu->ops->rmsnorm(gpu, &norm, &err));
        x = N.get();
    }
    /* sums of n terms whose partial sums grow like n^1/2: an error of u (n / 2)^1/2 of the result on each side, twice that where
     * tensor cores cut instead of rounding; and 1e-6 as single operations have it */
    const double tol = 1e-6 + 2 * sqrt((double)in) / (1 << 24);
    both(what + ", layers alone", tol, [&](mla_backend *be) {
        Mem X(be, x), B(be, normals(130, 33)), Z(be, Vec(T * 48, POISON));
        Vec r;
        for (size_t i = 0; i < 3; i++) {
            Mem Y(be, normals(T * outs[i], 34 + i));
            mla_weight *w = weight(be, normals(outs[i] * in, 35 + i), outs[i], in, MLA_PREC_BF16);
            mla_linear_args a = {Y, outs[i], X, ld, T, i ? NULL : (mla_mem *)B, i == 0};
            OK(be->ops->linear(be, w, &a, &err));
            be->ops->weight_free(be, w);
            append(r, Y.get());
            if (i == 2) OK(be->ops->silu_mul(be, Z, Y, Y, T * 48, &err));
        }
        append(r, Z.get());
        if (be == gpu) z = Z.get();
        return r;
    });
    if (z.empty()) return;
    both(what + ", last layer alone", tol, [&](mla_backend *be) {
        Mem Z(be, z), Y(be, normals(T * 33, 39));
        mla_weight *w = weight(be, normals(33 * 48, 38), 33, 48, MLA_PREC_BF16);
        mla_linear_args a = {Y, 33, Z, 48, T, NULL, true};
        OK(be->ops->linear(be, w, &a, &err));
        be->ops->weight_free(be, w);
        return Y.get();
    });
}
/* linears, gated and mlp: what the single operations give, bit for bit (mlp of many rows in bf16 meets rounded gates and ups); and in
 * f32 what the reference gives. With bf16 products a difference in the last bit of a norm or a gate can decide a rounding (stages). */
static void compound(mla_precision p, size_t T, size_t in, bool normed)
{
    const size_t outs[3] = {130, 1, 48}, ld = in + 4;
    const Vec x = normals(T * ld, 31), gain = normals(in, 32), bias = normals(130, 33);
    auto run = [&](mla_backend *be, bool singly, bool mlp) {
        Mem X(be, x), N(be, Vec(T * ld, POISON)), G(be, gain), B(be, bias), Y0(be, normals(T * 133, 34)), Y1(be, Vec(T, POISON)), Y2(be, Vec(T * 48, POISON)),
            Z(be, Vec(T * 48, POISON)), U(be, Vec(T * 48, POISON));
        mla_weight *w[3];
        for (size_t i = 0; i < 3; i++) w[i] = weight(be, normals(outs[i] * in, 35 + i), outs[i], in, p);
        mla_mem *from = normed ? (mla_mem *)N : (mla_mem *)X;
        const mla_norm_args norm = {N, ld, X, ld, T, in, G, 1e-6};
        const mla_linear_job jobs[3] = {{w[0], {Y0, 133, from, ld, T, B, true}}, {w[1], {Y1, 1, from, ld, T, NULL, false}}, {w[2], {Y2, 48, from, ld, T, NULL, false}}};
        const mla_gated_args g = {w[2], w[2], 48, Z, U, from, ld, T};
        OK((singly ? mla_linears_singly : be->ops->linears)(be, normed ? &norm : NULL, jobs, 3, &err));
        OK((singly ? mla_gated_singly : be->ops->gated)(be, normed ? &norm : NULL, &g, &err));
        Vec r = Y0.get();
        append(r, Y1.get()), append(r, Y2.get()), append(r, Z.get());
        if (mlp) r.clear();
        mla_weight *last = weight(be, normals(33 * 48, 38), 33, 48, p);
        for (int add = 0; mlp && add < 2; add++) { /* rows of 36 and 33: those that a library may write itself and those it may not */
            const size_t ldy = add ? 33 : 36;
            Mem Y3(be, normals(T * ldy, 39));
            const mla_linear_job down = {last, {Y3, ldy, Z, 48, T, NULL, add != 0}};
            OK((singly ? mla_mlp_singly : be->ops->mlp)(be, normed ? &norm : NULL, &g, &down, &err));
            append(r, Y3.get());
        }
        be->ops->weight_free(be, last);
        for (mla_weight *i : w) be->ops->weight_free(be, i);
        return r;
    };
    char what[100];
    snprintf(what, sizeof what, "%s layers at once, %zu x %zu%s", p == MLA_PREC_F32 ? "f32" : "bf16", T, in, normed ? ", normed" : "");
    if (p == MLA_PREC_F32) both(what, 2e-6, [&](mla_backend *be) { return run(be, false, false); });
    else stages(what, T, in, normed);
    /* bf16: roundings of gate and up, and the product's own may go the other way */
    const bool rounds = p == MLA_PREC_BF16 && T > 8;
    both(std::string(what) + ", mlp", p == MLA_PREC_F32 ? 2e-6 : 3.0 / 512, [&](mla_backend *be) { return run(be, false, true); });
    for (bool mlp : {false, true}) {
        const Vec a = run(gpu, false, mlp), b = run(gpu, !(mlp && rounds), mlp);
        cut_check(!memcmp(a.data(), b.data(), a.size() * 4), what);
    }
}

static void linear(void)
{
    const size_t shapes[][3] = {{1, 1, 1}, {1, 300, 500}, {3, 255, 33}, {16, 513, 70}, {17, 256, 64}, {65, 257, 100}, {130, 1000, 77}, {200, 64, 256}, {1, 512, 37}, {2, 264, 9}, {3, 1024, 130}, {7, 5120, 65}, {8, 96, 33},
                                {2, 8192, 300}}; /* the last in several pieces */
    for (auto &s : shapes)
        for (int mode = 0; mode < 4; mode++)
            for (mla_precision p : {MLA_PREC_F32, MLA_PREC_BF16}) {
                if (!next_case()) continue;
                const size_t T = s[0], in = s[1], out = s[2], ldx = in + (mode & 1), ldy = out + 3 * (mode >> 1);
                const Vec w = normals(out * in, 1), x = normals(T * ldx, 2), b = normals(out, 3);
                Vec y0(T * ldy, POISON);
                for (size_t t = 0; t < T; t++)
                    for (size_t i = 0; i < out; i++) y0[t * ldy + i] = mode == 3 ? cut_normal(4, t * out + i) : POISON;
                char what[100];
                snprintf(what, sizeof what, "linear %s %zu x %zu -> %zu mode %d", p == MLA_PREC_F32 ? "f32 (bits)" : "bf16", T, in, out, mode);
                both(what, p == MLA_PREC_F32 ? 0 : 2e-6, [&](mla_backend *be) {
                    Mem X(be, x), B(be, b), Y(be, y0);
                    mla_weight *W = weight(be, w, out, in, p);
                    mla_linear_args a = {Y, ldy, X, ldx, T, mode & 1 ? (mla_mem *)B : NULL, mode == 3};
                    OK(be->ops->linear(be, W, &a, &err));
                    const Vec r = Y.get();
                    be->ops->weight_free(be, W);
                    return r;
                });
            }
}
static void compounds(void)
{
    for (mla_precision p : {MLA_PREC_F32, MLA_PREC_BF16})
        for (size_t T : {1, 3, 8, 9, 70})
            for (size_t in : {96, 100, 5120})
                for (bool normed : {false, true})
                    if (next_case()) compound(p, T, in, normed);
}
static void embed(void)
{
    for (mla_precision p : {MLA_PREC_F32, MLA_PREC_BF16})
        both("embed", 0, [&](mla_backend *be) {
            const int32_t ids[5] = {3, 0, 10, 10, 7};
            const Vec w = normals(11 * 37, 5);
            Mem Y(be, Vec(5 * 37, POISON));
            mla_weight *W = weight(be, w, 11, 37, p);
            OK(be->ops->embed(be, W, Y, ids, 5, &err));
            const int32_t bad = 11;
            cut_check(be->ops->embed(be, W, Y, &bad, 1, &err) == MLA_EINVAL, "embed beyond the vocabulary");
            const Vec r = Y.get();
            be->ops->weight_free(be, W);
            return r;
        });
}


int main(int argc, char **argv)
{
    const Section section[] = {{"linear", linear}, {"compound", compounds}, {"embed", embed}, {"stored", stored_weights}, {"quick", quick_reads}};
    return ops_main("cuda_linear", 426, section, argc, argv);
}
