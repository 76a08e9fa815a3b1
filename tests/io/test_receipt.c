/* Manifests: the OMS root digest, JSON and back, every kind of difference, edited records. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/sha256.h"
#include "io/suites.h"

static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};

/* The folder whose root digest the reference implementation was asked for (model-signing 1.1.1, receipt ignored). */
static char *folder(void)
{
    char *dir = mla_test_tmpdir();
    ck_assert_int_eq(mkdir(in_dir(dir, "sub"), 0777), 0);
    ck_assert_int_eq(mkdir(in_dir(dir, ".git"), 0777), 0);
    put_file(dir, "config.json", "hello\n", 6);
    put_file(dir, "empty", "", 0);
    put_file(dir, "sub/a", "x", 1);
    put_file(dir, "B.txt", "y", 1);
    put_file(dir, "\xc3\xa9", "q", 1);
    put_file(dir, MLA_RECEIPT_NAME, "r", 1);
    put_file(dir, ".git/HEAD", "ref", 3);
    return dir;
}
#define OMS_ROOT "sha256:d341b474933f984292aaebca97674a8299d6876d7c5e3d200cb1542b05537596"

START_TEST(root_digest_is_the_oms_one)
{
    static const char *const NAME[] = {"B.txt", "config.json", "empty", "sub/a", "\xc3\xa9"};
    mla_err err;
    mla_manifest m;
    mla_json *d;
    char *dir = folder();
    ck_ok(mla_manifest_scan(&m, dir, SKIP, NULL, NULL, &err));
    ck_assert_uint_eq(m.n, 5);
    for (size_t i = 0; i < 5; i++) ck_assert_str_eq(m.file[i].name, NAME[i]);
    ck_assert(m.file[1].size == 6 && m.file[1].has_git);
    char hex[41];
    mla_hex(m.file[1].git_sha1, 20, hex);
    ck_assert_str_eq(hex, "ce013625030ba8dba906f756967f9e9ca394464a"); /* git hash-object */
    ck_ok(mla_json_new_object(&d, &err));
    ck_ok(mla_manifest_to_json(&m, mla_json_root(d), &err));
    ck_assert_str_eq(mla_jv_str(mla_jv_get(mla_json_root(d), "root_digest")), OMS_ROOT);
    mla_json_free(d);
    mla_manifest_free(&m);
    mla_manifest_free(&m);
    drop_dir(dir);
}
END_TEST

START_TEST(json_round_trips_and_large_files_have_no_blob_id)
{
    mla_err err;
    mla_manifest m, back;
    mla_json *d, *parsed;
    char *dir = folder();
    size_t n = (10u << 20) + 1;
    char *big = calloc(n, 1);
    put_file(dir, "big", big, n);
    put_file(dir, "limit", big, n - 1);
    free(big);
    ck_ok(mla_manifest_scan(&m, dir, SKIP, NULL, NULL, &err));
    ck_assert_uint_eq(m.n, 7);
    ck_assert(!strcmp(m.file[1].name, "big") && !m.file[1].has_git && m.file[1].size == n);
    ck_assert(!strcmp(m.file[4].name, "limit") && m.file[4].has_git);
    ck_ok(mla_json_new_object(&d, &err));
    ck_ok(mla_manifest_to_json(&m, mla_json_root(d), &err));
    ck_ok(mla_json_write(in_dir(dir, MLA_RECEIPT_NAME), mla_json_root(d), &err));
    ck_ok(mla_json_read(&parsed, in_dir(dir, MLA_RECEIPT_NAME), 1 << 20, &err));
    ck_ok(mla_manifest_from_json(&back, mla_json_root(parsed), &err));
    mla_findings f = {0};
    mla_manifest_diff(&f, &m, &back);
    ck_assert_uint_eq(f.n, 0);
    ck_assert_str_eq(mla_str_c(&f.text), "");
    mla_findings_free(&f);
    mla_manifest_free(&back);
    mla_manifest_free(&m);
    mla_json_free(parsed);
    mla_json_free(d);
    drop_dir(dir);
}
END_TEST

START_TEST(every_difference_is_one_line_in_name_order)
{
    mla_err err;
    mla_manifest was, is;
    char *dir = folder();
    ck_ok(mla_manifest_scan(&was, dir, SKIP, NULL, NULL, &err));
    put_file(dir, "B.txt", "z", 1);         /* same size, other content */
    put_file(dir, "config.json", "hell\n", 5);
    unlink(in_dir(dir, "sub/a"));
    put_file(dir, "new", "", 0);
    ck_ok(mla_manifest_scan(&is, dir, SKIP, NULL, NULL, &err));
    mla_findings f = {0};
    mla_manifest_diff(&f, &was, &is);
    ck_assert_uint_eq(f.n, 4);
    ck_assert_str_eq(mla_str_c(&f.text),
                     "B.txt: sha256 expected a1fce4363854ff888cff4b8e7875d600c2682390412a8cf79b37d0b11148b0fa, found "
                     "594e519ae499312b29433b7dd8a97ff068defcba9755b6d5d00e84c524d67b06\n"
                     "config.json: size expected 6, found 5\n"
                     "new: present, but not recorded\n"
                     "sub/a: recorded, but absent\n");
    mla_findings_free(&f);
    was.file[2].git_sha1[0] ^= 1; /* "empty": content right, record at odds with itself */
    mla_manifest_diff(&f, &was, &is);
    ck_assert_uint_eq(f.n, 5);
    ck_assert_ptr_nonnull(strstr(mla_str_c(&f.text), "empty: git_blob_sha1 expected e79de29b"));
    mla_findings_free(&f);
    mla_manifest_free(&was);
    mla_manifest_free(&is);
    drop_dir(dir);
}
END_TEST

#define SHA "\"5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03\""
#define ROOT "\"root_digest\":\"sha256:ecb65bb98f9d905b70458986c39fcbad7715e5f2fcc3b1f07767d7c83e2438cc\""
static const struct {
    const char *text, *why;
} EDITED[] = {
    {"{}", "\"files\" is absent"},
    {"{\"files\":{}}", "\"files\" is object"},
    {"{\"files\":[{\"name\":\"a\",\"size\":6,\"sha256\":" SHA "}]}", "root_digest: recorded \"nothing\""},
    {"{\"files\":[{\"name\":\"a\",\"size\":6,\"sha256\":" SHA "}],\"root_digest\":\"sha256:00\"}", "root_digest: recorded \"sha256:00\""},
    {"{\"files\":[7]," ROOT "}", "files[0]: no \"name\""},
    {"{\"files\":[{\"name\":\"../a\",\"size\":6,\"sha256\":" SHA "}]," ROOT "}", "\"../a\" is no path within"},
    {"{\"files\":[{\"name\":\"a\",\"size\":-6,\"sha256\":" SHA "}]," ROOT "}", "no \"size\""},
    {"{\"files\":[{\"name\":\"a\",\"size\":6,\"sha256\":\"5891\"}]," ROOT "}", "64 lowercase hex"},
    {"{\"files\":[{\"name\":\"a\",\"size\":6,\"sha256\":\"5891B5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03\"}]}", "64 lowercase hex"},
    {"{\"files\":[{\"name\":\"a\",\"size\":6,\"sha256\":" SHA ",\"git_blob_sha1\":\"ce\"}]}", "40 lowercase hex"},
    {"{\"files\":[{\"name\":\"b\",\"size\":6,\"sha256\":" SHA "},{\"name\":\"a\",\"size\":6,\"sha256\":" SHA "}]}", "\"a\" does not follow \"b\""},
    {"{\"files\":[{\"name\":\"b\",\"size\":6,\"sha256\":" SHA "},{\"name\":\"b\",\"size\":6,\"sha256\":" SHA "}]}", "\"b\" does not follow \"b\""},
};

START_TEST(edited_records_are_refused)
{
    mla_err err;
    mla_json *d;
    mla_manifest m;
    ck_ok(mla_json_parse(&d, EDITED[_i].text, strlen(EDITED[_i].text), "r", &err));
    ck_refused(mla_manifest_from_json(&m, mla_json_root(d), &err), MLA_EFORMAT, EDITED[_i].why);
    ck_assert_uint_eq(m.n, 0);
    mla_json_free(d);
    static const char GOOD[] = "{\"files\":[{\"name\":\"a\",\"size\":6,\"sha256\":" SHA "}]," ROOT "}";
    ck_ok(mla_json_parse(&d, GOOD, sizeof GOOD - 1, "r", &err)); /* the control: unedited, it is accepted */
    ck_ok(mla_manifest_from_json(&m, mla_json_root(d), &err));
    mla_manifest_free(&m);
    mla_json_free(d);
}
END_TEST

START_TEST(names_that_a_receipt_cannot_hold_are_refused)
{
    mla_err err;
    mla_manifest m;
    char *dir = mla_test_tmpdir();
    put_file(dir, "a\nb", "", 0);
    ck_refused(mla_manifest_scan(&m, dir, NULL, NULL, NULL, &err), MLA_EUNSUPPORTED, "\"a?b\"");
    unlink(in_dir(dir, "a\nb"));
    put_file(dir, "a\xff", "", 0);
    ck_refused(mla_manifest_scan(&m, dir, NULL, NULL, NULL, &err), MLA_EUNSUPPORTED, "\"a?\"");
    unlink(in_dir(dir, "a\xff"));
    ck_ok(mla_manifest_scan(&m, dir, NULL, NULL, NULL, &err)); /* an empty folder */
    ck_assert_uint_eq(m.n, 0);
    mla_manifest_free(&m);
    ck_refused(mla_manifest_scan(&m, in_dir(dir, "gone"), NULL, NULL, NULL, &err), MLA_EIO, "gone");
    drop_dir(dir);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    mla_err err;
    mla_manifest m;
    mla_status st;
    char *dir = folder();
    long k = 0;
    do {
        mla_alloc_fail_after(k);
        st = mla_manifest_scan(&m, dir, SKIP, NULL, NULL, &err);
        mla_alloc_fail_after(-1);
        ck_assert_msg(st == MLA_OK || st == MLA_ENOMEM, "allocation %ld: %s", k, err.msg);
        if (st == MLA_OK) mla_manifest_free(&m);
    } while (st != MLA_OK && ++k < 200);
    ck_assert(st == MLA_OK && k > 20);
    drop_dir(dir);
}
END_TEST

Suite *receipt_suite(void)
{
    Suite *s = suite_create("receipt");
    TCase *t = tcase_create("receipt");
    tcase_add_test(t, root_digest_is_the_oms_one);
    tcase_add_test(t, json_round_trips_and_large_files_have_no_blob_id);
    tcase_add_test(t, every_difference_is_one_line_in_name_order);
    tcase_add_loop_test(t, edited_records_are_refused, 0, (int)(sizeof EDITED / sizeof *EDITED));
    tcase_add_test(t, names_that_a_receipt_cannot_hold_are_refused);
    tcase_add_test(t, every_failing_allocation_is_reported);
    suite_add_tcase(s, t);
    return s;
}
