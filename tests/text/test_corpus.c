/* Corpora: jsonl, id lists, plain text, token files; the bundled text against the library's ids. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/file.h"
#include "io/json.h"
#include "io/sha256.h"
#include "suites.h"
#include "text/corpus.h"

static mla_tok *hybrid(void)
{
    mla_err err;
    mla_tok *t = NULL;
    ck_ok(mla_tok_open_json(&t, mla_fixture("tiny-hybrid/tokenizer.json"), &err));
    return t;
}

static const char *put_text(const char *dir, const char *name, const char *text) { return put_file(dir, name, text, strlen(text)); }

/* A path below the repository: fixtures are in tests/fixtures. */
static const char *bundled(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/../../calib/%s", mla_fixture("."), name);
    return path;
}

START_TEST(bundled_text)
{
    mla_err err;
    mla_tok *t = hybrid();
    mla_json *doc = NULL;
    char *readme = NULL, hex[65];
    size_t size;
    ck_ok(mla_json_read(&doc, mla_fixture("tokenizer/corpus.expected.json"), 1u << 20, &err));
    ck_ok(mla_file_read(&readme, &size, bundled("README.md"), 1u << 20, &err));
    for (const mla_jv *k = mla_jv_first(mla_jv_get(mla_json_root(doc), "files")); k; k = mla_jv_next(k)) {
        mla_corpus c = {0};
        size_t docs, ids, bytes;
        mla_file_digest d = {.path = bundled(mla_jv_str(mla_jv_get(k, "file")))};
        ck_assert(mla_jv_size(mla_jv_get(k, "docs"), &docs) && mla_jv_size(mla_jv_get(k, "ids"), &ids) && mla_jv_size(mla_jv_get(k, "bytes"), &bytes));
        ck_ok(mla_corpus_add(&c, d.path, t, 2048, &err));
        mla_corpus_finish(&c);
        mla_hex(c.sha256, 32, hex);
        ck_assert_str_eq(hex, mla_jv_str(mla_jv_get(k, "sha256")));
        ck_assert(c.docs == docs && c.ids.n == ids && c.bytes == bytes && c.doc_end[docs - 1] == ids);
        /* the README's digests are those of the files */
        ck_ok(mla_sha256_files(&d, 1, NULL, NULL, &err));
        mla_hex(d.digest, 32, hex);
        ck_assert_ptr_nonnull(strstr(readme, hex));
        mla_corpus_free(&c);
    }
    mla_free(readme);
    mla_json_free(doc);
    mla_tok_free(t);
}
END_TEST

START_TEST(kinds_of_files)
{
    mla_err err;
    mla_tok *t = hybrid();
    char *dir = mla_test_tmpdir();
    mla_corpus c = {0}, text = {0};
    ck_ok(mla_corpus_add(&c, put_text(dir, "a.jsonl", "{\"text\":\"Hi <|im_end|>\"}\r\n{\"id\":1,\"text\":\"\"}\n{\"text\":\"\xc3\xa9\"}"), t, 2048, &err));
    ck_assert(c.docs == 3 && c.doc_end[0] == c.doc_end[1] && c.ids.id[c.doc_end[0] - 1] == 2043);
    ck_assert_uint_eq(c.bytes, 13 + 0 + 2);
    ck_ok(mla_corpus_add(&c, put_text(dir, "b.json", "[1, 2, 2047]"), NULL, 2048, &err));
    ck_ok(mla_corpus_add(&c, put_text(dir, "c.json", "{\"ids\": [5]}"), NULL, 2048, &err));
    ck_ok(mla_corpus_add(&c, put_text(dir, "empty.jsonl", ""), t, 2048, &err));
    ck_assert(c.docs == 5 && c.doc_end[4] == c.ids.n && c.ids.id[c.ids.n - 1] == 5 && c.ids.id[c.doc_end[3] - 1] == 2047);
    ck_assert_uint_eq(c.bytes, 15);
    ck_ok(mla_corpus_add(&text, put_text(dir, "t.txt", "{\"text\":\"Hi\"}\nx"), t, 2048, &err));
    ck_ok(mla_corpus_add(&text, put_text(dir, "empty.md", ""), t, 2048, &err));
    ck_assert(text.docs == 2 && text.doc_end[0] == text.ids.n && text.bytes == 15);
    unsigned char d[32];
    mla_tok_sha256(t, d);
    ck_assert(memcmp(d, text.tokenizer_sha256, 32) == 0);
    mla_corpus_free(&c);
    mla_corpus_free(&text);
    mla_tok_free(t);
    drop(dir);
}
END_TEST

START_TEST(refusals)
{
    static const struct {
        const char *name, *text, *message;
    } CASE[] = {
        {"a.jsonl", "{\"text\":\"x\"}\n{\"txt\":\"x\"}\n", "line 2: expected an object with a string \"text\", found absent"},
        {"a.jsonl", "{\"text\":\"x\"}\n\n{\"text\":\"x\"}\n", "line 2"},
        {"a.jsonl", "{\"text\":7}", "line 1: expected an object with a string \"text\", found number"},
        {"a.jsonl", "\"text\"", "found string"},
        {"a.jsonl", "[]", "found array"},
        {"a.jsonl", "{\"text\":\"x\"}\n{\"text\":\"x\"}\n{\"text\":\"x\"", "line 3"},
        {"a.jsonl", "{\"text\":\"\xff\"}", "line 1"},
        {"a.json", "{\"text\":\"x\"}", "found absent"},
        {"a.json", "7", "found number"},
        {"a.json", "[1, 2.5]", "element 1"},
        {"a.json", "[1, \"2\"]", "found string"},
        {"a.json", "[1, 2048]", "element 1: token id 2048, expected 0 to 2047"},
        {"a.json", "[-1]", "token id -1"},
        {"a.json", "[4294967296]", "token id 4294967296"},
        {"a.mlatok", "", "MLATOK1"},
        {"a.mlatok", "MLATOK1\n\1\0\0\0\0\0\0\0", "MLATOK1"}, /* cut by the NUL */
    };
    mla_err err;
    mla_tok *t = hybrid();
    char *dir = mla_test_tmpdir();
    mla_corpus c = {0};
    ck_ok(mla_corpus_add(&c, put_text(dir, "good.json", "[1, 2, 3]"), NULL, 2048, &err));
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        ck_refused(mla_corpus_add(&c, put_text(dir, CASE[i].name, CASE[i].text), t, 2048, &err), MLA_EFORMAT, CASE[i].message);
        ck_assert_ptr_nonnull(strstr(err.msg, CASE[i].name));
        ck_assert(c.docs == 1 && c.ids.n == 3 && c.bytes == 0);
    }
    ck_refused(mla_corpus_add(&c, put_text(dir, "a.jsonl", ""), NULL, 2048, &err), MLA_EINVAL, "tokenizer");
    ck_refused(mla_corpus_add(&c, put_text(dir, "a.txt", "the <|im_end|>"), t, 2043, &err), MLA_EFORMAT, "token id 2043");
    ck_refused(mla_corpus_add(&c, "/no/such/file.jsonl", t, 2048, &err), MLA_EIO, "/no/such/file.jsonl");
    ck_assert(c.docs == 1 && c.ids.n == 3);
    mla_corpus_free(&c);
    mla_tok_free(t);
    drop(dir);
}
END_TEST

/* Random documents, some empty, over frame borders. */
static mla_corpus random_corpus(size_t docs, size_t longest, size_t vocab)
{
    mla_err err;
    mla_corpus c = {0};
    uint64_t draw = 0;
    c.doc_end = mla_realloc(NULL, docs ? docs : 1, sizeof *c.doc_end);
    for (size_t i = 0; i < docs; i++) {
        for (size_t n = mla_rng_below(9, draw++, longest); n; n--) ck_ok(mla_ids_push(&c.ids, (int32_t)mla_rng_below(9, draw++, vocab), &err));
        c.doc_end[c.docs++] = c.ids.n;
    }
    c.bytes = 12345;
    c.tokenizer_sha256[3] = 7;
    mla_corpus_finish(&c);
    return c;
}

static void same(const mla_corpus *a, const mla_corpus *b)
{
    ck_assert(a->docs == b->docs && a->ids.n == b->ids.n && a->bytes == b->bytes);
    ck_assert(a->ids.n == 0 || memcmp(a->ids.id, b->ids.id, 4 * a->ids.n) == 0);
    ck_assert(a->docs == 0 || memcmp(a->doc_end, b->doc_end, a->docs * sizeof *a->doc_end) == 0);
    ck_assert(memcmp(a->tokenizer_sha256, b->tokenizer_sha256, 32) == 0);
}

START_TEST(token_file_round_trip)
{
    static const struct {
        size_t docs, longest;
    } CASE[] = {{0, 1}, {1, 1}, {5, 10}, {300, 4000}, {300000, 3}};
    mla_err err;
    char *dir = mla_test_tmpdir(), path[2][4096];
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        mla_corpus c = random_corpus(CASE[i].docs, CASE[i].longest, 151936), back = {0};
        mla_file_digest d[2];
        for (size_t k = 0; k < 2; k++) {
            snprintf(path[k], sizeof path[k], "%s/%zu-%zu.mlatok", dir, i, k);
            ck_ok(mla_corpus_write(&c, path[k], &err));
            d[k] = (mla_file_digest){.path = path[k]};
        }
        ck_ok(mla_sha256_files(d, 2, NULL, NULL, &err));
        ck_assert(memcmp(d[0].digest, d[1].digest, 32) == 0);
        ck_ok(mla_corpus_add(&back, path[0], NULL, 151936, &err));
        same(&c, &back);
        /* appended to what is there */
        ck_ok(mla_corpus_add(&back, path[0], NULL, 151936, &err));
        ck_assert(back.docs == 2 * c.docs && back.ids.n == 2 * c.ids.n);
        if (c.docs) ck_assert(back.doc_end[c.docs] == c.ids.n + c.doc_end[0] && back.doc_end[2 * c.docs - 1] == 2 * c.ids.n);
        if (c.ids.n > 100) ck_refused(mla_corpus_add(&back, path[0], NULL, 2000, &err), MLA_EFORMAT, "expected 0 to 1999");
        ck_assert(back.docs == 2 * c.docs);
        mla_corpus_free(&c);
        mla_corpus_free(&back);
    }
    drop(dir);
}
END_TEST

/* Every byte damaged and every length cut: refused, or (`bytes` or the tokenizer's digest in the header, a bit that
 * zstd ignores) the same ids. */
START_TEST(token_file_damage)
{
    mla_err err;
    char *dir = mla_test_tmpdir(), path[4096], *data = NULL;
    size_t n, taken = 0;
    mla_corpus c = random_corpus(20, 30, 2048);
    snprintf(path, sizeof path, "%s/good.mlatok", dir);
    ck_ok(mla_corpus_write(&c, path, &err));
    ck_ok(mla_file_read(&data, &n, path, 1u << 20, &err));
    for (size_t i = 0; i < n; i++)
        for (unsigned flip = 1; flip <= 128; flip *= 16) {
            mla_corpus back = {0};
            data[i] ^= (char)flip;
            mla_status st = mla_corpus_add(&back, put_file(dir, "bad.mlatok", data, n), NULL, 2048, &err);
            data[i] ^= (char)flip;
            if (st == MLA_OK) {
                taken++;
                ck_assert_msg(back.docs == c.docs && memcmp(back.ids.id, c.ids.id, 4 * c.ids.n) == 0 &&
                              memcmp(back.doc_end, c.doc_end, c.docs * sizeof *c.doc_end) == 0, "byte %zu of %zu", i, n);
            } else {
                ck_assert_msg(st == MLA_EFORMAT || st == MLA_EUNSUPPORTED, "byte %zu: %s", i, err.msg);
                ck_assert(back.docs == 0 && back.ids.n == 0);
            }
            mla_corpus_free(&back);
        }
    ck_assert_uint_lt(taken, 300); /* 64 digits of the tokenizer and 5 of `bytes`, most flips of which leave no hex digit */
    for (size_t cut = 0; cut < n; cut += 1 + cut / 50) {
        mla_corpus back = {0};
        ck_assert(mla_corpus_add(&back, put_file(dir, "cut.mlatok", data, cut), NULL, 2048, &err) == MLA_EFORMAT);
        mla_corpus_free(&back);
    }
    mla_free(data);
    mla_corpus_free(&c);
    drop(dir);
}
END_TEST

/* Headers that promise more than there is. */
START_TEST(token_file_claims)
{
    static const struct {
        const char *header, *message;
    } CASE[] = {
        {"{}", "schema"},
        {"{\"schema\":\"mla-tokens/2\"}", "mla-tokens/2"},
        {"{\"schema\":\"mla-tokens/1\",\"ids\":-1,\"docs\":0,\"bytes\":0}", "whole numbers"},
        {"{\"schema\":\"mla-tokens/1\",\"ids\":0,\"docs\":0,\"bytes\":0,\"sha256\":\"12\"}", "64 hex digits"},
        {"{\"schema\":\"mla-tokens/1\",\"ids\":9007199254740992,\"docs\":0,\"bytes\":0,\"sha256\":"
         "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"id_frames\":[5],\"doc_frames\":[]}", "34359738368 sizes"},
        {"{\"schema\":\"mla-tokens/1\",\"ids\":7,\"docs\":0,\"bytes\":0,\"sha256\":"
         "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"id_frames\":[5],\"doc_frames\":[]}", "0 bytes left"},
        {"{\"schema\":\"mla-tokens/1\",\"ids\":0,\"docs\":9007199254740992,\"bytes\":0,\"sha256\":"
         "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\",\"id_frames\":[],\"doc_frames\":[]}", "doc_frames"},
    };
    mla_err err;
    char *dir = mla_test_tmpdir();
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        char file[1000] = "MLATOK1\n";
        size_t n = strlen(CASE[i].header);
        mla_corpus c = {0};
        file[8] = (char)n, file[9] = (char)(n >> 8);
        memcpy(file + 16, CASE[i].header, n);
        mla_status st = mla_corpus_add(&c, put_file(dir, "x.mlatok", file, 16 + n), NULL, 2048, &err);
        ck_assert_msg((st == MLA_EFORMAT || st == MLA_EUNSUPPORTED) && strstr(err.msg, CASE[i].message), "%zu: %s", i, err.msg);
        mla_corpus_free(&c);
    }
    drop(dir);
}
END_TEST

Suite *corpus_suite(void)
{
    Suite *s = suite_create("corpus");
    TCase *c = tcase_create("corpus");
    tcase_add_test(c, bundled_text);
    tcase_add_test(c, kinds_of_files);
    tcase_add_test(c, refusals);
    tcase_add_test(c, token_file_round_trip);
    tcase_add_test(c, token_file_damage);
    tcase_add_test(c, token_file_claims);
    suite_add_tcase(s, c);
    return s;
}
