/* Weights as they are stored: the same logits as with weights decoded first, and no more memory than the file, times 1.15. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "suites.h"
#include "tensor/compare.h"

static const char *exl3(void) { return mla_fixture("golden-quant/tiny-hybrid-exl3"); }

/* bf16 weights stay bf16 and become f32 in registers: no bit may change, whatever the chunks and however many threads. */
START_TEST(same_bits_as_decoded)
{
    enum { N = 90 };
    int32_t *ids = some_ids(N);
    for (size_t threads = 1; threads <= 3; threads += 2) {
        world w = world_open(NULL, threads);
        mla_rt *packed = world_rt(&w, (mla_rt_opts){.mtp = true}), *decoded = world_rt(&w, (mla_rt_opts){.mtp = true, .decode_weights = true});
        mla_rt *stream = world_rt(&w, (mla_rt_opts){.stream_layers = true});
        size_t V = w.c->vocab;
        ck_assert_uint_lt(mla_rt_peak_bytes(packed), mla_rt_peak_bytes(decoded) * 6 / 10);
        float *want = run_chunks(decoded, ids, N, 0, 0, 0), *got = run_chunks(packed, ids, N, 0, 1, 0), *other = run_chunks(stream, ids, N, 0, 47, 0);
        ck_assert_msg(!memcmp(got, want, N * V * sizeof *got), "logits differ by %g", mla_compare(got, want, N * V).max_abs);
        ck_assert(!memcmp(other, want, N * V * sizeof *got));
        mla_free(want), mla_free(got), mla_free(other);
        mla_rt_close(packed), mla_rt_close(decoded), mla_rt_close(stream);
        world_close(&w);
    }
    mla_free(ids);
}
END_TEST

/* EXL3: transforms of activations instead of weights; both within the path bound, whose roundings grow by the transforms':
 * 20 for each of at most 7 products of a layer, three in a row. Chunks and threads change nothing. */
START_TEST(exl3_model)
{
    enum { N = 70 };
    int32_t *ids = some_ids(N);
    world w = world_open(exl3(), 2), one = world_open(exl3(), 1);
    mla_rt *packed = world_rt(&w, (mla_rt_opts){0}), *decoded = world_rt(&w, (mla_rt_opts){.decode_weights = true}), *again = world_rt(&one, (mla_rt_opts){0});
    size_t V = w.c->vocab;
    float *want = run_chunks(decoded, ids, N, 0, 0, 0), *got = run_chunks(packed, ids, N, 0, 0, 0), *cut = run_chunks(again, ids, N, 0, 9, 1);
    double top = 0, worst = mla_compare(got, want, N * V).max_abs;
    for (size_t i = 0; i < N * V; i++) top = fmax(top, fabs((double)want[i]));
    ck_assert_msg(worst <= path_bound(w.c, (double)w.c->layers, N + 60) * top, "logits differ by %g of %g", worst, top);
    ck_assert_double_le(mean_kld(got, want, N, V), 1e-8);
    ck_assert_msg(!memcmp(cut, got, N * V * sizeof *cut), "chunks or threads change bits: %g", mla_compare(cut, got, N * V).max_abs);
    printf("exl3: packed against decoded %.2g of %.3g\n", worst, top);
    mla_free(want), mla_free(got), mla_free(cut), mla_free(ids);
    mla_rt_close(packed), mla_rt_close(decoded), mla_rt_close(again);
    world_close(&w), world_close(&one);
}
END_TEST

/* Peak resident bytes of a child that opens the model and decodes a token, over what it had before. */
static size_t child_peak(const char *path, size_t *device)
{
    int fd[2];
    size_t r[2] = {0};
    ck_assert_int_eq(pipe(fd), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        size_t before = 0, after = 0;
        char line[200];
        for (int i = 0; i < 2; i++) {
            if (i) {
                world w = world_open(path, 1);
                mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
                int32_t id = 5;
                mla_free(run_chunks(rt, &id, 1, 0, 0, 0));
                r[1] = mla_rt_peak_bytes(rt);
            }
            FILE *f = fopen("/proc/self/status", "r");
            while (f && fgets(line, sizeof line, f))
                if (!strncmp(line, i ? "VmHWM:" : "VmRSS:", 6)) *(i ? &after : &before) = strtoul(line + 6, NULL, 10) * 1024;
            if (f) fclose(f);
        }
        r[0] = after - before;
        _exit(write(fd[1], r, sizeof r) == (ssize_t)sizeof r ? 0 : 1);
    }
    int status;
    close(fd[1]);
    ck_assert_int_eq(read(fd[0], r, sizeof r), (ssize_t)sizeof r);
    close(fd[0]);
    ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    *device = r[1];
    return r[0];
}

/* The weights on the device right after opening, and the whole process: stored bytes x 1.15, plus activations (the most that
 * one token takes here: logits, a page of cache, scratch of a product), plus headers, tokens and names of the model. */
START_TEST(memory)
{
    const char *path = getenv("MLA_SMOLLM2");
    if (!path) {
        mla_test_skip("memory of a run on SmolLM2", "MLA_SMOLLM2 does not name the .gguf", 1);
        return;
    }
    world w = world_open(path, 1);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0}), *decoded = world_rt(&w, (mla_rt_opts){.decode_weights = true});
    double stored = (double)mla_model_stored_bytes(w.m), weights = (double)mla_rt_peak_bytes(rt);
    ck_assert_double_le(weights, 1.15 * stored);
    ck_assert_double_gt((double)mla_rt_peak_bytes(decoded), 4 * stored); /* what the bound keeps out */
    mla_rt_close(decoded), mla_rt_close(rt);
    world_close(&w);
    size_t device, peak = child_peak(path, &device);
    double extra = (double)device - weights + 16e6;
    printf("memory: %.1f MB stored, %.1f MB of weights, process %.1f MB\n", stored / 1e6, weights / 1e6, (double)peak / 1e6);
    ck_assert_double_le((double)peak, 1.15 * stored + extra);
}
END_TEST

Suite *packed_suite(void)
{
    Suite *s = suite_create("packed");
    TCase *c = tcase_create("packed");
    tcase_add_test(c, same_bits_as_decoded);
    tcase_add_test(c, exl3_model);
    tcase_add_test(c, memory);
    suite_add_tcase(s, c);
    return s;
}
