/* MLA decode against the read bandwidth of the same process: ceilings first, then every case in turn, at least three
 * rounds, medians. Bytes counted: each cached row once, queries, outputs. Pools are far larger than the L2 cache.
 * Before every case the GPU rests for REST ms: otherwise the power limit holds the clocks after a compute-heavy case, and the order
 * decides what the next ones measure. So these are figures of short bursts, as in a step whose other layers wait for memory. */
#include <memory>
#include <unistd.h>

#include "cuda_ceilings.h"
#include "decode_case.h"

enum { REST = 25, LAUNCHES = 8 };

struct Bench {
    CaseSpec s;
    std::unique_ptr<DecodeCase> k;
    std::vector<double> us;
    cudaGraphExec_t graph[2]; /* launches that warm up; those that count */
    double med() const { return median(us); }
    double bytes() const
    {
        const double rows = (double)(k->d.B * s.s_q * s.H), qe = s.q32 ? 4 : 2;
        return (double)k->tokens * k->row * k->el + rows * (s.lat + s.rope) * qe + rows * s.lat * 4;
    }
};

int main(int argc, char **argv)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_mla_decode", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const int rounds = argc > 1 ? atoi(argv[1]) : 3;
    double read_bw = 0, copy_bw = 0;
    ceilings(&read_bw, &copy_bw);
    cudaDeviceProp prop;
    CU(cudaGetDeviceProperties(&prop, 0));
    printf("%s, %d SMs; read_bw %.0f GB/s, copy_bw %.0f GB/s; %d rounds of %d launches in a graph, each after %d ms of rest, medians\n", prop.name,
           prop.multiProcessorCount, read_bw, copy_bw, rounds, LAUNCHES, REST);
    std::vector<Bench> all;
    const char *only = argc > 2 ? argv[2] : NULL; /* "8x64k:fp8:512:1": one case, for a profiler */
    auto add = [&](const char *name, mla_dtype t, size_t lat, size_t rh, size_t H, size_t g, size_t s_q, std::vector<int> len) {
        char label[64];
        snprintf(label, sizeof label, "%s:%s:%zu:%zu", name, t == MLA_BF16 ? "bf16" : "fp8", lat, s_q);
        if (only && strcmp(only, label)) return;
        all.push_back({{name, t, lat, rh ? 64u : 0u, rh, H, g, s_q, len, 2.f, false, 64, 1.f, rh == 0}, nullptr, {}, {}}); /* rh 0: GQA */
    };
    const mla_dtype BF = MLA_BF16, F8 = MLA_F8_E4M3;
    for (mla_dtype t : {BF, F8})
        for (size_t s_q : {1, 2, 4}) {
            add("8x64k", t, 512, 1, 24, 1, s_q, std::vector<int>(8, 65536));
            add("1x256k", t, 512, 1, 24, 1, s_q, std::vector<int>(1, 262144));
            add("32x32k", t, 512, 1, 24, 1, s_q, std::vector<int>(32, 32768));
            add("128x8k", t, 512, 1, 24, 1, s_q, std::vector<int>(128, 8192));
        }
    for (mla_dtype t : {BF, F8}) {
        for (size_t lat : {256, 768, 1792}) add("8x64k", t, lat, 1, 24, 1, 1, std::vector<int>(8, 65536));
        add("8x64k rot256", t, 512, 4, 24, 1, 1, std::vector<int>(8, 65536));
        add("8x64k GLA2", t, 256, 1, 24, 2, 1, std::vector<int>(8, 65536));
        add("8x64k H64", t, 512, 1, 64, 1, 1, std::vector<int>(8, 65536));
        add("1x16k", t, 512, 1, 24, 1, 1, std::vector<int>(1, 16384));
        add("skew", t, 512, 1, 16, 1, 4, {4641, 45118, 1730, 1696});
    }
    add("8x64k GQA", BF, 256, 0, 24, 4, 1, std::vector<int>(8, 65536));
    add("1x1M", BF, 512, 1, 24, 1, 1, std::vector<int>(1, 1000000));
    add("1x1M GQA", BF, 256, 0, 24, 4, 1, std::vector<int>(1, 1000000));
    add("1x256k GQA", BF, 256, 0, 24, 4, 1, std::vector<int>(1, 262144));
    mla_err err;
    cudaEvent_t e[2];
    CU(cudaEventCreate(e));
    CU(cudaEventCreate(e + 1));
    for (Bench &b : all) {
        b.k.reset(new DecodeCase(b.s, 77));
        if (mla_decode_plan(&b.k->d, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
    }
    CU(cudaDeviceSynchronize());
    cudaStream_t stream;
    CU(cudaStreamCreate(&stream));
    auto launches = [&](Bench &b, int n) { /* as a recorded step has them: nothing waits for the host */
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        if (mla_decode_run(&b.k->d, stream, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
        CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < n; i++)
            if (mla_decode_run(&b.k->d, stream, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
        CU(cudaStreamEndCapture(stream, &graph));
        CU(cudaGraphInstantiate(&exec, graph, 0));
        CU(cudaGraphDestroy(graph));
        return exec;
    };
    for (Bench &b : all) b.graph[0] = launches(b, 2), b.graph[1] = launches(b, LAUNCHES);
    for (int r = 0; r < rounds; r++)
        for (Bench &b : all) {
            CU(cudaDeviceSynchronize());
            usleep(REST * 1000);
            CU(cudaGraphLaunch(b.graph[0], stream));
            CU(cudaEventRecord(e[0], stream));
            CU(cudaGraphLaunch(b.graph[1], stream));
            CU(cudaEventRecord(e[1], stream));
            b.us.push_back(ms_of(e[0], e[1]) * 1000 / LAUNCHES);
        }
    CU(cudaDeviceSynchronize());
    printf("%-14s %-5s %5s %3s %3s  %9s %8s %9s  %s\n", "case", "cache", "lat", "H", "s_q", "us", "GB/s", "/read_bw", "spread");
    for (Bench &b : all) {
        const std::vector<float> o = b.k->output();
        size_t bad = 0;
        for (size_t i = 0; i < b.k->nout; i++) bad += !isfinite(o[i]);
        const double us = b.med(), gbs = b.bytes() / 1e3 / us;
        printf("%-14s %-5s %5zu %3zu %3zu  %9.1f %8.0f %9.3f  %.1f..%.1f%s\n", b.s.name, b.s.cache == BF ? "bf16" : "fp8", b.s.lat,
               b.s.H, b.s.s_q, us, gbs, gbs / read_bw, *std::min_element(b.us.begin(), b.us.end()),
               *std::max_element(b.us.begin(), b.us.end()), bad ? "  NON-FINITE OUTPUT" : "");
    }
    if (only) return 0;
    auto find = [&](const char *name, mla_dtype t, size_t lat, size_t s_q) -> const Bench & {
        for (const Bench &b : all)
            if (!strcmp(b.s.name, name) && b.s.cache == t && b.s.lat == lat && b.s.s_q == s_q) return b;
        fprintf(stderr, "no case %s\n", name), exit(3);
        return all[0];
    };
    auto share = [&](const Bench &b) { return b.bytes() / 1e3 / b.med() / read_bw; };
    auto over = [&](const Bench &a, const Bench &b) { return a.med() / b.med(); };
    printf("\ngoals: row, measured, least and aimed at (24 heads, rotary 64)\n");
    for (const char *n : {"8x64k", "32x32k", "128x8k"}) {
        char what[80];
        snprintf(what, sizeof what, "%s bf16 512: share of read_bw", n);
        goal("1", what, share(find(n, BF, 512, 1)), 0.85, 0.92, true);
        snprintf(what, sizeof what, "%s bf16 time over fp8 time", n);
        goal("3", what, over(find(n, BF, 512, 1), find(n, F8, 512, 1)), 1.5, 1.8, true);
        snprintf(what, sizeof what, "%s bf16 s_q 2 over s_q 1", n);
        goal("4", what, over(find(n, BF, 512, 2), find(n, BF, 512, 1)), 1.05, 1.05, false);
        snprintf(what, sizeof what, "%s bf16 s_q 4 over s_q 1", n);
        goal("4", what, over(find(n, BF, 512, 4), find(n, BF, 512, 1)), 1.2, 1.2, false);
        snprintf(what, sizeof what, "%s fp8 s_q 2 over s_q 1", n);
        goal("4", what, over(find(n, F8, 512, 2), find(n, F8, 512, 1)), 1.25, 1.25, false);
    }
    goal("2", "1x256k bf16 512: share of read_bw", share(find("1x256k", BF, 512, 1)), 0.75, 0.85, true);
    goal("3", "1x16k bf16 time over fp8 time", over(find("1x16k", BF, 512, 1), find("1x16k", F8, 512, 1)), 1.0, 1.0, true);
    goal("5", "8x64k bf16 256: share of read_bw", share(find("8x64k", BF, 256, 1)), 0.85, 0.85, true);
    goal("5", "8x64k bf16 768: share of read_bw", share(find("8x64k", BF, 768, 1)), 0.85, 0.85, true);
    goal("5", "8x64k bf16 1792: share of read_bw", share(find("8x64k", BF, 1792, 1)), 0.75, 0.75, true);
    goal("8", "8x64k GQA (4 heads of 256) time over MLA 512 time", over(find("8x64k GQA", BF, 256, 1), find("8x64k", BF, 512, 1)), 3.0, 3.56, true);
    goal("8", "1x256k GQA time over MLA 512 time", over(find("1x256k GQA", BF, 256, 1), find("1x256k", BF, 512, 1)), 3.0, 3.56, true);
    goal("8", "1x1M GQA time over MLA 512 time", over(find("1x1M GQA", BF, 256, 1), find("1x1M", BF, 512, 1)), 3.0, 3.56, true);
    goal("6", "skewed batch, s_q 4, 16 heads: us", find("skew", BF, 512, 4).med(), 30, 30, false);
    return 0;
}
