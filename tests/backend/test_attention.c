/* Attention against fp64, its independence from chunking and threads bit by bit, and its observers. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"
#include "tensor/bound.h"
#include "tensor/fp.h"

typedef struct {
    const char *what;
    size_t T, pos0, H, kh, k2h, vh, dk, dk2, dv, page;
    mla_dtype dtype, dtype2; /* dtype2: of k2, where it differs */
} attn_case;

static const attn_case CASES[] = {
    {"one token", 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, MLA_F32, MLA_F32},
    {"gqa", 37, 0, 6, 2, 0, 2, 32, 0, 32, 0, MLA_F32, MLA_F32},
    {"gqa odd dims, history", 19, 131, 12, 4, 0, 4, 33, 0, 31, 64, MLA_F32, MLA_F32},
    {"mha long head", 5, 60, 3, 3, 0, 3, 257, 0, 257, 16, MLA_F32, MLA_F32},
    {"absorbed", 3, 200, 12, 1, 4, 1, 96, 8, 96, 64, MLA_F32, MLA_F32},
    {"absorbed, wide", 2, 70, 24, 1, 1, 1, 512, 64, 512, 64, MLA_BF16, MLA_BF16},
    {"absorbed, two groups", 66, 0, 8, 2, 4, 2, 48, 8, 48, 32, MLA_F32, MLA_F32},
    {"expanded with a shared rotary key", 70, 3, 4, 4, 1, 4, 24, 8, 24, 0, MLA_F32, MLA_F32},
    {"rebuilt keys, absorbed values", 9, 64, 9, 3, 0, 1, 64, 0, 40, 64, MLA_F32, MLA_F32},
    {"more heads than a tile", 2, 65, 120, 1, 0, 1, 16, 0, 16, 7, MLA_F32, MLA_F32},
    {"bf16", 64, 64, 4, 2, 0, 2, 64, 0, 64, 64, MLA_BF16, MLA_BF16},
    {"fp8", 31, 100, 4, 2, 2, 2, 64, 16, 64, 64, MLA_F8_E4M3, MLA_F8_E4M3},
    {"fp8 latents, bf16 keys", 31, 100, 4, 1, 2, 1, 64, 16, 64, 64, MLA_F8_E4M3, MLA_BF16},
    {"fp8 latents, bf16 keys, one token", 1, 200, 8, 2, 4, 2, 95, 8, 95, 16, MLA_F8_E4M3, MLA_BF16},
};
#define NCASES (sizeof CASES / sizeof *CASES)

typedef struct { /* inputs of a case; keys as stored and as read back */
    const attn_case *c;
    size_t S, kw, k2w, vw;
    float *q, *q2, *k, *k2, *v;
    char *kst, *k2st, *vst;
    int32_t *pages;
} attn_data;

/* Stores (S, width) rows into pages in a scattered order and reads them back into x. */
static char *cache(mla_backend *be, const attn_data *d, float *x, size_t width, mla_dtype t)
{
    mla_err err = {0};
    const attn_case *c = d->c;
    size_t es = t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1, slots = c->page ? (d->S / c->page + 1) * c->page : d->S;
    char *st = mla_alloc(slots, width, es);
    ck_assert_ptr_nonnull(st);
    memset(st, 0xff, slots * width * es); /* NaN in every dtype: what is not written must not be read */
    mla_kv_view view = {.data = dev(st), .pages = c->page ? d->pages : NULL, .page_tokens = c->page, .row_elems = width,
                        .dtype = t, .scale = t == MLA_F8_E4M3 ? 0.0625f : 1};
    ck_ok(be->ops->kv_write(be, &(mla_kv_write_args){.to = view, .x = dev(x), .ldx = width, .T = d->S, .width = width}, &err));
    ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = view, .y = dev(x), .ldy = width, .n = d->S, .width = width}, &err));
    return st;
}

static attn_data make(mla_backend *be, const attn_case *c)
{
    attn_data d = {.c = c, .S = c->pos0 + c->T, .kw = c->kh * c->dk, .k2w = c->k2h * c->dk2, .vw = c->vh * c->dv};
    size_t np = c->page ? d.S / c->page + 1 : 1;
    d.pages = mla_alloc(np, 1, sizeof *d.pages);
    ck_assert_ptr_nonnull(d.pages);
    for (size_t i = 0; i < np; i++) d.pages[i] = (int32_t)(np - 1 - i); /* last page first */
    d.q = lab_normals(c->T * c->H * c->dk, 100, 1);
    d.q2 = c->k2h ? lab_normals(c->T * c->H * c->dk2, 101, 1) : NULL;
    d.k = lab_normals(d.S * d.kw, 102, 1);
    d.k2 = lab_normals(d.S * d.k2w + 1, 103, 1);
    d.v = lab_normals(d.S * d.vw, 104, 1);
    d.kst = cache(be, &d, d.k, d.kw, c->dtype);
    d.k2st = c->k2h ? cache(be, &d, d.k2, d.k2w, c->dtype2) : NULL;
    d.vst = cache(be, &d, d.v, d.vw, c->dtype);
    return d;
}

static void drop(attn_data *d)
{
    mla_free(d->q), mla_free(d->q2), mla_free(d->k), mla_free(d->k2), mla_free(d->v);
    mla_free(d->kst), mla_free(d->k2st), mla_free(d->vst), mla_free(d->pages);
}

static mla_kv_view view_of(const attn_case *c, const attn_data *d, char *st, size_t width, size_t head, mla_dtype t)
{
    return (mla_kv_view){.data = dev(st), .pages = c->page ? d->pages : NULL, .page_tokens = c->page, .row_elems = width,
                         .head_stride = head, .dtype = t, .scale = t == MLA_F8_E4M3 ? 0.0625f : 1};
}

/* Queries t0 .. t0+n-1 of the case, into the same rows of o. */
static mla_attn_args args_of(const attn_data *d, float *o, size_t t0, size_t n, bool bf16)
{
    const attn_case *c = d->c;
    return (mla_attn_args){
        .o = dev(o + t0 * c->H * c->dv), .ldo = c->H * c->dv, .q = dev(d->q + t0 * c->H * c->dk), .ldq = c->H * c->dk,
        .qh_stride = c->dk, .q2 = c->k2h ? dev(d->q2 + t0 * c->H * c->dk2) : NULL, .ldq2 = c->H * c->dk2, .q2h_stride = c->dk2,
        .k = view_of(c, d, d->kst, d->kw, c->dk, c->dtype), .k2 = view_of(c, d, d->k2st, d->k2w, c->dk2, c->dtype2),
        .v = view_of(c, d, d->vst, d->vw, c->dv, c->dtype), .kh = c->kh, .k2h = c->k2h, .vh = c->vh, .T = n, .H = c->H, .dk = c->dk,
        .dk2 = c->k2h ? c->dk2 : 0, .dv = c->dv, .pos0 = c->pos0 + t0, .scale = (float)(1 / sqrt((double)(c->dk + c->dk2))), .bf16 = bf16};
}

static void reference(const attn_data *d, double *o, double *p2)
{
    const attn_case *c = d->c;
    lab_attn r = {.q = d->q, .q2 = d->q2, .k = d->k, .k2 = d->k2, .v = d->v, .T = c->T, .H = c->H, .dk = c->dk, .dk2 = c->k2h ? c->dk2 : 0,
                  .dv = c->dv, .kh = c->kh, .k2h = c->k2h, .vh = c->vh, .pos0 = c->pos0, .scale = (float)(1 / sqrt((double)(c->dk + c->dk2)))};
    lab_attention(&r, o, p2);
}

/* A logit l carries |dl| <= gamma_d |scale| sum|q k|; the output moves by at most 2 max|dl| max|v|, and the weighted
 * sum adds gamma_S max|v|. Normal inputs: sum|q k| < 2 d, |v| < 6. */
static double tolerance(const attn_case *c)
{
    double d = (double)(c->dk + c->dk2), logit = mla_gamma(MLA_F32, (size_t)d + 4) * 2 * d / sqrt(d);
    return 6 * (2 * logit + mla_gamma(MLA_F32, c->pos0 + c->T + 16));
}

static void round_to_bf16(float *x, size_t n)
{
    for (size_t i = 0; x && i < n; i++) x[i] = mla_bf16_f32(mla_f32_bf16(x[i]));
}

static void check_case(mla_backend *be, const attn_case *c, bool pairs, bool bf16)
{
    mla_err err = {0};
    attn_data d = make(be, c);
    size_t n = c->T * c->H * c->dv;
    float *o = lab_poisoned(n);
    double *want = mla_alloc(n, 1, sizeof *want), *p2w = mla_alloc(d.S, 1, sizeof *p2w), *p2 = mla_alloc(d.S, 1, sizeof *p2);
    float *probs = lab_poisoned(c->H * c->T * d.S);
    mla_attn_args a = args_of(&d, o, 0, c->T, bf16);
    a.p2 = dev(p2), a.probs = dev(probs);
    ck_ok(be->ops->attention(be, &a, &err));
    double tol = tolerance(c);
    if (pairs) { /* against rounded operands: left are the rounding of p, and v of the last block, which stays f32 */
        round_to_bf16(d.q, c->T * c->H * c->dk), round_to_bf16(d.q2, c->T * c->H * c->dk2);
        round_to_bf16(d.k, d.S * d.kw), round_to_bf16(d.k2, d.S * d.k2w), round_to_bf16(d.v, d.S * d.vw);
        tol += 2 * 0x1p-8 * 6; /* |v| < 6 */
    }
    reference(&d, want, p2w);
    ck_assert(lab_close(c->what, o, want, n, tol));
    for (size_t s = 0; s < d.S; s++)
        ck_assert_msg(fabs(p2[s] - p2w[s]) <= (double)(c->T * c->H) * tolerance(c), "%s: p2[%zu] %g, want %g", c->what, s, p2[s], p2w[s]);
    for (size_t r = 0; r < c->H * c->T; r++) {
        double sum = 0;
        for (size_t s = 0; s < d.S; s++) sum += probs[r * d.S + s];
        ck_assert_msg(fabs(sum - 1) <= mla_gamma(MLA_F32, d.S + 16), "%s: probabilities of row %zu sum to %g", c->what, r, sum);
    }
    mla_free(o), mla_free(want), mla_free(p2w), mla_free(p2), mla_free(probs);
    drop(&d);
}

static void check_values(mla_backend *be, mla_isa isa)
{
    for (size_t i = 0; i < NCASES; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) check_case(be, &CASES[i], bf16 && isa == MLA_ISA_AVX512BF16, bf16);
}

START_TEST(values_match_fp64) { lab_each_isa("attention", 2, check_values); }
END_TEST

/* One call of T queries, T calls of one, uneven chunks, other thread counts: the same bits. */
static void check_cuts(mla_backend *be, mla_isa isa, const attn_case *c, bool bf16)
{
    mla_err err = {0};
    attn_data d = make(be, c);
    size_t n = c->T * c->H * c->dv;
    float *all = lab_poisoned(n), *part = lab_poisoned(n);
    double *p2 = mla_alloc(d.S, 1, sizeof *p2), *p2b = mla_alloc(d.S, 1, sizeof *p2b);
    mla_attn_args a = args_of(&d, all, 0, c->T, bf16);
    a.p2 = dev(p2);
    ck_ok(be->ops->attention(be, &a, &err));
    for (size_t step = 1; step <= 11; step += 5) {
        memset(part, 0xff, n * sizeof *part);
        for (size_t t = 0; t < c->T; t += step) {
            a = args_of(&d, part, t, step < c->T - t ? step : c->T - t, bf16);
            ck_ok(be->ops->attention(be, &a, &err));
        }
        ck_assert_msg(lab_same_bits(c->what, part, all, n), "%s: steps of %zu", c->what, step);
    }
    for (size_t threads = 1; threads <= 5; threads += threads == 3 ? 2 : 1) {
        mla_backend *b2 = lab_open(isa, threads);
        memset(part, 0xff, n * sizeof *part);
        memset(p2b, 0, d.S * sizeof *p2b);
        a = args_of(&d, part, 0, c->T, bf16);
        a.p2 = dev(p2b);
        ck_ok(b2->ops->attention(b2, &a, &err));
        ck_assert_msg(lab_same_bits(c->what, part, all, n), "%s: %zu threads", c->what, threads);
        ck_assert_msg(!memcmp(p2, p2b, d.S * sizeof *p2), "%s: p2 with %zu threads", c->what, threads);
        mla_backend_close(b2);
    }
    mla_free(all), mla_free(part), mla_free(p2), mla_free(p2b);
    drop(&d);
}

static void check_chunks(mla_backend *be, mla_isa isa)
{
    for (size_t i = 0; i < NCASES; i++) {
        check_cuts(be, isa, &CASES[i], false);
        if (isa == MLA_ISA_AVX512BF16) check_cuts(be, isa, &CASES[i], true);
    }
}

START_TEST(bits_do_not_depend_on_chunks_or_threads) { lab_each_isa("attention chunks", 2, check_chunks); }
END_TEST

/* Every variant gives the portable variant's bits. */
START_TEST(variants_agree_bit_by_bit)
{
    mla_err err = {0};
    mla_backend *ref = lab_open(MLA_ISA_REF, 1);
    for (int isa = MLA_ISA_AVX2; isa <= MLA_ISA_AVX512BF16; isa++) {
        mla_backend *be = lab_open((mla_isa)isa, 2);
        if (!be) {
            mla_test_skip("attention variants", "this CPU lacks the instruction set", 1);
            continue;
        }
        for (size_t i = 0; i < NCASES; i++) {
            attn_data d = make(ref, &CASES[i]);
            size_t n = CASES[i].T * CASES[i].H * CASES[i].dv;
            float *x = lab_poisoned(n), *y = lab_poisoned(n);
            mla_attn_args a = args_of(&d, x, 0, CASES[i].T, false);
            ck_ok(ref->ops->attention(ref, &a, &err));
            a.o = dev(y);
            ck_ok(be->ops->attention(be, &a, &err));
            ck_assert(lab_same_bits(CASES[i].what, y, x, n));
            mla_free(x), mla_free(y);
            drop(&d);
        }
        mla_backend_close(be);
    }
    mla_backend_close(ref);
}
END_TEST

/* Planted faults: a future key's NaN must not reach an earlier query; a changed visible key must change the result. */
static void check_leaks(mla_backend *be, bool bf16)
{
    mla_err err = {0};
    const attn_case *c = &CASES[1];
    attn_data d = make(be, c);
    size_t n = c->H * c->dv, last = d.S - 1;
    float *o = lab_poisoned(c->T * n), *o2 = lab_poisoned(c->T * n);
    mla_attn_args a = args_of(&d, o, 0, c->T, bf16);
    ck_ok(be->ops->attention(be, &a, &err));
    for (size_t i = 0; i < d.vw; i++) ((float *)(void *)d.vst)[last * d.vw + i] = NAN;
    for (size_t i = 0; i < d.kw; i++) ((float *)(void *)d.kst)[last * d.kw + i] = INFINITY;
    a.o = dev(o2);
    ck_ok(be->ops->attention(be, &a, &err));
    ck_assert(lab_same_bits("earlier queries", o2, o, (c->T - 1) * n));
    ck_assert_uint_eq(mla_count_nonfinite(o2 + (c->T - 1) * n, n, NULL), n);
    ((float *)(void *)d.kst)[3] += 1; /* every query but the very first sees the first key among others */
    ck_ok(be->ops->attention(be, &a, &err));
    ck_assert(!lab_same_bits("control", o2, o, (c->T - 1) * n));
    mla_free(o), mla_free(o2);
    drop(&d);
}

static void check_causality(mla_backend *be, mla_isa isa)
{
    (void)isa;
    check_leaks(be, false);
    check_leaks(be, true);
}

START_TEST(future_keys_never_leak) { lab_each_isa("attention causality", 2, check_causality); }
END_TEST

/* Logits far apart and far from zero neither overflow nor vanish. */
static void check_extremes(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    const attn_case c = {"extremes", 70, 0, 2, 1, 0, 1, 4, 0, 3, 0, MLA_F32, MLA_F32};
    attn_data d = make(be, &c);
    float *o = lab_poisoned(70 * 6);
    double want[70 * 6];
    (void)isa;
    for (size_t i = 0; i < 70 * 8; i++) d.q[i] *= 300;
    reference(&d, want, NULL);
    mla_attn_args a = args_of(&d, o, 0, 70, false);
    ck_ok(be->ops->attention(be, &a, &err));
    ck_assert(lab_close("extremes", o, want, 70 * 6, 300 * tolerance(&c)));
    a.kh = 3;
    ck_refused(be->ops->attention(be, &a, &err), MLA_EINVAL, "must divide");
    a = args_of(&d, o, 0, 70, false);
    a.v.dtype = MLA_F16;
    ck_refused(be->ops->attention(be, &a, &err), MLA_EUNSUPPORTED, "F16");
    mla_free(o);
    drop(&d);
}

START_TEST(extreme_logits_and_refusals) { lab_each_isa("attention extremes", 2, check_extremes); }
END_TEST

Suite *suite_attention(void)
{
    Suite *s = suite_create("attention");
    TCase *t = tcase_create("attention");
    tcase_add_test(t, values_match_fp64);
    tcase_add_test(t, bits_do_not_depend_on_chunks_or_threads);
    tcase_add_test(t, variants_agree_bit_by_bit);
    tcase_add_test(t, future_keys_never_leak);
    tcase_add_test(t, extreme_logits_and_refusals);
    suite_add_tcase(s, t);
    return s;
}
