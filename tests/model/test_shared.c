/* Shared-rotary factor files: what is written reads back, as our folder and as one of the plugin's maker; headers and
 * tensors that contradict the model are refused by name. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/shared.h"
#include "model/writer.h"
#include "model_tests.h"

enum { RANK = 24, LAYERS = 4 };

static const char SOURCE[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

typedef struct {
    mla_model *base;
    mla_shared s[LAYERS];
    char *dir;
} folder;

/* A whole folder beside the tiny hybrid with R shared keys. */
static folder make(size_t R)
{
    mla_err err = {0};
    folder f = {.dir = mla_test_tmpdir()};
    mla_placed p;
    char file[] = MLA_SHARED_FILE;
    ck_ok(mla_model_open(&f.base, mla_fixture("tiny-hybrid"), &err));
    const mla_config *c = mla_model_config(f.base);
    mla_retrofit_config r = {.layout = MLA_LAYOUT_SHARED, .groups = 1, .dtype = MLA_F32, .factors_file = file, .rotary_width = R * c->rope.rot};
    r.rank = mla_alloc(c->layers, 1, sizeof *r.rank);
    for (size_t l = 0, i = 0; l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        r.rank[l] = RANK;
        ck_ok(mla_shared_new(&f.s[i], c, RANK, R, &err));
        for (size_t k = 0; k < mla_shared_floats(&f.s[i]); k++) f.s[i].E[k] = (float)mla_rng_normal(7 + i, k);
        i++;
    }
    mla_json *doc;
    ck_ok(mla_writer_place_base(f.base, f.dir, NULL, &p, &err));
    ck_ok(mla_dir_make(in_dir(f.dir, "mla_artifact"), &err));
    ck_ok(mla_shared_write(in_dir(f.dir, MLA_SHARED_FILE), f.base, f.s, SOURCE, r.factors_sha256, &err));
    ck_ok(mla_writer_index(f.base, f.dir, NULL, 0, &err));
    ck_ok(mla_writer_config(&doc, f.base, &r, NULL, &err));
    ck_ok(mla_json_write(in_dir(f.dir, "config.json"), mla_json_root(doc), &err));
    mla_json_free(doc);
    mla_free(r.rank);
    return f;
}

static void drop(folder *f)
{
    for (size_t i = 0; i < LAYERS; i++) mla_shared_free(&f->s[i]);
    mla_model_close(f->base);
    mla_free(f->dir);
}

static void same(const folder *f, const mla_model *m)
{
    mla_err err = {0};
    for (size_t i = 0; i < LAYERS; i++) {
        mla_shared s;
        ck_ok(mla_model_shared(m, 2 * i + 1, &s, &err));
        ck_assert(s.r == RANK && s.R == f->s[i].R && !memcmp(s.E, f->s[i].E, mla_shared_floats(&s) * sizeof *s.E));
        mla_shared_free(&s);
    }
}

START_TEST(round_trip)
{
    mla_err err = {0};
    size_t R = _i ? 3 : 1;
    folder f = make(R);
    mla_model *m;
    mla_teacher a, b;
    mla_shared s;
    ck_ok(mla_model_open(&m, f.dir, &err));
    const mla_config *c = mla_model_config(m);
    ck_assert_str_eq(c->architecture, R == 1 ? "SabiMlaForConditionalGeneration" : "Qwen3_5MLAForConditionalGeneration");
    ck_assert_str_eq(c->model_type, R == 1 ? "sabi_mla" : "qwen3_5");
    ck_assert(c->mla.layout == MLA_LAYOUT_SHARED && c->mla.rank[3] == RANK && c->mla.rank[2] == 0 && c->mla.rotary_width == R * c->rope.rot);
    same(&f, m);
    ck_ok(mla_teacher_of(&a, f.base, &err));
    ck_ok(mla_model_shared_teacher(m, &b, &err));
    ck_assert(!strcmp(a.format, "original_bf16") && !strcmp(a.format, b.format) && !strcmp(a.fingerprint, b.fingerprint));
    ck_refused(mla_model_shared(m, 0, &s, &err), MLA_EINVAL, "no full-attention layer");
    ck_refused(mla_model_shared(f.base, 1, &s, &err), MLA_EINVAL, "no shared-rotary factors");
    mla_model_close(m);
    drop(&f);
}
END_TEST

/* Copies the factor file with one header value or tensor changed: key NULL keeps the header. */
static void rewrite(const char *dir, const char *key, const char *value, const char *without, const char *extra)
{
    mla_err err = {0};
    mla_st *in;
    mla_stw *out;
    const char *path = in_dir(dir, MLA_SHARED_FILE), *tmp = in_dir(dir, "mla_artifact/new.safetensors");
    ck_ok(mla_st_open(&in, path, &err));
    ck_ok(mla_stw_new(&out, tmp, &err));
    for (size_t i = 0; i < mla_st_meta_count(in); i++) {
        bool hit = key && !strcmp(mla_st_meta_key(in, i), key);
        if (!hit || value) ck_ok(mla_stw_meta(out, mla_st_meta_key(in, i), hit ? value : mla_st_meta_value(in, i), &err));
    }
    for (size_t i = 0; i < mla_st_count(in); i++) {
        const mla_tensor *t = mla_st_at(in, i);
        if (!without || strcmp(t->name, without)) ck_ok(mla_stw_declare(out, t->name, t->dtype, t->ndim, t->shape, &err));
    }
    if (extra) ck_ok(mla_stw_declare(out, extra, MLA_F32, 1, (size_t[]){2}, &err));
    ck_ok(mla_stw_begin(out, &err));
    for (size_t i = 0; i < mla_stw_count(out); i++) {
        const mla_tensor *t = mla_stw_at(out, i), *from = mla_st_find(in, t->name);
        float zero[2] = {0};
        ck_ok(mla_stw_write(out, from ? from->data : zero, t->nbytes, &err));
    }
    ck_ok(mla_stw_commit(out, NULL, &err));
    mla_st_close(in);
    ck_ok(mla_path_rename(tmp, path, &err));
}

static void edit_config(const char *dir, const char *drop_key, const char *set_key, const char *value)
{
    mla_err err = {0};
    mla_json *doc;
    ck_ok(mla_json_read(&doc, in_dir(dir, "config.json"), 1 << 20, &err));
    mla_jv *t = mla_writer_text_config(doc);
    if (drop_key) mla_jv_remove(t, drop_key);
    if (set_key) mla_jv_set_str(mla_jv_get(t, "shared_mla"), set_key, value);
    ck_ok(mla_json_write(in_dir(dir, "config.json"), mla_json_root(doc), &err));
    mla_json_free(doc);
}

/* A folder of the plugin's maker has no "mla" block: rank and rotary width come from the factor file. */
START_TEST(plugin_made)
{
    mla_err err = {0};
    folder f = make(1);
    mla_model *m;
    edit_config(f.dir, "mla", NULL, NULL);
    ck_ok(mla_model_open(&m, f.dir, &err));
    ck_assert(mla_model_config(m)->mla.rank[7] == RANK && mla_model_config(m)->mla.rotary_width == 8);
    same(&f, m);
    mla_model_close(m);
    drop(&f);
}
END_TEST

START_TEST(refused)
{
    static const struct {
        const char *key, *value, *without, *extra, *says;
        mla_status st;
    } CASE[] = {
        {"kind", "\"other\"", NULL, NULL, "kind", MLA_EUNSUPPORTED},
        {"kind", NULL, NULL, NULL, "\"kind\" is missing", MLA_EFORMAT},
        {"semantics", "{\"rotary_width\":8}", NULL, NULL, "semantics.latent_encoder", MLA_EFORMAT},
        {"semantics", "{\"rotary_width\":16}", NULL, NULL, "rotary_width", MLA_EFORMAT},
        {"geometry", "{\"hidden_size\":255,\"rank\":24}", NULL, NULL, "geometry.hidden_size: expected 256", MLA_EFORMAT},
        {"geometry", "{\"rank\":0}", NULL, NULL, "geometry.rank", MLA_EFORMAT},
        {"geometry", "{\"rank\":25,\"hidden_size\":256,\"query_heads\":12,\"kv_heads\":4,\"head_dim\":32,\"rotary_dim\":8}", NULL, NULL, "cache_width", MLA_EFORMAT},
        {NULL, NULL, "layers.3.rotary_query", NULL, "layers.3.rotary_query is missing", MLA_EFORMAT},
        {NULL, NULL, NULL, "layers.0.mean_v", "25 tensors, expected 24", MLA_EFORMAT},
    };
    mla_err err = {0};
    folder f = make(1);
    mla_model *m;
    char *keep;
    size_t n;
    ck_ok(mla_file_read(&keep, &n, in_dir(f.dir, MLA_SHARED_FILE), (size_t)1 << 30, &err));
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        rewrite(f.dir, CASE[i].key, CASE[i].value, CASE[i].without, CASE[i].extra);
        ck_refused(mla_model_open(&m, f.dir, &err), CASE[i].st, CASE[i].says);
        ck_ok(mla_file_write(in_dir(f.dir, MLA_SHARED_FILE), keep, n, &err));
    }
    mla_free(keep);
    edit_config(f.dir, NULL, "artifact_sha256", "00");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "shared_mla.artifact_sha256");
    edit_config(f.dir, NULL, "artifact", "../x.safetensors");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "shared_mla.artifact");
    drop(&f);
}
END_TEST

START_TEST(models_that_cannot)
{
    mla_err err = {0};
    mla_config c = {.heads = 4, .kv_heads = 2, .head_dim = 16, .hidden = 64, .rope = {.rot = 16, .attention_factor = 1}};
    ck_refused(mla_shared_fits(&c, &err), MLA_EUNSUPPORTED, "rotates all 16");
    c.rope.rot = 10;
    ck_refused(mla_shared_fits(&c, &err), MLA_EUNSUPPORTED, "10 rotated dims need as many");
    c.rope.rot = 0;
    ck_refused(mla_shared_fits(&c, &err), MLA_EUNSUPPORTED, "rotates no key dims");
    c.rope.rot = 8;
    c.rope.attention_factor = 1.2;
    ck_refused(mla_shared_fits(&c, &err), MLA_EUNSUPPORTED, "attention factor");
    c.family = MLA_FAM_DEEPSEEK;
    ck_refused(mla_shared_fits(&c, &err), MLA_EUNSUPPORTED, "already");
}
END_TEST

Suite *model_shared_suite(void)
{
    Suite *s = suite_create("shared-rotary");
    TCase *t = tcase_create("shared-rotary");
    tcase_add_loop_test(t, round_trip, 0, 2);
    tcase_add_test(t, plugin_made);
    tcase_add_test(t, refused);
    tcase_add_test(t, models_that_cannot);
    suite_add_tcase(s, t);
    return s;
}
