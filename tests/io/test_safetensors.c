/* safetensors: reading back what the reference wrote, writing the same bytes, deterministic and complete output. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "io/suites.h"

START_TEST(reads_a_small_file)
{
    mla_err err;
    mla_st *s;
    char *dir = mla_test_tmpdir();
    put_st(dir, "a", "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]},"
                     "\"none\":{\"dtype\":\"BF16\",\"shape\":[3,0],\"data_offsets\":[8,8]},\"f4\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[9,10]},"
                     "\"__metadata__\":{\"format\":\"pt\",\"z\":\"\"}}   ", 10);
    ck_ok(mla_st_open(&s, in_dir(dir, "a"), &err));
    static const char *const ORDER[] = {"b", "none", "scalar", "f4"}; /* by offset */
    ck_assert_uint_eq(mla_st_count(s), 4);
    for (size_t i = 0; i < 4; i++) ck_assert_str_eq(mla_st_at(s, i)->name, ORDER[i]);
    const mla_tensor *t = mla_st_find(s, "b");
    ck_assert(t->ndim == 1 && t->shape[0] == 2 && t->dtype == MLA_F32 && t->nbytes == 8);
    ck_assert_int_eq(((const unsigned char *)t->data)[7], 7);
    t = mla_st_find(s, "scalar");
    ck_assert(t->ndim == 0 && t->nbytes == 1 && *(const unsigned char *)t->data == 8);
    ck_assert(mla_st_find(s, "none")->nbytes == 0 && mla_st_find(s, "f4")->nbytes == 1);
    ck_assert_ptr_null(mla_st_find(s, "absent"));
    ck_assert_uint_eq(mla_st_meta_count(s), 2);
    ck_assert_str_eq(mla_st_meta_key(s, 0), "format");
    ck_assert_str_eq(mla_st_meta_value(s, 1), "");
    mla_st_close(s);
    put_st(dir, "empty", "{}", 0);
    ck_ok(mla_st_open(&s, in_dir(dir, "empty"), &err));
    ck_assert_uint_eq(mla_st_count(s), 0);
    mla_st_close(s);
    mla_st_close(NULL);
    drop_dir(dir);
}
END_TEST

START_TEST(rewriting_a_file_of_the_reference_writer_gives_its_bytes)
{
    mla_err err;
    mla_st *s;
    unsigned char digest[32], want[32];
    char *dir = mla_test_tmpdir();
    ck_ok(mla_st_open(&s, mla_fixture("golden-gguf/tiny.safetensors"), &err));
    size_t n = mla_st_count(s);
    mla_stw *w;
    ck_ok(mla_stw_new(&w, in_dir(dir, "again"), &err));
    for (size_t i = 0; i < mla_st_meta_count(s); i++) ck_ok(mla_stw_meta(w, mla_st_meta_key(s, i), mla_st_meta_value(s, i), &err));
    for (size_t i = n; i-- > 0;) { /* declared backwards: the writer settles the order */
        const mla_tensor *t = mla_st_at(s, i);
        ck_ok(mla_stw_declare(w, t->name, t->dtype, t->ndim, t->shape, &err));
    }
    ck_ok(mla_stw_begin(w, &err));
    ck_assert_uint_eq(mla_stw_count(w), n);
    for (size_t i = 0; i < n; i++) {
        ck_assert_str_eq(mla_stw_at(w, i)->name, mla_st_at(s, i)->name);
        ck_ok(mla_stw_write(w, mla_st_at(s, i)->data, mla_st_at(s, i)->nbytes, &err));
    }
    ck_ok(mla_stw_commit(w, digest, &err));
    mla_mapped m;
    ck_ok(mla_file_map(&m, in_dir(dir, "again"), &err));
    mla_sha256_bytes(m.data, m.size, want);
    ck_assert_int_eq(memcmp(digest, want, 32), 0);
    if (mla_st_meta_count(s)) { /* without metadata ours adds format=pt, so only then can the bytes be equal */
        ck_assert_uint_eq(m.size, mla_st_file(s)->size);
        ck_assert_int_eq(memcmp(m.data, mla_st_file(s)->data, m.size), 0);
    }
    mla_file_unmap(&m);
    mla_st_close(s);
    drop_dir(dir);
}
END_TEST

START_TEST(writer_orders_pads_and_says_pt)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    unsigned char data[64] = {1, 2, 3}, digest[32];
    size_t shape[2] = {2, 3};
    mla_tensor t[] = {{.name = "b", .dtype = MLA_U8, .ndim = 1, .shape = {5}, .data = data, .nbytes = 5},
                      {.name = "z", .dtype = MLA_F32, .ndim = 2, .shape = {2, 3}, .data = data, .nbytes = 24},
                      {.name = "a", .dtype = MLA_U8, .ndim = 0, .data = data, .nbytes = 1},
                      {.name = "e", .dtype = MLA_BF16, .ndim = 1, .shape = {0}, .data = NULL, .nbytes = 0}};
    ck_ok(mla_st_write(in_dir(dir, "f"), t, 4, digest, &err));
    mla_mapped m;
    ck_ok(mla_file_map(&m, in_dir(dir, "f"), &err));
    static const char WANT[] = "{\"__metadata__\":{\"format\":\"pt\"},\"z\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                               "\"e\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[24,24]},"
                               "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]},"
                               "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[25,30]}}";
    size_t h = m.data[0] + 256u * m.data[1];
    ck_assert_uint_eq(h % 8, 0);
    ck_assert_uint_eq(m.size, 8 + h + 30);
    ck_assert_int_eq(memcmp(m.data + 8, WANT, sizeof WANT - 1), 0);
    for (size_t i = sizeof WANT - 1; i < h; i++) ck_assert_int_eq(m.data[8 + i], ' ');
    mla_file_unmap(&m);
    mla_st *s;
    ck_ok(mla_st_open(&s, in_dir(dir, "f"), &err));
    ck_assert(mla_shape_is(mla_st_find(s, "z"), 2, shape));
    ck_assert_int_eq(memcmp(mla_st_find(s, "b")->data, data, 5), 0);
    mla_st_close(s);
    drop_dir(dir);
}
END_TEST

START_TEST(metadata_is_sorted_whatever_the_order_of_calls)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    unsigned char d[2][32];
    static const char *const KEY[2][3] = {{"b", "a", "format"}, {"format", "b", "a"}};
    for (int k = 0; k < 2; k++) {
        mla_stw *w;
        ck_ok(mla_stw_new(&w, in_dir(dir, "f"), &err));
        for (int i = 0; i < 3; i++) ck_ok(mla_stw_meta(w, KEY[k][i], "first", &err));
        ck_ok(mla_stw_meta(w, "a", "second", &err)); /* replaces */
        ck_ok(mla_stw_begin(w, &err));
        ck_ok(mla_stw_commit(w, d[k], &err));
    }
    ck_assert_int_eq(memcmp(d[0], d[1], 32), 0);
    mla_st *s;
    ck_ok(mla_st_open(&s, in_dir(dir, "f"), &err));
    ck_assert_uint_eq(mla_st_meta_count(s), 3);
    ck_assert_str_eq(mla_st_meta_key(s, 0), "a");
    ck_assert_str_eq(mla_st_meta_value(s, 0), "second");
    mla_st_close(s);
    drop_dir(dir);
}
END_TEST

START_TEST(writer_refuses_misuse_and_leaves_nothing)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    size_t shape[9] = {4, 1, 1, 1, 1, 1, 1, 1, 1}, huge[3] = {4194305, 4194305, 211106198978564u};
    mla_stw *w;
    ck_ok(mla_stw_new(&w, in_dir(dir, "f"), &err));
    ck_refused(mla_stw_write(w, "x", 1, &err), MLA_EINVAL, "before mla_stw_begin");
    ck_ok(mla_stw_declare(w, "a", MLA_U8, 1, shape, &err));
    ck_refused(mla_stw_declare(w, "a", MLA_U8, 1, shape, &err), MLA_EINVAL, "declared twice");
    ck_refused(mla_stw_declare(w, "b", MLA_U8, 9, shape, &err), MLA_EINVAL, "9 dimensions");
    ck_refused(mla_stw_declare(w, "b", MLA_U8, 3, huge, &err), MLA_EINVAL, "overflows");
    ck_refused(mla_stw_declare(w, "__metadata__", MLA_U8, 1, shape, &err), MLA_EINVAL, "cannot name");
    ck_refused(mla_stw_declare(w, "\xff", MLA_U8, 1, shape, &err), MLA_EINVAL, "cannot name");
    ck_refused(mla_stw_meta(w, "k", "\xff", &err), MLA_EINVAL, "UTF-8");
    shape[0] = 3;
    ck_refused(mla_stw_declare(w, "f4", MLA_F4, 1, shape, &err), MLA_EINVAL, "sub-byte");
    ck_ok(mla_stw_begin(w, &err));
    ck_refused(mla_stw_declare(w, "late", MLA_U8, 1, shape, &err), MLA_EINVAL, "after the header");
    ck_ok(mla_stw_write(w, "xy", 2, &err));
    ck_refused(mla_stw_write(w, "xyz", 3, &err), MLA_EINVAL, "holds 4 bytes, has 2, got 3 more");
    ck_refused(mla_stw_commit(w, NULL, &err), MLA_EINVAL, "has 2 of its 4 bytes");
    mla_names l;
    ck_ok(mla_dir_list(&l, dir, &err));
    ck_assert_uint_eq(l.n, 0);
    mla_names_free(&l);
    ck_ok(mla_stw_new(&w, in_dir(dir, "f"), &err));
    ck_ok(mla_stw_declare(w, "a", MLA_U8, 1, shape, &err));
    ck_ok(mla_stw_begin(w, &err));
    ck_ok(mla_stw_write(w, "xyz", 3, &err));
    ck_refused(mla_stw_write(w, "x", 1, &err), MLA_EINVAL, "after the last tensor");
    mla_stw_abort(w);
    mla_stw_abort(NULL);
    ck_assert_int_eq(rmdir(dir), 0);
    drop_dir(dir);
}
END_TEST

/* CPU seconds to open a file of n tensors, the least of three. */
static double open_time(const char *path, size_t n)
{
    mla_err err;
    char name[64];
    size_t one = 1;
    double least = INFINITY;
    mla_stw *w;
    ck_ok(mla_stw_new(&w, path, &err));
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "model.layers.%zu.mlp.experts.weight", i);
        ck_ok(mla_stw_declare(w, name, MLA_U8, 1, &one, &err));
    }
    ck_ok(mla_stw_begin(w, &err));
    for (size_t i = 0; i < n; i++) ck_ok(mla_stw_write(w, "x", 1, &err));
    ck_ok(mla_stw_commit(w, NULL, &err));
    for (size_t k = 0; k < 3; k++) {
        clock_t t0 = clock();
        mla_st *s;
        ck_ok(mla_st_open(&s, path, &err));
        least = fmin(least, (double)(clock() - t0) / CLOCKS_PER_SEC);
        ck_assert_uint_eq(mla_st_count(s), n);
        ck_assert_ptr_nonnull(mla_st_find(s, name));
        mla_st_close(s);
    }
    return least;
}

/* Eight times the tensors take eight times as long, not sixty-four. */
START_TEST(many_tensors_open_in_linear_time)
{
    char *dir = mla_test_tmpdir();
    double few = open_time(in_dir(dir, "few"), 8000), many = open_time(in_dir(dir, "many"), 64000);
    ck_assert_msg(many < 24 * few, "8,000 tensors: %.4f s, 64,000: %.4f s: quadratic?", few, many);
    unlink(in_dir(dir, "few"));
    unlink(in_dir(dir, "many"));
    drop_dir(dir);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    put_st(dir, "a", "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"__metadata__\":{\"k\":\"v\"}}", 8);
    mla_status st;
    long k = 0;
    do {
        mla_st *s;
        mla_alloc_fail_after(k);
        st = mla_st_open(&s, in_dir(dir, "a"), &err);
        mla_alloc_fail_after(-1);
        ck_assert_msg(st == MLA_OK || st == MLA_ENOMEM, "allocation %ld: %s", k, err.msg);
        if (st == MLA_OK) mla_st_close(s);
    } while (st != MLA_OK && ++k < 100);
    ck_assert(st == MLA_OK && k > 8);
    mla_tensor t = {.name = "a", .dtype = MLA_U8, .ndim = 1, .shape = {3}, .data = "xyz", .nbytes = 3};
    k = 0;
    do {
        mla_alloc_fail_after(k);
        st = mla_st_write(in_dir(dir, "w"), &t, 1, NULL, &err);
        mla_alloc_fail_after(-1);
        ck_assert_msg(st == MLA_OK || st == MLA_ENOMEM, "allocation %ld: %s", k, err.msg);
    } while (st != MLA_OK && ++k < 100);
    ck_assert(st == MLA_OK && k > 12);
    drop_dir(dir);
}
END_TEST

Suite *safetensors_suite(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("safetensors");
    tcase_add_test(t, reads_a_small_file);
    tcase_add_test(t, rewriting_a_file_of_the_reference_writer_gives_its_bytes);
    tcase_add_test(t, writer_orders_pads_and_says_pt);
    tcase_add_test(t, metadata_is_sorted_whatever_the_order_of_calls);
    tcase_add_test(t, writer_refuses_misuse_and_leaves_nothing);
    tcase_add_test(t, many_tensors_open_in_linear_time);
    tcase_add_test(t, every_failing_allocation_is_reported);
    suite_add_tcase(s, t);
    return s;
}
