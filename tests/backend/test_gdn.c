/* Gated delta rule (both forms) and the causal convolution, against fp64; state carried across calls; the mixer made of them. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"
#include "tensor/bound.h"
#include "tensor/fp.h"

static const struct {
    size_t T, nk, nv, dk, dv;
} SHAPES[] = {{1, 1, 1, 1, 1}, {5, 2, 4, 31, 33}, {65, 4, 8, 32, 32}, {130, 1, 3, 128, 128}, {64, 2, 2, 17, 257}, {67, 1, 2, 260, 16}};
#define NSHAPES (sizeof SHAPES / sizeof *SHAPES)

typedef struct {
    size_t T, nk, nv, dk, dv, width;
    float *qkv, *a, *b, *A_log, *dt, *state;
} gdn_data;

static gdn_data make(size_t i)
{
    gdn_data d = {SHAPES[i].T, SHAPES[i].nk, SHAPES[i].nv, SHAPES[i].dk, SHAPES[i].dv, 0, NULL, NULL, NULL, NULL, NULL, NULL};
    d.width = 2 * d.nk * d.dk + d.nv * d.dv;
    d.qkv = lab_normals(d.T * d.width, 200 + i, 1);
    d.a = lab_normals(d.T * d.nv, 210 + i, 2);
    d.b = lab_normals(d.T * d.nv, 220 + i, 2);
    d.A_log = lab_normals(d.nv, 230 + i, 1);
    d.dt = lab_normals(d.nv, 240 + i, 1);
    d.state = lab_normals(d.nv * d.dk * d.dv, 250 + i, 0.5);
    return d;
}

static void drop(gdn_data *d)
{
    mla_free(d->qkv), mla_free(d->a), mla_free(d->b), mla_free(d->A_log), mla_free(d->dt), mla_free(d->state);
}

/* Tokens t0 .. t0+n-1 into the same rows of o. */
static void run(mla_backend *be, const gdn_data *d, float *state, float *o, size_t t0, size_t n, size_t chunk)
{
    mla_err err = {0};
    mla_gdn_args g = {.o = dev(o + t0 * d->nv * d->dv), .qkv = dev(d->qkv + t0 * d->width), .a = dev(d->a + t0 * d->nv),
                      .b = dev(d->b + t0 * d->nv), .A_log = dev(d->A_log), .dt_bias = dev(d->dt), .state = dev(state), .T = n,
                      .nk = d->nk, .nv = d->nv, .dk = d->dk, .dv = d->dv, .chunk = chunk};
    ck_ok(be->ops->gdn(be, &g, &err));
}

/* The update S <- alpha (I - beta k k') S + beta k v' never grows an error (its factor has norm <= 1), so the roundings
 * of T steps add up like a sum of T terms. A step rounds every entry a few times and adds k_i times the error of a dot
 * product of dk terms with |k| = 1: together about gamma(dk + 8) max|S|. Outputs are dots with |q| <= 1. */
static void check_values(mla_backend *be, mla_isa isa)
{
    (void)isa;
    for (size_t i = 0; i < NSHAPES; i++)
        for (size_t chunk = 0; chunk <= 64; chunk += chunk == 0 ? 7 : 57) {
            gdn_data d = make(i);
            size_t n = d.T * d.nv * d.dv, ns = d.nv * d.dk * d.dv;
            float *o = lab_poisoned(n), *s = lab_copy(d.state, ns);
            double *want = mla_alloc(n, 1, sizeof *want), *sw = mla_alloc(ns, 1, sizeof *sw), top = 0;
            for (size_t e = 0; e < ns; e++) sw[e] = d.state[e];
            lab_gdn g = {d.qkv, d.a, d.b, d.A_log, d.dt, d.T, d.nk, d.nv, d.dk, d.dv};
            lab_gated_delta(&g, sw, want);
            run(be, &d, s, o, 0, d.T, chunk);
            for (size_t e = 0; e < ns; e++) top = fmax(top, fabs(sw[e]));
            double tol = mla_gamma_prob(MLA_F32, (d.dk + 8) * (d.T + 1)) * fmax(top, 1);
            ck_assert(lab_close(chunk ? "gdn chunked" : "gdn", o, want, n, tol));
            ck_assert(lab_close("gdn state", s, sw, ns, tol));
            want[n / 2] += 10 * tol; /* negative control */
            ck_assert(!lab_close("control", o, want, n, tol));
            mla_free(o), mla_free(s), mla_free(want), mla_free(sw);
            drop(&d);
        }
}

START_TEST(both_forms_match_fp64) { lab_each_isa("gdn", 2, check_values); }
END_TEST

static void check_split(mla_backend *be, mla_isa isa)
{
    mla_backend *ref = lab_open(MLA_ISA_REF, 3);
    (void)isa;
    for (size_t i = 0; i < NSHAPES; i++)
        for (size_t chunk = 0; chunk <= 64; chunk += 64) {
            gdn_data d = make(i);
            size_t n = d.T * d.nv * d.dv, ns = d.nv * d.dk * d.dv, half = chunk ? d.T / 64 * 64 : d.T / 2;
            float *o = lab_poisoned(n), *s = lab_copy(d.state, ns), *o2 = lab_poisoned(n), *s2 = lab_copy(d.state, ns);
            run(ref, &d, s, o, 0, d.T, chunk);
            if (half) run(be, &d, s2, o2, 0, half, chunk);
            if (half < d.T) run(be, &d, s2, o2, half, d.T - half, chunk);
            ck_assert(lab_same_bits("gdn split", o2, o, n));
            ck_assert(lab_same_bits("gdn split state", s2, s, ns));
            mla_free(o), mla_free(s), mla_free(o2), mla_free(s2);
            drop(&d);
        }
    mla_backend_close(ref);
}

START_TEST(splits_threads_and_variants_agree_bit_by_bit) { lab_each_isa("gdn split", 2, check_split); }
END_TEST

/* Decay to nothing and decay of one, beta near 0 and 1: nothing overflows. */
static void check_extremes(mla_backend *be, mla_isa isa)
{
    (void)isa;
    gdn_data d = make(2);
    size_t n = d.T * d.nv * d.dv, ns = d.nv * d.dk * d.dv;
    for (size_t t = 0; t < d.T * d.nv; t++) d.a[t] = t % 3 ? -60 : 90, d.b[t] = t % 2 ? 100 : -100;
    for (size_t h = 0; h < d.nv; h++) d.A_log[h] = 4;
    for (size_t chunk = 0; chunk <= 64; chunk += 64) {
        float *o = lab_poisoned(n), *s = lab_copy(d.state, ns);
        run(be, &d, s, o, 0, d.T, chunk);
        ck_assert_uint_eq(mla_count_nonfinite(o, n, NULL) + mla_count_nonfinite(s, ns, NULL), 0);
        mla_free(o), mla_free(s);
    }
    drop(&d);
}

START_TEST(extreme_gates_stay_finite) { lab_each_isa("gdn extremes", 2, check_extremes); }
END_TEST

static void check_conv(mla_backend *be, mla_isa isa)
{
    static const size_t T_OF[] = {1, 2, 3, 9, 40}, C_OF[] = {1, 31, 600, 1027}, K_OF[] = {1, 2, 4, 5};
    mla_err err = {0};
    mla_backend *ref = lab_open(MLA_ISA_REF, 1);
    (void)isa;
    for (size_t i = 0; i < 5 * 4 * 4; i++) {
        size_t T = T_OF[i % 5], C = C_OF[i / 5 % 4], K = K_OF[i / 20];
        float *x = lab_normals(T * C, 300, 1), *w = lab_normals(C * K, 301, 1), *st = lab_normals(K * C, 302, 1);
        float *y = lab_poisoned(T * C), *s1 = lab_copy(st, K * C), *y2 = lab_poisoned(T * C), *s2 = lab_copy(st, K * C);
        double *want = mla_alloc(T * C, 1, sizeof *want);
        for (size_t t = 0; t < T; t++)
            for (size_t c = 0; c < C; c++) {
                double v = 0;
                for (size_t j = 0; j < K; j++)
                    v += (double)w[c * K + j] * (t + j >= K - 1 ? x[(t + j - (K - 1)) * C + c] : st[(t + j) * C + c]);
                want[t * C + c] = v / (1 + exp(-v));
            }
        mla_conv_args a = {.y = dev(y), .x = dev(x), .w = dev(w), .state = dev(s1), .T = T, .C = C, .K = K};
        ck_ok(be->ops->conv(be, &a, &err));
        ck_assert(lab_close("conv", y, want, T * C, mla_gamma(MLA_F32, K + 8) * 30));
        for (size_t j = 0; j + 1 < K; j++)
            for (size_t c = 0; c < C; c++)
                ck_assert(s1[j * C + c] == (T + j >= K - 1 ? x[(T + j - (K - 1)) * C + c] : st[(T + j) * C + c]));
        for (size_t t = 0; t < T; t++) {
            a = (mla_conv_args){.y = dev(y2 + t * C), .x = dev(x + t * C), .w = dev(w), .state = dev(s2), .T = 1, .C = C, .K = K};
            ck_ok(ref->ops->conv(ref, &a, &err));
        }
        ck_assert(lab_same_bits("conv by steps", y2, y, T * C));
        ck_assert(K == 1 || lab_same_bits("conv state by steps", s2, s1, (K - 1) * C));
        mla_free(x), mla_free(w), mla_free(st), mla_free(y), mla_free(s1), mla_free(y2), mla_free(s2), mla_free(want);
    }
    mla_backend_close(ref);
}

START_TEST(convolution_with_state) { lab_each_isa("conv", 2, check_conv); }
END_TEST

/* The mixer is its steps, sequence by sequence. */
static void check_mixer(mla_backend *be, mla_isa isa)
{
    enum { D = 10, NK = 1, NV = 2, DK = 8, DV = 6, V = NV * DV, C = 2 * NK * DK + V, K = 3, N = 2, T = 4 };
    static const size_t out[5] = {C, V, NV, NV, D}, from[N + 1] = {0, 3, T};
    const mla_precision p = MLA_PREC_F32;
    mla_err err = {0};
    mla_weight *w[5];
    float *m[5], *y[2][4], *x = lab_normals((size_t)T * D, 400, 1), *conv_w = lab_normals((size_t)C * K, 401, 1), *head = lab_normals(NV, 402, 1), *gain = lab_normals(DV, 403, 1);
    float *mixed[2], *o[2], *r[2], *conv[2], *state[2];
    (void)isa;
    for (size_t i = 0; i < 5; i++) w[i] = lab_weight(be, m[i] = lab_normals(out[i] * (i < 4 ? D : V), 404 + i, 0.3), out[i], i < 4 ? D : V, p);
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < 4; i++) y[k][i] = lab_poisoned(T * out[i]);
        mixed[k] = lab_poisoned((size_t)T * C), o[k] = lab_poisoned((size_t)T * V), r[k] = lab_normals((size_t)T * D, 410, 1);
        conv[k] = lab_normals((size_t)N * (K - 1) * C, 411, 1), state[k] = lab_normals((size_t)N * NV * DK * DV, 412, 1);
    }
    mla_delta_seq seq[N];
    mla_linear_job in[4];
    for (size_t i = 0; i < N; i++) seq[i] = (mla_delta_seq){from[i + 1] - from[i], dev(conv[1] + i * (K - 1) * C), dev(state[1] + i * NV * DK * DV)};
    for (size_t i = 0; i < 4; i++) {
        mla_linear_args a = {.y = dev(y[0][i]), .ldy = out[i], .x = dev(x), .ldx = D, .T = T};
        ck_ok(be->ops->linear(be, w[i], &a, &err));
        a.y = dev(y[1][i]);
        in[i] = (mla_linear_job){w[i], a};
    }
    for (size_t i = 0; i < N; i++) {
        size_t t = from[i], n = from[i + 1] - t;
        mla_conv_args cv = {.y = dev(mixed[0] + t * C), .x = dev(y[0][0] + t * C), .w = dev(conv_w), .state = dev(conv[0] + i * (K - 1) * C), .T = n, .C = C, .K = K};
        ck_ok(be->ops->conv(be, &cv, &err));
        mla_gdn_args g = {.o = dev(o[0] + t * V), .qkv = cv.y, .a = dev(y[0][3] + t * NV), .b = dev(y[0][2] + t * NV), .A_log = dev(head), .dt_bias = dev(head),
                          .state = dev(state[0] + i * NV * DK * DV), .T = n, .nk = NK, .nv = NV, .dk = DK, .dv = DV, .chunk = n > 1 ? 2 : 0};
        ck_ok(be->ops->gdn(be, &g, &err));
    }
    mla_gated_norm_args gn = {.y = dev(y[0][0]), .x = dev(o[0]), .z = dev(y[0][1]), .gain = dev(gain), .rows = (size_t)T * NV, .d = DV, .eps = 1e-6};
    ck_ok(be->ops->gated_norm(be, &gn, &err));
    mla_linear_job last = {w[4], {.y = dev(r[0]), .ldy = D, .x = dev(y[0][0]), .ldx = V, .T = T, .accumulate = true}};
    ck_ok(be->ops->linear(be, w[4], &last.a, &err));
    last.a.y = dev(r[1]), last.a.x = dev(y[1][0]);
    mla_delta_args a = {.in = in, .out = &last, .mixed = dev(mixed[1]), .o = dev(o[1]), .conv_w = dev(conv_w), .A_log = dev(head), .dt_bias = dev(head), .gain = dev(gain),
                        .eps = 1e-6, .seq = seq, .n = N, .T = T, .nk = NK, .nv = NV, .dk = DK, .dv = DV, .K = K, .chunk = 2};
    ck_ok(be->ops->delta(be, NULL, &a, &err));
    ck_assert(lab_same_bits("mixer", r[1], r[0], (size_t)T * D));
    ck_assert(lab_same_bits("mixer: inputs kept", conv[1], conv[0], (size_t)N * (K - 1) * C));
    ck_assert(lab_same_bits("mixer: state", state[1], state[0], (size_t)N * NV * DK * DV));
    for (size_t i = 0; i < 5; i++) be->ops->weight_free(be, w[i]), mla_free(m[i]);
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < 4; i++) mla_free(y[k][i]);
        mla_free(mixed[k]), mla_free(o[k]), mla_free(r[k]), mla_free(conv[k]), mla_free(state[k]);
    }
    mla_free(x), mla_free(conv_w), mla_free(head), mla_free(gain);
}

START_TEST(the_mixer_is_its_steps) { lab_each_isa("delta mixer", 2, check_mixer); }
END_TEST

Suite *suite_gdn(void)
{
    Suite *s = suite_create("gdn");
    TCase *t = tcase_create("gdn");
    tcase_add_test(t, both_forms_match_fp64);
    tcase_add_test(t, splits_threads_and_variants_agree_bit_by_bit);
    tcase_add_test(t, extreme_gates_stay_finite);
    tcase_add_test(t, convolution_with_state);
    tcase_add_test(t, the_mixer_is_its_steps);
    suite_add_tcase(s, t);
    return s;
}
