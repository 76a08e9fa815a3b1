/* zstd frames: round trips, and every way a frame can be wrong. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "io/suites.h"
#include "io/zst.h"

#define N 5000

static unsigned char src[N], frame[N + 1000], out[N + 16];

static size_t pack(size_t n, int level)
{
    mla_err err;
    size_t k;
    for (size_t i = 0; i < N; i++) src[i] = (unsigned char)(mla_rng_u64(3, i) & 7);
    ck_assert_uint_ge(sizeof frame, mla_zst_bound(n));
    ck_ok(mla_zst_pack(frame, sizeof frame, &k, src, n, level, &err));
    return k;
}

START_TEST(frames_round_trip)
{
    mla_err err;
    for (int level = -5; level <= 19; level += 8)
        for (size_t n = 0; n <= N; n += 1000) {
            size_t k = pack(n, level);
            memset(out, 0xAA, sizeof out);
            ck_ok(mla_zst_unpack(n ? out : NULL, n, frame, k, &err));
            ck_assert_int_eq(memcmp(out, src, n), 0);
            ck_assert_int_eq(out[n], 0xAA);
        }
    ck_assert_ptr_nonnull(strchr(mla_zst_version(), '.'));
}
END_TEST

START_TEST(wrong_frames_are_refused)
{
    mla_err err;
    size_t k = pack(N, 3);
    ck_refused(mla_zst_unpack(out, N - 1, frame, k, &err), MLA_EFORMAT, "5000 decoded bytes, expected 4999");
    ck_refused(mla_zst_unpack(out, N + 1, frame, k, &err), MLA_EFORMAT, "expected 5001");
    ck_refused(mla_zst_unpack(out, N, frame, k - 1, &err), MLA_EFORMAT, "zstd frame");
    ck_refused(mla_zst_unpack(out, N, frame, k + 1, &err), MLA_EFORMAT, "followed by 1 more");
    ck_refused(mla_zst_unpack(out, N, src, 100, &err), MLA_EFORMAT, "not a zstd frame");
    ck_refused(mla_zst_unpack(out, N, frame, 0, &err), MLA_EFORMAT, "not a zstd frame");
    static const unsigned char SKIPPABLE[] = {0x50, 0x2A, 0x4D, 0x18, 0, 0, 0, 0};
    ck_refused(mla_zst_unpack(out, 0, SKIPPABLE, 8, &err), MLA_EFORMAT, "frame");
    for (size_t i = 0; i < k; i++) { /* a flipped bit is never decoded to the same bytes without an error */
        frame[i] ^= 1;
        memset(out, 0, N);
        mla_status st = mla_zst_unpack(out, N, frame, k, &err);
        ck_assert_msg(st == MLA_EFORMAT || (st == MLA_OK && !memcmp(out, src, N)), "bit flip at %zu gives wrong bytes", i);
        frame[i] ^= 1;
    }
    ck_assert_int_eq(mla_zst_pack(frame, 10, &k, src, N, 3, &err), MLA_EINTERNAL);
}
END_TEST

Suite *zst_suite(void)
{
    Suite *s = suite_create("zst");
    TCase *t = tcase_create("zst");
    tcase_add_test(t, frames_round_trip);
    tcase_add_test(t, wrong_frames_are_refused);
    suite_add_tcase(s, t);
    return s;
}
