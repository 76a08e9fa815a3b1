/* Writing shared-rotary factor files, and what they say of the weights they belong to. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/sha256.h"
#include "model/arch.h"
#include "model/model_impl.h"
#include "model/shared_meta.h"

/* First, middle or last full-attention layer. */
static size_t landmark(const mla_config *c, size_t which)
{
    size_t full = mla_config_full_layers(c), want = which == 0 ? 0 : which == 1 ? (full - 1) / 2 : full - 1;
    for (size_t l = 0; l < c->layers; l++)
        if (c->layer_kind[l] == MLA_LAYER_FULL && want-- == 0) return l;
    return 0;
}

mla_status mla_teacher_of(mla_teacher *out, const mla_model *m, mla_err *err)
{
    static const mla_wkind KIND[] = {MLA_W_K, MLA_W_V, MLA_W_O};
    mla_sha256 *h;
    unsigned char digest[32];
    mla_str name = MLA_STR_MAX(512);
    *out = (mla_teacher){.format = m->gguf ? "gguf" : "original_bf16"};
    mla_status st = mla_sha256_new(&h, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; st == MLA_OK && i < 3; i++) {
        mla_str_clear(&name);
        if ((st = mla_model_name(m, KIND[i], landmark(&m->cfg, i), &name, err)) != MLA_OK) break;
        const mla_tensor *t = m->ckpt ? mla_ckpt_find(m->ckpt, mla_str_c(&name)) : NULL;
        const mla_gguf_tensor *g = m->gguf ? mla_gguf_find(m->gguf, mla_str_c(&name)) : NULL;
        if (!t && !g) st = mla_fail(err, MLA_EINTERNAL, "%s: not found", mla_str_c(&name));
        else {
            mla_sha256_update(h, mla_str_c(&name), name.len);
            mla_sha256_update(h, t ? t->data : (const void *)g->data, t ? t->nbytes : g->nbytes);
        }
        if (t && t->dtype != MLA_BF16) out->format = "stored";
    }
    mla_sha256_get(h, digest);
    mla_hex(digest, 32, out->fingerprint);
    mla_sha256_free(h);
    mla_str_free(&name);
    char *path = m->ckpt ? mla_path_join(m->path, "config.json") : NULL, *text = NULL;
    size_t n;
    if (st == MLA_OK && path && (st = mla_file_read(&text, &n, path, (size_t)16 << 20, err)) == MLA_OK) {
        mla_sha256_bytes(text, n, digest);
        mla_hex(digest, 32, out->config_sha256);
    }
    mla_free(text);
    mla_free(path);
    return st;
}

bool mla_shared_servable(const mla_model *base, size_t R, const char **why)
{
    static const char *const BASE[] = {"Qwen3_5ForConditionalGeneration", "Qwen3_8ForConditionalGeneration"};
    const char *reason = "its architecture is not Qwen3_5ForConditionalGeneration";
    mla_teacher t;
    mla_err none = {0};
    for (size_t i = 0; i < 2; i++)
        if (!strcmp(base->cfg.architecture, BASE[i])) reason = NULL;
    if (!reason && R != 1) reason = "it caches more than one shared rotary key";
    if (!reason && (base->cfg.weights_quantized || mla_teacher_of(&t, base, &none) != MLA_OK || strcmp(t.format, "original_bf16")))
        reason = "its weights are not bf16";
    if (why) *why = reason;
    return reason == NULL;
}

/* Tensor k of a layer, dense, as the file has it (shared_read.c reads it back). */
static void pack(float *dst, const mla_shared *s, size_t k)
{
    size_t d = s->d, rot = s->rot, dn = d - rot, r = s->r, w = s->R * rot;
    switch (k) {
    case 0: memcpy(dst, s->E, mla_shared_part(s, 0) * sizeof *dst); return;
    case 1: memcpy(dst, s->KR, mla_shared_part(s, 1) * sizeof *dst); return;
    case 2:
        for (size_t h = 0; h < s->H; h++)
            for (size_t i = 0; i < rot; i++)
                for (size_t j = 0; j < w; j++) dst[(h * rot + i) * w + j] = s->Q2[(h * w + j) * rot + i];
        return;
    case 3: /* the residual query is the identity into the first residual rows */
        memset(dst, 0, s->H * rot * dn * sizeof *dst);
        for (size_t h = 0; h < s->H; h++)
            for (size_t i = 0; i < rot; i++) dst[(h * rot + i) * dn + i] = 1;
        return;
    case 4:
        memset(dst, 0, s->H * (2 * dn + d) * r * sizeof *dst);
        for (size_t h = 0; h < s->H; h++) {
            float *rows = dst + h * (2 * dn + d) * r;
            const float *K = s->K + h * d * r;
            memcpy(rows, K + rot * r, dn * r * sizeof *dst);
            memcpy(rows + dn * r, K, rot * r * sizeof *dst);
            memcpy(rows + 2 * dn * r, s->V + h * d * r, d * r * sizeof *dst);
        }
        return;
    default: memcpy(dst, s->mu, mla_shared_part(s, 5) * sizeof *dst);
    }
}

static mla_status put_json(mla_stw *w, const char *key, const mla_jv *v, mla_err *err)
{
    mla_str s = MLA_STR_MAX(1 << 14);
    mla_status st = v ? mla_json_print(&s, v, false, err) : mla_fail(err, MLA_ENOMEM, "header");
    if (st == MLA_OK) st = mla_stw_meta(w, key, mla_str_c(&s), err);
    mla_str_free(&s);
    return st;
}

static mla_status put_header(mla_stw *w, const mla_model *base, const mla_shared *s, const char *source, const char *native, mla_err *err)
{
    static const char *const KEY[] = {"kind", "format_version", "geometry", "semantics", "teacher", "source_stage", "source_sha256", "native_sha256"};
    mla_json *doc;
    mla_teacher t;
    mla_status st = mla_json_new_object(&doc, err);
    if (st != MLA_OK) return st;
    if ((st = mla_teacher_of(&t, base, err)) != MLA_OK) {
        mla_json_free(doc);
        return st;
    }
    mla_jv *o = mla_json_root(doc), *teacher = mla_jv_set_obj(o, "teacher");
    bool ok = mla_jv_set_str(o, "kind", s->R == 1 ? MLA_SHARED_KIND : MLA_SHARED_KIND_R) && mla_jv_set_size(o, "format_version", 1) &&
              mla_shared_geometry(mla_jv_set_obj(o, "geometry"), &base->cfg, s->r) &&
              mla_shared_semantics(mla_jv_set_obj(o, "semantics"), &base->cfg, s->r, s->R) &&
              mla_jv_set_str(teacher, "path", ".") && /* the folder the file lies in carries the base's weights */
              mla_jv_set_str(teacher, "format", t.format) && mla_jv_set_str(teacher, "config_sha256", t.config_sha256) &&
              mla_jv_set_str(teacher, "weights_fingerprint", t.fingerprint) && mla_jv_set_str(o, "source_stage", "closed_form_refined") &&
              mla_jv_set_str(o, "source_sha256", source) && mla_jv_set_str(o, "native_sha256", native);
    if (!ok) st = mla_fail(err, MLA_ENOMEM, "header");
    for (size_t i = 0; st == MLA_OK && i < sizeof KEY / sizeof *KEY; i++) st = put_json(w, KEY[i], mla_jv_get(o, KEY[i]), err);
    mla_json_free(doc);
    return st;
}

/* Layer and tensor that a name of ours means. */
static void parse_name(const char *name, const mla_config *c, size_t *index, size_t *k)
{
    size_t layer = 0, i = 0;
    char part[64] = "";
    (void)sscanf(name, "layers.%zu.%63s", &layer, part);
    for (size_t l = 0; l < layer; l++) i += c->layer_kind[l] == MLA_LAYER_FULL;
    *index = i;
    for (*k = 0; *k + 1 < MLA_SHARED_TENSORS && strcmp(part, mla_shared_tensor[*k]); ++*k) {}
}

/* Digest of all tensor bytes in writing order, before the header that names it. */
static mla_status content_digest(char hex[65], const mla_shared *s, size_t layers, float *buf, mla_err *err)
{
    mla_sha256 *h;
    unsigned char digest[32];
    mla_status st = mla_sha256_new(&h, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < layers; i++)
        for (size_t k = 0; k < MLA_SHARED_TENSORS; k++) {
            size_t n = k == 3 ? s[i].H * s[i].rot * (s[i].d - s[i].rot) : k == 4 ? s[i].H * (3 * s[i].d - 2 * s[i].rot) * s[i].r : mla_shared_part(&s[i], k);
            pack(buf, &s[i], k);
            mla_sha256_update(h, buf, n * sizeof *buf);
        }
    mla_sha256_get(h, digest);
    mla_hex(digest, 32, hex);
    mla_sha256_free(h);
    return st;
}

mla_status mla_shared_write(const char *path, const mla_model *base, const mla_shared *s, const char *source_sha256, unsigned char digest[32],
                            mla_err *err)
{
    const mla_config *c = &base->cfg;
    size_t layers = mla_config_full_layers(c), big = mla_shared_floats(s) + s->H * (3 * s->d) * s->r + s->H * s->rot * s->d;
    char native[65], name[96];
    float *buf = mla_alloc_raw(big, 1, sizeof *buf);
    mla_stw *w = NULL;
    if (!buf) return mla_fail(err, MLA_ENOMEM, "factor file");
    mla_status st = content_digest(native, s, layers, buf, err);
    if (st == MLA_OK) st = mla_stw_new(&w, path, err);
    for (size_t l = 0; st == MLA_OK && l < c->layers; l++)
        for (size_t k = 0; st == MLA_OK && c->layer_kind[l] == MLA_LAYER_FULL && k < MLA_SHARED_TENSORS; k++) {
            size_t shape[3], ndim;
            mla_shared_shape(c, s->r, s->R, k, shape, &ndim);
            (void)snprintf(name, sizeof name, "layers.%zu.%s", l, mla_shared_tensor[k]);
            st = mla_stw_declare(w, name, MLA_F32, ndim, shape, err);
        }
    if (st == MLA_OK) st = put_header(w, base, s, source_sha256, native, err);
    if (st == MLA_OK) st = mla_stw_begin(w, err);
    for (size_t i = 0; st == MLA_OK && i < mla_stw_count(w); i++) {
        const mla_tensor *t = mla_stw_at(w, i);
        size_t at, k;
        parse_name(t->name, c, &at, &k);
        pack(buf, &s[at], k);
        st = mla_stw_write(w, buf, t->nbytes, err);
    }
    mla_free(buf);
    if (st == MLA_OK) return mla_stw_commit(w, digest, err);
    mla_stw_abort(w);
    return mla_wrap(err, "factor file");
}
