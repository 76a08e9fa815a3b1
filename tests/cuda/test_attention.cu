/* Attention on the GPU against the CPU reference: f32 and bf16 products, every cache type, observed or not, cut anywhere; a few tokens by the
 * decode kernels; layout p's divisors. */
#include "ops.h"
#include "pages.h"

struct AttnCase {
    size_t T, pos0, H, kh, k2h, vh, dk, dk2, dv;
    mla_dtype t;
    bool observe, bf16 = false;
    size_t page = 0;
    bool latent = false; /* values are the keys' first dk columns */
    size_t pad = 3;      /* elements of a row that belong to nothing */
};
/* Queries [t0, t0 + n); cursor: length and pages from device memory, `off` tokens too many. */
static Vec attend(mla_backend *be, const AttnCase &s, size_t t0, size_t n, bool cursor = false, int off = 0)
{
    const size_t S = s.pos0 + s.T, P = s.page ? s.page : 16, row = s.kh * s.dk + s.k2h * s.dk2 + s.vh * s.dv + (s.latent ? 16 : s.pad), slots = 12 * P;
    std::vector<uint8_t> none(slots * row * elem(s.t), 0);
    Mem KV(be, none.data(), none.size()), X(be, normals(S * row, 12)), Q(be, normals(s.T * s.H * (s.dk + 1), 13)),
        Q2(be, normals(s.T * s.H * (s.dk2 + 1), 14)), O(be, Vec(s.T * s.H * s.dv, POISON)), P2(be, Vec(2 * S, 0.f)), PR(be, Vec(s.H * n * (s.pos0 + t0 + n), POISON));
    mla_kv_view v = {KV, PAGES.data(), P, row, 0, 0, s.t, s.t == MLA_F8_E4M3 ? 0.02f : 1.f};
    mla_kv_write_args w = {v, X, row, S, row, 0, NULL};
    OK(be->ops->kv_write(be, &w, &err));
    mla_attn_args a = {};
    a.o = mla_at(O, t0 * s.H * s.dv), a.ldo = s.H * s.dv;
    a.q = mla_at(Q, t0 * s.H * (s.dk + 1)), a.ldq = s.H * (s.dk + 1), a.qh_stride = s.dk + 1;
    if (s.dk2) a.q2 = mla_at(Q2, t0 * s.H * (s.dk2 + 1)), a.ldq2 = s.H * (s.dk2 + 1), a.q2h_stride = s.dk2 + 1;
    a.k = a.k2 = a.v = v;
    a.k.head_stride = s.dk, a.k2.head_stride = s.dk2, a.v.head_stride = s.dv;
    a.k2.col = s.kh * s.dk, a.v.col = s.kh * s.dk + s.k2h * s.dk2;
    a.kh = s.kh, a.k2h = s.k2h, a.vh = s.vh, a.T = n, a.H = s.H, a.dk = s.dk, a.dk2 = s.dk2, a.dv = s.dv, a.pos0 = s.pos0 + t0;
    a.scale = 1.f / sqrtf((float)(s.dk + s.dk2));
    if (s.observe) a.p2 = P2, a.probs = PR;
    a.bf16 = s.bf16;
    if (s.latent) a.v = a.k;
    const int32_t len = (int32_t)(s.pos0 + t0 + n) + off;
    Mem L(be, &len, 4), PG(be, PAGES.data(), PAGES.size() * 4);
    const mla_cursor at = {L, PG, 12};
    if (cursor) a.at = &at, a.pos0 = 0, a.k.pages = a.k2.pages = a.v.pages = NULL;
    OK(be->ops->attention(be, &a, &err));
    Vec r = O.get();
    r = Vec(r.begin() + (long)(t0 * s.H * s.dv), r.begin() + (long)((t0 + n) * s.H * s.dv));
    if (s.observe) {
        std::vector<double> p2(S);
        OK(be->ops->download(be, p2.data(), P2, S * 8, &err));
        for (double x : p2) r.push_back((float)x);
        append(r, PR.get());
    }
    return r;
}
/* A few tokens over keys and values in 64-token pages: near the reference, the same bits by cursor and in every run. */
static void few_tokens(void)
{
    const AttnCase cases[] = {
        {1, 599, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64, false, 8}, {2, 63, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64, false, 8},
        {4, 60, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64, false, 8},  {8, 248, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64, false, 8},
        {1, 0, 32, 8, 0, 8, 128, 0, 128, MLA_BF16, false, true, 64, false, 8},   {5, 300, 8, 2, 0, 2, 128, 0, 128, MLA_BF16, false, true, 64, false, 8},
        {3, 125, 6, 6, 0, 6, 128, 0, 128, MLA_BF16, false, true, 64, false, 8},
    };
    for (const AttnCase &s : cases) {
        if (!next_case()) continue;
        char what[100];
        snprintf(what, sizeof what, "%zu tokens at %zu over %zu heads of %zu", s.T, s.pos0, s.kh, s.dk);
        both(what, 8e-3, [&](mla_backend *be) { return attend(be, s, 0, s.T); });
        const Vec first = attend(gpu, s, 0, s.T);
        const size_t bytes = first.size() * 4;
        bool same = true;
        for (int i = 0; i < (cut_small() ? 2 : 60); i++) same &= !memcmp(first.data(), attend(gpu, s, 0, s.T, i % 2).data(), bytes);
        cut_check(same, (std::string(what) + ": runs, or cursor and arguments, differ").c_str());
        if (s.pos0) cut_check(cut_compare(attend(gpu, s, 0, s.T, true, -1).data(), first.data(), first.size()).rel > 8e-3, (std::string(what) + ": a token too few is unseen").c_str());
    }
}
static void attention(void)
{
    const AttnCase cases[] = {
        {1, 0, 4, 2, 0, 2, 64, 0, 64, MLA_F32, true},    {9, 30, 8, 2, 0, 2, 33, 0, 33, MLA_F32, true},  {5, 64, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false},
        {4, 100, 24, 1, 1, 1, 512, 64, 512, MLA_BF16, true}, {3, 63, 24, 2, 4, 2, 256, 64, 256, MLA_F8_E4M3, false}, {1, 159, 6, 1, 2, 1, 1792, 16, 1792, MLA_F32, false},
    };
    /* bf16 products: queries, keys and probabilities rounded to 8 bits, 2^-9 each at most; the last two fall back to fp32. */
    const AttnCase bf16[] = {
        {1, 0, 4, 2, 0, 2, 256, 0, 256, MLA_F32, false, true, 64},    {1, 599, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64},
        {300, 340, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64}, {257, 0, 24, 4, 1, 4, 192, 64, 256, MLA_BF16, false, true, 64},
        {79, 80, 8, 2, 4, 8, 33, 21, 70, MLA_F32, false, true, 64},   {160, 321, 6, 3, 0, 1, 64, 0, 64, MLA_F8_E4M3, false, true, 64},
        {128, 32, 2, 1, 0, 1, 128, 0, 128, MLA_BF16, false, true, 16},
        {1, 599, 24, 1, 1, 1, 512, 64, 512, MLA_BF16, false, true, 64, true}, {4, 300, 12, 2, 1, 2, 256, 64, 256, MLA_F8_E4M3, false, true, 64, true},
        {3, 61, 8, 1, 1, 1, 384, 64, 384, MLA_BF16, false, true, 64, true},
        {1, 599, 24, 4, 0, 4, 256, 0, 256, MLA_BF16, false, true, 64, false, 8}, {5, 300, 8, 2, 0, 2, 128, 0, 128, MLA_BF16, false, true, 64, false, 8},
        {5, 90, 24, 1, 1, 1, 512, 64, 512, MLA_BF16, false, true, 16}, {9, 30, 8, 2, 0, 2, 33, 0, 33, MLA_BF16, true, true, 16},
    };
    for (const AttnCase &s : bf16) {
        if (!next_case()) continue;
        both("attention with bf16 products", 8e-3, [&](mla_backend *be) { return attend(be, s, 0, s.T); });
        if (s.T < 100) continue;
        Vec whole = attend(gpu, s, 0, s.T), cut = attend(gpu, s, 0, 77);
        append(cut, attend(gpu, s, 77, s.T - 77));
        cut_check(!memcmp(whole.data(), cut.data(), whole.size() * 4), "attention with bf16 products depends on how the prompt is cut");
    }
    for (const AttnCase &s : cases) {
        if (!next_case()) continue;
        both("attention", 2e-6, [&](mla_backend *be) { return attend(be, s, 0, s.T); });
        if (s.T < 3 || s.observe) continue;
        Vec whole = attend(gpu, s, 0, s.T), cut = attend(gpu, s, 0, 2);
        append(cut, attend(gpu, s, 2, s.T - 2));
        cut_check(!memcmp(whole.data(), cut.data(), whole.size() * 4), "attention depends on how the prompt is cut");
    }
}

/* Layout p: divisors as they are stored, and attention over latents (absorbed: qb) or over keys formed from them, divided. */
static Vec divided(mla_backend *be, mla_dtype t, bool absorbed, bool bf16)
{
    const size_t T = 70, heads = 12, g = 4, d = 33, r = absorbed ? 40 : 24, rot = 8, P = 16, row = r + g * rot + g, w = r + 1 + rot, es = elem(t);
    std::vector<uint8_t> none(12 * P * row * es, 0);
    Mem KV(be, none.data(), none.size()), C(be, normals(T * r, 50)), R(be, normals(T * g * rot, 51)), X(be, normals(T * g * d, 52, 1.5f)), Q(be, normals(T * heads * w, 53, 0.3f)),
        K(be, normals(T * g * r, 54)), V(be, normals(T * g * r, 55)), O(be, Vec(T * heads * r, POISON)), N(be, Vec{0.5f, 1.f, 2.f, 3.f});
    mla_kv_view c = {KV, PAGES.data(), P, row, 0, r, t, t == MLA_F8_E4M3 ? 0.02f : 1.f}, k2 = c, div = c;
    k2.col = r, k2.head_stride = rot;
    div.col = r + g * rot, div.head_stride = 1, div.scale = 1.f, div.dtype = t == MLA_F32 ? MLA_F32 : t == MLA_BF16 ? MLA_F16 : MLA_U8;
    const mla_kv_write_args w1 = {c, C, r, T, r, 0, NULL}, w2 = {k2, R, g * rot, T, g * rot, 0, NULL};
    const mla_divisor_args da = {div, X, g * d, T, g, d, 0, N, 1e-6};
    OK(be->ops->kv_write(be, &w1, &err));
    OK(be->ops->kv_write(be, &w2, &err));
    OK(be->ops->divisor(be, &da, &err));
    mla_attn_args a = {};
    a.o = O, a.ldo = heads * r, a.q = Q, a.ldq = heads * w, a.qh_stride = w, a.q2 = mla_at(Q, r + 1), a.ldq2 = heads * w, a.q2h_stride = w;
    a.k = a.v = c, a.k2 = k2, a.div = div, a.divh = g, a.kh = a.vh = 1, a.k2h = g, a.T = T, a.H = heads, a.dk = a.dv = r, a.dk2 = rot, a.scale = 0.3f, a.bf16 = bf16;
    if (absorbed) a.qb = mla_at(Q, r);
    else a.k = mla_kv_view{K, NULL, P, g * r, 0, r, MLA_F32, 1.f}, a.v = a.k, a.v.data = V, a.kh = a.vh = g;
    OK(be->ops->attention(be, &a, &err));
    std::vector<uint8_t> bytes(none.size());
    OK(be->ops->download(be, bytes.data(), KV, bytes.size(), &err));
    Vec out = O.get();
    for (size_t s = 0; s < T; s++)
        for (size_t h = 0; h < g; h++) {
            const uint8_t *at = &bytes[(((size_t)PAGES[s / P] * P + s % P) * row + div.col + h) * es];
            float f = 0;
            __half half = __float2half(0.f);
            memcpy(&f, at, t == MLA_F32 ? 4 : 0), memcpy(&half, at, t == MLA_BF16 ? 2 : 0);
            out.push_back(t == MLA_F32 ? f : t == MLA_BF16 ? __half2float(half) : (float)*at);
        }
    return out;
}
static void divisors(void)
{
    for (mla_dtype t : {MLA_F32, MLA_BF16, MLA_F8_E4M3})
        for (int form = 0; form < 4; form++)
            if (next_case()) both(std::string("attention with divisors ") + mla_dtype_name(t), form == 3 ? 8e-3 : 2e-6, [&](mla_backend *be) { return divided(be, t, form < 2, form & 1); });
    /* beyond what F16 and the log2 code hold, and within: what is stored, number by number */
    for (mla_dtype t : {MLA_F32, MLA_F16, MLA_U8})
        if (next_case()) both(std::string("divisors of any size, ") + mla_dtype_name(t), 1e-6, [&](mla_backend *be) {
            const size_t T = 60, heads = 3, d = 33, es = t == MLA_F32 ? 4 : t == MLA_F16 ? 2 : 1;
            Vec x = normals(T * heads * d, 57);
            for (size_t i = 0; i < x.size(); i++) x[i] *= powf(10.f, (float)(i / (heads * d)) / 2.f - 15.f);
            std::vector<uint8_t> bytes(T * heads * es, 0xff);
            Mem KV(be, bytes.data(), bytes.size()), X(be, x), N(be, Vec{0.5f, 1.f, 2.f});
            const mla_divisor_args a = {{KV, NULL, 16, heads, 0, 1, t, 1.f}, X, heads * d, T, heads, d, 0, N, 1e-30};
            OK(be->ops->divisor(be, &a, &err));
            OK(be->ops->download(be, bytes.data(), KV, bytes.size(), &err));
            Vec out;
            for (size_t i = 0; i < T * heads; i++) { /* of one size, so that each counts */
                float f = (float)bytes[i * es];
                __half h;
                if (t == MLA_F32) memcpy(&f, &bytes[i * 4], 4);
                else if (t == MLA_F16) memcpy(&h, &bytes[i * 2], 2), f = __half2float(h);
                out.push_back(t == MLA_U8 ? f : log2f(f));
            }
            return out;
        });
    Mem X(gpu, normals(64, 56));
    mla_divisor_args a = {{X, NULL, 16, 8, 0, 1, MLA_BF16, 1.f}, X, 8, 1, 1, 8, 0, X, 1e-6};
    cut_check(gpu->ops->divisor(gpu, &a, &err) == MLA_EUNSUPPORTED && strstr(err.msg, "BF16"), "divisors in bf16");
}


int main(int argc, char **argv)
{
    const Section section[] = {{"attention", attention}, {"few", few_tokens}, {"divisors", divisors}};
    return ops_main("cuda_attention", 62, section, argc, argv);
}
