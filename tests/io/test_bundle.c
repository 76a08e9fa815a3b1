/* Bundles: byte planes, round trips of whole folders, single tensors, thread counts, and damage that must show. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "io/bundle.h"
#include "io/file.h"
#include "io/planes.h"
#include "io/safetensors.h"
#include "io/suites.h"

#define ROWS 700
#define COLS 1501 /* odd, and BF16 rows of more than two chunks in all */

static unsigned char noise(size_t i) { return (unsigned char)(i * 2654435761u >> 13); }

/* A folder with shards of several types, text, an empty file and a file in a folder. */
static char *folder(void)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    uint16_t *b = mla_alloc(ROWS * COLS, 1, sizeof *b);
    float f[37];
    unsigned char q[333], digest[32];
    for (size_t i = 0; i < ROWS * COLS; i++) b[i] = (uint16_t)(0x3c00 + (noise(i) & 0x7f) + ((noise(i * 7) & 3) << 7) + ((noise(i * 3) & 1) << 15));
    for (size_t i = 0; i < 37; i++) f[i] = (float)i * 0.37f - 5;
    for (size_t i = 0; i < 333; i++) q[i] = noise(i);
    const mla_tensor t[] = {{"w", MLA_BF16, 2, {ROWS, COLS}, b, 2 * ROWS * COLS},
                            {"f", MLA_F32, 1, {37}, f, sizeof f},
                            {"h", MLA_F16, 2, {3, 5}, b, 30},
                            {"none", MLA_F32, 1, {0}, f, 0},
                            {"q", MLA_U8, 1, {333}, q, 333}};
    ck_ok(mla_st_write(in_dir(dir, "model-00001-of-00001.safetensors"), t, 5, digest, &err));
    put_file(dir, "config.json", "{\"a\": 1}\n", 9);
    put_file(dir, "empty", "", 0);
    ck_ok(mla_dir_make(in_dir(dir, "sub"), &err));
    put_file(dir, "sub/notes.txt", b, 4097);
    mla_free(b);
    return dir;
}

static void pack(const char *path, const char *dir, size_t threads, mla_bundle_sum *sum)
{
    mla_err err;
    mla_pool *pool;
    ck_ok(mla_pool_new(&pool, threads, &err));
    ck_ok(mla_bundle_write(path, dir, pool, NULL, sum, &err));
    mla_pool_free(pool);
}

static void same_file(const char *a, const char *b)
{
    mla_err err;
    char *x, *y;
    size_t n, m;
    ck_ok(mla_file_read(&x, &n, a, 1 << 26, &err));
    ck_ok(mla_file_read(&y, &m, b, 1 << 26, &err));
    ck_assert_msg(n == m && memcmp(x, y, n) == 0, "%s and %s differ", a, b);
    mla_free(x);
    mla_free(y);
}

START_TEST(planes_round_trip)
{
    static unsigned char src[4 * 1029], dst[8192], back[4 * 1029], scratch[4 * 1029];
    mla_err err;
    for (size_t i = 0; i < sizeof src; i++) src[i] = noise(i);
    for (mla_planes k = MLA_PLANES_TEXT; k <= MLA_PLANES_F32; k++) {
        mla_planes parsed;
        ck_assert(mla_planes_parse(mla_planes_name(k), &parsed) && parsed == k);
        for (size_t n = 0; n <= sizeof src; n += n < 300 ? mla_planes_count(k) : 4) {
            size_t size[MLA_PLANES_MAX] = {0}, stored = 0;
            ck_assert_uint_le(mla_planes_bound(k, n), sizeof dst);
            ck_ok(mla_planes_pack(k, dst, sizeof dst, size, src, n, scratch, &err));
            for (size_t j = 0; j < mla_planes_count(k); j++) stored += size[j];
            memset(back, 0xAA, sizeof back);
            ck_ok(mla_planes_unpack(k, back, n, dst, stored, size, scratch, &err));
            ck_assert(memcmp(back, src, n) == 0 && (n == sizeof src || back[n] == 0xAA));
        }
    }
    size_t size[MLA_PLANES_MAX];
    ck_ok(mla_planes_pack(MLA_PLANES_F16, dst, sizeof dst, size, src, 200, scratch, &err));
    ck_refused(mla_planes_unpack(MLA_PLANES_F16, back, 200, dst, size[0] + size[1] - 1, size, scratch, &err), MLA_EFORMAT, "are left");
    ck_refused(mla_planes_unpack(MLA_PLANES_F16, back, 200, dst, size[0] + size[1] + 1, size, scratch, &err), MLA_EFORMAT, "are stored");
    ck_refused(mla_planes_unpack(MLA_PLANES_F16, back, 201, dst, size[0] + size[1], size, scratch, &err), MLA_EFORMAT, "no whole elements");
}
END_TEST

START_TEST(a_folder_comes_back_byte_for_byte)
{
    mla_err err;
    mla_bundle_sum sum, again;
    char *dir = folder(), *out = mla_test_tmpdir();
    pack(in_dir(out, "b1"), dir, 1, &sum);
    ck_assert_uint_eq(sum.files, 4);
    ck_assert_uint_eq(sum.float_bytes, 2 * ROWS * COLS + 30);
    ck_assert_uint_lt(sum.float_stored, sum.float_bytes * 3 / 4); /* 7 bits of mantissa, 1 of sign, 2 of exponent: 10 of 16 */
    mla_bundle *b;
    ck_ok(mla_bundle_open(&b, in_dir(out, "b1"), &err));
    mla_bundle_totals(b, &again);
    ck_assert(again.bytes == sum.bytes && again.stored == sum.stored && again.float_bytes == sum.float_bytes && again.float_stored == sum.float_stored);
    for (size_t i = 0; i < mla_bundle_manifest(b)->n; i++) {
        const char *name = mla_bundle_manifest(b)->file[i].name;
        ck_ok(mla_bundle_extract(b, i, in_dir(out, "x"), NULL, NULL, &err));
        same_file(in_dir(out, "x"), in_dir(dir, name));
    }
    mla_st *s;
    ck_ok(mla_st_open(&s, in_dir(dir, "model-00001-of-00001.safetensors"), &err));
    for (size_t i = 0; i < mla_st_count(s); i++) { /* any tensor, alone */
        const mla_tensor *t = mla_st_at(s, i), *p = mla_bundle_tensor_find(b, t->name);
        ck_assert(p && p->dtype == t->dtype && p->nbytes == t->nbytes && mla_shape_is(p, t->ndim, t->shape));
        unsigned char *data = mla_alloc(p->nbytes + 1, 1, 1);
        ck_ok(mla_bundle_tensor_read(b, p, data, NULL, &err));
        ck_assert_int_eq(memcmp(data, t->data, t->nbytes), 0);
        mla_free(data);
    }
    ck_assert_ptr_null(mla_bundle_tensor_find(b, "v"));
    mla_st_close(s);
    mla_bundle_close(b);
    drop_dir(dir);
    drop_dir(out);
}
END_TEST

START_TEST(threads_do_not_change_the_bytes)
{
    mla_bundle_sum sum;
    char *dir = folder(), *out = mla_test_tmpdir();
    pack(in_dir(out, "b1"), dir, 1, &sum);
    for (size_t t = 2; t <= 8; t = t == 3 ? 8 : t + 1) {
        pack(in_dir(out, "bt"), dir, t, &sum);
        same_file(in_dir(out, "b1"), in_dir(out, "bt"));
    }
    drop_dir(dir);
    drop_dir(out);
}
END_TEST

/* Opens and extracts everything; true when all of it equals the folder. */
static bool whole(const char *path, const char *dir, const char *tmp, mla_status *st)
{
    mla_err err;
    mla_bundle *b;
    *st = mla_bundle_open(&b, path, &err);
    for (size_t i = 0; *st == MLA_OK && i < mla_bundle_manifest(b)->n; i++) {
        *st = mla_bundle_extract(b, i, tmp, NULL, NULL, &err);
        if (*st == MLA_OK) same_file(tmp, in_dir(dir, mla_bundle_manifest(b)->file[i].name));
    }
    mla_bundle_close(b);
    return *st == MLA_OK;
}

START_TEST(damage_is_refused)
{
    mla_err err;
    mla_bundle_sum sum;
    mla_status st;
    char *dir = mla_test_tmpdir(), *out = mla_test_tmpdir(), *bytes, path[1200], tmp[1200];
    static const char HEADER[] = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[8,8],\"data_offsets\":[0,128]}} ";
    put_st(dir, "m.safetensors", HEADER, 128);
    put_file(dir, "config.json", "{}", 2);
    snprintf(path, sizeof path, "%s", in_dir(out, "b"));
    snprintf(tmp, sizeof tmp, "%s", in_dir(out, "x"));
    pack(path, dir, 1, &sum);
    size_t n;
    ck_ok(mla_file_read(&bytes, &n, path, 1 << 20, &err));
    ck_assert(whole(path, dir, tmp, &st));
    for (size_t i = 0; i < n; i++) { /* a flip anywhere is seen, or changes nothing (same_file) */
        bytes[i] ^= 0x10;
        put_file(out, "b", bytes, n);
        if (!whole(path, dir, tmp, &st)) ck_assert_msg(st == MLA_EFORMAT || st == MLA_EUNSUPPORTED, "flip at %zu: %s", i, mla_status_name(st));
        bytes[i] ^= 0x10;
    }
    for (size_t k = 0; k < n; k++) { /* and so is every cut */
        put_file(out, "b", bytes, k);
        ck_assert_msg(!whole(path, dir, tmp, &st) && st == MLA_EFORMAT, "cut at %zu", k);
    }
    put_file(out, "b", bytes, n);
    for (long k = 0;; k++) { /* memory that runs out anywhere */
        mla_alloc_fail_after(k);
        mla_bundle *b;
        st = mla_bundle_open(&b, path, &err);
        for (size_t i = 0; st == MLA_OK && i < mla_bundle_manifest(b)->n; i++) st = mla_bundle_extract(b, i, tmp, NULL, NULL, &err);
        mla_bundle_close(b);
        if (st == MLA_OK) st = mla_bundle_write(in_dir(out, "c"), dir, NULL, NULL, &sum, &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_msg(st == MLA_ENOMEM, "allocation %ld: %s (%s)", k, mla_status_name(st), err.msg);
        /* only the fsync of the folder can fail once the file has its name: then it is whole */
        if (mla_path_exists(in_dir(out, "c"))) same_file(in_dir(out, "c"), path);
        ck_assert_int_lt(k, 10000);
    }
    same_file(in_dir(out, "c"), path);
    mla_free(bytes);
    drop_dir(dir);
    drop_dir(out);
}
END_TEST

START_TEST(what_cannot_be_packed_is_refused)
{
    mla_err err;
    mla_bundle_sum sum;
    char *dir = mla_test_tmpdir(), *out = mla_test_tmpdir();
    ck_refused(mla_bundle_write(in_dir(out, "b"), dir, NULL, NULL, &sum, &err), MLA_EINVAL, "nothing to pack");
    put_file(dir, "m.safetensors", "junk", 4);
    ck_refused(mla_bundle_write(in_dir(out, "b"), dir, NULL, NULL, &sum, &err), MLA_EFORMAT, "m.safetensors");
    ck_assert(!mla_path_exists(in_dir(out, "b")));
    drop_dir(dir);
    drop_dir(out);
}
END_TEST

Suite *bundle_suite(void)
{
    Suite *s = suite_create("bundle");
    TCase *t = tcase_create("bundle");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, planes_round_trip);
    tcase_add_test(t, a_folder_comes_back_byte_for_byte);
    tcase_add_test(t, threads_do_not_change_the_bytes);
    tcase_add_test(t, damage_is_refused);
    tcase_add_test(t, what_cannot_be_packed_is_refused);
    suite_add_tcase(s, t);
    return s;
}
