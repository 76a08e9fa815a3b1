/* Every backend operation on the GPU against the CPU reference backend: the same closure runs on both and returns what
 * it computed; odd sizes, padded rows with poison between them, all cache types, refusals. */
#include <functional>
#include <string>

#include "be.h"

static mla_backend *cpu, *gpu;

static void append(Vec &a, const Vec &b) { a.insert(a.end(), b.begin(), b.end()); }

static const float POISON = NAN;

/* tol 0: the same bits (poison included); otherwise relative error, non-finite only where both are (poison). */
static void both(const std::string &what, double tol, const std::function<Vec(mla_backend *)> &f)
{
    static int number;
    if (!cut_kept(number++)) return;
    const Vec want = f(cpu), got = f(gpu);
    bool same = want.size() == got.size();
    double d2 = 0, w2 = 0;
    size_t odd = 0, finite = 0;
    for (size_t i = 0; same && i < want.size(); i++) {
        if (isfinite(want[i]) != isfinite(got[i])) odd++;
        else if (isfinite(want[i])) d2 += pow((double)got[i] - want[i], 2), w2 += pow((double)want[i], 2), finite++;
    }
    const double rel = w2 > 0 ? sqrt(d2 / w2) : sqrt(d2);
    const bool ok = same && !odd && finite && rel <= tol;
    if (!ok || getenv("MLA_TEST_VERBOSE"))
        fprintf(stderr, "  %-60s %zu values, %zu finite on one side only, relative error %.2e of %.0e\n", what.c_str(), want.size(), odd, rel, tol);
    cut_check(ok, what.c_str());
}
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
    const size_t shapes[][3] = {{1, 1, 1}, {1, 300, 500}, {3, 255, 33}, {16, 513, 70}, {17, 256, 64}, {65, 257, 100}, {130, 1000, 77}, {200, 64, 256}, {1, 512, 37}, {2, 264, 9}, {3, 1024, 130}, {7, 5120, 65}, {8, 96, 33}};
    for (auto &s : shapes)
        for (int mode = 0; mode < 4; mode++)
            for (mla_precision p : {MLA_PREC_F32, MLA_PREC_BF16}) {
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
    for (mla_precision p : {MLA_PREC_F32, MLA_PREC_BF16})
        for (size_t T : {1, 3, 8, 9, 70})
            for (size_t in : {96, 100, 5120})
                for (bool normed : {false, true}) compound(p, T, in, normed);
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

#include "stored.h"

static void rows(void)
{
    for (size_t d : {1, 31, 128, 1000, 5120}) {
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
        both("elementwise", 1e-6, [&](mla_backend *be) {
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
    for (size_t rot : {2, 64, 128})
        both("rope", 1e-6, [&](mla_backend *be) {
            const size_t T = 3, heads = 4, stride = 130, ld = heads * stride + 5;
            Vec c(T * rot / 2), s(T * rot / 2);
            for (size_t i = 0; i < c.size(); i++) c[i] = cosf((float)i), s[i] = sinf((float)i);
            Mem X(be, normals(T * ld, 9)), C(be, c), S(be, s);
            mla_rope_args a = {X, ld, T, heads, stride, rot, C, S, NULL};
            OK(be->ops->rope(be, &a, &err));
            return X.get();
        });
    for (size_t n : {1, 1000})
        both("range", 1e-12, [&](mla_backend *be) {
            Vec x = normals(n * 40, 10);
            if (n > 1) x[77] = NAN, x[4000] = INFINITY, x[39] = NAN; /* column 39 is padding */
            Mem X(be, x);
            mla_range r;
            OK(be->ops->range(be, X, n, 37, 40, &r, &err));
            return Vec{(float)r.amax, (float)r.sum2, (float)r.n, (float)r.nonfinite};
        });
}

static const std::vector<int32_t> PAGES = {7, 2, 9, 0, 4, 11, 1, 3, 10, 5};

static size_t elem(mla_dtype t) { return t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1; }

static void cache(void)
{
    for (mla_dtype t : {MLA_F32, MLA_BF16, MLA_F8_E4M3})
        for (int paged = 0; paged < 2; paged++)
            both(std::string("kv write and read ") + mla_dtype_name(t), 0, [&](mla_backend *be) {
                const size_t P = 16, row = 50, width = 33, T = 37, slots = 12 * P;
                Vec x = normals(T * (width + 1), 11, 200.f);
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
        both("attention with bf16 products", 8e-3, [&](mla_backend *be) { return attend(be, s, 0, s.T); });
        if (s.T < 100) continue;
        Vec whole = attend(gpu, s, 0, s.T), cut = attend(gpu, s, 0, 77);
        append(cut, attend(gpu, s, 77, s.T - 77));
        cut_check(!memcmp(whole.data(), cut.data(), whole.size() * 4), "attention with bf16 products depends on how the prompt is cut");
    }
    for (const AttnCase &s : cases) {
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
            both(std::string("attention with divisors ") + mla_dtype_name(t), form == 3 ? 8e-3 : 2e-6, [&](mla_backend *be) { return divided(be, t, form < 2, form & 1); });
    Mem X(gpu, normals(64, 56));
    mla_divisor_args a = {{X, NULL, 16, 8, 0, 1, MLA_BF16, 1.f}, X, 8, 1, 1, 8, 0, X, 1e-6};
    cut_check(gpu->ops->divisor(gpu, &a, &err) == MLA_EUNSUPPORTED && strstr(err.msg, "BF16"), "divisors in bf16");
}

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
static void delta_net(void)
{
    for (size_t K : {1, 4})
        for (size_t T : {1, 2, 3, 50})
            both("convolution", 1e-6, [&](mla_backend *be) {
                const size_t C = 333;
                Mem X(be, normals(T * C, 15)), Y(be, Vec(T * C, POISON)), W(be, normals(C * K, 16)), S(be, normals(K * C, 17));
                mla_conv_args a = {Y, X, W, S, T, C, K};
                OK(be->ops->conv(be, &a, &err));
                Vec r = Y.get();
                append(r, S.get());
                return r;
            });
    const size_t shapes[][5] = {{1, 1, 1, 8, 8}, {1, 2, 6, 128, 128}, {4, 4, 4, 128, 128}, {5, 2, 6, 33, 40}, {70, 2, 4, 128, 128}, {3, 1, 3, 200, 70}, {64, 4, 4, 64, 32}};
    for (auto &s : shapes)
        for (size_t chunk : {0, 16})
            both(chunk ? "delta net, chunked" : "delta net", 2e-5, [&](mla_backend *be) {
                const size_t T = s[0], nk = s[1], nv = s[2], dk = s[3], dv = s[4];
                Mem O(be, Vec(T * nv * dv, POISON)), X(be, normals(T * (2 * nk * dk + nv * dv), 18)), A(be, normals(T * nv, 19)), B(be, normals(T * nv, 20)),
                    L(be, normals(nv, 21)), D(be, normals(nv, 22)), S(be, normals(nv * dk * dv, 23));
                mla_gdn_args a = {O, X, A, B, L, D, S, T, nk, nv, dk, dv, chunk};
                OK(be->ops->gdn(be, &a, &err));
                Vec r = O.get();
                append(r, S.get());
                return r;
            });
    /* The mixer as a whole. As single steps its bits are theirs; with bf16 products an output passes at most 8 roundings of 2^-9 in
     * the chunks (cuda/gdn_chunk.cuh), and its values and gates two each before and beside them: 12 in all. */
    const std::vector<std::vector<size_t>> lengths = {{1}, {8}, {9}, {5, 4}, {64}, {130}, {70, 1, 64, 200}, {128, 128}, std::vector<size_t>(70, 3)};
    for (auto &l : lengths)
        for (int form = 0; form < 4; form++) {
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

static Vec moments_of(mla_backend *be, size_t T, size_t n, int mode, bool split = false)
{
    std::vector<double> acc(n * n, 0.25), sum(n, 0.5), w(T), shift(n);
    for (size_t i = 0; i < T; i++) w[i] = 0.5 + 0.25 * cut_normal(24, i);
    for (size_t i = 0; i < n; i++) shift[i] = cut_normal(25, i);
    Mem A(be, acc.data(), n * n * 8), S(be, sum.data(), n * 8), W(be, w.data(), T * 8), F(be, shift.data(), n * 8), X(be, normals(T * (n + 2), 26));
    mla_gram_args a = {mode == 3 ? NULL : (mla_mem *)A, mode == 2 ? NULL : (mla_mem *)S, X, n + 2, T, n, mode & 1 ? (mla_mem *)W : NULL, mode ? (mla_mem *)F : NULL, split};
    OK(be->ops->gram(be, &a, &err));
    OK(be->ops->download(be, acc.data(), A, n * n * 8, &err));
    OK(be->ops->download(be, sum.data(), S, n * 8, &err));
    Vec r;
    for (std::vector<double> *v : {&acc, &sum})
        for (double x : *v) {
            r.push_back((float)x);
            if (!split) r.push_back((float)((x - (float)x) * 1e7)); /* both halves of the fp64 value */
        }
    return r;
}
static void moments(void)
{
    const size_t shapes[][2] = {{1, 1}, {3, 50}, {300, 33}, {5000, 70}};
    for (auto &s : shapes)
        for (int mode = 0; mode < 4; mode++) {
            both("second moments", 2e-6, [&](mla_backend *be) { return moments_of(be, s[0], s[1], mode); });
            const Vec a = moments_of(gpu, s[0], s[1], mode), b = moments_of(gpu, s[0], s[1], mode);
            cut_check(!memcmp(a.data(), b.data(), a.size() * 4), "second moments differ between two runs");
            /* hi + lo leaves 2^-18 of a factor and lo lo' is left out, 3 * 2^-18 in all; fp32 sums of 512 tokens add less */
            both("second moments of split numbers", 2 * 3.0 / (1 << 18), [&](mla_backend *be) { return moments_of(be, s[0], s[1], mode, true); });
            const Vec c = moments_of(gpu, s[0], s[1], mode, true), d = moments_of(gpu, s[0], s[1], mode, true);
            cut_check(!memcmp(c.data(), d.data(), c.size() * 4), "second moments of split numbers differ between two runs");
        }
}

static double change_of(mla_backend *be, size_t T, size_t H, size_t d, bool gated)
{
    const size_t n = T * H * d, gh = 2 * d + 1, ld = H * gh + 3;
    Vec gate = normals(T * ld, 43, 3.f);
    for (size_t i = 0; i < gate.size(); i++)
        if (i % ld >= H * gh || i % ld % gh >= d) gate[i] = POISON;
    double sum = 0.25;
    Mem A(be, normals(n, 41)), B(be, normals(n, 42)), G(be, gate), S(be, &sum, sizeof sum);
    const mla_change_args a = {A, B, gated ? (mla_mem *)G : NULL, ld, gh, T, H, d, S};
    OK(be->ops->gated_change(be, &a, &err));
    OK(be->ops->download(be, &sum, S, sizeof sum, &err));
    return sum;
}
/* Positive terms: both sides round each at most 12 times (exp of the device: 1 ulp) and add it at most n times. */
static void changes(void)
{
    const size_t shapes[][3] = {{1, 1, 1}, {3, 5, 33}, {97, 3, 100}, {500, 24, 256}};
    for (auto &s : shapes)
        for (bool gated : {false, true}) {
            const double want = change_of(cpu, s[0], s[1], s[2], gated), got = change_of(gpu, s[0], s[1], s[2], gated), again = change_of(gpu, s[0], s[1], s[2], gated);
            cut_check(fabs(got - want) <= 2 * ((double)(s[0] * s[1] * s[2]) + 12) * 0x1p-53 * want, "change of an attention output");
            cut_check(got == again, "changes of two runs");
        }
}

static void eigenproblem(void)
{
    for (size_t n : {1, 2, 17, 100, 300})
        for (double size : {1.0, 1e-200, 1e200}) {
            std::vector<double> a(n * n), w1(n), w2(n);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j <= i; j++) a[i * n + j] = a[j * n + i] = size * (cut_normal(27, i * n + j) + (i == j ? (double)i : 0));
            std::vector<double> v1 = a, v2 = a;
            OK(cpu->ops->eigh(cpu, v1.data(), w1.data(), n, &err));
            OK(gpu->ops->eigh(gpu, v2.data(), w2.data(), n, &err));
            double worst = 0, res = 0, top = 0;
            for (size_t i = 0; i < n; i++) {
                worst = fmax(worst, fabs(w1[i] - w2[i])), top = fmax(top, fabs(w1[i]));
                for (size_t r = 0; r < n; r++) {
                    double s = 0;
                    for (size_t k = 0; k < n; k++) s += a[r * n + k] / size * v2[i * n + k];
                    res = fmax(res, fabs(s - w2[i] / size * v2[i * n + r]));
                }
            }
            cut_check(worst <= 1e-13 * n * top && res <= 1e-13 * n * (top / size), "eigenvalues and vectors");
        }
    std::vector<double> bad = {1, NAN, NAN, 2}, w(2);
    cut_check(gpu->ops->eigh(gpu, bad.data(), w.data(), 2, &err) == MLA_EINVAL, "eigenproblem with NaN");
}

static void refusals(void)
{
    mla_backend *be = NULL;
    mla_backend_opts o = {"cuda:900", 1, MLA_ISA_AUTO};
    cut_check(mla_backend_open(&be, &o, &err) == MLA_EUNSUPPORTED && !be, "a device that is not there");
    o.device = "cuda:x";
    cut_check(mla_backend_open(&be, &o, &err) == MLA_EINVAL && !be, "a device name that is none");
    mla_mem *p = NULL;
    cut_check(gpu->ops->alloc(gpu, &p, (size_t)1 << 50, &err) == MLA_ENOMEM && !p, "a petabyte of memory");
    const Vec x = normals(8, 28);
    Mem X(gpu, x);
    cut_check(X.get() == x, "works after a failed allocation");
    mla_rope_args r = {X, 8, 1, 1, 8, 3, X, X, NULL};
    cut_check(gpu->ops->rope(gpu, &r, &err) == MLA_EINVAL, "odd rotary width");
    mla_gdn_args g = {X, X, X, X, X, X, X, 1, 2, 3, 4, 4, 0};
    cut_check(gpu->ops->gdn(gpu, &g, &err) == MLA_EINVAL, "heads that do not divide");
}

/* Arguments: names of sections, all without. */
int main(int argc, char **argv)
{
    if (!cut_has_gpu()) return cut_skip_all("cuda_ops", 357);
    mla_backend_opts oc = {"cpu", 4, MLA_ISA_REF}, og = {"cuda:0", 0, MLA_ISA_AUTO};
    OK(mla_backend_open(&cpu, &oc, &err));
    OK(mla_backend_open(&gpu, &og, &err));
    printf("%s\n", gpu->ops->describe(gpu));
    const struct {
        const char *name;
        void (*run)(void);
    } SECTION[] = {{"linear", linear}, {"stored", stored_weights}, {"rows", rows}, {"cache", cache}, {"attention", attention}, {"few", few_tokens}, {"divisors", divisors},
                   {"delta", delta_net}, {"moments", moments}, {"changes", changes}, {"eigh", eigenproblem}, {"refusals", refusals}};
    for (auto &s : SECTION) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], s.name);
        if (wanted) s.run();
    }
    OK(gpu->ops->sync(gpu, &err));
    mla_backend_close(gpu);
    mla_backend_close(cpu);
    return cut_end("cuda_ops");
}
