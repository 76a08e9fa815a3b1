/* EXL3: every golden variant within its library's rounding to f16, codebook values, signs, padding; a whole model. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "bag.h"
#include "harness.h"
#include "io/ckpt.h"
#include "quant/exl3_tile.h"
#include "suites.h"
#include "tensor/fp.h"

enum { SIDE = 128 };

static const char *const CASE[] = {"k1_mul1", "k2_mul1", "k2p5_mul1", "k3_mcg", "k3_3inst", "k3p5_mul1",
                                   "k4_mul1", "k4_mcg", "k5_mul1", "k5_3inst", "k6_mul1", "k8_mul1"};
enum { N_CASE = sizeof CASE / sizeof *CASE };

static const mla_tensor *find_in_st(const void *ctx, const char *name) { return mla_st_find(ctx, name); }

static double f16_at(const mla_tensor *t, size_t i)
{
    uint16_t h;
    memcpy(&h, (const unsigned char *)t->data + 2 * i, 2);
    return mla_f16_f32(h);
}

/* The library transforms in f32 and rounds once to f16, so an element w of a 128 x 128 block may differ by
 *   u16 |w| + 2^-25 (one rounding, half a subnormal step) + 128 u32 |suh_i svh_o| rms,
 * u16 = 2^-11, u32 = 2^-24, rms that of the block without its scales. Last term: a transform by dot products of length 128
 * has partial sums of about sqrt(k) rms, so its rounding has a standard deviation below 8 u32 rms after the division by
 * sqrt(128); eight of those for the tail, two transforms. Returns the largest error / bound. */
static double worst_ratio(const float *got, const float *want, const mla_qmat *m)
{
    double worst = 0;
    for (size_t o0 = 0; o0 < m->out; o0 += SIDE)
        for (size_t i0 = 0; i0 < m->in; i0 += SIDE) {
            double sum = 0;
            for (size_t o = o0; o < o0 + SIDE; o++)
                for (size_t i = i0; i < i0 + SIDE; i++) {
                    double s = f16_at(&m->part[1], i) * f16_at(&m->part[2], o);
                    sum += s != 0 ? pow((double)want[o * m->in + i] / s, 2) : 0;
                }
            double rms = sqrt(sum) / SIDE;
            for (size_t o = o0; o < o0 + SIDE; o++)
                for (size_t i = i0; i < i0 + SIDE; i++) {
                    double w = want[o * m->in + i], s = fabs(f16_at(&m->part[1], i) * f16_at(&m->part[2], o));
                    double r = fabs((double)got[o * m->in + i] - w) / (0x1p-11 * fabs(w) + 0x1p-25 + 128 * 0x1p-24 * s * rms);
                    if (!(r <= worst)) worst = r; /* NaN, too */
                }
        }
    return worst;
}

START_TEST(golden)
{
    mla_err err;
    mla_st *s;
    mla_qmat m;
    char name[64];
    ck_ok(mla_st_open(&s, mla_fixture("golden-quant/exl3.safetensors"), &err));
    mla_qsource src = {find_in_st, s};
    ck_ok(mla_qmat_open(&m, &src, CASE[_i], &err));
    snprintf(name, sizeof name, "%s.dequantized", CASE[_i]);
    const mla_tensor *t = mla_st_find(s, name);
    ck_assert_ptr_nonnull(t);
    ck_assert(m.out == t->shape[0] && m.in == t->shape[1] && m.row_block == SIDE);
    size_t n = m.out * m.in, off = 0;
    float *got = mla_alloc(n, 1, sizeof *got), *want = mla_alloc(n, 1, sizeof *want), *part = mla_alloc(7, m.in, sizeof *part);
    ck_assert(mla_to_f32(want, t->data, MLA_F16, n));
    ck_ok(mla_qmat_rows_f32(&m, 0, m.out, got, &err));
    double r = worst_ratio(got, want, &m);
    ck_assert_msg(r <= 1, "error %.3f of the bound", r);
    for (size_t i = 0; i < n; i++) off += mla_f16_f32(mla_f32_f16(got[i])) != want[i];
    ck_assert_uint_le(off, n / 100); /* f32 noise tips a rounding now and then */
    printf("exl3 %s: error at most %.2f of its bound; %zu of %zu values round to another f16\n", CASE[_i], r, off, n);
    for (size_t r0 = 120; r0 + 7 <= m.out; r0 += 61) { /* runs that cross a block of 128, and do not start at one */
        ck_ok(mla_qmat_rows_f32(&m, r0, 7, part, &err));
        ck_assert(memcmp(part, got + r0 * m.in, 7 * m.in * sizeof *part) == 0);
    }
    mla_qscales sc;
    ck_ok(mla_qmat_scales(&m, &sc, &err));
    ck_assert(sc.n == m.out + m.in && sc.nonfinite == 0);
    mla_free(got);
    mla_free(want);
    mla_free(part);
    mla_st_close(s);
}
END_TEST

/* The bound must fail what it should: the other codebook, one wrong state, a sign. */
START_TEST(control)
{
    mla_err err;
    mla_st *s;
    mla_qmat m;
    ck_ok(mla_st_open(&s, mla_fixture("golden-quant/exl3.safetensors"), &err));
    mla_qsource src = {find_in_st, s};
    const mla_tensor *t = mla_st_find(s, "k4_mul1.dequantized");
    ck_ok(mla_qmat_open(&m, &src, "k4_mul1", &err));
    size_t n = m.out * m.in;
    float *got = mla_alloc(n, 1, sizeof *got), *want = mla_alloc(n, 1, sizeof *want);
    ck_assert(mla_to_f32(want, t->data, MLA_F16, n));
    unsigned char *bits = mla_alloc(m.part[0].nbytes, 1, 1);
    memcpy(bits, m.part[0].data, m.part[0].nbytes);
    bits[1000] ^= 0x40;
    mla_qmat bad = m;
    bad.part[0].data = bits;
    ck_ok(mla_qmat_rows_f32(&bad, 0, m.out, got, &err));
    ck_assert(!(worst_ratio(got, want, &m) <= 1));
    ck_ok(mla_qmat_open(&bad, &src, "k4_mcg", &err));
    bad.part[0] = m.part[0];
    ck_ok(mla_qmat_rows_f32(&bad, 0, m.out, got, &err));
    ck_assert(!(worst_ratio(got, want, &m) <= 1));
    ck_ok(mla_qmat_rows_f32(&m, 0, m.out, got, &err));
    got[12345] = -got[12345];
    ck_assert(!(worst_ratio(got, want, &m) <= 1));
    mla_free(bits);
    mla_free(got);
    mla_free(want);
    mla_st_close(s);
}
END_TEST

START_TEST(codebooks)
{
    static const uint16_t STATE[5] = {0, 1, 2, 255, 65535};
    static const float VALUE[4][5] = {[MLA_QC_3INST] = {.768066f, -.919434f, .931641f, 1.204102f, -.158203f},
                                      [MLA_QC_MCG] = {1.84375f, .134521f, -.759277f, -1.287109f, .850098f},
                                      [MLA_QC_MUL1] = {-3.453125f, .641113f, -.448486f, .837402f, -.651367f}};
    for (int c = MLA_QC_3INST; c <= MLA_QC_MUL1; c++) {
        for (int k = 0; k < 5; k++) ck_assert_float_eq_tol(mla_exl3_value(STATE[k], (mla_qcodebook)c), VALUE[c][k], 5e-7f);
        for (unsigned s = 0; s < 65536; s++) { /* every value is an f16 number */
            float v = mla_exl3_value((uint16_t)s, (mla_qcodebook)c);
            ck_assert(mla_f16_f32(mla_f32_f16(v)) == v);
        }
    }
    /* and the one that f16 arithmetic gives: sums in double, rounded once */
    for (uint32_t s = 0; s < 65536; s++) {
        uint32_t x = s * 89226354u + 64248484u;
        x = (x & 0x8fff8fffu) ^ 0x3b603b60u;
        double sum = (double)mla_f16_f32((uint16_t)x) + (double)mla_f16_f32((uint16_t)(x >> 16));
        ck_assert(mla_exl3_value((uint16_t)s, MLA_QC_3INST) == mla_f16_f32(mla_f32_f16((float)sum)));
        x = s * 0x83dcd12du;
        uint16_t n = (uint16_t)(0x6400u + (x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24));
        double v = (double)mla_f16_f32(n) * (double)mla_f16_f32(0x1eee) + (double)mla_f16_f32(0xc931);
        ck_assert((double)(float)v == v); /* so that rounding to f32 first cannot round twice */
        ck_assert(mla_exl3_value((uint16_t)s, MLA_QC_MUL1) == mla_f16_f32(mla_f32_f16((float)v)));
    }
}
END_TEST

/* Old files: packed signs in place of suh and svh. */
START_TEST(packed_signs)
{
    mla_err err;
    mla_st *s;
    mla_qmat wide, packed;
    ck_ok(mla_st_open(&s, mla_fixture("golden-quant/exl3.safetensors"), &err));
    const mla_tensor *sign = mla_st_find(s, "signs.suh_sign"), *su = mla_st_find(s, "signs.su_packed");
    const mla_tensor *trellis = mla_st_find(s, "k3_3inst.trellis");
    uint16_t ones[256];
    int16_t plus[16] = {0}; /* every sign plus */
    for (int i = 0; i < 256; i++) ones[i] = 0x3c00;
    bag a, b;
    bag_empty(&a);
    bag_empty(&b);
    bag_add(&a, "m.suh", MLA_F16, 1, 384, 0, sign->data);
    bag_add(&a, "m.svh", MLA_F16, 1, 256, 0, ones);
    bag_add(&b, "m.su", MLA_I16, 1, 24, 0, su->data);
    bag_add(&b, "m.sv", MLA_I16, 1, 16, 0, plus);
    for (bag *k = &a;; k = &b) {
        static const uint16_t zero;
        bag_add(k, "m.trellis", MLA_I16, 0, 0, 0, &zero);
        mla_tensor *t = bag_find(k, "m.trellis");
        t->ndim = 3;
        memcpy(t->shape, trellis->shape, sizeof t->shape);
        mla_free((void *)(uintptr_t)t->data);
        t->data = trellis->data, t->nbytes = trellis->nbytes;
        if (k == &b) break;
    }
    ck_ok(mla_qmat_open(&wide, &a.src, "m", &err));
    ck_ok(mla_qmat_open(&packed, &b.src, "m", &err));
    float *x = mla_alloc(256, 384, sizeof *x), *y = mla_alloc(256, 384, sizeof *y);
    ck_ok(mla_qmat_rows_f32(&wide, 0, 256, x, &err));
    ck_ok(mla_qmat_rows_f32(&packed, 0, 256, y, &err));
    ck_assert(memcmp(x, y, 256 * 384 * sizeof *x) == 0);
    bag_find(&a, "m.trellis")->data = bag_find(&b, "m.trellis")->data = NULL; /* the file's, not the bag's */
    mla_free(x);
    mla_free(y);
    bag_free(&a);
    bag_free(&b);
    mla_st_close(s);
}
END_TEST

/* The model's dims decide: padding is cut off, and only padding. */
START_TEST(trimmed)
{
    mla_err err;
    mla_st *s;
    mla_qmat m;
    ck_ok(mla_st_open(&s, mla_fixture("golden-quant/exl3.safetensors"), &err));
    mla_qsource src = {find_in_st, s};
    ck_ok(mla_qmat_open(&m, &src, "k2p5_mul1", &err));
    float *full = mla_alloc(256, 384, sizeof *full), *cut = mla_alloc(200, 300, sizeof *cut);
    ck_ok(mla_qmat_rows_f32(&m, 0, 256, full, &err));
    ck_refused(mla_qmat_expect(&m, 128, 384, &err), MLA_EFORMAT, "expected [128, 384], found [256, 384]");
    ck_refused(mla_qmat_expect(&m, 256, 385, &err), MLA_EFORMAT, "k2p5_mul1.trellis");
    ck_refused(mla_qmat_expect(&m, 0, 384, &err), MLA_EFORMAT, "expected");
    ck_ok(mla_qmat_expect(&m, 200, 300, &err));
    ck_assert(m.out == 200 && m.in == 300);
    ck_ok(mla_qmat_rows_f32(&m, 0, 200, cut, &err));
    for (size_t o = 0; o < 200; o++) ck_assert(memcmp(cut + o * 300, full + o * 384, 300 * sizeof *cut) == 0);
    ck_refused(mla_qmat_rows_f32(&m, 199, 2, cut, &err), MLA_EINVAL, "has 200");
    ck_ok(mla_qmat_expect(&m, 200, 300, &err));
    mla_free(full);
    mla_free(cut);
    mla_st_close(s);
}
END_TEST

static const mla_tensor *find_in_ckpt(const void *ctx, const char *name) { return mla_ckpt_find(ctx, name); }

typedef struct {
    double err, ref;    /* sums of squares */
    double lo, hi;      /* relative error of one matrix */
    size_t n, values;
} tally;

/* One matrix of the quantized model against the bf16 one; its relative error. */
static double against(const mla_qmat *m, const mla_qmat *ref, tally *t)
{
    mla_err err;
    size_t n = m->out * m->in, bad;
    double e = 0, r = 0;
    float *x = mla_alloc(n, 1, sizeof *x), *y = mla_alloc(n, 1, sizeof *y);
    ck_ok(mla_qmat_rows_f32(m, 0, m->out, x, &err));
    ck_ok(mla_qmat_rows_f32(ref, 0, m->out, y, &err));
    ck_ok(mla_qmat_nonfinite(m, &bad, NULL, &err));
    ck_assert_uint_eq(bad, 0);
    for (size_t i = 0; i < n; i++) e += ((double)x[i] - y[i]) * ((double)x[i] - y[i]), r += (double)y[i] * y[i];
    double rel = sqrt(e / r);
    t->err += e, t->ref += r, t->values += n;
    if (!t->n || rel < t->lo) t->lo = rel;
    if (!t->n || rel > t->hi) t->hi = rel;
    t->n++;
    mla_free(x);
    mla_free(y);
    return rel;
}

/* The whole bundled model as its maker quantized it: every linear opens as the config says and decodes close to bf16.
 * Rate-distortion theory bounds the relative error of K bits on Gaussian weights below by 2^-K; a good trellis comes
 * within 15 %. Calibration then gives up weight error for output error, so the limit here is one bit: 2 x 2^-K. */
START_TEST(whole_model)
{
    mla_err err;
    mla_ckpt *q, *ref;
    mla_json *d;
    mla_qconfig *c;
    mla_qsummary sum;
    tally four = {0}, six = {0}, plain = {0};
    ck_ok(mla_ckpt_open(&q, mla_fixture("golden-quant/tiny-hybrid-exl3"), &err));
    ck_ok(mla_ckpt_open(&ref, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_json_read(&d, mla_fixture("golden-quant/tiny-hybrid-exl3/config.json"), 1 << 20, &err));
    ck_ok(mla_qconfig_read(&c, mla_jv_get(mla_json_root(d), "quantization_config"), &err));
    ck_ok(mla_qconfig_check(c, q, &sum, &err));
    mla_qsource qs = {find_in_ckpt, q}, rs = {find_in_ckpt, ref};
    for (size_t i = 0; i < mla_ckpt_count(ref); i++) {
        const mla_tensor *t = mla_ckpt_at(ref, i);
        size_t len = strlen(t->name);
        if (t->ndim != 2 || len < 8 || strcmp(t->name + len - 7, ".weight") != 0) continue;
        char module[256];
        snprintf(module, sizeof module, "%.*s", (int)(len - 7), t->name);
        mla_qmat m, w;
        ck_ok(mla_qmat_open(&w, &rs, module, &err));
        ck_ok(mla_qmat_open_with(&m, &qs, module, c, &err));
        ck_ok(mla_qmat_expect(&m, w.out, w.in, &err));
        double rel = against(&m, &w, m.bits == 4 ? &four : m.bits == 6 ? &six : &plain);
        double limit = m.bits ? 2 * ldexp(1, -(int)m.bits) : 0x1p-11; /* f16 of a bf16 value: at most a subnormal's loss */
        ck_assert_msg(rel <= limit, "%s: relative error %.4f, limit %.4f", module, rel, limit);
    }
    ck_assert_uint_eq(four.n, sum.quantized - 1);
    ck_assert_uint_eq(six.n, 1);
    ck_assert_uint_ge(plain.n, 8);
    printf("tiny-hybrid-exl3: %zu matrices of 4 bits, relative error %.4f (%.4f to %.4f); head of 6 bits %.4f; %zu plain, %.2g\n",
           four.n, sqrt(four.err / four.ref), four.lo, four.hi, sqrt(six.err / six.ref), plain.n, sqrt(plain.err / plain.ref));
    mla_qconfig_free(c);
    mla_json_free(d);
    mla_ckpt_close(q);
    mla_ckpt_close(ref);
}
END_TEST

Suite *suite_exl3(void)
{
    Suite *s = suite_create("exl3");
    TCase *c = tcase_create("exl3");
    tcase_add_loop_test(c, golden, 0, N_CASE);
    tcase_add_test(c, control);
    tcase_add_test(c, codebooks);
    tcase_add_test(c, packed_signs);
    tcase_add_test(c, trimmed);
    tcase_add_test(c, whole_model);
    suite_add_tcase(s, c);
    return s;
}
