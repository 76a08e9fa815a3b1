/* Cache formats: codecs against their fp64 definition by search, the runtime's door against its real caches, the study. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "calibrate/study.h"
#include "lab.h"
#include "runtime/score.h"
#include "tensor/fp.h"

/* Distance of x to the nearest of +-level[i] s. */
static double distance(double x, const double *level, size_t n, double s)
{
    double best = INFINITY;
    for (size_t i = 0; i < n; i++) best = fmin(best, fabs(fabs(x) - level[i] * s));
    return best;
}

enum { N = 96 };
static const double E2M1[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
static double E4M3[127], INT8[128];

static void fill_levels(void)
{
    for (size_t i = 0; i < 127; i++) E4M3[i] = (double)mla_e4m3_f32((uint8_t)i);
    for (size_t i = 0; i < 128; i++) INT8[i] = (double)i;
}

/* Values over nine octaves with both signs, a zero and, when asked, one far beyond the scale. */
static void fill(float *x, unsigned seed, bool beyond)
{
    for (size_t i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ldexpf((float)(seed >> 8) / 16777216.0f + 0.5f, (int)(i % 9) - 6) * (i % 2 ? -1 : 1);
    }
    x[7] = 0;
    if (beyond) x[11] = 1000;
}

/* Every coded value is a level, and no level is nearer than the one taken (up to f32 rounding of x / s and of the product). */
static void check_nearest(const float *x, const float *y, size_t n, const double *level, size_t levels, double s)
{
    double top = level[levels - 1] * s;
    for (size_t i = 0; i < n; i++) {
        double want = distance(x[i], level, levels, s), got = fabs((double)x[i] - y[i]), slack = 4 * 0x1p-24 * fmin(fabs((double)x[i]), top);
        ck_assert_msg(distance(y[i], level, levels, s) <= slack, "%g is no level of scale %g", (double)y[i], s);
        ck_assert_msg(got <= want + slack, "%g became %g: off by %g, %g is possible", (double)x[i], (double)y[i], got, want);
        ck_assert(x[i] == 0 ? y[i] == 0 : (double)x[i] * y[i] >= 0);
    }
}

START_TEST(stored_scales)
{
    float x[N], y[N];
    fill_levels();
    for (unsigned k = 0; k < 6; k++) {
        fill(x, k, k % 2);
        const mla_kv_format f[] = {MLA_KV_FP8, MLA_KV_FP8_HEAD, MLA_KV_INT8, MLA_KV_INT8_HEAD};
        for (size_t i = 0; i < 4; i++) {
            float s = mla_kv_format_scale(f[i], 3, 1.5) * (1 + 0.11f * (float)k);
            memcpy(y, x, sizeof y);
            mla_kv_code(f[i], y, N, s);
            if (i < 2) check_nearest(x, y, N, E4M3, 127, s);
            else check_nearest(x, y, N, INT8, 128, s);
            for (size_t j = 0; j < N; j++) { /* the bounds that follow from the formats */
                double e = fabs((double)x[j] - y[j]), a = fabs((double)x[j]), most = (i < 2 ? 448.0 : 127.0) * (double)s;
                if (a > most) ck_assert(fabs(fabs((double)y[j]) - most) <= 1e-6 * most);
                else ck_assert(e <= (i < 2 ? fmax(a / 16, (double)s * 0x1p-10) : (double)s / 2) * (1 + 1e-6));
            }
        }
    }
    ck_assert(mla_kv_format_scale(MLA_KV_FP8, 448, 2) == 2 && mla_kv_format_scale(MLA_KV_INT8, 127, 2) == 1);
    ck_assert(mla_kv_format_scale(MLA_KV_NVFP4, 448 * 6, 2) == 2);
}
END_TEST

/* A token's scale: bf16, at least largest / 448 or / 127 and at most one bf16 step (2^-7) above: nothing saturates. */
START_TEST(scales_of_a_token)
{
    float x[N], y[N];
    fill_levels();
    for (unsigned k = 0; k < 6; k++) {
        fill(x, 40 + k, k % 2);
        double most = 0;
        for (size_t i = 0; i < N; i++) most = fmax(most, fabs((double)x[i]));
        for (int integer = 0; integer < 2; integer++) {
            double top = integer ? 127 : 448;
            uint16_t h = mla_f32_bf16((float)(most / top));
            if (mla_bf16_f32(h) < (float)most / (float)top) h++;
            double s = mla_bf16_f32(h);
            ck_assert(s * top >= most * (1 - 1e-6) && s * top <= most * (1 + 0x1p-7));
            memcpy(y, x, sizeof y);
            mla_kv_code(integer ? MLA_KV_INT8_TOKEN : MLA_KV_FP8_TOKEN, y, N, 0);
            check_nearest(x, y, N, integer ? INT8 : E4M3, integer ? 128 : 127, s);
        }
    }
    memset(x, 0, sizeof x);
    mla_kv_code(MLA_KV_FP8_TOKEN, x, N, 0);
    mla_kv_code(MLA_KV_NVFP4, x, N, 1);
    for (size_t i = 0; i < N; i++) ck_assert(x[i] == 0);
}
END_TEST

START_TEST(blocks_of_sixteen)
{
    float x[N], y[N];
    fill_levels();
    for (unsigned k = 0; k < 6; k++) {
        fill(x, 90 + k, k % 2);
        memcpy(y, x, sizeof y);
        float s = mla_kv_format_scale(MLA_KV_NVFP4, 1000, 1);
        size_t n = k == 5 ? N - 9 : N; /* the last block shorter */
        mla_kv_code(MLA_KV_NVFP4, y, n, s);
        for (size_t b = 0; b < n; b += 16) {
            size_t len = n - b < 16 ? n - b : 16;
            double most = 0, best = INFINITY, bs = 0;
            for (size_t i = b; i < b + len; i++) most = fmax(most, fabs((double)x[i]));
            for (size_t i = 0; i < 127; i++) /* the block's scale is the e4m3 value nearest to most / (6 s) */
                if (fabs(E4M3[i] - most / (6 * (double)s)) < best) best = fabs(E4M3[i] - most / (6 * (double)s)), bs = E4M3[i] * (double)s;
            ck_assert(bs > 0);
            check_nearest(x + b, y + b, len, E2M1, 8, (double)(float)bs);
        }
        for (size_t i = n; i < N; i++) ck_assert(y[i] == x[i]);
    }
    for (size_t i = 0; i < N; i++) x[i] = y[i] = (float)i - 40.3f;
    mla_kv_code(MLA_KV_BF16, y, N, 0);
    for (size_t i = 0; i < N; i++) ck_assert(y[i] == mla_bf16_f32(mla_f32_bf16(x[i])));
}
END_TEST

START_TEST(sizes)
{
    ck_assert(mla_kv_format_bytes(MLA_KV_BF16, 128, 64, 64) == 256 && mla_kv_format_bytes(MLA_KV_FP8, 128, 64, 64) == 128);
    ck_assert(mla_kv_format_bytes(MLA_KV_INT8_HEAD, 128, 64, 64) == 128 && mla_kv_format_bytes(MLA_KV_FP8_TOKEN, 128, 64, 64) == 132);
    ck_assert(mla_kv_format_bytes(MLA_KV_INT8_TOKEN, 2 * 130, 130, 64) == 260 + 2 * 2 * 3);
    ck_assert(mla_kv_format_bytes(MLA_KV_NVFP4, 128, 64, 64) == 64 + 8 && mla_kv_format_bytes(MLA_KV_NVFP4, 40, 20, 20) == 20 + 4);
}
END_TEST

typedef struct { /* a codec with one scale per layer and part, as the runtime's FP8 cache has */
    const mla_cal *cal;
    mla_kv_format f;
    size_t calls;
} simple;

static mla_status simple_code(void *ctx, const mla_kv_rows *r, mla_err *err)
{
    simple *s = ctx;
    (void)err;
    s->calls++;
    ck_assert(r->rows > 0 && r->width % r->head == 0);
    for (size_t i = 0; i < s->cal->n; i++) {
        const mla_cal_layer *l = &s->cal->layer[i];
        bool keys = (r->part == 1) == (strcmp(l->k.name, "latent") == 0); /* rotary keys, or keys beside values */
        if (l->layer == r->layer) mla_kv_code(mla_kv_format_part(s->f, keys), r->x, r->rows * r->width, r->part ? l->v.scale : l->k.scale);
    }
    return MLA_OK;
}

static float *logits(mla_rt *rt, const int32_t *ids, size_t T)
{
    mla_err err = {0};
    size_t V = mla_rt_config(rt)->vocab;
    mla_seq *s;
    float *out = mla_alloc(T, V * sizeof *out, 1);
    ck_ok(mla_seq_new(&s, rt, T, &err));
    for (size_t at = 0; at < T; at += 48) { /* chunks: later ones attend to what was coded before */
        size_t n = T - at < 48 ? T - at : 48;
        mla_job j = {.seq = s, .ids = ids + at, .T = n, .logits = out + at * V};
        ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
    }
    mla_seq_free(s);
    return out;
}

static double mean_kld(const float *p, const float *q, size_t T, size_t V)
{
    mla_err err = {0};
    double sum = 0, one;
    for (size_t i = 0; i < T; i++) {
        ck_ok(mla_kld_row(&one, p + i * V, q + i * V, V, &err));
        sum += one;
    }
    return sum / (double)T;
}

/* An f32 cache behind a codec is the real cache of that format: all that may differ is f32 rounding inside attention,
 * far below what the format itself does. */
static void check_door(size_t groups, mla_layout layout)
{
    mla_err err = {0};
    enum { T = 100 };
    static const mla_kv_format F[] = {MLA_KV_BF16, MLA_KV_FP8, MLA_KV_FP8_KEYS16};
    lab l = lab_open(NULL, (mla_rt_opts){0}, 1), mixed = lab_open(NULL, (mla_rt_opts){.keys16 = true}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 256);
    if (groups) lab_exact_layout(&l, layout, groups), lab_exact_layout(&mixed, layout, groups);
    mla_cal c;
    double of[3];
    ck_ok(mla_cal_measure(&c, l.rt, ids, 256, MLA_CAL_MODELOPT, &(mla_cal_opts){.row_tokens = 128, .no_search = true}, &err));
    mla_rt *f32, *real;
    ck_ok(mla_rt_share(&f32, l.rt, MLA_F32, &err));
    float *exact = logits(f32, ids, T);
    for (int fp8 = 0; fp8 < 3; fp8++) {
        simple s = {&c, F[fp8], 0};
        ck_ok(mla_rt_share(&real, fp8 == 2 ? mixed.rt : l.rt, fp8 ? MLA_F8_E4M3 : MLA_BF16, &err));
        if (fp8) ck_ok(mla_cal_apply(&c, real, &err));
        mla_rt_set_codec(f32, simple_code, &s);
        float *a = logits(real, ids, T), *b = logits(f32, ids, T);
        double format = mean_kld(exact, a, T, l.c->vocab), door = mean_kld(a, b, T, l.c->vocab);
        ck_assert_msg(format > 0 && door <= 1e-3 * format, "format %g, door %g", format, door);
        of[fp8] = format;
        ck_assert_uint_eq(s.calls, 4 * (layout == MLA_LAYOUT_REBUILD ? 1 : 2) * 3);
        mla_free(a);
        mla_free(b);
        mla_rt_close(real);
    }
    if (layout == MLA_LAYOUT_REBUILD) ck_assert(of[2] == of[1]); /* no rotary keys beside the latent */
    else ck_assert_msg(of[2] > of[0] && of[2] < of[1] / 2, "bf16 %g, fp8 %g, fp8-keys16 %g", of[0], of[1], of[2]);
    mla_rt_set_codec(f32, NULL, NULL);
    float *again = logits(f32, ids, T);
    ck_assert(!memcmp(again, exact, (size_t)T * l.c->vocab * sizeof *again));
    mla_free(again);
    mla_free(exact);
    mla_rt_close(f32);
    mla_cal_free(&c);
    mla_free(ids);
    lab_close(&mixed);
    lab_close(&l);
}

START_TEST(door_of_keys_and_values) { check_door(0, MLA_LAYOUT_NONE); }
END_TEST
START_TEST(door_of_latents) { check_door(2, MLA_LAYOUT_N); }
END_TEST
START_TEST(door_of_grouped_latents) { check_door(4, MLA_LAYOUT_N); }
END_TEST
START_TEST(door_of_rebuilt_latents) { check_door(1, MLA_LAYOUT_REBUILD); }
END_TEST

static void check_study(size_t groups)
{
    mla_err err = {0};
    mla_study s[2];
    for (size_t k = 0; k < 2; k++) { /* the same for any number of threads */
        lab l = lab_open(NULL, (mla_rt_opts){0}, 1 + 2 * k);
        int32_t *tune = lab_ids(&l, "tune.jsonl", 400), *eval = lab_ids(&l, "evaluation.jsonl", 300);
        if (groups) lab_exact(&l, groups);
        mla_study_texts t = {tune, eval, 400, 300};
        ck_ok(mla_study_run(&s[k], l.rt, &t, &(mla_cal_opts){.row_tokens = 200, .search_rows = 1}, &err));
        mla_free(tune);
        mla_free(eval);
        lab_close(&l);
    }
    ck_assert(!memcmp(&s[0], &s[1], sizeof s[0]));
    const mla_study_row *r = s->row;
    for (size_t f = 0; f < MLA_KV_FORMATS; f++) {
        ck_assert(r[f].format == (mla_kv_format)f && r[f].v.positions == 300 && r[f].v.kld_mean > 0 && r[f].v.agree > 240);
        ck_assert(r[f].v.kld_mean <= r[f].v.kld_max && r[f].v.kld_p99 <= r[f].v.kld_max);
    }
    ck_assert(s->f32_bytes == 4096 && s->retrofit == (groups > 0) && s->tokens == 400); /* 4 layers, 4 heads, 32 dims, K and V */
    ck_assert(r[MLA_KV_BF16].bytes == 2048 && r[MLA_KV_FP8].bytes == 1024 && r[MLA_KV_INT8_HEAD].bytes == 1024);
    ck_assert(r[MLA_KV_NVFP4].bytes == (groups ? 584 : 576)); /* rotary keys of 8 values are blocks of their own */
    ck_assert(r[MLA_KV_FP8_TOKEN].bytes == r[MLA_KV_INT8_TOKEN].bytes && r[MLA_KV_FP8_TOKEN].bytes > 1024);
    /* 8 bits of mantissa, 7 bits of a linear code, 3 bits of mantissa, 1 bit */
    ck_assert(r[MLA_KV_BF16].v.kld_mean < r[MLA_KV_INT8].v.kld_mean && r[MLA_KV_INT8].v.kld_mean < r[MLA_KV_FP8].v.kld_mean);
    ck_assert(r[MLA_KV_FP8].v.kld_mean < r[MLA_KV_NVFP4].v.kld_mean);
    /* keys carry most of fp8's error; 4 layers of 4 heads with 8 rotary dims, or 32 dims, at a byte more each */
    ck_assert(r[MLA_KV_FP8_KEYS16].bytes == (groups ? 1152 : 1536) && r[MLA_KV_FP8_KEYS16].v.kld_mean < r[MLA_KV_FP8].v.kld_mean / 2);
}

START_TEST(study_of_keys_and_values) { check_study(0); }
END_TEST
START_TEST(study_of_latents) { check_study(2); }
END_TEST

START_TEST(study_refusals)
{
    mla_err err = {0};
    mla_study s;
    lab l = lab_open(NULL, (mla_rt_opts){.mtp = true}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 64);
    ck_refused(mla_study_run(&s, l.rt, &(mla_study_texts){ids, ids, 64, 64}, NULL, &err), MLA_EINVAL, "without the MTP head");
    lab_close(&l);
    l = lab_open(NULL, (mla_rt_opts){0}, 1);
    ck_refused(mla_study_run(&s, l.rt, &(mla_study_texts){ids, ids, 0, 64}, NULL, &err), MLA_EINVAL, "no");
    ck_refused(mla_study_run(&s, l.rt, &(mla_study_texts){ids, ids, 64, 0}, NULL, &err), MLA_EINVAL, "nothing to judge");
    mla_free(ids);
    lab_close(&l);
}
END_TEST

Suite *study_suite(void)
{
    Suite *s = suite_create("study");
    TCase *t = tcase_create("study");
    tcase_add_test(t, stored_scales);
    tcase_add_test(t, scales_of_a_token);
    tcase_add_test(t, blocks_of_sixteen);
    tcase_add_test(t, sizes);
    tcase_add_test(t, door_of_keys_and_values);
    tcase_add_test(t, door_of_latents);
    tcase_add_test(t, door_of_grouped_latents);
    tcase_add_test(t, door_of_rebuilt_latents);
    tcase_add_test(t, study_of_keys_and_values);
    tcase_add_test(t, study_of_latents);
    tcase_add_test(t, study_refusals);
    suite_add_tcase(s, t);
    return s;
}
