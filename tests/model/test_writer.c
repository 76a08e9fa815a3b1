/* Output folders: what is carried, what is regenerated, and that the result opens as what it claims to be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "build.h"
#include "harness.h"
#include "io/file.h"
#include "io/sha256.h"
#include "model/model.h"
#include "model/writer.h"
#include "model_tests.h"

#define VL "model.language_model."
#define FACTORS "mla_factors-00001-of-00001.safetensors"

static bool same_file(const char *a, const char *b)
{
    mla_err err = {0};
    mla_mapped x = {0}, y = {0};
    ck_ok(mla_file_map(&x, a, &err));
    ck_ok(mla_file_map(&y, b, &err));
    bool same = x.size == y.size && (x.size == 0 || !memcmp(x.data, y.data, x.size));
    mla_file_unmap(&x);
    mla_file_unmap(&y);
    return same;
}

static void index_of(const char *dir, const char *const *file, const bset *const *set, size_t n)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_json_new_object(&d, &err));
    mla_jv *w = mla_jv_set_obj(mla_json_root(d), "weight_map");
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < set[k]->n; i++) ck_assert(mla_jv_set_str(w, set[k]->t[i].name, file[k]) != NULL);
    ck_ok(mla_json_write(in_dir(dir, "model.safetensors.index.json"), mla_json_root(d), &err));
    mla_json_free(d);
}

/* A base folder as users have them: two shards (one a link, as in a cache), odd extra files, leftovers. */
static char *base_folder(bset *text, bset *rest)
{
    mla_err err = {0};
    mla_config c;
    char *dir = mla_test_tmpdir(), cwd[1200];
    ck_ok(read_config(&c, "qwen3_5_kv_scheme.json", &err));
    copy_fixture("configs/qwen3_5_kv_scheme.json", dir, "config.json");
    bset_model(text, &c, VL);
    bset_add(text, 1, 0, 0, VL "layers.3.self_attn.k_scale")->v[0] = 0.25f;
    bset_add(text, 1, 0, 0, VL "layers.3.self_attn.v_scale")->v[0] = 0.25f;
    bset_mtp(rest, &c);
    bset_vision(rest);
    ck_ok(mla_dir_make(in_dir(dir, "blobs"), &err));
    bset_write(text, dir, "model-00001-of-00002.safetensors");
    bset_write(rest, in_dir(dir, "blobs"), "x.safetensors");
    snprintf(cwd, sizeof cwd, "%s/blobs/x.safetensors", dir);
    ck_assert_int_eq(symlink("blobs/x.safetensors", in_dir(dir, "model-00002-of-00002.safetensors")), 0);
    const char *file[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    const bset *set[] = {text, rest};
    index_of(dir, file, set, 2);
    bset stale = {0};
    bset_add(&stale, 4, 0, 0, "old.weight");
    bset_write(&stale, dir, "model-old.safetensors");
    bset_free(&stale);
    put_text(dir, "foo_config.json", "{\"kept\": true}\n");
    put_text(dir, "added_tokens.json", "{}");
    put_text(dir, "chat_template.jinja", "{{ messages }}");
    put_text(dir, "mla_receipt.json", "{\"of\": \"the base\"}");
    ck_ok(mla_dir_make(in_dir(dir, "assets"), &err));
    put_text(in_dir(dir, "assets"), "logo.txt", "x");
    mla_config_free(&c);
    return dir;
}

static mla_retrofit_config recipe(const size_t *ranks)
{
    mla_retrofit_config r = {.layout = MLA_LAYOUT_N, .groups = 2, .dtype = MLA_BF16};
    r.rank = mla_alloc(4, 1, sizeof *r.rank);
    memcpy(r.rank, ranks, 4 * sizeof *ranks);
    r.factors_file = mla_strdup(FACTORS);
    r.factors_sha256[0] = 0x5a;
    return r;
}

/* The older spelling says the same as the new one, and whatever contradicts itself is refused. */
START_TEST(older_names)
{
    mla_err err = {0};
    bset text = {0}, rest = {0};
    char *dir = base_folder(&text, &rest);
    mla_model *base;
    mla_json *doc[2];
    mla_config c[2];
    ck_ok(mla_model_open(&base, dir, &err));
    mla_retrofit_config r = recipe((size_t[]){0, 0, 0, 48});
    r.layout = MLA_LAYOUT_P;
    for (int old = 0; old < 2; old++) {
        r.old_names = old;
        ck_ok(mla_writer_config(&doc[old], base, &r, NULL, &err));
        ck_ok(mla_config_from_json(&c[old], mla_json_root(doc[old]), &err));
        ck_assert(c[old].mla.layout == MLA_LAYOUT_P && c[old].mla.groups == 2 && c[old].mla.rank[3] == 48 && c[old].mla.rank[0] == 0);
        ck_assert(c[old].mla.rotary_width == 16 && c[old].mla.factors_sha256[0] == 0x5a && c[old].mla.old_names == old);
        ck_assert(mla_layout_divisors(&c[old], MLA_LAYOUT_P) == c[old].kv_heads);
    }
    ck_assert_str_eq(c[0].architecture, "Qwen3_5MLAForConditionalGeneration");
    ck_assert_str_eq(c[1].architecture, "Qwen3_5MVLAAbsorbedForCausalLM");
    mla_jv *t = mla_writer_text_config(doc[1]);
    ck_assert(!mla_jv_get(t, "mla") && mla_jv_is_obj(mla_jv_get(t, "mvla_ranks")) && mla_jv_get(t, "mvla_latent_groups"));
    mla_config_free(&c[0]), mla_config_free(&c[1]);
    mla_jv *ranks = mla_jv_set_obj(t, "mvla_ranks");
    ck_refused(mla_config_from_json(&c[0], mla_json_root(doc[1]), &err), MLA_EFORMAT, "text_config.mvla_ranks: expected a list of 1 ranks");
    mla_jv_set_size(ranks, "2", 48);
    ck_refused(mla_config_from_json(&c[0], mla_json_root(doc[1]), &err), MLA_EFORMAT, "mvla_ranks: layer 3: expected a multiple of 2");
    mla_jv_set_obj(t, "mla");
    ck_refused(mla_config_from_json(&c[0], mla_json_root(doc[1]), &err), MLA_EFORMAT, "one spelling is expected");
    mla_json_free(doc[0]), mla_json_free(doc[1]);
    mla_model_close(base);
    mla_free(r.rank), mla_free(r.factors_file);
    bset_free(&text), bset_free(&rest);
    mla_free(dir);
}
END_TEST

START_TEST(folder_base)
{
    static const char *const KEPT[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "foo_config.json",
                                       "added_tokens.json", "chat_template.jinja", "assets/logo.txt"};
    static const char *const GONE[] = {"model-old.safetensors", "mla_receipt.json", "config.json", "model.safetensors.index.json"};
    mla_err err = {0};
    bset text = {0}, rest = {0}, extra = {0};
    char *dir = base_folder(&text, &rest), *out = mla_test_tmpdir();
    mla_model *base, *m;
    mla_placed p;
    ck_ok(mla_model_open(&base, dir, &err));
    ck_ok(mla_writer_place_base(base, out, NULL, &p, &err));
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++) ck_assert_msg(same_file(in_dir(dir, KEPT[i]), in_dir(out, KEPT[i])), "%s", KEPT[i]);
    for (size_t i = 0; i < sizeof GONE / sizeof *GONE; i++) ck_assert_msg(!mla_path_exists(in_dir(out, GONE[i])), "%s", GONE[i]);
    ck_assert(p.skipped == 1 && p.written == 0 && p.linked + p.cloned + p.copied == 7); /* and blobs/x.safetensors */
    struct stat a, b;
    ck_assert(stat(in_dir(dir, KEPT[0]), &a) == 0 && stat(in_dir(out, KEPT[0]), &b) == 0);
    ck_assert(p.linked == 0 || (a.st_ino == b.st_ino && a.st_dev == b.st_dev)); /* linked where the file system can */
    ck_ok(mla_writer_place_base(base, out, NULL, &p, &err)); /* again, into the same folder */

    mla_retrofit_config r = recipe((size_t[]){0, 0, 0, 48});
    mla_json *doc;
    ck_ok(mla_writer_config(&doc, base, &r, NULL, &err));
    ck_assert_str_eq(mla_jv_str(mla_jv_first(mla_jv_get(mla_json_root(doc), "architectures"))), "Qwen3_5MLAForConditionalGeneration");
    ck_assert(mla_jv_get(mla_writer_text_config(doc), "mla") != NULL && mla_jv_get(mla_json_root(doc), "mla") == NULL);
    ck_assert(mla_jv_get(mla_json_root(doc), "quantization_config") == NULL); /* described the base's keys and values */
    ck_assert(mla_jv_get(mla_json_root(doc), "vision_config") != NULL);
    ck_ok(mla_json_write(in_dir(out, "config.json"), mla_json_root(doc), &err));
    bset_add(&extra, 2, 24, 56, VL "layers.3.self_attn.mla.encoder.weight");
    bset_add(&extra, 2, 56, 24, VL "layers.3.self_attn.mla.decoder.weight");
    bset_add(&extra, 2, 56, 0, VL "layers.3.self_attn.mla.mean")->dtype = MLA_F32;
    bset_write(&extra, out, FACTORS);
    const char *added[] = {FACTORS};
    ck_ok(mla_writer_index(base, out, added, 1, &err));
    ck_ok(mla_model_open(&m, out, &err));
    const mla_config *c = mla_model_config(m);
    ck_assert(c->mla.layout == MLA_LAYOUT_N && c->mla.groups == 2 && c->mla.rank[3] == 48 && c->mla.rotary_width == 16);
    ck_assert(c->mla.factors_sha256[0] == 0x5a && c->mtp_layers == 1 && !c->kv_scheme);
    mla_factors f;
    ck_ok(mla_model_factors(m, 3, &f, &err));
    ck_assert(f.r == 24 && f.n == 56);
    mla_factors_free(&f);
    same_weights(base, m);
    const mla_ckpt *k = mla_model_ckpt(m);
    ck_assert_uint_eq(mla_ckpt_count(k), text.n + rest.n + extra.n);
    ck_assert(mla_ckpt_find(k, "mtp.fc.weight") && mla_ckpt_find(k, "model.visual.patch_embed.proj.weight"));
    ck_assert_uint_eq(mla_ckpt_stray_count(k), 0);
    mla_json *index;
    size_t total, bytes = 0, n = 0;
    ck_ok(mla_json_read(&index, in_dir(out, "model.safetensors.index.json"), 1 << 20, &err));
    ck_assert(mla_jv_size(mla_jv_get(mla_jv_get(mla_json_root(index), "metadata"), "total_size"), &total));
    for (size_t i = 0; i < mla_ckpt_count(k); i++) bytes += mla_ckpt_at(k, i)->nbytes;
    ck_assert_uint_eq(total, bytes);
    const char *last = "";
    for (const mla_jv *v = mla_jv_first(mla_jv_get(mla_json_root(index), "weight_map")); v; v = mla_jv_next(v), n++) {
        ck_assert_msg(strcmp(last, mla_jv_key(v)) < 0, "%s after %s", mla_jv_key(v), last);
        last = mla_jv_key(v);
    }
    ck_assert_uint_eq(n, mla_ckpt_count(k));
    mla_json_free(index);

    mla_json *again; /* a retrofit is no base */
    ck_refused(mla_writer_config(&again, m, &r, NULL, &err), MLA_EINVAL, "is a retrofit already");
    ck_assert(again == NULL);
    mla_model_close(m);
    mla_json_free(doc);

    r.rank[3] = 47;
    ck_refused(mla_writer_config(&doc, base, &r, NULL, &err), MLA_EINVAL, "layer 3: rank 47, expected a multiple of 2 from 2 to 112");
    ck_ok(mla_writer_config(&doc, base, NULL, NULL, &err)); /* unchanged copy */
    mla_str x = MLA_STR_MAX(1 << 20), y = MLA_STR_MAX(1 << 20);
    ck_ok(mla_json_print(&x, mla_json_root(doc), true, &err));
    ck_ok(mla_json_print(&y, mla_json_root(mla_model_config_json(base)), true, &err));
    ck_assert_str_eq(mla_str_c(&x), mla_str_c(&y));
    mla_str_free(&x);
    mla_str_free(&y);
    mla_json_free(doc);
    mla_free(r.rank);
    mla_free(r.factors_file);
    bset_free(&text);
    bset_free(&rest);
    bset_free(&extra);
    mla_model_close(base);
    ck_ok(mla_dir_remove(dir, &err));
    ck_ok(mla_dir_remove(out, &err));
    mla_free(dir);
    mla_free(out);
}
END_TEST

START_TEST(index_refusals)
{
    mla_err err = {0};
    bset text = {0}, rest = {0}, twice = {0};
    char *dir = base_folder(&text, &rest), *out = mla_test_tmpdir();
    mla_model *base;
    ck_ok(mla_model_open(&base, dir, &err));
    ck_refused(mla_writer_place_base(base, in_dir(out, "absent"), NULL, NULL, &err), MLA_EINVAL, "expected an existing folder");
    const char *added[] = {"more.safetensors", "more.safetensors"};
    ck_refused(mla_writer_index(base, out, NULL, 0, &err), MLA_EIO, "model-00001-of-00002.safetensors"); /* nothing placed yet */
    ck_ok(mla_writer_place_base(base, out, NULL, NULL, &err));
    bset_add(&twice, 4, 0, 0, "mtp.fc.weight");
    bset_write(&twice, out, "more.safetensors");
    ck_refused(mla_writer_index(base, out, added, 1, &err), MLA_EFORMAT, "mtp.fc.weight: in model-00002-of-00002.safetensors and in more.safetensors");
    ck_assert(!mla_path_exists(in_dir(out, "model.safetensors.index.json")));
    strcpy(twice.t[0].name, "new \"quoted\\\" name");
    bset_write(&twice, out, "more.safetensors");
    ck_ok(mla_writer_index(base, out, added, 2, &err)); /* named twice, taken once */
    mla_ckpt *k;
    ck_ok(mla_ckpt_open(&k, out, &err));
    ck_assert(mla_ckpt_find(k, "new \"quoted\\\" name") != NULL);
    mla_ckpt_close(k);
    const char *bad[] = {"../more.safetensors"};
    ck_refused(mla_writer_index(base, out, bad, 1, &err), MLA_EINVAL, "../more.safetensors: no file name within the folder");
    mla_model_close(base);
    bset_free(&text);
    bset_free(&rest);
    bset_free(&twice);
    ck_ok(mla_dir_remove(dir, &err));
    ck_ok(mla_dir_remove(out, &err));
    mla_free(dir);
    mla_free(out);
}
END_TEST

static void same_ids(const mla_tok *a, const mla_tok *b)
{
    mla_err err = {0};
    mla_json *d;
    size_t n = 0;
    ck_assert_uint_eq(mla_tok_vocab_size(a), mla_tok_vocab_size(b));
    ck_ok(mla_json_read(&d, mla_fixture("tokenizer/texts.json"), 1 << 22, &err));
    for (const mla_jv *v = mla_jv_first(mla_jv_get(mla_json_root(d), "texts")); v; v = mla_jv_next(v), n++) {
        const char *hex = mla_jv_str(v);
        size_t len = strlen(hex) / 2;
        char *text = malloc(len + 1);
        for (size_t i = 0; i < len; i++) {
            unsigned byte;
            ck_assert_int_eq(sscanf(hex + 2 * i, "%2x", &byte), 1);
            text[i] = (char)byte;
        }
        for (int special = 0; special < 2; special++) {
            mla_ids x = {0}, y = {0};
            ck_ok(mla_tok_encode(a, &x, text, len, special, &err));
            ck_ok(mla_tok_encode(b, &y, text, len, special, &err));
            ck_assert_msg(x.n == y.n && (x.n == 0 || !memcmp(x.id, y.id, x.n * sizeof *x.id)), "text %zu", n);
            mla_ids_free(&x);
            mla_ids_free(&y);
        }
        free(text);
    }
    ck_assert_uint_ge(n, 50);
    mla_json_free(d);
}

/* A GGUF file with weights of a config and the vocabulary of a fixture. */
static void gguf_with_vocab(const char *path, const char *config, const char *vocab, void (*fill)(gb *, const mla_config *, bset *))
{
    mla_err err = {0};
    mla_config c;
    gb g = {0};
    bset folder = {0};
    mla_gguf *v;
    char name[96];
    snprintf(name, sizeof name, "tokenizer/%s", vocab);
    ck_ok(read_config(&c, config, &err));
    ck_ok(mla_gguf_open(&v, mla_fixture(name), &err));
    c.vocab = mla_gguf_kv_find(v, "tokenizer.ggml.tokens")->n;
    fill(&g, &c, &folder);
    gb_copy_kv(&g, v, "tokenizer.");
    gb_write(&g, path);
    gb_free(&g);
    bset_free(&folder);
    mla_gguf_close(v);
    mla_config_free(&c);
}

static void convert(const char *config, const char *vocab, void (*fill)(gb *, const mla_config *, bset *), mla_dtype dtype)
{
    mla_err err = {0};
    mla_model *g, *m;
    mla_json *doc;
    mla_placed p;
    mla_tok *a, *b;
    char *dir = mla_test_tmpdir(), *out = mla_test_tmpdir();
    const char *path = in_dir(dir, "m.gguf");
    mla_writer_opts o = {.dtype = dtype};
    gguf_with_vocab(path, config, vocab, fill);
    ck_ok(mla_model_open(&g, path, &err));
    ck_ok(mla_writer_place_base(g, out, &o, &p, &err));
    ck_assert_uint_eq(p.written, 4);
    ck_ok(mla_writer_config(&doc, g, NULL, &o, &err));
    ck_ok(mla_json_write(in_dir(out, "config.json"), mla_json_root(doc), &err));
    ck_ok(mla_writer_index(g, out, NULL, 0, &err));
    ck_ok(mla_model_open(&m, out, &err));
    same_weights(g, m); /* every value is one of bf16 */
    const mla_config *x = mla_model_config(g), *y = mla_model_config(m);
    ck_assert(x->vocab == y->vocab && x->hidden == y->hidden && x->layers == y->layers && x->heads == y->heads && x->kv_heads == y->kv_heads);
    ck_assert(x->head_dim == y->head_dim && x->max_pos == y->max_pos && x->rms_eps == y->rms_eps && x->tied == y->tied && x->bos == y->bos);
    ck_assert(x->rope.kind == y->rope.kind && x->rope.rot == y->rope.rot && x->rope.theta == y->rope.theta && x->n_eos == y->n_eos && x->eos[0] == y->eos[0]);
    ck_assert(x->mtp_layers == y->mtp_layers && x->lin_v_heads == y->lin_v_heads && x->rope.mrope_section[0] == y->rope.mrope_section[0]);
    ck_assert(!memcmp(x->rope.inv_freq, y->rope.inv_freq, x->rope.rot / 2 * sizeof(double)));
    ck_assert(y->dtype == dtype);
    ck_ok(mla_model_tokenizer(g, &a, &err));
    ck_ok(mla_model_tokenizer(m, &b, &err));
    same_ids(a, b);
    ck_assert_int_eq(mla_tok_eos(a) >= 0, 1);
    mla_tok_free(a);
    mla_tok_free(b);
    mla_json_free(doc);
    mla_model_close(m);
    mla_model_close(g);
    ck_ok(mla_dir_remove(dir, &err));
    ck_ok(mla_dir_remove(out, &err));
    mla_free(dir);
    mla_free(out);
}

START_TEST(gguf_base_llama)
{
    convert("llama_v5.json", "smollm.gguf", gguf_llama, MLA_F32);
    convert("llama_v5.json", "llama3.gguf", gguf_llama, MLA_BF16);
    convert("llama_v5.json", "qwen2.gguf", gguf_llama, MLA_BF16);
    convert("llama_v5.json", "gpt2.gguf", gguf_llama, MLA_BF16);
}
END_TEST

START_TEST(gguf_base_qwen35) { convert("qwen3_5_text.json", "qwen35.gguf", gguf_qwen35, MLA_F32); }
END_TEST

START_TEST(gguf_retrofit_config)
{
    mla_err err = {0};
    mla_model *g;
    mla_json *doc;
    char *dir = mla_test_tmpdir();
    gguf_with_vocab(in_dir(dir, "m.gguf"), "llama_v5.json", "smollm.gguf", gguf_llama);
    ck_ok(mla_model_open(&g, in_dir(dir, "m.gguf"), &err));
    mla_retrofit_config r = recipe((size_t[]){64, 32, 0, 0});
    r.layout = MLA_LAYOUT_REBUILD;
    ck_ok(mla_writer_config(&doc, g, &r, NULL, &err));
    ck_assert_str_eq(mla_jv_str(mla_jv_first(mla_jv_get(mla_json_root(doc), "architectures"))), "LlamaMLAForCausalLM");
    mla_config c;
    ck_ok(mla_config_from_json(&c, mla_json_root(doc), &err));
    ck_assert(c.mla.layout == MLA_LAYOUT_REBUILD && c.mla.rank[1] == 32 && c.mla.rotary_width == 0 && c.dtype == MLA_BF16);
    mla_config_free(&c);
    mla_json_free(doc);
    mla_free(r.rank);
    mla_free(r.factors_file);
    mla_model_close(g);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

Suite *model_writer_suite(void)
{
    Suite *s = suite_create("writer");
    TCase *t = tcase_create("writer");
    tcase_add_test(t, older_names);
    tcase_add_test(t, folder_base);
    tcase_add_test(t, index_refusals);
    tcase_add_test(t, gguf_base_llama);
    tcase_add_test(t, gguf_base_qwen35);
    tcase_add_test(t, gguf_retrofit_config);
    suite_add_tcase(s, t);
    return s;
}
