/* Checkpoint folders: one file, shards, strays, links; what index and headers disagree on is named. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/ckpt.h"
#include "io/suites.h"

#define T(name, b, e) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" b "," e "]}"

static void index_file(const char *dir, const char *map)
{
    char text[2000];
    int n = snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":999},\"weight_map\":%s}", map);
    put_file(dir, "model.safetensors.index.json", text, (size_t)n);
}

START_TEST(one_file_and_its_folder)
{
    mla_err err;
    mla_ckpt *c;
    const mla_tensor *t;
    char *dir = mla_test_tmpdir();
    ck_refused(mla_ckpt_open(&c, dir, &err), MLA_EIO, "holds neither");
    put_st(dir, "other.safetensors", "{" T("y", "0", "4") "," T("x", "4", "8") "}", 8);
    ck_ok(mla_ckpt_open(&c, dir, &err)); /* the only one there is */
    ck_assert_str_eq(mla_ckpt_shard_name(c, 0), "other.safetensors");
    mla_ckpt_close(c);
    put_st(dir, "more.safetensors", "{}", 0);
    ck_refused(mla_ckpt_open(&c, dir, &err), MLA_EFORMAT, "2 *.safetensors files and no");
    put_st(dir, "model.safetensors", "{" T("y", "0", "4") "," T("x", "4", "8") "}", 8);
    ck_ok(mla_ckpt_open(&c, dir, &err));
    ck_assert_uint_eq(mla_ckpt_count(c), 2);
    ck_assert_str_eq(mla_ckpt_at(c, 0)->name, "x"); /* by name, not by offset */
    ck_assert_str_eq(mla_ckpt_shard_of(c, 1), "model.safetensors");
    ck_assert_uint_eq(mla_ckpt_stray_count(c), 2);
    ck_assert_str_eq(mla_ckpt_stray(c, 0), "more.safetensors");
    ck_assert_str_eq(mla_ckpt_stray(c, 1), "other.safetensors");
    ck_ok(mla_ckpt_need(c, "y", &t, &err));
    ck_assert_ptr_eq(t, mla_ckpt_find(c, "y"));
    ck_refused(mla_ckpt_need(c, "z", &t, &err), MLA_EFORMAT, "z: not in ");
    mla_ckpt_close(c);
    ck_ok(mla_ckpt_open(&c, in_dir(dir, "model.safetensors"), &err));
    ck_assert_str_eq(mla_ckpt_dir(c), dir);
    ck_assert_uint_eq(mla_ckpt_count(c), 2);
    ck_assert_uint_eq(mla_ckpt_stray_count(c), 0);
    mla_ckpt_close(c);
    ck_refused(mla_ckpt_open(&c, in_dir(dir, "absent"), &err), MLA_EIO, "absent");
    mla_ckpt_close(NULL);
    drop_dir(dir);
}
END_TEST

START_TEST(shards_under_an_index)
{
    mla_err err;
    mla_ckpt *c;
    const mla_tensor *t;
    char *dir = mla_test_tmpdir();
    put_st(dir, "s2.safetensors", "{" T("b", "0", "4") "}", 4);
    put_st(dir, "s1.safetensors", "{" T("c", "0", "4") "," T("a", "4", "8") "}", 8);
    put_st(dir, "model.safetensors", "{" T("a", "0", "4") "}", 4); /* stray: a re-save forgot it */
    index_file(dir, "{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"}");
    ck_ok(mla_ckpt_open(&c, dir, &err));
    ck_assert_uint_eq(mla_ckpt_count(c), 3);
    ck_assert_uint_eq(mla_ckpt_shard_count(c), 2);
    ck_assert_str_eq(mla_ckpt_shard_name(c, 0), "s1.safetensors");
    ck_assert_uint_eq(mla_st_count(mla_ckpt_shard(c, 0)), 2);
    ck_assert_str_eq(mla_ckpt_at(c, 1)->name, "b");
    ck_assert_str_eq(mla_ckpt_shard_of(c, 1), "s2.safetensors");
    ck_assert_uint_eq(mla_ckpt_stray_count(c), 1);
    ck_assert_str_eq(mla_ckpt_stray(c, 0), "model.safetensors");
    ck_refused(mla_ckpt_need(c, "d", &t, &err), MLA_EFORMAT, "d: not in the index");
    ck_assert_ptr_null(t);
    mla_ckpt_close(c);
    drop_dir(dir);
}
END_TEST

/* The three causes of a missing tensor, and their neighbours, have messages of their own. */
START_TEST(disagreements_are_named)
{
    static const struct {
        const char *map;
        mla_status st;
        const char *why;
    } C[] = {
        {"{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}", MLA_EIO, "names s3.safetensors, which is absent"},
        {"{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"d\":\"s2.safetensors\"}", MLA_EFORMAT,
         "maps tensor \"d\" to s2.safetensors, whose header lacks it"},
        {"{\"a\":\"s2.safetensors\",\"c\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}", MLA_EFORMAT,
         "maps tensor \"a\" to s2.safetensors, whose header lacks it (it is in s1.safetensors)"},
        {"{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}", MLA_EFORMAT, "tensor \"c\" is in s1.safetensors, but the index does not map it"},
        {"{\"a\":\"../s1.safetensors\"}", MLA_EFORMAT, "\"../s1.safetensors\", which is no path within"},
        {"{\"a\":\"/etc/passwd\"}", MLA_EFORMAT, "no path within"},
        {"{\"a\":7}", MLA_EFORMAT, "tensor \"a\" is mapped to number"},
        {"{}", MLA_EFORMAT, "weight_map is empty"},
        {"[]", MLA_EFORMAT, "weight_map is array"},
        {"{\"a\":\"s1.safetensors\",\"a\":\"s1.safetensors\"}", MLA_EFORMAT, "duplicate key \"a\""},
        {"{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\",\"b\":\"copy.safetensors\"}", MLA_EFORMAT, "tensor \"a\" is in two shards"},
        {"{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\",\"b\":\"zero.safetensors\"}", MLA_EFORMAT, "zero.safetensors: 0 bytes"},
        {"{\"a\":\"sub\"}", MLA_EIO, "found a folder"},
    };
    mla_err err;
    mla_ckpt *c;
    char *dir = mla_test_tmpdir();
    put_st(dir, "s1.safetensors", "{" T("c", "0", "4") "," T("a", "4", "8") "}", 8);
    put_st(dir, "s2.safetensors", "{" T("b", "0", "4") "}", 4);
    put_st(dir, "copy.safetensors", "{" T("b", "0", "4") "," T("a", "4", "8") "}", 8);
    put_file(dir, "zero.safetensors", "", 0);
    ck_assert_int_eq(mkdir(in_dir(dir, "sub"), 0777), 0);
    for (size_t i = 0; i < sizeof C / sizeof *C; i++) {
        index_file(dir, C[i].map);
        ck_refused(mla_ckpt_open(&c, dir, &err), C[i].st, C[i].why);
        ck_assert_ptr_null(strchr(err.msg, '\n'));
    }
    unlink(in_dir(dir, "model.safetensors.index.json"));
    put_st(dir, "model.safetensors", "{" T("a", "0", "4") "}", 4);
    ck_ok(mla_ckpt_open(&c, dir, &err));
    mla_ckpt_close(c);
    ck_assert_int_eq(symlink("nowhere", in_dir(dir, "model.safetensors.index.json")), 0);
    ck_refused(mla_ckpt_open(&c, dir, &err), MLA_EIO, "index.json"); /* a broken index is not an absent one */
    drop_dir(dir);
}
END_TEST

START_TEST(links_into_a_blob_store_are_followed)
{
    mla_err err;
    mla_ckpt *c;
    char *dir = mla_test_tmpdir();
    ck_assert_int_eq(mkdir(in_dir(dir, "blobs"), 0777), 0);
    ck_assert_int_eq(mkdir(in_dir(dir, "snap"), 0777), 0);
    put_st(in_dir(dir, "blobs"), "0123abcd", "{" T("a", "0", "4") "}", 4);
    const char *index = "{\"weight_map\":{\"a\":\"model-00001-of-00001.safetensors\"}}";
    put_file(in_dir(dir, "blobs"), "4567", index, strlen(index));
    ck_assert_int_eq(symlink("../blobs/0123abcd", in_dir(dir, "snap/model-00001-of-00001.safetensors")), 0);
    ck_assert_int_eq(symlink("../blobs/4567", in_dir(dir, "snap/model.safetensors.index.json")), 0);
    ck_ok(mla_ckpt_open(&c, in_dir(dir, "snap"), &err));
    ck_assert_uint_eq(mla_ckpt_count(c), 1);
    ck_assert_uint_eq(mla_ckpt_stray_count(c), 0);
    mla_ckpt_close(c);
    unlink(in_dir(dir, "blobs/0123abcd"));
    ck_refused(mla_ckpt_open(&c, in_dir(dir, "snap"), &err), MLA_EIO, "which is absent");
    drop_dir(dir);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    put_st(dir, "s1.safetensors", "{" T("c", "0", "4") "," T("a", "4", "8") "}", 8);
    put_st(dir, "s2.safetensors", "{" T("b", "0", "4") "}", 4);
    index_file(dir, "{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"}");
    mla_status st;
    long k = 0;
    do {
        mla_ckpt *c;
        mla_alloc_fail_after(k);
        st = mla_ckpt_open(&c, dir, &err);
        mla_alloc_fail_after(-1);
        ck_assert_msg(st == MLA_OK || st == MLA_ENOMEM, "allocation %ld: %s", k, err.msg);
        if (st == MLA_OK) mla_ckpt_close(c);
    } while (st != MLA_OK && ++k < 300);
    ck_assert(st == MLA_OK && k > 40);
    drop_dir(dir);
}
END_TEST

Suite *ckpt_suite(void)
{
    Suite *s = suite_create("ckpt");
    TCase *t = tcase_create("ckpt");
    tcase_add_test(t, one_file_and_its_folder);
    tcase_add_test(t, shards_under_an_index);
    tcase_add_test(t, disagreements_are_named);
    tcase_add_test(t, links_into_a_blob_store_are_followed);
    tcase_add_test(t, every_failing_allocation_is_reported);
    suite_add_tcase(s, t);
    return s;
}
