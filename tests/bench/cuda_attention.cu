/* Prefill attention (24 query heads, 4 key and value heads of 256, causal) against the bf16 product rate of the same
 * process, and whether its last rows equal the plain fp32 kernel's on the same data. */
#include "cuda/attn.cuh"
#include "cuda/prefill.cuh"
#include "cuda_ceilings.h"

enum { H = 24, G = 4, D = PREFILL_D, CHECKED = 2 };

struct Problem {
    __nv_bfloat16 *q, *k, *v;
    float *o, *want;
    size_t T, pos0;
    Problem(size_t t, size_t p) : T(t), pos0(p)
    {
        const size_t S = T + pos0;
        CU(cudaMalloc(&q, T * H * D * 2));
        CU(cudaMalloc(&k, S * G * D * 2));
        CU(cudaMalloc(&v, S * G * D * 2));
        CU(cudaMalloc(&o, T * H * D * 4));
        CU(cudaMalloc(&want, CHECKED * H * D * 4));
        fill_random<<<2048, 256>>>(q, false, T * H * D, 1, 1.f);
        fill_random<<<2048, 256>>>(k, false, S * G * D, 2, 1.f);
        fill_random<<<2048, 256>>>(v, false, S * G * D, 3, 1.f);
        CU(cudaMemset(o, 0xff, T * H * D * 4));
    }
    Problem(const Problem &) = delete;
    ~Problem()
    {
        for (void *p : {(void *)q, (void *)k, (void *)v, (void *)o, (void *)want}) cudaFree(p);
    }
    void run()
    {
        mla_err err;
        const PrefillP p = {q, k, v, o, NULL, T, pos0, H, G, G, D, H * D, 0.0625f};
        if (prefill_run(&p, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
    }
    /* Relative error of the last rows. */
    double error()
    {
        mla_err err;
        AttnP a = {};
        const size_t from = T - CHECKED;
        a.B = 1, a.T = CHECKED, a.H = H, a.dk = a.dv = D, a.kh = a.vh = G, a.k2h = 1, a.pos0 = (long long)(pos0 + from), a.scale = 0.0625f;
        a.q = DecodeRows{q + from * H * D, 0, H * D, D, false, false};
        a.o = DecodeRows{want, 0, H * D, D, true, false};
        a.k = AttnView{k, NULL, 0, G * D, 0, D, 1, MLA_BF16, 1.f};
        a.v = AttnView{v, NULL, 0, G * D, 0, D, 1, MLA_BF16, 1.f};
        if (attn_plain(&a, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
        std::vector<float> x(CHECKED * H * D), y(x.size());
        CU(cudaMemcpy(x.data(), o + from * H * D, x.size() * 4, cudaMemcpyDeviceToHost));
        CU(cudaMemcpy(y.data(), want, y.size() * 4, cudaMemcpyDeviceToHost));
        const Cmp c = cut_compare(x.data(), y.data(), x.size());
        return c.nonfinite ? INFINITY : c.rel;
    }
};

int main(void)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_attention", 1);
    if (!prefill_here()) return printf("SKIP bench_cuda_attention: no kernel for this device (1)\n"), 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const double rate = gemm_rate();
    int bad = 0;
    printf("gemm_rate %.0f TFLOP/s\n%-22s %9s %9s %12s %10s\n", rate, "tokens after cached", "ms", "TFLOP/s", "/gemm_rate", "error");
    const size_t cases[][2] = {{4096, 0}, {16384, 0}, {32768, 0}, {2048, 30720}};
    double share[4];
    for (int i = 0; i < 4; i++) {
        Problem p(cases[i][0], cases[i][1]);
        p.run();
        const double e = p.error(), ms = ms_per_call([&] { p.run(); }, 5);
        const double pairs = (double)p.T * p.pos0 + (double)p.T * (p.T + 1) / 2, tf = pairs * H * D * 4 / ms / 1e9;
        char what[40];
        snprintf(what, sizeof what, "%zu after %zu", p.T, p.pos0);
        printf("%-22s %9.3f %9.0f %12.3f %10.1e\n", what, ms, tf, share[i] = tf / rate, e);
        bad += !(e <= 8e-3);
    }
    printf("\ngoals: row, measured, least and aimed at (cuDNN's fused attention reaches 0.86 of gemm_rate at 16k here)\n");
    goal("7", "16k causal: share of gemm_rate (0.75 and 0.95 of cuDNN)", share[1], 0.645, 0.817, true);
    if (bad) printf("%d cases differ from the fp32 kernel\n", bad);
    return bad ? 1 : 0;
}
