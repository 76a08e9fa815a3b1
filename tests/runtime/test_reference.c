/* Recorded answers: every position of the reference files, forced and decoded freely, on the reference path.
 * SmolLM2 runs when MLA_SMOLLM2 names its .gguf. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/json.h"
#include "suites.h"

#define CLEAR 0.01 /* nats: from this margin on the recorded token must be ours */
#define NEAR 1e-3  /* nats: margins and log-probabilities */

typedef struct {
    char name[64];
    bool greedy;
    size_t np, n;
    int32_t *ids, *top1;                   /* (np + n), (n) */
    double *logprob, *margin, *target;     /* (n) */
} rec;

typedef struct {
    size_t positions, clear, flipped;
    double logprob, margin, target; /* largest differences */
    double clear_min;               /* smallest margin of a clear position that agreed */
} found;

static int32_t *int_list(const mla_jv *o, const char *key, size_t *n, int32_t *into)
{
    const mla_jv *a = mla_jv_get(o, key);
    *n = mla_jv_len(a);
    int32_t *v = into ? into : mla_alloc(*n, 1, sizeof *v);
    size_t i = 0;
    for (const mla_jv *e = mla_jv_first(a); e; e = mla_jv_next(e)) {
        size_t x;
        ck_assert(mla_jv_size(e, &x));
        v[i++] = (int32_t)x;
    }
    return v;
}

static double *num_list(const mla_jv *o, const char *key, size_t n)
{
    const mla_jv *a = mla_jv_get(o, key);
    ck_assert_uint_eq(mla_jv_len(a), n);
    double *v = mla_alloc(n, 1, sizeof *v);
    size_t i = 0;
    for (const mla_jv *e = mla_jv_first(a); e; e = mla_jv_next(e)) ck_assert(mla_jv_f64(e, &v[i++]));
    return v;
}

static rec *read_recs(const char *path, size_t *n)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_json_read(&d, path, 1 << 26, &err));
    const mla_jv *cases = mla_jv_get(mla_json_root(d), "cases");
    rec *r = mla_alloc(mla_jv_len(cases), 1, sizeof *r);
    *n = 0;
    for (const mla_jv *c = mla_jv_first(cases); c; c = mla_jv_next(c)) {
        rec *x = &r[(*n)++];
        size_t k;
        snprintf(x->name, sizeof x->name, "%s", mla_jv_str(mla_jv_get(c, "name")));
        x->greedy = !strcmp(mla_jv_str(mla_jv_get(c, "kind")), "greedy");
        x->np = mla_jv_len(mla_jv_get(c, "prompt_ids"));
        x->n = mla_jv_len(mla_jv_get(c, "completion_ids"));
        x->ids = mla_alloc(x->np + x->n, 1, sizeof *x->ids);
        int_list(c, "prompt_ids", &k, x->ids);
        int_list(c, "completion_ids", &k, x->ids + x->np);
        x->top1 = int_list(c, "top1", &k, NULL);
        ck_assert_uint_eq(k, x->n);
        x->logprob = num_list(c, "top1_logprob", x->n);
        x->margin = num_list(c, "margin", x->n);
        x->target = num_list(c, "target_logprob", x->n);
    }
    mla_json_free(d);
    return r;
}

static void free_recs(rec *r, size_t n)
{
    for (size_t i = 0; i < n; i++) mla_free(r[i].ids), mla_free(r[i].top1), mla_free(r[i].logprob), mla_free(r[i].margin), mla_free(r[i].target);
    mla_free(r);
}

static void judge(found *f, const rec *r, size_t at, const float *logits, size_t V)
{
    mla_err err = {0};
    mla_score s;
    ck_ok(mla_score_row(&s, logits, V, r->ids[r->np + at], &err));
    f->positions++;
    if (r->margin[at] >= CLEAR) {
        f->clear++;
        ck_assert_msg(s.top1 == r->top1[at], "%s position %zu: id %d, recorded %d with margin %g", r->name, at, (int)s.top1, (int)r->top1[at],
                      r->margin[at]);
    } else {
        f->flipped += s.top1 != r->top1[at];
    }
    f->logprob = fmax(f->logprob, fabs(s.logprob - r->logprob[at]));
    f->margin = fmax(f->margin, fabs(s.margin - r->margin[at]));
    f->target = fmax(f->target, fabs(s.target_logprob - r->target[at]));
}

static void forced(mla_rt *rt, const rec *r, found *f)
{
    size_t V = mla_rt_config(rt)->vocab, n = r->np + r->n - 1;
    float *logits = run_chunks(rt, r->ids, n, r->np - 1, 512, 0);
    for (size_t i = 0; i < r->n; i++) judge(f, r, i, logits + i * V, V);
    mla_free(logits);
}

typedef struct {
    const rec *r;
    mla_seq *s;
    float *logits;
    size_t at;      /* positions decoded */
    bool done;
    int32_t next;
} decoding;

/* Takes the logits of position at; greedy choice, compared with the record. A near-tie may part ways. */
static void choose(decoding *d, found *f, size_t V)
{
    mla_err err = {0};
    mla_score s;
    judge(f, d->r, d->at, d->logits, V);
    ck_ok(mla_score_row(&s, d->logits, V, -1, &err));
    d->next = s.top1;
    d->done = ++d->at == d->r->n || s.top1 != d->r->top1[d->at - 1];
}

/* All greedy cases decode side by side, one token a step, as a server would. */
static size_t free_decode(mla_rt *rt, const rec *r, size_t n, found *f)
{
    mla_err err = {0};
    size_t V = mla_rt_config(rt)->vocab, cases = 0, complete = 0, live;
    decoding *d = mla_alloc(n, 1, sizeof *d);
    mla_job *j = mla_alloc(n, 1, sizeof *j);
    for (size_t i = 0; i < n; i++) {
        if (!r[i].greedy) continue;
        decoding *x = &d[cases++];
        *x = (decoding){.r = &r[i], .logits = mla_alloc(V, 1, 4)};
        ck_ok(mla_seq_new(&x->s, rt, r[i].np + r[i].n, &err));
        mla_job p = {.seq = x->s, .ids = r[i].ids, .T = r[i].np, .logits_from = r[i].np - 1, .logits = x->logits};
        ck_ok(mla_rt_run(rt, &p, 1, NULL, NULL, &err));
        choose(x, f, V);
    }
    do {
        live = 0;
        decoding *who[64];
        for (size_t i = 0; i < cases; i++) {
            if (d[i].done) continue;
            who[live] = &d[i];
            j[live++] = (mla_job){.seq = d[i].s, .ids = &d[i].next, .T = 1, .logits = d[i].logits};
        }
        if (live) ck_ok(mla_rt_run(rt, j, live, NULL, NULL, &err));
        for (size_t i = 0; i < live; i++) choose(who[i], f, V);
    } while (live);
    for (size_t i = 0; i < cases; i++) {
        complete += d[i].at == d[i].r->n;
        mla_seq_free(d[i].s);
        mla_free(d[i].logits);
    }
    mla_free(d);
    mla_free(j);
    return complete;
}

static void report(const char *what, const found *f)
{
    if (getenv("MLA_TEST_FIGURES"))
        printf("%s: %zu positions, %zu clear and all agree, %zu near-ties differ; largest differences: log-probability %.2g, margin %.2g, target %.2g nat\n",
               what, f->positions, f->clear, f->flipped, f->logprob, f->margin, f->target);
    ck_assert_msg(f->logprob <= NEAR && f->margin <= NEAR && f->target <= NEAR, "%s: log-probability off by %g, margin %g, target %g", what,
                  f->logprob, f->margin, f->target);
}

#ifdef __SANITIZE_ADDRESS__ /* long contexts run the same code for minutes; the suite without sanitizers takes them */
#define LONGEST 512
#else
#define LONGEST SIZE_MAX
#endif

static void run_reference(const char *model, const char *file, size_t want_positions)
{
    world w = world_open(model, 2);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    size_t n, greedy = 0, left_out = 0;
    rec *r = read_recs(mla_fixture(file), &n);
    found f = {0}, g = {0};
    for (size_t i = 0; i < n; i++) {
        greedy += r[i].greedy;
        if (r[i].np <= LONGEST) forced(rt, &r[i], &f);
        else left_out += r[i].n;
    }
    report("forced", &f);
    ck_assert_uint_eq(f.positions + left_out, want_positions);
    size_t complete = free_decode(rt, r, n, &g);
    report("free decode", &g);
    ck_assert_msg(complete == greedy, "%zu of %zu greedy cases decoded to their end", complete, greedy);
    free_recs(r, n);
    mla_rt_close(rt);
    world_close(&w);
}

START_TEST(tiny_hybrid_reference)
{
    run_reference(NULL, "references/tiny-hybrid.json", 3817);
}
END_TEST

START_TEST(smollm2_reference)
{
    const char *path = getenv("MLA_SMOLLM2");
    if (!path) {
        mla_test_skip("smollm2-135m-instruct-q4_1 reference", "MLA_SMOLLM2 does not name the .gguf", 1);
        return;
    }
    run_reference(path, "references/smollm2-135m-instruct-q4_1.json", 2507);
}
END_TEST

/* The judgement must be able to fail: another model (one layer's factors cut) is seen on clear positions. */
START_TEST(a_damaged_model_disagrees)
{
    mla_err err = {0};
    world w = world_open(NULL, 2);
    mla_rt *rt = world_rt(&w, (mla_rt_opts){0});
    mla_factors f;
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, 1, 224, 100, &err));
    mla_factors_identity(&f);
    ck_ok(mla_rt_set_factors(rt, 3, &f, &err));
    mla_factors_free(&f);
    size_t n, V = w.c->vocab, wrong = 0, clear = 0;
    rec *r = read_recs(mla_fixture("references/tiny-hybrid.json"), &n);
    float *logits = run_chunks(rt, r[0].ids, r[0].np + r[0].n - 1, r[0].np - 1, 0, 0);
    for (size_t i = 0; i < r[0].n; i++) {
        mla_score s;
        ck_ok(mla_score_row(&s, logits + i * V, V, -1, &err));
        if (r[0].margin[i] < CLEAR) continue;
        clear++;
        wrong += s.top1 != r[0].top1[i];
    }
    ck_assert_msg(wrong > 0, "all %zu clear positions agree", clear);
    mla_free(logits);
    free_recs(r, n);
    mla_rt_close(rt);
    world_close(&w);
}
END_TEST

Suite *reference_suite(void)
{
    Suite *s = suite_create("reference");
    TCase *t = tcase_create("reference");
    tcase_set_timeout(t, 3600);
    tcase_add_test(t, tiny_hybrid_reference);
    tcase_add_test(t, a_damaged_model_disagrees);
    tcase_add_test(t, smollm2_reference);
    suite_add_tcase(s, t);
    return s;
}
