/* Factors and KV scales: sizes, what is stored, how it is read, what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "build.h"
#include "harness.h"
#include "model/model.h"
#include "model_tests.h"

#define FACTORS "mla_factors-00001-of-00001.safetensors"
#define SCALES "mla_kv_scales.safetensors"
#define VL "model.language_model."

START_TEST(sizes)
{
    mla_err err = {0};
    mla_config c;
    mla_factors f;
    size_t n;
    ck_ok(read_config(&c, "qwen3_5_vl.json", &err)); /* 2 KV heads of 32, 8 rotate */
    ck_ok(mla_factors_dims(&c, MLA_LAYOUT_N, 1, &n, &err));
    ck_assert_uint_eq(n, 2 * (24 + 32));
    ck_ok(mla_factors_dims(&c, MLA_LAYOUT_N, 2, &n, &err));
    ck_assert_uint_eq(n, 24 + 32);
    ck_ok(mla_factors_dims(&c, MLA_LAYOUT_REBUILD, 1, &n, &err));
    ck_assert_uint_eq(n, 2 * 64);
    ck_refused(mla_factors_dims(&c, MLA_LAYOUT_N, 3, &n, &err), MLA_EINVAL, "groups: 3 does not divide 2 KV heads");
    ck_refused(mla_factors_dims(&c, MLA_LAYOUT_N, 0, &n, &err), MLA_EINVAL, "groups: 0");
    ck_refused(mla_factors_dims(&c, MLA_LAYOUT_NONE, 1, &n, &err), MLA_EINVAL, "layout");
    ck_ok(mla_factors_new(&f, MLA_LAYOUT_N, 2, 56, 56, &err));
    mla_factors_identity(&f);
    ck_assert(f.E[56 * 56 + 56 + 1] == 1 && f.E[56 * 56 + 56] == 0 && f.D[56 * 56 - 1] == 1 && f.mu[111] == 0);
    ck_assert_uint_eq(mla_factors_cached(&c, &f), 2 * 56 + 2 * 8);
    mla_factors_free(&f);
    ck_refused(mla_factors_new(&f, MLA_LAYOUT_N, 2, 56, 57, &err), MLA_EINVAL, "rank 57 outside 1..56");
    ck_refused(mla_factors_new(&f, MLA_LAYOUT_N, 2, 56, 0, &err), MLA_EINVAL, "rank 0 outside");
    ck_refused(mla_factors_new(&f, MLA_LAYOUT_N, SIZE_MAX / 4, 56, 8, &err), MLA_ENOMEM, "factors of");
    mla_factors_free(&f);
    mla_config_free(&c);
}
END_TEST

/* A retrofit folder: base tensors in one file, factors in another, under an index written by hand. */
typedef struct {
    char *dir;
    mla_config c;
    bset base, extra;
    const char *extra_file;
} made;

static void write_index(const made *m)
{
    mla_err err = {0};
    mla_json *d;
    ck_ok(mla_json_new_object(&d, &err));
    mla_jv *w = mla_jv_set_obj(mla_json_root(d), "weight_map");
    for (size_t i = 0; i < m->base.n; i++) ck_assert(mla_jv_set_str(w, m->base.t[i].name, "model.safetensors") != NULL);
    for (size_t i = 0; i < m->extra.n; i++) ck_assert(mla_jv_set_str(w, m->extra.t[i].name, m->extra_file) != NULL);
    ck_ok(mla_json_write(in_dir(m->dir, "model.safetensors.index.json"), mla_json_root(d), &err));
    mla_json_free(d);
    bset_write(&m->base, m->dir, "model.safetensors");
    if (m->extra.n) bset_write(&m->extra, m->dir, m->extra_file);
}

static made make(const char *fixture)
{
    mla_err err = {0};
    char name[96];
    made m = {.dir = mla_test_tmpdir(), .extra_file = FACTORS};
    ck_ok(read_config(&m.c, fixture, &err));
    snprintf(name, sizeof name, "configs/%s", fixture);
    copy_fixture(name, m.dir, "config.json");
    bset_model(&m.base, &m.c, m.c.has_vision ? VL : "model.");
    if (m.c.mtp_layers) bset_mtp(&m.base, &m.c);
    return m;
}

static void unmake(made *m)
{
    mla_err err = {0};
    ck_ok(mla_dir_remove(m->dir, &err));
    mla_free(m->dir);
    mla_config_free(&m->c);
    bset_free(&m->base);
    bset_free(&m->extra);
}

static void add_factors(made *m, size_t layer, const char *prefix)
{
    size_t n = 0, g = m->c.mla.groups, r = m->c.mla.rank[layer] / g;
    mla_err err = {0};
    ck_ok(mla_factors_dims(&m->c, m->c.mla.layout, g, &n, &err));
    bset_add(&m->extra, g, r, n, "%slayers.%zu.self_attn.mla.encoder.weight", prefix, layer)->dtype = m->c.mla.dtype;
    bset_add(&m->extra, g, n, r, "%slayers.%zu.self_attn.mla.decoder.weight", prefix, layer)->dtype = m->c.mla.dtype;
    bset_add(&m->extra, g, n, 0, "%slayers.%zu.self_attn.mla.mean", prefix, layer)->dtype = MLA_F32;
}

START_TEST(factors_round_trip)
{
    mla_err err = {0};
    mla_model *m;
    mla_factors f;
    made r = make("retrofit_qwen3_5.json"); /* layout N, 2 groups, rank 48 in layer 3, bf16 */
    add_factors(&r, 3, VL);
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_ok(mla_model_factors(m, 3, &f, &err));
    ck_assert(f.layout == MLA_LAYOUT_N && f.groups == 2 && f.n == 56 && f.r == 24);
    const bt *e = bset_find(&r.extra, VL "layers.3.self_attn.mla.encoder.weight"), *d = bset_find(&r.extra, VL "layers.3.self_attn.mla.decoder.weight");
    ck_assert(!memcmp(f.E, e->v, e->count * 4) && !memcmp(f.D, d->v, d->count * 4));
    ck_assert(!memcmp(f.mu, bset_find(&r.extra, VL "layers.3.self_attn.mla.mean")->v, 112 * 4));
    ck_assert_uint_eq(mla_factors_cached(mla_model_config(m), &f), 48 + 16);
    mla_factors_free(&f);
    ck_refused(mla_model_factors(m, 0, &f, &err), MLA_EINVAL, "layer 0 is no full-attention layer");
    ck_refused(mla_model_factors(m, 99, &f, &err), MLA_EINVAL, "layer 99");
    ck_assert(mla_model_has(m, MLA_W_K, 3)); /* the base's own projections stay */
    mla_model_close(m);
    unmake(&r);

    r = make("retrofit_p.json"); /* layout p in the older spelling */
    add_factors(&r, 3, VL);
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "layers.3.self_attn.mla.divisor_center");
    bt *ce = bset_add(&r.extra, r.c.kv_heads, 0, 0, VL "layers.3.self_attn.mla.divisor_center");
    ce->dtype = MLA_F32;
    for (size_t g = 0; g < ce->count; g++) ce->v[g] = 0.5f + (float)g;
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_ok(mla_model_factors(m, 3, &f, &err));
    ck_assert(f.layout == MLA_LAYOUT_P && f.heads == r.c.kv_heads && f.center[0] == 0.5f && f.center[1] == 1.5f);
    ck_assert_uint_eq(mla_factors_cached(mla_model_config(m), &f), 48 + 16 + f.heads);
    mla_factors g;
    ck_ok(mla_factors_copy(&g, &f, &err));
    ck_assert(g.heads == f.heads && !memcmp(g.center, f.center, f.heads * 4) && !memcmp(g.E, f.E, g.groups * g.r * g.n * 4));
    mla_factors_free(&g);
    mla_factors_free(&f);
    mla_model_close(m);
    ce->v[1] = 0;
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_refused(mla_model_factors(m, 3, &f, &err), MLA_EFORMAT, "divisor_center: head 1: 0, expected a positive number");
    mla_model_close(m);
    unmake(&r);

    r = make("retrofit_llama.json"); /* rebuild, f32 */
    add_factors(&r, 0, "model.");
    add_factors(&r, 1, "model.");
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_ok(mla_model_factors(m, 1, &f, &err));
    ck_assert(f.layout == MLA_LAYOUT_REBUILD && f.groups == 1 && f.n == 2 * 32 && f.r == 24);
    ck_assert_uint_eq(mla_factors_cached(mla_model_config(m), &f), 24);
    mla_factors_free(&f);
    mla_model_close(m);
    unmake(&r);
}
END_TEST

START_TEST(factor_defects)
{
    mla_err err = {0};
    mla_model *m;
    mla_factors f;
    made r = make("retrofit_qwen3_5.json");
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, VL "layers.3.self_attn.mla.encoder.weight");
    add_factors(&r, 3, VL);
    bset_find(&r.extra, VL "layers.3.self_attn.mla.decoder.weight")->dtype = MLA_F32;
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "mla.decoder.weight: expected BF16 [2, 56, 24], found F32 [2, 56, 24] in " FACTORS);
    bset_drop(&r.extra, VL "layers.3.self_attn.mla.decoder.weight");
    bset_add(&r.extra, 2, 24, 56, VL "layers.3.self_attn.mla.decoder.weight"); /* transposed */
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "expected BF16 [2, 56, 24], found BF16 [2, 24, 56]");
    bset_drop(&r.extra, VL "layers.3.self_attn.mla.decoder.weight");
    bset_add(&r.extra, 2, 56, 24, VL "layers.3.self_attn.mla.decoder.weight")->v[5] = INFINITY;
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_refused(mla_model_factors(m, 3, &f, &err), MLA_EFORMAT, "mla.decoder.weight: non-finite value at element 5 (1 of 2688)");
    ck_assert(f.E == NULL);
    mla_model_close(m);
    bset_find(&r.extra, VL "layers.3.self_attn.mla.decoder.weight")->v[5] = 0;
    r.extra_file = "other.safetensors";
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "mla.encoder.weight: expected in " FACTORS " (mla.factors_file), found in other.safetensors");
    unmake(&r);
    r = make("qwen3_5_vl.json"); /* factors in a model that is no retrofit */
    bset_add(&r.base, 2, 24, 56, VL "layers.3.self_attn.mla.encoder.weight");
    bset_write(&r.base, r.dir, "model.safetensors");
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "self_attn.mla.encoder.weight: not expected in Qwen3_5ForConditionalGeneration");
    unmake(&r);
}
END_TEST

static bt *scalar(bset *s, const char *name, float v, bool one)
{
    bt *t = bset_add(s, 1, 0, 0, "%s", name);
    t->v[0] = v;
    t->dtype = MLA_F32;
    if (!one) t->nd = 0;
    return t;
}

START_TEST(scale_spellings)
{
    static const char *const S[][2] = {
        {"k_scale", "v_scale"}, {"k_proj.k_scale", "v_proj.v_scale"}, {"k_proj.output_scale", "v_proj.output_scale"},
        {"qkv_proj.k_scale", "qkv_proj.v_scale"}, {"k_cache.scale", "v_cache.scale"}, {"attn.k_scale", "attn.v_scale"}, {"kv_scale", NULL},
    };
    for (size_t i = 0; i < sizeof S / sizeof *S; i++) {
        mla_err err = {0};
        mla_model *m;
        mla_kv_scale s;
        char name[160];
        made r = make("qwen3_5_kv_scheme.json"); /* declares the scheme: layer 3 must have them */
        r.extra_file = SCALES;
        write_index(&r);
        ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT,
                   VL "layers.3.self_attn.k_scale: missing, but quantization_config declares a kv_cache_scheme");
        snprintf(name, sizeof name, VL "layers.3.self_attn.%s", S[i][0]);
        scalar(&r.extra, name, 0.25f, true);
        if (S[i][1]) {
            write_index(&r);
            ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "layer 3: self_attn.");
            snprintf(name, sizeof name, VL "layers.3.self_attn.%s", S[i][1]);
            scalar(&r.extra, name, 0.5f, false)->dtype = MLA_BF16;
        }
        snprintf(name, sizeof name, VL "layers.3.self_attn.q_scale");
        scalar(&r.extra, name, 1, true); /* not used, not surplus */
        write_index(&r);
        ck_ok(mla_model_open(&m, r.dir, &err));
        ck_ok(mla_model_kv_scale(m, 3, &s, &err));
        ck_assert(s.present && s.k == 0.25f && s.v == (S[i][1] ? 0.5f : 0.25f));
        ck_ok(mla_model_kv_scale(m, 0, &s, &err));
        ck_assert(!s.present);
        ck_refused(mla_model_kv_scale(m, 4, &s, &err), MLA_EINVAL, "KV scale of layer 4: there are 4 layers");
        mla_model_close(m);
        unmake(&r);
    }
}
END_TEST

START_TEST(bad_scales)
{
    static const struct {
        float v;
        const char *says;
    } BAD[] = {{0, "layer 3: " VL "layers.3.self_attn.v_scale: a KV scale must be finite and above zero, found 0"},
               {-1, "found -1"}, {NAN, "nan"}, {INFINITY, "found inf"}};
    mla_err err = {0};
    mla_model *m;
    made r = make("qwen3_5_kv_scheme.json");
    r.extra_file = SCALES;
    scalar(&r.extra, VL "layers.3.self_attn.k_scale", 0.25f, true);
    bt *v = scalar(&r.extra, VL "layers.3.self_attn.v_scale", 0.25f, true);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        v->v[0] = BAD[i].v;
        write_index(&r);
        ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, BAD[i].says);
    }
    v->v[0] = 0.25f;
    v->dtype = MLA_F8_E4M3;
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EUNSUPPORTED, "v_scale: expected one F32, F16 or BF16 value per layer, found F8_E4M3 [1] in " SCALES);
    bset_drop(&r.extra, VL "layers.3.self_attn.v_scale");
    bset_add(&r.extra, 2, 1, 1, VL "layers.3.self_attn.v_scale");
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EUNSUPPORTED, "found BF16 [2, 1, 1]");
    bset_drop(&r.extra, VL "layers.3.self_attn.v_scale");
    scalar(&r.extra, VL "layers.3.self_attn.v_scale", 0.25f, true);
    scalar(&r.extra, VL "layers.3.self_attn.k_proj.k_scale", 0.25f, true);
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "layer 3: KV scales in two spellings, self_attn.k_scale and self_attn.k_proj.k_scale");
    unmake(&r);
}
END_TEST

START_TEST(scales_of_some_layers_only)
{
    mla_err err = {0};
    mla_model *m;
    made r = make("llama_v5.json"); /* no scheme declared, two full-attention layers */
    r.extra_file = SCALES;
    scalar(&r.extra, "model.layers.0.self_attn.k_scale", 0.25f, true);
    scalar(&r.extra, "model.layers.0.self_attn.v_scale", 0.25f, true);
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "model.layers.1.self_attn.k_scale: missing, but other layers have KV scales");
    scalar(&r.extra, "model.layers.1.self_attn.k_proj.k_scale", 0.25f, true);
    scalar(&r.extra, "model.layers.1.self_attn.v_proj.v_scale", 0.25f, true);
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "layer 1: KV scales in two spellings");
    scalar(&r.extra, "model.layers.5.self_attn.k_scale", 0.25f, true);
    bset_drop(&r.extra, "model.layers.1.self_attn.k_proj.k_scale");
    bset_drop(&r.extra, "model.layers.1.self_attn.v_proj.v_scale");
    scalar(&r.extra, "model.layers.1.self_attn.k_scale", 0.25f, true);
    scalar(&r.extra, "model.layers.1.self_attn.v_scale", 0.25f, true);
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "model.layers.5.self_attn.k_scale: not expected");
    unmake(&r);
}
END_TEST

START_TEST(scales_of_a_retrofit)
{
    mla_err err = {0};
    mla_model *m;
    mla_kv_scale s;
    made r = make("retrofit_qwen3_5.json");
    add_factors(&r, 3, VL);
    scalar(&r.base, VL "layers.3.self_attn.k_scale", 0.125f, true); /* the base's own: they say nothing about the latent */
    scalar(&r.base, VL "layers.3.self_attn.v_scale", 0.125f, true);
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_ok(mla_model_kv_scale(m, 3, &s, &err));
    ck_assert(!s.present);
    mla_model_close(m);
    scalar(&r.extra, VL "layers.3.self_attn.mla.latent_scale", 0.25f, true);
    write_index(&r);
    ck_refused(mla_model_open(&m, r.dir, &err), MLA_EFORMAT, "layer 3: self_attn.mla.latent_scale is stored, self_attn.mla.rope_scale is missing");
    scalar(&r.extra, VL "layers.3.self_attn.mla.rope_scale", 0.5f, false);
    scalar(&r.base, "mtp.layers.0.self_attn.k_proj.k_scale", 0.75f, true); /* the head's cache is plain GQA */
    scalar(&r.base, "mtp.layers.0.self_attn.v_proj.v_scale", 1.5f, true);
    write_index(&r);
    ck_ok(mla_model_open(&m, r.dir, &err));
    ck_ok(mla_model_kv_scale(m, 3, &s, &err));
    ck_assert(s.present && s.k == 0.25f && s.v == 0.5f);
    ck_ok(mla_model_kv_scale(m, MLA_MTP(0), &s, &err));
    ck_assert(s.present && s.k == 0.75f && s.v == 1.5f);
    mla_model_close(m);
    unmake(&r);
}
END_TEST

Suite *model_factors_suite(void)
{
    Suite *s = suite_create("factors");
    TCase *t = tcase_create("factors");
    tcase_add_test(t, sizes);
    tcase_add_test(t, factors_round_trip);
    tcase_add_test(t, factor_defects);
    suite_add_tcase(s, t);
    t = tcase_create("scales");
    tcase_add_test(t, scale_spellings);
    tcase_add_test(t, bad_scales);
    tcase_add_test(t, scales_of_some_layers_only);
    tcase_add_test(t, scales_of_a_retrofit);
    suite_add_tcase(s, t);
    return s;
}
