/* Factors files in and out, nested and plain. */
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "retrofit/build/graft.h"
#include "retrofit/solve/nested.h"
#include "tensor/compare.h"
#include "tensor/dtype.h"

static const char *const PART[] = {"encoder.weight", "decoder.weight", "mean", "divisor_center", "nested.cross", "nested.spectrum"};
enum { ENCODER, DECODER, MEAN, CENTER, CROSS, SPECTRUM, PARTS };

#define META_DTYPE "mla_nested_dtype" /* present in nested files: the stored precision that the solve settled on */

/* Part k of a layer as a tensor over its own data. */
static mla_tensor part_of(const mla_nested *ne, size_t k)
{
    const mla_factors *f = &ne->f;
    const size_t shape[PARTS][3] = {{f->groups, f->r, f->n}, {f->groups, f->n, f->r}, {f->groups, f->n, 0}, {f->heads, 0, 0},
                                    {f->groups, f->n, f->r}, {f->groups, f->n, 0}};
    const void *data[PARTS] = {f->E, f->D, f->mu, f->center, ne->cross, ne->sigma};
    mla_tensor t = {.dtype = k < CROSS ? MLA_F32 : MLA_F64, .ndim = k == CENTER ? 1 : k == MEAN || k == SPECTRUM ? 2 : 3, .data = data[k]};
    memcpy(t.shape, shape[k], sizeof shape[k]);
    t.nbytes = mla_tensor_numel(&t) * mla_dtype_bits(t.dtype) / 8;
    return t;
}

/* Is every value finite? */
static mla_status check_part(const mla_tensor *t, const char *name, mla_err *err)
{
    size_t n = mla_tensor_numel(t);
    const double *d = t->data;
    size_t bad = t->dtype == MLA_F32 ? mla_count_nonfinite(t->data, n, NULL) : 0;
    for (size_t i = 0; t->dtype == MLA_F64 && i < n; i++) bad += !(d[i] - d[i] == 0);
    return bad ? mla_fail(err, MLA_EFORMAT, "%s: %zu of %zu values are not finite", name, bad, n) : MLA_OK;
}

static mla_status declare(mla_stw *w, const mla_model *base, const mla_nested *ne, mla_str *name, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t k = 0; st == MLA_OK && k < PARTS; k++) {
        mla_tensor t = part_of(ne, k);
        if (k == CENTER && !ne->f.center) continue;
        st = mla_factors_name(name, base, ne->layer, PART[k], err);
        if (st == MLA_OK) st = check_part(&t, mla_str_c(name), err);
        if (st == MLA_OK) st = mla_stw_declare(w, mla_str_c(name), t.dtype, t.ndim, t.shape, err);
    }
    return st;
}

/* The data of the tensor that the writer wants next. */
static mla_status write_named(mla_stw *w, const char *want, const mla_model *base, const mla_nested *ne, size_t layers, mla_err *err)
{
    mla_str name = MLA_STR_MAX(1024);
    mla_status st = MLA_OK;
    bool found = false;
    for (size_t i = 0; st == MLA_OK && !found && i < layers; i++)
        for (size_t k = 0; st == MLA_OK && !found && k < PARTS; k++) {
            st = mla_factors_name(&name, base, ne[i].layer, PART[k], err);
            found = st == MLA_OK && !strcmp(want, mla_str_c(&name));
            mla_tensor t = part_of(&ne[i], k);
            if (found) st = mla_stw_write(w, t.data, t.nbytes, err);
        }
    mla_str_free(&name);
    return st;
}

mla_status mla_nested_write(const char *path, const mla_model *base, const mla_nested *ne, size_t layers, bool f32, unsigned char digest[32], mla_err *err)
{
    mla_stw *w;
    mla_str name = MLA_STR_MAX(1024);
    mla_status st = mla_stw_new(&w, path, err);
    if (st != MLA_OK) return st;
    st = mla_stw_meta(w, META_DTYPE, f32 ? "float32" : "bfloat16", err);
    for (size_t i = 0; st == MLA_OK && i < layers; i++) st = declare(w, base, &ne[i], &name, err);
    if (st == MLA_OK) st = mla_stw_begin(w, err);
    for (size_t i = 0; st == MLA_OK && i < mla_stw_count(w); i++) st = write_named(w, mla_stw_at(w, i)->name, base, ne, layers, err);
    mla_str_free(&name);
    if (st == MLA_OK) return mla_stw_commit(w, digest, err);
    mla_stw_abort(w);
    return mla_wrap(err, "factors");
}

/* ---- reading ---- */
static const char *meta(const mla_st *s, const char *key)
{
    for (size_t i = 0; i < mla_st_meta_count(s); i++)
        if (!strcmp(mla_st_meta_key(s, i), key)) return mla_st_meta_value(s, i);
    return NULL;
}

/* A file's text for messages and receipts: printable ASCII, cut at 200. */
static char *plain_text(const char *s)
{
    char *t = mla_strndup(s, strnlen(s, 200));
    for (char *p = t; p && *p; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    return t;
}

/* Which layout has n features in each of g groups of this base; divisors tell layout P. */
static mla_status layout_of(mla_layout *out, const mla_tensor *e, bool divisors, const mla_config *c, mla_err *err)
{
    size_t g = e->shape[0], r = e->shape[1], n = e->shape[2], nn = 0, nr = 0;
    if (g == 0 || c->kv_heads % g) return mla_fail(err, MLA_EFORMAT, "%s: %zu groups do not divide %zu KV heads", e->name, g, c->kv_heads);
    *out = MLA_LAYOUT_NONE;
    if (mla_factors_dims(c, MLA_LAYOUT_REBUILD, g, &nr, err) == MLA_OK && n == nr) *out = MLA_LAYOUT_REBUILD;
    if (c->rope.rot < c->head_dim && mla_factors_dims(c, MLA_LAYOUT_N, g, &nn, err) == MLA_OK && n == nn) *out = divisors ? MLA_LAYOUT_P : MLA_LAYOUT_N;
    if (*out == MLA_LAYOUT_NONE || r == 0 || r > n)
        return mla_fail(err, MLA_EFORMAT, "%s: %zu features and rank %zu fit no layout of this base (n: %zu, rebuild: %zu)", e->name, n, r, nn, nr);
    return MLA_OK;
}

static mla_status load_f32(float *dst, size_t count, const mla_tensor *t, mla_err *err)
{
    char text[96];
    size_t at;
    if (mla_tensor_numel(t) != count || !mla_to_f32(dst, t->data, t->dtype, count))
        return mla_fail(err, MLA_EFORMAT, "%s: expected %zu float values, found %s", t->name, count, mla_tensor_text(t, text, sizeof text));
    if (mla_count_nonfinite(dst, count, &at)) return mla_fail(err, MLA_EFORMAT, "%s: value %zu is not finite", t->name, at);
    return MLA_OK;
}

static mla_status load_f64(double **out, size_t count, const mla_tensor *t, mla_err *err)
{
    char text[96];
    if (t->dtype != MLA_F64 || mla_tensor_numel(t) != count)
        return mla_fail(err, MLA_EFORMAT, "%s: expected %zu F64 values, found %s", t->name, count, mla_tensor_text(t, text, sizeof text));
    *out = mla_alloc_raw(count, 1, sizeof **out);
    if (!*out) return mla_fail(err, MLA_ENOMEM, "%s", t->name);
    memcpy(*out, t->data, count * sizeof **out);
    return check_part(t, t->name, err);
}

/* A layer of layout absorbed-rope: its rotary encoder is there and says how wide it is. */
static mla_status load_absorbed(mla_nested *ne, const mla_tensor *const t[3], const mla_st *file, const mla_model *base, mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    const mla_tensor *e = t[ENCODER], *rot[2];
    static const char *const NAME[2] = {"rotary_encoder.weight", "rotary_query.weight"};
    mla_str s = MLA_STR_MAX(1024);
    size_t n;
    mla_status st = mla_factors_dims(c, MLA_LAYOUT_ABSORBED, e->shape[0], &n, err);
    for (size_t k = 0; st == MLA_OK && k < 2; k++) {
        st = mla_factors_name(&s, base, ne->layer, NAME[k], err);
        if (st == MLA_OK && !(rot[k] = mla_st_find(file, mla_str_c(&s)))) st = mla_fail(err, MLA_EFORMAT, "%s is missing", mla_str_c(&s));
    }
    mla_str_free(&s);
    if (st == MLA_OK && (e->shape[2] != n || rot[0]->ndim != 2))
        st = mla_fail(err, MLA_EFORMAT, "%s: %zu features, expected %zu beside a rotary encoder", e->name, e->shape[2], n);
    if (st == MLA_OK) st = mla_factors_new_absorbed(&ne->f, c, rot[0]->shape[0], e->shape[1], err);
    mla_factors *f = &ne->f;
    if (st == MLA_OK) st = load_f32(f->E, f->r * n, e, err);
    if (st == MLA_OK) st = load_f32(f->D, f->nd * f->r, t[DECODER], err);
    if (st == MLA_OK) st = load_f32(f->mu, n, t[MEAN], err);
    if (st == MLA_OK) st = load_f32(f->Er, f->w * n / 2, rot[0], err);
    return st == MLA_OK ? load_f32(f->Rq, f->w * n / 2, rot[1], err) : st;
}

static bool has_rotary(const mla_st *file)
{
    for (size_t i = 0; i < mla_st_count(file); i++)
        if (mla_ends_with(mla_st_at(file, i)->name, ".mla.rotary_encoder.weight")) return true;
    return false;
}

static mla_status load_layer(mla_nested *ne, mla_dtype *dtype, const mla_st *file, const mla_model *base, bool nested, mla_err *err)
{
    const mla_tensor *t[PARTS] = {0};
    mla_str s = MLA_STR_MAX(1024);
    const mla_config *c = mla_model_config(base);
    mla_status st = MLA_OK;
    char text[96];
    for (size_t k = 0; st == MLA_OK && k < PARTS; k++) {
        st = mla_factors_name(&s, base, ne->layer, PART[k], err);
        if (st == MLA_OK && !(t[k] = mla_st_find(file, mla_str_c(&s))) && k != CENTER && (nested || k < CROSS)) st = mla_fail(err, MLA_EFORMAT, "%s is missing", mla_str_c(&s));
    }
    mla_str_free(&s);
    if (st != MLA_OK) return st;
    const mla_tensor *e = t[ENCODER];
    if (e->ndim != 3) return mla_fail(err, MLA_EFORMAT, "%s: expected [groups, r, n], found %s", e->name, mla_tensor_text(e, text, sizeof text));
    *dtype = e->dtype;
    if (!nested && has_rotary(file)) return load_absorbed(ne, t, file, base, err);
    mla_layout layout = MLA_LAYOUT_NONE;
    if ((st = layout_of(&layout, e, t[CENTER] != NULL, c, err)) != MLA_OK) return st;
    size_t g = e->shape[0], r = e->shape[1], n = e->shape[2], d_key;
    d_key = n / (c->kv_heads / g) - c->head_dim;
    ne->keys = c->kv_heads / g * d_key;
    st = mla_factors_new(&ne->f, layout, g, n, r, err);
    if (st == MLA_OK) st = load_f32(ne->f.E, g * r * n, t[ENCODER], err);
    if (st == MLA_OK) st = load_f32(ne->f.D, g * n * r, t[DECODER], err);
    if (st == MLA_OK) st = load_f32(ne->f.mu, g * n, t[MEAN], err);
    if (st == MLA_OK && t[CENTER]) st = mla_factors_centers(&ne->f, c->kv_heads, err);
    if (st == MLA_OK && t[CENTER]) st = load_f32(ne->f.center, c->kv_heads, t[CENTER], err);
    if (st == MLA_OK && nested) st = load_f64(&ne->cross, g * n * r, t[CROSS], err);
    if (st == MLA_OK && nested) st = load_f64(&ne->sigma, g * n, t[SPECTRUM], err);
    return st;
}

static mla_status read_layers(mla_factor_source *out, const mla_st *file, const mla_model *base, mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    size_t full = mla_config_full_layers(c), parts = out->nested ? PARTS - 1 : CENTER;
    mla_status st = MLA_OK;
    out->layer = mla_alloc(full, 1, sizeof *out->layer);
    if (!out->layer) return mla_fail(err, MLA_ENOMEM, "factors of %zu layers", full);
    for (size_t l = 0; st == MLA_OK && l < c->layers; l++) {
        mla_dtype dtype = MLA_F32;
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        mla_nested *ne = &out->layer[out->layers++];
        ne->layer = l;
        st = load_layer(ne, &dtype, file, base, out->nested, err);
        if (!out->nested) out->f32 = dtype == MLA_F32;
        if (st == MLA_OK && (ne->f.layout != out->layer[0].f.layout || ne->f.groups != out->layer[0].f.groups))
            st = mla_fail(err, MLA_EFORMAT, "layer %zu: layout or groups differ from the first layer's", l);
    }
    if (st == MLA_OK && out->layer[0].f.center) parts++;
    if (st == MLA_OK && !out->nested && has_rotary(file)) parts += 2;
    if (st == MLA_OK && mla_st_count(file) != parts * full)
        st = mla_fail(err, MLA_EFORMAT, "%zu tensors, expected %zu: %zu for each of %zu full-attention layers", mla_st_count(file), parts * full, parts, full);
    return st;
}

mla_status mla_factor_source_read(mla_factor_source *out, const char *path, const mla_model *base, mla_err *err)
{
    mla_st *file;
    *out = (mla_factor_source){0};
    mla_status st = mla_st_open(&file, path, err);
    if (st != MLA_OK) return st;
    const char *dtype = meta(file, META_DTYPE), *refined = meta(file, MLA_FACTORS_REFINED), *layout = meta(file, MLA_FACTORS_LAYOUT);
    out->nested = dtype != NULL;
    if (dtype) {
        out->f32 = !strcmp(dtype, "float32");
        if (!out->f32 && strcmp(dtype, "bfloat16"))
            st = mla_fail(err, MLA_EFORMAT, META_DTYPE ": expected bfloat16 or float32, found another text of %zu bytes", strlen(dtype));
    }
    out->deepseek = layout && !strcmp(layout, mla_layout_name(MLA_LAYOUT_DEEPSEEK));
    if (st == MLA_OK && layout && !out->deepseek)
        st = mla_fail(err, MLA_EFORMAT, MLA_FACTORS_LAYOUT ": expected deepseek, found another text of %zu bytes", strlen(layout));
    if (st == MLA_OK && refined && !(out->refined = plain_text(refined))) st = mla_fail(err, MLA_ENOMEM, "metadata");
    if (st == MLA_OK) st = read_layers(out, file, base, err);
    if (st == MLA_OK && out->deepseek && out->layer[0].f.layout != MLA_LAYOUT_ABSORBED)
        st = mla_fail(err, MLA_EFORMAT, MLA_FACTORS_LAYOUT ": deepseek, but there are no rotary encoders");
    mla_st_close(file);
    if (st == MLA_OK) return st;
    mla_factor_source_free(out);
    return mla_wrap(err, "%s", path);
}

void mla_factor_source_free(mla_factor_source *s)
{
    for (size_t i = 0; i < s->layers; i++) mla_nested_free(&s->layer[i]);
    mla_free(s->layer);
    mla_free(s->refined);
    *s = (mla_factor_source){0};
}
