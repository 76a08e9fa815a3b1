/* Attention-weighted moments of one row on the GPU (cuda/attn_moments.cu) against their definition (retrofit/stats/stats.h) in fp64: with and
 * without a gate, factors of tokens and queries, keys that turn; odd sizes; added to what is there; the same bits in two runs.
 *
 * Tolerance, of an array's norm: fp32 products over d (four of them on the way to a weight, squared) and over T, u (n)^1/2 each for n
 * terms, 8 for the tail as in tensor/bound.h. Where keys are drawn by their weights, fp64 and fp32 may take neighbours if the drawn number
 * is within that tolerance of where one key's share ends: each such draw may move its term, from one matrix of its size to another. */
#include "ops.h"

struct Shape {
    size_t T, H, G, d, dk, rot; /* rot: keys turn */
    bool gated, factors;
};
struct Inputs {
    Vec q, q_rot, k_rot, v, o, gate, inv2, gain, R, cos, sin;
};
enum { M, KAPPA, GATE, PLAIN, TURN, WSUM, W, ARRAYS };
static const char *const NAME[ARRAYS] = {"query metric", "head overlaps", "gate", "plain query metric", "turns", "sum of weights", "weights"};
struct Moments {
    std::vector<double> a[ARRAYS];
    double may_move[ARRAYS] = {}; /* by draws that are too near to call */
};
static const float SCALE = 0.3f, ROPE_GAIN = 1.25f;

static Moments start(const Shape &s)
{
    Moments m;
    const size_t n[ARRAYS] = {s.G * s.dk * s.dk, s.H * s.H, s.gated ? s.H * s.d * s.H * s.d : 0, s.rot ? s.H * s.dk * s.dk : 0, s.H * (s.rot / 2) * 3, 1, s.T};
    for (int k = 0; k < ARRAYS; k++) m.a[k].assign(n[k], k == W ? NAN : 0.25);
    return m;
}
static Inputs draw(const Shape &s)
{
    Inputs x = {normals(s.T * s.H * s.d, 1), normals(s.T * s.H * s.d, 2), normals(s.T * s.G * s.d, 3), normals(s.T * s.G * s.d, 4), normals(s.T * s.H * s.d, 5, 0.5f),
                normals(s.T * s.H * 2 * s.d, 6), normals(s.T * s.G, 7), normals(s.dk, 8), normals(s.H * s.d * s.d, 9, 1.f / sqrtf((float)s.d)), Vec(s.T * (s.rot / 2)), Vec(s.T * (s.rot / 2))};
    for (float &f : x.inv2) f = 0.5f + fabsf(f);
    for (size_t i = 0; i < x.cos.size(); i++) {
        const double angle = (double)(i / (s.rot / 2)) * pow(100.0, -(double)(i % (s.rot / 2)) / (double)(s.rot / 2));
        x.cos[i] = (float)std::cos(angle), x.sin[i] = (float)std::sin(angle);
    }
    return x;
}

static Moments device(const Shape &s, const Inputs &x)
{
    Moments m = start(s);
    Mem q(gpu, x.q), q_rot(gpu, x.q_rot), k_rot(gpu, x.k_rot), v(gpu, x.v), o(gpu, x.o), gate(gpu, x.gate), inv2(gpu, x.inv2), gain(gpu, x.gain), R(gpu, x.R), c(gpu, x.cos), sn(gpu, x.sin);
    mla_mem *at[ARRAYS];
    for (int k = 0; k < ARRAYS; k++) {
        OK(gpu->ops->alloc(gpu, &at[k], m.a[k].size() * 8, &err));
        OK(gpu->ops->upload(gpu, at[k], m.a[k].data(), m.a[k].size() * 8, &err));
    }
    mla_moments_args a = {};
    a.T = s.T, a.H = s.H, a.G = s.G, a.d = s.d, a.dk = s.dk, a.rot = s.rot;
    a.q = q, a.q_rot = q_rot, a.k_rot = k_rot, a.v = v, a.o = o, a.R = R, a.cos = c, a.sin = sn, a.attn_scale = SCALE, a.rope_gain = ROPE_GAIN;
    if (s.gated) a.gate = gate, a.gate_ld = s.H * 2 * s.d, a.gate_h = 2 * s.d, a.GG = at[GATE], a.gate_blocks = 1, a.gate_dim = s.H * s.d;
    if (s.factors) a.inv2 = inv2, a.gain = gain;
    a.M = at[M], a.kappa = at[KAPPA], a.wsum = at[WSUM], a.w = at[W];
    if (s.rot) a.Q = at[PLAIN], a.turn = at[TURN];
    OK(gpu->ops->moments(gpu, &a, &err));
    for (int k = 0; k < ARRAYS; k++) {
        OK(gpu->ops->download(gpu, m.a[k].data(), at[k], m.a[k].size() * 8, &err));
        gpu->ops->free(gpu, at[k]);
    }
    return m;
}

static void add_square(double *to, const std::vector<double> &x, double by)
{
    for (size_t i = 0; i < x.size(); i++)
        for (size_t j = 0; j < x.size(); j++) to[i * x.size() + j] += by * x[i] * x[j];
}
/* Query t of head h in the frames of the keys drawn for it; c (t + 1): the keys' weights. */
static void drawn(Moments &m, const Shape &s, const Inputs &x, size_t h, size_t t, const std::vector<double> &c, double total, double tol)
{
    const size_t half = s.rot / 2, d = s.d;
    const float *q = &x.q_rot[(t * s.H + h) * d], *plain = &x.q[(t * s.H + h) * d];
    for (int k = 0; k < 2; k++) {
        const double want = total * (k + fmod((double)t * 0.61803398874989485, 1.0)) / 2;
        double run = c[0], nearest = t ? fabs(run - want) : INFINITY, size = 0, pairs = 0;
        size_t key = 0;
        for (size_t i = 0; i + 1 < t; i++) nearest = fmin(nearest, fabs((run += c[i + 1]) - want));
        for (run = c[0]; key < t && run < want; run += c[++key]) {}
        std::vector<double> z(d);
        for (size_t i = 0; i < d; i++) z[i] = q[i], size += (double)q[i] * q[i];
        for (size_t i = 0; i < half; i++) {
            const double C = x.cos[key * half + i], S = x.sin[key * half + i], c0 = x.cos[t * half + i], s0 = x.sin[t * half + i],
                         e = total / 2 * ((double)plain[i] * plain[i] + (double)plain[i + half] * plain[i + half]);
            z[i] = q[i] * C + q[i + half] * S, z[i + half] = q[i + half] * C - q[i] * S;
            double *turn = &m.a[TURN][(h * half + i) * 3];
            turn[0] += e * (C * c0 + S * s0), turn[1] += e * (S * c0 - C * s0), turn[2] += e;
            pairs += e * e;
        }
        const double by = total / 2 * ROPE_GAIN * ROPE_GAIN / (double)d;
        add_square(&m.a[M][h / (s.H / s.G) * d * d], z, by);
        if (nearest <= tol * total) m.may_move[M] += sqrt(2) * by * size, m.may_move[TURN] += 2 * sqrt(pairs);
    }
}
static Moments reference(const Shape &s, const Inputs &x, double tol)
{
    Moments m = start(s);
    const size_t T = s.T, H = s.H, d = s.d, per = H / s.G;
    std::vector<double> P(H * T * T), w(T);
    for (size_t h = 0; h < H; h++)
        for (size_t t = 0; t < T; t++) {
            double *p = &P[(h * T + t) * T], top = -INFINITY, sum = 0, total = 0;
            for (size_t k = 0; k <= t; k++) {
                for (size_t i = 0; i < d; i++) p[k] += (double)SCALE * x.q_rot[(t * H + h) * d + i] * x.k_rot[(k * s.G + h / per) * d + i];
                top = fmax(top, p[k]);
            }
            for (size_t k = 0; k <= t; k++) sum += p[k] = exp(p[k] - top);
            std::vector<double> c(t + 1);
            for (size_t k = 0; k <= t; k++) {
                double e = 0;
                p[k] /= sum, w[k] += p[k] * p[k];
                for (size_t j = 0; j < d; j++) {
                    double y = 0;
                    for (size_t i = 0; i < d; i++) y += ((double)x.v[(k * s.G + h / per) * d + i] - x.o[(t * H + h) * d + i]) * x.R[(h * d + i) * d + j];
                    e += y * y;
                }
                total += c[k] = p[k] * p[k] * e * (s.factors ? x.inv2[k * s.G + h / per] : 1.0);
            }
            std::vector<double> q(s.dk);
            for (size_t i = 0; i < s.dk; i++) q[i] = (double)x.q[(t * H + h) * d + d - s.dk + i] * (s.factors ? x.gain[i] : 1.0);
            add_square(s.rot ? &m.a[PLAIN][h * s.dk * s.dk] : &m.a[M][h / per * s.dk * s.dk], q, total / (double)d);
            if (s.rot) drawn(m, s, x, h, t, c, total, tol);
        }
    for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < H; i++)
            for (size_t n = 0; n < T * T; n++) m.a[KAPPA][h * H + i] += P[h * T * T + n] * P[i * T * T + n];
    for (size_t t = 0; t < T; t++) {
        std::vector<double> g(H * d);
        for (size_t i = 0; i < H * d; i++) g[i] = 1 / (1 + exp(-(double)x.gate[t * H * 2 * d + i / d * 2 * d + i % d]));
        if (s.gated) add_square(m.a[GATE].data(), g, 1);
        m.a[W][t] = w[t], m.a[WSUM][0] += w[t];
    }
    return m;
}

static void moments(void)
{
    const Shape shapes[] = {{1, 1, 1, 8, 8, 0, false, false}, {50, 6, 2, 33, 20, 0, true, true}, {97, 4, 4, 16, 12, 0, false, true},
                            {50, 6, 2, 32, 32, 8, true, false}, {131, 4, 1, 18, 18, 18, false, false}};
    for (const Shape &s : shapes) {
        if (!next_case()) continue;
        const Inputs x = draw(s);
        const double tol = 8 * (4 * sqrt((double)s.d) + sqrt((double)s.T)) * 0x1p-24;
        const Moments got = device(s, x), again = device(s, x), want = reference(s, x, tol);
        for (int k = 0; k < ARRAYS; k++) {
            double d2 = 0, w2 = 0;
            for (size_t i = 0; i < got.a[k].size(); i++) d2 += pow(got.a[k][i] - want.a[k][i], 2), w2 += pow(want.a[k][i], 2);
            const std::string what = std::string(NAME[k]) + " of " + std::to_string(s.T) + " tokens, " + std::to_string(s.dk) + " of " + std::to_string(s.d) + " dims";
            if (!(sqrt(d2) <= tol * sqrt(w2) + want.may_move[k]) || getenv("MLA_TEST_VERBOSE"))
                fprintf(stderr, "  %s: off by %.2e of %.2e, draws may move %.2e\n", what.c_str(), sqrt(d2 / w2), tol, want.may_move[k] / sqrt(w2));
            cut_check(sqrt(d2) <= tol * sqrt(w2) + want.may_move[k], what.c_str());
            cut_check(!memcmp(got.a[k].data(), again.a[k].data(), got.a[k].size() * 8), (what + ": two runs differ").c_str());
        }
    }
}

int main(int argc, char **argv)
{
    const Section section[] = {{"moments", moments}};
    return ops_main("cuda_weighted", 70, section, argc, argv);
}
