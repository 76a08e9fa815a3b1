/* Retrofit layouts with exact and damaged factors, absorbed and expanded; short cache formats and their scales. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "tensor/compare.h"

enum { N = 72 };

static void set_all(const world *w, mla_rt *rt, mla_layout layout, size_t groups, size_t rank)
{
    mla_err err = {0};
    mla_factors f;
    size_t n;
    ck_ok(mla_factors_dims(w->c, layout, groups, &n, &err));
    ck_ok(mla_factors_new(&f, layout, groups, n, rank ? rank : n, &err));
    mla_factors_identity(&f);
    for (size_t l = 0; l < w->c->layers; l++)
        if (w->c->layer_kind[l] == MLA_LAYER_FULL) ck_ok(mla_rt_set_factors(rt, l, &f, &err));
    mla_factors_free(&f);
}

/* Full rank equals the base: prefill, decode and both forms of each. */
static void check_exact(mla_layout layout, size_t groups)
{
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *base = world_rt(&w, (mla_rt_opts){0});
    float *want = run_chunks(base, ids, N, 0, 0, 0);
    size_t bytes = mla_rt_kv_bytes_per_token(base);
    mla_rt_close(base);
    bytes += 4 * mla_config_full_layers(w.c) * mla_layout_divisors(w.c, layout);
    for (int form = 0; form < 4; form += groups == 1 && layout != MLA_LAYOUT_REBUILD ? 1 : 3) {
        mla_rt *rt = world_rt(&w, (mla_rt_opts){.absorb_prefill = form & 1, .expand_decode = form >> 1, .page_tokens = 16});
        set_all(&w, rt, layout, groups, 0);
        ck_assert_uint_eq(mla_rt_kv_bytes_per_token(rt), bytes); /* lossless keeps what the base caches, and divisors in layout p */
        for (size_t chunk = 0; chunk < 3; chunk++) {
            float *got = run_chunks(rt, ids, N, 0, chunk == 2 ? 45 : chunk, 0);
            mla_cmp c = mla_compare(got, want, N * V);
            double kld = mean_kld(want, got, N, V), tol = path_bound(w.c, (double)w.c->layers, N) * c.max_want;
            if (getenv("MLA_TEST_FIGURES"))
                printf("layout %d groups %zu form %d chunk %zu: max error %.3g of %.3g allowed, KLD %.3g\n", (int)layout, groups, form,
                       chunk, c.max_abs, tol, kld);
            ck_assert_msg(mla_cmp_ok(c, tol), "groups %zu form %d chunk %zu: error %g, allowed %g", groups, form, chunk, c.max_abs, tol);
            ck_assert_msg(kld <= 1e-6, "groups %zu form %d: KLD %g", groups, form, kld);
            mla_free(got);
        }
        mla_rt_close(rt);
    }
    mla_free(want);
    mla_free(ids);
    world_close(&w);
}

START_TEST(exact_mla) { check_exact(MLA_LAYOUT_N, 1); }
END_TEST
START_TEST(exact_gla2) { check_exact(MLA_LAYOUT_N, 2); }
END_TEST
START_TEST(exact_gla4) { check_exact(MLA_LAYOUT_N, 4); }
END_TEST
START_TEST(exact_rebuild) { check_exact(MLA_LAYOUT_REBUILD, 1); }
END_TEST

START_TEST(exact_p) { check_exact(MLA_LAYOUT_P, 1); }
END_TEST
START_TEST(exact_p_gla2) { check_exact(MLA_LAYOUT_P, 2); }
END_TEST
START_TEST(exact_p_gla4) { check_exact(MLA_LAYOUT_P, 4); }
END_TEST

/* Layout p with a rotated latent of full rank, a mean and centres: still exact, so the mean's part of the logit, the
 * gain and the centres stand where they belong; and at a smaller rank all forms and cuts agree. */
START_TEST(p_mean_and_centres)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *base = world_rt(&w, (mla_rt_opts){0});
    float *want = run_chunks(base, ids, N, 0, 0, 0), *first = NULL;
    mla_rt_close(base);
    for (size_t rank = 112; rank >= 80; rank -= 32)
        for (int form = 0; form < 4; form++) {
            mla_factors f;
            ck_ok(mla_factors_new(&f, MLA_LAYOUT_P, 2, 112, rank, &err));
            ck_ok(mla_factors_centers(&f, 4, &err));
            for (size_t a = 0; a < 2; a++)
                for (size_t i = 0; i < 112; i++) {
                    f.mu[a * 112 + i] = 0.3f * (float)((i * 7 + a) % 5) - 0.6f;
                    for (size_t j = 0; j < rank; j++) { /* reversed order, scales 1/2 and 2: exact in f32 */
                        f.E[(a * rank + j) * 112 + i] = i == 111 - j ? 0.5f : 0;
                        f.D[(a * 112 + i) * rank + j] = i == 111 - j ? 2 : 0;
                    }
                }
            for (size_t g = 0; g < 4; g++) f.center[g] = 0.5f + 0.4f * (float)g;
            mla_rt *rt = world_rt(&w, (mla_rt_opts){.absorb_prefill = form & 1, .expand_decode = form >> 1, .page_tokens = 16});
            for (size_t l = 0; l < w.c->layers; l++)
                if (w.c->layer_kind[l] == MLA_LAYER_FULL) ck_ok(mla_rt_set_factors(rt, l, &f, &err));
            for (size_t chunk = 0; chunk < 2; chunk++) {
                float *got = run_chunks(rt, ids, N, 0, chunk, 0);
                const float *ref = rank == 112 ? want : first;
                if (!ref) first = got;
                else {
                    mla_cmp c = mla_compare(got, ref, N * V);
                    double tol = path_bound(w.c, (double)w.c->layers, N) * c.max_want;
                    ck_assert_msg(mla_cmp_ok(c, tol), "rank %zu form %d chunk %zu: error %g, allowed %g", rank, form, chunk, c.max_abs, tol);
                    mla_free(got);
                }
            }
            mla_rt_close(rt);
            mla_factors_free(&f);
        }
    ck_assert(mean_kld(want, first, N, V) > 1e-3); /* the smaller rank is another model */
    mla_free(first), mla_free(want), mla_free(ids);
    world_close(&w);
}
END_TEST

/* Same bits whatever the cut, in layout p, too. */
START_TEST(p_chunks)
{
    world w = world_open(NULL, 2);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *rt = world_rt(&w, (mla_rt_opts){.kv_dtype = MLA_BF16, .page_tokens = 16, .absorb_prefill = true});
    set_all(&w, rt, MLA_LAYOUT_P, 2, 90);
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    for (size_t chunk = 1; chunk < 60; chunk += 14) {
        float *got = run_chunks(rt, ids, N, 0, chunk, 0);
        ck_assert_msg(!memcmp(got, want, N * V * 4), "chunks of %zu", chunk);
        mla_free(got);
    }
    mla_rt_close(rt);
    mla_free(want), mla_free(ids);
    world_close(&w);
}
END_TEST

/* A rank that drops features must be seen, and removing the factors gives the base back. */
START_TEST(truncation_and_removal)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    double before = 0;
    for (size_t rank = 220; rank >= 140; rank -= 40) {
        set_all(&w, rt, MLA_LAYOUT_N, 1, rank);
        float *got = run_chunks(rt, ids, N, 0, 0, 0);
        double kld = mean_kld(want, got, N, V);
        ck_assert_msg(kld > before && kld > 1e-4, "rank %zu: KLD %g after %g", rank, kld, before);
        before = kld;
        mla_free(got);
    }
    for (size_t l = 0; l < w.c->layers; l++)
        if (w.c->layer_kind[l] == MLA_LAYER_FULL) ck_ok(mla_rt_set_factors(rt, l, NULL, &err));
    float *got = run_chunks(rt, ids, N, 0, 0, 0);
    ck_assert(!memcmp(got, want, N * V * 4));
    mla_free(got), mla_free(want), mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

static void set_scales(const world *w, mla_rt *rt, float k, float v)
{
    mla_err err = {0};
    for (size_t l = 0; l < w->c->layers; l++)
        if (w->c->layer_kind[l] == MLA_LAYER_FULL) ck_ok(mla_rt_set_kv_scale(rt, l, (mla_kv_scale){true, k, v}, &err));
}

/* A bf16 cache is near f32, FP8 farther, FP8 with an absurd scale (saturating) far: all finite. */
START_TEST(short_caches)
{
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    size_t bytes = mla_rt_kv_bytes_per_token(rt);
    mla_rt_close(rt);
    for (int latent = 0; latent < 3; latent++) {
        double kld[3];
        for (int kind = 0; kind < 3; kind++) {
            rt = world_rt(&w, (mla_rt_opts){.kv_dtype = kind ? MLA_F8_E4M3 : MLA_BF16});
            if (latent) set_all(&w, rt, latent == 1 ? MLA_LAYOUT_N : MLA_LAYOUT_P, 1, 0);
            if (kind) set_scales(&w, rt, kind == 1 ? 0.0625f : 0.0005f, kind == 1 ? 0.0625f : 0.0005f);
            size_t more = latent == 2 ? mla_config_full_layers(w.c) * w.c->kv_heads * (kind ? 1 : 2) : 0;
            ck_assert_uint_eq(mla_rt_kv_bytes_per_token(rt), bytes / (kind ? 4 : 2) + more);
            float *got = run_chunks(rt, ids, N, 0, 50, 0);
            kld[kind] = mean_kld(want, got, N, V);
            mla_free(got);
            mla_rt_close(rt);
        }
        if (getenv("MLA_TEST_FIGURES")) printf("%s cache KLD: bf16 %.3g, fp8 %.3g, saturated %.3g\n", latent == 2 ? "layout p" : latent ? "latent" : "GQA", kld[0], kld[1], kld[2]);
        ck_assert(kld[0] > 0 && kld[0] < 1e-4 && kld[1] > kld[0] && kld[1] < 0.01 && kld[2] > 10 * kld[1]);
    }
    mla_free(want), mla_free(ids);
    world_close(&w);
}
END_TEST

START_TEST(fp8_needs_scales)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){.kv_dtype = MLA_F8_E4M3, .mtp = true});
    mla_seq *s;
    ck_refused(mla_seq_new(&s, rt, 8, &err), MLA_EINVAL, "layer 1:");
    set_scales(&w, rt, 1, 1);
    ck_refused(mla_seq_new(&s, rt, 8, &err), MLA_EINVAL, "MTP layer 0:");
    ck_ok(mla_rt_set_kv_scale(rt, MLA_MTP(0), (mla_kv_scale){true, 1, 1}, &err));
    ck_ok(mla_seq_new(&s, rt, 8, &err));
    mla_seq_free(s);
    ck_refused(mla_rt_set_kv_scale(rt, 1, (mla_kv_scale){true, 0, 1}, &err), MLA_EINVAL, "finite and positive");
    ck_refused(mla_rt_set_kv_scale(rt, 1, (mla_kv_scale){true, 1, NAN}, &err), MLA_EINVAL, "finite and positive");
    ck_refused(mla_rt_set_kv_scale(rt, 0, (mla_kv_scale){true, 1, 1}, &err), MLA_EINVAL, "caches nothing");
    ck_refused(mla_rt_set_kv_scale(rt, 8, (mla_kv_scale){true, 1, 1}, &err), MLA_EINVAL, "layer 8");
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

/* Two cache formats on one set of weights: the same logits as runtimes of their own, and no second copy in memory. */
START_TEST(shared_weights)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    for (int stream = 0; stream < 2; stream++) {
        mla_rt *a = world_rt(&w, (mla_rt_opts){.stream_layers = stream}), *b, *own = world_rt(&w, (mla_rt_opts){.kv_dtype = MLA_BF16});
        set_all(&w, a, MLA_LAYOUT_N, 2, 90);
        set_all(&w, own, MLA_LAYOUT_N, 2, 90);
        ck_ok(mla_rt_share(&b, a, MLA_BF16, &err));
        ck_refused(mla_rt_set_factors(a, 1, NULL, &err), MLA_EINVAL, "share");
        ck_refused(mla_rt_set_factors(b, 1, NULL, &err), MLA_EINVAL, "share");
        ck_assert_uint_eq(2 * mla_rt_kv_bytes_per_token(b), mla_rt_kv_bytes_per_token(a));
        float *x = run_chunks(b, ids, N, 0, 30, 0), *y = run_chunks(own, ids, N, 0, 0, 0), *z = run_chunks(a, ids, N, 0, 0, 0);
        ck_assert(!memcmp(x, y, N * V * 4) && memcmp(x, z, N * V * 4));
        if (!stream) ck_assert(mla_rt_peak_bytes(b) < mla_rt_peak_bytes(own) / 2);
        mla_rt_close(b);
        ck_ok(mla_rt_set_factors(a, 1, NULL, &err));
        mla_rt_close(a);
        mla_rt_close(own);
        mla_free(x), mla_free(y), mla_free(z);
    }
    mla_free(ids);
    world_close(&w);
}
END_TEST

typedef struct { /* attention output of layer 1, or what a trial says it would be in FP8 */
    bool trial;
    float *o;
} seen;

static mla_status look(void *ctx, const mla_tap *t, mla_err *err)
{
    seen *s = ctx;
    size_t n = t->rows * 12 * 32;
    mla_mem *o = NULL;
    if (t->point != MLA_TAP_ATTN || t->layer != 1) return MLA_OK;
    s->o = mla_alloc(n, 4, 1);
    if (!s->trial) return t->be->ops->download(t->be, s->o, t->attn->o, n * 4, err);
    mla_status st = t->be->ops->alloc(t->be, &o, n * 4, err);
    if (st == MLA_OK) st = t->attn->with_fp8(t->attn, (mla_kv_scale){true, 0.031f, 0.013f}, o, err);
    if (st == MLA_OK) st = t->be->ops->download(t->be, s->o, o, n * 4, err);
    t->be->ops->free(t->be, o);
    return st;
}

/* A trial inside an f32 run gives the bits that an FP8 cache gives, and changes nothing else. */
START_TEST(fp8_trials)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    for (int layout = MLA_LAYOUT_NONE; layout <= MLA_LAYOUT_P; layout++) {
        seen s[2] = {{.trial = true}, {.trial = false}};
        float *logits = mla_alloc(N, V, 4);
        for (int k = 0; k < 2; k++) {
            mla_rt *rt = world_rt(&w, (mla_rt_opts){.kv_dtype = k ? MLA_F8_E4M3 : MLA_F32, .page_tokens = 16});
            if (layout != MLA_LAYOUT_NONE) set_all(&w, rt, (mla_layout)layout, 2, 0);
            set_scales(&w, rt, 0.031f, 0.013f);
            mla_seq *q;
            ck_ok(mla_seq_new(&q, rt, N + 1, &err));
            mla_job j = {.seq = q, .ids = ids, .T = N, .logits = logits};
            ck_ok(mla_rt_run(rt, &j, 1, look, &s[k], &err));
            if (!k) {
                float *want = run_chunks(rt, ids, N, 0, 0, 0);
                ck_assert(!memcmp(want, logits, N * V * 4));
                mla_free(want);
                mla_free(s[0].o);
                s[0].o = NULL;
                mla_job more = {.seq = q, .ids = ids, .T = 1, .logits_from = 1};
                ck_refused(mla_rt_run(rt, &more, 1, look, &s[0], &err), MLA_EINVAL, "from position 0");
                mla_free(s[0].o);
                mla_seq_reset(q);
                ck_ok(mla_rt_run(rt, &j, 1, look, &s[0], &err));
            }
            mla_seq_free(q);
            mla_rt_close(rt);
        }
        ck_assert_msg(!memcmp(s[0].o, s[1].o, N * 12 * 32 * 4), "layout %d", layout);
        mla_free(s[0].o), mla_free(s[1].o), mla_free(logits);
    }
    mla_free(ids);
    world_close(&w);
}
END_TEST

START_TEST(refused_factors)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    mla_factors f;
    mla_seq *s;
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, 1, 224, 224, &err));
    mla_factors_identity(&f);
    ck_refused(mla_rt_set_factors(rt, 0, &f, &err), MLA_EINVAL, "layer 0");
    ck_refused(mla_rt_set_factors(rt, 9, &f, &err), MLA_EINVAL, "layer 9");
    f.D[5] = NAN;
    ck_refused(mla_rt_set_factors(rt, 1, &f, &err), MLA_EINVAL, "factor D: element 5");
    f.D[5] = 0;
    f.layout = MLA_LAYOUT_P;
    ck_ok(mla_factors_centers(&f, 4, &err));
    f.center[2] = 0;
    ck_refused(mla_rt_set_factors(rt, 1, &f, &err), MLA_EINVAL, "centre 2 of 4 divisors: 0");
    f.layout = MLA_LAYOUT_N;
    f.center[2] = 1;
    f.n = 223;
    ck_refused(mla_rt_set_factors(rt, 1, &f, &err), MLA_EINVAL, "features");
    f.n = 224;
    ck_ok(mla_seq_new(&s, rt, 4, &err));
    ck_refused(mla_rt_set_factors(rt, 1, &f, &err), MLA_EINVAL, "open");
    mla_seq_free(s);
    ck_ok(mla_rt_set_factors(rt, 1, &f, &err));
    mla_factors_free(&f);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

Suite *latent_suite(void)
{
    Suite *s = suite_create("latent");
    TCase *t = tcase_create("latent");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, exact_mla);
    tcase_add_test(t, exact_gla2);
    tcase_add_test(t, exact_gla4);
    tcase_add_test(t, exact_rebuild);
    tcase_add_test(t, exact_p);
    tcase_add_test(t, exact_p_gla2);
    tcase_add_test(t, exact_p_gla4);
    tcase_add_test(t, p_mean_and_centres);
    tcase_add_test(t, p_chunks);
    tcase_add_test(t, truncation_and_removal);
    tcase_add_test(t, short_caches);
    tcase_add_test(t, fp8_needs_scales);
    tcase_add_test(t, shared_weights);
    tcase_add_test(t, fp8_trials);
    tcase_add_test(t, refused_factors);
    suite_add_tcase(s, t);
    return s;
}
