/* A Qwen3.5 folder as llama.cpp's converter would store it: qwen35 tensors, keys and vocabulary, every value in f32 (so that nothing
 * but the conventions can make a difference). The conventions stand in tests/model/to_gguf.c. usage: write_gguf FOLDER OUT.gguf */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "io/ckpt.h"
#include "io/json.h"
#include "model/build.h"
#include "model/model.h"
#include "tensor/fp.h"

enum { NORMAL = 1, CONTROL = 3, UNUSED = 5 };

static void must(mla_status st, const mla_err *err)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "write_gguf: %s\n", err->msg);
    exit(3);
}

static void *room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) exit(3);
    return p;
}

static void tensors(gb *g, const char *folder, const mla_config *c, mla_err *err)
{
    mla_ckpt *ck;
    must(mla_ckpt_open(&ck, folder, err), err);
    for (size_t i = 0; i < mla_ckpt_count(ck); i++) {
        const mla_tensor *t = mla_ckpt_at(ck, i);
        if (mla_starts_with(t->name, "model.visual.")) continue; /* a file of its own there */
        bt *b = bset_add(&g->t, t->shape[0], t->ndim > 1 ? t->shape[1] : 0, t->ndim > 2 ? t->shape[2] : 0, "%s", t->name);
        mla_to_f32(b->v, t->data, t->dtype, b->count);
        gguf_tensor(b, c, false);
    }
    mla_ckpt_close(ck);
}

/* Ids without a token are unused ones, as converters pad a vocabulary. */
static void vocabulary(gb *g, const char *folder, const mla_config *c, mla_err *err)
{
    mla_json *doc;
    const char **token = room(c->vocab, sizeof *token), **merge;
    int *type = room(c->vocab, sizeof *type);
    size_t id, n = 0;
    must(mla_json_read(&doc, in_dir(folder, "tokenizer.json"), 1 << 26, err), err);
    const mla_jv *model = mla_jv_get(mla_json_root(doc), "model"), *merges = mla_jv_get(model, "merges");
    for (const mla_jv *v = mla_jv_first(mla_jv_get(model, "vocab")); v; v = mla_jv_next(v))
        if (mla_jv_size(v, &id) && id < c->vocab) token[id] = mla_jv_key(v), type[id] = NORMAL;
    for (const mla_jv *v = mla_jv_first(mla_jv_get(mla_json_root(doc), "added_tokens")); v; v = mla_jv_next(v))
        if (mla_jv_size(mla_jv_get(v, "id"), &id) && id < c->vocab) token[id] = mla_jv_str(mla_jv_get(v, "content")), type[id] = CONTROL;
    for (id = 0; id < c->vocab; id++) {
        if (token[id]) continue;
        char *pad = room(32, 1);
        snprintf(pad, 32, "[PAD%zu]", id);
        token[id] = pad, type[id] = UNUSED;
    }
    merge = room(mla_jv_len(merges), sizeof *merge);
    for (const mla_jv *v = mla_jv_first(merges); v; v = mla_jv_next(v)) {
        const char *a = mla_jv_str(mla_jv_first(v)), *b = mla_jv_str(mla_jv_next(mla_jv_first(v)));
        char *line = room(strlen(a) + strlen(b) + 2, 1);
        sprintf(line, "%s %s", a, b);
        merge[n++] = line;
    }
    gb_str(g, "tokenizer.ggml.model", "gpt2");
    gb_str(g, "tokenizer.ggml.pre", "qwen35");
    gb_strs(g, "tokenizer.ggml.tokens", token, c->vocab);
    gb_i32s(g, "tokenizer.ggml.token_type", type, c->vocab);
    gb_strs(g, "tokenizer.ggml.merges", merge, n);
    if (c->n_eos) gb_u32(g, "tokenizer.ggml.eos_token_id", (unsigned)c->eos[0]);
    gb_bool(g, "tokenizer.ggml.add_bos_token", false);
    mla_json_free(doc); /* the lists live as long as the process */
}

int main(int argc, char **argv)
{
    mla_err err = {0};
    mla_model *m;
    gb g = {0};
    if (argc != 3) return fprintf(stderr, "usage: write_gguf FOLDER OUT.gguf\n"), 2;
    must(mla_model_open(&m, argv[1], &err), &err);
    const mla_config *c = mla_model_config(m);
    if (!c->norm_plus_one) return fprintf(stderr, "write_gguf: %s: not of the Qwen3.5 family\n", argv[1]), 3;
    gguf_keys(&g, c, "qwen35");
    vocabulary(&g, argv[1], c, &err);
    tensors(&g, argv[1], c, &err);
    gb_write(&g, argv[2]);
    gb_free(&g);
    mla_model_close(m);
    return 0;
}
