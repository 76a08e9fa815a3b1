/* Digests: published vectors, OpenSSL against the two-stream kernel at every length, files in any mix. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "io/file.h"
#include "io/sha256.h"
#include "io/sha256_x2.h"
#include "io/suites.h"

static void check_hex(const unsigned char *d, size_t n, const char *want)
{
    char hex[80];
    mla_hex(d, n, hex);
    ck_assert_str_eq(hex, want);
}

START_TEST(published_vectors)
{
    unsigned char d[32];
    mla_sha256_bytes("abc", 3, d);
    check_hex(d, 32, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    mla_sha256_bytes(NULL, 0, d);
    check_hex(d, 32, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    mla_git_blob_sha1("", 0, d); /* git hash-object of an empty file */
    check_hex(d, 20, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    mla_git_blob_sha1("hello\n", 6, d);
    check_hex(d, 20, "ce013625030ba8dba906f756967f9e9ca394464a");
}
END_TEST

START_TEST(a_stream_may_be_asked_on_the_way)
{
    mla_err err;
    mla_sha256 *h;
    unsigned char d[32], w[32];
    ck_ok(mla_sha256_new(&h, &err));
    mla_sha256_update(h, "ab", 2);
    mla_sha256_get(h, d);
    mla_sha256_bytes("ab", 2, w);
    ck_assert_int_eq(memcmp(d, w, 32), 0);
    mla_sha256_update(h, "c", 1);
    mla_sha256_get(h, d);
    mla_sha256_bytes("abc", 3, w);
    ck_assert_int_eq(memcmp(d, w, 32), 0);
    mla_sha256_free(h);
    mla_sha256_free(NULL);
}
END_TEST

static void fill(unsigned char *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)mla_rng_u64(seed, i);
}

START_TEST(two_streams_give_what_one_gives)
{
    if (!mla_sha256_x2_usable()) {
        mla_test_skip("two-stream SHA-256", "this CPU has no SHA instructions", 1);
        return;
    }
    unsigned char a[64 * 9], b[64 * 9];
    fill(a, sizeof a, 1);
    fill(b, sizeof b, 2);
    for (size_t blocks = 0; blocks <= 9; blocks++) {
        uint32_t s[8], t[8], u[8], v[8];
        for (uint32_t i = 0; i < 8; i++) s[i] = u[i] = 0x9E3779B9u * (i + 1), t[i] = v[i] = ~s[i];
        mla_sha256_x2_blocks(s, a, t, b, blocks);
        mla_sha256_x1_blocks(u, a, blocks);
        mla_sha256_x1_blocks(v, b, blocks);
        ck_assert_int_eq(memcmp(s, u, sizeof s), 0);
        ck_assert_int_eq(memcmp(t, v, sizeof t), 0);
    }
}
END_TEST

#define N 40
/* Lengths around the block, padding and buffer limits, many files, 1 to 5 threads: always OpenSSL's digests. */
START_TEST(files_have_openssl_digests_for_any_number_of_threads)
{
    static const size_t EDGE[] = {0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 127, 128, 262143, 262144, 262145, 524288, 600000};
    mla_err err;
    char *dir = mla_test_tmpdir(), name[32];
    char *path[N];
    unsigned char want[N][32], *data = malloc(600000);
    for (size_t i = 0; i < N; i++) {
        size_t n = i < sizeof EDGE / sizeof *EDGE ? EDGE[i] : (size_t)mla_rng_below(7, i, 300000);
        fill(data, n, i);
        snprintf(name, sizeof name, "f%zu", i);
        path[i] = mla_strdup(put_file(dir, name, data, n));
        mla_sha256_bytes(data, n, want[i]);
    }
    for (size_t threads = 0; threads <= 5; threads++) { /* 0: without a pool */
        mla_pool *pool = NULL;
        if (threads) ck_ok(mla_pool_new(&pool, threads, &err));
        for (size_t n = 0; n <= N; n += n < 4 ? 1 : 12) {
            mla_file_digest f[N];
            memset(f, 0, sizeof f);
            for (size_t i = 0; i < n; i++) f[i].path = path[N - n + i];
            ck_ok(mla_sha256_files(f, n, pool, NULL, &err));
            for (size_t i = 0; i < n; i++) ck_assert_msg(!memcmp(f[i].digest, want[N - n + i], 32), "file %zu of %zu, %zu threads", i, n, threads);
        }
        mla_pool_free(pool);
    }
    for (size_t i = 0; i < N; i++) mla_free(path[i]);
    free(data);
    drop_dir(dir);
}
END_TEST

START_TEST(a_missing_file_is_named)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    mla_file_digest f[3] = {{.path = put_file(dir, "a", "x", 1)}, {.path = in_dir(dir, "gone")}, {.path = dir}};
    ck_refused(mla_sha256_files(f, 2, NULL, NULL, &err), MLA_EIO, "gone: cannot stat");
    ck_refused(mla_sha256_files(f + 2, 1, NULL, NULL, &err), MLA_EIO, "regular file");
    ck_ok(mla_sha256_files(f, 1, NULL, NULL, &err));
    ck_assert_uint_eq(f[0].size, 1);
    mla_status st = MLA_ENOMEM;
    long k = 0;
    for (; st != MLA_OK && k < 20; k++) { /* how many allocations there are depends on the CPU's instructions */
        mla_alloc_fail_after(k);
        st = mla_sha256_files(f, 1, NULL, NULL, &err);
        mla_alloc_fail_after(-1);
        ck_assert(st == MLA_OK || st == MLA_ENOMEM);
    }
    ck_assert_int_eq(st, MLA_OK);
    ck_assert_int_gt(k, 3);
    drop_dir(dir);
}
END_TEST

Suite *sha256_suite(void)
{
    Suite *s = suite_create("sha256");
    TCase *t = tcase_create("sha256");
    tcase_add_test(t, published_vectors);
    tcase_add_test(t, a_stream_may_be_asked_on_the_way);
    tcase_add_test(t, two_streams_give_what_one_gives);
    tcase_add_test(t, files_have_openssl_digests_for_any_number_of_threads);
    tcase_add_test(t, a_missing_file_is_named);
    suite_add_tcase(s, t);
    return s;
}
