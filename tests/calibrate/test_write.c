/* Scales in a checkpoint folder: written, announced, read back, replaced, refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "lab.h"
#include "model/writer.h"

/* A folder of its own with the tiny hybrid's files. */
static char *copy_base(void)
{
    static const char *const FILE_NAME[] = {"config.json", "model.safetensors", "tokenizer.json"};
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), to[600], from[600];
    for (size_t i = 0; i < 3; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, FILE_NAME[i]);
        snprintf(from, sizeof from, "%s/%s", mla_fixture("tiny-hybrid"), FILE_NAME[i]);
        ck_ok(mla_file_place(from, to, NULL, &err));
    }
    return dir;
}

static mla_cal measure(lab *l, mla_cal_spelling s)
{
    mla_err err = {0};
    mla_cal c;
    int32_t *ids = lab_ids(l, "tune.jsonl", 300);
    ck_ok(mla_cal_measure(&c, l->rt, ids, 300, s, &(mla_cal_opts){.row_tokens = 150}, &err));
    mla_free(ids);
    return c;
}

/* The folder's model runs with an FP8 cache, and its scales are c's. */
static void check_serves(const char *dir, const mla_cal *c)
{
    mla_err err = {0};
    lab l = lab_open(dir, (mla_rt_opts){.kv_dtype = MLA_F8_E4M3, .mtp = true}, 1);
    mla_seq *s;
    ck_ok(mla_seq_new(&s, l.rt, 8, &err));
    mla_seq_free(s);
    for (size_t i = 0; i < c->n; i++) {
        mla_kv_scale k;
        ck_ok(mla_model_kv_scale(l.m, c->layer[i].layer, &k, &err));
        ck_assert(k.present && k.k == c->layer[i].k.scale && k.v == c->layer[i].v.scale);
    }
    lab_close(&l);
}

static mla_json *config_of(const char *dir)
{
    mla_err err = {0};
    mla_json *d;
    char path[600];
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_ok(mla_json_read(&d, path, 1 << 20, &err));
    return d;
}

START_TEST(keys_and_values)
{
    mla_err err = {0};
    char *dir = copy_base(), path[600];
    for (int round = 0; round < 3; round++) { /* the second and third replace what the one before wrote */
        mla_cal_spelling sp = round == 1 ? MLA_CAL_MODELOPT : MLA_CAL_CT;
        lab l = lab_open(dir, (mla_rt_opts){.mtp = true}, 1);
        mla_cal c = measure(&l, round == 2 ? mla_cal_spelling_of(l.c) : sp);
        if (round == 2) ck_assert(mla_cal_spelling_of(l.c) == MLA_CAL_CT || mla_cal_spelling_of(l.c) == MLA_CAL_MODELOPT);
        ck_ok(mla_cal_write(&c, l.m, round == 2 ? mla_cal_spelling_of(l.c) : sp, &err));
        lab_close(&l);
        check_serves(dir, &c);
        mla_st *s;
        snprintf(path, sizeof path, "%s/%s", dir, MLA_KV_SCALES_FILE);
        ck_ok(mla_st_open(&s, path, &err));
        ck_assert_uint_eq(mla_st_count(s), 10);
        const mla_tensor *t = mla_st_find(s, round == 0 ? "model.language_model.layers.3.self_attn.k_scale" : "model.language_model.layers.3.self_attn.k_proj.k_scale");
        if (round < 2) {
            ck_assert(t && t->dtype == (round ? MLA_F32 : MLA_BF16) && t->ndim == (round ? 0 : 1));
            ck_assert(mla_st_find(s, round ? "mtp.layers.0.self_attn.v_proj.v_scale" : "mtp.layers.0.self_attn.v_scale") != NULL);
        }
        mla_st_close(s);
        mla_json *d = config_of(dir);
        const mla_jv *q = mla_jv_get(mla_json_root(d), "quantization_config"), *k = mla_jv_get(q, "kv_cache_scheme");
        size_t bits;
        ck_assert(mla_jv_size(mla_jv_get(k, "num_bits"), &bits) && bits == 8);
        if (!round) ck_assert_str_eq(mla_jv_str(mla_jv_get(q, "quant_method")), "compressed-tensors");
        ck_assert_str_eq(mla_jv_str(mla_jv_get(mla_jv_get(mla_json_root(d), "mla_kv_scales"), "format")), MLA_KV_SCALES_FORMAT);
        mla_json_free(d);
        mla_cal_free(&c);
    }
    mla_free(dir);
}
END_TEST

/* A retrofit folder as docs/format-factors.md describes it, with exact factors. */
static char *make_retrofit(void)
{
    mla_err err = {0};
    char *dir = mla_test_tmpdir(), path[600], name[12][96];
    enum { N = 224 };
    size_t rank[8] = {0}, shape[3] = {1, N, N}, nt = 0;
    mla_model *m;
    mla_json *doc;
    float *eye = mla_alloc(N * N, 4, 1), mean[N] = {0};
    uint16_t *eye16 = mla_alloc(N * N, 2, 1);
    mla_tensor t[12];
    for (size_t i = 0; i < N; i++) eye[i * N + i] = 1;
    mla_from_f32(eye16, eye, MLA_BF16, N * N);
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_writer_place_base(m, dir, NULL, NULL, &err));
    for (size_t l = 1; l < 8; l += 2) {
        rank[l] = N;
        for (size_t k = 0; k < 3; k++) {
            static const char *const WHAT[] = {"encoder.weight", "decoder.weight", "mean"};
            snprintf(name[nt], sizeof name[nt], "model.language_model.layers.%zu.self_attn.mla.%s", l, WHAT[k]);
            t[nt] = (mla_tensor){.name = name[nt], .dtype = k == 2 ? MLA_F32 : MLA_BF16, .ndim = k == 2 ? 2 : 3, .data = k == 2 ? (void *)mean : eye16,
                                 .nbytes = k == 2 ? N * 4 : N * N * 2};
            memcpy(t[nt].shape, shape, sizeof shape);
            nt++;
        }
    }
    mla_retrofit_config r = {.layout = MLA_LAYOUT_N, .groups = 1, .rank = rank, .rotary_width = 32, .dtype = MLA_BF16};
    char file[] = "mla_factors-00001-of-00001.safetensors";
    const char *added[1] = {file};
    r.factors_file = file;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    ck_ok(mla_st_write(path, t, nt, r.factors_sha256, &err));
    ck_ok(mla_writer_index(m, dir, added, 1, &err));
    ck_ok(mla_writer_config(&doc, m, &r, NULL, &err));
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_ok(mla_json_write(path, mla_json_root(doc), &err));
    mla_json_free(doc);
    mla_model_close(m);
    mla_free(eye);
    mla_free(eye16);
    return dir;
}

START_TEST(latents)
{
    mla_err err = {0};
    char *dir = make_retrofit();
    lab l = lab_open(dir, (mla_rt_opts){.mtp = true}, 1);
    mla_cal c = measure(&l, MLA_CAL_CT);
    ck_assert(c.retrofit && c.scale_dtype == MLA_F32 && !strcmp(c.layer[0].k.name, "latent") && !strcmp(c.layer[4].k.name, "keys"));
    ck_ok(mla_cal_write(&c, l.m, MLA_CAL_CT, &err));
    lab_close(&l);
    check_serves(dir, &c);
    mla_json *d = config_of(dir);
    ck_assert(mla_jv_get(mla_json_root(d), "quantization_config") == NULL); /* no engine reads these names */
    ck_assert_str_eq(mla_jv_str(mla_jv_get(mla_jv_get(mla_json_root(d), "mla_kv_scales"), "spelling")), "mla");
    mla_json_free(d);
    mla_cal_free(&c);
    mla_free(dir);
}
END_TEST

/* Scales that stand in a file of the base's own are not doubled. */
START_TEST(foreign_scales)
{
    mla_err err = {0};
    char *dir = copy_base(), from[600], to[600];
    lab l = lab_open(dir, (mla_rt_opts){.mtp = true}, 1);
    mla_cal c = measure(&l, MLA_CAL_CT);
    ck_ok(mla_cal_write(&c, l.m, MLA_CAL_CT, &err));
    lab_close(&l);
    snprintf(from, sizeof from, "%s/%s", dir, MLA_KV_SCALES_FILE);
    snprintf(to, sizeof to, "%s/other.safetensors", dir);
    ck_ok(mla_path_rename(from, to, &err));
    snprintf(to, sizeof to, "%s/model.safetensors.index.json", dir);
    char *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, to, 1 << 20, &err));
    for (char *p = text; (p = strstr(p, MLA_KV_SCALES_FILE)); p++) {
        memcpy(p, "other.safetensors", 17);
        memmove(p + 17, p + strlen(MLA_KV_SCALES_FILE), strlen(p + strlen(MLA_KV_SCALES_FILE)) + 1);
    }
    ck_ok(mla_file_write(to, text, strlen(text), &err));
    mla_free(text);
    l = lab_open(dir, (mla_rt_opts){.mtp = true}, 1);
    ck_refused(mla_cal_write(&c, l.m, MLA_CAL_CT, &err), MLA_EINVAL, "has KV scales already");
    lab_close(&l);
    mla_cal_free(&c);
    mla_free(dir);
}
END_TEST

START_TEST(spellings)
{
    mla_cal_spelling s;
    ck_assert(mla_cal_spelling_parse("modelopt", &s) && s == MLA_CAL_MODELOPT);
    ck_assert(mla_cal_spelling_parse("compressed-tensors", &s) && s == MLA_CAL_CT);
    ck_assert(!mla_cal_spelling_parse("vllm", &s));
}
END_TEST

Suite *write_suite(void)
{
    Suite *s = suite_create("write");
    TCase *t = tcase_create("write");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, keys_and_values);
    tcase_add_test(t, latents);
    tcase_add_test(t, foreign_scales);
    tcase_add_test(t, spellings);
    suite_add_tcase(s, t);
    return s;
}
