/* The "mla" block of a retrofit (docs/format-factors.md) and what quantization_config means for reading. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "model/config_parts.h"
#include "model/factors.h"

bool mla_parse_hex(const char *s, unsigned char *out, size_t n)
{
    static const char DIGIT[] = "0123456789abcdef";
    if (strlen(s) != 2 * n) return false;
    for (size_t i = 0; i < 2 * n; i++) {
        const char *d = strchr(DIGIT, s[i]);
        if (!d) return false;
        out[i / 2] = (unsigned char)(i % 2 ? out[i / 2] | (d - DIGIT) : (d - DIGIT) << 4);
    }
    return true;
}

/* A retrofit's keys stand in an object "mla", or, older, one by one with "mvla_" before them. */
typedef struct {
    mla_rd rd;
    bool old;
    char name[32];
} block;

static const char *key(block *b, const char *name)
{
    if (!b->old) return name;
    snprintf(b->name, sizeof b->name, "mvla_%s%s", !strcmp(name, "groups") ? "latent_" : "", name);
    return b->name;
}

/* The rank of layer i: entry i of a list with one per layer, or key "i" of an object that names the full-attention layers. */
static const mla_jv *rank_of(const mla_jv *list, size_t i)
{
    char at[24];
    if (mla_jv_is_obj(list)) {
        snprintf(at, sizeof at, "%zu", i);
        return mla_jv_get(list, at);
    }
    const mla_jv *v = mla_jv_first(list);
    for (; v && i; i--) v = mla_jv_next(v);
    return v;
}

/* 0 where the layer is no full attention, else a multiple of groups up to groups * n. */
static void read_ranks(block *b, mla_config *c)
{
    mla_retrofit_config *m = &c->mla;
    size_t n = 0, found = 0;
    const mla_jv *list = mla_rd_get(&b->rd, key(b, "ranks"));
    bool named = b->old && mla_jv_is_obj(list);
    size_t want = named ? mla_config_full_layers(c) : c->layers;
    if (*b->rd.st == MLA_OK) *b->rd.st = mla_factors_dims(c, m->layout, m->groups, &n, b->rd.err);
    if (*b->rd.st == MLA_OK) *b->rd.st = mla_layout_fits(c, m->layout, b->rd.err);
    if (*b->rd.st != MLA_OK) return;
    found = mla_jv_is_arr(list) || named ? mla_jv_len(list) : 0;
    if (found != want) {
        mla_rd_fail(&b->rd, MLA_EFORMAT, key(b, "ranks"), "expected a list of %zu ranks, one per layer, found %zu", want, found);
        return;
    }
    m->rank = mla_alloc(c->layers, 1, sizeof *m->rank);
    if (!m->rank) {
        *b->rd.st = mla_fail(b->rd.err, MLA_ENOMEM, "config: ranks");
        return;
    }
    for (size_t i = 0; i < c->layers; i++) {
        bool full = c->layer_kind[i] == MLA_LAYER_FULL;
        size_t lo = full ? m->groups : 0, hi = full ? m->groups * n : 0;
        if (named && !full) continue;
        const mla_jv *v = rank_of(list, i);
        if (!v || !mla_jv_size(v, &m->rank[i]) || m->rank[i] < lo || m->rank[i] > hi || m->rank[i] % m->groups) {
            if (full) mla_rd_fail(&b->rd, MLA_EFORMAT, key(b, "ranks"), "layer %zu: expected a multiple of %zu from %zu to %zu", i, m->groups, lo, hi);
            else mla_rd_fail(&b->rd, MLA_EFORMAT, key(b, "ranks"), "layer %zu: expected 0, the layer is no full attention", i);
            return;
        }
    }
}

/* rotary_widths, where layers differ: even numbers from 2 to rotary_width, which is the largest; 0 in other layers. */
static void read_widths(block *bl, mla_config *c)
{
    mla_rd *b = &bl->rd;
    const mla_jv *list = mla_rd_get(b, "rotary_widths"), *v;
    size_t top = 0, found = mla_jv_is_arr(list) ? mla_jv_len(list) : 0;
    if (!list || *b->st != MLA_OK) return;
    if (found != c->layers) {
        mla_rd_fail(b, MLA_EFORMAT, "rotary_widths", "expected a list of %zu widths, one per layer, found %zu", c->layers, found);
        return;
    }
    if (!(c->mla.width = mla_alloc(c->layers, 1, sizeof *c->mla.width))) {
        *b->st = mla_fail(b->err, MLA_ENOMEM, "config: rotary widths");
        return;
    }
    v = mla_jv_first(list);
    for (size_t i = 0; i < c->layers; i++, v = mla_jv_next(v)) {
        size_t *w = &c->mla.width[i], lo = c->layer_kind[i] == MLA_LAYER_FULL ? 2 : 0, hi = lo ? c->mla.rotary_width : 0;
        if (!mla_jv_size(v, w) || *w < lo || *w > hi || *w % 2) {
            mla_rd_fail(b, MLA_EFORMAT, "rotary_widths", "layer %zu: expected an even number from %zu to %zu", i, lo, hi);
            return;
        }
        if (*w > top) top = *w;
    }
    if (top != c->mla.rotary_width) mla_rd_fail(b, MLA_EFORMAT, "rotary_widths", "the largest is %zu, rotary_width says %zu", top, c->mla.rotary_width);
}

/* The free choices of layout absorbed-rope: how many rotary values, and how many frequencies turn as one. */
static void read_absorbed(block *bl, mla_config *c)
{
    mla_rd *b = &bl->rd;
    mla_retrofit_config *m = &c->mla;
    size_t most = c->kv_heads * c->rope.rot, half = c->rope.rot / 2;
    const size_t *s = c->rope.mrope_section;
    if (m->rotary_width < 2 || m->rotary_width > most || m->rotary_width % 2)
        mla_rd_fail(b, MLA_EFORMAT, key(bl, "rotary_width"), "expected an even number from 2 to %zu, found %zu", most, m->rotary_width);
    m->freq_fold = mla_rd_size(b, "freq_fold", 1, half, 1);
    if (half % m->freq_fold) mla_rd_fail(b, MLA_EFORMAT, "freq_fold", "%zu does not divide %zu frequencies", m->freq_fold, half);
    if (m->freq_fold > 1 && (s[0] | s[1] | s[2]))
        mla_rd_fail(b, MLA_EFORMAT, "freq_fold", "%zu, but neighbouring frequencies of a multi-axis RoPE follow different axes", m->freq_fold);
    read_widths(bl, c);
}

static void read_block(block *bl, mla_config *c)
{
    mla_retrofit_config *m = &c->mla;
    mla_rd *b = &bl->rd;
    char q[96];
    m->old_names = bl->old;
    const char *format = mla_rd_str(b, key(bl, "format"), "absent"), *layout = mla_rd_str(b, key(bl, "layout"), "absent");
    const char *dtype = mla_rd_str(b, key(bl, "dtype"), "absent"), *file = mla_rd_str(b, key(bl, "factors_file"), ""),
               *hex = mla_rd_str(b, key(bl, "factors_sha256"), "");
    if (strcmp(format, "mla-factors/1"))
        mla_rd_fail(b, MLA_EUNSUPPORTED, key(bl, "format"), "\"%s\" is not supported (mla-factors/1)", mla_printable(format, q, sizeof q));
    if (!mla_layout_parse(layout, &m->layout) || m->layout == MLA_LAYOUT_DEEPSEEK)
        mla_rd_fail(b, MLA_EUNSUPPORTED, key(bl, "layout"), "\"%s\" is not supported (" MLA_LAYOUT_LIST ")", mla_printable(layout, q, sizeof q));
    if (!strcmp(dtype, "bfloat16")) m->dtype = MLA_BF16;
    else if (!strcmp(dtype, "float32")) m->dtype = MLA_F32;
    else mla_rd_fail(b, MLA_EUNSUPPORTED, key(bl, "dtype"), "\"%s\" is not supported (bfloat16, float32)", mla_printable(dtype, q, sizeof q));
    m->groups = mla_rd_size(b, key(bl, "groups"), 1, MLA_MAX_HEADS, MLA_REQUIRED);
    if (c->kv_heads % m->groups) mla_rd_fail(b, MLA_EFORMAT, key(bl, "groups"), "%zu does not divide %zu KV heads", m->groups, c->kv_heads);
    read_ranks(bl, c);
    size_t want = mla_layout_rotary(c, m->layout);
    m->rotary_width = mla_rd_size(b, key(bl, "rotary_width"), 0, MLA_MAX_INTER, MLA_REQUIRED);
    if (m->layout == MLA_LAYOUT_ABSORBED) read_absorbed(bl, c);
    else if (m->rotary_width != want)
        mla_rd_fail(b, MLA_EFORMAT, key(bl, "rotary_width"), "expected %zu (%zu KV heads of %zu rotated dims in layouts n and p, 0 in rebuild), found %zu",
                    want, c->kv_heads, c->rope.rot, m->rotary_width);
    if (!mla_path_is_safe_relative(file) || !mla_ends_with(file, ".safetensors"))
        mla_rd_fail(b, MLA_EFORMAT, key(bl, "factors_file"), "expected the name of a .safetensors file in this folder, found \"%s\"",
                    mla_printable(file, q, sizeof q));
    if (!mla_parse_hex(hex, m->factors_sha256, 32))
        mla_rd_fail(b, MLA_EFORMAT, key(bl, "factors_sha256"), "expected 64 lowercase hex digits, found \"%s\"", mla_printable(hex, q, sizeof q));
    m->factors_file = mla_rd_dup(b, file);
}

void mla_config_read_mla(mla_rd *root, mla_rd *text, mla_config *c, bool retro)
{
    if (mla_config_read_shared(text, c, retro)) return;
    const mla_jv *in_text = mla_rd_obj(text, "mla"), *in_root = root->obj == text->obj ? NULL : mla_rd_obj(root, "mla");
    bool old_text = mla_rd_get(text, "mvla_ranks"), old_root = root->obj != text->obj && mla_rd_get(root, "mvla_ranks");
    char where[64];
    mla_rd *at = in_text || old_text ? text : root;
    const char *found = in_text || in_root ? "mla" : "mvla_ranks";
    if (*root->st != MLA_OK) return;
    if ((in_text || in_root) && (old_text || old_root)) mla_rd_fail(at, MLA_EFORMAT, "mvla_ranks", "stands beside a block mla: one spelling is expected");
    else if ((in_text && in_root) || (old_text && old_root)) mla_rd_fail(root, MLA_EFORMAT, found, "stands in the root and in text_config");
    else if (retro && !in_text && !in_root && !old_text && !old_root)
        mla_rd_fail(text, MLA_EFORMAT, "mla", "missing, but architecture %s is a retrofit", c->architecture);
    else if (!retro && (in_text || in_root || old_text || old_root)) mla_rd_fail(at, MLA_EFORMAT, found, "not expected in architecture %s", c->architecture);
    if (*root->st != MLA_OK || !retro) return;
    block b = {.rd = *at, .old = old_text || old_root};
    if (!b.old) {
        strcpy(where, b.rd.where);
        b.rd.where = strcat(where, "mla.");
        b.rd.obj = in_text ? in_text : in_root;
    }
    read_block(&b, c);
}

/* mla_kv_scales: only what the scales were judged with decides anything here; the rest is model/kv_scale.c. */
static void read_cache(mla_rd *root, mla_config *c)
{
    const char *cache = mla_jv_str(mla_jv_get(mla_rd_obj(root, "mla_kv_scales"), "cache"));
    c->kv_keys16 = cache != NULL;
    if (cache && strcmp(cache, "fp8-keys16")) mla_rd_fail(root, MLA_EUNSUPPORTED, "mla_kv_scales.cache", "expected fp8-keys16, found %s", cache);
}

void mla_config_read_quant(mla_rd *root, mla_rd *text, mla_config *c)
{
    read_cache(root, c);
    const mla_jv *q = mla_rd_obj(root, "quantization_config");
    char where[64];
    mla_rd r = q ? *root : *text;
    if (!q) q = mla_rd_obj(text, "quantization_config");
    if (!q) return;
    strcpy(where, r.where);
    r.where = strcat(where, "quantization_config.");
    r.obj = q;
    const char *method = mla_rd_str(&r, "quant_method", "unnamed");
    const mla_jv *groups = mla_rd_obj(&r, "config_groups");
    bool by_groups = groups && mla_jv_first(groups);
    c->quant_method = mla_rd_dup(&r, method);
    c->kv_scheme = mla_jv_is_obj(mla_rd_get(&r, "kv_cache_scheme")) || mla_jv_is_str(mla_rd_get(&r, "kv_cache_quant_algo"));
    if (!strcmp(method, "compressed-tensors")) {
        c->weights_quantized = by_groups;
    } else if (!strcmp(method, "modelopt")) {
        const char *algo = mla_rd_str(&r, "quant_algo", NULL);
        c->weights_quantized = by_groups || (algo && strcmp(algo, "NO_QUANT"));
    } else {
        c->weights_quantized = true;
    }
}
