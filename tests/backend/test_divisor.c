/* Score divisors: what is stored, to the derived error of each form, and attention with them against fp64. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"
#include "tensor/bound.h"
#include "tensor/fp.h"
#include "tensor/log2code.h"

enum { T = 70, H = 12, G = 4, D = 33, R = 40, ROT = 8, PAGE = 16, ROW = R + G * ROT + G };

typedef struct {
    float *x, *q, *k, *k2, center[G];
    double want[T][G];
    char *st; /* cached rows: latent (R), rotary keys (G ROT), divisors (G) */
    int32_t pages[T / PAGE + 1];
} cells;

static mla_kv_view view(const cells *c, size_t col, size_t head, mla_dtype t)
{
    return (mla_kv_view){.data = dev(c->st), .pages = c->pages, .page_tokens = PAGE, .row_elems = ROW, .col = col, .head_stride = head,
                         .dtype = t, .scale = 1};
}

static mla_dtype div_dtype(mla_dtype cache) { return cache == MLA_F32 ? MLA_F32 : cache == MLA_BF16 ? MLA_F16 : MLA_U8; }

static cells fill(mla_backend *be, mla_dtype cache)
{
    mla_err err = {0};
    size_t es = cache == MLA_F32 ? 4 : cache == MLA_BF16 ? 2 : 1, np = T / PAGE + 1;
    cells c = {.x = lab_normals(T * G * D, 1, 1), .q = lab_normals(T * H * (R + 1 + ROT), 2, 0.3), .k = lab_normals(T * R, 3, 1),
               .k2 = lab_normals(T * G * ROT, 4, 1), .center = {0.5f, 1, 2, 3}, .st = mla_alloc(np * PAGE * ROW, es, 1)};
    for (size_t i = 0; i < np; i++) c.pages[i] = (int32_t)(np - 1 - i);
    for (size_t t = 0; t < T; t++)
        for (size_t g = 0; g < G; g++) {
            double sum = 0, s = exp2(4.0 * (double)t / T - 2); /* a range of 16 */
            for (size_t i = 0; i < D; i++) {
                float *x = &c.x[(t * G + g) * D + i];
                *x *= (float)s * c.center[g];
                sum += (double)*x * *x;
            }
            c.want[t][g] = sqrt(sum / D + 1e-6);
        }
    mla_kv_write_args w = {.to = view(&c, 0, R, cache), .x = dev(c.k), .ldx = R, .T = T, .width = R};
    ck_ok(be->ops->kv_write(be, &w, &err));
    ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = w.to, .y = dev(c.k), .ldy = R, .n = T, .width = R}, &err));
    w = (mla_kv_write_args){.to = view(&c, R, ROT, cache), .x = dev(c.k2), .ldx = G * ROT, .T = T, .width = G * ROT};
    ck_ok(be->ops->kv_write(be, &w, &err));
    ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = w.to, .y = dev(c.k2), .ldy = G * ROT, .n = T, .width = G * ROT}, &err));
    mla_divisor_args d = {.to = view(&c, R + G * ROT, 1, div_dtype(cache)), .x = dev(c.x), .ldx = G * D, .T = T, .heads = G, .d = D,
                          .center = dev(c.center), .eps = 1e-6};
    ck_ok(be->ops->divisor(be, &d, &err));
    return c;
}

static void drop(cells *c) { mla_free(c->x), mla_free(c->q), mla_free(c->k), mla_free(c->k2), mla_free(c->st); }

static double stored(const cells *c, mla_dtype cache, size_t t, size_t g)
{
    size_t es = cache == MLA_F32 ? 4 : cache == MLA_BF16 ? 2 : 1, slot = (size_t)c->pages[t / PAGE] * PAGE + t % PAGE;
    const char *p = c->st + (slot * ROW + R + G * ROT + g) * es;
    return cache == MLA_F32 ? *(const float *)(const void *)p : cache == MLA_BF16 ? mla_f16_f32(*(const uint16_t *)(const void *)p) : mla_log2_decode(*(const uint8_t *)p);
}

static const mla_dtype CACHE[] = {MLA_F32, MLA_BF16, MLA_F8_E4M3};
/* f32: two roundings; f16: half of 2^-10; log2 code: half a step of 2^(1/44) */
static const double ERROR[] = {0x1p-22, 0x1.01p-11, 0.00792};

static void check_stored(mla_backend *be, mla_isa isa)
{
    (void)isa;
    for (size_t k = 0; k < 3; k++) {
        cells c = fill(be, CACHE[k]);
        double worst = 0;
        for (size_t t = 0; t < T; t++)
            for (size_t g = 0; g < G; g++) worst = fmax(worst, fabs(stored(&c, CACHE[k], t, g) * c.center[g] / c.want[t][g] - 1));
        ck_assert_msg(worst <= ERROR[k] && worst >= ERROR[k] / 1e3, "cache %zu: relative error %.5g, allowed %g", k, worst, ERROR[k]);
        drop(&c);
    }
}

START_TEST(divisors_are_stored_within_their_error) { lab_each_isa("divisors", 2, check_stored); }
END_TEST

/* The code alone: every number between its ends within 0.8 %, codes read back as themselves, beyond the ends the ends. */
START_TEST(log2_codes)
{
    double worst = 0;
    for (double x = 0x1p-2; x <= 7.3; x *= 1.0003) worst = fmax(worst, fabs(mla_log2_decode(mla_log2_encode((float)x)) / (double)(float)x - 1));
    ck_assert_msg(worst <= 0.008 && worst > 0.0075, "largest error %.5g", worst);
    for (unsigned c = 0; c < 256; c++) ck_assert_uint_eq(mla_log2_encode(mla_log2_decode((uint8_t)c)), c);
    ck_assert(mla_log2_encode(1e30f) == 255 && mla_log2_encode(INFINITY) == 255 && mla_log2_encode(1e-30f) == 0);
    ck_assert(mla_log2_encode(0) == 0 && mla_log2_encode(-1) == 0 && mla_log2_encode(NAN) == 0 && mla_log2_decode(128) == 1);
}
END_TEST

static mla_attn_args args(const cells *c, mla_dtype cache, float *o, size_t t0, size_t n)
{
    size_t w = R + 1 + ROT;
    mla_mem *q = dev(c->q + t0 * H * w);
    return (mla_attn_args){.o = dev(o + t0 * H * R), .ldo = H * R, .q = q, .ldq = H * w, .qh_stride = w, .q2 = mla_at(q, R + 1), .ldq2 = H * w,
                           .q2h_stride = w, .k = view(c, 0, R, cache), .k2 = view(c, R, ROT, cache), .v = view(c, 0, R, cache), .kh = 1, .k2h = G,
                           .vh = 1, .div = view(c, R + G * ROT, 1, div_dtype(cache)), .divh = G, .qb = mla_at(q, R), .T = n, .H = H, .dk = R,
                           .dk2 = ROT, .dv = R, .pos0 = t0, .scale = 0.3f};
}

/* o, or with wrong set: as if the divisor stood under the whole logit */
static void reference(const cells *c, mla_dtype cache, double *o, bool wrong)
{
    size_t w = R + 1 + ROT;
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            const float *q = c->q + (t * H + h) * w;
            double p[T], sum = 0, *out = o + (t * H + h) * R;
            memset(out, 0, R * sizeof *out);
            for (size_t s = 0; s <= t; s++) {
                double a = q[R], b = 0, m = 1 / stored(c, cache, s, h / (H / G));
                for (size_t i = 0; i < R; i++) a += (double)q[i] * c->k[s * R + i];
                for (size_t i = 0; i < ROT; i++) b += (double)q[R + 1 + i] * c->k2[(s * G + h / (H / G)) * ROT + i];
                sum += p[s] = exp((double)0.3f * (a * m + (wrong ? b * m : b)));
            }
            for (size_t s = 0; s <= t; s++)
                for (size_t i = 0; i < R; i++) out[i] += p[s] / sum * c->k[s * R + i];
        }
}

static void check_attention(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    (void)isa;
    for (size_t k = 0; k < 3; k++) {
        cells c = fill(be, CACHE[k]);
        float *o = lab_poisoned(T * H * R), *cut = lab_poisoned(T * H * R);
        double *want = mla_alloc(T * H * R, 1, sizeof *want);
        mla_attn_args a = args(&c, CACHE[k], o, 0, T);
        ck_ok(be->ops->attention(be, &a, &err));
        reference(&c, CACHE[k], want, false);
        /* a logit is at most scale (sum|q k| / divisor + ...) < 0.3 (0.3 2 R 4 + ...) ~ 30; |k| < 6 */
        double logit = mla_gamma(MLA_F32, R + ROT + 6) * 30, tol = 6 * (2 * logit + mla_gamma(MLA_F32, T + 16));
        ck_assert(lab_close("attention with divisors", o, want, T * H * R, tol));
        reference(&c, CACHE[k], want, true);
        double far = 0;
        for (size_t i = 0; i < T * H * R; i++) far = fmax(far, fabs(want[i] - o[i]));
        ck_assert(far > 100 * tol); /* the rotary part is not divided, and the test would see it */
        for (size_t t = 0; t < T; t += 23) {
            a = args(&c, CACHE[k], cut, t, T - t < 23 ? T - t : 23);
            ck_ok(be->ops->attention(be, &a, &err));
        }
        ck_assert(lab_same_bits("attention with divisors, cut", cut, o, T * H * R));
        a.divh = 5;
        ck_refused(be->ops->attention(be, &a, &err), MLA_EINVAL, "must divide");
        a.divh = G, a.div.dtype = MLA_BF16;
        ck_refused(be->ops->attention(be, &a, &err), MLA_EUNSUPPORTED, "log2 code");
        mla_free(o), mla_free(cut), mla_free(want);
        drop(&c);
    }
}

START_TEST(attention_matches_fp64) { lab_each_isa("attention with divisors", 3, check_attention); }
END_TEST

Suite *suite_divisor(void)
{
    Suite *s = suite_create("divisor");
    TCase *t = tcase_create("divisor");
    tcase_add_test(t, divisors_are_stored_within_their_error);
    tcase_add_test(t, log2_codes);
    tcase_add_test(t, attention_matches_fp64);
    suite_add_tcase(s, t);
    return s;
}
