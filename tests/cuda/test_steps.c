/* Decode steps of the tiny hybrid on a GPU: replayed from a tape the same bits as operation by operation, while caches grow,
 * other sequences' prompts move scratch, and a sequence is forked and started again. test_layouts.c compares with the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "runtime/runtime.h"
#include "tensor/compare.h"
#include "tell.h"

static size_t replays, drafts, together; /* of all, of several tokens, of two sequences */
static mla_status (*real_replay)(mla_backend *, const mla_tape *, mla_err *);

static mla_status counted(mla_backend *be, const mla_tape *t, mla_err *e)
{
    replays++;
    return real_replay(be, t, e);
}

enum { PROMPT = 50, STEPS = 30, DRAFTS = 5, DRAFT = 3, BOTH = 5, TURNS = 3, SHARED_RANK = 40 };

typedef struct {
    const char *name;
    mla_layout layout;
    size_t groups;
    mla_precision precision;
    mla_dtype kv;
    bool tapes;  /* its steps can be recorded */
    bool keys16; /* FP8, but for the rotary keys */
} kind;

static void set_layers(mla_rt *rt, const kind *k)
{
    const mla_config *c = mla_rt_config(rt);
    mla_factors f;
    mla_shared s;
    size_t n;
    for (size_t l = 0; l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL || k->layout == MLA_LAYOUT_NONE) continue;
        if (k->layout == MLA_LAYOUT_SHARED) {
            const double size[MLA_SHARED_PARTS] = {0.06, 0.06, 0.35, 0.16, 0.16, 0.1}; /* about the base's */
            must(mla_shared_new(&s, c, SHARED_RANK, 2, &err), "factors");
            for (size_t p = 0, at = 0; p < MLA_SHARED_PARTS; p++)
                for (size_t i = 0; i < mla_shared_part(&s, p); i++, at++) s.E[at] = (float)(size[p] * mla_rng_normal(100 + l, at));
            must(mla_rt_set_shared(rt, l, &s, &err), "factors");
            mla_shared_free(&s);
            continue;
        }
        must(mla_factors_dims(c, k->layout, k->groups, &n, &err), "factors");
        must(mla_factors_new(&f, k->layout, k->groups, n, n, &err), "factors");
        mla_factors_identity(&f);
        must(mla_rt_set_factors(rt, l, &f, &err), "factors");
        mla_factors_free(&f);
    }
    for (size_t l = 0; k->kv == MLA_F8_E4M3 && l < c->layers; l++)
        if (c->layer_kind[l] == MLA_LAYER_FULL) must(mla_rt_set_kv_scale(rt, l, (mla_kv_scale){true, 0.03125f, 0.03125f}, &err), "scale");
}

/* T tokens, logits of the last one. */
static void feed(mla_rt *rt, mla_seq *s, size_t T, uint64_t seed, float *logits)
{
    int32_t ids[512];
    for (size_t t = 0; t < T; t++) ids[t] = (int32_t)(mla_rng_u64(seed, t) % mla_rt_config(rt)->vocab);
    mla_job j = {.seq = s, .ids = ids, .T = T, .logits_from = T - 1, .logits = logits};
    must(mla_rt_run(rt, &j, 1, NULL, NULL, &err), "run");
}

static size_t turns(void) { return cut_small() ? 1 : TURNS; }
static size_t steps(void) { return cut_small() ? 3 : STEPS; } /* the third is recorded */

/* A token of s and two of its fork in one run, logits (2, V) of the last ones. */
static void feed_both(mla_rt *rt, mla_seq *s, mla_seq *fork, uint64_t seed, float *logits)
{
    int32_t ids[3];
    size_t V = mla_rt_config(rt)->vocab;
    for (size_t t = 0; t < 3; t++) ids[t] = (int32_t)(mla_rng_u64(seed, t) % V);
    mla_job j[2] = {{.seq = s, .ids = ids, .T = 1, .logits = logits}, {.seq = fork, .ids = ids + 1, .T = 2, .logits_from = 1, .logits = logits + V}};
    must(mla_rt_run(rt, j, 2, NULL, NULL, &err), "run");
}

/* Logits: steps of one sequence, drafts of several tokens, its fork, both together, prompts of another between them. */
static float *answers(mla_backend *be, const mla_model *m, const kind *k, bool plain, size_t *rows)
{
    mla_rt_opts o = {.precision = k->precision, .kv_dtype = k->kv, .keys16 = k->keys16, .plain_steps = plain};
    mla_rt *rt;
    mla_seq *s, *other, *fork;
    must(mla_rt_open(&rt, m, be, &o, &err), "runtime");
    set_layers(rt, k);
    size_t V = mla_rt_config(rt)->vocab, n = 0;
    float *out = mla_alloc(TURNS * ((STEPS + 1) * 2 + DRAFTS + 2 * BOTH), V, sizeof *out);
    must(mla_seq_new(&s, rt, 400, &err), "sequence");
    must(mla_seq_new(&other, rt, 2000, &err), "sequence");
    for (size_t turn = 0; turn < turns(); turn++) {
        feed(rt, s, cut_small() ? 12 : PROMPT, turn, out + n++ * V);
        for (size_t i = 0; i < steps(); i++) feed(rt, s, 1, 10 + turn, out + n++ * V);
        drafts -= replays;
        for (size_t i = 0; i < DRAFTS && !cut_small(); i++) feed(rt, s, DRAFT, 50 + turn, out + n++ * V);
        drafts += replays;
        if (!cut_small()) feed(rt, other, 100 + 150 * turn, 20, out + n * V); /* longer each time: scratch and caches grow */
        must(mla_seq_fork(&fork, s, 400, &err), "fork");
        feed(rt, fork, 1, 30, out + n++ * V);
        for (size_t i = 0; i < STEPS && !cut_small(); i++) feed(rt, i % 2 ? fork : s, 1, 30 + i, out + n++ * V);
        together -= replays;
        for (size_t i = 0; i < BOTH && !cut_small(); i++, n += 2) feed_both(rt, s, fork, 70 + i, out + n * V);
        together += replays;
        mla_seq_free(fork);
        if (turn == 1) mla_seq_reset(s);
    }
    mla_seq_free(s);
    mla_seq_free(other);
    mla_rt_close(rt);
    *rows = n;
    return out;
}

static void run(mla_backend *gpu, const mla_model *m, const kind *k)
{
    size_t n, V = mla_model_config(m)->vocab;
    float *plain = cut_small() ? NULL : answers(gpu, m, k, true, &n); /* a checker sees the recorded ones */
    replays = drafts = together = 0;
    float *taped = answers(gpu, m, k, false, &n);
    check(mla_count_nonfinite(taped, n * V, NULL) == 0, k->name, "logits that are no numbers");
    check(!plain || !memcmp(plain, taped, n * V * sizeof *plain), k->name, "recorded steps differ from plain ones");
    check(k->tapes ? replays && (cut_small() || (replays > STEPS && drafts && together)) : replays == 0, k->name, "how many steps were replayed");
    mla_free(plain);
    mla_free(taped);
}

int main(void)
{
    enum { PER_KIND = 3 };
    static const kind KIND[] = {
        {"keys and values", MLA_LAYOUT_NONE, 1, MLA_PREC_F32, MLA_F32, true, false},
        {"layout n", MLA_LAYOUT_N, 1, MLA_PREC_F32, MLA_F32, true, false},
        {"layout n, two groups", MLA_LAYOUT_N, 2, MLA_PREC_F32, MLA_BF16, true, false},
        {"layout n, FP8 cache", MLA_LAYOUT_N, 1, MLA_PREC_F32, MLA_F8_E4M3, true, false},
        {"layout n, fp8-keys16", MLA_LAYOUT_N, 2, MLA_PREC_F32, MLA_F8_E4M3, true, true},
        {"keys and values, fp8-keys16", MLA_LAYOUT_NONE, 1, MLA_PREC_F32, MLA_F8_E4M3, true, true},
        {"layout n, bf16, fp8-keys16", MLA_LAYOUT_N, 1, MLA_PREC_BF16, MLA_F8_E4M3, true, true},
        {"layout rebuild", MLA_LAYOUT_REBUILD, 1, MLA_PREC_F32, MLA_F32, false, false},
        {"layout shared-rotary", MLA_LAYOUT_SHARED, 1, MLA_PREC_F32, MLA_F32, true, false},
        {"layout p", MLA_LAYOUT_P, 1, MLA_PREC_F32, MLA_F32, false, false},
        {"layout p, two groups", MLA_LAYOUT_P, 2, MLA_PREC_F32, MLA_BF16, false, false},
        {"layout p, FP8 cache", MLA_LAYOUT_P, 1, MLA_PREC_F32, MLA_F8_E4M3, false, false},
        {"keys and values, bf16", MLA_LAYOUT_NONE, 1, MLA_PREC_BF16, MLA_BF16, false, false},
        {"layout n, bf16", MLA_LAYOUT_N, 1, MLA_PREC_BF16, MLA_BF16, true, false},
        {"layout n, bf16, FP8 cache", MLA_LAYOUT_N, 2, MLA_PREC_BF16, MLA_F8_E4M3, true, false},
        {"layout p, bf16", MLA_LAYOUT_P, 1, MLA_PREC_BF16, MLA_BF16, false, false},
        {"layout shared-rotary, bf16", MLA_LAYOUT_SHARED, 1, MLA_PREC_BF16, MLA_BF16, true, false},
    };
    const char *root = getenv("MLA_ROOT");
    char path[4096];
    mla_backend *gpu;
    mla_model *m;
    if (mla_backend_open(&gpu, &(mla_backend_opts){.device = "cuda:0"}, &err) != MLA_OK) {
        printf("SKIP decode steps on a GPU: %s (%zu)\n", err.msg, PER_KIND * sizeof KIND / sizeof *KIND);
        printf("cuda_steps: 0 passed, 0 failed, %zu skipped\n", PER_KIND * sizeof KIND / sizeof *KIND);
        return 0;
    }
    snprintf(path, sizeof path, "%s/tests/fixtures/tiny-hybrid", root && *root ? root : ".");
    must(mla_model_open(&m, path, &err), path);
    mla_backend_ops ops = *gpu->ops; /* the same, but replays are counted */
    const mla_backend_ops *own = gpu->ops;
    real_replay = ops.replay;
    ops.replay = counted;
    gpu->ops = &ops;
    for (size_t i = 0; i < sizeof KIND / sizeof *KIND; i++)
        if (cut_kept((int)i)) run(gpu, m, &KIND[i]);
    gpu->ops = own;
    mla_model_close(m);
    mla_backend_close(gpu);
    printf("cuda_steps: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
