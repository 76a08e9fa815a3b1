/* What the runtime refuses, and that a refusal names the thing and leaves things usable. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"

START_TEST(bad_jobs)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    mla_seq *s;
    int32_t ids[4] = {1, 2, 3, 4}, high[2] = {1, (int32_t)w.c->vocab}, low[1] = {-1}, pos[12] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, -2, 3};
    float *e = mla_alloc(4, w.c->hidden, 4), logits[1];
    ck_refused(mla_seq_new(&s, rt, 0, &err), MLA_EINVAL, "0 tokens");
    ck_ok(mla_seq_new(&s, rt, 6, &err));
    mla_job j = {.seq = s, .ids = ids, .T = 4, .logits_from = 4};
    ck_refused(mla_rt_run(rt, &j, 0, NULL, NULL, &err), MLA_EINVAL, "without sequences");
    mla_job two[2] = {j, j};
    ck_refused(mla_rt_run(rt, two, 2, NULL, NULL, &err), MLA_EINVAL, "the same");
    mla_job b = j;
    b.T = 0;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "no tokens");
    b = j, b.embeds = e;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "ids or embeddings");
    b = j, b.ids = NULL;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "ids or embeddings");
    b = j, b.ids = high, b.T = b.logits_from = 2;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "token 1 has id 2048");
    b.ids = low, b.T = b.logits_from = 1;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "id -1");
    b = j, b.logits_from = 3;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "nowhere to go");
    b.logits_from = 5, b.logits = logits;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "row 5 of 4");
    ck_refused(mla_rt_mtp(rt, s, e, ids, 1, NULL, NULL, &err), MLA_EINVAL, "without the MTP head");
    ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err)); /* nothing above harmed the sequence */
    ck_refused(mla_rt_run(rt, &j, 1, NULL, NULL, &err), MLA_EINVAL, "4 + 4 tokens exceed its maximum of 6");
    ck_assert_uint_eq(mla_seq_len(s), 4);
    mla_seq_reset(s);
    b = j, b.pos3 = pos;
    ck_refused(mla_rt_run(rt, &b, 1, NULL, NULL, &err), MLA_EINVAL, "position -2");
    ck_refused(mla_rt_run(rt, &j, 1, NULL, NULL, &err), MLA_EINVAL, "reset it first");
    mla_seq_reset(s);
    ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
    mla_seq_free(s);
    mla_free(e);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(non_finite_activations_are_named)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    mla_seq *s, *ok;
    size_t D = w.c->hidden;
    float *e = mla_alloc(8, D, 4), *logits = mla_alloc(1, w.c->vocab, 4);
    int32_t ids[3] = {5, 6, 7};
    for (size_t i = 0; i < 8 * D; i++) e[i] = 0.01f * (float)(i % 13);
    e[5 * D + 17] = NAN;
    ck_ok(mla_seq_new(&s, rt, 20, &err));
    ck_ok(mla_seq_new(&ok, rt, 20, &err));
    mla_job j[2] = {{.seq = ok, .ids = ids, .T = 3, .logits_from = 3}, {.seq = s, .embeds = e, .T = 8, .logits_from = 8}};
    ck_refused(mla_rt_run(rt, j, 2, NULL, NULL, &err), MLA_EFORMAT, "layer 0:");
    ck_assert_msg(strstr(err.msg, "token 5 of sequence 1") != NULL, "%s", err.msg);
    mla_seq_reset(s);
    mla_job one = {.seq = s, .embeds = e + 5 * D, .T = 1, .logits = logits}; /* a decode step is caught at its logits */
    ck_refused(mla_rt_run(rt, &one, 1, NULL, NULL, &err), MLA_EFORMAT, "logits of token 0 of sequence 0 are not finite");
    mla_seq_free(s);
    mla_seq_free(ok);
    mla_free(e);
    mla_free(logits);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(bad_options)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt;
    ck_refused(mla_rt_open(&rt, w.m, w.be, &(mla_rt_opts){.kv_dtype = MLA_F16}, &err), MLA_EINVAL, "F16");
    ck_refused(mla_rt_open(&rt, w.m, w.be, &(mla_rt_opts){.kv_dtype = MLA_F32, .page_tokens = (size_t)1 << 40}, &err), MLA_EINVAL, "pages");
    ck_assert(rt == NULL);
    world_close(&w);
}
END_TEST

/* A tap or a sink that fails stops the run with its own error. */
static mla_status refuse(void *ctx, const mla_tap *t, mla_err *err)
{
    size_t *layer = ctx;
    return t->point == MLA_TAP_LAYER && t->layer == *layer ? mla_fail(err, MLA_EIO, "no more room") : MLA_OK;
}

typedef struct {
    size_t rows, calls;
    const float *want;
    size_t V;
} sink_ctx;

static mla_status sink(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err)
{
    sink_ctx *s = ctx;
    (void)err;
    ck_assert(job == 0 && row0 == 10 + s->rows);
    ck_assert(!memcmp(logits, s->want + s->rows * s->V, n * s->V * 4));
    s->rows += n;
    s->calls++;
    return MLA_OK;
}

START_TEST(taps_and_sinks)
{
    enum { N = 40 };
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    int32_t *ids = some_ids(N);
    float *want = run_chunks(rt, ids, N, 10, 0, 0);
    mla_seq *s;
    size_t layer = 3;
    ck_ok(mla_seq_new(&s, rt, N, &err));
    mla_job j = {.seq = s, .ids = ids, .T = N, .logits_from = N};
    ck_refused(mla_rt_run(rt, &j, 1, refuse, &layer, &err), MLA_EIO, "no more room");
    mla_seq_reset(s);
    sink_ctx c = {.want = want, .V = w.c->vocab};
    j.logits_from = 10;
    ck_ok(mla_rt_run_sink(rt, &j, 1, NULL, sink, &c, &err));
    ck_assert(c.rows == N - 10 && c.calls >= 1);
    mla_seq_free(s);
    mla_free(ids);
    mla_free(want);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

/* Every allocation that can fail on the way makes an error, never a crash. */
START_TEST(out_of_memory)
{
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = NULL;
    mla_status st = MLA_ENOMEM;
    long k = 0;
    for (; st != MLA_OK && k < 5000; k += k < 40 ? 1 : 17) {
        mla_alloc_fail_after(k);
        st = mla_rt_open(&rt, w.m, w.be, &(mla_rt_opts){.kv_dtype = MLA_F32}, &err);
        mla_alloc_fail_after(-1);
        ck_assert_msg(st == MLA_OK || st == MLA_ENOMEM, "allocation %ld: %s", k, err.msg);
    }
    ck_assert(st == MLA_OK && k > 20);
    int32_t ids[20] = {1, 2, 3};
    st = MLA_ENOMEM;
    for (k = 0; st != MLA_OK && k < 500; k++) {
        mla_seq *s;
        float *logits = mla_alloc(20, w.c->vocab, 4);
        mla_alloc_fail_after(k);
        st = mla_seq_new(&s, rt, 20, &err);
        if (st == MLA_OK) {
            mla_job j = {.seq = s, .ids = ids, .T = 20, .logits = logits};
            st = mla_rt_run(rt, &j, 1, NULL, NULL, &err);
            mla_alloc_fail_after(-1);
            mla_seq_free(s);
        }
        mla_alloc_fail_after(-1);
        ck_assert_msg(st == MLA_OK || st == MLA_ENOMEM, "allocation %ld: %s", k, err.msg);
        mla_free(logits);
    }
    ck_assert(st == MLA_OK && k > 5);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

Suite *refuse_suite(void)
{
    Suite *s = suite_create("refuse");
    TCase *t = tcase_create("refuse");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, bad_jobs);
    tcase_add_test(t, non_finite_activations_are_named);
    tcase_add_test(t, bad_options);
    tcase_add_test(t, taps_and_sinks);
    tcase_add_test(t, out_of_memory);
    suite_add_tcase(s, t);
    return s;
}
