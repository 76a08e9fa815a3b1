/* A GGUF vocabulary as tokenizer.json, so that the output folder stands alone; and the small files beside it. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/writer_impl.h"
#include "text/split.h"
#include "text/tokenizer.h"

#define KEY "tokenizer.ggml."
#define TEXT_MAX ((size_t)256 << 20)

typedef struct { /* the parts of tokenizer.json that tokenizer.ggml.pre stands for */
    const char *pre, *pattern; /* pattern NULL: ByteLevel's own (GPT-2) */
    bool digits, nfc, ignore_merges, add_bos;
} kind;

static const kind KINDS[] = {
    {"gpt-2", NULL, false, false, false, false},
    {"gpt2", NULL, false, false, false, false},
    {"smollm", NULL, true, false, false, false},
    {"qwen2", MLA_PAT_QWEN2, false, true, false, false},
    {"qwen35", MLA_PAT_QWEN35, false, true, false, false},
    {"llama-bpe", MLA_PAT_LLAMA3, false, false, true, true},
};

enum { CONTROL = 3, USER = 4 };

static const kind *kind_of(const mla_gguf *g)
{
    const char *s;
    size_t n;
    if (!mla_gguf_str(g, KEY "pre", &s, &n)) return NULL;
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strlen(KINDS[i].pre) == n && !memcmp(KINDS[i].pre, s, n)) return &KINDS[i];
    return NULL;
}

static int32_t type_at(const mla_gguf_kv *types, size_t i)
{
    int32_t v = 1;
    if (types) memcpy(&v, types->data + 4 * i, 4);
    return v;
}

/* Control and user-defined tokens; the former are the special ones. */
static void added_tokens(mla_str *s, const mla_gguf_kv *tokens, const mla_gguf_kv *types)
{
    const char *t;
    size_t n, pos = 0, count = 0;
    mla_str_put(s, "  \"added_tokens\": [");
    for (size_t i = 0; mla_gguf_str_next(tokens, &pos, &t, &n); i++) {
        int32_t type = type_at(types, i);
        if (type != CONTROL && type != USER) continue;
        mla_str_printf(s, "%s\n    {\"id\": %zu, \"content\": ", count++ ? "," : "", i);
        mla_jtext_str(s, t, n);
        mla_str_printf(s, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %s}",
                       type == CONTROL ? "true" : "false");
    }
    mla_str_put(s, count ? "\n  ],\n" : "],\n");
}

static void pre_tokenizer(mla_str *s, const kind *k)
{
    const char *level = k->pattern ? "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}"
                                   : "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}";
    mla_str_printf(s, "  \"normalizer\": %s,\n  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [", k->nfc ? "{\"type\": \"NFC\"}" : "null");
    if (k->digits) mla_str_put(s, "{\"type\": \"Digits\", \"individual_digits\": true}, ");
    if (k->pattern) {
        mla_str_put(s, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        mla_jtext_str(s, k->pattern, strlen(k->pattern));
        mla_str_put(s, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
    }
    mla_str_printf(s, "%s]},\n", level);
}

typedef struct {
    bool add_bos, add_eos;
    size_t bos, eos; /* SIZE_MAX: none */
} ends;

static ends ends_of(const mla_gguf *g, const kind *k)
{
    uint64_t id;
    ends e = {.add_bos = k->add_bos, .bos = SIZE_MAX, .eos = SIZE_MAX};
    (void)mla_gguf_bool(g, KEY "add_bos_token", &e.add_bos);
    (void)mla_gguf_bool(g, KEY "add_eos_token", &e.add_eos);
    if (mla_gguf_u64(g, KEY "bos_token_id", &id)) e.bos = (size_t)id;
    if (mla_gguf_u64(g, KEY "eos_token_id", &id)) e.eos = (size_t)id;
    return e;
}

/* Text of token `id`, borrowed; false when there is none. */
static bool token_text(const mla_gguf_kv *tokens, size_t id, const char **s, size_t *n)
{
    size_t pos = 0;
    for (size_t i = 0; mla_gguf_str_next(tokens, &pos, s, n); i++)
        if (i == id) return true;
    return false;
}

static void template_part(mla_str *s, const mla_gguf_kv *tokens, size_t id, bool with_ids)
{
    const char *t;
    size_t n;
    if (!token_text(tokens, id, &t, &n)) return;
    if (with_ids) {
        mla_jtext_str(s, t, n);
        mla_str_put(s, ": {\"id\": ");
        mla_jtext_str(s, t, n);
        mla_str_printf(s, ", \"ids\": [%zu], \"tokens\": [", id);
        mla_jtext_str(s, t, n);
        mla_str_put(s, "]}");
    } else {
        mla_str_put(s, "{\"SpecialToken\": {\"id\": ");
        mla_jtext_str(s, t, n);
        mla_str_put(s, ", \"type_id\": 0}}");
    }
}

static void post_processor(mla_str *s, const mla_gguf_kv *tokens, const ends *e)
{
    static const char *const LEVEL = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": false, \"use_regex\": true}";
    if (!e->add_bos && !e->add_eos) {
        mla_str_printf(s, "  \"post_processor\": %s,\n", LEVEL);
        return;
    }
    mla_str_printf(s, "  \"post_processor\": {\"type\": \"Sequence\", \"processors\": [%s, {\"type\": \"TemplateProcessing\", \"single\": [", LEVEL);
    if (e->add_bos) template_part(s, tokens, e->bos, false), mla_str_put(s, ", ");
    mla_str_put(s, "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}");
    if (e->add_eos) mla_str_put(s, ", "), template_part(s, tokens, e->eos, false);
    mla_str_put(s, "], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {");
    if (e->add_bos) template_part(s, tokens, e->bos, true);
    if (e->add_eos && !(e->add_bos && e->eos == e->bos)) {
        if (e->add_bos) mla_str_put(s, ", ");
        template_part(s, tokens, e->eos, true);
    }
    mla_str_put(s, "}}]},\n");
}

static void bpe_model(mla_str *s, const mla_gguf *g, const mla_gguf_kv *tokens, const kind *k)
{
    const mla_gguf_kv *merges = mla_gguf_kv_find(g, KEY "merges");
    const char *t;
    size_t n, pos = 0;
    mla_str_printf(s, "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null,"
                      " \"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": %s,\n    \"vocab\": {",
                   k->ignore_merges ? "true" : "false");
    for (size_t i = 0; mla_gguf_str_next(tokens, &pos, &t, &n); i++) {
        mla_str_put(s, i ? ",\n      " : "\n      ");
        mla_jtext_str(s, t, n);
        mla_str_printf(s, ": %zu", i);
    }
    mla_str_put(s, "\n    },\n    \"merges\": [");
    pos = 0;
    for (size_t i = 0; merges && mla_gguf_str_next(merges, &pos, &t, &n); i++) {
        mla_str_put(s, i ? ",\n      " : "\n      ");
        mla_jtext_str(s, t, n);
    }
    mla_str_put(s, "\n    ]}\n}\n");
}

static mla_status tokenizer_json(const mla_gguf *g, const char *out, mla_err *err)
{
    const kind *k = kind_of(g);
    const mla_gguf_kv *tokens = mla_gguf_kv_find(g, KEY "tokens"), *types = mla_gguf_kv_find(g, KEY "token_type");
    if (!k || !tokens) return mla_fail(err, MLA_EUNSUPPORTED, KEY "pre: this pre-tokenizer has no tokenizer.json form here");
    ends e = ends_of(g, k);
    mla_str s = MLA_STR_MAX(TEXT_MAX);
    mla_str_put(&s, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    added_tokens(&s, tokens, types);
    pre_tokenizer(&s, k);
    post_processor(&s, tokens, &e);
    mla_str_put(&s, "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n");
    bpe_model(&s, g, tokens, k);
    mla_status st = mla_writer_text(out, "tokenizer.json", &s, err);
    mla_str_free(&s);
    return st;
}

static bool put_token(mla_jv *o, const char *key, const mla_gguf_kv *tokens, size_t id)
{
    const char *t;
    size_t n;
    if (!token_text(tokens, id, &t, &n)) return true;
    char *copy = mla_strndup(t, n);
    bool ok = copy && mla_jv_set_str(o, key, copy);
    mla_free(copy);
    return ok;
}

/* tokenizer_config.json with the chat template that the file carries, and generation_config.json. */
static mla_status small_files(const mla_model *base, const char *out, mla_err *err)
{
    const mla_gguf *g = mla_model_gguf(base);
    const mla_config *c = mla_model_config(base);
    const mla_gguf_kv *tokens = mla_gguf_kv_find(g, KEY "tokens");
    const char *t;
    size_t n;
    mla_json *doc = NULL, *gen = NULL;
    mla_status st = mla_json_new_object(&doc, err);
    if (st == MLA_OK) st = mla_json_new_object(&gen, err);
    if (st != MLA_OK) goto done;
    mla_jv *o = mla_json_root(doc), *q = mla_json_root(gen), *l = NULL;
    bool ok = mla_jv_set_str(o, "tokenizer_class", "PreTrainedTokenizerFast") && mla_jv_set_bool(o, "clean_up_tokenization_spaces", false) &&
              mla_jv_set_size(o, "model_max_length", c->max_pos) && (c->bos < 0 || put_token(o, "bos_token", tokens, (size_t)c->bos)) &&
              (!c->n_eos || put_token(o, "eos_token", tokens, (size_t)c->eos[0]));
    if (ok && mla_gguf_str(g, "tokenizer.chat_template", &t, &n) && mla_utf8_valid(t, n)) {
        char *copy = mla_strndup(t, n);
        ok = copy && mla_jv_set_str(o, "chat_template", copy);
        mla_free(copy);
    }
    ok = ok && (c->bos < 0 || mla_jv_set_size(q, "bos_token_id", (size_t)c->bos)) && (!c->n_eos || (l = mla_jv_set_arr(q, "eos_token_id")));
    for (size_t i = 0; ok && i < c->n_eos; i++) ok = mla_jv_add_size(l, (size_t)c->eos[i]) != NULL;
    if (!ok) st = mla_fail(err, MLA_ENOMEM, "tokenizer_config.json");
    if (st == MLA_OK) st = mla_writer_json(out, "tokenizer_config.json", o, err);
    if (st == MLA_OK) st = mla_writer_json(out, "generation_config.json", q, err);
done:
    mla_json_free(doc);
    mla_json_free(gen);
    return st;
}

mla_status mla_writer_gguf_tokenizer(const mla_model *base, const char *out, size_t *files, mla_err *err)
{
    mla_tok *from = NULL, *back = NULL;
    mla_status st = mla_model_tokenizer(base, &from, err); /* checks every token and merge before they are copied */
    if (st == MLA_OK) st = tokenizer_json(mla_model_gguf(base), out, err);
    if (st == MLA_OK) {
        char *path = mla_path_join(out, "tokenizer.json");
        st = path ? mla_tok_open_json(&back, path, err) : mla_fail(err, MLA_ENOMEM, "path");
        mla_free(path);
    }
    if (st == MLA_OK && mla_tok_vocab_size(back) != mla_tok_vocab_size(from))
        st = mla_fail(err, MLA_EINTERNAL, "tokenizer.json: %zu ids written, %zu in the GGUF vocabulary", mla_tok_vocab_size(back), mla_tok_vocab_size(from));
    if (st == MLA_OK) st = small_files(base, out, err);
    mla_tok_free(from);
    mla_tok_free(back);
    if (st == MLA_OK) *files += 3;
    return st;
}
