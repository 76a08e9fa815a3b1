/* Row-wise ops against fp64, the portable variant's bits in every other variant, edges untouched, and the exponential
 * over its whole range. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "lab.h"
#include "tensor/bound.h"
#include "tensor/fp.h"

static const size_t WIDTHS[] = {1, 3, 15, 16, 31, 33, 64, 257, 1000, 4099};
#define NWIDTHS (sizeof WIDTHS / sizeof *WIDTHS)
#define U32 0x1p-24

/* Distance in units of the last place of want, subnormals included. */
static double ulps(float got, double want)
{
    if (isinf(got) && want >= 0x1.ffffffp127) return 0;
    int e = want == 0 ? -126 : ilogb(want);
    return fabs(got - want) / ldexp(1, (e < -126 ? -126 : e) - 23);
}

static void check_exp(mla_backend *be, mla_isa isa)
{
    enum { N = 1 << 10 };
    mla_cpu_kern k, ref;
    float x[N], y[N], r[N];
    double worst = 0;
    (void)be;
    ck_assert(mla_cpu_pick(isa, &k) && mla_cpu_pick(MLA_ISA_REF, &ref));
    /* every 8191st float of [-110, 92], by bits, so that all magnitudes appear */
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t bits = 0, top = mla_f32_bits(sign ? 110.0f : 92.0f); bits <= top;) {
            size_t n = 0;
            for (; n < N && bits <= top; n++, bits += 8191) x[n] = mla_bits_f32(bits | sign << 31);
            k.exp(y, x, n);
            ref.exp(r, x, n);
            ck_assert(!memcmp(y, r, n * sizeof *y));
            for (size_t i = 0; i < n; i++) worst = fmax(worst, ulps(y[i], exp((double)x[i])));
        }
    ck_assert_msg(worst <= 1.10, "exp: %.3f ulp", worst); /* 1.0954 over all of them */
    const float special[] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 88.8f, -1000, 1000};
    k.exp(y, special, 8);
    ck_assert(isnan(y[0]) && y[1] == INFINITY && y[2] == 0 && y[3] == 1 && y[4] == 1 && y[5] == INFINITY && y[6] == 0 && y[7] == INFINITY);
}

START_TEST(exp_over_its_range) { lab_each_isa("exp", 1, check_exp); }
END_TEST

static void check_norms(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    mla_backend *ref = lab_open(MLA_ISA_REF, 3);
    (void)isa;
    for (size_t i = 0; i < NWIDTHS; i++) {
        size_t d = WIDTHS[i], rows = 1 + 9000 / d % 40, ld = d + 3;
        float *x = lab_normals(rows * ld, i, 2), *gain = lab_normals(d, 90, 1), *y = lab_poisoned(rows * ld), *y2 = lab_poisoned(rows * ld);
        float *z = lab_normals(rows * d, 91, 3), *g = lab_poisoned(rows * d), *g2 = lab_poisoned(rows * d), *xd = lab_normals(rows * d, 92, 2);
        mla_norm_args a = {.y = dev(y), .ldy = ld, .x = dev(x), .ldx = ld, .rows = rows, .d = d, .gain = dev(gain), .eps = 1e-6};
        mla_gated_norm_args ga = {.y = dev(g), .x = dev(xd), .z = dev(z), .gain = dev(gain), .rows = rows, .d = d, .eps = 1e-6};
        ck_ok(be->ops->rmsnorm(be, &a, &err));
        ck_ok(be->ops->gated_norm(be, &ga, &err));
        a.y = dev(y2), ga.y = dev(g2);
        ck_ok(ref->ops->rmsnorm(ref, &a, &err));
        ck_ok(ref->ops->gated_norm(ref, &ga, &err));
        ck_assert(lab_same_bits("gated norm", g, g2, rows * d));
        float *in = lab_normals(rows * d, 92, 2);
        ga.x = ga.y = dev(in);
        ck_ok(be->ops->gated_norm(be, &ga, &err));
        ck_assert(lab_same_bits("gated norm in place", in, g2, rows * d));
        mla_free(in);
        for (size_t r = 0; r < rows; r++) {
            double s = 0, sd = 0;
            ck_assert(lab_same_bits("rmsnorm", y + r * ld, y2 + r * ld, d));
            for (size_t e = 0; e < d; e++) s += (double)x[r * ld + e] * x[r * ld + e], sd += (double)xd[r * d + e] * xd[r * d + e];
            for (size_t e = 0; e < d; e++) {
                double want = x[r * ld + e] / sqrt(s / (double)d + 1e-6) * gain[e], zz = z[r * d + e];
                /* the sum of squares is off by gamma_d relative at most, its root by half of that; three more roundings */
                double rel = mla_gamma(MLA_F32, d) / 2 + 4 * U32;
                ck_assert_msg(fabs(y[r * ld + e] - want) <= rel * fabs(want), "rmsnorm d %zu: %g, want %g", d, (double)y[r * ld + e], want);
                want = xd[r * d + e] / sqrt(sd / (double)d + 1e-6) * gain[e] * zz / (1 + exp(-zz));
                ck_assert(fabs(g[r * d + e] - want) <= (rel + 8 * U32) * fabs(want) + 1e-37);
            }
            for (size_t e = d; e < ld; e++) ck_assert(isnan(y[r * ld + e]));
        }
        mla_free(x), mla_free(gain), mla_free(y), mla_free(y2), mla_free(z), mla_free(g), mla_free(g2), mla_free(xd);
    }
    mla_backend_close(ref);
}

START_TEST(norms) { lab_each_isa("norms", 2, check_norms); }
END_TEST

static void check_activations(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    mla_backend *ref = lab_open(MLA_ISA_REF, 1);
    (void)isa;
    for (size_t i = 0; i < NWIDTHS; i++) {
        size_t d = WIDTHS[i], rows = i % 3 + 1, n = d * rows, ldg = d + 7;
        float *a = lab_normals(n, 1, 8), *b = lab_normals(n, 2, 1), *y = lab_poisoned(n + 1), *y2 = lab_poisoned(n + 1);
        float *gate = lab_normals(rows * ldg, 3, 8), *x = lab_copy(b, n), *x2 = lab_copy(b, n);
        a[0] = -200, gate[0] = i % 2 ? 200 : -200; /* both ends of the sigmoid */
        ck_ok(be->ops->silu_mul(be, dev(y), dev(a), dev(b), n, &err));
        ck_ok(ref->ops->silu_mul(ref, dev(y2), dev(a), dev(b), n, &err));
        ck_ok(be->ops->sigmoid_mul(be, dev(x), dev(gate), rows, d, ldg, &err));
        ck_ok(ref->ops->sigmoid_mul(ref, dev(x2), dev(gate), rows, d, ldg, &err));
        ck_assert(lab_same_bits("silu_mul", y, y2, n) && lab_same_bits("sigmoid_mul", x, x2, n));
        ck_assert(isnan(y[n]));
        for (size_t e = 0; e < n; e++) {
            double want = a[e] / (1 + exp(-(double)a[e])) * b[e], g = gate[e / d * ldg + e % d];
            ck_assert(fabs(y[e] - want) <= 8 * U32 * fabs(want) + 1e-37);
            want = b[e] / (1 + exp(-g));
            ck_assert(fabs(x[e] - want) <= 8 * U32 * fabs(want) + 1e-37);
        }
        mla_free(a), mla_free(b), mla_free(y), mla_free(y2), mla_free(gate), mla_free(x), mla_free(x2);
    }
    mla_backend_close(ref);
}

START_TEST(activations) { lab_each_isa("activations", 2, check_activations); }
END_TEST

static void check_moves(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    (void)isa;
    for (size_t i = 0; i < NWIDTHS; i++) {
        size_t d = WIDTHS[i], rows = 5, ldx = d + 1, ldy = d + 4;
        float *x = lab_normals(rows * ldx, 1, 1), *y = lab_poisoned(rows * ldy), *v = lab_normals(d, 2, 1);
        ck_ok(be->ops->copy_rows(be, dev(y), ldy, dev(x), ldx, rows, d, &err));
        ck_ok(be->ops->add_rows(be, dev(y), ldy, rows, d, dev(v), -1, &err));
        for (size_t r = 0; r < rows; r++)
            for (size_t e = 0; e < ldy; e++)
                ck_assert(e < d ? y[r * ldy + e] == x[r * ldx + e] - v[e] : isnan(y[r * ldy + e]));
        float *a = lab_normals(rows * d, 3, 1), *b = lab_normals(rows * d, 4, 1), *c = lab_copy(a, rows * d);
        ck_ok(be->ops->add(be, dev(c), dev(b), rows * d, &err));
        for (size_t e = 0; e < rows * d; e++) ck_assert(c[e] == a[e] + b[e]);
        mla_free(x), mla_free(y), mla_free(v), mla_free(a), mla_free(b), mla_free(c);
    }
    mla_mem *m = NULL;
    const float in[4] = {1, 2, 3, 4};
    float out[4] = {0};
    ck_ok(be->ops->alloc(be, &m, (size_t)9 << 20, &err)); /* large enough for huge pages */
    ck_assert_uint_eq((uintptr_t)m % 64, 0);
    ck_ok(be->ops->upload(be, mla_at(m, 5), in, sizeof in, &err));
    ck_ok(be->ops->copy(be, mla_at(m, 4), mla_at(m, 5), sizeof in, &err)); /* overlapping */
    ck_ok(be->ops->download(be, out, mla_at(m, 4), sizeof out, &err));
    ck_assert(!memcmp(in, out, sizeof in));
    ck_ok(be->ops->zero(be, mla_at(m, 4), 8, &err));
    ck_ok(be->ops->download(be, out, mla_at(m, 4), sizeof out, &err));
    ck_assert(out[0] == 0 && out[1] == 0 && out[2] == 3);
    ck_ok(be->ops->sync(be, &err));
    be->ops->free(be, m);
    be->ops->free(be, NULL);
    ck_refused(be->ops->alloc(be, &m, SIZE_MAX, &err), MLA_ENOMEM, "cpu buffer");
}

START_TEST(copies_and_sums) { lab_each_isa("moves", 2, check_moves); }
END_TEST

static void check_rope(mla_backend *be, mla_isa isa)
{
    static const size_t ROT[] = {2, 8, 32, 64, 66, 128};
    mla_err err = {0};
    mla_backend *ref = lab_open(MLA_ISA_REF, 1);
    (void)isa;
    for (size_t i = 0; i < 6; i++) {
        size_t rot = ROT[i], half = rot / 2, T = 7, heads = 3, hs = rot + 5, ld = heads * hs + 2;
        float *x = lab_normals(T * ld, 1, 1), *x0 = lab_copy(x, T * ld), *x2 = lab_copy(x, T * ld);
        float *c = mla_alloc(T, half, sizeof *c), *s = mla_alloc(T, half, sizeof *s);
        for (size_t t = 0; t < T * half; t++) c[t] = cosf((float)t), s[t] = sinf((float)t);
        mla_rope_args a = {.x = dev(x), .ldx = ld, .T = T, .heads = heads, .head_stride = hs, .rot = rot, .cos = dev(c), .sin = dev(s)};
        ck_ok(be->ops->rope(be, &a, &err));
        a.x = dev(x2);
        ck_ok(ref->ops->rope(ref, &a, &err));
        ck_assert(lab_same_bits("rope", x, x2, T * ld));
        for (size_t t = 0; t < T; t++)
            for (size_t e = 0; e < ld; e++) {
                size_t k = e % hs, p = t * half + k % half;
                double want = x0[t * ld + e];
                if (e < heads * hs && k < half)
                    want = (double)x0[t * ld + e] * c[p] - (double)x0[t * ld + e + half] * s[p];
                else if (e < heads * hs && k < rot)
                    want = (double)x0[t * ld + e] * c[p] + (double)x0[t * ld + e - half] * s[p];
                ck_assert(fabs(x[t * ld + e] - want) <= 3 * U32 * 8);
            }
        mla_free(x), mla_free(x0), mla_free(x2), mla_free(c), mla_free(s);
    }
    ck_refused(be->ops->rope(be, &(mla_rope_args){.rot = 3}, &err), MLA_EINVAL, "even");
    mla_backend_close(ref);
}

START_TEST(rotary_pairs) { lab_each_isa("rope", 2, check_rope); }
END_TEST

static void check_range(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    (void)isa;
    for (size_t i = 0; i < NWIDTHS; i++) {
        size_t d = WIDTHS[i], rows = 11, ld = d + 2;
        float *x = lab_normals(rows * ld, 5 + i, 3);
        double amax = 0, sum2 = 0;
        for (size_t r = 0; r < rows; r++) x[r * ld + d] = 1e30f; /* outside: must not be seen */
        x[3 * ld] = NAN, x[5 * ld + d / 2] = -INFINITY, x[7 * ld + d - 1] = -50;
        for (size_t r = 0; r < rows; r++)
            for (size_t e = 0; e < d; e++) {
                double v = x[r * ld + e];
                if (isfinite(v)) amax = fmax(amax, fabs(v)), sum2 += v * v;
            }
        mla_range got = {0};
        ck_ok(be->ops->range(be, dev(x), rows, d, ld, &got, &err));
        ck_assert_uint_eq(got.n, rows * d);
        ck_assert_uint_eq(got.nonfinite, 2);
        ck_assert(got.amax == amax && fabs(got.sum2 - sum2) <= 1e-12 * sum2);
        for (size_t threads = 1; threads <= 5; threads += 2) {
            mla_backend *b2 = lab_open(isa, threads);
            mla_range g2 = {0};
            ck_ok(b2->ops->range(b2, dev(x), rows, d, ld, &g2, &err));
            ck_assert(!memcmp(&g2, &got, sizeof got));
            mla_backend_close(b2);
        }
        mla_free(x);
    }
}

START_TEST(ranges) { lab_each_isa("range", 2, check_range); }
END_TEST

/* Terms are positive: subtraction, exp, sum and quotient each round once, twice that in the square, and every term is added once. */
static void check_change(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    (void)isa;
    for (size_t i = 0; i < NWIDTHS; i++)
        for (int gated = 0; gated < 2; gated++) {
            size_t d = WIDTHS[i], T = 5, H = 3, n = T * H * d, gh = 2 * d + 1, ld = H * gh + 4;
            float *a = lab_normals(n, 15 + i, 1), *b = lab_normals(n, 35 + i, 1), *g = lab_normals(T * ld, 55 + i, 3);
            double sum = 0.25;
            long double want = 0.25L;
            for (size_t t = 0; t < T; t++)
                for (size_t x = 0; x < ld; x++)
                    if (x >= H * gh || x % gh >= d) g[t * ld + x] = NAN; /* outside: must not be seen */
            for (size_t k = 0; k < n; k++) {
                long double e = (long double)b[k] - a[k];
                if (gated) e /= 1 + expl(-(long double)g[k / (H * d) * ld + k / d % H * gh + k % d]);
                want += e * e;
            }
            mla_change_args x = {.a = dev(a), .b = dev(b), .gate = gated ? dev(g) : NULL, .gate_ld = ld, .gate_h = gh, .T = T, .H = H, .d = d, .sum = dev(&sum)};
            ck_ok(be->ops->gated_change(be, &x, &err));
            ck_assert(fabsl(sum - want) <= ((double)n + 10) * 0x1p-53 * (double)want);
            if (gated && be->ops->keeps_gate) { /* kept on the way, then used instead of the gate: the same bits */
                double *inv = mla_alloc(n, sizeof *inv, 1), kept[2] = {0.25, 0.25};
                x.inv = dev(inv);
                for (int k = 0; k < 2; k++) {
                    x.sum = dev(&kept[k]), x.inv_set = k;
                    ck_ok(be->ops->gated_change(be, &x, &err));
                    ck_assert_mem_eq(&kept[k], &sum, sizeof sum);
                    for (size_t j = 0; j < T * ld; j++) g[j] = NAN;
                }
                x.inv = NULL, x.inv_set = false, x.sum = dev(&sum);
                mla_free(inv);
            }
            b[n - 1] = NAN; /* negative control */
            ck_ok(be->ops->gated_change(be, &x, &err));
            ck_assert(isnan(sum));
            mla_free(a), mla_free(b), mla_free(g);
        }
}

START_TEST(changes) { lab_each_isa("gated change", 2, check_change); }
END_TEST

Suite *suite_rows(void)
{
    Suite *s = suite_create("rows");
    TCase *t = tcase_create("rows");
    tcase_add_test(t, exp_over_its_range);
    tcase_add_test(t, norms);
    tcase_add_test(t, activations);
    tcase_add_test(t, copies_and_sums);
    tcase_add_test(t, rotary_pairs);
    tcase_add_test(t, ranges);
    tcase_add_test(t, changes);
    suite_add_tcase(s, t);
    return s;
}
