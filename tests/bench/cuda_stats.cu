/* The statistics pass on a model of Qwen3.5-27B's shapes (48 delta-net and 16 attention layers; hidden 5120, FFN 17408) that
 * nobody has to store: one layer of each kind, drawn from a seed, run through the backend's operations as the runtime runs
 * them over 16 rows of 512 tokens, and the covariance of an attention layer's keys and values (n = 1792).
 *
 * Prints the share of gemm_rate that the pass reaches (products of weights and of attention count), what the covariance adds
 * to it, and how far covariances of a million tokens are from fp64: split numbers, and one running fp32 sum beside it. */
#include <cublas_v2.h>

#include "backend/backend.h"
#include "cuda_ceilings.h"

enum { D = 5120, FFN = 17408, H = 24, G = 4, DH = 256, ROT = 64, NK = 16, NV = 48, DL = 128, CONV = 4, ROW = 512, ROWS = 16, T = ROW * ROWS, PAGE = 64 };
enum { QKV = (2 * NK + NV) * DL, V = NV * DL, N = G * (DH - ROT) + G * DH };

static mla_backend *be;
static mla_err err;
static float noise[1 << 20];
/* Rows of N(0, 1/in) out of a drawn block, each from another place. */
static mla_status drawn_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *)
{
    const size_t in = *(const size_t *)ctx, all = sizeof noise / sizeof *noise;
    const float by = 1.f / sqrtf((float)in);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0, at = (row0 + r) * 7919; i < in; i++) dst[r * in + i] = by * noise[(at + i) % all];
    return MLA_OK;
}
static double weights; /* of a token */
static mla_weight *weight(size_t out, size_t in)
{
    mla_weight_desc d = {out, in, MLA_PREC_BF16, drawn_rows, &in, NULL, false};
    mla_weight *w;
    OK(be->ops->weight_new(be, &w, &d, &err));
    weights += (double)out * in;
    return w;
}
static mla_mem *room(size_t n, float size = 0)
{
    void *p;
    CU(cudaMalloc(&p, n * 4));
    if (size != 0) fill_random<<<2048, 256>>>(p, true, n, n, size);
    else CU(cudaMemset(p, 0, n * 4));
    return (mla_mem *)p;
}

static mla_mem *x, *h, *o, *a0, *a1, *a2, *a3, *a4, *gain, *cosines, *sines, *pool, *state, *conv_state, *conv_w, *head, *features, *acc, *sum, *token_w;
static mla_weight *wq, *wk, *wv, *wo, *wqkv, *wz, *wb, *wa, *wout, *gate[2], *up[2], *down[2];

/* As the runtime does: layers of one input in one call with the norm before them, the last one added to the residual stream. */
static mla_linear_job job(mla_weight *w, mla_mem *y, size_t ldy, mla_mem *in, size_t ldx, bool add = false) { return {w, {y, ldy, in, ldx, T, NULL, add}}; }
static void linears(std::vector<mla_linear_job> jobs, const mla_norm_args *norm = NULL) { OK(be->ops->linears(be, norm, jobs.data(), jobs.size(), &err)); }
static mla_norm_args of_x(void) { return {h, D, x, D, T, D, gain, 1e-6}; }
static void norm(mla_mem *y, mla_mem *in, size_t rows, size_t d)
{
    const mla_norm_args a = {y, d, in, d, rows, d, gain, 1e-6};
    OK(be->ops->rmsnorm(be, &a, &err));
}
static void mlp(int i)
{
    const mla_norm_args n = of_x();
    const mla_gated_args g = {gate[i], up[i], FFN, a0, a1, h, D, T};
    const mla_linear_job last = job(down[i], x, D, a0, FFN, true);
    OK(be->ops->mlp(be, &n, &g, &last, &err));
}
static void attention_layer(void)
{
    const mla_norm_args n = of_x();
    linears({job(wq, a0, 2 * H * DH, h, D), job(wk, a1, G * DH, h, D), job(wv, a2, G * DH, h, D)}, &n); /* wq: queries and gates */
    OK(be->ops->copy_rows(be, a3, H * DH, a0, 2 * H * DH, T, H * DH, &err));
    norm(a3, a3, (size_t)T * H, DH);
    norm(a1, a1, (size_t)T * G, DH);
    for (int r = 0; r < ROWS; r++) {
        mla_mem *q = mla_at(a3, (size_t)r * ROW * H * DH), *k = mla_at(a1, (size_t)r * ROW * G * DH), *v = mla_at(a2, (size_t)r * ROW * G * DH);
        const mla_rope_args rq = {q, H * DH, ROW, H, DH, ROT, cosines, sines, NULL}, rk = {k, G * DH, ROW, G, DH, ROT, cosines, sines, NULL};
        OK(be->ops->rope(be, &rq, &err));
        OK(be->ops->rope(be, &rk, &err));
        mla_kv_view kv = {pool, NULL, PAGE, 2 * G * DH, 0, DH, MLA_BF16, 1.f}, vv = kv;
        vv.col = G * DH;
        const mla_kv_write_args w1 = {kv, k, G * DH, ROW, G * DH, 0, NULL}, w2 = {vv, v, G * DH, ROW, G * DH, 0, NULL};
        OK(be->ops->kv_write(be, &w1, &err));
        OK(be->ops->kv_write(be, &w2, &err));
        mla_attn_args a = {};
        a.o = mla_at(a4, (size_t)r * ROW * H * DH), a.ldo = H * DH, a.q = q, a.ldq = H * DH, a.qh_stride = DH, a.k = kv, a.v = vv;
        a.kh = a.vh = G, a.T = ROW, a.H = H, a.dk = a.dv = DH, a.scale = 1.f / 16, a.bf16 = true;
        OK(be->ops->attention(be, &a, &err));
    }
    OK(be->ops->sigmoid_mul(be, a4, mla_at(a0, H * DH), T, H * DH, 2 * H * DH, &err));
    linears({job(wo, x, D, a4, H * DH, true)});
    mlp(0);
}
static void delta_layer(void)
{
    const mla_norm_args n = of_x();
    const mla_linear_job in[4] = {job(wqkv, a0, QKV, h, D), job(wz, a1, V, h, D), job(wb, a3, NV, h, D), job(wa, a4, NV, h, D)}, out = job(wout, x, D, a0, V, true);
    std::vector<mla_delta_seq> seq;
    for (size_t r = 0; r < ROWS; r++) seq.push_back({ROW, mla_at(conv_state, r * QKV * (CONV - 1)), mla_at(state, r * NV * DL * DL)});
    const mla_delta_args a = {in, &out, a2, o, conv_w, head, head, gain, 1e-6, seq.data(), ROWS, T, NK, NV, DL, DL, CONV, 64, true};
    OK(be->ops->delta(be, &n, &a, &err));
    mlp(1);
}
/* What the collector adds per attention layer: the features of a row beside one another, and their weighted moments. */
static void covariance(bool split)
{
    const size_t keys = G * (DH - ROT);
    for (int g = 0; g < G; g++) OK(be->ops->copy_rows(be, mla_at(features, g * (DH - ROT)), N, mla_at(a1, g * DH + ROT), G * DH, T, DH - ROT, &err));
    OK(be->ops->copy_rows(be, mla_at(features, keys), N, a2, G * DH, T, G * DH, &err));
    const mla_gram_args a = {acc, sum, features, N, T, N, token_w, NULL, split};
    OK(be->ops->gram(be, &a, &err));
}

static void prepare(void)
{
    for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) noise[i] = cut_normal(1, i);
    x = room((size_t)T * D, 1.f), h = room((size_t)T * V), o = room((size_t)T * V), gain = room(D, 0.3f);
    a0 = room((size_t)T * FFN), a1 = room((size_t)T * FFN), a2 = room((size_t)T * QKV), a3 = room((size_t)T * H * DH), a4 = room((size_t)T * H * DH);
    cosines = room(ROW * ROT / 2, 1.f), sines = room(ROW * ROT / 2, 1.f), pool = room((size_t)ROW * G * DH), state = room((size_t)ROWS * NV * DL * DL);
    conv_state = room((size_t)ROWS * QKV * (CONV - 1)), conv_w = room(QKV * CONV, 0.5f), head = room(NV, 0.3f), features = room((size_t)T * N);
    acc = room((size_t)N * N * 2), sum = room(N * 2), token_w = room(T * 2);
    std::vector<double> ones(T, 1.0);
    CU(cudaMemcpy(token_w, ones.data(), T * 8, cudaMemcpyHostToDevice));
}

/* Both kinds of layer without anything but the products of their weights. */
static void products(void)
{
    linears({job(wq, a0, FFN, h, D), job(wk, a0, FFN, h, D), job(wv, a0, FFN, h, D), job(gate[0], a0, FFN, h, D), job(up[0], a0, FFN, h, D)});
    linears({job(wo, h, D, a4, H * DH)});
    linears({job(down[0], h, D, a0, FFN)});
    for (int i = 0; i < 3; i++) {
        linears({job(wqkv, a0, FFN, h, D), job(wz, a0, FFN, h, D), job(wb, a0, FFN, h, D), job(wa, a0, FFN, h, D), job(gate[1], a0, FFN, h, D), job(up[1], a0, FFN, h, D)});
        linears({job(wout, h, D, a1, V)});
        linears({job(down[1], h, D, a0, FFN)});
    }
}

/* x (n) and y (n): the same numbers, of bf16 precision when both are asked for. */
static __global__ void fill_pair(float *x, __nv_bfloat16 *y, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const float v = cut_normal(seed, i) + 0.5f;
        if (y) y[i] = __float2bfloat16_rn(v);
        x[i] = y ? __bfloat162float(y[i]) : v;
    }
}
/* Relative Frobenius distance from fp64 of covariances over a million tokens: of split numbers, and (bf16 inputs only) of one
 * running fp32 sum. */
static double accuracy(bool bf16, double *running_error)
{
    const size_t n = N, steps = 128;
    mla_mem *sums[2] = {room(n * n * 2), room(n * n * 2)}, *in = room(T * n), *running = room(n * n);
    void *in16 = NULL;
    cublasHandle_t blas;
    const float one = 1.f;
    if (cublasCreate(&blas) != CUBLAS_STATUS_SUCCESS) fprintf(stderr, "cuBLAS does not start\n"), exit(3);
    if (bf16) CU(cudaMalloc(&in16, T * n * 2));
    for (size_t k = 0; k < steps; k++) {
        fill_pair<<<2048, 256>>>((float *)in, (__nv_bfloat16 *)in16, T * n, 100 + k);
        if (bf16 && cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_T, (int)n, (int)n, T, &one, in16, CUDA_R_16BF, (int)n, in16, CUDA_R_16BF, (int)n, &one, running, CUDA_R_32F,
                                 (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS)
            fprintf(stderr, "cuBLAS product fails\n"), exit(3);
        CU(cudaDeviceSynchronize());
        for (int i = 0; i < 2; i++) {
            const mla_gram_args a = {sums[i], NULL, in, n, T, n, NULL, NULL, i == 1};
            OK(be->ops->gram(be, &a, &err));
        }
        OK(be->ops->sync(be, &err));
    }
    std::vector<double> exact(n * n), split(n * n);
    std::vector<float> once(n * n);
    CU(cudaMemcpy(exact.data(), sums[0], n * n * 8, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(split.data(), sums[1], n * n * 8, cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(once.data(), running, n * n * 4, cudaMemcpyDeviceToHost));
    double w2 = 0, s2 = 0, r2 = 0;
    for (size_t i = 0; i < n * n; i++) w2 += exact[i] * exact[i], s2 += pow(split[i] - exact[i], 2), r2 += pow(once[i] - exact[i], 2);
    *running_error = sqrt(r2 / w2);
    cublasDestroy(blas);
    for (void *p : {(void *)sums[0], (void *)sums[1], (void *)in, (void *)running, in16}) CU(cudaFree(p));
    return sqrt(s2 / w2);
}

int main(void)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_stats", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    mla_backend_opts o = {"cuda:0", 0, MLA_ISA_AUTO};
    if (mla_backend_open(&be, &o, &err)) return fprintf(stderr, "%s\n", err.msg), 3;
    const double rate = gemm_rate();
    prepare();
    wq = weight(2 * H * DH, D), wk = weight(G * DH, D), wv = weight(G * DH, D), wo = weight(D, H * DH), gate[0] = weight(FFN, D), up[0] = weight(FFN, D), down[0] = weight(D, FFN);
    const double in_attention = weights;
    wqkv = weight(QKV, D), wz = weight(V, D), wb = weight(NV, D), wa = weight(NV, D), wout = weight(D, V), gate[1] = weight(FFN, D), up[1] = weight(FFN, D), down[1] = weight(D, FFN);
    const double in_delta = weights - in_attention;
    auto timed = [](const std::function<void()> &f) {
        return ms_per_call([&] {
            f();
            OK(be->ops->sync(be, &err));
        }, 2);
    };
    const double attention = timed(attention_layer), delta = timed(delta_layer), alone = timed(products), whole = timed([] { covariance(false); }),
                 split = timed([] { covariance(true); });
    /* The same while the GPU is as warm as after a second of work, products of 8192 x 8192 x 8192 and layers in turns. */
    std::vector<double> warm_rate, warm_pass;
    for (int k = 0; k < 12; k++) {
        warm_rate.push_back(gemm_rate());
        warm_pass.push_back(48 * timed(delta_layer) + 16 * timed(attention_layer));
    }
    warm_rate.erase(warm_rate.begin(), warm_rate.begin() + 4), warm_pass.erase(warm_pass.begin(), warm_pass.begin() + 4);
    const double pass = 48 * delta + 16 * attention, flop = 2.0 * T * (48 * in_delta + 16 * in_attention), seen = flop + 16.0 * T * 4 * H * DH * (ROW + 1) / 2;
    printf("gemm_rate %.0f TFLOP/s\n%d tokens, ms: attention layer %.2f, delta-net layer %.2f, model %.0f (its products of weights alone %.0f, %.0f TFLOP/s)\n", rate, T, attention,
           delta, pass, 16 * alone, flop / 16 / alone / 1e9);
    printf("the same after a second of work: gemm_rate %.0f TFLOP/s, model %.0f ms, %.3f of it\n", median(warm_rate), median(warm_pass),
           seen / median(warm_pass) / 1e9 / median(warm_rate));
    printf("covariance of an attention layer: fp64 %.2f ms, split %.2f ms\n", whole, split);
    double running, ignored;
    const double error = accuracy(true, &running), error32 = accuracy(false, &ignored);
    printf("%d x 128 tokens: split numbers off by %.2e (bf16 inputs), %.2e (fp32 inputs); one running fp32 sum off by %.2e\n", T, error, error32, running);
    printf("\ngoals: row, measured, least and aimed at\n");
    goal("12", "statistics pass, split: share of gemm_rate", seen / (pass + 16 * split) / 1e9 / rate, 0.70, 0.80, true);
    goal("12", "covariance over the pass, split", 16 * split / pass, 0.05, 0.05, false);
    goal("12", "covariance over the pass, fp64", 16 * whole / pass, 0.13, 0.13, false);
    goal("13", "bf16 inputs, a million tokens: error, in 1e-5", error * 1e5, 1, 0.1, false);
    goal("13", "fp32 inputs, a million tokens: error, in 1e-5", error32 * 1e5, 1, 0.1, false);
    mla_backend_close(be);
    return 0;
}
