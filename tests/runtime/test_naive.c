/* The whole runtime against the plain double-precision forward pass: the llama family with its switches and RoPE kinds,
 * stored DeepSeek attention, and the rebuild layout with exact factors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "naive.h"
#include "suites.h"
#include "tensor/compare.h"

enum { T = 70 };

static void token_ids(int32_t *ids, size_t V)
{
    for (size_t i = 0; i < T; i++) ids[i] = (int32_t)(i * i * 7 + i * 3 + 1) % (int32_t)V;
}

typedef struct {
    toy t;
    world w;
    float *want;   /* (T, V) */
    int32_t ids[T];
    char *dir;
} toybox;

static toybox open_toy(toy t)
{
    toybox b = {.t = t};
    token_ids(b.ids, t.V);
    b.dir = toy_write(&t);
    b.w = world_open(b.dir, 1);
    double *y = toy_logits(&t, b.ids, T);
    b.want = mla_alloc(T, t.V, sizeof *b.want);
    for (size_t i = 0; i < T * t.V; i++) b.want[i] = (float)y[i];
    mla_free(y);
    return b;
}

static void close_toy(toybox *b)
{
    world_close(&b->w);
    mla_free(b->want);
    mla_free(b->dir);
}

/* One pass in chunks of `chunk` against the oracle. */
static void agree(const toybox *b, mla_rt *rt, size_t chunk, const char *what)
{
    float *got = run_chunks(rt, b->ids, T, 0, chunk, 0);
    mla_cmp c = mla_compare(got, b->want, T * b->t.V);
    double tol = path_bound(b->w.c, (double)b->t.L, T) * c.max_want;
    if (getenv("MLA_TEST_FIGURES")) printf("%s %s chunk %zu: max error %.3g of %.3g allowed\n", b->t.type, what, chunk, c.max_abs, tol);
    ck_assert_msg(mla_cmp_ok(c, tol), "%s %s chunk %zu: error %g, allowed %g, %zu non-finite", b->t.type, what, chunk, c.max_abs, tol,
                  c.nonfinite);
    mla_free(got);
}

static void exact_factors(const toybox *b, mla_rt *rt, mla_layout layout, size_t groups)
{
    mla_err err = {0};
    mla_factors f;
    size_t n;
    ck_ok(mla_factors_dims(b->w.c, layout, groups, &n, &err));
    size_t all = b->w.c->kv_heads * b->w.c->head_dim;
    if (layout == MLA_LAYOUT_ABSORBED) ck_ok(mla_factors_new_absorbed(&f, b->w.c, all, all, &err));
    else ck_ok(mla_factors_new(&f, layout, groups, n, n, &err));
    mla_factors_identity(&f);
    for (size_t i = 0; i < groups * n; i++) f.mu[i] = 0.1f * (float)(i % 7); /* exact for any mean */
    for (size_t l = 0; l < b->w.c->layers; l++) ck_ok(mla_rt_set_factors(rt, l, &f, &err));
    mla_factors_free(&f);
}

static void check_base(toybox *b)
{
    mla_rt *rt = world_rt(&b->w, (mla_rt_opts){0});
    agree(b, rt, 0, "base");
    agree(b, rt, 1, "base");
    agree(b, rt, 33, "base");
    mla_rt_close(rt);
}

static void check_forms(toybox *b, mla_layout layout, size_t groups)
{
    for (int form = 0; form < 4; form++) {
        mla_rt *rt = world_rt(&b->w, (mla_rt_opts){.absorb_prefill = form & 1, .expand_decode = form >> 1});
        if (layout != MLA_LAYOUT_NONE) exact_factors(b, rt, layout, groups);
        agree(b, rt, 0, form & 1 ? "absorbed" : "expanded");
        agree(b, rt, 1, form >> 1 ? "expanded" : "absorbed");
        agree(b, rt, 3, form >> 1 ? "expanded" : "absorbed");
        mla_rt_close(rt);
    }
}

static void frequencies(double *inv, size_t rot, double theta)
{
    for (size_t i = 0; i < rot / 2; i++) inv[i] = pow(theta, -2.0 * (double)i / (double)rot);
}

START_TEST(llama_linear_rope_and_biases)
{
    double inv[8];
    frequencies(inv, 16, 1e4);
    for (int i = 0; i < 8; i++) inv[i] /= 4;
    toybox b = open_toy((toy){.arch = "LlamaForCausalLM", .type = "llama",
                              .extra = ",\"attention_bias\":true,\"mlp_bias\":true,\"rope_theta\":10000,"
                                       "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}",
                              .D = 48, .I = 80, .L = 2, .H = 6, .G = 2, .d = 16, .rot = 16, .V = 97, .qkv_bias = true, .o_bias = true,
                              .mlp_bias = true, .tied = true, .eps = 1e-5, .att = 1, .scale = 0.25, .inv_freq = inv});
    check_base(&b);
    check_forms(&b, MLA_LAYOUT_REBUILD, 1);
    check_forms(&b, MLA_LAYOUT_REBUILD, 2);
    check_forms(&b, MLA_LAYOUT_ABSORBED, 1);
    close_toy(&b);
}
END_TEST

START_TEST(qwen3_llama3_rope)
{
    double inv[10];
    frequencies(inv, 20, 1e4);
    for (int i = 0; i < 10; i++) { /* factor 8, low 1, high 4, original 32 */
        double wave = 2 * M_PI / inv[i], t = (32 / wave - 1) / 3;
        if (wave > 32) inv[i] /= 8;
        else if (wave >= 8) inv[i] = (1 - t) * inv[i] / 8 + t * inv[i];
    }
    toybox b = open_toy((toy){.arch = "Qwen3ForCausalLM", .type = "qwen3",
                              .extra = ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":10000,\"factor\":8,"
                                       "\"low_freq_factor\":1,\"high_freq_factor\":4,\"original_max_position_embeddings\":32}",
                              .D = 40, .I = 72, .L = 3, .H = 4, .G = 4, .d = 20, .rot = 20, .V = 64, .qk_norm = true, .eps = 1e-6,
                              .att = 1, .scale = 1 / sqrt(20), .inv_freq = inv});
    check_base(&b);
    check_forms(&b, MLA_LAYOUT_REBUILD, 1);
    check_forms(&b, MLA_LAYOUT_REBUILD, 4);
    check_forms(&b, MLA_LAYOUT_ABSORBED, 1);
    close_toy(&b);
}
END_TEST

START_TEST(qwen2_partial_rope_latent)
{
    double inv[4];
    frequencies(inv, 8, 1e4);
    toybox b = open_toy((toy){.arch = "LlamaForCausalLM", .type = "llama", .extra = ",\"partial_rotary_factor\":0.5", .D = 48, .I = 64,
                              .L = 2, .H = 8, .G = 4, .d = 16, .rot = 8, .V = 80, .eps = 1e-6, .att = 1, .scale = 0.25, .inv_freq = inv});
    check_base(&b);
    check_forms(&b, MLA_LAYOUT_N, 1);
    check_forms(&b, MLA_LAYOUT_N, 2);
    check_forms(&b, MLA_LAYOUT_REBUILD, 4);
    close_toy(&b);
}
END_TEST

/* Without key norms everything the layer caches is linear in its input: c = x, every KV head's rotary key its own shared one. */
static void exact_shared(const toybox *b, mla_rt *rt)
{
    const mla_config *c = b->w.c;
    size_t H = c->heads, G = c->kv_heads, d = c->head_dim, rot = c->rope.rot, D = c->hidden, w = G * rot;
    for (size_t l = 0; l < c->layers; l++) {
        mla_err err = {0};
        mla_shared s;
        mla_mat k, v;
        float *W = mla_alloc(2 * G * d, D, sizeof *W);
        ck_ok(mla_shared_new(&s, c, D, G, &err));
        ck_ok(mla_model_mat(b->w.m, MLA_W_K, l, &k, &err));
        ck_ok(mla_model_mat(b->w.m, MLA_W_V, l, &v, &err));
        ck_ok(mla_mat_rows(&k, 0, G * d, W, &err));
        ck_ok(mla_mat_rows(&v, 0, G * d, W + G * d * D, &err));
        for (size_t i = 0; i < D; i++) s.E[i * D + i] = 1;
        for (size_t g = 0; g < G; g++) memcpy(s.KR + g * rot * D, W + g * d * D, rot * D * sizeof *W);
        for (size_t h = 0; h < H; h++) {
            size_t g = h / (H / G);
            for (size_t i = 0; i < rot; i++) s.Q2[(h * w + g * rot + i) * rot + i] = 1;
            memcpy(s.K + (h * d + rot) * D, W + (g * d + rot) * D, (d - rot) * D * sizeof *W);
            memcpy(s.V + h * d * D, W + (G * d + g * d) * D, d * D * sizeof *W);
        }
        ck_ok(mla_rt_set_shared(rt, l, &s, &err));
        ck_assert_int_eq(mla_rt_layout(rt, l), MLA_LAYOUT_SHARED);
        mla_shared_free(&s);
        mla_free(W);
    }
    ck_assert_uint_eq(mla_rt_kv_bytes_per_token(rt), c->layers * (D + w) * 4);
}

START_TEST(shared_rotary_exact)
{
    double inv[4];
    frequencies(inv, 8, 1e4);
    toybox b = open_toy((toy){.arch = "LlamaForCausalLM", .type = "llama", .extra = ",\"partial_rotary_factor\":0.5", .D = 48, .I = 64,
                              .L = 2, .H = 8, .G = 4, .d = 16, .rot = 8, .V = 80, .eps = 1e-6, .att = 1, .scale = 0.25, .inv_freq = inv});
    for (int form = 0; form < 4; form++) {
        mla_rt *rt = world_rt(&b.w, (mla_rt_opts){.absorb_prefill = form & 1, .expand_decode = form >> 1, .page_tokens = 16});
        exact_shared(&b, rt);
        agree(&b, rt, 0, form & 1 ? "shared, absorbed" : "shared, expanded");
        agree(&b, rt, 1, form >> 1 ? "shared, expanded" : "shared, absorbed");
        agree(&b, rt, 33, "shared");
        mla_err err = {0};
        for (size_t l = 0; form == 3 && l < b.w.c->layers; l++) ck_ok(mla_rt_set_factors(rt, l, NULL, &err)); /* and back to the base */
        if (form == 3) agree(&b, rt, 0, "base again");
        mla_rt_close(rt);
    }
    close_toy(&b);
}
END_TEST

START_TEST(deepseek_low_rank_queries)
{
    double inv[4];
    frequencies(inv, 8, 1e4);
    toybox b = open_toy((toy){.arch = "DeepseekV3ForCausalLM", .type = "deepseek_v3",
                              .extra = ",\"q_lora_rank\":24,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,"
                                       "\"v_head_dim\":12,\"n_routed_experts\":null,\"first_k_dense_replace\":2",
                              .D = 48, .I = 64, .L = 2, .H = 4, .G = 4, .rot = 8, .V = 80, .eps = 1e-5, .att = 1, .scale = 1 / sqrt(24),
                              .inv_freq = inv, .rq = 24, .rkv = 32, .dn = 16, .dv = 12});
    check_forms(&b, MLA_LAYOUT_NONE, 1);
    close_toy(&b);
    b = open_toy((toy){.arch = "DeepseekV3ForCausalLM", .type = "deepseek_v3", /* the biases that attention_bias means here */
                       .extra = ",\"q_lora_rank\":24,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,"
                                "\"v_head_dim\":12,\"n_routed_experts\":null,\"first_k_dense_replace\":2,\"attention_bias\":true",
                       .D = 48, .I = 64, .L = 2, .H = 4, .G = 4, .rot = 8, .V = 80, .eps = 1e-5, .att = 1, .scale = 1 / sqrt(24),
                       .inv_freq = inv, .rq = 24, .rkv = 32, .dn = 16, .dv = 12, .qkv_bias = true, .o_bias = true});
    check_forms(&b, MLA_LAYOUT_NONE, 1);
    close_toy(&b);
}
END_TEST

START_TEST(deepseek_yarn)
{
    double inv[4], m = 0.1 * 0.7 * log(4) + 1;
    frequencies(inv, 8, 1e4);
    double low = floor(8 * log(16 / (2 * M_PI * 32)) / (2 * log(1e4))), high = ceil(8 * log(16 / (2 * M_PI)) / (2 * log(1e4)));
    if (low < 0) low = 0;
    for (int i = 0; i < 4; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        inv[i] = inv[i] / 4 * ramp + inv[i] * (1 - ramp);
    }
    toybox b = open_toy((toy){.arch = "DeepseekV2ForCausalLM", .type = "deepseek_v2",
                              .extra = ",\"q_lora_rank\":null,\"kv_lora_rank\":20,\"qk_nope_head_dim\":12,\"qk_rope_head_dim\":8,"
                                       "\"v_head_dim\":16,\"n_routed_experts\":null,\"first_k_dense_replace\":2,\"rope_scaling\":{"
                                       "\"type\":\"yarn\",\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0.7,"
                                       "\"original_max_position_embeddings\":16}",
                              .D = 32, .I = 48, .L = 2, .H = 2, .G = 2, .rot = 8, .V = 50, .eps = 1e-6, .att = 1,
                              .scale = m * m / sqrt(20), .inv_freq = inv, .rkv = 20, .dn = 12, .dv = 16});
    check_forms(&b, MLA_LAYOUT_NONE, 1);
    close_toy(&b);
}
END_TEST

/* The comparison must be able to fail: a rotation off by a little is seen. */
START_TEST(a_wrong_frequency_is_seen)
{
    double inv[8];
    frequencies(inv, 16, 1.002e4);
    toybox b = open_toy((toy){.arch = "LlamaForCausalLM", .type = "llama", .extra = ",\"rope_theta\":10000", .D = 48, .I = 80, .L = 2,
                              .H = 6, .G = 2, .d = 16, .rot = 16, .V = 97, .eps = 1e-5, .att = 1, .scale = 0.25, .inv_freq = inv});
    mla_rt *rt = world_rt(&b.w, (mla_rt_opts){0});
    float *got = run_chunks(rt, b.ids, T, 0, 0, 0);
    mla_cmp c = mla_compare(got, b.want, T * b.t.V);
    ck_assert(c.max_abs > path_bound(b.w.c, 2, T) * c.max_want);
    mla_free(got);
    mla_rt_close(rt);
    close_toy(&b);
}
END_TEST

Suite *naive_suite(void)
{
    Suite *s = suite_create("naive");
    TCase *t = tcase_create("naive");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, llama_linear_rope_and_biases);
    tcase_add_test(t, qwen3_llama3_rope);
    tcase_add_test(t, qwen2_partial_rope_latent);
    tcase_add_test(t, shared_rotary_exact);
    tcase_add_test(t, deepseek_low_rank_queries);
    tcase_add_test(t, deepseek_yarn);
    tcase_add_test(t, a_wrong_frequency_is_seen);
    suite_add_tcase(s, t);
    return s;
}
