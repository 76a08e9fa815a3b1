/* Parity and recording on the bundled model: agreement with the recorded ids, planted faults, base against itself. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "suites.h"
#include "verify/parity/parity_run.h"
#include "verify/reference/record.h"
#include "xml.h"

typedef struct {
    mla_backend *be;
    mla_model *m;
    mla_rt *rt;
} machine;

static void start(machine *x, size_t threads, mla_dtype kv)
{
    mla_err err = {0};
    *x = (machine){0};
    ck_ok(mla_backend_open(&x->be, &(mla_backend_opts){.threads = threads}, &err));
    ck_ok(mla_model_open(&x->m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_rt_open(&x->rt, x->m, x->be, &(mla_rt_opts){.precision = MLA_PREC_F32, .kv_dtype = kv}, &err));
}

static void stop(machine *x)
{
    mla_rt_close(x->rt);
    mla_model_close(x->m);
    mla_backend_close(x->be);
}

/* The recorded file with its cases [first, first + n) only. */
static void read_cases(mla_reference *r, size_t first, size_t n)
{
    mla_err err = {0};
    ck_ok(mla_reference_read(r, mla_fixture("references/tiny-hybrid.json"), &err));
    for (size_t i = 0; i < r->n; i++)
        if (i < first || i >= first + n) mla_ref_case_free(&r->c[i]);
    memmove(r->c, r->c + first, n * sizeof *r->c);
    r->n = n;
}

static mla_json *report(mla_parity *p, const mla_parity_input *in, const mla_parity_opts *o, mla_verdict *v)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_parity_run(p, in, o, &err));
    ck_ok(mla_json_new_object(&d, &err));
    mla_jv_set_str(mla_json_root(d), "schema", MLA_PARITY_SCHEMA);
    ck_ok(mla_parity_report(mla_json_root(d), p, v, &err));
    return d;
}

static double num(const mla_jv *o, const char *path)
{
    char part[64];
    double x = NAN;
    for (const char *p = path; o; p += strlen(part) + 1) {
        (void)snprintf(part, sizeof part, "%.*s", (int)strcspn(p, "."), p);
        o = mla_jv_get(o, part);
        if (!p[strlen(part)]) break;
    }
    ck_assert_msg(mla_jv_f64(o, &x), "no number at %s", path);
    return x;
}

/* Everything up to 1024 tokens of context: enough confident positions for the gate. */
START_TEST(recorded_ids_agree)
{
    machine x;
    mla_reference r;
    mla_parity p;
    mla_verdict v;
    mla_parity_opts o = mla_parity_defaults();
    start(&x, 2, MLA_F32);
    read_cases(&r, 0, 23);
    o.chunk = 100;
    mla_json *d = report(&p, &(mla_parity_input){.model = x.rt, .ref = &r}, &o, &v);
    const mla_jv *doc = mla_json_root(d);
    ck_assert_int_eq(v, MLA_PASS);
    ck_assert_double_eq(num(doc, "agree"), num(doc, "positions"));
    ck_assert_double_eq(num(doc, "positions"), (double)mla_reference_positions(&r));
    ck_assert_double_ge(num(doc, "confident.wilson_low"), 0.995);
    ck_assert_double_eq(num(doc, "free_decode.exact"), 12);
    ck_assert_double_eq(num(doc, "aa.margin_change_max"), 0); /* the reference path does not depend on chunks */
    ck_assert_double_eq_tol(num(doc, "ppl.ratio"), 1, 1e-4);
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(doc, "per_case")), 23);
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(doc, "disagreements")), 0);
    for (size_t i = 0; i < p.n; i++) { /* log-probabilities and margins as recorded, to the 1e-3 nat */
        const mla_ref_case *c = &r.c[p.pos[i].case_index];
        ck_assert_double_eq_tol(p.pos[i].model_logprob, c->target_logprob[p.pos[i].step], 1e-3);
        ck_assert_double_eq_tol(p.pos[i].model_margin, c->margin[p.pos[i].step], 1e-3);
    }
    mla_json_free(d);
    for (size_t ties = 0; ties < 2; ties++) { /* answers that move with the chunks: no fault where both passes had a near-tie */
        mla_err err;
        p.aa_agree = p.aa_positions - 20;
        p.aa_ties = ties * 20;
        ck_ok(mla_json_new_object(&d, &err));
        ck_ok(mla_parity_report(mla_json_root(d), &p, &v, &err));
        ck_assert_int_eq(v, ties ? MLA_PASS : MLA_FAIL);
        mla_json_free(d);
    }
    mla_parity_free(&p);
    mla_reference_free(&r);
    stop(&x);
}
END_TEST

/* A small sample shows nothing; a planted fault is found, listed with its margin, and fails the gate. */
START_TEST(planted_faults_are_found)
{
    machine x;
    mla_reference r;
    mla_parity p;
    mla_verdict v;
    mla_parity_opts o = mla_parity_defaults();
    o.aa_positions = 16;
    start(&x, 1, MLA_F32);
    read_cases(&r, 12, 2); /* two forced texts */
    mla_json *d = report(&p, &(mla_parity_input){.model = x.rt, .ref = &r}, &o, &v);
    ck_assert_int_eq(v, MLA_NO_EVIDENCE);
    mla_json_free(d);
    mla_parity_free(&p);

    size_t sure = 0, tie = SIZE_MAX;
    while (!r.c[0].confident[sure]) sure++;
    for (size_t i = 0; i < r.c[1].n; i++)
        if (r.c[1].margin[i] < 0.1) tie = i;
    ck_assert_uint_ne(tie, SIZE_MAX);
    r.c[0].top1[sure] = (r.c[0].top1[sure] + 1) % 2048;
    r.c[1].top1[tie] = (r.c[1].top1[tie] + 1) % 2048;
    o.min_agreement = 0.985;
    d = report(&p, &(mla_parity_input){.model = x.rt, .ref = &r}, &o, &v);
    const mla_jv *doc = mla_json_root(d), *a = mla_jv_first(mla_jv_get(doc, "disagreements")), *b = mla_jv_next(a);
    ck_assert_int_eq(v, MLA_FAIL);
    ck_assert_double_eq(num(doc, "disagreements_total"), 2);
    ck_assert_double_eq(num(doc, "near_ties"), 1);
    ck_assert_double_eq(num(doc, "confident.positions") - num(doc, "confident.agree"), 1);
    ck_assert_double_eq(num(a, "position"), (double)sure);
    ck_assert_double_eq(num(a, "expected"), r.c[0].top1[sure]);
    ck_assert_double_ge(num(a, "margin"), 1);
    ck_assert_double_eq(num(b, "position"), (double)tie);
    ck_assert_double_lt(num(b, "margin"), 0.1);
    mla_str text = MLA_STR_MAX(1 << 20);
    mla_parity_text(&text, doc);
    ck_assert_ptr_nonnull(strstr(text.s, "CONFIDENT"));
    ck_assert_ptr_nonnull(strstr(text.s, "verdict: fail"));
    mla_str_free(&text);
    mla_json_free(d);
    mla_parity_free(&p);
    mla_reference_free(&r);
    stop(&x);
}
END_TEST

START_TEST(free_decode_stops_where_answers_part)
{
    machine x;
    mla_reference r;
    mla_parity p;
    mla_verdict v;
    mla_parity_opts o = mla_parity_defaults();
    o.aa_positions = 0;
    start(&x, 1, MLA_F32);
    read_cases(&r, 0, 2);
    r.c[1].completion[7] = r.c[1].top1[7] = (r.c[1].top1[7] + 1) % 2048;
    mla_json *d = report(&p, &(mla_parity_input){.model = x.rt, .ref = &r}, &o, &v);
    const mla_jv *doc = mla_json_root(d), *div = mla_jv_first(mla_jv_get(mla_jv_get(doc, "free_decode"), "divergences"));
    ck_assert_double_eq(num(doc, "free_decode.exact"), 1);
    ck_assert_double_eq(num(div, "step"), 7);
    bool differs = true;
    ck_assert(mla_jv_bool(mla_jv_get(div, "differs_from_forced"), &differs) && !differs);
    mla_json_free(d);
    mla_parity_free(&p);
    mla_reference_free(&r);
    stop(&x);
}
END_TEST

START_TEST(a_model_against_itself)
{
    machine x, y;
    mla_parity p;
    mla_verdict v;
    int32_t ids[700];
    mla_parity_opts o = mla_parity_defaults();
    for (int i = 0; i < 700; i++) ids[i] = (i * 37 + i * i % 11) % 2040;
    start(&x, 1, MLA_F32);
    start(&y, 2, MLA_BF16);
    mla_parity_input in = {.model = x.rt, .base = x.rt, .corpus = ids, .n_corpus = 700, .row_tokens = 256};
    mla_json *d = report(&p, &in, &o, &v);
    const mla_jv *doc = mla_json_root(d);
    ck_assert_double_eq(num(doc, "kld.max"), 0);
    ck_assert_double_eq(num(doc, "kld.top1_agreement"), 1);
    ck_assert_double_eq(num(doc, "ppl.ratio"), 1);
    ck_assert_double_eq(num(doc, "kld.positions"), 700);
    ck_assert_double_eq(num(doc, "ppl.positions"), 697); /* three rows, each without a next token at its end */
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(doc, "per_case")), 3);
    mla_json_free(d);
    mla_parity_free(&p);

    in.model = y.rt; /* the same weights, a rounded cache */
    o.max_kld = 1e-9;
    d = report(&p, &in, &o, &v);
    doc = mla_json_root(d);
    ck_assert_int_eq(v, MLA_FAIL);
    ck_assert_double_gt(num(doc, "kld.mean"), 0);
    ck_assert_double_lt(num(doc, "kld.mean"), 1e-4);
    ck_assert_double_ge(num(doc, "kld.max"), num(doc, "kld.p99"));
    mla_str svg = MLA_STR_MAX(1 << 20);
    mla_err err = {0};
    size_t n;
    ck_ok(mla_parity_svg(&svg, doc, &err));
    ck_assert_ptr_null(xml_check(svg.s, "polyline", &n));
    ck_assert_uint_ge(n, 2);
    mla_str_free(&svg);
    mla_json_free(d);
    mla_parity_free(&p);
    stop(&y);
    stop(&x);
}
END_TEST

START_TEST(inputs_are_checked)
{
    mla_err err = {0};
    machine x;
    mla_reference r;
    mla_parity p;
    int32_t ids[4] = {1, 2, 3, 2048};
    mla_parity_opts o = mla_parity_defaults();
    start(&x, 1, MLA_F32);
    read_cases(&r, 0, 1);
    ck_refused(mla_parity_run(&p, &(mla_parity_input){.model = x.rt}, &o, &err), MLA_EINVAL, "nothing to compare with");
    mla_parity_input in = {.model = x.rt, .base = x.rt, .corpus = ids, .n_corpus = 4, .row_tokens = 4};
    ck_refused(mla_parity_run(&p, &in, &o, &err), MLA_EFORMAT, "corpus token 3: expected an id below 2048, found 2048");
    r.c[0].prompt[2] = 4000;
    ck_refused(mla_parity_run(&p, &(mla_parity_input){.model = x.rt, .ref = &r}, &o, &err), MLA_EFORMAT, "prompt_ids[2]");
    mla_reference_free(&r);
    stop(&x);
}
END_TEST

static void put(const char *path, const char *text)
{
    mla_err err = {0};
    ck_ok(mla_file_write(path, text, strlen(text), &err));
}

/* What a model records, it agrees with; the bytes do not depend on threads or chunks. */
START_TEST(recording_and_verifying)
{
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), *jsonl = mla_path_join(dir, "p.jsonl"), *out[2] = {mla_path_join(dir, "a.json"), mla_path_join(dir, "b.json")};
    put(jsonl, "{\"prompt\": \"<|im_start|>user\\nTell me about rain.<|im_end|>\\n<|im_start|>assistant\\n\", \"name\": \"rain@en\"}\n\n"
               "{\"prompt_ids\": [5, 6, 7], \"completion_ids\": [8, 9, 10, 11]}\n"
               "{\"text\": \"Once upon a time there was a small house by the sea, and in it lived an old man.\"}\n");
    char *bytes[2];
    size_t len[2];
    for (size_t k = 0; k < 2; k++) {
        machine x;
        mla_prompts ps = {0};
        mla_reference r;
        mla_tok *tok;
        start(&x, k + 1, MLA_F32);
        ck_ok(mla_model_tokenizer(x.m, &tok, &err));
        ck_ok(mla_prompts_add(&ps, jsonl, &(mla_prompts_opts){.tok = tok, .vocab = 2048, .split = 4}, &err));
        ck_assert_uint_eq(ps.n, 3);
        ck_assert_uint_eq(ps.p[2].prompt.n, 4);
        ck_assert_uint_gt(ps.p[2].completion.n, 4);
        ck_ok(mla_record(&r, x.rt, &ps, &(mla_record_opts){.max_tokens = 24, .chunk = k ? 3 : 64, .min_margin = 1}, &err));
        ck_assert(!r.c[0].forced && r.c[1].forced && r.c[2].forced);
        ck_assert_str_eq(r.c[0].name, "rain@en");
        ck_assert_uint_eq(r.c[1].n, 4);
        ck_ok(mla_reference_write(&r, out[k], &err));
        ck_ok(mla_file_read(&bytes[k], &len[k], out[k], 1 << 24, &err));
        mla_reference_free(&r);
        if (k == 0) {
            mla_parity p;
            mla_verdict v;
            mla_parity_opts o = mla_parity_defaults();
            ck_ok(mla_reference_read(&r, out[k], &err));
            mla_json *d = report(&p, &(mla_parity_input){.model = x.rt, .ref = &r}, &o, &v);
            ck_assert_double_eq(num(mla_json_root(d), "agreement"), 1);
            ck_assert_double_eq(num(mla_json_root(d), "free_decode.exact"), 1);
            ck_assert_int_eq(v, MLA_NO_EVIDENCE);
            mla_json_free(d);
            mla_parity_free(&p);
            mla_reference_free(&r);
        }
        mla_prompts_free(&ps);
        mla_tok_free(tok);
        stop(&x);
    }
    ck_assert(len[0] == len[1] && !memcmp(bytes[0], bytes[1], len[0]));
    ck_ok(mla_dir_remove(dir, &err));
    for (size_t k = 0; k < 2; k++) {
        mla_free(bytes[k]);
        mla_free(out[k]);
    }
    mla_free(jsonl);
    mla_free(dir);
}
END_TEST

START_TEST(prompt_files_are_checked)
{
    static const struct {
        const char *text, *message;
    } BAD[] = {
        {"{\"prompt_ids\": [1]}\n{\"prompt_ids\": []}", "line 2: expected a prompt of at least one token"},
        {"{\"prompt_ids\": [2048]}", "line 1: token 0: expected an id below 2048, found 2048"},
        {"{\"prompt_ids\": [1], \"prompt\": \"x\"}", "prompt and prompt_ids: expected one of them"},
        {"{\"prompt\": 3}", "prompt: expected a string, found number"},
        {"{\"prompt\": \"x\"}", "text needs a tokenizer"},
        {"[1]", "expected an object, found array"},
        {"{\"prompt_ids\": [1]", "line 1"},
        {"{}", "expected a prompt"},
    };
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), *p = mla_path_join(dir, "p.jsonl");
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        mla_prompts ps = {0};
        put(p, BAD[i].text);
        mla_status st = mla_prompts_add(&ps, p, &(mla_prompts_opts){.vocab = 2048}, &err);
        ck_assert_int_eq(st, MLA_EFORMAT);
        ck_assert_msg(strstr(err.msg, BAD[i].message), "\"%s\" lacks \"%s\"", err.msg, BAD[i].message);
        mla_prompts_free(&ps);
    }
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(p);
    mla_free(dir);
}
END_TEST

Suite *suite_parity(void)
{
    Suite *s = suite_create("parity");
    TCase *t = tcase_create("parity");
    tcase_add_test(t, recorded_ids_agree);
    tcase_add_test(t, planted_faults_are_found);
    tcase_add_test(t, free_decode_stops_where_answers_part);
    tcase_add_test(t, a_model_against_itself);
    tcase_add_test(t, inputs_are_checked);
    tcase_add_test(t, recording_and_verifying);
    tcase_add_test(t, prompt_files_are_checked);
    suite_add_tcase(s, t);
    return s;
}
