/* Image prompts: embeddings with positions in three dimensions are recorded, read back and judged; damage is refused. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "suites.h"
#include "verify/parity/parity_run.h"
#include "verify/reference/record.h"

typedef struct {
    mla_backend *be;
    mla_model *m;
    mla_rt *rt;
} machine;

static void start(machine *x)
{
    mla_err err = {0};
    ck_ok(mla_backend_open(&x->be, &(mla_backend_opts){.threads = 2}, &err));
    ck_ok(mla_model_open(&x->m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_rt_open(&x->rt, x->m, x->be, &(mla_rt_opts){.kv_dtype = MLA_F32}, &err));
}

static void stop(machine *x)
{
    mla_rt_close(x->rt);
    mla_model_close(x->m);
    mla_backend_close(x->be);
}

/* The first answered token is the argmax of what transformers computed for the last row of the same prompt. */
START_TEST(recorded_and_judged)
{
    mla_err err = {0};
    machine x;
    mla_prompts p = {0};
    mla_reference r, back;
    mla_parity result;
    mla_parity_opts o = mla_parity_defaults();
    mla_st *s;
    const char *file = mla_fixture("references/tiny-hybrid.tensors.safetensors");
    char *dir = mla_test_tmpdir(), *at = mla_path_join(dir, "tiny-hybrid.tensors.safetensors"), *json = mla_path_join(dir, "r.json");
    start(&x);
    ck_ok(mla_file_place(file, at, NULL, &err));
    ck_ok(mla_prompts_add_embeddings(&p, at, &err));
    ck_assert_uint_eq(p.n, 1);
    ck_ok(mla_record(&r, x.rt, &p, &(mla_record_opts){.max_tokens = 12, .chunk = 23, .min_margin = 1}, &err));
    ck_ok(mla_st_open(&s, at, &err));
    const mla_tensor *t = mla_st_find(s, "mrope.logits");
    size_t V = t->shape[1], best = 0;
    const float *last = (const float *)t->data + (t->shape[0] - 1) * V;
    for (size_t i = 1; i < V; i++)
        if (last[i] > last[best]) best = i;
    ck_assert_int_eq(r.c[0].top1[0], (int)best);
    ck_ok(mla_reference_write(&r, json, &err));
    ck_ok(mla_reference_read(&back, json, &err));
    ck_assert_ptr_null(back.c[0].prompt);
    ck_assert_uint_eq(back.c[0].n_prompt, 64);
    o.chunk = 40; /* cuts the image, which itself ends a chunk */
    ck_ok(mla_parity_run(&result, &(mla_parity_input){.model = x.rt, .ref = &back}, &o, &err));
    ck_assert_str_eq(result.c[0].kind, "image");
    ck_assert(!result.c[0].decode_diverged);
    for (size_t i = 0; i < result.n; i++) ck_assert_int_eq(result.pos[i].got, result.pos[i].expected);
    mla_parity_free(&result);
    /* flat positions are another prompt: the margins move */
    for (size_t i = 0; i < 3 * 64; i++) back.c[0].image.pos3[i] = (int32_t)(i % 64);
    double moved = 0;
    ck_ok(mla_parity_run(&result, &(mla_parity_input){.model = x.rt, .ref = &back}, &o, &err));
    for (size_t i = 0; i < result.n; i++) moved = fmax(moved, fabs(result.pos[i].model_margin - result.pos[i].margin));
    ck_assert_double_gt(moved, 1e-3);
    mla_parity_free(&result);
    back.c[0].image.width = 128;
    ck_refused(mla_parity_run(&result, &(mla_parity_input){.model = x.rt, .ref = &back}, &o, &err), MLA_EFORMAT, "expected width 256");
    mla_st_close(s);
    mla_reference_free(&r);
    mla_reference_free(&back);
    mla_prompts_free(&p);
    mla_free(at);
    mla_free(json);
    mla_free(dir);
    stop(&x);
}
END_TEST

static char *write_pair(const char *dir, mla_dtype pt, const size_t *ps, const void *pos, const float *e)
{
    mla_err err = {0};
    char *path = mla_path_join(dir, "e.safetensors");
    size_t pn = ps[0] * ps[1];
    mla_tensor t[] = {{.name = "a.inputs_embeds", .dtype = MLA_F32, .ndim = 2, .shape = {2, 4}, .data = e, .nbytes = 32},
                      {.name = "a.position_ids", .dtype = pt, .ndim = 2, .shape = {ps[0], ps[1]}, .data = pos, .nbytes = pn * mla_dtype_bits(pt) / 8}};
    ck_ok(mla_st_write(path, t, 2, NULL, &err));
    return path;
}

START_TEST(refusals)
{
    static const int64_t good[6] = {0, 1, 0, 1, 0, 1}, negative[6] = {0, 1, 0, -1, 0, 1};
    static const int32_t narrow[6] = {0, 1, 0, 1, 0, 1};
    static const float e[8] = {1, 2, 3, 4, 5, 6, 7, 8}, nan[8] = {1, 2, 3, NAN, 5, 6, 7, 8};
    const size_t ok[2] = {3, 2}, turned[2] = {2, 3};
    char *dir = mla_test_tmpdir(), *path;
    mla_embedded *out;
    mla_err err = {0};
    size_t n;
    path = write_pair(dir, MLA_I32, ok, narrow, e);
    ck_ok(mla_embedded_read(&out, &n, path, "a", NULL, &err));
    ck_assert(n == 1 && out->n == 2 && out->width == 4 && out->pos3[1] == 1);
    mla_embedded_free(out);
    mla_free(out);
    ck_refused(mla_embedded_read(&out, &n, path, "b", NULL, &err), MLA_EFORMAT, "b.inputs_embeds: no such tensor");
    ck_refused(mla_embedded_read(&out, &n, path, "a", "00", &err), MLA_EFORMAT, "sha256 expected 00");
    mla_free(path);
    const struct { mla_dtype t; const size_t *shape; const void *pos; const float *e; const char *says; } BAD[] = {
        {MLA_I64, turned, good, e, "expected I64 or I32 [3, 2], found I64 [2, 3]"},
        {MLA_F32, ok, e, e, "expected I64 or I32 [3, 2], found F32"},
        {MLA_I64, ok, negative, e, "element 3 is no position: -1"},
        {MLA_I64, ok, good, nan, "element 3 is not finite"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        path = write_pair(dir, BAD[i].t, BAD[i].shape, BAD[i].pos, BAD[i].e);
        ck_refused(mla_embedded_read(&out, &n, path, NULL, NULL, &err), MLA_EFORMAT, BAD[i].says);
        mla_free(path);
    }
    mla_free(dir);
}
END_TEST

Suite *suite_embeddings(void)
{
    Suite *s = suite_create("embeddings");
    TCase *t = tcase_create("embeddings");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, recorded_and_judged);
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    return s;
}
