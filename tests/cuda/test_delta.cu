/* The gated delta net on the GPU against the CPU reference: convolution, delta rule and the mixer as one operation (test_gdn.cu has the
 * chunked kernels against fp64). */
#include "ops.h"

static int mixer_part; /* 0: outputs, 1: inputs that the convolution keeps, 2: state */
/* One mixer of 1 key and 3 value heads of 128 over sequences of these lengths; outputs are added, buffers poisoned. */
static Vec mixer(mla_backend *be, const std::vector<size_t> &lengths, bool normed, bool bf16, decltype(mla_backend_ops::delta) op)
{
    const size_t nk = 1, nv = 3, d = 128, D = 260, V = nv * d, C = 2 * nk * d + V, K = 4, n = lengths.size();
    size_t T = 0;
    for (size_t i : lengths) T += i;
    const mla_precision p = bf16 ? MLA_PREC_BF16 : MLA_PREC_F32;
    Mem X(be, normals(T * D, 60)), N(be, Vec(T * D, POISON)), G(be, normals(D, 61)), QKV(be, Vec(T * C, POISON)), Z(be, Vec(T * V, POISON)), B(be, Vec(T * nv, POISON)),
        A(be, Vec(T * nv, POISON)), M(be, Vec(T * C, POISON)), O(be, Vec(T * V, POISON)), W(be, normals(C * K, 62, 0.5f)), L(be, normals(nv, 63)), DT(be, normals(nv, 64)),
        GG(be, normals(d, 65)), Y(be, normals(T * D, 66)), CS(be, normals(n * (K - 1) * C, 67)), S(be, normals(n * nv * d * d, 68, 0.3f));
    const size_t outs[4] = {C, V, nv, nv};
    mla_mem *ys[4] = {QKV, Z, B, A}, *from = normed ? (mla_mem *)N : (mla_mem *)X;
    mla_weight *w[5];
    mla_linear_job in[4];
    for (size_t i = 0; i < 4; i++) {
        w[i] = weight(be, normals(outs[i] * D, 70 + i, 1.f / 16), outs[i], D, p);
        in[i] = {w[i], {ys[i], outs[i], from, D, T, NULL, false}};
    }
    w[4] = weight(be, normals(D * V, 75, 1.f / 20), D, V, p);
    const mla_linear_job out = {w[4], {Y, D, QKV, V, T, NULL, true}};
    std::vector<mla_delta_seq> seq;
    for (size_t i = 0; i < n; i++) seq.push_back({lengths[i], mla_at(CS, i * (K - 1) * C), mla_at(S, i * nv * d * d)});
    const mla_norm_args norm = {N, D, X, D, T, D, G, 1e-6};
    const mla_delta_args a = {in, &out, M, O, W, L, DT, GG, 1e-6, seq.data(), n, T, nk, nv, d, d, K, 64, bf16};
    OK(op(be, normed ? &norm : NULL, &a, &err));
    Vec r = mixer_part == 0 ? Y.get() : mixer_part == 1 ? CS.get() : S.get();
    for (mla_weight *i : w) be->ops->weight_free(be, i);
    return r;
}
static void convolution(void)
{
    for (size_t K : {1, 4})
        for (size_t T : {1, 2, 3, 50})
            if (next_case()) both("convolution", 1e-6, [&](mla_backend *be) {
                const size_t C = 333;
                Mem X(be, normals(T * C, 15)), Y(be, Vec(T * C, POISON)), W(be, normals(C * K, 16)), S(be, normals(K * C, 17));
                mla_conv_args a = {Y, X, W, S, T, C, K};
                OK(be->ops->conv(be, &a, &err));
                Vec r = Y.get();
                append(r, S.get());
                return r;
            });
}
static void delta_rule(void)
{
    const size_t shapes[][5] = {{1, 1, 1, 8, 8}, {1, 2, 6, 128, 128}, {4, 4, 4, 128, 128}, {5, 2, 6, 33, 40}, {70, 2, 4, 128, 128}, {3, 1, 3, 200, 70}, {64, 4, 4, 64, 32}};
    for (auto &s : shapes)
        for (size_t chunk : {0, 16})
            if (next_case()) both(chunk ? "delta net, chunked" : "delta net", 2e-5, [&](mla_backend *be) {
                const size_t T = s[0], nk = s[1], nv = s[2], dk = s[3], dv = s[4];
                Mem O(be, Vec(T * nv * dv, POISON)), X(be, normals(T * (2 * nk * dk + nv * dv), 18)), A(be, normals(T * nv, 19)), B(be, normals(T * nv, 20)),
                    L(be, normals(nv, 21)), D(be, normals(nv, 22)), S(be, normals(nv * dk * dv, 23));
                mla_gdn_args a = {O, X, A, B, L, D, S, T, nk, nv, dk, dv, chunk};
                OK(be->ops->gdn(be, &a, &err));
                Vec r = O.get();
                append(r, S.get());
                return r;
            });
}
/* As single steps its bits are theirs; with bf16 products an output passes at most 8 roundings of 2^-9 in the chunks
 * (cuda/gdn_chunk.cuh), and its values and gates two each before and beside them: 12 in all. */
static void mixers(void)
{
    const std::vector<std::vector<size_t>> lengths = {{1}, {8}, {9}, {5, 4}, {64}, {130}, {70, 1, 64, 200}, {128, 128}, std::vector<size_t>(70, 3)};
    for (auto &l : lengths)
        for (int form = 0; form < 4; form++) {
            if (!next_case()) continue;
            const bool normed = form & 1, bf16 = form & 2;
            mixer_part = 0;
            std::string what = "delta mixer, " + std::to_string(l.size()) + " sequences from " + std::to_string(l[0]) + (bf16 ? " tokens, bf16" : " tokens") + (normed ? ", normed" : "");
            for (int part : {0, 1, 2}) {
                mixer_part = part;
                both(what + (part == 0 ? "" : part == 1 ? ": inputs kept" : ": state"), bf16 ? 12.0 / 512 : 2e-5, [&](mla_backend *be) { return mixer(be, l, normed, bf16, be->ops->delta); });
            }
            mixer_part = 0;
            const Vec x = mixer(gpu, l, normed, bf16, gpu->ops->delta), y = mixer(gpu, l, normed, bf16, bf16 ? gpu->ops->delta : mla_delta_singly);
            cut_check(!memcmp(x.data(), y.data(), x.size() * 4), (what + ": the same bits").c_str());
        }
}


int main(int argc, char **argv)
{
    const Section section[] = {{"conv", convolution}, {"rule", delta_rule}, {"mixer", mixers}};
    return ops_main("cuda_delta", 166, section, argc, argv);
}
