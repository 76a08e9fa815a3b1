/* Measuring and judging: ranges against a direct look, quality of the FP8 cache, refusals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lab.h"

#ifdef __SANITIZE_ADDRESS__
enum { ROW = 512 };
#else
enum { ROW = 1024 };
#endif

/* The figure that must hold, FP8 against bf16 cache, scales from other text: here on one row, on 8192 tokens in tests/e2e/calibrate.sh. */
static void check_quality(size_t groups)
{
    const size_t n = ROW, n_tune = 2 * ROW;
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){.mtp = groups == 0}, 1);
    int32_t *tune = lab_ids(&l, "tune.jsonl", n_tune), *eval = lab_ids(&l, "evaluation.jsonl", n);
    mla_cal c;
    if (groups) lab_exact(&l, groups);
    ck_ok(mla_cal_measure(&c, l.rt, tune, n_tune, MLA_CAL_CT, &(mla_cal_opts){.row_tokens = ROW}, &err));
    ck_assert_uint_eq(c.n, groups ? 4 : 5);
    ck_ok(mla_cal_judge(&c, l.rt, eval, n, &err));
    if (getenv("MLA_TEST_FIGURES")) {
        mla_str s = MLA_STR_MAX(1 << 16);
        mla_cal_text(&c, &s);
        printf("groups %zu\n%s", groups, mla_str_c(&s));
        mla_str_free(&s);
    }
    ck_assert_uint_eq(c.verdict.positions, n);
    ck_assert_msg(c.verdict.kld_mean > 1e-5 && c.verdict.kld_mean <= 0.0015, "mean KLD %g", c.verdict.kld_mean);
    ck_assert(c.verdict.kld_mean <= c.verdict.kld_p99 && c.verdict.kld_p99 <= c.verdict.kld_max);
    ck_assert(c.verdict.agree > n * 97 / 100 && c.verdict.agree <= n);
    for (size_t i = 0; i < 4; i++) {
        const mla_cal_part *p[2] = {&c.layer[i].k, &c.layer[i].v};
        for (size_t k = 0; k < 2; k++) {
            ck_assert(p[k]->judged % n == 0 && p[k]->judged > 0);
            ck_assert_msg(p[k]->saturated == 0, "%llu saturated", (unsigned long long)p[k]->saturated);
            ck_assert(p[k]->underflowed < p[k]->judged / 100);
        }
        ck_assert_msg((groups ? c.layer[i].v : c.layer[i].k).bound > 0, "no bound");
    }
    mla_cal_free(&c);
    mla_free(tune);
    mla_free(eval);
    lab_close(&l);
}

START_TEST(fp8_cache_of_keys_and_values) { check_quality(0); }
END_TEST
START_TEST(fp8_cache_of_a_full_rank_latent) { check_quality(1); }
END_TEST
START_TEST(fp8_cache_of_grouped_latents) { check_quality(2); }
END_TEST

/* Absurd scales are seen as what they are. */
START_TEST(bad_scales_are_seen)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){0}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 600);
    mla_cal c;
    ck_ok(mla_cal_measure(&c, l.rt, ids, 600, MLA_CAL_CT, &(mla_cal_opts){.row_tokens = 300}, &err));
    ck_ok(mla_cal_judge(&c, l.rt, ids, 600, &err));
    double good = c.verdict.kld_mean;
    c.layer[1].v.scale /= 64;
    ck_ok(mla_cal_judge(&c, l.rt, ids, 600, &err));
    ck_assert(c.layer[1].v.saturated > 0 && c.layer[2].v.saturated == 0 && c.verdict.kld_mean > 3 * good);
    c.layer[1].v.scale *= 64.0f * 65536;
    ck_ok(mla_cal_judge(&c, l.rt, ids, 600, &err));
    ck_assert(c.layer[1].v.saturated == 0 && c.layer[1].v.underflowed > c.layer[1].v.judged / 10 && c.verdict.kld_mean > 3 * good);
    mla_cal_free(&c);
    mla_free(ids);
    lab_close(&l);
}
END_TEST

typedef struct { /* all values of one tap, collected directly */
    float *v;
    size_t n, layer;
    mla_tap_point point;
} collected;

static mla_status collect(void *ctx, const mla_tap *t, mla_err *err)
{
    collected *c = ctx;
    if (t->point != c->point || t->layer != c->layer) return MLA_OK;
    ck_assert_uint_eq(t->ld, t->width);
    mla_status st = t->be->ops->download(t->be, c->v + c->n, t->data, t->rows * t->width * 4, err);
    c->n += t->rows * t->width;
    return st;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

START_TEST(ranges_and_percentiles)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){0}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 700);
    collected d = {.layer = 3, .point = MLA_TAP_V, .v = mla_alloc(700 * 128, 4, 1)};
    for (size_t at = 0; at < 700; at += 256) { /* rows of 256, each from position 0 */
        mla_seq *s;
        size_t T = 700 - at < 256 ? 700 - at : 256;
        ck_ok(mla_seq_new(&s, l.rt, T, &err));
        mla_job j = {.seq = s, .ids = ids + at, .T = T, .logits_from = T};
        ck_ok(mla_rt_run(l.rt, &j, 1, collect, &d, &err));
        mla_seq_free(s);
    }
    double sum2 = 0;
    for (size_t i = 0; i < d.n; i++) {
        sum2 += (double)d.v[i] * d.v[i];
        d.v[i] = fabsf(d.v[i]);
    }
    qsort(d.v, d.n, sizeof *d.v, ascending);
    for (int pct = 0; pct < 2; pct++) {
        mla_cal c;
        ck_ok(mla_cal_measure(&c, l.rt, ids, 700, MLA_CAL_MODELOPT, &(mla_cal_opts){.row_tokens = 256, .run_tokens = 512, .percentile = pct ? 99 : 0, .headroom = 2, .no_search = true}, &err));
        const mla_cal_part *v = &c.layer[1].v;
        ck_assert(c.rows == 3 && c.tokens == 700 && c.layer[1].layer == 3 && v->n == d.n && v->amax == d.v[d.n - 1]);
        ck_assert(fabs(v->sum2 - sum2) <= 1e-9 * sum2);
        double exact = d.v[(size_t)ceil(0.99 * (double)d.n) - 1], limit = pct ? v->percentile : v->amax;
        if (pct) ck_assert_msg(v->percentile >= exact && v->percentile <= exact * (1 + 1.0 / 32) * 1.0001, "%g for %g", v->percentile, exact);
        ck_assert(v->scale == (float)(2 * limit / 448) && v->scale == v->base && v->error[0] == 0);
        const mla_cal_part *k = &c.layer[1].k; /* keys stop at their bound */
        ck_assert(k->bound > 0 && k->amax <= k->bound && k->scale <= (float)(k->bound / 448) && k->scale >= (float)((pct ? k->percentile : k->amax) / 448));
        mla_cal_free(&c);
    }
    mla_free(d.v);
    mla_free(ids);
    lab_close(&l);
}
END_TEST

/* The alignment taken is the one whose trials changed the attention output least, within one octave above the limit. */
START_TEST(alignment)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){.mtp = true}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 400);
    mla_cal c;
    ck_ok(mla_cal_measure(&c, l.rt, ids, 400, MLA_CAL_MODELOPT, &(mla_cal_opts){.row_tokens = 100, .search_rows = 3}, &err));
    size_t moved = 0;
    for (size_t i = 0; i < 2 * c.n; i++) {
        const mla_cal_part *p = i % 2 ? &c.layer[i / 2].v : &c.layer[i / 2].k;
        size_t best = 0;
        for (size_t j = 0; j < 8; j++) {
            ck_assert(p->error[j] > 0);
            if (p->error[j] < p->error[best]) best = j;
        }
        ck_assert(p->scale == (float)(p->base * exp2((double)best / 8)) && p->scale >= p->base && p->scale < 2 * p->base);
        moved += best > 0;
    }
    ck_assert(moved > c.n);
    mla_cal_free(&c);
    mla_free(ids);
    lab_close(&l);
}
END_TEST

START_TEST(threads_batches_and_streaming_agree)
{
    mla_err err = {0};
    mla_str want = MLA_STR_MAX(1 << 16);
    for (int k = 0; k < 6; k++) { /* 4: three rows at once; 5: asked of streamed layers, which keep to one */
        lab l = lab_open(NULL, (mla_rt_opts){.mtp = true, .stream_layers = k == 3 || k == 5}, k == 1 ? 2 : 1);
        mla_pool *pool = NULL;
        if (k >= 4) ck_ok(mla_pool_new(&pool, 3, &err));
        int32_t *ids = lab_ids(&l, "tune.jsonl", 500);
        mla_cal c;
        mla_json *doc;
        mla_str got = MLA_STR_MAX(1 << 16);
        ck_ok(mla_cal_measure(&c, l.rt, ids, 500, MLA_CAL_CT, &(mla_cal_opts){.row_tokens = 128, .run_tokens = k == 2 ? 128 : 512, .percentile = 99.9, .pool = pool}, &err));
        ck_ok(mla_cal_json(&doc, &c, &err));
        ck_ok(mla_json_print(&got, mla_json_root(doc), true, &err));
        if (!k) mla_str_put(&want, mla_str_c(&got));
        else ck_assert_str_eq(mla_str_c(&want), mla_str_c(&got));
        ck_assert(strstr(mla_str_c(&got), "\"mtp.0\"") != NULL);
        mla_json_free(doc);
        mla_str_free(&got);
        mla_cal_free(&c);
        mla_free(ids);
        mla_pool_free(pool);
        lab_close(&l);
    }
    mla_str_free(&want);
}
END_TEST

static void set_factor(lab *l, size_t layer, float e)
{
    mla_err err = {0};
    mla_factors f;
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, 1, 224, 224, &err));
    mla_factors_identity(&f);
    for (size_t i = 0; i < 224 * 224; i++) f.E[i] *= e;
    ck_ok(mla_rt_set_factors(l->rt, layer, &f, &err));
    mla_factors_free(&f);
}

START_TEST(refused)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){0}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 100);
    mla_cal c;
    ck_refused(mla_cal_measure(&c, l.rt, ids, 0, MLA_CAL_CT, NULL, &err), MLA_EINVAL, "no");
    mla_cal_free(&c);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 10, MLA_CAL_CT, &(mla_cal_opts){.headroom = 0.5}, &err), MLA_EINVAL, "headroom");
    mla_cal_free(&c);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 10, MLA_CAL_CT, &(mla_cal_opts){.headroom = NAN}, &err), MLA_EINVAL, "headroom");
    mla_cal_free(&c);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 10, MLA_CAL_CT, &(mla_cal_opts){.percentile = 101}, &err), MLA_EINVAL, "percentile");
    mla_cal_free(&c);
    set_factor(&l, 3, 3e38f); /* finite factors, latents beyond f32 */
    ck_refused(mla_cal_measure(&c, l.rt, ids, 100, MLA_CAL_CT, &(mla_cal_opts){.row_tokens = 40}, &err), MLA_EFORMAT, "layer 3:");
    ck_assert_msg(strstr(err.msg, "latent are not finite") && strstr(err.msg, "of corpus row 0"), "%s", err.msg);
    mla_cal_free(&c);
    set_factor(&l, 3, 0);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 100, MLA_CAL_CT, NULL, &err), MLA_EFORMAT, "layer 3: all");
    mla_cal_free(&c);
    set_factor(&l, 3, 1);
    ck_ok(mla_cal_measure(&c, l.rt, ids, 100, MLA_CAL_CT, NULL, &err));
    ck_assert(!strcmp(c.layer[1].k.name, "latent") && !strcmp(c.layer[0].k.name, "keys")); /* mixed layers */
    ck_refused(mla_cal_judge(&c, l.rt, ids, 0, &err), MLA_EINVAL, "no tokens");
    mla_cal_free(&c);
    mla_free(ids);
    lab_close(&l);
}
END_TEST

/* A layer whose taps stay silent must not get a scale: one token has no second token for the MTP head to embed. */
START_TEST(a_layer_never_observed_is_named)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){.mtp = true}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 8);
    mla_cal c;
    ck_refused(mla_cal_measure(&c, l.rt, ids, 1, MLA_CAL_CT, NULL, &err), MLA_EFORMAT, "MTP layer 0: its keys were never observed");
    mla_cal_free(&c);
    ck_ok(mla_cal_measure(&c, l.rt, ids, 8, MLA_CAL_CT, NULL, &err));
    mla_cal_free(&c);
    mla_free(ids);
    lab_close(&l);
}
END_TEST

typedef struct { /* a codec that changes nothing and fails at its last call */
    size_t calls, last;
} fuse;

static mla_status burn(void *ctx, const mla_kv_rows *r, mla_err *err)
{
    fuse *f = ctx;
    return ++f->calls == f->last ? mla_fail(err, MLA_EIO, "cut off in layer %zu", r->layer) : MLA_OK;
}

/* Cut off after two of three passes and taken up again: the same ranges and scales, of rows measured once. */
static void check_kept(double percentile)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){.mtp = true}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 250);
    char *dir = mla_test_tmpdir(), path[600];
    snprintf(path, sizeof path, "%s/kept", dir);
    mla_cal_opts o = {.row_tokens = 50, .run_tokens = 100, .search_rows = 1, .percentile = percentile}, k = o;
    k.keep = path;
    k.keep_key[3] = 7;
    mla_cal plain, c;
    fuse f = {0};
    mla_rt_set_codec(l.rt, burn, &f);
    ck_ok(mla_cal_measure(&plain, l.rt, ids, 250, MLA_CAL_CT, &o, &err));
    size_t all = f.calls;
    /* two parts: 4 layers in each of 3 passes, the head in each of 5 rows, and all 5 layers in the row of the search */
    ck_assert_uint_eq(all, 2 * 4 * 3 + 2 * 5 + 2 * 5);
    f = (fuse){.last = 28}; /* in the third pass */
    ck_refused(mla_cal_measure(&c, l.rt, ids, 250, MLA_CAL_CT, &k, &err), MLA_EIO, "cut off");
    mla_cal_free(&c);
    mla_cal_opts other = k;
    other.keep_key[0] = 1;
    ck_refused(mla_cal_measure(&c, l.rt, ids, 250, MLA_CAL_CT, &other, &err), MLA_EINVAL, "another model, text or options");
    mla_cal_free(&c);
    f = (fuse){0};
    ck_ok(mla_cal_measure(&c, l.rt, ids, 250, MLA_CAL_CT, &k, &err));
    ck_assert_uint_eq(f.calls, 2 * 4 + 2 + 2 * 5); /* the third pass and the search */
    for (size_t i = 0; i < c.n; i++) {
        mla_cal_part *a[2] = {&c.layer[i].k, &c.layer[i].v}, *b[2] = {&plain.layer[i].k, &plain.layer[i].v};
        for (size_t j = 0; j < 2; j++) {
            ck_assert(a[j]->amax == b[j]->amax && a[j]->sum2 == b[j]->sum2 && a[j]->n == b[j]->n);
            ck_assert(a[j]->scale == b[j]->scale && a[j]->percentile == b[j]->percentile);
        }
    }
    mla_cal_free(&c);
    FILE *h = fopen(path, "r+b"); /* one bit of a range */
    ck_assert(h && fseek(h, 60, SEEK_SET) == 0);
    int byte = fgetc(h);
    ck_assert(fseek(h, 60, SEEK_SET) == 0 && fputc(byte ^ 1, h) != EOF && fclose(h) == 0);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 250, MLA_CAL_CT, &k, &err), MLA_EFORMAT, "damaged");
    mla_cal_free(&c);
    mla_cal_free(&plain);
    mla_free(dir);
    mla_free(ids);
    lab_close(&l);
}

/* With rows side by side: a failure names the first row that failed, and what was kept by one thread goes on with three. */
START_TEST(rows_at_once)
{
    mla_err err = {0};
    lab l = lab_open(NULL, (mla_rt_opts){0}, 1);
    int32_t *ids = lab_ids(&l, "tune.jsonl", 700);
    char *dir = mla_test_tmpdir(), path[600];
    snprintf(path, sizeof path, "%s/kept", dir);
    mla_cal plain, c;
    mla_cal_opts o = {.row_tokens = 100, .run_tokens = 200, .no_search = true};
    ck_ok(mla_cal_measure(&plain, l.rt, ids, 700, MLA_CAL_CT, &o, &err));
    fuse f = {.last = 2 * 4 * 2 + 3};
    o.keep = path;
    mla_rt_set_codec(l.rt, burn, &f);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 700, MLA_CAL_CT, &o, &err), MLA_EIO, "cut off");
    mla_cal_free(&c);
    mla_rt_set_codec(l.rt, NULL, NULL);
    ck_ok(mla_pool_new(&o.pool, 3, &err));
    ck_ok(mla_cal_measure(&c, l.rt, ids, 700, MLA_CAL_CT, &o, &err)); /* three rows are left for three threads */
    for (size_t i = 0; i < c.n; i++) {
        const mla_cal_part *a = &c.layer[i].v, *b = &plain.layer[i].v;
        ck_assert(a->amax == b->amax && a->sum2 == b->sum2 && a->n == b->n && a->scale == b->scale);
    }
    mla_cal_free(&c);
    mla_cal_free(&plain);
    o.keep = NULL;
    int32_t keep = ids[350];
    ids[350] = -1;
    ids[650] = -1;
    ck_refused(mla_cal_measure(&c, l.rt, ids, 700, MLA_CAL_CT, &o, &err), MLA_EINVAL, "token 50 has id -1");
    mla_cal_free(&c);
    ids[350] = keep;
    set_factor(&l, 3, 3e38f);
    ck_refused(mla_cal_measure(&c, l.rt, ids, 500, MLA_CAL_CT, &o, &err), MLA_EFORMAT, "of corpus row 0");
    mla_cal_free(&c);
    mla_pool_free(o.pool);
    mla_free(dir);
    mla_free(ids);
    lab_close(&l);
}
END_TEST

START_TEST(kept_ranges) { check_kept(0); }
END_TEST
START_TEST(kept_histograms) { check_kept(99.9); }
END_TEST

Suite *measure_suite(void)
{
    Suite *s = suite_create("measure");
    TCase *t = tcase_create("measure");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, fp8_cache_of_keys_and_values);
    tcase_add_test(t, fp8_cache_of_a_full_rank_latent);
    tcase_add_test(t, fp8_cache_of_grouped_latents);
    tcase_add_test(t, bad_scales_are_seen);
    tcase_add_test(t, ranges_and_percentiles);
    tcase_add_test(t, alignment);
    tcase_add_test(t, threads_batches_and_streaming_agree);
    tcase_add_test(t, refused);
    tcase_add_test(t, a_layer_never_observed_is_named);
    suite_add_tcase(s, t);
    t = tcase_create("keep");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, kept_ranges);
    tcase_add_test(t, kept_histograms);
    tcase_add_test(t, rows_at_once);
    suite_add_tcase(s, t);
    return s;
}
