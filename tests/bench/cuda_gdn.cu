/* The gated delta net (16 key and 48 value heads of 128, fp32 state): the decode step against the copy bandwidth of the same
 * process (state read and written once), and prompts of 32768 tokens in all against the time a Triton chunk kernel was measured to
 * take on this chip, both with bf16 in and out. */
#include "cuda/gdn_chunk.cuh"
#include "cuda_ceilings.h"

enum { NK = 16, NV = 48 };

static const double CHUNK_KERNEL_MS = 3.146; /* flash-linear-attention 0.6.0, 1 x 32768, another process */

/* B sequences of T / B tokens; how long the two kernels take alone. */
static double chunks_ms(size_t B, size_t T, double *intra, double *scan)
{
    const size_t width = (2 * NK + NV) * GDN_D, rows = T + B * GDN_C, state = NV * GDN_D * GDN_D;
    __nv_bfloat16 *qkv, *o;
    float *gates, *head, *states;
    CU(cudaMalloc(&qkv, rows * width * 2));
    CU(cudaMalloc(&o, rows * NV * GDN_D * 2));
    CU(cudaMalloc(&gates, T * NV * 4));
    CU(cudaMalloc(&head, NV * 4));
    CU(cudaMalloc(&states, B * state * 4));
    fill_random<<<2048, 256>>>(qkv, false, rows * width, 6, 1.f);
    fill_random<<<2048, 256>>>(gates, true, T * NV, 7, 1.f);
    fill_random<<<1, 256>>>(head, true, NV, 8, 1.f);
    fill_random<<<2048, 256>>>(states, true, B * state, 9, 1.f);
    GdnChunk p = {qkv, gates, gates, head, head, o, NK, NV, {}, NULL};
    mla_err err;
    for (size_t i = 0; i < B; i++)
        if (!gdn_seqs_add(&p.seqs, T / B, states + i * state)) fprintf(stderr, "%zu sequences\n", B), exit(3);
    CU(cudaMalloc(&p.tp, gdn_chunk_scratch(&p)));
    auto timed = [&](mla_status (*f)(const GdnChunk *, cudaStream_t, mla_err *)) {
        return ms_per_call([&] { if (f(&p, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3); }, 5, 5);
    };
    const double ms = timed(gdn_chunk);
    *intra = timed(gdn_intra);
    *scan = timed(gdn_scan);
    for (void *q : {(void *)qkv, (void *)o, (void *)gates, (void *)head, (void *)states, (void *)p.tp}) CU(cudaFree(q));
    return ms;
}

int main(void)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_gdn", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    double read_bw = 0, copy_bw = 0;
    ceilings(&read_bw, &copy_bw);
    printf("copy_bw %.0f GB/s\n%-12s %4s %9s %9s %9s\n", copy_bw, "sequences", "T", "us", "GB/s", "/copy_bw");
    double us[2][3], share[3];
    const size_t Bs[3] = {1, 32, 128};
    for (int i = 0; i < 3; i++)
        for (int two = 0; two < 2; two++) {
            /* Layers enough that nothing stays in the L2 cache, stepped in turn. */
            const size_t B = Bs[i], T = two ? 4 : 1, width = (2 * NK + NV) * GDN_D, layer = B * NV * GDN_D * GDN_D, layers = B == 1 ? 64 : 4;
            float *qkv, *gates, *head, *o, *state;
            CU(cudaMalloc(&qkv, B * T * width * 4));
            CU(cudaMalloc(&gates, B * T * NV * 4));
            CU(cudaMalloc(&head, NV * 4));
            CU(cudaMalloc(&o, B * T * NV * GDN_D * 4));
            CU(cudaMalloc(&state, layers * layer * 4));
            fill_random<<<512, 256>>>(qkv, true, B * T * width, 1, 1.f);
            fill_random<<<32, 256>>>(gates, true, B * T * NV, 2, 1.f);
            fill_random<<<1, 64>>>(head, true, NV, 3, 1.f);
            fill_random<<<2048, 256>>>(state, true, layers * layer, 4, 1.f);
            size_t turn = 0;
            mla_err err;
            const double ms = ms_per_call([&] {
                const GdnStep s = {qkv, gates, gates, head, head, o, state + turn++ % layers * layer, B, T, NK, NV};
                if (gdn_step(&s, NULL, &err)) fprintf(stderr, "%s\n", err.msg), exit(3);
            }, 64, 5);
            const double bytes = 8.0 * layer + 4.0 * B * T * (width + 2 * NV + NV * GDN_D);
            us[two][i] = ms * 1e3;
            if (!two) share[i] = bytes / 1e6 / ms / copy_bw;
            printf("%-12zu %4zu %9.1f %9.0f %9.3f\n", B, T, ms * 1e3, bytes / 1e6 / ms, bytes / 1e6 / ms / copy_bw);
            for (float *p : {qkv, gates, head, o, state}) CU(cudaFree(p));
        }
    double batch = 0, prompt = 0, intra, scan;
    const size_t shapes[][2] = {{1, 2048}, {1, 4096}, {1, 8192}, {16, 8192}, {1, 32768}, {4, 32768}, {8, 32768}};
    for (auto &x : shapes) {
        batch = chunks_ms(x[0], x[1], &intra, &scan);
        if (x[0] == 1) prompt = batch;
        printf("chunks, %zu x %zu tokens: %.3f ms (inside %.3f, along %.3f)\n", x[0], x[1] / x[0], batch, intra, scan);
    }
    printf("\ngoals: row, measured, least and aimed at\n");
    goal("9", "8 x 4096, ms", batch, 0.9, 0.9, false);
    goal("9", "1 x 32768: chunk kernel's 3.146 ms over ours", CHUNK_KERNEL_MS / prompt, 2.0, 2.5, true);
    goal("10", "32 sequences: share of copy_bw", share[1], 0.85, 0.92, true);
    goal("10", "128 sequences: share of copy_bw", share[2], 0.85, 0.92, true);
    goal("10", "32 sequences: 4 tokens over 1", us[1][1] / us[0][1], 1.4, 1.4, false);
    return 0;
}
