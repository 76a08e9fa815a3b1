/* Constructs that are not known and files that are wrong: each refused with a message that names it. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/gguf.h"
#include "suites.h"
#include "text/added.h"
#include "text/tokenizer.h"

static const char PRE[] = "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},";
static const char DEC[] = "\"decoder\":{\"type\":\"ByteLevel\"},";
static const char MODEL[] = "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}";

/* The status of opening the text as tokenizer.json; encodes "ab" when it opens. */
static mla_status open_text(const char *text, mla_err *err)
{
    char *dir = mla_test_tmpdir();
    mla_tok *t = NULL;
    mla_ids ids = {0};
    mla_status st = mla_tok_open_json(&t, put_file(dir, "tokenizer.json", text, strlen(text)), err);
    if (!st) st = mla_tok_encode(t, &ids, "ab", 2, true, err);
    mla_ids_free(&ids);
    mla_tok_free(t);
    drop(dir);
    return st;
}

static mla_status open_parts(const char *extra, const char *pre, const char *dec, const char *model, mla_err *err)
{
    char text[4000];
    snprintf(text, sizeof text, "{%s%s%s%s}", extra, pre, dec, model);
    return open_text(text, err);
}

START_TEST(minimal_opens)
{
    mla_err err;
    ck_ok(open_parts("", PRE, DEC, MODEL, &err));
    ck_ok(open_parts("\"normalizer\":null,\"post_processor\":null,\"truncation\":null,\"padding\":null,\"added_tokens\":[],", PRE, DEC, MODEL, &err));
    ck_ok(open_parts("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]},", PRE, DEC, MODEL, &err));
    ck_ok(open_parts("", PRE, DEC, "\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}", &err)); /* as old as the type key */
}
END_TEST

static const struct {
    const char *extra, *message;
} COMPONENT[] = {
    {"\"normalizer\":{\"type\":\"NFKC\"},", "normalizer \"NFKC\""},
    {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]},", "normalizer \"Lowercase\""},
    {"\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\",\"normalizers\":[]}]},", "normalizer \"Sequence\""},
    {"\"normalizer\":\"NFC\",", "found string"},
    {"\"post_processor\":{\"type\":\"BertProcessing\"},", "post_processor \"BertProcessing\""},
    {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}},", "sequence A"},
    {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}],\"special_tokens\":{}},", "sequence A"},
    {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}},", "without ids"},
    {"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}},{\"Sequence\":{\"id\":\"A\"}}],"
     "\"special_tokens\":{\"x\":{\"ids\":[3]}}},", "\"x\" is not in the vocabulary"},
    {"\"truncation\":{\"max_length\":5},", "truncation"},
    {"\"padding\":{},", "padding"},
    {"\"added_tokens\":{},", "added_tokens"},
    {"\"added_tokens\":[{\"id\":3}],", "content and id"},
    {"\"added_tokens\":[{\"id\":9,\"content\":\"x\"}],", "expected the next free one, 3"},
    {"\"added_tokens\":[{\"id\":1,\"content\":\"x\"}],", "next free"},
    {"\"added_tokens\":[{\"id\":1,\"content\":\"a\"}],", "the vocabulary has it at 0"},
    {"\"added_tokens\":[{\"id\":-1,\"content\":\"x\"}],", "content and id"},
    {"\"added_tokens\":[{\"id\":4000000000,\"content\":\"x\"}],", "content and id"},
    {"\"added_tokens\":[{\"id\":3,\"content\":\"\"}],", "empty"},
    {"\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"special\":1}],", "special: expected a boolean"},
    {"\"added_tokens\":[{\"id\":0,\"content\":\"a\"},{\"id\":0,\"content\":\"a\"}],", "given twice"},
};

START_TEST(components)
{
    mla_err err;
    mla_status st = open_parts(COMPONENT[_i].extra, PRE, DEC, MODEL, &err);
    ck_assert_msg(st == MLA_EUNSUPPORTED || st == MLA_EFORMAT, "%s was taken", COMPONENT[_i].extra);
    ck_assert_msg(strstr(err.msg, COMPONENT[_i].message) != NULL, "\"%s\" lacks \"%s\"", err.msg, COMPONENT[_i].message);
    ck_assert_ptr_nonnull(strstr(err.msg, "tokenizer.json"));
}
END_TEST

static const struct {
    const char *pre, *message;
} PRE_STEP[] = {
    {"", "no ByteLevel"},
    {"\"pre_tokenizer\":null,", "no ByteLevel"},
    {"\"pre_tokenizer\":{\"type\":\"Whitespace\"},", "pre_tokenizer \"Whitespace\""},
    {"\"pre_tokenizer\":{\"type\":\"Metaspace\"},", "pre_tokenizer \"Metaspace\""},
    {"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},", "add_prefix_space: true"},
    {"\"pre_tokenizer\":{\"type\":\"ByteLevel\"},", "add_prefix_space: true"},
    {"\"pre_tokenizer\":{\"type\":\"Digits\",\"individual_digits\":true},", "no ByteLevel"},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[]},", "no ByteLevel"},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":false},{\"type\":\"Digits\"}]},", "behind ByteLevel"},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Sequence\",\"pretokenizers\":[]}]},", "pre_tokenizer \"Sequence\""},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\"}]},", "no Regex"},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\" \"},\"behavior\":\"Removed\"}]},", "\"Removed\""},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\" \"},\"behavior\":\"Isolated\",\"invert\":true}]},", "invert: true"},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Han}\"},\"behavior\":\"Isolated\"}]},", "\\p{Han}"},
    {"\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Isolated\"}]},", "pattern, byte 2"},
};

START_TEST(pre_steps)
{
    mla_err err;
    mla_status st = open_parts("", PRE_STEP[_i].pre, DEC, MODEL, &err);
    ck_assert_msg(st == MLA_EUNSUPPORTED || st == MLA_EFORMAT, "%s was taken", PRE_STEP[_i].pre);
    ck_assert_msg(strstr(err.msg, PRE_STEP[_i].message) != NULL, "\"%s\" lacks \"%s\"", err.msg, PRE_STEP[_i].message);
}
END_TEST

static const struct {
    const char *model, *message;
} MODELS[] = {
    {"\"model\":null", "model"},
    {"\"model\":{\"type\":\"Unigram\",\"vocab\":[]}", "model \"Unigram\""},
    {"\"model\":{\"type\":\"WordPiece\",\"vocab\":{},\"merges\":[]}", "model \"WordPiece\""},
    {"\"model\":{\"vocab\":{}}", "model"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}", "found array"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"byte_fallback\":true}", "byte_fallback: true"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"dropout\":0.1}", "dropout"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}", "end_of_word_suffix"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[],\"continuing_subword_prefix\":\"##\"}", "continuing_subword_prefix"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"<unk>\"}", "unk_token \"<unk>\""},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}", "token \"a\""},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", "token \"a\""},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}", "4194304"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":9007199254740992},\"merges\":[]}", "token \"a\""},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}", "belongs to another"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}", "duplicate"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}", "merge 0, \"a\" + \"b\": their concatenation"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"ab\":1},\"merges\":[\"a b\"]}", "the right half"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"b\":0,\"ab\":1},\"merges\":[[\"a\",\"b\"]]}", "the left half"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}", "one space"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a  b\"]}", "one space"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}", "merge 0: expected"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b\",\"c\"]]}", "merge 0: expected"},
    {"\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}", "found number"},
};

START_TEST(models)
{
    mla_err err;
    mla_status st = open_parts("", PRE, DEC, MODELS[_i].model, &err);
    ck_assert_msg(st == MLA_EUNSUPPORTED || st == MLA_EFORMAT, "%s was taken", MODELS[_i].model);
    ck_assert_msg(strstr(err.msg, MODELS[_i].message) != NULL, "\"%s\" lacks \"%s\"", err.msg, MODELS[_i].message);
}
END_TEST

START_TEST(other_files)
{
    mla_err err;
    mla_tok *t = NULL;
    ck_refused(open_parts("", PRE, "\"decoder\":{\"type\":\"Metaspace\"},", MODEL, &err), MLA_EUNSUPPORTED, "decoder \"Metaspace\"");
    ck_refused(open_parts("", PRE, "", MODEL, &err), MLA_EUNSUPPORTED, "decoder");
    ck_refused(open_text("[]", &err), MLA_EFORMAT, "found array");
    ck_refused(open_text("", &err), MLA_EFORMAT, "tokenizer.json");
    ck_refused(open_text("{\"a\":1", &err), MLA_EFORMAT, "tokenizer.json");
    ck_refused(mla_tok_open_json(&t, "/no/such/tokenizer.json", &err), MLA_EIO, "/no/such/tokenizer.json");
    ck_assert_ptr_null(t);
    char text[MLA_ADDED_MAX + 200], *p = text + snprintf(text, sizeof text, "\"added_tokens\":[{\"id\":3,\"content\":\"");
    memset(p, 'x', MLA_ADDED_MAX + 1);
    memcpy(p + MLA_ADDED_MAX + 1, "\"}],", 5);
    mla_str all = MLA_STR_MAX(10000);
    mla_str_printf(&all, "{%s%s%s%s}", text, PRE, DEC, MODEL);
    ck_refused(open_text(mla_str_c(&all), &err), MLA_EUNSUPPORTED, "4097 bytes");
    mla_str_free(&all);
}
END_TEST

/* A GGUF file of metadata only, put together by hand. */
typedef struct {
    mla_str b;
    unsigned n;
} gguf_text;

static void put_le(gguf_text *g, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        char c = (char)(v >> 8 * i);
        mla_str_putn(&g->b, &c, 1);
    }
}

static void put_string(gguf_text *g, const char *s)
{
    put_le(g, strlen(s), 8);
    mla_str_put(&g->b, s);
}

static void put_key(gguf_text *g, const char *key, unsigned type)
{
    put_string(g, key);
    put_le(g, type, 4);
    g->n++;
}

static void put_kv_string(gguf_text *g, const char *key, const char *s)
{
    put_key(g, key, MLA_GV_STRING);
    put_string(g, s);
}

static void put_strings(gguf_text *g, const char *key, const char *const *s)
{
    size_t n = 0;
    while (s[n]) n++;
    put_key(g, key, MLA_GV_ARRAY);
    put_le(g, MLA_GV_STRING, 4);
    put_le(g, n, 8);
    for (size_t i = 0; i < n; i++) put_string(g, s[i]);
}

static mla_status open_gguf_text(const gguf_text *g, mla_err *err)
{
    char *dir = mla_test_tmpdir();
    gguf_text all = {.b = MLA_STR_MAX(100000)};
    mla_str_put(&all.b, "GGUF");
    put_le(&all, 3, 4);
    put_le(&all, 0, 8);
    put_le(&all, g->n, 8);
    mla_str_putn(&all.b, mla_str_c(&g->b), g->b.len);
    mla_gguf *f = NULL;
    mla_tok *t = NULL;
    mla_status st = mla_gguf_open(&f, put_file(dir, "v.gguf", all.b.s, all.b.len), err);
    ck_assert_msg(st == MLA_OK, "%s", err->msg);
    st = mla_tok_open_gguf(&t, f, err);
    mla_tok_free(t);
    mla_gguf_close(f);
    mla_str_free(&all.b);
    drop(dir);
    return st;
}

static const char *const TOKENS[] = {"a", "b", "ab", "<s>", NULL}, *const MERGES[] = {"a b", NULL};
#define G "tokenizer.ggml."

/* model, pre, tokens and merges; NULL leaves one out. */
static gguf_text vocabulary(const char *model, const char *pre, const char *const *tokens, const char *const *merges)
{
    gguf_text g = {.b = MLA_STR_MAX(100000)};
    if (model) put_kv_string(&g, G "model", model);
    if (pre) put_kv_string(&g, G "pre", pre);
    if (tokens) put_strings(&g, G "tokens", tokens);
    if (merges) put_strings(&g, G "merges", merges);
    return g;
}

static void refused(gguf_text g, mla_status want, const char *message)
{
    mla_err err;
    ck_refused(open_gguf_text(&g, &err), want, message);
    mla_str_free(&g.b);
}

START_TEST(gguf_files)
{
    mla_err err;
    gguf_text g = vocabulary("gpt2", "smollm", TOKENS, MERGES);
    ck_ok(open_gguf_text(&g, &err));
    mla_str_free(&g.b);
    refused(vocabulary(NULL, "smollm", TOKENS, MERGES), MLA_EFORMAT, G "model");
    refused(vocabulary("llama", "smollm", TOKENS, MERGES), MLA_EUNSUPPORTED, "\"llama\"");
    refused(vocabulary("gpt2", NULL, TOKENS, MERGES), MLA_EUNSUPPORTED, G "pre");
    refused(vocabulary("gpt2", "deepseek-llm", TOKENS, MERGES), MLA_EUNSUPPORTED, "\"deepseek-llm\"");
    refused(vocabulary("gpt2", "smollm", NULL, MERGES), MLA_EFORMAT, G "tokens: absent");
    refused(vocabulary("gpt2", "smollm", TOKENS, NULL), MLA_EFORMAT, G "merges: absent");
    static const char *const TWICE[] = {"a", "a", NULL}, *const BROKEN[] = {"a", "\xff", NULL}, *const NO_MERGE[] = {"a c", NULL};
    refused(vocabulary("gpt2", "smollm", TWICE, MERGES), MLA_EFORMAT, "twice");
    refused(vocabulary("gpt2", "smollm", BROKEN, MERGES), MLA_EFORMAT, "token 1 is no UTF-8");
    refused(vocabulary("gpt2", "smollm", TOKENS, NO_MERGE), MLA_EFORMAT, "the right half");
    /* llama-bpe adds BOS unless told otherwise, and then needs its id */
    refused(vocabulary("gpt2", "llama-bpe", TOKENS, MERGES), MLA_EFORMAT, "add_bos_token");
}
END_TEST

START_TEST(gguf_ids_and_types)
{
    static const struct {
        const char *key;
        unsigned type;
        uint64_t value;
        size_t bytes;
        const char *message; /* NULL: fine */
    } CASE[] = {
        {G "eos_token_id", MLA_GV_U32, 3, 4, NULL},
        {G "eos_token_id", MLA_GV_U32, 4, 4, "eos_token_id"},
        {G "bos_token_id", MLA_GV_I32, 0xffffffff, 4, "bos_token_id"},
        {G "add_bos_token", MLA_GV_BOOL, 0, 1, NULL},
        {G "add_bos_token", MLA_GV_BOOL, 1, 1, "the token's id is absent"},
        {G "add_eos_token", MLA_GV_BOOL, 1, 1, "the token's id is absent"},
        {G "add_eos_token", MLA_GV_U32, 1, 4, "no boolean"},
        {G "token_type", MLA_GV_U32, 1, 4, "token_type"},
    };
    mla_err err;
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        gguf_text g = vocabulary("gpt2", "qwen2", TOKENS, MERGES);
        put_key(&g, CASE[i].key, CASE[i].type);
        put_le(&g, CASE[i].value, CASE[i].bytes);
        mla_status st = open_gguf_text(&g, &err);
        if (!CASE[i].message) ck_assert_msg(st == MLA_OK, "%zu: %s", i, err.msg);
        else ck_assert_msg(st == MLA_EFORMAT && strstr(err.msg, CASE[i].message), "%zu: %s", i, err.msg);
        mla_str_free(&g.b);
    }
    for (unsigned n = 3; n <= 5; n++)
        for (int32_t type = 0; type <= 7; type++) {
            gguf_text g = vocabulary("gpt2", "qwen2", TOKENS, MERGES);
            put_key(&g, G "token_type", MLA_GV_ARRAY);
            put_le(&g, MLA_GV_I32, 4);
            put_le(&g, n, 8);
            for (unsigned i = 0; i < n; i++) put_le(&g, i == 2 ? (uint32_t)type : 1, 4);
            bool good = n == 4 && type >= 1 && type <= 6;
            mla_status st = open_gguf_text(&g, &err);
            ck_assert_msg(good ? st == MLA_OK : st == MLA_EFORMAT && strstr(err.msg, "token_type"), "%u, %d", n, (int)type);
            mla_str_free(&g.b);
        }
}
END_TEST

Suite *refusal_suite(void)
{
    Suite *s = suite_create("refusals");
    TCase *c = tcase_create("refusals");
    tcase_add_test(c, minimal_opens);
    tcase_add_loop_test(c, components, 0, sizeof COMPONENT / sizeof *COMPONENT);
    tcase_add_loop_test(c, pre_steps, 0, sizeof PRE_STEP / sizeof *PRE_STEP);
    tcase_add_loop_test(c, models, 0, sizeof MODELS / sizeof *MODELS);
    tcase_add_test(c, other_files);
    tcase_add_test(c, gguf_files);
    tcase_add_test(c, gguf_ids_and_types);
    suite_add_tcase(s, c);
    return s;
}
