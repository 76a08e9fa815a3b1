/* A whole decode step of the 27B hybrid's true shapes (one sequence, 32k cached tokens, latent 512 + 64 in bf16), op by op
 * through the backend as the engine issues them, against the time its bytes need at read_bw. Weights are made of one
 * random block, every matrix in memory of its own; nothing touches disk. */
#include "backend/backend.h"
#include "cuda_ceilings.h"

enum { D = 5120, I = 17408, H = 24, G = 4, HD = 256, ROPE = 64, NOPE = HD - ROPE, LAT = 512, NK = 16, NV = 48, GD = 128, CONV = 4, LAYERS = 64,
       VOCAB = 248320, CACHED = 32768, PAGE = 64, C = (2 * NK + NV) * GD, V = NV * GD, ROW = LAT + ROPE, BLOCK = 1 << 22 };

static mla_backend *be;
static mla_err err;
static double weight_bytes;
static std::vector<float> block;
static std::vector<int32_t> pages;

#define OK(x)                                                                 \
    do {                                                                      \
        if ((x) != MLA_OK) fprintf(stderr, "%s: %s\n", #x, err.msg), exit(3); \
    } while (0)

static mla_status rows_of_block(void *ctx, size_t row0, size_t n, float *dst, mla_err *)
{
    const size_t in = *(size_t *)ctx;
    for (size_t at = 0, from = row0 * 977 % 1021; at < n * in;) { /* elsewhere in the block for other rows */
        const size_t m = std::min(n * in - at, block.size() - from);
        memcpy(dst + at, block.data() + from, m * 4);
        at += m, from = 0;
    }
    return MLA_OK;
}
static mla_weight *weight(size_t out, size_t in)
{
    mla_weight_desc d = {out, in, MLA_PREC_BF16, rows_of_block, &in};
    mla_weight *w = NULL;
    OK(be->ops->weight_new(be, &w, &d, &err));
    weight_bytes += (double)be->ops->weight_bytes(w);
    return w;
}
static mla_mem *mem(size_t floats, float value = 0.f)
{
    mla_mem *p = NULL;
    OK(be->ops->alloc(be, &p, floats * 4, &err));
    const std::vector<float> v(floats, value);
    OK(be->ops->upload(be, p, v.data(), floats * 4, &err));
    return p;
}
static void linear(const mla_weight *w, mla_mem *y, size_t ldy, mla_mem *x, size_t ldx, size_t T = 1)
{
    mla_linear_args a = {y, ldy, x, ldx, T, NULL, false};
    OK(be->ops->linear(be, w, &a, &err));
}
static void norm(mla_mem *y, mla_mem *x, mla_mem *gain)
{
    mla_norm_args a = {y, D, x, D, 1, D, gain, 1e-6};
    OK(be->ops->rmsnorm(be, &a, &err));
}

struct Layer {
    bool attn;
    mla_weight *in, *z, *a, *b, *out, *gate, *up, *down, *q, *kv, *key[G], *val[G];
    mla_mem *state, *conv_state, *cache;
};
struct Step {
    mla_mem *h, *x, *t1, *t2, *t3, *t4, *t5, *gain, *conv_w, *head, *cs, *logits;
};

static Layer make_layer(size_t i)
{
    Layer l = {};
    l.attn = i % 4 == 3;
    l.gate = weight(I, D), l.up = weight(I, D), l.down = weight(D, I);
    if (l.attn) {
        l.q = weight(2 * H * HD, D), l.kv = weight(ROW, D), l.out = weight(D, H * HD);
        for (int g = 0; g < G; g++) l.key[g] = weight(LAT, NOPE), l.val[g] = weight(HD, LAT);
        OK(be->ops->alloc(be, &l.cache, (size_t)(CACHED + PAGE) * ROW * 2, &err));
        fill_random<<<2048, 256>>>(l.cache, false, (size_t)(CACHED + PAGE) * ROW, i, 0.1f);
    } else {
        l.in = weight(C, D), l.z = weight(V, D), l.a = weight(NV, D), l.b = weight(NV, D), l.out = weight(D, V);
        l.state = mem((size_t)NV * GD * GD, 0.01f), l.conv_state = mem((CONV - 1) * C, 0.1f);
    }
    return l;
}

static void delta(const Layer &l, const Step &s)
{
    linear(l.in, s.t1, C, s.x, D);
    linear(l.z, s.t2, V, s.x, D);
    linear(l.b, s.t3, NV, s.x, D);
    linear(l.a, mla_at(s.t3, 64), NV, s.x, D);
    mla_conv_args c = {s.t4, s.t1, s.conv_w, l.conv_state, 1, C, CONV};
    OK(be->ops->conv(be, &c, &err));
    mla_gdn_args g = {s.t5, s.t4, mla_at(s.t3, 64), s.t3, s.head, s.head, l.state, 1, NK, NV, GD, GD, 0};
    OK(be->ops->gdn(be, &g, &err));
    mla_gated_norm_args n = {s.t1, s.t5, s.t2, s.gain, NV, GD, 1e-6};
    OK(be->ops->gated_norm(be, &n, &err));
    linear(l.out, s.t2, D, s.t1, V);
}
static void attention(const Layer &l, const Step &s)
{
    linear(l.q, s.t1, 2 * H * HD, s.x, D); /* per head: 192 without position, 64 rotary, 256 of gate */
    linear(l.kv, s.t2, ROW, s.x, D);
    mla_rope_args rq = {mla_at(s.t1, NOPE), 2 * H * HD, 1, H, 2 * HD, ROPE, s.cs, s.cs}, rk = {mla_at(s.t2, LAT), ROW, 1, 1, ROPE, ROPE, s.cs, s.cs};
    OK(be->ops->rope(be, &rq, &err));
    OK(be->ops->rope(be, &rk, &err));
    mla_kv_view v = {l.cache, pages.data(), PAGE, ROW, 0, 0, MLA_BF16, 1.f};
    mla_kv_write_args w = {v, s.t2, ROW, 1, ROW, CACHED};
    OK(be->ops->kv_write(be, &w, &err));
    for (int g = 0; g < G; g++) linear(l.key[g], mla_at(s.t3, (size_t)g * (H / G) * LAT), LAT, mla_at(s.t1, (size_t)g * (H / G) * 2 * HD), 2 * HD, H / G);
    mla_attn_args a = {};
    a.o = s.t4, a.ldo = H * LAT, a.q = s.t3, a.ldq = H * LAT, a.qh_stride = LAT;
    a.q2 = mla_at(s.t1, NOPE), a.ldq2 = 2 * H * HD, a.q2h_stride = 2 * HD;
    a.k = a.k2 = a.v = v;
    a.k2.col = LAT;
    a.kh = a.k2h = a.vh = 1, a.T = 1, a.H = H, a.dk = a.dv = LAT, a.dk2 = ROPE, a.pos0 = CACHED, a.scale = 0.0625f, a.bf16 = true;
    OK(be->ops->attention(be, &a, &err));
    for (int g = 0; g < G; g++) linear(l.val[g], mla_at(s.t5, (size_t)g * (H / G) * HD), HD, mla_at(s.t4, (size_t)g * (H / G) * LAT), LAT, H / G);
    OK(be->ops->copy_rows(be, s.t3, HD, mla_at(s.t1, HD), 2 * HD, H, HD, &err));
    OK(be->ops->sigmoid_mul(be, s.t5, s.t3, 1, H * HD, H * HD, &err));
    linear(l.out, s.t2, D, s.t5, H * HD);
}
static void step(const std::vector<Layer> &layers, const mla_weight *head, const Step &s)
{
    for (const Layer &l : layers) {
        norm(s.x, s.h, s.gain);
        l.attn ? attention(l, s) : delta(l, s);
        OK(be->ops->add(be, s.h, s.t2, D, &err));
        norm(s.x, s.h, s.gain);
        linear(l.gate, s.t1, I, s.x, D);
        linear(l.up, s.t2, I, s.x, D);
        OK(be->ops->silu_mul(be, s.t3, s.t1, s.t2, I, &err));
        linear(l.down, s.t2, D, s.t3, I);
        OK(be->ops->add(be, s.h, s.t2, D, &err));
    }
    norm(s.x, s.h, s.gain);
    linear(head, s.logits, VOCAB, s.x, D);
}

int main(void)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_step", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    size_t free_b = 0, total = 0;
    CU(cudaMemGetInfo(&free_b, &total));
    if (free_b < (size_t)60 << 30) return printf("SKIP bench_cuda_step: %zu GiB free, 60 needed (1)\n", free_b >> 30), 0;
    double read_bw = 0, copy_bw = 0;
    ceilings(&read_bw, &copy_bw);
    mla_backend_opts o = {"cuda:0", 0, MLA_ISA_AUTO};
    OK(mla_backend_open(&be, &o, &err));
    block.resize(BLOCK);
    for (size_t i = 0; i < block.size(); i++) block[i] = cut_normal(5, i) * 0.01f;
    pages.resize(CACHED / PAGE + 1);
    for (size_t i = 0; i < pages.size(); i++) pages[i] = (int32_t)(i * 37 % pages.size()); /* a permutation: 37 does not divide 513 */
    std::vector<Layer> layers;
    for (size_t i = 0; i < LAYERS; i++) layers.push_back(make_layer(i));
    const mla_weight *head = weight(VOCAB, D);
    const Step s = {mem(D, 0.5f), mem(D), mem(I), mem(I), mem(I), mem(I), mem(I), mem(D, 1.f), mem(C * CONV, 0.25f), mem(NV, 0.1f), mem(ROPE / 2, 0.7f), mem(VOCAB)};
    auto timed = [&](int n) {
        OK(be->ops->sync(be, &err));
        cudaEvent_t e[2];
        CU(cudaEventCreate(e));
        CU(cudaEventCreate(e + 1));
        CU(cudaEventRecord(e[0])); /* the default stream waits for nothing of ours: the host waits on both sides */
        for (int i = 0; i < n; i++) step(layers, head, s);
        OK(be->ops->sync(be, &err));
        CU(cudaEventRecord(e[1]));
        return ms_of(e[0], e[1]) / n;
    };
    timed(3);
    std::vector<double> ms;
    for (int r = 0; r < 5; r++) ms.push_back(timed(8));
    std::vector<float> logits(VOCAB);
    OK(be->ops->download(be, logits.data(), s.logits, VOCAB * 4, &err));
    size_t bad = 0;
    for (float x : logits) bad += !isfinite(x);
    const double kv = 16.0 * CACHED * ROW * 2, state = 48.0 * NV * GD * GD * 4 * 2, bytes = weight_bytes + kv + state, bound = bytes / read_bw / 1e6, got = median(ms);
    printf("read_bw %.0f GB/s; weights %.1f GB, cache %.2f GB, states read and written %.2f GB: at least %.2f ms; step %.2f ms (%.2f..%.2f)%s\n", read_bw,
           weight_bytes / 1e9, kv / 1e9, state / 1e9, bound, got, *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()),
           bad ? "  NON-FINITE LOGITS" : "");
    printf("\ngoals: row, measured, least and aimed at\n");
    goal("11", "27B shape, one sequence at 32k: share of its byte bound", bound / got, 0.80, 0.88, true);
    goal("11", "tokens per second", 1000 / got, 70, 70, true);
    return bad ? 1 : 0;
}
