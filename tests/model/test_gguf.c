/* GGUF models: the same logical weights as the folder they were converted from, whatever order the file stores. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "build.h"
#include "harness.h"
#include "model/model.h"
#include "model_tests.h"

/* Every kind of every layer: equal to the folder, bit for bit (A_log within f32 rounding of exp and log). */
void same_weights(const mla_model *a, const mla_model *b)
{
    mla_err err = {0};
    const mla_config *c = mla_model_config(a);
    size_t compared = 0;
    for (size_t pos = 0; pos < c->layers + c->mtp_layers; pos++) {
        size_t layer = pos < c->layers ? pos : MLA_MTP(pos - c->layers);
        for (int k = 0; k < MLA_W_N; k++) {
            mla_mat wa, wb;
            ck_assert_msg(mla_model_has(a, (mla_wkind)k, layer) == mla_model_has(b, (mla_wkind)k, layer), "kind %d layer %zu", k, layer);
            if (!mla_model_has(a, (mla_wkind)k, layer)) continue;
            ck_ok(mla_model_mat(a, (mla_wkind)k, layer, &wa, &err));
            ck_ok(mla_model_mat(b, (mla_wkind)k, layer, &wb, &err));
            ck_assert(wa.out == wb.out && wa.in == wb.in);
            float *xa = malloc(wa.out * wa.in * sizeof *xa), *xb = malloc(wa.out * wa.in * sizeof *xb);
            ck_ok(mla_mat_rows(&wa, 0, wa.out, xa, &err));
            ck_ok(mla_mat_rows(&wb, 0, wb.out, xb, &err));
            for (size_t i = 0; i < wa.out * wa.in; i++)
                ck_assert_msg(fabsf(xa[i] - xb[i]) <= (k == MLA_W_GDN_A_LOG ? 1e-6f : 0), "kind %d layer %zu value %zu: %g, %g", k, layer, i,
                              (double)xa[i], (double)xb[i]);
            free(xa);
            free(xb);
            compared++;
        }
    }
    ck_assert_uint_ge(compared, 20);
}

static void write_folder(const char *dir, const char *fixture, const bset *s)
{
    char name[96];
    snprintf(name, sizeof name, "configs/%s", fixture);
    copy_fixture(name, dir, "config.json");
    bset_write(s, dir, "model.safetensors");
}

START_TEST(llama_rows_return_to_order)
{
    mla_err err = {0};
    mla_config c;
    mla_model *hf, *gg;
    gb g = {0};
    bset folder = {0};
    char *dir = mla_test_tmpdir();
    ck_ok(read_config(&c, "llama_v5.json", &err));
    gguf_llama(&g, &c, &folder);
    gb_u32(&g, "tokenizer.ggml.bos_token_id", 1);
    gb_u32(&g, "tokenizer.ggml.eos_token_id", 2);
    gb_str(&g, "llama.rope.scaling.type", "linear");
    gb_f32(&g, "llama.rope.scaling.factor", 2);
    gb_write(&g, in_dir(dir, "m.gguf"));
    write_folder(dir, "llama_v5.json", &folder);
    ck_ok(mla_model_open(&hf, dir, &err));
    ck_ok(mla_model_open(&gg, in_dir(dir, "m.gguf"), &err));
    same_weights(hf, gg);
    const mla_config *k = mla_model_config(gg);
    ck_assert(k->heads == 4 && k->kv_heads == 4 && k->hidden == 64 && k->q_bias && k->o_bias && k->mlp_bias && !k->tied && k->bos == 1);
    ck_assert(k->rms_eps == 1e-6 && k->rope.kind == MLA_ROPE_LINEAR && k->rope.inv_freq[0] == 0.5 && k->n_eos == 1 && k->eos[0] == 2);
    mla_str n = MLA_STR_MAX(200);
    ck_ok(mla_model_name(gg, MLA_W_K, 1, &n, &err));
    ck_assert_str_eq(mla_str_c(&n), "blk.1.attn_k.weight");
    mla_str_free(&n);
    /* negative control: the stored order differs from the logical one */
    const bt *q = bset_find(&folder, "model.layers.0.self_attn.q_proj.weight"), *s = bset_find(&g.t, "blk.0.attn_q.weight");
    ck_assert(memcmp(q->v + 64, s->v + 64, 64 * sizeof *q->v) != 0);
    ck_assert(memcmp(q->v + 64, s->v + 128, 64 * sizeof *q->v) == 0); /* row 1 of a head stands at 2 */
    mla_model_close(hf);
    mla_model_close(gg);
    gb_free(&g);
    bset_free(&folder);
    mla_config_free(&c);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

START_TEST(qwen35_heads_return_to_order)
{
    mla_err err = {0};
    mla_config c;
    mla_model *hf, *gg;
    gb g = {0};
    bset folder = {0};
    char *dir = mla_test_tmpdir();
    ck_ok(read_config(&c, "qwen3_5_text.json", &err));
    gguf_qwen35(&g, &c, &folder);
    gb_write(&g, in_dir(dir, "m.gguf"));
    write_folder(dir, "qwen3_5_text.json", &folder);
    ck_ok(mla_model_open(&hf, dir, &err));
    ck_ok(mla_model_open(&gg, in_dir(dir, "m.gguf"), &err));
    const mla_config *k = mla_model_config(gg);
    ck_assert(k->layers == 4 && k->mtp_layers == 1 && k->tied && k->attn_gate && k->qk_norm && k->rope.rot == 8);
    ck_assert(k->layer_kind[3] == MLA_LAYER_FULL && k->layer_kind[2] == MLA_LAYER_LINEAR && k->lin_v_heads == 6 && k->lin_v_dim == 16);
    ck_assert(k->rope.mrope_section[0] == 2 && k->rope.mrope_section[2] == 1 && k->rope.mrope_interleaved);
    same_weights(hf, gg);
    mla_model_close(hf);
    mla_model_close(gg);
    bt *a = bset_find(&g.t, "blk.0.ssm_a"); /* a decay that is none */
    a->v[1] = 0.5f;
    gb_write(&g, in_dir(dir, "bad.gguf"));
    ck_ok(mla_model_open(&gg, in_dir(dir, "bad.gguf"), &err));
    float *v;
    ck_refused(mla_model_vec(gg, MLA_W_GDN_A_LOG, 0, 6, &v, &err), MLA_EFORMAT, "blk.0.ssm_a: entry 3: expected -exp(A_log) < 0, found 0.5");
    mla_model_close(gg);
    gb_free(&g);
    bset_free(&folder);
    mla_config_free(&c);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

/* qwen2 (biases on q, k, v) and qwen3 (QK-norm): same names, rows in order. */
START_TEST(qwen2_and_qwen3_keep_their_rows)
{
    static const char *const ARCH[] = {"qwen2", "qwen3"};
    for (size_t a = 0; a < 2; a++) {
        mla_err err = {0};
        mla_config c;
        mla_model *gg;
        mla_mat w;
        gb g = {0};
        float x[64 * 64];
        char *dir = mla_test_tmpdir();
        ck_ok(read_config(&c, "llama_v5.json", &err));
        c.kv_heads = 2;
        c.tied = true;
        c.o_bias = c.mlp_bias = false;
        c.q_bias = c.kv_bias = a == 0;
        c.qk_norm = a == 1;
        bset_model(&g.t, &c, "model.");
        gguf_keys(&g, &c, ARCH[a]);
        for (size_t i = 0; i < g.t.n; i++) gguf_tensor(&g.t.t[i], &c, false);
        gb_write(&g, in_dir(dir, "m.gguf"));
        ck_ok(mla_model_open(&gg, in_dir(dir, "m.gguf"), &err));
        const mla_config *k = mla_model_config(gg);
        ck_assert(k->tied && k->kv_heads == 2 && k->q_bias == (a == 0) && k->qk_norm == (a == 1) && !k->o_bias);
        ck_ok(mla_model_mat(gg, MLA_W_Q, 1, &w, &err));
        ck_ok(mla_mat_rows(&w, 0, 64, x, &err));
        ck_assert(!memcmp(x, bset_find(&g.t, "blk.1.attn_q.weight")->v, sizeof x));
        ck_assert(mla_model_has(gg, MLA_W_Q_NORM, 0) == (a == 1) && mla_model_has(gg, MLA_W_K_BIAS, 0) == (a == 0));
        mla_model_close(gg);
        gb_free(&g);
        mla_config_free(&c);
        ck_ok(mla_dir_remove(dir, &err));
        mla_free(dir);
    }
}
END_TEST

/* The divisors of llama3 scaling, as a converter derives them from factor 8, low 1, high 4, context 8192. */
static void llama3_divisors(float *d, size_t rot, double theta)
{
    for (size_t i = 0; i < rot / 2; i++) {
        double freq = pow(theta, -2.0 * (double)i / (double)rot), wave = 6.283185307179586 / freq;
        if (wave < 8192.0 / 4) d[i] = 1;
        else if (wave > 8192.0) d[i] = 8;
        else {
            double smooth = (8192.0 / wave - 1) / (4 - 1);
            d[i] = (float)(1 / ((1 - smooth) / 8 + smooth));
        }
    }
}

START_TEST(rope_freqs_are_llama3_scaling)
{
    mla_err err = {0};
    mla_config c;
    mla_model *gg;
    gb g = {0};
    bset folder = {0};
    char *dir = mla_test_tmpdir();
    ck_ok(read_config(&c, "llama_v5.json", &err));
    c.rope.theta = 500000;
    gguf_llama(&g, &c, &folder);
    bt *f = bset_add(&g.t, c.rope.rot / 2, 0, 0, "rope_freqs.weight");
    llama3_divisors(f->v, c.rope.rot, 500000);
    gb_write(&g, in_dir(dir, "m.gguf"));
    ck_ok(mla_model_open(&gg, in_dir(dir, "m.gguf"), &err));
    const mla_config *k = mla_model_config(gg);
    ck_assert(k->rope.kind == MLA_ROPE_LLAMA3 && k->rope.factor == 8 && k->rope.original_max == 8192 && !k->rope.custom);
    double got[64];
    mla_rope_inv_freq(k, 1, got);
    for (size_t i = 0; i < c.rope.rot / 2; i++) ck_assert(fabs(got[i] * f->v[i] - pow(500000, -2.0 * (double)i / (double)c.rope.rot)) <= 1e-12);
    mla_model_close(gg);
    f->v[1] = 3; /* divisors of no known kind: used as they are, but config.json has no word for them */
    gb_write(&g, in_dir(dir, "m.gguf"));
    ck_ok(mla_model_open(&gg, in_dir(dir, "m.gguf"), &err));
    ck_assert(mla_model_config(gg)->rope.custom);
    mla_model_close(gg);
    f->v[1] = NAN;
    gb_write(&g, in_dir(dir, "m.gguf"));
    ck_refused(mla_model_open(&gg, in_dir(dir, "m.gguf"), &err), MLA_EFORMAT, "rope_freqs.weight: value 1 is nan");
    gb_free(&g);
    bset_free(&folder);
    mla_config_free(&c);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

typedef void (*spoil)(gb *g);
static void s_missing(gb *g) { bset_drop(&g->t, "blk.1.ffn_up.weight"); }
static void s_surplus(gb *g) { bset_add(&g->t, 4, 4, 0, "blk.1.attn_sinks.weight"); }
static void s_shape(gb *g) { bset_drop(&g->t, "blk.0.attn_k.weight"), bset_add(&g->t, 60, 64, 0, "blk.0.attn_k.weight"); }
static void s_embed(gb *g) { bset_drop(&g->t, "token_embd.weight"); }
static void s_split(gb *g) { gb_u32(g, "split.count", 2); }
static void s_moe(gb *g) { gb_u32(g, "llama.expert_count", 8); }
static void s_scaling(gb *g) { gb_str(g, "llama.rope.scaling.type", "longrope"); }

START_TEST(gguf_defects_are_named)
{
    static const struct {
        spoil fn;
        mla_status st;
        const char *says;
    } D[] = {
        {s_missing, MLA_EFORMAT, "blk.1.ffn_up.weight: missing"},
        {s_surplus, MLA_EFORMAT, "blk.1.attn_sinks.weight: not expected in a llama model of 2 layers"},
        {s_shape, MLA_EFORMAT, "blk.0.attn_k.weight: expected [64, 64], found GGUF F32 [60, 64]"},
        {s_embed, MLA_EFORMAT, "token_embd.weight: missing"},
        {s_split, MLA_EUNSUPPORTED, "split.count: a GGUF model in 2 parts is not supported"},
        {s_moe, MLA_EUNSUPPORTED, "llama: mixture-of-experts layers (8 experts) are not supported yet"},
        {s_scaling, MLA_EUNSUPPORTED, "llama.rope.scaling.type: not supported (none, linear, yarn)"},
    };
    mla_err err = {0};
    char *dir = mla_test_tmpdir();
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        mla_config c;
        mla_model *m;
        gb g = {0};
        bset folder = {0};
        ck_ok(read_config(&c, "llama_v5.json", &err));
        gguf_llama(&g, &c, &folder);
        D[i].fn(&g);
        gb_write(&g, in_dir(dir, "m.gguf"));
        ck_refused(mla_model_open(&m, in_dir(dir, "m.gguf"), &err), D[i].st, D[i].says);
        gb_free(&g);
        bset_free(&folder);
        mla_config_free(&c);
    }
    mla_model *m;
    gb g = {0};
    gb_str(&g, "general.architecture", "gemma3");
    gb_write(&g, in_dir(dir, "m.gguf"));
    ck_refused(mla_model_open(&m, in_dir(dir, "m.gguf"), &err), MLA_EUNSUPPORTED, "architecture gemma3 is not supported");
    gb_free(&g);
    ck_refused(mla_model_open(&m, mla_fixture("golden-gguf/tiny.gguf"), &err), MLA_EFORMAT, "token_embd.weight: missing");
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

Suite *model_gguf_suite(void)
{
    Suite *s = suite_create("gguf");
    TCase *t = tcase_create("gguf");
    tcase_add_test(t, llama_rows_return_to_order);
    tcase_add_test(t, qwen35_heads_return_to_order);
    tcase_add_test(t, qwen2_and_qwen3_keep_their_rows);
    tcase_add_test(t, rope_freqs_are_llama3_scaling);
    tcase_add_test(t, gguf_defects_are_named);
    suite_add_tcase(s, t);
    return s;
}
