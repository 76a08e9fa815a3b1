/* A whole checkpoint against its config: the good one passes, each planted disagreement is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bag.h"
#include "base/alloc.h"
#include "harness.h"
#include "io/ckpt.h"
#include "suites.h"

/* A small model in int4: q_proj and up_proj of a layer from one golden module, plain norm, embedding and lm_head. */
typedef struct {
    mla_tensor t[32];
    char name[32][96];
    size_t n;
    bag b;
    char *dir;
} model;

static void put(model *m, const char *module, const char *part, const mla_tensor *like)
{
    ck_assert_uint_lt(m->n, 32);
    snprintf(m->name[m->n], sizeof m->name[0], "%s.%s", module, part);
    m->t[m->n] = *like;
    m->t[m->n].name = m->name[m->n];
    m->n++;
}

static void put_quantized(model *m, const char *module)
{
    for (size_t i = 0; i < m->b.n; i++) put(m, module, strchr(m->b.t[i].name, '.') + 1, &m->b.t[i]);
}

static void put_plain(model *m, const char *module, size_t ndim)
{
    static const uint16_t zeros[64];
    mla_tensor t = {.dtype = MLA_BF16, .ndim = ndim, .shape = {8, 8}, .data = zeros, .nbytes = ndim == 2 ? 128 : 16};
    put(m, module, "weight", &t);
}

static void model_new(model *m, const char *golden)
{
    memset(m, 0, sizeof *m);
    bag_open(&m->b, golden);
    m->dir = mla_test_tmpdir();
    put_plain(m, "model.embed_tokens", 2);
    put_plain(m, "lm_head", 2);
    put_plain(m, "model.layers.0.input_layernorm", 1);
    put_plain(m, "model.layers.0.conv1d", 1);
    put_quantized(m, "model.layers.0.self_attn.q_proj");
    put_quantized(m, "model.layers.0.mlp.up_proj");
}

static void model_free(model *m)
{
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
    remove(path);
    remove(m->dir);
    bag_free(&m->b);
    mla_free(m->dir);
}

static void drop(model *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (!strcmp(m->name[i], name)) m->t[i].name = NULL;
}

/* Writes and checks it. */
static mla_status checked(model *m, const char *config, mla_qsummary *sum, mla_err *err)
{
    char path[600];
    mla_tensor t[32];
    size_t n = 0;
    mla_ckpt *ck;
    snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
    for (size_t i = 0; i < m->n; i++)
        if (m->t[i].name) t[n] = m->t[i], t[n++].name = m->name[i];
    ck_assert_msg(mla_st_write(path, t, n, NULL, err) == MLA_OK, "%s", err->msg);
    ck_assert_msg(mla_ckpt_open(&ck, m->dir, err) == MLA_OK, "%s", err->msg);
    mla_qconfig *c = config_of(config);
    mla_status st = mla_qconfig_check(c, ck, sum, err);
    mla_qconfig_free(c);
    mla_ckpt_close(ck);
    return st;
}

#define CT(ignore, targets) "{'quant_method':'compressed-tensors','format':'pack-quantized','ignore':[" ignore "],'config_groups':{'g':{" \
    "'targets':[" targets "],'weights':{'num_bits':4,'type':'int','strategy':'group','group_size':128}}}}"

START_TEST(good)
{
    static const char *const CONFIG[] = {
        CT("'lm_head'", "'Linear'"), CT("'re:.*lm_head'", "'re:.*_proj$'"), CT("", "'model.layers.0.self_attn.q_proj','re:.*up_proj'"),
        CT("'lm_head','model.layers.0.input_layernorm','model.embed_tokens'", "'Linear'")};
    mla_err err;
    model m;
    mla_qsummary s;
    model_new(&m, "ct_int4_sym_g128");
    for (size_t i = 0; i < sizeof CONFIG / sizeof *CONFIG; i++) {
        ck_ok(checked(&m, CONFIG[i], &s, &err));
        ck_assert(s.quantized == 2 && s.plain == 1);
        ck_assert_uint_eq(s.bytes, 2 * (192 * 32 * 4 + 192 * 2 * 2 + 16));
    }
    drop(&m, "lm_head.weight"); /* tied: its exclusion may stay */
    ck_ok(checked(&m, CONFIG[0], &s, &err));
    ck_assert_uint_eq(s.plain, 0);
    model_free(&m);
}
END_TEST

static const struct { const char *config, *add_plain, *drop, *says; } CASE[] = {
    {CT("", "'Linear'"), NULL, NULL, "lm_head: stored plain, but target \"Linear\" of g quantizes it"},
    {CT("'lm_head'", "'Linear'"), "model.layers.0.mlp.down_proj", NULL, "model.layers.0.mlp.down_proj: stored plain"},
    {CT("'lm_head','re:^audio.*'", "'Linear'"), NULL, NULL, "the exclusion \"^audio.*\" names no module"},
    {CT("'lm_head','model.layers.7.mlp.up_proj'", "'Linear'"), NULL, NULL, "the exclusion \"model.layers.7.mlp.up_proj\" names no module"},
    {CT("'lm_head'", "'Linear','re:.*experts.*'"), NULL, NULL, "the target \".*experts.*\" names no module"},
    {CT("'lm_head','model.layers.0.mlp.up_proj'", "'Linear'"), NULL, NULL, "model.layers.0.mlp.up_proj: stored as compressed-tensors pack-quantized, but the exclusion"},
    {CT("'lm_head'", "'re:.*q_proj'"), NULL, NULL, "model.layers.0.mlp.up_proj: stored as"},
    {CT("'lm_head'", "'Linear'"), NULL, "model.layers.0.mlp.up_proj.weight_shape", "model.layers.0.mlp.up_proj.weight_shape: absent"},
    {CT("'lm_head'", "'Linear'"), NULL, "model.layers.0.mlp.up_proj.weight_packed", "a part of a quantized matrix that is not there"},
    {"null", NULL, NULL, "config.json without quantization_config"},
    {"{'quant_method':'exl3','bits':4}", NULL, NULL, "the exl3 config says EXL3"},
};

START_TEST(refused)
{
    mla_err err;
    model m;
    mla_qsummary s;
    model_new(&m, "ct_int4_sym_g128");
    if (CASE[_i].add_plain) put_plain(&m, CASE[_i].add_plain, 2);
    if (CASE[_i].drop) drop(&m, CASE[_i].drop);
    ck_refused(checked(&m, CASE[_i].config, &s, &err), MLA_EFORMAT, CASE[_i].says);
    model_free(&m);
}
END_TEST

/* Other methods: their own lists and defaults. */
START_TEST(methods)
{
    mla_err err;
    model m;
    mla_qsummary s;
    model_new(&m, "fp8_hf_block128");
#define FP8 "{'quant_method':'fp8','weight_block_size':[128,128],'modules_to_not_convert':"
    ck_ok(checked(&m, FP8 "null}", &s, &err)); /* lm_head stays plain by default */
    ck_assert(s.quantized == 2 && s.plain == 1);
    ck_ok(checked(&m, FP8 "['lm_head']}", &s, &err));
    ck_refused(checked(&m, FP8 "['model.audio']}", &s, &err), MLA_EFORMAT, "the exclusion \"model.audio\" names no module");
    put_plain(&m, "model.layers.0.linear_attn.in_proj_a", 2);
    ck_refused(checked(&m, FP8 "null}", &s, &err), MLA_EFORMAT, "model.layers.0.linear_attn.in_proj_a: stored plain, but the fp8 config");
    ck_ok(checked(&m, FP8 "['model.layers.0.linear_attn']}", &s, &err));
    ck_assert(s.quantized == 2 && s.plain == 2);
    model_free(&m);
    model_new(&m, "awq_gemm_g128");
#define AWQ "{'quant_method':'awq','bits':4,'group_size':128,'zero_point':true,'version':'gemm','modules_to_not_convert':"
    put_plain(&m, "model.visual.proj", 2);
    ck_ok(checked(&m, AWQ "null}", &s, &err));
    ck_ok(checked(&m, AWQ "['visual']}", &s, &err));
    ck_assert(s.quantized == 2 && s.plain == 2);
    put_plain(&m, "model.layers.0.mlp.gate", 2);
    ck_refused(checked(&m, AWQ "null}", &s, &err), MLA_EFORMAT, "model.layers.0.mlp.gate: stored plain, but the awq config");
    model_free(&m);
    model_new(&m, "gptq_v1_sym_g128");
#define GPTQ "{'quant_method':'gptq','bits':4,'group_size':128,'dynamic':"
    ck_ok(checked(&m, GPTQ "null}", &s, &err));
    ck_refused(checked(&m, GPTQ "{'-:.*experts':{}}}", &s, &err), MLA_EFORMAT, "the exclusion \".*experts\" names no module");
    ck_refused(checked(&m, GPTQ "{'+:.*up_proj':{'group_size':64}}}", &s, &err), MLA_EFORMAT, "dynamic \"+:.*up_proj\"");
    m.n = 4; /* only the plain ones */
    ck_refused(checked(&m, GPTQ "null}", &s, &err), MLA_EFORMAT, "gptq, but no module is quantized");
    ck_ok(checked(&m, "null", &s, &err));
    ck_assert(s.quantized == 0 && s.plain == 1);
    /* a config that only carries KV-cache scales */
    ck_ok(checked(&m, "{'quant_method':'compressed-tensors','kv_cache_scheme':{'num_bits':8},'config_groups':{}}", &s, &err));
    model_free(&m);
}
END_TEST

/* Every allocation of reading and checking may fail; nothing leaks or breaks. */
START_TEST(allocations)
{
    mla_err err = {0};
    model m;
    mla_ckpt *ck;
    mla_qsummary s;
    model_new(&m, "ct_int4_sym_g128");
    ck_ok(checked(&m, CT("'lm_head','re:.*norm'", "'Linear'"), &s, &err));
    ck_ok(mla_ckpt_open(&ck, m.dir, &err));
    mla_json *d;
    static const char text[] = "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128,\"dynamic\":{\"-:a.*\":{},\"b\":{\"bits\":8}},"
                               "\"modules_in_block_to_quantize\":[[\"x\",\"y\"],\"z\"]}";
    ck_ok(mla_json_parse(&d, text, strlen(text), "t", &err));
    long k = 0;
    mla_status st = MLA_ENOMEM;
    for (; st != MLA_OK && k < 200; k++) {
        mla_qconfig *c = NULL;
        mla_alloc_fail_after(k);
        st = mla_qconfig_read(&c, mla_json_root(d), &err);
        mla_alloc_fail_after(-1);
        ck_assert(st == MLA_OK || (st == MLA_ENOMEM && !c));
        mla_qconfig_free(c);
    }
    ck_assert_int_gt(k, 5);
    mla_qconfig *c = config_of(CT("'lm_head','re:.*norm'", "'Linear'"));
    for (k = 0, st = MLA_ENOMEM; st != MLA_OK && k < 200; k++) {
        mla_alloc_fail_after(k);
        st = mla_qconfig_check(c, ck, &s, &err);
        mla_alloc_fail_after(-1);
        ck_assert(st == MLA_OK || st == MLA_ENOMEM);
    }
    ck_assert_int_gt(k, 5);
    mla_qconfig_free(c);
    mla_json_free(d);
    mla_ckpt_close(ck);
    model_free(&m);
}
END_TEST

Suite *suite_qcheck(void)
{
    Suite *s = suite_create("qcheck");
    TCase *c = tcase_create("qcheck");
    tcase_add_test(c, good);
    tcase_add_loop_test(c, refused, 0, sizeof CASE / sizeof *CASE);
    tcase_add_test(c, methods);
    tcase_add_test(c, allocations);
    suite_add_tcase(s, c);
    return s;
}
