/* Tokenizers against what the library recorded for every text, from tokenizer.json and from GGUF; the bundled text. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/par.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/sha256.h"
#include "suites.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

static const char *const NAMES[] = {"qwen35", "qwen2", "smollm", "llama3", "gpt2", "digits", "qwen2-gguf", "gpt2-gguf"};
enum { N_NAMES = sizeof NAMES / sizeof *NAMES };

static mla_json *read_fixture(const char *name)
{
    mla_err err;
    mla_json *doc = NULL;
    char path[128];
    snprintf(path, sizeof path, "tokenizer/%s", name);
    ck_ok(mla_json_read(&doc, mla_fixture(path), 1u << 24, &err));
    return doc;
}

static void ids_are(const mla_ids *got, const mla_jv *want, const char *what, size_t text)
{
    size_t i = 0;
    for (const mla_jv *k = mla_jv_first(want); k; k = mla_jv_next(k), i++) {
        int64_t id;
        ck_assert(mla_jv_i64(k, &id));
        ck_assert_msg(i < got->n && got->id[i] == id, "%s, text %zu: id %zu is %ld, expected %lld", what, text, i,
                      i < got->n ? (long)got->id[i] : -1L, (long long)id);
    }
    ck_assert_msg(i == got->n, "%s, text %zu: %zu ids, expected %zu", what, text, got->n, i);
}

/* Decoded text against the hex recorded under key, or the text itself when there is none. */
static void text_is(const mla_tok *t, const mla_ids *ids, bool skip, const mla_jv *want, const char *valid, size_t n, size_t text)
{
    mla_err err;
    mla_str got = MLA_STR_MAX(1u << 20);
    const char *hex = mla_jv_str(want);
    unsigned char *bytes = hex ? from_hex(hex, &n) : NULL;
    ck_ok(mla_tok_decode(t, &got, ids->id, ids->n, skip, &err));
    ck_assert_msg(got.len == n && (n == 0 || memcmp(mla_str_c(&got), bytes ? (const char *)bytes : valid, n) == 0),
                  "text %zu decodes to \"%s\"", text, mla_str_c(&got));
    mla_free(bytes);
    mla_str_free(&got);
}

static void check_all(const mla_tok *t, const mla_jv *expected, const mla_jv *texts, const char *what)
{
    mla_err err;
    mla_ids ids = {0};
    size_t i = 0;
    const mla_jv *c = mla_jv_first(mla_jv_get(expected, "cases"));
    for (const mla_jv *k = mla_jv_first(texts); k; k = mla_jv_next(k), c = mla_jv_next(c), i++) {
        size_t n;
        char *text = (char *)from_hex(mla_jv_str(k), &n);
        mla_str valid = MLA_STR_MAX(1u << 20);
        ck_assert_ptr_nonnull(c);
        ids.n = 0;
        ck_ok(mla_tok_encode(t, &ids, text, n, true, &err));
        ids_are(&ids, mla_jv_get(c, "ids"), what, i);
        mla_utf8_lossy(&valid, text, n); /* what the library was given */
        text_is(t, &ids, false, mla_jv_get(c, "text"), mla_str_c(&valid), valid.len, i);
        text_is(t, &ids, true, mla_jv_get(c, "text_skip"), mla_str_c(&valid), valid.len, i);
        ids.n = 0;
        ck_ok(mla_tok_encode(t, &ids, text, n, false, &err));
        ids_are(&ids, mla_jv_get(c, "plain") ? mla_jv_get(c, "plain") : mla_jv_get(c, "ids"), what, i);
        mla_str_free(&valid);
        mla_free(text);
    }
    ck_assert(i >= 150 && !c);
    mla_ids_free(&ids);
}

START_TEST(golden)
{
    mla_err err;
    char name[64];
    snprintf(name, sizeof name, "%s.expected.json", NAMES[_i]);
    mla_json *texts = read_fixture("texts.json"), *doc = read_fixture(name);
    const mla_jv *root = mla_json_root(doc), *list = mla_jv_get(mla_json_root(texts), "texts");
    const char *json = mla_jv_str(mla_jv_get(root, "json")), *gguf = mla_jv_str(mla_jv_get(root, "gguf"));
    size_t vocab;
    char path[128];
    ck_assert(mla_jv_size(mla_jv_get(root, "vocab"), &vocab));
    ck_assert(json || gguf);
    if (json) {
        mla_tok *t = NULL;
        snprintf(path, sizeof path, "tokenizer/%s", json);
        ck_ok(mla_tok_open_json(&t, mla_fixture(path), &err));
        ck_assert_uint_eq(mla_tok_vocab_size(t), vocab);
        check_all(t, root, list, json);
        mla_tok_free(t);
    }
    if (gguf) {
        mla_tok *t = NULL;
        mla_gguf *g = NULL;
        size_t eos;
        snprintf(path, sizeof path, "tokenizer/%s", gguf);
        ck_ok(mla_gguf_open(&g, mla_fixture(path), &err));
        ck_ok(mla_tok_open_gguf(&t, g, &err));
        mla_gguf_close(g); /* the tokenizer keeps nothing of the file */
        ck_assert_uint_eq(mla_tok_vocab_size(t), vocab);
        ck_assert(mla_jv_size(mla_jv_get(root, "eos"), &eos) && mla_tok_eos(t) == (int32_t)eos);
        check_all(t, root, list, gguf);
        mla_tok_free(t);
    }
    mla_json_free(texts);
    mla_json_free(doc);
}
END_TEST

static mla_tok *open_json(const char *name)
{
    mla_err err;
    mla_tok *t = NULL;
    ck_ok(mla_tok_open_json(&t, mla_fixture(name), &err));
    return t;
}

START_TEST(lookups)
{
    mla_tok *t = open_json("tiny-hybrid/tokenizer.json"), *d = open_json("tokenizer/digits.json");
    int32_t id;
    unsigned char a[32], b[32];
    ck_assert(mla_tok_id(t, "<|im_end|>", &id) && id == 2043);
    ck_assert(mla_tok_id(t, "\u0120t", &id) && id == 256);
    ck_assert(!mla_tok_id(t, "<|no such token|>", &id));
    ck_assert_int_eq(mla_tok_eos(t), -1);
    ck_assert(mla_tok_id(d, "</s>", &id) && mla_tok_eos(d) == id);
    mla_tok_sha256(t, a);
    mla_tok_sha256(d, b);
    ck_assert(memcmp(a, b, 32) != 0);
    mla_tok_free(t);
    mla_tok_free(d);
    mla_tok_free(NULL);
}
END_TEST

/* A truncated character at the end of the ids is one replacement; ids append; unknown ids are refused and leave no trace. */
START_TEST(decoding)
{
    mla_err err;
    mla_tok *t = open_json("tiny-hybrid/tokenizer.json");
    mla_ids ids = {0};
    mla_str s = MLA_STR_MAX(1000), tiny = MLA_STR_MAX(3);
    ck_ok(mla_tok_encode(t, &ids, "\U0001F600", 4, true, &err));
    ck_assert_uint_ge(ids.n, 2);
    ck_ok(mla_tok_decode(t, &s, ids.id, ids.n - 1, false, &err));
    ck_assert_str_eq(mla_str_c(&s), "\xEF\xBF\xBD");
    int32_t bad[] = {5, 2048}, negative = -1;
    ck_refused(mla_tok_decode(t, &s, bad, 2, false, &err), MLA_EINVAL, "2048");
    ck_refused(mla_tok_decode(t, &s, &negative, 1, false, &err), MLA_EINVAL, "-1");
    ck_assert_str_eq(mla_str_c(&s), "\xEF\xBF\xBD");
    ck_refused(mla_tok_decode(t, &tiny, ids.id, ids.n, false, &err), MLA_ENOMEM, "text of");
    size_t before = ids.n;
    ck_ok(mla_tok_encode(t, &ids, "", 0, true, &err));
    ck_assert_uint_eq(ids.n, before);
    mla_str_free(&s);
    mla_str_free(&tiny);
    mla_ids_free(&ids);
    mla_tok_free(t);
}
END_TEST

typedef struct {
    const mla_tok *t;
    const mla_jv *texts;
    unsigned char digest[64][32];
} shared;

static void encode_all(void *ctx, size_t begin, size_t end, size_t worker)
{
    shared *x = ctx;
    (void)worker;
    for (size_t i = begin; i < end; i++) {
        mla_ids ids = {0};
        mla_err err;
        for (const mla_jv *k = mla_jv_first(x->texts); k; k = mla_jv_next(k))
            if (mla_tok_encode(x->t, &ids, mla_jv_str(k), strlen(mla_jv_str(k)), true, &err)) ids.n = 0;
        mla_sha256_bytes(ids.id, 4 * ids.n, x->digest[i]);
        mla_ids_free(&ids);
    }
}

START_TEST(threads_share)
{
    mla_err err;
    mla_pool *pool = NULL;
    mla_tok *t = open_json("tokenizer/llama3.json");
    mla_json *texts = read_fixture("texts.json");
    shared x = {.t = t, .texts = mla_jv_get(mla_json_root(texts), "texts")};
    ck_ok(mla_pool_new(&pool, 4, &err));
    mla_par_for(pool, 64, 1, encode_all, &x);
    for (size_t i = 1; i < 64; i++) ck_assert(memcmp(x.digest[0], x.digest[i], 32) == 0);
    mla_pool_free(pool);
    mla_json_free(texts);
    mla_tok_free(t);
}
END_TEST

/* One word of a million letters and one of a million marks: n log n. */
START_TEST(long_words)
{
    mla_err err;
    static const char *const UNIT[] = {"ab", "\u0301", "\n ", "<|"};
    mla_tok *t = open_json("tiny-hybrid/tokenizer.json");
    size_t n = 1000000;
    char *text = mla_alloc(n, 1, 1);
    double start = mla_now();
    for (size_t u = 0; u < sizeof UNIT / sizeof *UNIT; u++) {
        mla_ids ids = {0};
        mla_str back = MLA_STR_MAX(2 * n);
        for (size_t i = 0; i < n; i++) text[i] = UNIT[u][i % 2];
        ck_ok(mla_tok_encode(t, &ids, text, n, false, &err));
        ck_ok(mla_tok_decode(t, &back, ids.id, ids.n, false, &err));
        ck_assert(back.len == n && memcmp(back.s, text, n) == 0);
        mla_ids_free(&ids);
        mla_str_free(&back);
    }
    ck_assert(mla_now() - start < 60);
    mla_free(text);
    mla_tok_free(t);
}
END_TEST

/* Every allocation on the way fails once: an error, nothing leaked, nothing half appended. */
START_TEST(out_of_memory)
{
    mla_err err;
    static const char TEXT[] = "caf\u00e9 cafe\u0301 \xff <|im_end|> word 123";
    bool opened = false, encoded = false;
    for (long k = 0; !encoded; k = k < 200 ? k + 1 : k + 37) {
        mla_tok *t = NULL;
        mla_alloc_fail_after(k);
        mla_status st = mla_tok_open_json(&t, mla_fixture("tokenizer/qwen2.json"), &err);
        mla_alloc_fail_after(-1);
        if (!st) opened = true;
        else ck_assert_msg(st == MLA_ENOMEM && !t, "%ld: %s", k, err.msg);
        mla_tok_free(t);
        encoded = opened;
    }
    mla_tok *t = open_json("tokenizer/qwen2.json");
    encoded = false;
    for (long k = 0; !encoded; k++) {
        mla_ids ids = {0};
        ck_ok(mla_ids_push(&ids, 7, &err));
        mla_alloc_fail_after(k);
        mla_status st = mla_tok_encode(t, &ids, TEXT, sizeof TEXT - 1, true, &err);
        mla_alloc_fail_after(-1);
        encoded = st == MLA_OK;
        ck_assert_msg(encoded ? ids.n > 5 : st == MLA_ENOMEM && ids.n == 1, "%ld: %s", k, err.msg);
        mla_ids_free(&ids);
        ck_assert_int_lt(k, 100);
    }
    mla_tok_free(t);
}
END_TEST

Suite *golden_suite(void)
{
    Suite *s = suite_create("golden");
    TCase *c = tcase_create("golden");
    tcase_add_loop_test(c, golden, 0, N_NAMES);
    tcase_add_test(c, lookups);
    tcase_add_test(c, decoding);
    tcase_add_test(c, threads_share);
    tcase_add_test(c, long_words);
    tcase_add_test(c, out_of_memory);
    suite_add_tcase(s, c);
    return s;
}
