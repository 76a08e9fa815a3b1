/* Folders of golden matrices. */
#include "qfolder.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "build.h"
#include "harness.h"
#include "io/file.h"
#include "tensor/fp.h"

/* What every plain tensor of a folder holds, as far as it reaches. */
static const void *plain_values(void)
{
    static uint16_t v[256 * 512];
    for (size_t i = 0; v[1] == 0 && i < sizeof v / sizeof *v; i++) v[i] = mla_f32_bf16((float)(i % 61) / 64 - 0.5f);
    return v;
}

static mla_tensor *add(qfolder *f, const mla_tensor *t, const char *name)
{
    ck_assert_uint_lt(f->n, QF_TENSORS);
    snprintf(f->name[f->n], sizeof f->name[0], "%s", name);
    f->t[f->n] = *t;
    f->t[f->n].name = f->name[f->n];
    return &f->t[f->n++];
}

void qf_plain(qfolder *f, const char *name, size_t a, size_t b)
{
    size_t n = a * (b ? b : 1);
    ck_assert_uint_le(n, (size_t)256 * 512);
    add(f, &(mla_tensor){.dtype = MLA_BF16, .ndim = b ? 2 : 1, .shape = {a, b}, .data = plain_values(), .nbytes = 2 * n}, name);
}

void qf_quantized(qfolder *f, const char *module, const char *as)
{
    char name[96];
    size_t len = strlen(module), found = 0;
    for (size_t i = 0; i < mla_st_count(f->golden); i++) {
        const mla_tensor *t = mla_st_at(f->golden, i);
        const char *part = t->name + len;
        if (strncmp(t->name, module, len) || *part != '.' || !strcmp(part, ".dequantized")) continue;
        snprintf(name, sizeof name, "%s%s", as, part);
        add(f, t, name);
        found++;
    }
    ck_assert_uint_ge(found, 2);
}

void qf_make(qfolder *f, const char *file, const char *module, size_t out, size_t in)
{
    static const char *const Q[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"};
    mla_err err = {0};
    char path[96], name[96];
    *f = (qfolder){.dir = mla_test_tmpdir(), .out = out, .in = in};
    snprintf(path, sizeof path, "golden-quant/%s.safetensors", file);
    ck_ok(mla_st_open(&f->golden, mla_fixture(path), &err));
    for (size_t i = 0; i < sizeof Q / sizeof *Q; i++) {
        snprintf(name, sizeof name, QF_LAYER "%s", Q[i]);
        qf_quantized(f, module, name);
    }
    qf_plain(f, QF_LAYER "self_attn.o_proj.weight", in, out);
    qf_plain(f, QF_LAYER "mlp.down_proj.weight", in, out);
    qf_plain(f, QF_LAYER "input_layernorm.weight", in, 0);
    qf_plain(f, QF_LAYER "post_attention_layernorm.weight", in, 0);
    qf_plain(f, "model.norm.weight", in, 0);
    qf_plain(f, "model.embed_tokens.weight", out, in);
    qf_plain(f, "lm_head.weight", out, in);
}

void qf_free(qfolder *f)
{
    mla_err err = {0};
    ck_ok(mla_dir_remove(f->dir, &err));
    mla_free(f->dir);
    mla_st_close(f->golden);
}

mla_tensor *qf_find(qfolder *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->t[i].name, name)) return &f->t[i];
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

void qf_drop(qfolder *f, const char *name)
{
    size_t i = (size_t)(qf_find(f, name) - f->t), last = f->n - 1;
    memcpy(f->name[i], f->name[last], sizeof f->name[0]);
    f->t[i] = f->t[last];
    f->t[i].name = f->name[i];
    f->n = last;
}

void qf_write(qfolder *f, const char *quant)
{
    mla_err err = {0};
    static char text[8192];
    ck_ok(mla_st_write(in_dir(f->dir, "model.safetensors"), f->t, f->n, NULL, &err));
    int n = snprintf(text, sizeof text,
                     "{'architectures':['LlamaForCausalLM'],'model_type':'llama','vocab_size':%zu,'hidden_size':%zu,'intermediate_size':%zu,"
                     "'num_hidden_layers':1,'num_attention_heads':2,'num_key_value_heads':2,'head_dim':%zu,'max_position_embeddings':64,"
                     "'tie_word_embeddings':%s%s%s}",
                     f->out, f->in, f->out, f->out / 2, f->tied ? "true" : "false", quant ? ",'quantization_config':" : "", quant ? quant : "");
    ck_assert(n > 0 && (size_t)n < sizeof text);
    for (char *p = text; *p; p++)
        if (*p == '\'') *p = '"';
    put_text(f->dir, "config.json", text);
}

const char *qf_config(const char *file, const char *key, const char *list)
{
    static char ring[4][6000];
    static unsigned at;
    char *out = ring[at++ % 4], path[96], value[600];
    mla_err err = {0};
    mla_json *d, *v;
    mla_str s = MLA_STR_MAX(sizeof ring[0]);
    snprintf(path, sizeof path, "golden-quant/%s.json", file);
    ck_ok(mla_json_read(&d, mla_fixture(path), 1 << 20, &err));
    mla_jv *q = mla_jv_get(mla_json_root(d), "quantization_config");
    ck_assert(mla_jv_is_obj(q));
    if (key) {
        snprintf(value, sizeof value, "%s", list);
        for (char *p = value; *p; p++)
            if (*p == '\'') *p = '"';
        ck_ok(mla_json_parse(&v, value, strlen(value), "list", &err));
        ck_assert(mla_jv_set_copy(q, key, mla_json_root(v)) != NULL);
        mla_json_free(v);
    }
    ck_ok(mla_json_print(&s, q, false, &err));
    snprintf(out, sizeof ring[0], "%s", mla_str_c(&s));
    mla_str_free(&s);
    mla_json_free(d);
    return out;
}
