/* inspect: every kind of file is recognised, tiny.gguf is listed as its oracle says, and nothing names a folder. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "suites.h"
#include "verify/inspect/inspect.h"

static mla_json *inspect(const char *path)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_inspect(&d, path, &err));
    return d;
}

static const char *str(const mla_jv *o, const char *key)
{
    const char *s = mla_jv_str(mla_jv_get(o, key));
    return s ? s : "";
}

static double num(const mla_jv *o, const char *key)
{
    double x = -1;
    (void)mla_jv_f64(mla_jv_get(o, key), &x);
    return x;
}

START_TEST(kinds_are_recognised)
{
    static const struct {
        const char *path, *kind;
    } K[] = {
        {"tiny-hybrid", "checkpoint"},
        {"tiny-hybrid/model.safetensors", "safetensors"},
        {"tiny-hybrid/config.json", "config"},
        {"golden-gguf/tiny.gguf", "gguf"},
        {"golden-gguf/gguf_q4_k.safetensors", "safetensors"},
        {"golden-gguf/tiny.json", "json"},
        {"references/tiny-hybrid.json", "reference"},
        {"references/tiny-hybrid.tensors.safetensors", "safetensors"},
        {"qwen3_8-27b", "config"},
    };
    for (size_t i = 0; i < sizeof K / sizeof *K; i++) {
        mla_json *d = inspect(mla_fixture(K[i].path));
        ck_assert_str_eq(str(mla_json_root(d), "kind"), K[i].kind);
        mla_str text = MLA_STR_MAX(1 << 24), json = MLA_STR_MAX(1 << 24);
        mla_err err = {0};
        mla_inspect_text(&text, mla_json_root(d), &(mla_inspect_text_opts){true, true});
        ck_ok(mla_json_print(&json, mla_json_root(d), true, &err));
        ck_assert(mla_str_ok(&text) && text.len > 20);
        ck_assert_msg(!strstr(json.s, "tests/fixtures"), "%s names its folder", K[i].path);
        mla_str_free(&text);
        mla_str_free(&json);
        mla_json_free(d);
    }
}
END_TEST

START_TEST(checkpoint_totals)
{
    mla_json *d = inspect(mla_fixture("tiny-hybrid"));
    const mla_jv *doc = mla_json_root(d), *t = mla_jv_get(doc, "totals");
    ck_assert_double_eq(num(t, "tensors"), 151);
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(doc, "tensors")), 151);
    double sum = 0;
    for (const mla_jv *v = mla_jv_first(mla_jv_get(doc, "tensors")); v; v = mla_jv_next(v)) sum += num(v, "bytes");
    ck_assert_double_eq(sum, num(t, "bytes"));
    ck_assert_double_eq(num(mla_jv_get(doc, "config"), "full_attention_layers"), 4);
    ck_assert_str_eq(str(mla_jv_get(doc, "kv_scales"), "provenance"), "absent");
    mla_json_free(d);
}
END_TEST

static void same_value(const mla_jv *want, const mla_jv *got, const char *key)
{
    double a, b;
    bool x, y;
    if (mla_jv_str(want)) {
        ck_assert_str_eq(mla_jv_str(got), mla_jv_str(want));
    } else if (mla_jv_bool(want, &x)) {
        ck_assert_msg(mla_jv_bool(got, &y) && x == y, "%s", key);
    } else if (mla_jv_is_arr(want)) {
        const mla_jv *p = mla_jv_first(want), *q = mla_jv_first(got);
        for (; p && q; p = mla_jv_next(p), q = mla_jv_next(q)) same_value(p, q, key);
        ck_assert_msg(!p && !q, "%s: lists of different length", key);
    } else if (mla_jv_str(got)) { /* beyond 2^53: given as text, so that nothing is lost */
        ck_assert_msg(mla_jv_f64(want, &a), "%s", key);
        ck_assert_int_eq(sscanf(mla_jv_str(got), "%lf", &b), 1);
        ck_assert_double_eq(a, b);
    } else {
        ck_assert_msg(mla_jv_f64(want, &a) && mla_jv_f64(got, &b) && a == b, "%s", key);
    }
}

START_TEST(tiny_gguf_is_fully_listed)
{
    mla_err err = {0};
    mla_json *d = inspect(mla_fixture("golden-gguf/tiny.gguf")), *o;
    ck_ok(mla_json_read(&o, mla_fixture("golden-gguf/tiny.json"), 1 << 20, &err));
    const mla_jv *got = mla_jv_first(mla_jv_get(mla_json_root(d), "metadata"));
    size_t n = 0;
    for (const mla_jv *want = mla_jv_first(mla_jv_get(mla_json_root(o), "metadata_in_file_order")); want; want = mla_jv_next(want)) {
        ck_assert_str_eq(str(got, "key"), str(want, "key"));
        ck_assert_str_eq(str(got, "type"), str(want, "type"));
        same_value(mla_jv_get(want, "value"), mla_jv_get(got, "value"), str(want, "key"));
        got = mla_jv_next(got);
        n++;
    }
    ck_assert_uint_ge(n, 20);
    ck_assert_ptr_null(got);
    got = mla_jv_first(mla_jv_get(mla_json_root(d), "tensors"));
    for (const mla_jv *want = mla_jv_first(mla_jv_get(mla_json_root(o), "tensors_in_file_order")); want; want = mla_jv_next(want)) {
        ck_assert_str_eq(str(got, "name"), str(want, "name"));
        ck_assert_str_eq(str(got, "dtype"), str(want, "type"));
        ck_assert_double_eq(num(got, "bytes"), num(want, "bytes"));
        ck_assert_uint_eq(mla_jv_len(mla_jv_get(got, "shape")), mla_jv_len(mla_jv_get(want, "dims_as_stored")));
        got = mla_jv_next(got);
    }
    ck_assert_ptr_null(got);
    mla_json_free(o);
    mla_json_free(d);
}
END_TEST

static char *write_tmp(const char *dir, const char *name, const void *data, size_t n)
{
    mla_err err = {0};
    char *p = mla_path_join(dir, name);
    ck_ok(mla_file_write(p, data, n, &err));
    return p;
}

START_TEST(unknown_architecture_is_a_note_and_broken_config_an_error)
{
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), *c = NULL, *w, st[200];
    const char *header = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    uint64_t n = strlen(header);
    memcpy(st, &n, 8);
    memcpy(st + 8, header, n + 1);
    w = write_tmp(dir, "model.safetensors", st, n + 9);
    const char *unknown = "{\"architectures\":[\"Qwen4ExpForConditionalGeneration\"],\"model_type\":\"qwen4_exp\"}";
    c = write_tmp(dir, "config.json", unknown, strlen(unknown));
    mla_json *d = inspect(dir);
    const mla_jv *note = mla_jv_first(mla_jv_get(mla_json_root(d), "notes"));
    ck_assert_ptr_nonnull(strstr(mla_jv_str(note), "Qwen4ExpForConditionalGeneration"));
    mla_json_free(d);
    ck_ok(mla_file_write(c, "{\"a\":1,\"a\":2}", 13, &err));
    ck_refused(mla_inspect(&d, dir, &err), MLA_EFORMAT, "config.json");
    ck_assert_int_eq(remove(c), 0);
    d = inspect(dir);
    ck_assert_str_eq(mla_jv_str(mla_jv_first(mla_jv_get(mla_json_root(d), "notes"))), "config.json: absent");
    mla_json_free(d);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(c);
    mla_free(w);
    mla_free(dir);
}
END_TEST

START_TEST(framed_files_and_index)
{
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), buf[64] = "MLASTAT1", *p, *q;
    const char *json = "{\"schema\":\"mla-stats/1\"}", *index = "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\"}}";
    uint64_t n = strlen(json);
    memcpy(buf + 8, &n, 8);
    memcpy(buf + 16, json, n);
    p = write_tmp(dir, "s.stats", buf, 16 + n);
    mla_json *d = inspect(p);
    ck_assert_str_eq(str(mla_json_root(d), "kind"), "statistics");
    ck_assert_str_eq(str(mla_jv_get(mla_json_root(d), "header"), "schema"), "mla-stats/1");
    mla_json_free(d);
    ck_ok(mla_file_write(p, buf, 15 + n, &err));
    ck_refused(mla_inspect(&d, p, &err), MLA_EFORMAT, "header length");
    q = write_tmp(dir, "model.safetensors.index.json", index, strlen(index));
    d = inspect(q);
    ck_assert_str_eq(str(mla_json_root(d), "kind"), "index");
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(mla_json_root(d), "tensors")), 2);
    ck_assert_ptr_nonnull(strstr(mla_jv_str(mla_jv_first(mla_jv_get(mla_json_root(d), "notes"))), "x.safetensors: named by the index, absent"));
    mla_json_free(d);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(p);
    mla_free(q);
    mla_free(dir);
}
END_TEST

Suite *suite_inspect(void)
{
    Suite *s = suite_create("inspect");
    TCase *t = tcase_create("inspect");
    tcase_add_test(t, kinds_are_recognised);
    tcase_add_test(t, checkpoint_totals);
    tcase_add_test(t, tiny_gguf_is_fully_listed);
    tcase_add_test(t, unknown_architecture_is_a_note_and_broken_config_an_error);
    tcase_add_test(t, framed_files_and_index);
    suite_add_tcase(s, t);
    return s;
}
