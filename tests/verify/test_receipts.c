/* Receipts: a folder that holds passes; every byte flipped, file missing, file added, and claim contradicted is named. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/sha256.h"
#include "suites.h"
#include "verify/folder/receipts.h"

static char *dir;

static char *path_of(const char *name)
{
    char *p = mla_path_join(dir, name);
    ck_assert_ptr_nonnull(p);
    return p;
}

/* Rewrites the receipt for what the folder holds now. */
static void seal(void)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_err err = {0};
    mla_manifest m = {0};
    mla_json *d;
    char *p = path_of(MLA_RECEIPT_NAME);
    ck_ok(mla_manifest_scan(&m, dir, SKIP, NULL, NULL, &err));
    ck_ok(mla_json_new_object(&d, &err));
    ck_ok(mla_manifest_to_json(&m, mla_json_root(d), &err));
    ck_ok(mla_json_write(p, mla_json_root(d), &err));
    mla_json_free(d);
    mla_manifest_free(&m);
    mla_free(p);
}

/* A copy of the bundled model with a receipt. */
static void setup(void)
{
    static const char *const NAME[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"};
    mla_err err = {0};
    dir = mla_test_tmpdir();
    for (size_t i = 0; i < 4; i++) {
        char src[256], *text, *dst = path_of(NAME[i]);
        size_t n;
        (void)snprintf(src, sizeof src, "tiny-hybrid/%s", NAME[i]);
        ck_ok(mla_file_read(&text, &n, mla_fixture(src), (size_t)1 << 28, &err)); /* a copy, never a link: it is damaged below */
        ck_ok(mla_file_write(dst, text, n, &err));
        mla_free(text);
        mla_free(dst);
    }
    seal();
}

static void teardown(void)
{
    mla_err err = {0};
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}

static bool all_values;

static mla_json *check(mla_verdict *v)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_json_new_object(&d, &err));
    ck_ok(mla_receipts_check(mla_json_root(d), dir, &(mla_receipts_opts){.values = all_values}, v, &err));
    return d;
}

/* One finding at least names `text`; n findings in all (0: any number). */
static void expect(const char *text, size_t n)
{
    mla_verdict v;
    mla_json *d = check(&v);
    bool named = false;
    mla_str all = MLA_STR_MAX(1 << 20);
    for (const mla_jv *f = mla_jv_first(mla_jv_get(mla_json_root(d), "findings")); f; f = mla_jv_next(f)) {
        const char *t = mla_jv_str(mla_jv_get(f, "text"));
        mla_str_printf(&all, "%s\n", t);
        named = named || strstr(t, text);
    }
    ck_assert_int_eq(v, MLA_FAIL);
    ck_assert_msg(named, "no finding names \"%s\" in:\n%s", text, mla_str_c(&all));
    if (n) ck_assert_uint_eq(mla_jv_len(mla_jv_get(mla_json_root(d), "findings")), n);
    mla_str_free(&all);
    mla_json_free(d);
}

static void edit(const char *name, const char *from, const char *to)
{
    mla_err err = {0};
    char *p = path_of(name), *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, p, (size_t)1 << 28, &err));
    char *at = strstr(text, from);
    ck_assert_ptr_nonnull(at);
    mla_str s = MLA_STR_MAX((size_t)1 << 28);
    mla_str_putn(&s, text, (size_t)(at - text));
    mla_str_put(&s, to);
    mla_str_putn(&s, at + strlen(from), n - (size_t)(at - text) - strlen(from));
    ck_ok(mla_file_write(p, s.s, s.len, &err));
    mla_str_free(&s);
    mla_free(text);
    mla_free(p);
}

static void flip(const char *name, size_t offset)
{
    mla_err err = {0};
    char *p = path_of(name), *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, p, (size_t)1 << 28, &err));
    text[offset % n] = (char)(text[offset % n] ^ 0x10);
    ck_ok(mla_file_write(p, text, n, &err));
    mla_free(text);
    mla_free(p);
}

START_TEST(a_sealed_folder_passes)
{
    mla_verdict v;
    mla_json *d = check(&v);
    ck_assert_int_eq(v, MLA_PASS);
    ck_assert_str_eq(mla_jv_str(mla_jv_get(mla_json_root(d), "verdict")), "pass");
    mla_json_free(d);
}
END_TEST

START_TEST(flips_are_named)
{
    static const struct {
        const char *name;
        size_t offset;
    } F[] = {{"config.json", 700}, {"generation_config.json", 5}, {"model.safetensors", 15000000}, {"tokenizer.json", 77777}};
    flip(F[_i].name, F[_i].offset);
    expect(F[_i].name, 0);
}
END_TEST

/* A NaN in the middle of the weights, under a receipt that vouches for it. */
START_TEST(a_sealed_nan_is_found_when_asked)
{
    mla_err err = {0};
    mla_verdict v;
    char *p = path_of("model.safetensors"), *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, p, (size_t)1 << 28, &err));
    text[n / 2 & ~(size_t)1] = (char)0xc0;
    text[(n / 2 & ~(size_t)1) + 1] = 0x7f;
    ck_ok(mla_file_write(p, text, n, &err));
    seal();
    mla_json *d = check(&v);
    ck_assert_int_eq(v, MLA_PASS); /* values are not looked at unless asked */
    mla_json_free(d);
    all_values = true;
    expect("1 values are not finite", 1);
    mla_free(text);
    mla_free(p);
}
END_TEST

START_TEST(missing_and_extra_are_named)
{
    mla_err err = {0};
    char *p = path_of("generation_config.json"), *q = path_of("notes.txt");
    ck_ok(mla_file_write(q, "x", 1, &err));
    ck_assert_int_eq(remove(p), 0);
    expect("generation_config.json: recorded, but absent", 2);
    expect("notes.txt: present, but not recorded", 2);
    mla_free(p);
    mla_free(q);
}
END_TEST

/* The file is sealed again after the edit, so only the contradiction remains. */
START_TEST(a_config_that_disagrees_with_the_tensors)
{
    edit("config.json", "\"hidden_size\": 256", "\"hidden_size\": 320");
    seal();
    expect("[2048, 256]", 1);
}
END_TEST

START_TEST(a_declared_cache_without_scales)
{
    edit("config.json", "\"image_token_id\"",
         "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"dense\", \"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"float\", "
         "\"strategy\": \"tensor\", \"symmetric\": true, \"dynamic\": false}}, \"image_token_id\"");
    seal();
    expect("scale", 0);
}
END_TEST

START_TEST(an_edited_receipt_is_a_finding)
{
    edit(MLA_RECEIPT_NAME, "\"size\": 48", "\"size\": 49");
    expect("generation_config.json: size expected 49, found 48", 0);
    seal();
    edit(MLA_RECEIPT_NAME, "{", "{ ");
    expect("mla_receipt.json: not the text that a build writes", 1);
    seal();
    edit(MLA_RECEIPT_NAME, "\"root_digest\": \"sha256:", "\"root_digest\": \"sha256:0");
    expect("mla_receipt.json", 0);
    edit(MLA_RECEIPT_NAME, "{", "[");
    expect("mla_receipt.json", 0);
}
END_TEST

START_TEST(no_receipt_is_no_judgement)
{
    mla_err err = {0};
    mla_verdict v;
    mla_json *d;
    char *p = path_of(MLA_RECEIPT_NAME);
    ck_assert_int_eq(remove(p), 0);
    ck_ok(mla_json_new_object(&d, &err));
    ck_refused(mla_receipts_check(mla_json_root(d), dir, &(mla_receipts_opts){0}, &v, &err), MLA_EIO, "no mla_receipt.json");
    ck_refused(mla_receipts_check(mla_json_root(d), p, &(mla_receipts_opts){0}, &v, &err), MLA_EIO, "expected a folder");
    mla_json_free(d);
    mla_free(p);
}
END_TEST

START_TEST(a_receipt_proves_itself)
{
    char text[512], hex[65];
    unsigned char d[32];
    bool present;
    static const char ZEROS[] = "0000000000000000000000000000000000000000000000000000000000000000";
    int n = snprintf(text, sizeof text, "{\n  \"seed\": 7,\n  \"receipt_sha256\": \"%s\"\n}\n", ZEROS);
    mla_sha256_bytes(text, (size_t)n, d);
    mla_hex(d, 32, hex);
    memcpy(strstr(text, ZEROS), hex, 64);
    ck_assert(mla_receipt_self_ok(text, (size_t)n, &present) && present);
    *strchr(text, '7') = '8';
    ck_assert(!mla_receipt_self_ok(text, (size_t)n, &present) && present);
    ck_assert(mla_receipt_self_ok("{}", 2, &present) && !present);
    ck_assert(!mla_receipt_self_ok(text, (size_t)n - 6, &present));
}
END_TEST

Suite *suite_receipts(void)
{
    Suite *s = suite_create("receipts");
    TCase *t = tcase_create("receipts");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_sealed_folder_passes);
    tcase_add_loop_test(t, flips_are_named, 0, 4);
    tcase_add_test(t, a_sealed_nan_is_found_when_asked);
    tcase_add_test(t, missing_and_extra_are_named);
    tcase_add_test(t, a_config_that_disagrees_with_the_tensors);
    tcase_add_test(t, a_declared_cache_without_scales);
    tcase_add_test(t, an_edited_receipt_is_a_finding);
    tcase_add_test(t, no_receipt_is_no_judgement);
    suite_add_tcase(s, t);
    TCase *u = tcase_create("self digest");
    tcase_add_test(u, a_receipt_proves_itself);
    suite_add_tcase(s, u);
    return s;
}
