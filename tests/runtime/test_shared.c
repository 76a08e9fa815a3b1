/* The shared-rotary layout on the tiny hybrid: one answer whatever the form of attention, the chunks, the sequences of a
 * call, streamed layers and image positions; short caches near it; what cannot be is refused. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "suites.h"
#include "tensor/compare.h"

enum { N = 72, RANK = 40, KEYS = 2 };

/* Random factors of about the base's magnitudes. */
static void set_random(const world *w, mla_rt *rt, size_t R)
{
    mla_err err = {0};
    for (size_t l = 0; l < w->c->layers; l++) {
        mla_shared s;
        if (w->c->layer_kind[l] != MLA_LAYER_FULL) continue;
        ck_ok(mla_shared_new(&s, w->c, RANK, R, &err));
        const double size[MLA_SHARED_PARTS] = {0.06, 0.06, 0.35, 0.16, 0.16, 0.1};
        for (size_t k = 0, at = 0; k < MLA_SHARED_PARTS; k++)
            for (size_t i = 0; i < mla_shared_part(&s, k); i++, at++) s.E[at] = (float)(size[k] * mla_rng_normal(100 + l, at));
        ck_ok(mla_rt_set_shared(rt, l, &s, &err));
        mla_shared_free(&s);
    }
}

START_TEST(one_answer)
{
    world w = world_open(NULL, 2);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    float *base = run_chunks(rt, ids, N, 0, 0, 0);
    set_random(&w, rt, KEYS);
    ck_assert_uint_eq(mla_rt_kv_bytes_per_token(rt), 4 * mla_config_full_layers(w.c) * (RANK + KEYS * w.c->rope.rot));
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    mla_rt_close(rt);
    ck_assert(mean_kld(base, want, N, V) > 0.1); /* random factors are no good: the comparison below can fail */
    for (int form = 0; form < 8; form++) {
        rt = world_rt(&w, (mla_rt_opts){.absorb_prefill = form & 1, .expand_decode = form >> 1 & 1, .stream_layers = form >> 2, .page_tokens = 16});
        set_random(&w, rt, KEYS);
        for (size_t chunk = 0; chunk < (form >> 2 ? 1 : 3); chunk++) {
            float *got = run_chunks(rt, ids, N, 0, chunk == 2 ? 45 : chunk, 0);
            mla_cmp c = mla_compare(got, want, N * V);
            double tol = path_bound(w.c, (double)w.c->layers, N) * c.max_want;
            ck_assert_msg(mla_cmp_ok(c, tol), "form %d chunk %zu: error %g, allowed %g", form, chunk, c.max_abs, tol);
            mla_free(got);
        }
        mla_rt_close(rt);
    }
    mla_free(base), mla_free(want), mla_free(ids);
    world_close(&w);
}
END_TEST

START_TEST(short_caches)
{
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    double kld[2];
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    set_random(&w, rt, 1);
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    mla_rt_close(rt);
    for (int k = 0; k < 2; k++) {
        mla_err err = {0};
        rt = world_rt(&w, (mla_rt_opts){.kv_dtype = k ? MLA_F8_E4M3 : MLA_BF16});
        set_random(&w, rt, 1);
        for (size_t l = 0; k && l < w.c->layers; l++)
            if (w.c->layer_kind[l] == MLA_LAYER_FULL) ck_ok(mla_rt_set_kv_scale(rt, l, (mla_kv_scale){true, 0.03125f, 0.03125f}, &err));
        float *got = run_chunks(rt, ids, N, 0, 50, 0);
        kld[k] = mean_kld(want, got, N, V);
        mla_free(got);
        mla_rt_close(rt);
    }
    ck_assert_msg(kld[0] < 1e-3 && kld[0] < kld[1] && kld[1] < 0.05, "bf16 %g, fp8 %g", kld[0], kld[1]);
    mla_free(want), mla_free(ids);
    world_close(&w);
}
END_TEST

START_TEST(refusals)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_shared s;
    mla_rt *rt = world_rt(&w, (mla_rt_opts){.mtp = true});
    ck_ok(mla_shared_new(&s, w.c, RANK, 1, &err));
    ck_refused(mla_rt_set_shared(rt, MLA_MTP(0), &s, &err), MLA_EUNSUPPORTED, "MTP head");
    ck_refused(mla_rt_set_shared(rt, 0, &s, &err), MLA_EINVAL, "no keys and values");
    s.V[3] = NAN;
    ck_refused(mla_rt_set_shared(rt, 1, &s, &err), MLA_EINVAL, "not finite");
    s.V[3] = 0;
    s.H++;
    ck_refused(mla_rt_set_shared(rt, 1, &s, &err), MLA_EINVAL, "expected 12");
    mla_shared_free(&s);
    ck_refused(mla_shared_new(&s, w.c, 0, 1, &err), MLA_EINVAL, "rank 0");
    ck_refused(mla_shared_new(&s, w.c, 257, 1, &err), MLA_EINVAL, "rank 257");
    ck_refused(mla_shared_new(&s, w.c, 8, 5, &err), MLA_EINVAL, "5 shared rotary keys");
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

Suite *shared_suite(void)
{
    Suite *s = suite_create("shared-rotary");
    TCase *t = tcase_create("shared-rotary");
    tcase_add_test(t, one_answer);
    tcase_add_test(t, short_caches);
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    return s;
}
