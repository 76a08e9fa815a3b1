/* Every recorded tensor of the tiny hybrid: trunk, MTP head, image-like positions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "tensor/compare.h"

typedef struct {
    const mla_st *ref;
    const mla_config *c;
    size_t seen, shift;  /* shift: compares with the rows of other tokens (negative control) */
    size_t bad;
} compared;

/* got (rows, width) against a recorded tensor; depth in layers passed on the way. */
static void compare(compared *a, const char *name, const float *got, size_t n, double depth)
{
    size_t k;
    float *want = tensor_f32(a->ref, name, &k);
    ck_assert_msg(n == k, "%s: %zu values, recorded %zu", name, n, k);
    mla_cmp c = mla_compare(got, want + a->shift, k - a->shift);
    double tol = path_bound(a->c, depth, 64) * c.max_want;
    if (getenv("MLA_TEST_FIGURES")) printf("%-20s max error %.3g of %.3g allowed (max %.3g)\n", name, c.max_abs, tol, c.max_want);
    bool ok = mla_cmp_ok(c, tol);
    if (!a->shift) ck_assert_msg(ok, "%s: error %g at %zu, allowed %g, %zu non-finite", name, c.max_abs, c.worst, tol, c.nonfinite);
    a->bad += !ok;
    a->seen++;
    mla_free(want);
}

static mla_status look(void *ctx, const mla_tap *t, mla_err *err)
{
    compared *a = ctx;
    static const char *const WHAT[] = {[MLA_TAP_MIXER] = "mixer", [MLA_TAP_MLP] = "mlp", [MLA_TAP_LAYER] = "output",
                                       [MLA_TAP_Q_NORM] = "q_norm", [MLA_TAP_K_NORM] = "k_norm"};
    char name[64];
    double depth = (double)t->layer;
    switch (t->point) {
    case MLA_TAP_EMBED: snprintf(name, sizeof name, "embed"), depth = 0; break;
    case MLA_TAP_NORM: snprintf(name, sizeof name, "norm"), depth = (double)a->c->layers; break;
    case MLA_TAP_MIXER: case MLA_TAP_Q_NORM: case MLA_TAP_K_NORM: case MLA_TAP_MLP: case MLA_TAP_LAYER:
        snprintf(name, sizeof name, "layers.%zu.%s", t->layer, WHAT[t->point]);
        depth += 1;
        break;
    default: return MLA_OK;
    }
    if (!mla_st_find(a->ref, name)) return MLA_OK;
    ck_assert_uint_eq(t->ld, t->width);
    float *got = mla_alloc(t->rows, t->width, sizeof *got);
    mla_status st = t->be->ops->download(t->be, got, t->data, t->rows * t->width * 4, err);
    if (st == MLA_OK) compare(a, name, got, t->rows * t->width, depth);
    mla_free(got);
    return st;
}

static size_t trunk_and_mtp(compared *a, const world *w)
{
    mla_err err = {0};
    size_t n, V = w->c->vocab, D = w->c->hidden;
    float *idf = tensor_f32(a->ref, "input_ids", &n), *logits = mla_alloc(n, V, 4), *hidden = mla_alloc(n, D, 4);
    float *ml = mla_alloc(n, V, 4), *mo = mla_alloc(n, D, 4);
    int32_t ids[64];
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)idf[i];
    mla_rt *rt = world_rt(w, (mla_rt_opts){.mtp = true});
    mla_seq *s;
    ck_ok(mla_seq_new(&s, rt, n, &err));
    mla_job j = {.seq = s, .ids = ids, .T = n, .logits = logits, .hidden = hidden};
    ck_ok(mla_rt_run(rt, &j, 1, look, a, &err));
    compare(a, "logits", logits, n * V, (double)w->c->layers);
    compare(a, "norm", hidden, n * D, (double)w->c->layers);
    ck_ok(mla_rt_mtp(rt, s, hidden, ids + 1, n - 1, ml, mo, &err));
    compare(a, "mtp.logits", ml, (n - 1) * V, (double)w->c->layers + 1);
    compare(a, "mtp.output", mo, (n - 1) * D, (double)w->c->layers + 1);
    mla_seq_free(s);
    mla_rt_close(rt);
    mla_free(idf), mla_free(logits), mla_free(hidden), mla_free(ml), mla_free(mo);
    return a->seen;
}

START_TEST(trunk_and_mtp_tensors)
{
    world w = world_open(NULL, 1);
    mla_st *ref = recorded();
    compared a = {.ref = ref, .c = w.c};
    trunk_and_mtp(&a, &w);
    ck_assert_uint_eq(a.seen, 1 + 8 * 3 + 4 * 2 + 1 + 4); /* embed, layers, norms; final norm twice, logits, mtp */
    mla_st_close(ref);
    world_close(&w);
}
END_TEST

/* Compared with the tensors of the next token, none may pass. */
START_TEST(the_wrong_rows_do_not_pass)
{
    world w = world_open(NULL, 1);
    mla_st *ref = recorded();
    compared a = {.ref = ref, .c = w.c, .shift = 1};
    trunk_and_mtp(&a, &w);
    ck_assert_uint_eq(a.bad, a.seen);
    mla_st_close(ref);
    world_close(&w);
}
END_TEST

static float *image_logits(const world *w, const mla_st *ref, bool with_positions, size_t cut)
{
    mla_err err = {0};
    size_t n, k;
    float *e = tensor_f32(ref, "mrope.inputs_embeds", &n), *pf = tensor_f32(ref, "mrope.position_ids", &k), *logits;
    int32_t pos[3 * 64];
    ck_assert(k == 192);
    mla_rt *rt = world_rt(w, (mla_rt_opts){0});
    mla_seq *s;
    logits = mla_alloc(64, w->c->vocab, 4);
    ck_ok(mla_seq_new(&s, rt, 64, &err));
    for (size_t at = 0, T = cut ? cut : 64; at < 64; at += T, T = 64 - at) {
        for (size_t i = 0; i < 3 * T; i++) pos[i] = (int32_t)pf[i / T * 64 + at + i % T];
        mla_job j = {.seq = s, .embeds = e + at * w->c->hidden, .pos3 = with_positions ? pos : NULL, .T = T, .logits = logits + at * w->c->vocab};
        ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
    }
    mla_seq_free(s);
    mla_rt_close(rt);
    mla_free(e);
    mla_free(pf);
    return logits;
}

START_TEST(image_positions)
{
    world w = world_open(NULL, 1);
    mla_st *ref = recorded();
    size_t n = 64 * w.c->vocab;
    float *a = image_logits(&w, ref, true, 0), *b = image_logits(&w, ref, true, 23), *plain = image_logits(&w, ref, false, 0);
    compared cmp = {.ref = ref, .c = w.c};
    compare(&cmp, "mrope.logits", a, n, (double)w.c->layers);
    ck_assert_msg(!memcmp(a, b, n * 4), "a cut inside the image changed the logits");
    size_t k;
    float *want = tensor_f32(ref, "mrope.logits", &k);
    mla_cmp c = mla_compare(plain, want, n); /* consecutive positions must be seen to be wrong */
    ck_assert(c.max_abs > path_bound(w.c, (double)w.c->layers, 64) * c.max_want);
    mla_free(want), mla_free(a), mla_free(b), mla_free(plain);
    mla_st_close(ref);
    world_close(&w);
}
END_TEST

Suite *tensors_suite(void)
{
    Suite *s = suite_create("tensors");
    TCase *t = tcase_create("tensors");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, trunk_and_mtp_tensors);
    tcase_add_test(t, the_wrong_rows_do_not_pass);
    tcase_add_test(t, image_positions);
    suite_add_tcase(s, t);
    return s;
}
