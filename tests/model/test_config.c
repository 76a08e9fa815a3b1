/* Configurations: each family and spelling read, each contradiction refused with one line. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "harness.h"
#include "io/json.h"
#include "model/config.h"
#include "model_tests.h"

#define MAX ((size_t)1 << 22)

mla_status read_config(mla_config *c, const char *name, mla_err *err)
{
    char path[160];
    mla_json *d = NULL;
    snprintf(path, sizeof path, "configs/%s", name);
    mla_status st = mla_json_read(&d, mla_fixture(path), MAX, err);
    if (st == MLA_OK) st = mla_config_from_json(c, mla_json_root(d), err);
    mla_json_free(d);
    return st;
}

START_TEST(qwen3_5_nested)
{
    mla_err err = {0};
    mla_config c;
    ck_ok(read_config(&c, "qwen3_5_vl.json", &err));
    ck_assert_int_eq(c.family, MLA_FAM_QWEN3_5);
    ck_assert_str_eq(c.architecture, "Qwen3_5ForConditionalGeneration");
    ck_assert_str_eq(c.model_type, "qwen3_5");
    ck_assert(c.vocab == 320 && c.hidden == 64 && c.intermediate == 96 && c.layers == 4);
    ck_assert(c.heads == 4 && c.kv_heads == 2 && c.head_dim == 32 && c.max_pos == 4096);
    ck_assert(c.norm_plus_one && c.attn_gate && c.qk_norm && !c.q_bias && !c.kv_bias && !c.o_bias && !c.tied && c.has_vision);
    ck_assert(c.layer_kind[0] == MLA_LAYER_LINEAR && c.layer_kind[2] == MLA_LAYER_LINEAR && c.layer_kind[3] == MLA_LAYER_FULL);
    ck_assert(c.lin_k_heads == 2 && c.lin_v_heads == 4 && c.lin_k_dim == 16 && c.lin_v_dim == 16 && c.lin_conv == 4);
    ck_assert(c.mtp_layers == 1 && c.experts == 0 && c.dtype == MLA_BF16);
    ck_assert(c.n_eos == 2 && c.eos[0] == 3 && c.eos[1] == 4 && c.bos == -1);
    ck_assert(c.rope.kind == MLA_ROPE_DEFAULT && c.rope.rot == 8 && c.rope.theta == 1e7 && c.rope.attention_factor == 1);
    ck_assert(c.rope.mrope_section[0] == 2 && c.rope.mrope_section[1] == 1 && c.rope.mrope_section[2] == 1 && c.rope.mrope_interleaved);
    ck_assert(c.mla.layout == MLA_LAYOUT_NONE && !c.quant_method && !c.kv_scheme);
    ck_assert_double_eq_tol(mla_config_attn_scale(&c), 1 / sqrt(32.0), 1e-15);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3_5_text.json", &err));
    ck_assert(c.tied && !c.has_vision && c.layer_kind[3] == MLA_LAYER_FULL && mla_config_full_layers(&c) == 1);
    ck_assert_str_eq(c.model_type, "qwen3_5_text");
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3_8_legacy.json", &err)); /* alias, legacy rope spelling, derived layer types */
    ck_assert(c.family == MLA_FAM_QWEN3_5 && c.rope.rot == 16 && c.rope.theta == 1e6 && mla_config_full_layers(&c) == 2);
    ck_assert(c.rope.mrope_section[0] == 4 && c.layer_kind[1] == MLA_LAYER_FULL && c.layer_kind[2] == MLA_LAYER_LINEAR);
    mla_config_free(&c);
}
END_TEST

START_TEST(published_27b)
{
    mla_err err = {0};
    mla_config c;
    mla_json *d;
    ck_ok(mla_json_read(&d, mla_fixture("qwen3_8-27b/config.json"), MAX, &err));
    ck_ok(mla_config_from_json(&c, mla_json_root(d), &err));
    ck_assert(c.layers == 64 && mla_config_full_layers(&c) == 16 && c.hidden == 5120 && c.kv_heads * c.head_dim == 1024);
    ck_assert(c.rope.rot == 64 && c.rope.mrope_section[0] == 11 && c.rope.mrope_section[2] == 10 && c.lin_v_heads == 48);
    ck_assert(c.mtp_layers == 1 && c.max_pos == 262144 && c.eos[0] == 248044 && c.bos == 248044);
    mla_config_free(&c);
    mla_json_free(d);
}
END_TEST

START_TEST(moe_is_read)
{
    mla_err err = {0};
    mla_config c;
    ck_ok(read_config(&c, "qwen3_5_moe.json", &err));
    ck_assert(c.experts == 512 && c.experts_per_tok == 10 && c.layers == 92 && c.expert_intermediate == 2048 && c.rope.rot == 64);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3_next.json", &err));
    ck_assert(c.family == MLA_FAM_QWEN3_NEXT && c.experts == 512 && mla_config_full_layers(&c) == 12 && c.rope.rot == 64);
    ck_assert(c.rope.mrope_section[0] == 0);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3_next_dense.json", &err));
    ck_assert(c.experts == 0 && c.intermediate == 96);
    mla_config_free(&c);
    ck_ok(read_config(&c, "deepseek_v2_lite.json", &err));
    ck_assert(c.experts == 64 && c.q_lora_rank == 0 && c.kv_lora_rank == 512 && c.head_dim == 192 && c.rope.rot == 64);
    double m = 0.1 * 0.707 * log(40) + 1; /* softmax scale correction, squared; cos and sin keep factor 1 */
    ck_assert_double_eq_tol(mla_config_attn_scale(&c), m * m / sqrt(192), 1e-12);
    ck_assert_double_eq_tol(c.rope.attention_factor, 1, 1e-12);
    mla_config_free(&c);
    ck_ok(read_config(&c, "deepseek_v3_dense.json", &err));
    ck_assert(c.experts == 0 && c.q_lora_rank == 24 && c.v_head_dim == 12 && c.rope.interleaved_pairs && c.dtype == MLA_F32);
    mla_config_free(&c);
}
END_TEST

START_TEST(llama_family)
{
    mla_err err = {0};
    mla_config c;
    ck_ok(read_config(&c, "llama31.json", &err));
    ck_assert(c.family == MLA_FAM_LLAMA && c.head_dim == 128 && c.rope.kind == MLA_ROPE_LLAMA3 && c.rope.rot == 128);
    ck_assert(c.n_eos == 3 && c.eos[2] == 128009 && c.bos == 128000 && !c.qk_norm && !c.norm_plus_one && !c.attn_gate);
    mla_config_free(&c);
    ck_ok(read_config(&c, "llama_v5.json", &err)); /* null KV heads, biases, rope_parameters */
    ck_assert(c.kv_heads == 4 && c.q_bias && c.kv_bias && c.o_bias && c.mlp_bias && c.rope.kind == MLA_ROPE_LINEAR);
    ck_assert(c.dtype == MLA_F16 && c.rope.inv_freq[0] == 0.5);
    mla_config_free(&c);
    ck_ok(read_config(&c, "smollm2.json", &err));
    ck_assert(c.tied && c.head_dim == 64 && c.kv_heads == 3 && c.rope.theta == 100000 && c.rms_eps == 1e-5);
    mla_config_free(&c);
    ck_ok(read_config(&c, "mistral_nemo.json", &err));
    ck_assert(c.head_dim == 128 && c.heads * c.head_dim == 4096 && c.sliding_window == 0 && !c.q_bias);
    mla_config_free(&c);
    ck_ok(read_config(&c, "mistral_v01.json", &err));
    ck_assert_uint_eq(c.sliding_window, 4096);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen2.json", &err));
    ck_assert(c.q_bias && c.kv_bias && !c.o_bias && c.head_dim == 64 && c.sliding_window == 0 && c.tied);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3.json", &err));
    ck_assert(c.qk_norm && !c.norm_plus_one && c.head_dim == 128 && c.heads * c.head_dim == 2 * c.hidden && !c.q_bias);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3_v5.json", &err)); /* head_dim absent: the family's 128, not hidden / heads */
    ck_assert(c.head_dim == 128 && c.rope.kind == MLA_ROPE_YARN && c.rope.original_max == 32768);
    mla_config_free(&c);
}
END_TEST

START_TEST(retrofits_and_kv_scheme)
{
    mla_err err = {0};
    mla_config c;
    ck_ok(read_config(&c, "retrofit_qwen3_5.json", &err));
    ck_assert(c.mla.layout == MLA_LAYOUT_N && c.mla.groups == 2 && c.mla.rank[3] == 48 && c.mla.rank[0] == 0);
    ck_assert(c.mla.rotary_width == 16 && c.mla.dtype == MLA_BF16 && c.mla.factors_sha256[31] == 0);
    ck_assert_str_eq(c.mla.factors_file, "mla_factors-00001-of-00001.safetensors");
    mla_config_free(&c);
    ck_ok(read_config(&c, "retrofit_llama.json", &err));
    ck_assert(c.mla.layout == MLA_LAYOUT_REBUILD && c.mla.rank[1] == 24 && c.mla.dtype == MLA_F32 && c.mla.factors_sha256[0] == 0xab);
    mla_config_free(&c);
    ck_ok(read_config(&c, "qwen3_5_kv_scheme.json", &err)); /* describes the cache only: weights are not quantized */
    ck_assert(c.kv_scheme && !c.weights_quantized);
    ck_assert_str_eq(c.quant_method, "compressed-tensors");
    mla_config_free(&c);
}
END_TEST

static mla_status parse(mla_config *c, const char *text, mla_err *err)
{
    mla_json *d = NULL;
    mla_status st = mla_json_parse(&d, text, strlen(text), "text", err);
    if (st == MLA_OK) st = mla_config_from_json(c, mla_json_root(d), err);
    mla_json_free(d);
    return st;
}

#define CACHE_OF(name) "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":9,\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":2," \
                       "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":64,\"mla_kv_scales\":{" name "}}"
START_TEST(the_cache_scales_are_meant_for)
{
    mla_err err = {0};
    mla_config c;
    ck_ok(parse(&c, CACHE_OF("\"cache\":\"fp8-keys16\""), &err));
    ck_assert(c.kv_keys16 && !c.kv_scheme);
    mla_config_free(&c);
    ck_ok(parse(&c, CACHE_OF(""), &err));
    ck_assert(!c.kv_keys16);
    mla_config_free(&c);
    ck_refused(parse(&c, CACHE_OF("\"cache\":\"fp9\""), &err), MLA_EUNSUPPORTED, "mla_kv_scales.cache: expected fp8-keys16, found fp9");
    mla_config_free(&c);
}
END_TEST

#define QWEN3 "\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":9,\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":2," \
              "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"max_position_embeddings\":64,\"sliding_window\":16"

START_TEST(rotary_widths_by_layer)
{
    mla_err err = {0};
    mla_config c;
    mla_json *d;
    static const char *const TEXT[] = {"\"absorbed-rope\"", "1", "8", "[0, 0, 0, 8]"}, *const KEY[] = {"layout", "groups", "rotary_width", "rotary_widths"};
    ck_ok(mla_json_read(&d, mla_fixture("configs/retrofit_qwen3_5.json"), MAX, &err));
    mla_jv *b = mla_jv_get(mla_jv_get(mla_json_root(d), "text_config"), "mla");
    for (size_t i = 0; i < 4; i++) {
        mla_json *v;
        ck_ok(mla_json_parse(&v, TEXT[i], strlen(TEXT[i]), KEY[i], &err));
        ck_assert(mla_jv_set_copy(b, KEY[i], mla_json_root(v)) != NULL);
        mla_json_free(v);
    }
    ck_ok(mla_config_from_json(&c, mla_json_root(d), &err));
    ck_assert(c.mla.layout == MLA_LAYOUT_ABSORBED && mla_config_rotary_values(&c, 3) == 8 && mla_config_rotary_values(&c, 0) == 0);
    mla_config_free(&c);
    mla_json_free(d);
}
END_TEST

START_TEST(sliding_windows)
{
    static const struct {
        const char *more;
        size_t want;
    } W[] = {
        {"", 0}, /* use_sliding_window is false unless said */
        {",\"use_sliding_window\":true", 0}, /* max_window_layers 28 is past the end */
        {",\"use_sliding_window\":true,\"max_window_layers\":1", 16},
        {",\"use_sliding_window\":true,\"max_window_layers\":1,\"layer_types\":[\"full_attention\",\"full_attention\"]", 0},
        {",\"use_sliding_window\":true,\"layer_types\":[\"full_attention\",\"sliding_attention\"]", 16},
    };
    mla_err err = {0};
    mla_config c;
    char text[800];
    for (size_t i = 0; i < sizeof W / sizeof *W; i++) {
        snprintf(text, sizeof text, "{%s%s}", QWEN3, W[i].more);
        ck_ok(parse(&c, text, &err));
        ck_assert_msg(c.sliding_window == W[i].want, "case %zu: %zu", i, c.sliding_window);
        mla_config_free(&c);
    }
    ck_ok(parse(&c, "{\"model_type\":\"mistral\",\"vocab_size\":9,\"hidden_size\":64,\"intermediate_size\":8,\"num_hidden_layers\":1,"
                    "\"num_attention_heads\":8}", &err)); /* the key absent is 4096 in this family, 8 KV heads, type alone */
    ck_assert(c.sliding_window == 4096 && c.kv_heads == 8 && c.max_pos == 131072);
    ck_assert_str_eq(c.architecture, "MistralForCausalLM");
    mla_config_free(&c);
}
END_TEST

/* The object that holds the last part of a dotted key, and that part. */
static mla_jv *walk(mla_jv *v, const char *dotted, char *last)
{
    char part[96];
    for (const char *dot; (dot = strchr(dotted, '.')); dotted = dot + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - dotted), dotted);
        v = mla_jv_get(v, part);
        ck_assert_msg(v != NULL, "no %s", part);
    }
    strcpy(last, dotted);
    return v;
}

START_TEST(bad_configs)
{
    static const struct {
        const char *name;
        mla_status st;
    } ST[] = {{"format", MLA_EFORMAT}, {"unsupported", MLA_EUNSUPPORTED}, {"invalid", MLA_EINVAL}};
    mla_err err = {0};
    mla_json *list;
    size_t n = 0;
    ck_ok(mla_json_read(&list, mla_fixture("configs/bad.json"), MAX, &err));
    for (const mla_jv *b = mla_jv_first(mla_json_root(list)); b; b = mla_jv_next(b), n++) {
        char path[160], key[96];
        mla_json *d;
        mla_config c;
        snprintf(path, sizeof path, "configs/%s", mla_jv_str(mla_jv_get(b, "base")));
        ck_ok(mla_json_read(&d, mla_fixture(path), MAX, &err));
        ck_ok(mla_config_from_json(&c, mla_json_root(d), &err)); /* the base is good */
        mla_config_free(&c);
        for (const mla_jv *k = mla_jv_first(mla_jv_get(b, "drop")); k; k = mla_jv_next(k))
            mla_jv_remove(walk(mla_json_root(d), mla_jv_str(k), key), key);
        for (const mla_jv *k = mla_jv_first(mla_jv_get(b, "set")); k; k = mla_jv_next(k)) {
            mla_jv *at = walk(mla_json_root(d), mla_jv_key(k), key);
            ck_assert(mla_jv_set_copy(at, key, k) != NULL);
        }
        mla_status want = MLA_OK, st = mla_config_from_json(&c, mla_json_root(d), &err);
        for (size_t i = 0; i < 3; i++)
            if (!strcmp(ST[i].name, mla_jv_str(mla_jv_get(b, "status")))) want = ST[i].st;
        const char *name = mla_jv_str(mla_jv_get(b, "name")), *says = mla_jv_str(mla_jv_get(b, "says"));
        ck_assert_msg(st == want, "%s: %s (%s), wanted %s", name, mla_status_name(st), st ? err.msg : "accepted", mla_status_name(want));
        ck_assert_msg(strstr(err.msg, says) != NULL, "%s: \"%s\" lacks \"%s\"", name, err.msg, says);
        ck_assert_msg(strchr(err.msg, '\n') == NULL, "%s: more than one line", name);
        mla_config_free(&c); /* zeroed after a failure: harmless */
        mla_json_free(d);
    }
    ck_assert_uint_ge(n, 70);
    mla_json_free(list);
}
END_TEST

/* Every allocation of a read fails in turn: an error each time, nothing leaks (the sanitizer build looks). */
START_TEST(out_of_memory)
{
    mla_err err = {0};
    mla_config c;
    mla_json *d;
    ck_ok(mla_json_read(&d, mla_fixture("configs/retrofit_qwen3_5.json"), MAX, &err));
    long k = 0;
    for (;; k++) {
        mla_alloc_fail_after(k);
        mla_status st = mla_config_from_json(&c, mla_json_root(d), &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_int_eq(st, MLA_ENOMEM);
    }
    ck_assert_int_ge((int)k, 5);
    mla_config_free(&c);
    mla_json_free(d);
}
END_TEST

/* Frequencies against transformers. The oracle computes in f32: a power, a division, at most four more roundings. */
START_TEST(rope_against_transformers)
{
    mla_err err = {0};
    mla_json *list;
    size_t n = 0;
    const double tol = 16 * 0x1p-24;
    ck_ok(mla_json_read(&list, mla_fixture("configs/rope.json"), MAX, &err));
    for (const mla_jv *b = mla_jv_first(mla_jv_get(mla_json_root(list), "cases")); b; b = mla_jv_next(b), n++) {
        const char *name = mla_jv_str(mla_jv_get(b, "name"));
        mla_config c;
        double inv[256], want, af;
        size_t len, i = 0;
        ck_ok(mla_config_from_json(&c, mla_jv_get(b, "config"), &err));
        ck_assert(mla_jv_size(mla_jv_get(b, "len"), &len) && mla_jv_f64(mla_jv_get(b, "attention_factor"), &af));
        ck_assert_uint_eq(mla_jv_len(mla_jv_get(b, "inv_freq")), c.rope.rot / 2);
        mla_rope_inv_freq(&c, len, inv);
        for (const mla_jv *v = mla_jv_first(mla_jv_get(b, "inv_freq")); v; v = mla_jv_next(v), i++) {
            ck_assert(mla_jv_f64(v, &want));
            ck_assert_msg(fabs(inv[i] - want) <= tol * want, "%s at %zu: frequency %zu is %.9g, expected %.9g", name, len, i, inv[i], want);
        }
        ck_assert_msg(fabs(c.rope.attention_factor - af) <= 1e-12 * af, "%s: attention factor %.12g, expected %.12g", name,
                      c.rope.attention_factor, af);
        mla_config_free(&c);
    }
    ck_assert_uint_ge(n, 20);
    mla_json_free(list);
}
END_TEST

Suite *model_config_suite(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("good");
    tcase_add_test(t, qwen3_5_nested);
    tcase_add_test(t, published_27b);
    tcase_add_test(t, moe_is_read);
    tcase_add_test(t, llama_family);
    tcase_add_test(t, retrofits_and_kv_scheme);
    tcase_add_test(t, the_cache_scales_are_meant_for);
    tcase_add_test(t, rotary_widths_by_layer);
    tcase_add_test(t, sliding_windows);
    suite_add_tcase(s, t);
    t = tcase_create("bad");
    tcase_add_test(t, bad_configs);
    tcase_add_test(t, out_of_memory);
    suite_add_tcase(s, t);
    t = tcase_create("rope");
    tcase_add_test(t, rope_against_transformers);
    suite_add_tcase(s, t);
    return s;
}
