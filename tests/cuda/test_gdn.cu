/* The chunked gated delta rule (cuda/gdn_chunk.cuh) against the recurrence in fp64: lengths around the chunk, several sequences
 * of unlike lengths, weak and strong decay, keys that are almost the same, state in and out, poisoned outputs and neighbours.
 *
 * Tolerance 8 * 2^-9 of the norm: at most 8 roundings to bf16 on an output's path (its own included), each of at most 2^-9 of its
 * operand, and the update is a contraction, so what a rounding leaves in the state does not grow. */
#include "cuda/gdn_chunk.cuh"
#include "cut.h"

typedef std::vector<float> Vec;
static const size_t D = GDN_D;
static const double TOL = 8.0 / 512;

struct Case {
    const char *what;
    std::vector<int> lengths;
    size_t nk, nv;
    float decay;     /* A_log = log of it: the typical decay per token is e^-(0.7 decay) */
    float same_keys; /* share of a direction common to all keys */
    float beta;      /* added to b */
};
struct Inputs {
    Vec qkv, a, b, A_log, dt_bias, state;
};

static Inputs make(const Case &c, size_t T)
{
    Inputs x;
    const size_t width = (2 * c.nk + c.nv) * D;
    x.qkv.resize(T * width), x.a.resize(T * c.nv), x.b.resize(T * c.nv), x.A_log.resize(c.nv), x.dt_bias.resize(c.nv);
    x.state.resize(c.lengths.size() * c.nv * D * D);
    for (size_t i = 0; i < x.qkv.size(); i++) x.qkv[i] = cut_normal(1, i);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < c.nk * D; i++) x.qkv[t * width + c.nk * D + i] += c.same_keys * cut_normal(2, i);
    for (float &v : x.qkv) v = __bfloat162float(__float2bfloat16_rn(v)); /* as they reach the kernels */
    for (size_t i = 0; i < x.a.size(); i++) x.a[i] = cut_normal(3, i), x.b[i] = cut_normal(4, i) + c.beta;
    for (size_t h = 0; h < c.nv; h++) x.A_log[h] = logf(c.decay) + 0.3f * cut_normal(5, h), x.dt_bias[h] = 0.3f * cut_normal(6, h);
    for (size_t i = 0; i < x.state.size(); i++) x.state[i] = 0.3f * cut_normal(7, i);
    return x;
}

/* Token by token in fp64. */
static void recur(const Case &c, const Inputs &x, Vec &o, Vec &state)
{
    const size_t width = (2 * c.nk + c.nv) * D;
    std::vector<double> S(D * D), q(D), k(D), u(D);
    size_t t0 = 0;
    for (size_t s = 0; s < c.lengths.size(); t0 += (size_t)c.lengths[s++])
        for (size_t h = 0; h < c.nv; h++) {
            float *st = state.data() + (s * c.nv + h) * D * D;
            for (size_t i = 0; i < D * D; i++) S[i] = x.state[(s * c.nv + h) * D * D + i];
            for (size_t t = t0; t < t0 + (size_t)c.lengths[s]; t++) {
                const float *in = x.qkv.data() + t * width, *qf = in + h / (c.nv / c.nk) * D, *kf = qf + c.nk * D, *v = in + 2 * c.nk * D + h * D;
                double qq = 0, kk = 0;
                for (size_t i = 0; i < D; i++) qq += (double)qf[i] * qf[i], kk += (double)kf[i] * kf[i];
                for (size_t i = 0; i < D; i++) q[i] = qf[i] / sqrt(qq + 1e-6) / sqrt((double)D), k[i] = kf[i] / sqrt(kk + 1e-6);
                const double z = (double)x.a[t * c.nv + h] + x.dt_bias[h], g = exp(-exp((double)x.A_log[h]) * (fmax(z, 0.0) + log1p(exp(-fabs(z))))),
                             beta = 1 / (1 + exp(-(double)x.b[t * c.nv + h]));
                for (size_t j = 0; j < D; j++) u[j] = 0;
                for (size_t i = 0; i < D; i++)
                    for (size_t j = 0; j < D; j++) u[j] += k[i] * (S[i * D + j] *= g);
                for (size_t j = 0; j < D; j++) u[j] = beta * (v[j] - u[j]);
                std::vector<double> out(D, 0.0);
                for (size_t i = 0; i < D; i++)
                    for (size_t j = 0; j < D; j++) out[j] += q[i] * (S[i * D + j] += k[i] * u[j]);
                for (size_t j = 0; j < D; j++) o[(t * c.nv + h) * D + j] = (float)out[j];
            }
            for (size_t i = 0; i < D * D; i++) st[i] = (float)S[i];
        }
}

template <class T> static T *device(const std::vector<T> &v)
{
    T *p;
    CU(cudaMalloc(&p, v.size() * sizeof(T) + 64));
    CU(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
/* Tokens [from, to) of all (one sequence unless the cut is the whole), outputs poisoned first; state carried in `state`. */
static void run(const Case &c, const Inputs &x, size_t from, size_t to, Vec &o, Vec &state)
{
    typedef std::vector<__nv_bfloat16> Half;
    const size_t width = (2 * c.nk + c.nv) * D, out = c.nv * D, guard = 64 * out;
    auto cut = [&](const Vec &v, size_t per) { return Vec(v.begin() + (long)(from * per), v.begin() + (long)(to * per)); };
    float *states = device(state);
    GdnChunk p = {NULL, device(cut(x.a, c.nv)), device(cut(x.b, c.nv)), device(x.A_log), device(x.dt_bias), NULL, c.nk, c.nv, {}, NULL};
    const std::vector<int> lengths = c.lengths.size() > 1 ? c.lengths : std::vector<int>{(int)(to - from)};
    Half rows, poison;
    for (size_t s = 0, t = from; s < lengths.size(); s++) {
        cut_check(gdn_seqs_add(&p.seqs, (size_t)lengths[s], states + s * c.nv * D * D), "delta net chunks: a sequence is refused");
        for (size_t i = 0; i < (size_t)lengths[s] * width; i++) rows.push_back(__float2bfloat16_rn(x.qkv[t * width + i]));
        t += (size_t)lengths[s];
        rows.resize((size_t)p.seqs.chunk[s + 1] * GDN_C * width, __float2bfloat16_rn(0.f));
    }
    poison.resize((size_t)p.seqs.chunk[p.seqs.n] * GDN_C * out + guard, __float2bfloat16_rn(NAN));
    p.qkv = device(rows), p.o = device(poison);
    mla_err err;
    CU(cudaMalloc(&p.tp, gdn_chunk_scratch(&p)));
    CU(cudaMemset(p.tp, 0xff, gdn_chunk_scratch(&p)));
    if (gdn_chunk(&p, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
    CU(cudaMemcpy(poison.data(), p.o, poison.size() * 2, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(state.data(), states, state.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t s = 0, t = from; s < lengths.size(); t += (size_t)lengths[s++])
        for (size_t i = 0; i < (size_t)lengths[s] * out; i++) o[t * out + i] = __bfloat162float(poison[(size_t)p.seqs.chunk[s] * GDN_C * out + i]);
    bool kept = true;
    for (size_t i = poison.size() - guard; i < poison.size(); i++) kept &= isnan(__bfloat162float(poison[i]));
    cut_check(kept, "delta net chunks: rows behind the last chunk are written");
    for (const void *q : {(const void *)p.qkv, (const void *)p.a, (const void *)p.b, (const void *)p.A_log, (const void *)p.dt_bias, (const void *)p.o, (const void *)states, (const void *)p.tp})
        CU(cudaFree((void *)q));
}

int main(void)
{
    const std::vector<Case> cases = {
        {"one token", {1}, 1, 1, 0.05f, 0, 0},          {"63 tokens", {63}, 1, 3, 0.05f, 0, 0},        {"one chunk", {64}, 2, 4, 0.05f, 0, 0},
        {"65 tokens", {65}, 1, 3, 0.02f, 0, 0},         {"1000 tokens", {1000}, 2, 6, 0.01f, 0, 0},    {"hardly any decay", {700}, 1, 3, 1e-4f, 0, 0},
        {"strong decay", {300}, 1, 3, 20.f, 0, 0},      {"decay beyond fp32", {200}, 1, 3, 3000.f, 0, 0}, {"keys almost the same", {400}, 1, 3, 0.01f, 3, 2},
        {"five value heads a key head", {130}, 1, 5, 0.05f, 0, 0},
        {"sequences", {70, 1, 64, 200, 3, 128}, 1, 3, 0.03f, 0, 0}, {"many sequences", std::vector<int>(60, 67), 1, 3, 0.03f, 0, 0},
    };
    if (!cut_has_gpu()) return cut_skip_all("cuda_gdn", 302);
    if (!gdn_chunk_here()) return cut_skip_all("cuda_gdn (not a Hopper GPU)", 302);
    for (const Case &c : cases) {
        size_t T = 0;
        for (int n : c.lengths) T += (size_t)n;
        if (cut_small() && T * c.nv > 2000) continue;
        Inputs x = make(c, T);
        Vec want(T * c.nv * D), got(want.size()), want_state = x.state, state = x.state;
        recur(c, x, want, want_state);
        run(c, x, 0, T, got, state);
        const Cmp o = cut_compare(got.data(), want.data(), want.size()), s = cut_compare(state.data(), want_state.data(), state.size());
        printf("%-30s outputs %.2e, state %.2e of %.2e\n", c.what, o.rel, s.rel, TOL);
        cut_check(cut_close(o, TOL) && cut_close(s, TOL), c.what);
        Vec again(got.size()), state2 = x.state;
        run(c, x, 0, T, again, state2);
        cut_check(!memcmp(again.data(), got.data(), got.size() * 4) && !memcmp(state2.data(), state.data(), state.size() * 4), "delta net chunks: two runs differ");
        if (c.lengths.size() == 1 && T > 128) { /* cut where chunks end: the same bits */
            state2 = x.state;
            run(c, x, 0, 128, again, state2);
            run(c, x, 128, T, again, state2);
            cut_check(!memcmp(again.data(), got.data(), got.size() * 4) && !memcmp(state2.data(), state.data(), state.size() * 4), "delta net chunks: a cut between chunks shows");
        }
        if (c.lengths.size() > 1) { /* what is not finite stays in its sequence */
            const size_t width = (2 * c.nk + c.nv) * D, row = (size_t)(c.lengths[0] + c.lengths[1]);
            for (size_t i = 0; i < width; i++) x.qkv[row * width + i] = INFINITY;
            state2 = x.state;
            run(c, x, 0, T, again, state2);
            const size_t before = row * c.nv * D, after = (row + (size_t)c.lengths[2]) * c.nv * D;
            cut_check(!memcmp(again.data(), got.data(), before * 4) && !memcmp(again.data() + after, got.data() + after, (got.size() - after) * 4),
                      "delta net chunks: a sequence's infinities reach another");
            bool seen = true;
            for (size_t i = before; i < before + c.nv * D; i++) seen &= !isfinite(again[i]);
            cut_check(seen, "delta net chunks: infinities vanish");
        }
    }
    CU(cudaDeviceSynchronize());
    return cut_end("cuda_gdn");
}
