/* Opening folders: every family binds, values come out in logical order, and each defect is named. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "build.h"
#include "harness.h"
#include "model/model.h"
#include "model_tests.h"

START_TEST(opens_the_hybrid)
{
    mla_err err = {0};
    mla_model *m = NULL;
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    const mla_config *c = mla_model_config(m);
    ck_assert_int_eq(c->family, MLA_FAM_QWEN3_5);
    ck_assert_uint_eq(c->layers, 8);
    ck_assert_uint_eq(mla_config_full_layers(c), 4);
    ck_assert_uint_eq(c->rope.rot, 8);
    ck_assert_uint_eq(c->mtp_layers, 1);
    ck_assert(c->n_eos == 1 && c->eos[0] == 2041);
    ck_assert_uint_eq(mla_model_note_count(m), 0);
    ck_assert_str_eq(mla_model_prefix(m), "model.language_model.");
    ck_assert(mla_model_has(m, MLA_W_Q, 1) && !mla_model_has(m, MLA_W_Q, 0) && mla_model_has(m, MLA_W_GDN_QKV, 0));
    ck_assert(mla_model_has(m, MLA_W_Q, MLA_MTP(0)) && !mla_model_has(m, MLA_W_Q, MLA_MTP(1)) && !mla_model_has(m, MLA_W_Q, 8));
    const mla_tensor *w = mla_ckpt_find(mla_model_ckpt(m), "model.language_model.layers.1.input_layernorm.weight");
    float want[256], *got;
    ck_assert(w && mla_to_f32(want, w->data, w->dtype, 256));
    ck_ok(mla_model_vec(m, MLA_W_INPUT_NORM, 1, 256, &got, &err));
    for (size_t i = 0; i < 256; i++) ck_assert(got[i] == 1 + want[i]); /* zero-centred */
    mla_free(got);
    w = mla_ckpt_find(mla_model_ckpt(m), "model.language_model.layers.0.linear_attn.norm.weight");
    ck_assert(w && mla_to_f32(want, w->data, w->dtype, 32));
    ck_ok(mla_model_vec(m, MLA_W_GDN_NORM, 0, 32, &got, &err));
    for (size_t i = 0; i < 32; i++) ck_assert(got[i] == want[i]); /* plain */
    mla_free(got);
    uint64_t bytes = 0;
    for (size_t i = 0; i < mla_ckpt_count(mla_model_ckpt(m)); i++) bytes += mla_ckpt_at(mla_model_ckpt(m), i)->nbytes;
    ck_assert_uint_eq(mla_model_stored_bytes(m), bytes);
    mla_tok *tok;
    ck_ok(mla_model_tokenizer(m, &tok, &err));
    ck_assert_uint_le(mla_tok_vocab_size(tok), 2048);
    mla_tok_free(tok);
    mla_model_close(m);
}
END_TEST

/* What a device reads from the file in pieces is what rows are filled with. */
START_TEST(stored_matrices_are_read_from_their_file)
{
    enum { PIECE = 10007 };
    mla_err err = {0};
    mla_model *m = NULL;
    size_t seen = 0;
    unsigned char *room = aligned_alloc(4096, (PIECE + MLA_CODED_ROOM + 4095) / 4096 * 4096);
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    for (int k = 0; k < MLA_W_N; k++)
        for (size_t l = 0; l < 2; l++) {
            mla_mat w;
            mla_coded c;
            bool fits;
            if (!mla_model_has(m, (mla_wkind)k, l)) continue;
            ck_ok(mla_model_mat(m, (mla_wkind)k, l, &w, &err));
            ck_ok(mla_mat_coded(&w, &c, &fits, &err));
            if (!fits || c.code != MLA_CODE_BF16) continue;
            size_t row = c.in * 2, all = c.out * row;
            unsigned char *want = mla_alloc_raw(all, 1, 1);
            ck_assert((c.read != NULL) == (c.row_of == NULL));
            if (c.read) (void)c.near(&c); /* the machine's business */
            for (size_t r = 0; r < c.out; r++) ck_ok(c.fill(&c, r, &(mla_coded_row){.code = want + r * row}, &err));
            for (size_t at = 0; c.read && at < all; at += PIECE) {
                const void *from;
                size_t n = all - at < PIECE ? all - at : PIECE;
                ck_ok(c.read(&c, at, n, room, &from, &err));
                ck_assert(!memcmp(from, want + at, n));
                seen++;
            }
            mla_free(want);
            mla_coded_free(&c);
        }
    ck_assert_uint_gt(seen, 50);
    free(room);
    mla_model_close(m);
}
END_TEST

/* The config a fixture name holds, its folder with tensors, ready to be broken. */
typedef struct {
    char *dir;
    mla_config c;
    bset s;
    const char *fixture;
} made;

static made make(const char *fixture)
{
    mla_err err = {0};
    made m = {.dir = mla_test_tmpdir(), .fixture = fixture};
    char name[96];
    ck_ok(read_config(&m.c, fixture, &err));
    snprintf(name, sizeof name, "configs/%s", fixture);
    copy_fixture(name, m.dir, "config.json");
    bset_model(&m.s, &m.c, m.c.has_vision ? "model.language_model." : "model.");
    if (m.c.mtp_layers) bset_mtp(&m.s, &m.c);
    if (m.c.has_vision) bset_vision(&m.s);
    return m;
}

static void unmake(made *m)
{
    mla_err err = {0};
    ck_ok(mla_dir_remove(m->dir, &err));
    mla_free(m->dir);
    mla_config_free(&m->c);
    bset_free(&m->s);
}

/* Every stored matrix of `plain` names comes out as stored. */
static void same_rows(const mla_model *m, const bset *s, mla_wkind k, size_t layer, const char *name, float add)
{
    mla_err err = {0};
    mla_mat w;
    const bt *t = bset_find(s, name);
    ck_ok(mla_model_mat(m, k, layer, &w, &err));
    ck_assert_uint_eq(w.out * w.in, t->count);
    float *x = malloc(t->count * sizeof *x);
    ck_ok(mla_mat_rows(&w, 0, w.out, x, &err));
    for (size_t i = 0; i < t->count; i++) ck_assert_msg(x[i] == t->v[i] + add, "%s: value %zu", name, i);
    if (w.out > 2) { /* an inner window */
        ck_ok(mla_mat_rows(&w, 1, w.out - 2, x, &err));
        for (size_t i = 0; i < (w.out - 2) * w.in; i++) ck_assert(x[i] == t->v[w.in + i] + add);
    }
    free(x);
}

START_TEST(every_family_binds)
{
    static const char *const FIXTURE[] = {"qwen3_5_vl.json", "qwen3_5_text.json", "qwen3_8_legacy.json", "qwen3_next_dense.json",
                                          "llama_v5.json", "deepseek_v3_dense.json"};
    for (size_t i = 0; i < sizeof FIXTURE / sizeof *FIXTURE; i++) {
        mla_err err = {0};
        mla_model *m = NULL;
        made f = make(FIXTURE[i]);
        bset_write(&f.s, f.dir, "model.safetensors");
        ck_ok(mla_model_open(&m, f.dir, &err));
        bool vl = f.c.has_vision;
        char name[128];
        snprintf(name, sizeof name, "%slayers.1.mlp.down_proj.weight", vl ? "model.language_model." : "model.");
        same_rows(m, &f.s, MLA_W_DOWN, 1, name, 0);
        snprintf(name, sizeof name, "%snorm.weight", vl ? "model.language_model." : "model.");
        same_rows(m, &f.s, MLA_W_FINAL_NORM, 0, name, f.c.norm_plus_one ? 1 : 0);
        ck_assert(mla_model_has(m, MLA_W_LM_HEAD, 0));
        mla_str n = MLA_STR_MAX(200);
        ck_ok(mla_model_name(m, MLA_W_LM_HEAD, 0, &n, &err));
        ck_assert_str_eq(mla_str_c(&n), f.c.tied ? "model.embed_tokens.weight" : "lm_head.weight");
        mla_str_free(&n);
        uint64_t params = 0;
        for (size_t k = 0; k < f.s.n; k++)
            if (strncmp(f.s.t[k].name, "mtp.", 4) && strncmp(f.s.t[k].name, "model.visual.", 13)) params += f.s.t[k].count;
        ck_assert_uint_eq(mla_model_trunk_params(m), params);
        ck_assert_uint_eq(mla_model_note_count(m), 0);
        mla_model_close(m);
        unmake(&f);
    }
}
END_TEST

START_TEST(published_variants)
{
    /* the same tensors, other stored types; head_dim apart from hidden / heads; both DeepSeek query forms */
    mla_err err = {0};
    mla_model *m = NULL;
    made f = make("llama_v5.json");
    for (size_t i = 0; i < f.s.n; i++) f.s.t[i].dtype = i % 3 == 0 ? MLA_F32 : i % 3 == 1 ? MLA_F16 : MLA_BF16;
    bset_add(&f.s, 8, 0, 0, "model.layers.0.self_attn.rotary_emb.inv_freq");
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_ok(mla_model_open(&m, f.dir, &err));
    same_rows(m, &f.s, MLA_W_Q, 0, "model.layers.0.self_attn.q_proj.weight", 0);
    same_rows(m, &f.s, MLA_W_V_BIAS, 1, "model.layers.1.self_attn.v_proj.bias", 0);
    same_rows(m, &f.s, MLA_W_UP_BIAS, 0, "model.layers.0.mlp.up_proj.bias", 0);
    mla_model_close(m);
    unmake(&f);

    f = make("deepseek_v3_dense.json");
    f.c.q_lora_rank = 0;
    bset_free(&f.s);
    bset_model(&f.s, &f.c, "model.");
    bset_add(&f.s, 4, 4, 0, "model.layers.2.eh_proj.weight"); /* an MTP layer past the trunk */
    bset_write(&f.s, f.dir, "model.safetensors");
    mla_json *d;
    ck_ok(mla_json_read(&d, in_dir(f.dir, "config.json"), 1 << 20, &err));
    ck_assert(mla_jv_set_null(mla_json_root(d), "q_lora_rank") != NULL);
    ck_ok(mla_json_write(in_dir(f.dir, "config.json"), mla_json_root(d), &err));
    mla_json_free(d);
    ck_ok(mla_model_open(&m, f.dir, &err));
    same_rows(m, &f.s, MLA_W_Q, 1, "model.layers.1.self_attn.q_proj.weight", 0);
    same_rows(m, &f.s, MLA_W_DS_KV_B, 1, "model.layers.1.self_attn.kv_b_proj.weight", 0);
    ck_assert(!mla_model_has(m, MLA_W_DS_Q_A, 0));
    mla_model_close(m);
    unmake(&f);
}
END_TEST

/* Logical row i of the fused projections, by walking the heads as the family's description does. */
START_TEST(fused_projections_come_apart)
{
    mla_err err = {0};
    mla_model *m = NULL;
    made f = make("qwen3_next_dense.json");
    const mla_config *c = &f.c;
    size_t nk = c->lin_k_heads, r = c->lin_v_heads / nk, dk = c->lin_k_dim, dv = c->lin_v_dim, H = c->hidden;
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_ok(mla_model_open(&m, f.dir, &err));
    const bt *fused = bset_find(&f.s, "model.layers.0.linear_attn.in_proj_qkvz.weight");
    const bt *ba = bset_find(&f.s, "model.layers.0.linear_attn.in_proj_ba.weight");
    size_t stored = 0, row;
    float x[64];
    mla_mat qkv, z, b, a;
    ck_ok(mla_model_mat(m, MLA_W_GDN_QKV, 0, &qkv, &err));
    ck_ok(mla_model_mat(m, MLA_W_GDN_Z, 0, &z, &err));
    ck_ok(mla_model_mat(m, MLA_W_GDN_B, 0, &b, &err));
    ck_ok(mla_model_mat(m, MLA_W_GDN_A, 0, &a, &err));
    ck_assert(qkv.out == 2 * nk * dk + nk * r * dv && z.out == nk * r * dv && b.out == nk * r && a.out == nk * r && H == 64);
    for (size_t h = 0; h < nk; h++) {
        for (size_t part = 0; part < 4; part++) { /* q, k, v, z of key head h, in stored order */
            size_t width = part < 2 ? dk : r * dv;
            for (size_t i = 0; i < width; i++, stored++) {
                row = part == 0 ? h * dk + i : part == 1 ? nk * dk + h * dk + i : part == 2 ? 2 * nk * dk + h * r * dv + i : h * r * dv + i;
                ck_ok(mla_mat_rows(part < 3 ? &qkv : &z, row, 1, x, &err));
                ck_assert_msg(!memcmp(x, fused->v + stored * H, H * sizeof *x), "head %zu part %zu row %zu", h, part, i);
            }
        }
    }
    ck_assert_uint_eq(stored, fused->shape[0]);
    for (size_t h = 0, at = 0; h < nk; h++)
        for (size_t part = 0; part < 2; part++)
            for (size_t i = 0; i < r; i++, at++) {
                ck_ok(mla_mat_rows(part ? &a : &b, h * r + i, 1, x, &err));
                ck_assert(!memcmp(x, ba->v + at * H, H * sizeof *x));
            }
    mla_model_close(m);
    unmake(&f);
}
END_TEST

typedef void (*break_fn)(made *f);
static void b_missing(made *f) { bset_drop(&f->s, "model.layers.1.mlp.up_proj.weight"); }
static void b_missing_embed(made *f) { bset_drop(&f->s, "model.embed_tokens.weight"); }
static void b_shape(made *f) { bset_drop(&f->s, "model.layers.0.self_attn.k_proj.weight"), bset_add(&f->s, 60, 64, 0, "model.layers.0.self_attn.k_proj.weight"); }
static void b_rank(made *f) { bset_drop(&f->s, "model.norm.weight"), bset_add(&f->s, 1, 64, 0, "model.norm.weight"); }
static void b_dtype(made *f) { bset_find(&f->s, "model.layers.0.self_attn.k_proj.weight")->dtype = MLA_F8_E4M3; }
static void b_norm_dtype(made *f) { bset_find(&f->s, "model.norm.weight")->dtype = MLA_F8_E4M3; }
static void b_surplus(made *f) { bset_add(&f->s, 4, 4, 0, "model.layers.0.self_attn.g_proj.weight"); }
static void b_layer(made *f) { bset_add(&f->s, 64, 0, 0, "model.layers.2.input_layernorm.weight"); }
static void b_nan(made *f) { bset_find(&f->s, "model.layers.1.mlp.up_proj.weight")->v[65] = NAN; }
static void b_twice(made *f) { bset_add(&f->s, 300, 64, 0, "model.language_model.embed_tokens.weight"); }
static void b_control(made *f) { bset_add(&f->s, 4, 0, 0, "evil\nname"); }

START_TEST(defects_are_named)
{
    static const struct {
        break_fn fn;
        mla_status st;
        const char *says;
    } D[] = {
        {b_missing, MLA_EFORMAT, "model.layers.1.mlp.up_proj.weight"},
        {b_missing_embed, MLA_EFORMAT, "model.embed_tokens.weight"},
        {b_shape, MLA_EFORMAT, "model.layers.0.self_attn.k_proj.weight: expected BF16 [64, 64], found BF16 [60, 64] in model.safetensors"},
        {b_rank, MLA_EFORMAT, "model.norm.weight: expected BF16 [64], found BF16 [1, 64] in model.safetensors"},
        {b_dtype, MLA_EFORMAT, "model.layers.0.self_attn.k_proj: stored as FP8, but config.json without quantization_config keeps it plain"},
        {b_norm_dtype, MLA_EUNSUPPORTED, "model.norm.weight: expected BF16, F16 or F32 [64], found F8_E4M3 [64] in model.safetensors: only matrices of linear layers"},
        {b_surplus, MLA_EFORMAT, "model.layers.0.self_attn.g_proj.weight: not expected in LlamaForCausalLM of 2 layers, found BF16 [4, 4] in model.safetensors"},
        {b_layer, MLA_EFORMAT, "model.layers.2.input_layernorm.weight: not expected in LlamaForCausalLM of 2 layers"},
        {b_twice, MLA_EFORMAT, "two text models in one folder"},
        {b_control, MLA_EFORMAT, "evil?name: not expected"},
    };
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        mla_err err = {0};
        mla_model *m = NULL;
        made f = make("llama_v5.json");
        D[i].fn(&f);
        bset_write(&f.s, f.dir, "model.safetensors");
        ck_refused(mla_model_open(&m, f.dir, &err), D[i].st, D[i].says);
        ck_assert(m == NULL && strchr(err.msg, '\n') == NULL);
        unmake(&f);
    }
}
END_TEST

START_TEST(non_finite_values_are_placed)
{
    mla_err err = {0};
    mla_model *m = NULL;
    mla_mat w;
    float x[96 * 64];
    made f = make("llama_v5.json");
    b_nan(&f);
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_ok(mla_model_open(&m, f.dir, &err)); /* headers only: values are met when they are read */
    ck_ok(mla_model_mat(m, MLA_W_UP, 1, &w, &err));
    ck_ok(mla_mat_rows(&w, 0, 1, x, &err));
    ck_refused(mla_mat_rows(&w, 0, 3, x, &err), MLA_EFORMAT, "model.layers.1.mlp.up_proj.weight: non-finite value at [1, 1]");
    ck_refused(mla_mat_rows(&w, 95, 2, x, &err), MLA_EINVAL, "2 rows from 95 asked, the matrix has 96");
    ck_refused(mla_model_mat(m, MLA_W_Q_NORM, 0, &w, &err), MLA_EINVAL, "LlamaForCausalLM has no self_attn.q_norm.weight in layer 0");
    float *v = NULL;
    ck_refused(mla_model_vec(m, MLA_W_FINAL_NORM, 0, 63, &v, &err), MLA_EINVAL, "expected a vector of 63, found [1, 64]");
    ck_assert(v == NULL);
    mla_model_close(m);
    unmake(&f);
}
END_TEST

START_TEST(what_cannot_run_is_refused_by_name)
{
    static const struct {
        const char *fixture;
        const char *says;
    } D[] = {
        {"qwen3_next.json", "Qwen3NextForCausalLM: mixture-of-experts layers (512 experts) are not supported yet"},
        {"deepseek_v2_lite.json", "DeepseekV2ForCausalLM: mixture-of-experts layers (64 experts) are not supported yet"},
        {"mistral_v01.json", "sliding attention (a window of 4096 tokens in a context of 32768) is not supported"},
    };
    mla_err err = {0};
    mla_model *m = NULL;
    char *dir = mla_test_tmpdir(), name[96];
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        snprintf(name, sizeof name, "configs/%s", D[i].fixture);
        copy_fixture(name, dir, "config.json");
        ck_refused(mla_model_open(&m, dir, &err), MLA_EUNSUPPORTED, D[i].says);
    }
    put_text(dir, "config.json", "{\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":9,\"hidden_size\":8,\"intermediate_size\":8,"
                                 "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}");
    ck_refused(mla_model_open(&m, dir, &err), MLA_EUNSUPPORTED, "config.json: quantization_config of awq: version \"\", only gemm is read here");
    put_text(dir, "config.json", "{\"architectures\":[\"Qwen4ExpForConditionalGeneration\"],\"model_type\":\"qwen4_exp\"}");
    ck_refused(mla_model_open(&m, dir, &err), MLA_EUNSUPPORTED, "config.json: architecture Qwen4ExpForConditionalGeneration (model_type qwen4_exp)");
    put_text(dir, "config.json", "{\"architectures\":");
    ck_refused(mla_model_open(&m, dir, &err), MLA_EFORMAT, "config.json");
    ck_refused(mla_model_open(&m, in_dir(dir, "nothing"), &err), MLA_EIO, "nothing");
    put_text(dir, "a.safetensors", "x");
    ck_refused(mla_model_open(&m, in_dir(dir, "a.safetensors"), &err), MLA_EINVAL, "a weight file alone is no model");
    ck_ok(mla_dir_remove(dir, &err));
    ck_ok(mla_dir_make(dir, &err));
    ck_refused(mla_model_open(&m, dir, &err), MLA_EIO, "config.json: not there");
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

START_TEST(mtp_and_tied_heads)
{
    mla_err err = {0};
    mla_model *m = NULL;
    made f = make("qwen3_5_text.json"); /* tied, announces an MTP head */
    for (size_t i = f.s.n; i-- > 0;)
        if (!strncmp(f.s.t[i].name, "mtp.", 4)) bset_drop(&f.s, f.s.t[i].name);
    bset_add(&f.s, f.c.vocab, f.c.hidden, 0, "lm_head.weight");
    bset_write(&f.s, f.dir, "model.safetensors");
    put_text(f.dir, "generation_config.json", "{\"eos_token_id\": [4, 319, 3]}");
    ck_ok(mla_model_open(&m, f.dir, &err)); /* a re-save that lost its head: said, not hidden */
    ck_assert(mla_model_config(m)->n_eos == 3 && mla_model_config(m)->eos[0] == 3 && mla_model_config(m)->eos[2] == 319);
    ck_assert_uint_eq(mla_model_note_count(m), 2);
    ck_assert(strstr(mla_model_note_at(m, 0), "no mtp.* tensor is stored") && strstr(mla_model_note_at(m, 1), "lm_head.weight is stored although"));
    ck_assert(mla_model_config(m)->mtp_layers == 0 && !mla_model_has(m, MLA_W_MTP_FC, 0));
    mla_model_close(m);
    put_text(f.dir, "generation_config.json", "{\"eos_token_id\": 320}");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "generation_config.json: eos_token_id: expected ids below 320");
    put_text(f.dir, "generation_config.json", "{}");
    bset_find(&f.s, "lm_head.weight")->shape[0]--; /* a duplicate head must fit all the same */
    bset_find(&f.s, "lm_head.weight")->count -= f.c.hidden;
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "lm_head.weight: expected BF16 [320, 64], found BF16 [319, 64]");
    unmake(&f);

    f = make("qwen3_5_text.json"); /* half an MTP head */
    bset_drop(&f.s, "mtp.fc.weight");
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "mtp.fc.weight");
    unmake(&f);

    f = make("qwen3_5_vl.json"); /* an unknown vision tensor passes, an unknown text tensor does not */
    bset_add(&f.s, 3, 0, 0, "model.visual.new.part");
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_ok(mla_model_open(&m, f.dir, &err));
    same_rows(m, &f.s, MLA_W_MTP_FC, 0, "mtp.fc.weight", 0);
    same_rows(m, &f.s, MLA_W_Q, MLA_MTP(0), "mtp.layers.0.self_attn.q_proj.weight", 0);
    same_rows(m, &f.s, MLA_W_MTP_NORM, 0, "mtp.norm.weight", 1);
    mla_model_close(m);
    bset_add(&f.s, 3, 0, 0, "mtp.new.part");
    bset_write(&f.s, f.dir, "model.safetensors");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "mtp.new.part: not expected");
    unmake(&f);
}
END_TEST

/* The published 27B in its shape: 1,200 tensors, 51.8 GiB of holes, opened by its header alone. */
START_TEST(opens_27b_by_its_header)
{
    mla_err err = {0};
    mla_model *m = NULL;
    mla_json *d;
    mla_config c;
    bset s = {.shapes_only = true};
    char *dir = mla_test_tmpdir();
    copy_fixture("qwen3_8-27b/config.json", dir, "config.json");
    ck_ok(mla_json_read(&d, in_dir(dir, "config.json"), 1 << 20, &err));
    ck_ok(mla_config_from_json(&c, mla_json_root(d), &err));
    bset_model(&s, &c, "model.language_model.");
    bset_mtp(&s, &c);
    bset_vision_27b(&s);
    bset_write_sparse(&s, dir, "model.safetensors");
    double t = mla_now();
    ck_ok(mla_model_open(&m, dir, &err));
    ck_assert_msg(mla_now() - t < 5, "opening took %.1f s", mla_now() - t);
    double gib = (double)mla_model_stored_bytes(m) / (1 << 30);
    ck_assert_msg(gib > 51.7 && gib < 51.9, "%.3f GiB", gib);
    ck_assert(mla_model_trunk_params(m) > 26800000000u && mla_model_trunk_params(m) < 27000000000u);
    ck_assert(mla_model_has(m, MLA_W_MTP_FC, 0) && mla_model_config(m)->mtp_layers == 1);
    mla_mat w;
    ck_ok(mla_model_mat(m, MLA_W_Q, 63, &w, &err));
    ck_assert(w.out == 12288 && w.in == 5120 && w.stored_bytes == (size_t)2 * 12288 * 5120);
    mla_model_close(m);
    mla_config_free(&c);
    mla_json_free(d);
    bset_free(&s);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

/* Every allocation of an open fails in turn: refused each time, nothing leaks (the sanitizer build looks). */
START_TEST(out_of_memory)
{
    mla_err err = {0};
    mla_model *m = NULL;
    made f = make("qwen3_5_vl.json");
    bset_write(&f.s, f.dir, "model.safetensors");
    long k = 0;
    for (;; k += 1 + k / 40) {
        mla_alloc_fail_after(k);
        mla_status st = mla_model_open(&m, f.dir, &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_msg(st == MLA_ENOMEM, "allocation %ld: %s (%s)", k, mla_status_name(st), err.msg);
        ck_assert(m == NULL);
    }
    ck_assert_int_ge((int)k, 100);
    mla_model_close(m);
    unmake(&f);
}
END_TEST

Suite *model_open_suite(void)
{
    Suite *s = suite_create("open");
    TCase *t = tcase_create("folders");
    tcase_add_test(t, opens_the_hybrid);
    tcase_add_test(t, stored_matrices_are_read_from_their_file);
    tcase_add_test(t, every_family_binds);
    tcase_add_test(t, published_variants);
    tcase_add_test(t, fused_projections_come_apart);
    tcase_add_test(t, mtp_and_tied_heads);
    tcase_add_test(t, opens_27b_by_its_header);
    suite_add_tcase(s, t);
    t = tcase_create("refusals");
    tcase_add_test(t, defects_are_named);
    tcase_add_test(t, non_finite_values_are_placed);
    tcase_add_test(t, what_cannot_run_is_refused_by_name);
    tcase_add_test(t, out_of_memory);
    suite_add_tcase(s, t);
    return s;
}
