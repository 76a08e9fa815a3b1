/* The same logits however the work is cut: chunks, last chunks, pages, batches, threads, streaming. On the reference path
 * with the recurrent delta net these are the same bits, not nearly the same numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "tensor/compare.h"

static void same_bits(const float *a, const float *b, size_t n, const char *what, size_t k)
{
    ck_assert_msg(!memcmp(a, b, n * sizeof *a), "%s %zu: logits differ by %g", what, k, mla_compare(a, b, n).max_abs);
}

START_TEST(chunk_sizes)
{
    enum { N = 133 };
    static const size_t CHUNK[] = {1, 2, 4, 63, 64, 65, 100};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    float *want = run_chunks(rt, ids, N, 0, 0, 0);
    for (size_t i = 0; i < sizeof CHUNK / sizeof *CHUNK; i++) {
        float *got = run_chunks(rt, ids, N, 0, CHUNK[i], 0);
        same_bits(got, want, N * V, "chunk", CHUNK[i]);
        mla_free(got);
    }
    mla_free(want);
    mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(last_chunks_around_a_page)
{
    enum { N = 135 };
    static const size_t LAST[] = {1, 2, 4, 63, 64, 65};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    int32_t *ids = some_ids(N);
    size_t V = w.c->vocab;
    float *want = run_chunks(rt, ids, N, N - 1, 0, 0);
    for (size_t i = 0; i < sizeof LAST / sizeof *LAST; i++) {
        float *got = run_chunks(rt, ids, N, N - 1, 100, LAST[i]);
        same_bits(got, want, V, "last chunk", LAST[i]);
        mla_free(got);
    }
    mla_free(want);
    mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(longer_than_a_block)
{
    enum { N = 1100 }; /* blocks of 1024 rows inside one call */
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    int32_t *ids = some_ids(N);
    float *want = run_chunks(rt, ids, N, N - 2, 500, 0), *got = run_chunks(rt, ids, N, N - 2, 0, 0);
    same_bits(got, want, 2 * w.c->vocab, "one call of", N);
    mla_free(want);
    mla_free(got);
    mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(page_sizes_and_cache_dtypes)
{
    enum { N = 70 };
    static const size_t PAGE[] = {1, 7, 64, 4096};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        float *want = NULL;
        for (size_t i = 0; i < sizeof PAGE / sizeof *PAGE; i++) {
            mla_rt *rt = world_rt(&w, (mla_rt_opts){.page_tokens = PAGE[i], .kv_dtype = bf16 ? MLA_BF16 : MLA_F32});
            float *got = run_chunks(rt, ids, N, 0, i ? 31 : 0, 0);
            if (want) same_bits(got, want, N * w.c->vocab, "page", PAGE[i]), mla_free(got);
            else want = got;
            mla_rt_close(rt);
        }
        mla_free(want);
    }
    mla_free(ids);
    world_close(&w);
}
END_TEST

START_TEST(chunked_delta_net)
{
    enum { N = 130 };
    world w = world_open(NULL, 1);
    mla_rt *a = world_rt(&w, (mla_rt_opts){0}), *b = world_rt(&w, (mla_rt_opts){.gdn_chunk = 64});
    int32_t *ids = some_ids(N);
    float *want = run_chunks(a, ids, N, 0, 0, 0), *got = run_chunks(b, ids, N, 0, 0, 0), *cut = run_chunks(b, ids, N, 0, 50, 0);
    mla_cmp c = mla_compare(got, want, N * w.c->vocab), d = mla_compare(cut, want, N * w.c->vocab);
    double tol = path_bound(w.c, (double)w.c->layers, N) * c.max_want;
    if (getenv("MLA_TEST_FIGURES")) printf("chunked delta net: %.3g, cut %.3g of %.3g allowed\n", c.max_abs, d.max_abs, tol);
    ck_assert(mla_cmp_ok(c, tol) && mla_cmp_ok(d, tol));
    ck_assert(c.max_abs > 0); /* it is the other form indeed */
    mla_free(want), mla_free(got), mla_free(cut), mla_free(ids);
    mla_rt_close(a), mla_rt_close(b);
    world_close(&w);
}
END_TEST

/* Sequences of different lengths side by side, growing in turns so that their pages interleave; then decode steps. */
START_TEST(batches)
{
    enum { N = 80, B = 3, STEP = 37 };
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){.page_tokens = 16});
    int32_t *ids = some_ids(N + 8 * B);
    size_t V = w.c->vocab;
    mla_seq *s[B];
    float *got[B];
    for (size_t i = 0; i < B; i++) {
        ck_ok(mla_seq_new(&s[i], rt, N, &err));
        got[i] = mla_alloc(N, V, sizeof **got);
    }
    for (size_t at = 0; at < N;) {
        mla_job j[B];
        size_t T = at + STEP <= N - 4 ? STEP : at < N - 4 ? N - 4 - at : 1;
        for (size_t i = 0; i < B; i++) j[i] = (mla_job){.seq = s[i], .ids = ids + 8 * i + at, .T = T, .logits = got[i] + at * V};
        ck_ok(mla_rt_run(rt, j, B, NULL, NULL, &err));
        at += T;
    }
    for (size_t i = 0; i < B; i++) {
        mla_seq_free(s[i]);
        float *want = run_chunks(rt, ids + 8 * i, N, 0, 0, 0);
        same_bits(got[i], want, N * V, "sequence", i);
        mla_free(want);
        mla_free(got[i]);
    }
    mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

START_TEST(thread_counts)
{
    enum { N = 80 };
    int32_t *ids = some_ids(N);
    float *want = NULL;
    for (size_t threads = 1; threads <= 2; threads++) {
        world w = world_open(NULL, threads);
        mla_rt *rt = world_rt(&w, (mla_rt_opts){.gdn_chunk = 64});
        float *got = run_chunks(rt, ids, N, 0, 50, 0);
        if (want) same_bits(got, want, N * w.c->vocab, "threads", threads), mla_free(got);
        else want = got;
        mla_rt_close(rt);
        world_close(&w);
    }
    mla_free(want);
    mla_free(ids);
}
END_TEST

/* How many weights had been made when the device was first waited for with more than the embedding there. */
static const mla_backend_ops *plain_ops;
static size_t weights_made, weights_at_wait;
static mla_status count_new(mla_backend *be, mla_weight **out, const mla_weight_desc *d, mla_err *err)
{
    weights_made++;
    return plain_ops->weight_new(be, out, d, err);
}
static mla_status count_sync(mla_backend *be, mla_err *err)
{
    if (!weights_at_wait && weights_made > 1) weights_at_wait = weights_made;
    return plain_ops->sync(be, err);
}

/* Layers one at a time, and (on a device that queues) the next one loaded while one is computed: the same bits, less memory. */
START_TEST(streaming)
{
    enum { N = 70, WAYS = 3 };
    mla_err err = {0};
    world w = world_open(NULL, 1);
    int32_t *ids = some_ids(N);
    size_t D = w.c->hidden, V = w.c->vocab, peak[WAYS], first[WAYS];
    float *logits[WAYS], *ml[WAYS];
    mla_backend_ops counting = *(plain_ops = w.be->ops);
    counting.weight_new = count_new, counting.sync = count_sync;
    w.be->ops = &counting;
    for (int stream = 0; stream < WAYS; stream++) {
        counting.queues = stream == 2;
        weights_made = weights_at_wait = 0;
        mla_rt *rt = world_rt(&w, (mla_rt_opts){.stream_layers = stream, .mtp = true});
        float *hidden = mla_alloc(N, D, 4);
        logits[stream] = mla_alloc(N, V, 4);
        ml[stream] = mla_alloc(N, V, 4);
        mla_seq *s;
        ck_ok(mla_seq_new(&s, rt, N, &err));
        mla_job j = {.seq = s, .ids = ids, .T = N, .logits = logits[stream], .hidden = hidden};
        ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
        ck_ok(mla_rt_mtp(rt, s, hidden, ids + 1, N - 1, ml[stream], NULL, &err));
        peak[stream] = mla_rt_peak_bytes(rt);
        first[stream] = weights_at_wait;
        mla_seq_free(s);
        mla_free(hidden);
        mla_rt_close(rt);
    }
    w.be->ops = plain_ops;
    for (int i = 1; i < WAYS; i++) {
        same_bits(logits[0], logits[i], N * V, "streaming", i);
        same_bits(ml[0], ml[i], (N - 1) * V, "streaming MTP", i);
    }
    ck_assert_msg(peak[1] < peak[0] / 2 && peak[2] < peak[0] / 2, "peak %zu bytes streaming, %zu one layer ahead, %zu resident", peak[1], peak[2], peak[0]);
    ck_assert_msg(first[1] > 0 && first[2] > first[1], "%zu weights when the first layer is waited for, %zu with a layer ahead", first[1], first[2]);
    for (int i = 0; i < WAYS; i++) mla_free(logits[i]), mla_free(ml[i]);
    mla_free(ids);
    world_close(&w);
}
END_TEST

/* A reset sequence forgets everything; the MTP head in steps equals the MTP head at once. */
START_TEST(reset_and_mtp_steps)
{
    enum { N = 66 };
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){.mtp = true});
    int32_t *ids = some_ids(N);
    size_t D = w.c->hidden, V = w.c->vocab;
    float *hidden = mla_alloc(N, D, 4), *all = mla_alloc(N, V, 4), *step = mla_alloc(N, V, 4), *logits[2];
    mla_seq *s;
    ck_ok(mla_seq_new(&s, rt, N, &err));
    for (int round = 0; round < 2; round++) {
        logits[round] = mla_alloc(N, V, 4);
        mla_job j = {.seq = s, .ids = ids, .T = N, .logits = logits[round], .hidden = hidden};
        ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
        if (!round) ck_ok(mla_rt_mtp(rt, s, hidden, ids + 1, N - 1, all, NULL, &err));
        for (size_t t = 0; round && t < N - 1; t += 13)
            ck_ok(mla_rt_mtp(rt, s, hidden + t * D, ids + 1 + t, t + 13 < N ? 13 : N - 1 - t, step + t * V, NULL, &err));
        mla_seq_reset(s);
        ck_assert_uint_eq(mla_seq_len(s), 0);
    }
    same_bits(logits[0], logits[1], N * V, "after reset", 1);
    same_bits(all, step, (N - 1) * V, "MTP in steps of", 13);
    mla_seq_free(s);
    mla_free(hidden), mla_free(all), mla_free(step), mla_free(logits[0]), mla_free(logits[1]), mla_free(ids);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

/* Two continuations of one prefix, each as if it had run alone; the first one's end gives no page away too early. */
START_TEST(forks)
{
    enum { N = 60, P = 37 };
    mla_err err = {0};
    world w = world_open(NULL, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){.page_tokens = 16, .mtp = true});
    int32_t *a = some_ids(N), *b = some_ids(N + 5), *ids[2] = {a, b};
    size_t V = w.c->vocab, D = w.c->hidden;
    for (size_t i = P; i < N; i++) b[i] = a[(i * 7) % 64 % N];
    float *want[2] = {run_chunks(rt, a, N, 0, 0, 0), run_chunks(rt, b, N, 0, 0, 0)}, *logits = mla_alloc(N, V, 4), *hidden = mla_alloc(N, D, 4);
    float *ml = mla_alloc(N, V, 4), *ml2 = mla_alloc(N, V, 4);
    mla_seq *root, *s[2];
    ck_ok(mla_seq_new(&root, rt, N, &err));
    mla_job j = {.seq = root, .ids = a, .T = P, .logits_from = P, .hidden = hidden};
    ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
    ck_ok(mla_rt_mtp(rt, root, hidden, a + 1, 20, ml, NULL, &err)); /* the head is behind: one full page of it */
    ck_refused(mla_seq_fork(&s[0], root, P - 1, &err), MLA_EINVAL, "the sequence has 37");
    for (size_t k = 0; k < 2; k++) {
        ck_ok(mla_seq_fork(&s[k], root, N, &err));
        ck_assert_uint_eq(mla_seq_len(s[k]), P);
    }
    mla_seq_free(root);
    for (size_t k = 0; k < 2; k++) {
        mla_job go = {.seq = s[k], .ids = ids[k] + P, .T = N - P, .logits = logits};
        ck_ok(mla_rt_run(rt, &go, 1, NULL, NULL, &err));
        same_bits(logits, want[k] + P * V, (N - P) * V, "fork", k);
        ck_ok(mla_rt_mtp(rt, s[k], hidden + 20 * D, a + 21, P - 21, k ? ml2 : ml, NULL, &err));
        mla_seq_free(s[k]);
    }
    same_bits(ml, ml2, (P - 21) * V, "MTP after fork", 0);
    mla_seq *fresh, *f2;
    ck_ok(mla_seq_new(&fresh, rt, N, &err)); /* forking nothing is an empty sequence */
    ck_ok(mla_seq_fork(&f2, fresh, N, &err));
    mla_job all = {.seq = f2, .ids = a, .T = N, .logits = logits};
    ck_ok(mla_rt_run(rt, &all, 1, NULL, NULL, &err));
    same_bits(logits, want[0], N * V, "fork of nothing", 0);
    mla_seq_free(fresh), mla_seq_free(f2);
    for (int k = 0; k < 2; k++) mla_free(want[k]), mla_free(ids[k]);
    mla_free(logits), mla_free(hidden), mla_free(ml), mla_free(ml2);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

Suite *chunks_suite(void)
{
    Suite *s = suite_create("chunks");
    TCase *t = tcase_create("chunks");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, chunk_sizes);
    tcase_add_test(t, last_chunks_around_a_page);
    tcase_add_test(t, longer_than_a_block);
    tcase_add_test(t, page_sizes_and_cache_dtypes);
    tcase_add_test(t, chunked_delta_net);
    tcase_add_test(t, batches);
    tcase_add_test(t, thread_counts);
    tcase_add_test(t, streaming);
    tcase_add_test(t, reset_and_mtp_steps);
    tcase_add_test(t, forks);
    suite_add_tcase(s, t);
    return s;
}
