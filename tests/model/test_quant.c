/* Quantized folders: every format opens and reads as its golden values in any chunking, what disagrees is named, and a
 * retrofit's folder keeps the config and opens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/par.h"
#include "harness.h"
#include "io/file.h"
#include "model/row_cache.h"
#include "model/writer.h"
#include "model_tests.h"
#include "qfolder.h"
#include "tensor/fp.h"

#define REST "['o_proj','down_proj','lm_head']"
#define CT_REST "['re:.*(o|down)_proj$','lm_head']"
#define FULL_REST "['self_attn.o_proj','mlp.down_proj','lm_head']"

static const struct {
    const char *file, *key, *list;
    size_t out;
} CASE[] = {
    {"awq_gemm_g64", "modules_to_not_convert", REST, 64},
    {"awq_gemm_g128", "modules_to_not_convert", REST, 192},
    {"gptq_v1_sym_g128", NULL, NULL, 192},
    {"gptq_v1_sym_g128_descact", NULL, NULL, 64},
    {"gptq_v1_asym_g128_zero0", NULL, NULL, 32},
    {"gptq_v2_asym_g128", NULL, NULL, 64},
    {"ct_int4_sym_g128", "ignore", CT_REST, 192},
    {"ct_int4_asym_g128", "ignore", CT_REST, 64},
    {"ct_int4_actorder", "ignore", CT_REST, 64},
    {"ct_int8_channel", "ignore", CT_REST, 48},
    {"ct_fp8_tensor", "ignore", CT_REST, 48},
    {"ct_nvfp4", "ignore", CT_REST, 48},
    {"ct_mxfp4", "ignore", CT_REST, 48},
    {"fp8_hf_block128", "modules_to_not_convert", FULL_REST, 256},
    {"fp8_hf_block128_ue8m0", "modules_to_not_convert", FULL_REST, 128},
};
enum { CASES = sizeof CASE / sizeof *CASE, IN = 256 };

static mla_mat mat(const mla_model *m, mla_wkind k)
{
    mla_err err = {0};
    mla_mat w;
    ck_ok(mla_model_mat(m, k, 0, &w, &err));
    return w;
}

/* Every row of w is want [w.out, ld], read at once and in runs of several lengths. */
static void reads_as(const mla_mat *w, const float *want, size_t ld)
{
    static const size_t RUN[] = {1, 3, 7, 50, 127, 130, 1000};
    mla_err err = {0};
    float *x = mla_alloc(w->out, w->in, sizeof *x);
    for (size_t k = 0; k < sizeof RUN / sizeof *RUN; k++) {
        memset(x, 0xff, w->out * w->in * sizeof *x);
        for (size_t r = 0; r < w->out; r += RUN[k])
            ck_ok(mla_mat_rows(w, r, w->out - r < RUN[k] ? w->out - r : RUN[k], x + r * w->in, &err));
        for (size_t r = 0; r < w->out; r++) ck_assert_msg(!memcmp(x + r * w->in, want + r * ld, w->in * sizeof *x), "row %zu in runs of %zu", r, RUN[k]);
    }
    mla_free(x);
}

/* A format that counts its decodes: value (row, column) is 100 row + column. */
static size_t decodes, decoded_rows;

static mla_status counting_rows(const mla_qmat *m, size_t row0, size_t n, float *dst, mla_err *err)
{
    (void)err;
    decodes++;
    decoded_rows += n;
    for (size_t i = 0; i < n * m->in; i++) dst[i] = (float)(100 * (row0 + i / m->in) + i % m->in);
    return MLA_OK;
}

/* A block is decoded once however small the reads; whole blocks are not kept; a matrix that comes back later is read again. */
START_TEST(blocks_decode_once)
{
    static const mla_qformat COUNTING = {.family = "counting", .rows = counting_rows};
    enum { OUT = 50, COLS = 3 };
    mla_err err = {0};
    mla_row_cache *c;
    char codes[2];
    float x[OUT * COLS];
    mla_qmat q = {.name = "q", .ops = &COUNTING, .out = OUT, .in = COLS, .row_block = 16, .nparts = 1, .part[0].data = &codes[0]}, p = q;
    p.part[0].data = &codes[1];
    ck_ok(mla_row_cache_new(&c, &err));
    decodes = decoded_rows = 0;
    for (size_t r = 0; r < OUT; r++) {
        ck_ok(mla_row_cache_rows(c, &q, r, 1, x, &err));
        ck_assert(x[0] == (float)(100 * r) && x[2] == (float)(100 * r + 2));
    }
    ck_assert(decodes == 4 && decoded_rows == OUT);
    ck_ok(mla_row_cache_rows(c, &p, 5, 40, x, &err)); /* 5..15, 16..31, 32..44 */
    for (size_t i = 0; i < 40 * COLS; i++) ck_assert(x[i] == (float)(100 * (5 + i / COLS) + i % COLS));
    ck_assert(decodes == 7);
    ck_ok(mla_row_cache_rows(c, &p, 16, 34, x, &err)); /* whole blocks to the end: one call */
    ck_assert(decodes == 8 && x[33 * COLS] == 4900);
    ck_ok(mla_row_cache_rows(c, &p, 0, 4, x, &err)); /* kept */
    ck_assert_uint_eq(decodes, 8);
    ck_refused(mla_row_cache_rows(c, &q, 40, 11, x, &err), MLA_EINVAL, "11 rows from 40 asked, the matrix has 50");
    mla_row_cache_free(c);
}
END_TEST

static const mla_wkind QUANTIZED[] = {MLA_W_Q, MLA_W_K, MLA_W_V, MLA_W_GATE, MLA_W_UP};

START_TEST(golden_rows)
{
    mla_err err = {0};
    qfolder f;
    mla_model *m;
    qf_make(&f, CASE[_i].file, "m", CASE[_i].out, IN);
    qf_write(&f, qf_config(CASE[_i].file, CASE[_i].key, CASE[_i].list));
    ck_ok(mla_model_open(&m, f.dir, &err));
    ck_assert(mla_model_config(m)->weights_quantized && mla_model_note_count(m) == 0);
    const mla_tensor *want = mla_st_find(f.golden, "m.dequantized");
    ck_assert(want && want->dtype == MLA_F32);
    for (size_t i = 0; i < 5; i++) {
        mla_mat w = mat(m, QUANTIZED[i]);
        ck_assert(w.out == CASE[_i].out && w.in == IN && w.stored_bytes < w.out * w.in * 3 / 2);
        reads_as(&w, want->data, IN);
    }
    mla_mat o = mat(m, MLA_W_O), e = mat(m, MLA_W_EMBED);
    ck_assert(o.stored_bytes == 2 * o.out * o.in && e.stored_bytes == 2 * e.out * e.in);
    mla_model_close(m);
    qf_free(&f);
}
END_TEST

static const mla_tensor *find_golden(const void *ctx, const char *name) { return mla_st_find(ctx, name); }

/* EXL3 pads to 128: the model's dims cut it; a tied model's quantized output matrix is used. */
START_TEST(exl3_is_trimmed)
{
    enum { OUT = 252, COLS = 300, PADDED = 256, PADDED_IN = 384 };
    mla_err err = {0};
    qfolder f;
    mla_model *m;
    mla_qmat q;
    qf_make(&f, "exl3", "k4_mul1", OUT, COLS);
    qf_drop(&f, "lm_head.weight");
    qf_quantized(&f, "k4_mul1", "lm_head");
    f.tied = true;
    qf_write(&f, "{'quant_method':'exl3','bits':4.0,'codebook':'mul1'}");
    ck_ok(mla_model_open(&m, f.dir, &err));
    ck_assert(!mla_model_config(m)->tied && mla_model_note_count(m) == 1);
    ck_assert_ptr_nonnull(strstr(mla_model_note_at(m, 0), "lm_head is stored quantized"));
    float *want = mla_alloc(PADDED, PADDED_IN, sizeof *want);
    ck_ok(mla_qmat_open(&q, &(mla_qsource){find_golden, f.golden}, "k4_mul1", &err));
    ck_assert(q.out == PADDED && q.in == PADDED_IN);
    ck_ok(mla_qmat_rows_f32(&q, 0, PADDED, want, &err));
    mla_mat w = mat(m, MLA_W_Q), head = mat(m, MLA_W_LM_HEAD), e = mat(m, MLA_W_EMBED);
    ck_assert(w.out == OUT && w.in == COLS && head.out == OUT && head.in == COLS && head.stored_bytes < e.stored_bytes);
    reads_as(&w, want, PADDED_IN);
    reads_as(&head, want, PADDED_IN);
    mla_model_close(m);

    f.out = 120; /* of other dims than the stored ones: nothing to cut */
    qf_write(&f, "{'quant_method':'exl3','bits':4.0,'codebook':'mul1'}");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "embed_tokens.weight");
    f.out = OUT;
    qf_drop(&f, QF_LAYER "mlp.up_proj.trellis");
    qf_write(&f, "{'quant_method':'exl3','bits':4.0,'codebook':'mul1'}");
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, QF_LAYER "mlp.up_proj.su");
    mla_free(want);
    qf_free(&f);
}
END_TEST

typedef struct {
    const mla_model *m;
    const float *want[8]; /* per layer, of the K matrix of full layers */
    size_t wrong;
} shared;

static void read_rows(void *ctx, size_t b, size_t e, size_t worker)
{
    shared *s = ctx;
    (void)worker;
    for (size_t i = b; i < e; i++) { /* piece i: 5 rows of a layer that changes from piece to piece */
        mla_err err = {0};
        mla_mat w;
        float x[5 * 256];
        size_t layer = 1 + 2 * (i % 4), row = i * 5 % 120;
        bool ok = mla_model_mat(s->m, MLA_W_K, layer, &w, &err) == MLA_OK && mla_mat_rows(&w, row, 5, x, &err) == MLA_OK &&
                  !memcmp(x, s->want[layer] + row * w.in, sizeof x);
        if (!ok) __atomic_fetch_add(&s->wrong, 1, __ATOMIC_RELAXED);
    }
}

/* The quantized hybrid: output matrix, fused prefixes, MTP and vision as stored; small reads from several threads. */
START_TEST(exl3_hybrid)
{
    mla_err err = {0};
    mla_model *m;
    mla_pool *pool;
    shared s = {0};
    ck_ok(mla_model_open(&m, mla_fixture("golden-quant/tiny-hybrid-exl3"), &err));
    ck_assert(mla_model_config(m)->mtp_layers == 1 && !mla_model_config(m)->tied);
    ck_assert_str_eq(mla_model_prefix(m), "model.language_model.");
    ck_assert(mat(m, MLA_W_LM_HEAD).out == 2048 && mat(m, MLA_W_LM_HEAD).stored_bytes < 2048 * 256);
    ck_assert(mla_model_has(m, MLA_W_MTP_FC, 0) && mla_model_has(m, MLA_W_Q, MLA_MTP(0)));
    mla_str name = MLA_STR_MAX(256);
    ck_ok(mla_model_name(m, MLA_W_K, 3, &name, &err));
    ck_assert_str_eq(mla_str_c(&name), "model.language_model.layers.3.self_attn.k_proj.trellis");
    mla_str_free(&name);
    s.m = m;
    float *all = mla_alloc(8, 128 * 256, sizeof *all);
    for (size_t l = 1; l < 8; l += 2) {
        mla_mat w;
        ck_ok(mla_model_mat(m, MLA_W_K, l, &w, &err));
        ck_assert(w.out == 128 && w.in == 256);
        ck_ok(mla_mat_rows(&w, 0, 128, all + l * 128 * 256, &err));
        s.want[l] = all + l * 128 * 256;
    }
    ck_ok(mla_pool_new(&pool, 4, &err));
    mla_par_for(pool, 400, 1, read_rows, &s);
    ck_assert_uint_eq(s.wrong, 0);
    mla_pool_free(pool);
    mla_free(all);
    mla_model_close(m);
}
END_TEST

typedef struct {
    const char *file;
    size_t out;
    void (*plant)(qfolder *f);
    const char *key, *list; /* into the case's config */
    bool no_config;
    const char *says;
} planted;

static void p_surplus(qfolder *f) { qf_plain(f, QF_LAYER "self_attn.q_proj.bogus", 4, 0); }
static void p_no_scale(qfolder *f) { qf_drop(f, QF_LAYER "self_attn.k_proj.weight_scale_inv"); }
static void p_no_codes(qfolder *f) { qf_drop(f, QF_LAYER "mlp.gate_proj.qweight"); }
static void p_plain_too(qfolder *f) { qf_plain(f, QF_LAYER "self_attn.q_proj.weight", f->out, f->in); }
static void p_gone(qfolder *f)
{
    qf_drop(f, QF_LAYER "mlp.up_proj.weight");
    qf_drop(f, QF_LAYER "mlp.up_proj.weight_scale_inv");
}
static void p_plain_q(qfolder *f)
{
    qf_drop(f, QF_LAYER "self_attn.q_proj.weight");
    qf_drop(f, QF_LAYER "self_attn.q_proj.weight_scale_inv");
    p_plain_too(f);
}

static const planted PLANTED[] = {
    {"awq_gemm_g64", 64, NULL, NULL, NULL, true, QF_LAYER "mlp.gate_proj: stored as AWQ"},
    {"awq_gemm_g64", 64, NULL, NULL, NULL, false, QF_LAYER "mlp.down_proj: stored plain, but the awq config"},
    {"awq_gemm_g64", 64, NULL, "group_size", "128", false, QF_LAYER "mlp."},
    {"awq_gemm_g64", 64, NULL, "modules_to_not_convert", "['o_proj','down_proj','gate_proj']", false, QF_LAYER "mlp.gate_proj: stored as AWQ"},
    {"awq_gemm_g64", 64, NULL, "modules_to_not_convert", "['o_proj','down_proj','no_such']", false, "\"no_such\" names no module"},
    {"awq_gemm_g64", 64, p_surplus, "modules_to_not_convert", REST, false, QF_LAYER "self_attn.q_proj.bogus: not expected"},
    {"awq_gemm_g64", 64, p_plain_too, "modules_to_not_convert", REST, false, QF_LAYER "self_attn.q_proj: has tensors of two formats"},
    {"awq_gemm_g64", 64, NULL, "quant_method", "'quip'", false, "config.json: quantization_config: quant_method \"quip\""},
    {"gptq_v1_sym_g128", 192, NULL, "bits", "8", false, QF_LAYER "mlp."},
    {"gptq_v1_sym_g128", 192, p_no_codes, NULL, NULL, false, QF_LAYER "mlp.gate_proj."},
    {"ct_int4_sym_g128", 192, NULL, NULL, NULL, false, "lm_head: stored plain, but target \"Linear\" of group_0"},
    {"ct_int4_sym_g128", 192, NULL, "format", "'int-quantized'", false, "format \"pack-quantized\", but the config's own is \"int-quantized\""},
    {"fp8_hf_block128", 256, p_no_scale, "modules_to_not_convert", FULL_REST, false, QF_LAYER "self_attn.k_proj.weight_scale"},
    {"fp8_hf_block128", 256, p_gone, "modules_to_not_convert", FULL_REST, false, QF_LAYER "mlp.up_proj.weight"},
    {"fp8_hf_block128", 256, p_plain_q, "modules_to_not_convert", FULL_REST, false, QF_LAYER "self_attn.q_proj: stored plain, but the fp8 config"},
    {"fp8_hf_block128", 256, NULL, "weight_block_size", "[64,64]", false, QF_LAYER "mlp."},
};

START_TEST(planted_disagreements)
{
    const planted *p = &PLANTED[_i];
    mla_err err = {0};
    qfolder f;
    mla_model *m = NULL;
    qf_make(&f, p->file, "m", p->out, IN);
    if (p->plant) p->plant(&f);
    qf_write(&f, p->no_config ? NULL : qf_config(p->file, p->key, p->list));
    mla_status st = mla_model_open(&m, f.dir, &err);
    ck_assert_msg(st == MLA_EFORMAT || st == MLA_EUNSUPPORTED, "opened, wanted \"%s\" (%s)", p->says, err.msg);
    ck_assert_msg(strstr(err.msg, p->says) != NULL, "\"%s\" lacks \"%s\"", err.msg, p->says);
    ck_assert(m == NULL && strchr(err.msg, '\n') == NULL);
    qf_free(&f);
}
END_TEST

/* Text-only checkpoints keep the exclusions of the parts that they dropped. */
START_TEST(exclusions_of_dropped_parts)
{
    static const struct { const char *file; size_t out; const char *key, *list; } KEPT[] = {
        {"awq_gemm_g64", 64, "modules_to_not_convert", "['o_proj','down_proj','visual','mtp']"},
        {"ct_int4_sym_g128", 192, "ignore", "['re:.*(o|down)_proj$','lm_head','re:.*mtp.*','re:.*visual.*']"},
    };
    mla_err err = {0};
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++) {
        qfolder f;
        mla_model *m;
        qf_make(&f, KEPT[i].file, "m", KEPT[i].out, IN);
        qf_write(&f, qf_config(KEPT[i].file, KEPT[i].key, KEPT[i].list));
        ck_ok(mla_model_open(&m, f.dir, &err));
        mla_model_close(m);
        qf_free(&f);
    }
}
END_TEST

/* A quantized matrix of other dims than the config's. */
START_TEST(other_dims)
{
    mla_err err = {0};
    qfolder f;
    mla_model *m = NULL;
    qf_make(&f, "awq_gemm_g64", "m", 64, IN);
    f.out = 96;
    qf_drop(&f, "model.embed_tokens.weight"), qf_drop(&f, "lm_head.weight"), qf_drop(&f, QF_LAYER "self_attn.o_proj.weight"), qf_drop(&f, QF_LAYER "mlp.down_proj.weight");
    qf_plain(&f, "model.embed_tokens.weight", 96, IN), qf_plain(&f, "lm_head.weight", 96, IN);
    qf_plain(&f, QF_LAYER "self_attn.o_proj.weight", IN, 96), qf_plain(&f, QF_LAYER "mlp.down_proj.weight", IN, 96);
    qf_write(&f, qf_config("awq_gemm_g64", "modules_to_not_convert", REST));
    ck_refused(mla_model_open(&m, f.dir, &err), MLA_EFORMAT, "proj.qweight: expected [96, 256], found [64, 256] as AWQ INT4");
    qf_free(&f);
}
END_TEST

/* --- retrofits of quantized bases ---------------------------------------------------------------------------- */

#define MODELOPT_FILE                                                                                                      \
    "{\"producer\":{\"name\":\"modelopt\",\"version\":\"0.1\"},\"quantization\":{\"quant_algo\":\"FP8\",\"kv_cache_quant_algo\":null," \
    "\"exclude_modules\":[\"lm_head\",\"*o_proj\",\"*down_proj\"]}}"
#define ROUND                                                                                                  \
    "{'quant_method':'auto-round','bits':4,'group_size':128,'sym':true,'data_type':'int','packing_format':"    \
    "'auto_round:auto_gptq','block_name_to_quantize':'model.layers','extra_config':"                          \
    "{'model.layers.0.mlp.down_proj':{'bits':16,'data_type':'float'},'model.layers.0.self_attn.o_proj':{'bits':16}}}"

static const struct {
    const char *file;
    size_t out;
    const char *key, *list, *whole; /* the golden config with key = list; or this one */
    const char *at, *first, *mine;  /* the list that names the factors, its first entry, and ours */
} WRITTEN[] = {
    {"ct_int4_sym_g128", 192, "ignore", CT_REST, NULL, "ignore", "re:.*(o|down)_proj$", QF_LAYER "self_attn.mla.encoder"},
    {"awq_gemm_g64", 64, "modules_to_not_convert", REST, NULL, "modules_to_not_convert", "o_proj", QF_LAYER "self_attn.mla.decoder"},
    {"fp8_hf_block128", 256, "modules_to_not_convert", FULL_REST, NULL, "modules_to_not_convert", "self_attn.o_proj", QF_LAYER "self_attn.mla.encoder"},
    {"gptq_v1_sym_g128", 192, NULL, NULL, NULL, "dynamic", NULL, "-:.*\\.self_attn\\.mla\\."},
    {"gptq_v1_sym_g128", 192, NULL, NULL, ROUND, "extra_config", NULL, QF_LAYER "self_attn.mla.encoder"},
    {"ct_fp8_tensor", 48, NULL, NULL, NULL, "exclude_modules", "lm_head", QF_LAYER "self_attn.mla.encoder"}, /* hf_quant_config.json */
};

static bool names(const mla_jv *list, const char *name)
{
    if (mla_jv_is_obj(list)) return mla_jv_get(list, name) != NULL;
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v))
        if (!strcmp(mla_jv_str(v), name)) return true;
    return false;
}

static void write_factors(const mla_model *base, const char *out, size_t n)
{
    mla_err err = {0};
    bset s = {0};
    const char *file[] = {"mla_factors-00001-of-00001.safetensors"};
    bset_add(&s, 1, 4, n, QF_LAYER "self_attn.mla.encoder.weight");
    bset_add(&s, 1, n, 4, QF_LAYER "self_attn.mla.decoder.weight");
    bset_add(&s, 1, n, 0, QF_LAYER "self_attn.mla.mean")->dtype = MLA_F32;
    bset_write(&s, out, file[0]);
    ck_ok(mla_writer_index(base, out, file, 1, &err));
    bset_free(&s);
}

START_TEST(retrofit_keeps_the_config)
{
    mla_err err = {0};
    qfolder f;
    mla_model *base, *m;
    mla_json *doc;
    size_t rank = 4, n = 2 * WRITTEN[_i].out;
    bool modelopt = !strcmp(WRITTEN[_i].at, "exclude_modules");
    char *out = mla_test_tmpdir(), file[] = "mla_factors-00001-of-00001.safetensors";
    qf_make(&f, WRITTEN[_i].file, "m", WRITTEN[_i].out, IN);
    qf_write(&f, modelopt ? NULL : WRITTEN[_i].whole ? WRITTEN[_i].whole : qf_config(WRITTEN[_i].file, WRITTEN[_i].key, WRITTEN[_i].list));
    if (modelopt) put_text(f.dir, "hf_quant_config.json", MODELOPT_FILE);
    ck_ok(mla_model_open(&base, f.dir, &err));
    ck_assert(mla_model_config(base)->weights_quantized);
    mla_retrofit_config r = {.layout = MLA_LAYOUT_REBUILD, .groups = 1, .rank = &rank, .dtype = MLA_BF16, .factors_file = file};
    ck_ok(mla_writer_place_base(base, out, NULL, NULL, &err));
    write_factors(base, out, n);
    ck_ok(mla_writer_config(&doc, base, &r, NULL, &err));
    const mla_jv *q = mla_jv_get(mla_json_root(doc), "quantization_config"), *list = mla_jv_get(q, WRITTEN[_i].at);
    ck_assert(names(list, WRITTEN[_i].mine));
    ck_assert(!WRITTEN[_i].first || !strcmp(mla_jv_str(mla_jv_first(list)), WRITTEN[_i].first));
    const mla_jv *old = mla_jv_get(mla_json_root(mla_model_config_json(base)), "quantization_config");
    for (const mla_jv *v = mla_jv_first(old); v; v = mla_jv_next(v)) { /* every other key as it was */
        mla_str a = MLA_STR_MAX(9000), b = MLA_STR_MAX(9000);
        if (!strcmp(mla_jv_key(v), WRITTEN[_i].at)) continue;
        ck_ok(mla_json_print(&a, v, false, &err));
        ck_ok(mla_json_print(&b, mla_jv_get(q, mla_jv_key(v)), false, &err));
        ck_assert_str_eq(mla_str_c(&a), mla_str_c(&b));
        mla_str_free(&a), mla_str_free(&b);
    }
    ck_ok(mla_json_write(in_dir(out, "config.json"), mla_json_root(doc), &err));
    ck_ok(mla_model_open(&m, out, &err));
    ck_assert(mla_model_config(m)->mla.layout == MLA_LAYOUT_REBUILD && mla_model_config(m)->weights_quantized);
    mla_model_close(m);
    mla_jv_remove(mla_json_root(doc), "quantization_config"); /* control: the tensors need it */
    ck_ok(mla_json_write(in_dir(out, "config.json"), mla_json_root(doc), &err));
    ck_refused(mla_model_open(&m, out, &err), MLA_EFORMAT, "config.json without quantization_config keeps it plain");
    mla_json_free(doc);
    mla_model_close(base);
    ck_ok(mla_dir_remove(out, &err));
    mla_free(out);
    qf_free(&f);
}
END_TEST

/* An fp8 config without a list leaves lm_head out by itself; a list must then say so. */
START_TEST(fresh_list_keeps_the_head_plain)
{
    mla_err err = {0};
    qfolder f;
    mla_model *base;
    mla_json *doc;
    size_t rank = 4;
    char file[] = "f.safetensors";
    qf_make(&f, "fp8_hf_block128", "m", 256, IN);
    qf_drop(&f, QF_LAYER "self_attn.o_proj.weight"), qf_drop(&f, QF_LAYER "mlp.down_proj.weight");
    qf_quantized(&f, "m", QF_LAYER "self_attn.o_proj"), qf_quantized(&f, "m", QF_LAYER "mlp.down_proj"); /* square */
    qf_write(&f, qf_config("fp8_hf_block128", NULL, NULL));
    ck_ok(mla_model_open(&base, f.dir, &err));
    mla_retrofit_config r = {.layout = MLA_LAYOUT_REBUILD, .groups = 1, .rank = &rank, .dtype = MLA_BF16, .factors_file = file};
    ck_ok(mla_writer_config(&doc, base, &r, NULL, &err));
    const mla_jv *list = mla_jv_get(mla_jv_get(mla_json_root(doc), "quantization_config"), "modules_to_not_convert");
    ck_assert(mla_jv_len(list) == 3 && names(list, "lm_head") && names(list, QF_LAYER "self_attn.mla.decoder"));
    mla_json_free(doc);
    mla_model_close(base);
    qf_free(&f);
}
END_TEST

/* A nested config may carry the block in text_config; without any, the tensors are refused. */
START_TEST(config_in_text_config)
{
    mla_err err = {0};
    mla_model *m = NULL;
    mla_json *doc;
    char *dir = mla_test_tmpdir(), *real = realpath(mla_fixture("golden-quant/tiny-hybrid-exl3/model.safetensors"), NULL);
    ck_assert(real && symlink(real, in_dir(dir, "model.safetensors")) == 0);
    ck_ok(mla_json_read(&doc, mla_fixture("golden-quant/tiny-hybrid-exl3/config.json"), 1 << 20, &err));
    mla_jv *root = mla_json_root(doc), *text = mla_jv_get(root, "text_config");
    ck_assert(mla_jv_set_copy(text, "quantization_config", mla_jv_get(root, "quantization_config")) != NULL);
    mla_jv_remove(root, "quantization_config");
    ck_ok(mla_json_write(in_dir(dir, "config.json"), root, &err));
    ck_ok(mla_model_open(&m, dir, &err));
    ck_assert(mla_model_config(m)->weights_quantized);
    mla_model_close(m);
    mla_jv_remove(text, "quantization_config");
    ck_ok(mla_json_write(in_dir(dir, "config.json"), root, &err));
    ck_refused(mla_model_open(&m, dir, &err), MLA_EFORMAT, "lm_head: stored as EXL3, but config.json without quantization_config");
    mla_json_free(doc);
    free(real);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

/* A config that quantizes only the cache leaves every matrix plain; the same words about weights are held against them. */
START_TEST(cache_only_config)
{
    static const char *const ALGO[] = {"NO_QUANT", "FP8"};
    mla_err err = {0};
    mla_model *m = NULL;
    mla_json *doc;
    char *dir = mla_test_tmpdir(), *real = realpath(mla_fixture("tiny-hybrid/model.safetensors"), NULL);
    ck_assert(real && symlink(real, in_dir(dir, "model.safetensors")) == 0);
    for (size_t i = 0; i < 2; i++) {
        ck_ok(mla_json_read(&doc, mla_fixture("tiny-hybrid/config.json"), 1 << 20, &err));
        mla_jv *q = mla_jv_set_obj(mla_json_root(doc), "quantization_config");
        ck_assert(mla_jv_set_str(q, "quant_method", "modelopt") && mla_jv_set_str(q, "quant_algo", ALGO[i]));
        ck_ok(mla_json_write(in_dir(dir, "config.json"), mla_json_root(doc), &err));
        mla_json_free(doc);
        if (i) {
            ck_refused(mla_model_open(&m, dir, &err), MLA_EFORMAT, "stored plain, but quant_algo FP8 quantizes it");
        } else {
            ck_ok(mla_model_open(&m, dir, &err));
            ck_assert(!mla_model_config(m)->weights_quantized);
            mla_model_close(m);
        }
    }
    free(real);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(dir);
}
END_TEST

/* Every allocation of an open fails in turn. */
START_TEST(out_of_memory)
{
    mla_err err = {0};
    qfolder f;
    mla_model *m = NULL;
    long k = 0;
    qf_make(&f, "awq_gemm_g64", "m", 64, IN);
    qf_write(&f, qf_config("awq_gemm_g64", "modules_to_not_convert", REST));
    for (;; k += 1 + k / 20) {
        mla_alloc_fail_after(k);
        mla_status st = mla_model_open(&m, f.dir, &err);
        mla_alloc_fail_after(-1);
        if (st == MLA_OK) break;
        ck_assert_msg(st == MLA_ENOMEM && m == NULL, "allocation %ld: %s (%s)", k, mla_status_name(st), err.msg);
    }
    ck_assert_int_ge((int)k, 50);
    mla_model_close(m);
    qf_free(&f);
}
END_TEST

Suite *model_quant_suite(void)
{
    Suite *s = suite_create("quant");
    TCase *t = tcase_create("quantized");
    tcase_add_test(t, blocks_decode_once);
    tcase_add_loop_test(t, golden_rows, 0, CASES);
    tcase_add_test(t, exl3_is_trimmed);
    tcase_add_test(t, exl3_hybrid);
    tcase_add_loop_test(t, planted_disagreements, 0, (int)(sizeof PLANTED / sizeof *PLANTED));
    tcase_add_test(t, exclusions_of_dropped_parts);
    tcase_add_test(t, other_dims);
    tcase_add_loop_test(t, retrofit_keeps_the_config, 0, (int)(sizeof WRITTEN / sizeof *WRITTEN));
    tcase_add_test(t, fresh_list_keeps_the_head_plain);
    tcase_add_test(t, config_in_text_config);
    tcase_add_test(t, cache_only_config);
    tcase_add_test(t, out_of_memory);
    suite_add_tcase(s, t);
    return s;
}
