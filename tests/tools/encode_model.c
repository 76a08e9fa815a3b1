/* Whole checkpoints in quantized formats, for the tests: every decoder matrix of a bf16 folder rounded to nearest and laid out
 * exactly as the format's own library does (tests/fixtures/golden-quant says how). The product itself never quantizes.
 * usage: encode_model BASE OUT FORMAT
 * FORMAT: one of encode_configs.h. odd: the trunk int4, the MTP layer fp8, embeddings tied and padded to 2,176 rows: what a graft must keep. Otherwise left plain, and excluded in the format's own spelling: embeddings, lm_head, the MTP head, vision, GDN's a and b. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "io/ckpt.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "tensor/fp.h"
#include "encode_configs.h"

#define G 128
#define MOST 4096
#define ODD_VOCAB 2176
static mla_tensor out[MOST];
static size_t n_out;

static void must(mla_status st, const mla_err *err)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "encode_model: %s\n", err->msg);
    exit(3);
}

static void *room(size_t n)
{
    void *p = calloc(n ? n : 1, 1);
    if (!p) exit(3);
    return p;
}

/* A new tensor "module.part" of zeros. */
static void *add(const char *module, const char *part, mla_dtype t, size_t ndim, size_t a, size_t b)
{
    mla_tensor *x = &out[n_out++];
    char *name = room(strlen(module) + strlen(part) + 2);
    if (n_out > MOST) exit(3);
    sprintf(name, "%s.%s", module, part);
    size_t n = (ndim > 0 ? a : 1) * (ndim > 1 ? b : 1) * mla_dtype_bits(t) / 8;
    void *data = room(n);
    *x = (mla_tensor){.name = name, .dtype = t, .ndim = ndim, .shape = {a, b}, .data = data, .nbytes = n};
    return data;
}

static float amax(const float *w, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++) m = fmaxf(m, fabsf(w[i]));
    return m;
}

static int code(float x, float s, int lo, int hi)
{
    int q = s > 0 ? (int)nearbyintf(x / s) : 0;
    return q < lo ? lo : q > hi ? hi : q;
}

/* Scale (rounded to t) and zero point of one group of 4-bit codes 0..15. */
static float group4(const float *w, size_t n, bool sym, mla_dtype t, int *zero)
{
    float lo = 0, hi = 0, s;
    for (size_t i = 0; i < n; i++) lo = fminf(lo, w[i]), hi = fmaxf(hi, w[i]);
    s = sym ? fmaxf(-lo, hi) / 7.5f : (hi - lo) / 15;
    unsigned char b[2];
    mla_from_f32(b, &s, t, 1);
    mla_to_f32(&s, b, t, 1);
    *zero = sym ? 8 : code(-lo, s, 0, 15);
    return s;
}

static void put4(uint32_t *word, size_t nibble, int q) { word[nibble / 8] |= (uint32_t)q << 4 * (nibble % 8); }

static void ct_int4(const char *m, const float *w, size_t o, size_t in, bool sym)
{
    uint32_t *packed = add(m, "weight_packed", MLA_I32, 2, o, in / 8), *zp = sym ? NULL : add(m, "weight_zero_point", MLA_I32, 2, o / 8, in / G);
    uint16_t *scale = add(m, "weight_scale", MLA_BF16, 2, o, in / G);
    int64_t *shape = add(m, "weight_shape", MLA_I64, 1, 2, 0);
    shape[0] = (int64_t)o, shape[1] = (int64_t)in;
    for (size_t r = 0; r < o; r++)
        for (size_t g = 0; g < in / G; g++) {
            int z;
            float s = group4(w + r * in + g * G, G, sym, MLA_BF16, &z);
            mla_from_f32(&scale[r * (in / G) + g], &s, MLA_BF16, 1);
            if (zp) zp[r / 8 * (in / G) + g] |= (uint32_t)z << 4 * (r % 8); /* down the outputs */
            for (size_t i = g * G; i < (g + 1) * G; i++) put4(packed + r * in / 8, i, code(w[r * in + i], s, -z, 15 - z) + z);
        }
}

static void awq(const char *m, const float *w, size_t o, size_t in)
{
    static const unsigned ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    uint32_t *q = add(m, "qweight", MLA_I32, 2, in, o / 8), *zp = add(m, "qzeros", MLA_I32, 2, in / G, o / 8);
    uint16_t *scale = add(m, "scales", MLA_F16, 2, in / G, o);
    for (size_t r = 0; r < o; r++)
        for (size_t g = 0; g < in / G; g++) {
            int z;
            float s = group4(w + r * in + g * G, G, false, MLA_F16, &z);
            mla_from_f32(&scale[g * o + r], &s, MLA_F16, 1);
            zp[g * (o / 8) + r / 8] |= (uint32_t)z << 4 * ORDER[r % 8];
            for (size_t i = g * G; i < (g + 1) * G; i++) q[i * (o / 8) + r / 8] |= (uint32_t)(code(w[r * in + i], s, -z, 15 - z) + z) << 4 * ORDER[r % 8];
        }
}

/* act: inputs of a group stand apart, as activation order leaves them; g_idx says which are whose. */
static void gptq(const char *m, const float *w, size_t o, size_t in, bool v2, bool act)
{
    uint32_t *q = add(m, "qweight", MLA_I32, 2, in / 8, o), *zp = add(m, "qzeros", MLA_I32, 2, in / G, o / 8);
    uint16_t *scale = add(m, "scales", MLA_F16, 2, in / G, o);
    int32_t *idx = add(m, "g_idx", MLA_I32, 1, in, 0);
    for (size_t i = 0; i < in; i++) idx[i] = (int32_t)(act ? i * 5 % (in / G) : i / G); /* 5 is prime to every in / G here */
    for (size_t r = 0; r < o; r++)
        for (size_t g = 0; g < in / G; g++) {
            float x[G];
            size_t n = 0;
            int z;
            for (size_t i = 0; i < in; i++)
                if (idx[i] == (int32_t)g) x[n++] = w[r * in + i];
            float s = group4(x, n, false, MLA_F16, &z);
            mla_from_f32(&scale[g * o + r], &s, MLA_F16, 1);
            zp[g * (o / 8) + r / 8] |= (uint32_t)z << 4 * (r % 8);
            for (size_t i = 0; i < in; i++)
                if (idx[i] == (int32_t)g) q[i / 8 * o + r] |= (uint32_t)(code(w[r * in + i], s, -z, 15 - z) + z) << 4 * (i % 8);
        }
    for (size_t i = 0; !v2 && i < in / G * (o / 8); i++) zp[i] -= 0x11111111u; /* v1 stores zero - 1, the whole word borrowing */
}

static void fp8_block(const char *m, const float *w, size_t o, size_t in)
{
    unsigned char *q = add(m, "weight", MLA_F8_E4M3, 2, o, in);
    size_t bo = (o + G - 1) / G, bi = (in + G - 1) / G;
    float *scale = add(m, "weight_scale_inv", MLA_F32, 2, bo, bi);
    for (size_t r = 0; r < o; r++)
        for (size_t i = 0; i < in; i++) scale[r / G * bi + i / G] = fmaxf(scale[r / G * bi + i / G], fabsf(w[r * in + i]) / 448);
    for (size_t r = 0; r < o; r++)
        for (size_t i = 0; i < in; i++) {
            float s = scale[r / G * bi + i / G];
            q[r * in + i] = mla_f32_e4m3(s > 0 ? w[r * in + i] / s : 0);
        }
}

/* ModelOpt: one scale a matrix. */
static void fp8_tensor(const char *m, const float *w, size_t o, size_t in)
{
    unsigned char *q = add(m, "weight", MLA_F8_E4M3, 2, o, in);
    float *scale = add(m, "weight_scale", MLA_F32, 0, 0, 0), *input = add(m, "input_scale", MLA_F32, 0, 0, 0);
    *scale = amax(w, o * in) / 448;
    *input = 1;
    for (size_t i = 0; i < o * in; i++) q[i] = mla_f32_e4m3(*scale > 0 ? w[i] / *scale : 0);
}

/* One scale per output: FP8 or int8. */
static void per_channel(const char *m, const float *w, size_t o, size_t in, bool fp8)
{
    unsigned char *q = add(m, "weight", fp8 ? MLA_F8_E4M3 : MLA_I8, 2, o, in);
    uint16_t *scale = add(m, "weight_scale", MLA_BF16, 2, o, 1);
    for (size_t r = 0; r < o; r++) {
        float s = amax(w + r * in, in) / (fp8 ? 448 : 127.5f);
        mla_from_f32(&scale[r], &s, MLA_BF16, 1);
        mla_to_f32(&s, &scale[r], MLA_BF16, 1);
        for (size_t i = 0; i < in; i++) {
            int8_t c = fp8 ? 0 : (int8_t)code(w[r * in + i], s, -128, 127);
            q[r * in + i] = fp8 ? mla_f32_e4m3(s > 0 ? w[r * in + i] / s : 0) : (unsigned char)c;
        }
    }
}

static unsigned e2m1(float x)
{
    static const float V[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned best = 0;
    for (unsigned k = 1; k < 8; k++)
        if (fabsf(fabsf(x) - V[k]) < fabsf(fabsf(x) - V[best])) best = k;
    return best | (x < 0 ? 8u : 0);
}

/* opt: ModelOpt's names, and its second scale multiplies where the other's divides. */
static void fp4(const char *m, const float *w, size_t o, size_t in, bool nv, bool opt)
{
    size_t run = nv ? 16 : 32;
    unsigned char *q = add(m, opt ? "weight" : "weight_packed", MLA_U8, 2, o, in / 2), *scale = add(m, "weight_scale", nv ? MLA_F8_E4M3 : MLA_U8, 2, o, in / run);
    float global = 1;
    if (nv) {
        float *g = add(m, opt ? "weight_scale_2" : "weight_global_scale", MLA_F32, opt ? 0 : 1, 1, 0);
        float *x = add(m, opt ? "input_scale" : "input_global_scale", MLA_F32, opt ? 0 : 1, 1, 0);
        global = 448 * 6 / fmaxf(amax(w, o * in), 1e-20f);
        *g = opt ? 1 / global : global;
        *x = 1;
    }
    for (size_t r = 0; r < o; r++)
        for (size_t k = 0; k < in / run; k++) {
            const float *p = w + r * in + k * run;
            float s = amax(p, run) / 6;
            if (nv) {
                scale[r * (in / run) + k] = mla_f32_e4m3(s * global);
                s = mla_e4m3_f32(scale[r * (in / run) + k]) / global;
            } else {
                int e = s > 0 ? (int)ceilf(log2f(s)) : -127;
                scale[r * (in / run) + k] = (unsigned char)(e + 127);
                s = ldexpf(1, e);
            }
            for (size_t i = 0; i < run; i++) q[(r * in + k * run + i) / 2] |= (unsigned char)(e2m1(s > 0 ? p[i] / s : 0) << 4 * (i % 2));
        }
}

static bool is_mtp_layer(const mla_tensor *t) { return mla_starts_with(t->name, "mtp.layers.") && mla_ends_with(t->name, "_proj.weight"); }

/* Tied and padded: more rows of embeddings than the vocabulary has tokens, and no lm_head. */
static void pad_embeddings(mla_tensor *t)
{
    size_t row = t->nbytes / t->shape[0];
    unsigned char *p = room(ODD_VOCAB * row);
    memcpy(p, t->data, t->nbytes);
    t->shape[0] = ODD_VOCAB, t->data = p, t->nbytes = ODD_VOCAB * row;
}

static bool is_quantized(const mla_tensor *t)
{
    return t->ndim == 2 && strstr(t->name, "model.language_model.layers.") == t->name && t->shape[1] % G == 0 &&
           (mla_ends_with(t->name, "_proj.weight") || mla_ends_with(t->name, "in_proj_qkv.weight") || mla_ends_with(t->name, "in_proj_z.weight"));
}

static void encode(const mla_tensor *t, const char *format)
{
    char m[300];
    (void)snprintf(m, sizeof m, "%.*s", (int)(strlen(t->name) - strlen(".weight")), t->name);
    size_t o = t->shape[0], in = t->shape[1];
    float *w = room(o * in * sizeof *w);
    mla_to_f32(w, t->data, t->dtype, o * in);
    if (!strcmp(format, "fp8")) fp8_block(m, w, o, in);
    else if (!strcmp(format, "ct-fp8") || is_mtp_layer(t)) per_channel(m, w, o, in, true);
    else if (!strcmp(format, "int8")) per_channel(m, w, o, in, false);
    else if (!strcmp(format, "int4") || !strcmp(format, "odd")) ct_int4(m, w, o, in, true);
    else if (!strcmp(format, "int4-asym")) ct_int4(m, w, o, in, false);
    else if (!strcmp(format, "awq")) awq(m, w, o, in);
    else if (!strncmp(format, "gptq", 4)) gptq(m, w, o, in, !strcmp(format, "gptq-v2"), !strcmp(format, "gptq-act"));
    else if (!strcmp(format, "auto-round")) gptq(m, w, o, in, false, false);
    else if (!strcmp(format, "modelopt-fp8")) fp8_tensor(m, w, o, in);
    else fp4(m, w, o, in, strcmp(format, "mxfp4") != 0, !strcmp(format, "modelopt-nvfp4"));
    free(w);
}

static void write_config(const char *base, const char *dir, const char *config, bool odd, mla_err *err)
{
    mla_json *c, *q;
    char path[2000];
    (void)snprintf(path, sizeof path, "%s/config.json", base);
    must(mla_json_read(&c, path, 1 << 24, err), err);
    must(mla_json_parse(&q, config, strlen(config), "quantization_config", err), err);
    if (!mla_jv_set_copy(mla_json_root(c), "quantization_config", mla_json_root(q))) exit(3);
    mla_jv *text = mla_jv_get(mla_json_root(c), "text_config");
    if (odd && !(mla_jv_set_bool(mla_json_root(c), "tie_word_embeddings", true) && mla_jv_set_bool(text, "tie_word_embeddings", true) &&
                 mla_jv_set_size(text, "vocab_size", ODD_VOCAB)))
        exit(3);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    must(mla_json_write(path, mla_json_root(c), err), err);
    mla_json_free(c);
    mla_json_free(q);
}

int main(int argc, char **argv)
{
    static const char *const KEEP[] = {"tokenizer.json", "generation_config.json", "tokenizer_config.json"};
    mla_err err = {0};
    mla_ckpt *ck;
    const char *config = NULL;
    char from[2000], to[2000];
    unsigned char digest[32];
    for (size_t i = 0; argc == 4 && i < sizeof FORMAT / sizeof *FORMAT; i++)
        if (!strcmp(FORMAT[i].format, argv[3])) config = FORMAT[i].config;
    if (!config) return fprintf(stderr, "usage: encode_model BASE OUT FORMAT (encode_configs.h)\n"), 2;
    bool odd = !strcmp(argv[3], "odd");
    must(mla_ckpt_open(&ck, argv[1], &err), &err);
    must(mla_dir_make(argv[2], &err), &err);
    for (size_t i = 0; i < mla_ckpt_count(ck); i++) {
        const mla_tensor *t = mla_ckpt_at(ck, i);
        if (is_quantized(t) || (odd && is_mtp_layer(t))) encode(t, argv[3]);
        else if (!odd || strcmp(t->name, "lm_head.weight")) out[n_out++] = *t;
        if (odd && mla_ends_with(t->name, "embed_tokens.weight")) pad_embeddings(&out[n_out - 1]);
    }
    (void)snprintf(to, sizeof to, "%s/model.safetensors", argv[2]);
    must(mla_st_write(to, out, n_out, digest, &err), &err);
    write_config(argv[1], argv[2], config, odd, &err);
    for (size_t i = 0; i < sizeof KEEP / sizeof *KEEP; i++) {
        (void)snprintf(from, sizeof from, "%s/%s", argv[1], KEEP[i]);
        (void)snprintf(to, sizeof to, "%s/%s", argv[2], KEEP[i]);
        if (mla_path_exists(from)) must(mla_file_place(from, to, NULL, &err), &err);
    }
    mla_ckpt_close(ck);
    return 0;
}
