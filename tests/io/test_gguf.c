/* GGUF: the golden file lists exactly what its description says, and typed reads convert as promised. */
#include <stdio.h>
#include <stdlib.h>

#include "io/gguf.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/suites.h"

static const char *const TYPE_NAME[] = {"UINT8", "INT8", "UINT16", "INT16", "UINT32", "INT32", "FLOAT32",
                                        "BOOL", "STRING", "ARRAY", "UINT64", "INT64", "FLOAT64"};

static uint64_t raw(const unsigned char *p, size_t n)
{
    uint64_t v = 0;
    while (n--) v = v << 8 | p[n];
    return v;
}

/* Bytes of one scalar against a JSON value; 64-bit integers beyond 2^53 are compared as doubles. */
static void check_scalar(const char *key, mla_gguf_vtype t, const unsigned char *p, size_t n, const mla_jv *want)
{
    double got, w;
    bool b;
    uint64_t u = raw(p, n);
    switch (t) {
    case MLA_GV_BOOL: ck_assert(mla_jv_bool(want, &b) && b == (u == 1)); return;
    case MLA_GV_F32: { float f; memcpy(&f, p, 4); got = (double)f; break; }
    case MLA_GV_F64: memcpy(&got, p, 8); break;
    case MLA_GV_I8: got = (double)(int8_t)u; break;
    case MLA_GV_I16: got = (double)(int16_t)u; break;
    case MLA_GV_I32: got = (double)(int32_t)u; break;
    case MLA_GV_I64: got = (double)(int64_t)u; break;
    default: got = (double)u;
    }
    ck_assert_msg(mla_jv_f64(want, &w) && w == got, "%s: %.17g, wanted %.17g", key, got, w);
}

static void check_kv(const mla_gguf_kv *kv, const mla_jv *want)
{
    const mla_jv *value = mla_jv_get(want, "value");
    ck_assert_str_eq(kv->key, mla_jv_str(mla_jv_get(want, "key")));
    ck_assert_str_eq(TYPE_NAME[kv->type], mla_jv_str(mla_jv_get(want, "type")));
    if (kv->type == MLA_GV_STRING) {
        ck_assert_uint_eq(kv->n, strlen(mla_jv_str(value)));
        ck_assert_int_eq(memcmp(kv->data, mla_jv_str(value), kv->n), 0);
    } else if (kv->type == MLA_GV_ARRAY) {
        const char *item = mla_jv_str(mla_jv_get(want, "item_type"));
        if (item) ck_assert_str_eq(TYPE_NAME[kv->item], item);
        ck_assert_uint_eq(kv->n, mla_jv_len(value));
        size_t pos = 0, n = 0, i = 0;
        const char *s;
        for (const mla_jv *v = mla_jv_first(value); v; v = mla_jv_next(v), i++) {
            if (kv->item == MLA_GV_STRING) {
                ck_assert(mla_gguf_str_next(kv, &pos, &s, &n));
                ck_assert(n == strlen(mla_jv_str(v)) && !memcmp(s, mla_jv_str(v), n));
            } else {
                size_t each = kv->nbytes / kv->n;
                check_scalar(kv->key, kv->item, kv->data + i * each, each, v);
            }
        }
        ck_assert(!mla_gguf_str_next(kv, &pos, &s, &n));
    } else {
        check_scalar(kv->key, kv->type, kv->data, kv->nbytes, value);
    }
}

START_TEST(golden_file_lists_what_its_description_says)
{
    mla_err err;
    mla_gguf *g;
    mla_json *d;
    ck_ok(mla_gguf_open(&g, mla_fixture("golden-gguf/tiny.gguf"), &err));
    ck_ok(mla_json_read(&d, mla_fixture("golden-gguf/tiny.json"), 1 << 20, &err));
    const mla_jv *kvs = mla_jv_get(mla_json_root(d), "metadata_in_file_order");
    const mla_jv *ts = mla_jv_get(mla_json_root(d), "tensors_in_file_order");
    size_t i = 0, bytes = 0;
    ck_assert_uint_eq(mla_gguf_kv_count(g), mla_jv_len(kvs));
    for (const mla_jv *v = mla_jv_first(kvs); v; v = mla_jv_next(v)) check_kv(mla_gguf_kv_at(g, i++), v);
    ck_assert_uint_eq(mla_gguf_count(g), mla_jv_len(ts));
    ck_assert_uint_eq(mla_gguf_count(g), 8);
    i = 0;
    for (const mla_jv *v = mla_jv_first(ts); v; v = mla_jv_next(v)) {
        const mla_gguf_tensor *t = mla_gguf_at(g, i++);
        ck_assert_str_eq(t->name, mla_jv_str(mla_jv_get(v, "name")));
        ck_assert_ptr_eq(mla_gguf_find(g, t->name), t);
        ck_assert_str_eq(mla_ggml_type_info(t->type)->name, mla_jv_str(mla_jv_get(v, "type")));
        size_t n;
        ck_assert(mla_jv_size(mla_jv_get(v, "ggml_type_id"), &n) && n == t->type);
        ck_assert(mla_jv_size(mla_jv_get(v, "bytes"), &n) && n == t->nbytes);
        ck_assert(mla_jv_size(mla_jv_get(v, "absolute_offset"), &n) && mla_gguf_file(g)->data + n == t->data);
        const mla_jv *dims = mla_jv_get(v, "dims_as_stored");
        ck_assert_uint_eq(t->ndim, mla_jv_len(dims));
        size_t k = 0;
        for (const mla_jv *x = mla_jv_first(dims); x; x = mla_jv_next(x), k++) ck_assert(mla_jv_size(x, &n) && n == t->ne[k]);
        for (; k < 4; k++) ck_assert_uint_eq(t->ne[k], 1);
    }
    ck_assert(mla_jv_size(mla_jv_get(mla_json_root(d), "file_bytes"), &bytes) && bytes == mla_gguf_file(g)->size);
    ck_assert_ptr_null(mla_gguf_find(g, "absent.weight"));
    ck_assert_uint_eq(mla_gguf_alignment(g), 32);
    mla_json_free(d);
    mla_gguf_close(g);
}
END_TEST

START_TEST(stored_floats_are_those_of_the_expected_tensors)
{
    mla_err err;
    mla_gguf *g;
    mla_st *s;
    ck_ok(mla_gguf_open(&g, mla_fixture("golden-gguf/tiny.gguf"), &err));
    ck_ok(mla_st_open(&s, mla_fixture("golden-gguf/tiny.safetensors"), &err));
    size_t compared = 0;
    for (size_t i = 0; i < mla_gguf_count(g); i++) {
        const mla_gguf_tensor *t = mla_gguf_at(g, i);
        const mla_tensor *w = mla_st_find(s, t->name);
        ck_assert_ptr_nonnull(w);
        ck_assert_uint_eq(w->ndim, t->ndim);
        for (size_t d = 0; d < t->ndim; d++) ck_assert_uint_eq(w->shape[d], t->ne[t->ndim - 1 - d]);
        if (t->type != MLA_GT_F32) continue;
        ck_assert_uint_eq(w->nbytes, t->nbytes);
        ck_assert_int_eq(memcmp(w->data, t->data, t->nbytes), 0);
        compared++;
    }
    ck_assert_uint_eq(compared, 3);
    mla_st_close(s);
    mla_gguf_close(g);
}
END_TEST

START_TEST(typed_reads_convert_only_what_fits)
{
    mla_err err;
    mla_gguf *g;
    uint64_t u;
    double d;
    bool b;
    const char *s;
    size_t n;
    ck_ok(mla_gguf_open(&g, mla_fixture("golden-gguf/tiny.gguf"), &err));
    ck_assert(mla_gguf_u64(g, "golden.u8", &u) && u == 200);
    ck_assert(mla_gguf_u64(g, "golden.u64", &u) && u == 9223372036854775813u);
    ck_assert(!mla_gguf_u64(g, "golden.i8", &u));
    ck_assert(!mla_gguf_u64(g, "golden.f32", &u));
    ck_assert(!mla_gguf_u64(g, "golden.bool_true", &u));
    ck_assert(!mla_gguf_u64(g, "golden.absent", &u));
    ck_assert(mla_gguf_f64(g, "golden.i8", &d) && d == -100);
    ck_assert(mla_gguf_f64(g, "golden.i64", &d) && d == -4611686018427387911.0);
    ck_assert(mla_gguf_f64(g, "golden.f32", &d) && d == 0.15625);
    ck_assert(mla_gguf_f64(g, "golden.f64", &d) && d == 3.141592653589793);
    ck_assert(!mla_gguf_f64(g, "golden.string", &d));
    ck_assert(mla_gguf_bool(g, "golden.bool_true", &b) && b);
    ck_assert(mla_gguf_bool(g, "golden.bool_false", &b) && !b);
    ck_assert(!mla_gguf_bool(g, "golden.u8", &b));
    ck_assert(mla_gguf_str(g, "golden.string_empty", &s, &n) && n == 0);
    ck_assert(!mla_gguf_str(g, "golden.arr_string", &s, &n));
    mla_gguf_close(g);
}
END_TEST

START_TEST(type_table_agrees_with_the_golden_files)
{
    static const char *const CASE[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16", "tq1_0", "tq2_0", "mxfp4",
                                       "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"};
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        mla_err err;
        mla_json *d;
        char name[64];
        size_t id, block, bytes;
        snprintf(name, sizeof name, "golden-gguf/gguf_%s.json", CASE[i]);
        ck_ok(mla_json_read(&d, mla_fixture(name), 1 << 20, &err));
        const mla_jv *v = mla_jv_get(mla_json_root(d), "gguf");
        ck_assert(mla_jv_size(mla_jv_get(v, "ggml_type_id"), &id));
        ck_assert(mla_jv_size(mla_jv_get(v, "values_per_block"), &block));
        ck_assert(mla_jv_size(mla_jv_get(v, "bytes_per_block"), &bytes));
        const mla_ggml_info *t = mla_ggml_type_info((uint32_t)id);
        ck_assert_ptr_nonnull(t);
        ck_assert_str_eq(t->name, mla_jv_str(mla_jv_get(v, "type")));
        ck_assert_uint_eq(t->block, block);
        ck_assert_uint_eq(t->bytes, bytes);
        mla_json_free(d);
    }
    ck_assert_ptr_null(mla_ggml_type_info(4)); /* removed types stay unknown */
    ck_assert_ptr_null(mla_ggml_type_info(0xffffffffu));
}
END_TEST

Suite *gguf_suite(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("gguf");
    tcase_add_test(t, golden_file_lists_what_its_description_says);
    tcase_add_test(t, stored_floats_are_those_of_the_expected_tensors);
    tcase_add_test(t, typed_reads_convert_only_what_fits);
    tcase_add_test(t, type_table_agrees_with_the_golden_files);
    suite_add_tcase(s, t);
    return s;
}
