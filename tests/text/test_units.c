/* The parts of a tokenizer alone: UTF-8, byte alphabet, classes, NFC, patterns, merges. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "suites.h"
#include "text/bpe.h"
#include "text/bytes.h"
#include "text/pattern.h"
#include "text/split.h"
#include "text/unicode.h"
#include "text/utf8.h"

static void lossy_is(const char *in, size_t n, const char *want)
{
    mla_str s = MLA_STR_MAX(1000);
    mla_utf8_lossy(&s, in, n);
    ck_assert_str_eq(mla_str_c(&s), want);
    mla_str_free(&s);
}
#define BAD "\xEF\xBF\xBD"

/* One replacement per maximal subpart (Unicode 3.9, table 3-8 and its like). */
START_TEST(utf8_replacement)
{
    lossy_is("abc", 3, "abc");
    lossy_is("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", 9, BAD BAD BAD BAD BAD BAD BAD BAD "A");
    lossy_is("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", 9, BAD BAD BAD BAD BAD BAD BAD BAD "A");
    lossy_is("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", 9, BAD BAD BAD BAD BAD "A" BAD BAD "B");
    lossy_is("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", 9, BAD BAD BAD BAD "A");
    lossy_is("\xC3", 1, BAD);
    lossy_is("x\xF0\x9F\x98", 4, "x" BAD);
}
END_TEST

START_TEST(utf8_round_trip)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        char b[8] = {0};
        uint32_t back;
        size_t n = mla_utf8_put(b, cp);
        ck_assert(mla_utf8_valid(b, n));
        ck_assert_uint_eq(mla_utf8_step(b, sizeof b, &back), n);
        ck_assert_uint_eq(back, cp);
        ck_assert_uint_eq(mla_utf8_back(b, n), 0);
        /* a stand-in is of the same length, and nobody's but the few */
        char s[4];
        ck_assert_uint_eq(mla_utf8_put(s, mla_uc_stand_in(cp)), n);
        if (cp < 0x897) ck_assert_uint_eq(mla_uc_stand_in(cp), cp);
    }
}
END_TEST

START_TEST(byte_alphabet)
{
    unsigned char seen[256] = {0};
    for (uint32_t cp = 0; cp < 0x400; cp++) {
        int b = mla_char_byte(cp);
        if (b < 0) continue;
        ck_assert_uint_eq(mla_byte_char((unsigned char)b), cp);
        seen[b]++;
    }
    for (unsigned b = 0; b < 256; b++) ck_assert_uint_eq(seen[b], 1);
    ck_assert_uint_eq(mla_byte_char(' '), 0x120);
    ck_assert_uint_eq(mla_byte_char('\n'), 0x10A);
    ck_assert_uint_eq(mla_byte_char(0xAD), 0x143);
    ck_assert_uint_eq(mla_byte_char('A'), 'A');
}
END_TEST

START_TEST(classes)
{
    ck_assert(mla_uc_numeric('7') && mla_uc_numeric(0xBD) && mla_uc_numeric(0x2167) && mla_uc_numeric(0x11DE0));
    ck_assert(!mla_uc_numeric('a') && !mla_uc_numeric(0x4E00));
    ck_assert(mla_uc_space(0x3000) && mla_uc_space(0x85) && !mla_uc_space(0x180E) && !mla_uc_space(0x200B));
    ck_assert(mla_uc_word('_') && mla_uc_word(0x301) && mla_uc_word(0x200D) && mla_uc_word(0x24B6) && mla_uc_word(0x1C89));
    ck_assert(!mla_uc_word('-') && !mla_uc_word(' ') && !mla_uc_word(0x1F600) && !mla_uc_word(0xB2));
    ck_assert(mla_uc_stand_in(0x1C89) == 0x4E00 && mla_uc_stand_in(0x180E) != 0x180E && mla_uc_stand_in(0x4E00) == 0x4E00);
}
END_TEST

static void nfc_is(const char *in, const char *want)
{
    mla_err err;
    mla_str s = MLA_STR_MAX(1u << 24);
    ck_ok(mla_uc_nfc(&s, in, strlen(in), &err));
    ck_assert_str_eq(mla_str_c(&s), want);
    mla_str_free(&s);
}

START_TEST(nfc)
{
    nfc_is("plain", "plain");
    nfc_is("e\u0301le\u0300ve", "\u00e9l\u00e8ve");
    nfc_is("s\u0307\u0323", "\u1e69");                     /* reordered, then composed twice */
    nfc_is("\u212b\u2126", "\u00c5\u03a9");                /* singletons */
    nfc_is("\u0958", "\u0915\u093c");                      /* a composition exclusion */
    nfc_is("\u1112\u1161\u11ab", "\ud55c");            /* jamo */
    nfc_is("a\u0334\u0301\u0334", "\u00e1\u0334\u0334");
    nfc_is("\u1100\u1161\u11a7x", "\uac00\u11a7x");        /* not a final consonant */
    nfc_is("e\u0898\u0301", "e\u0898\u0301");              /* unknown to the library: nothing composes across it */
    nfc_is("\u0301e\u0301 \u0301", "\u0301\u00e9 \u0301");
    ck_assert(!mla_uc_may_compose("abc\u00e9", 5) && mla_uc_may_compose("e\u0301", 3));
}
END_TEST

/* 200,000 marks in two alternating classes: ordered in linear time. */
START_TEST(nfc_many_marks)
{
    mla_err err;
    size_t pairs = 100000, n = 4 * pairs;
    char *in = mla_alloc(n, 1, 1);
    mla_str s = MLA_STR_MAX(1u << 24);
    for (size_t i = 0; i < pairs; i++) memcpy(in + 4 * i, "\u0301\u0323", 4);
    double start = mla_now();
    ck_ok(mla_uc_nfc(&s, in, n, &err));
    ck_assert(mla_now() - start < 20); /* 0.01 s here; the quadratic way takes minutes */
    ck_assert_uint_eq(s.len, n);
    for (size_t i = 0; i < 2 * pairs; i++) ck_assert(memcmp(s.s + 2 * i, i < pairs ? "\u0323" : "\u0301", 2) == 0);
    mla_str_free(&s);
    mla_free(in);
}
END_TEST

START_TEST(patterns_known)
{
    mla_err err;
    static const char *const OK[] = {MLA_PAT_GPT2, MLA_PAT_QWEN2, MLA_PAT_QWEN35, MLA_PAT_LLAMA3, "[a-z]+?|(?:x|y)*+|\\.{2,}", "\\P{L}(a|b)(?=c)"};
    for (size_t i = 0; i < sizeof OK / sizeof *OK; i++) ck_ok(mla_pattern_check(OK[i], strlen(OK[i]), &err));
}
END_TEST

START_TEST(patterns_refused)
{
    mla_err err;
    static const char *const NO[] = {"a.b", "^a", "a$", "\\w+", "\\d", "\\bx", "\\h", "\\x41", "\\p{Lu}", "\\p{^L}", "\\pL", "\\p{L", "[[:alpha:]]",
                                     "[a&&b]", "[]a]", "[abc", "(?<=a)b", "(?<!a)b", "(?>a)", "(?m:a)", "(?i)a", "(*LIMIT_MATCH=1)a", "(?C1)a",
                                     "a{,3}", "a{2}+", "a{x", "{", "}", "]", "\\", "\\Ca", "\xC3\xA9", "[\xC3\xA9]", "a\nb", "(", "\\p{", "\\ "};
    for (size_t i = 0; i < sizeof NO / sizeof *NO; i++) {
        mla_status st = mla_pattern_check(NO[i], strlen(NO[i]), &err);
        ck_assert_msg(st == MLA_EUNSUPPORTED, "\"%s\" was let through", NO[i]);
        ck_assert_ptr_nonnull(strstr(err.msg, "is not known"));
        ck_assert_ptr_null(strchr(err.msg, '\n'));
    }
    ck_refused(mla_pattern_check("ab\0c", 4, &err), MLA_EUNSUPPORTED, "byte 2");
}
END_TEST

static mla_status gather(void *ctx, const char *s, size_t n, mla_err *err)
{
    (void)err;
    mla_str_putn(ctx, s, n);
    mla_str_put(ctx, "|");
    return MLA_OK;
}

static void splits_to(const mla_split *s, const char *text, const char *want)
{
    mla_err err;
    mla_split_work *w = NULL;
    mla_str got = MLA_STR_MAX(10000);
    ck_ok(mla_split_work_new(&w, &err));
    ck_ok(mla_split_run(s, w, text, strlen(text), gather, &got, &err));
    ck_assert_str_eq(mla_str_c(&got), want);
    mla_split_work_free(w);
    mla_str_free(&got);
}

START_TEST(splitting)
{
    mla_err err;
    mla_split *s = NULL;
    ck_ok(mla_split_new(&s, &err));
    splits_to(s, "as it is", "as it is|");
    ck_ok(mla_split_add_digits(s, true, &err));
    splits_to(s, "a12b3", "a|1|2|b|3|");
    ck_ok(mla_split_add_regex(s, MLA_PAT_GPT2, strlen(MLA_PAT_GPT2), &err));
    splits_to(s, "I've  12 cats\n ", "I|'ve|  |1|2| cats|\n |");
    splits_to(s, "a\u180eb", "a|\u180e|b|"); /* no white space: the run " [^\s..]+" */
    mla_split_free(s);
    ck_ok(mla_split_new(&s, &err));
    ck_ok(mla_split_add_digits(s, false, &err));
    splits_to(s, "12a34\u0663", "12|a|34\u0663|");
    mla_split_free(s);
    ck_ok(mla_split_new(&s, &err)); /* a pattern with empty matches: gaps are cut, no step is endless */
    ck_ok(mla_split_add_regex(s, "x*", 2, &err));
    splits_to(s, "a\u00e9xxb", "a|\u00e9|xx|b|");
    ck_ok(mla_split_add_regex(s, "(?=b)", 5, &err));
    splits_to(s, "abxbb", "a|b|x|b|b|");
    for (size_t i = 2; i < MLA_SPLIT_STEPS; i++) ck_ok(mla_split_add_digits(s, true, &err));
    ck_refused(mla_split_add_digits(s, true, &err), MLA_EUNSUPPORTED, "steps");
    mla_split_free(s);
}
END_TEST

/* A pattern of exponential cost stops at its limit with an error; long stretches of the known ones do not. */
START_TEST(split_limits)
{
    mla_err err;
    mla_split *s = NULL;
    mla_split_work *w = NULL;
    mla_str got = MLA_STR_MAX(1u << 24);
    size_t n = 300000;
    char *text = mla_alloc(n, 1, 1);
    memset(text, 'a', n);
    ck_ok(mla_split_new(&s, &err));
    ck_ok(mla_split_work_new(&w, &err));
    ck_ok(mla_split_add_regex(s, "(a+)+[bc]", 9, &err));
    ck_refused(mla_split_run(s, w, text, 60, gather, &got, &err), MLA_EUNSUPPORTED, "match limit");
    mla_split_free(s);
    ck_ok(mla_split_new(&s, &err));
    ck_ok(mla_split_add_regex(s, MLA_PAT_QWEN35, strlen(MLA_PAT_QWEN35), &err));
    static const char FILL[] = {'a', ' ', '\n', '!', '7', '\''};
    for (size_t i = 0; i < sizeof FILL; i++) {
        memset(text, FILL[i], n);
        mla_str_clear(&got);
        ck_ok(mla_split_run(s, w, text, n, gather, &got, &err));
        ck_assert_uint_ge(got.len, n);
    }
    char pattern[5000];
    memset(pattern, 'a', sizeof pattern);
    ck_refused(mla_split_add_regex(s, pattern, sizeof pattern, &err), MLA_EUNSUPPORTED, "5000 bytes");
    ck_refused(mla_split_add_regex(s, "a)", 2, &err), MLA_EFORMAT, "byte");
    mla_split_free(s);
    mla_split_work_free(w);
    mla_str_free(&got);
    mla_free(text);
}
END_TEST

/* Merging by definition: scan for the lowest rank, leftmost first, until none is left. */
static size_t merge_slowly(uint32_t rank[8][8], int32_t merged[8][8], int32_t *id, size_t n)
{
    for (;;) {
        size_t at = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (rank[id[i]][id[i + 1]] != UINT32_MAX && (at == n || rank[id[i]][id[i + 1]] < rank[id[at]][id[at + 1]])) at = i;
        if (at == n) return n;
        id[at] = merged[id[at]][id[at + 1]];
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

/* Random merge tables and words against the definition. Merged ids are larger than their halves, as in any real
 * table, so merging ends. */
START_TEST(merges_by_definition)
{
    mla_err err;
    mla_bpe_work w = {0};
    uint64_t draw = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        mla_bpe b = {0};
        uint32_t rank[8][8];
        int32_t merged[8][8], got[200], want[200];
        ck_ok(mla_bpe_init(&b, 64, &err));
        memset(rank, 0xff, sizeof rank);
        for (uint32_t r = 0; r < 14; r++) {
            int32_t x = (int32_t)mla_rng_below(3, draw++, 7), y = (int32_t)mla_rng_below(3, draw++, 7), top = x > y ? x : y;
            if (rank[x][y] != UINT32_MAX) continue; /* in a real table the result tells the pair's text */
            merged[x][y] = top + 1 + (int32_t)mla_rng_below(3, draw++, (uint64_t)(7 - top));
            rank[x][y] = r;
            mla_bpe_add(&b, x, y, r, merged[x][y]);
        }
        size_t n = 1 + mla_rng_below(3, draw++, round % 10 ? 12 : 199), m = n;
        for (size_t i = 0; i < n; i++) got[i] = want[i] = (int32_t)mla_rng_below(3, draw++, 4);
        ck_ok(mla_bpe_merge(&b, &w, got, &m, &err));
        ck_assert_uint_eq(m, merge_slowly(rank, merged, want, n));
        ck_assert(memcmp(got, want, m * sizeof *got) == 0);
        mla_bpe_free(&b);
    }
    mla_bpe_work_free(&w);
}
END_TEST

Suite *units_suite(void)
{
    Suite *s = suite_create("units");
    TCase *c = tcase_create("units");
    tcase_add_test(c, utf8_replacement);
    tcase_add_test(c, utf8_round_trip);
    tcase_add_test(c, byte_alphabet);
    tcase_add_test(c, classes);
    tcase_add_test(c, nfc);
    tcase_add_test(c, nfc_many_marks);
    tcase_add_test(c, patterns_known);
    tcase_add_test(c, patterns_refused);
    tcase_add_test(c, splitting);
    tcase_add_test(c, split_limits);
    tcase_add_test(c, merges_by_definition);
    suite_add_tcase(s, c);
    return s;
}
