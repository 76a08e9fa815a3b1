/* The "mla" block of a retrofit (docs/format-factors.md) and what quantization_config means for reading. */
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "model/config_parts.h"
#include "model/factors.h"

static bool parse_hex(const char *s, unsigned char *out, size_t n)
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

/* One rank per layer: 0 where the layer is no full attention, else a multiple of groups up to groups * n. */
static void read_ranks(mla_rd *b, mla_config *c)
{
    mla_retrofit_config *m = &c->mla;
    size_t n = 0, i = 0;
    const mla_jv *list = mla_rd_arr(b, "ranks");
    if (*b->st == MLA_OK) *b->st = mla_factors_dims(c, m->layout, m->groups, &n, b->err);
    if (*b->st != MLA_OK) return;
    if (!list || mla_jv_len(list) != c->layers) {
        mla_rd_fail(b, MLA_EFORMAT, "ranks", "expected a list of %zu ranks, one per layer, found %zu", c->layers, mla_jv_len(list));
        return;
    }
    m->rank = mla_alloc(c->layers, 1, sizeof *m->rank);
    if (!m->rank) {
        *b->st = mla_fail(b->err, MLA_ENOMEM, "config: ranks");
        return;
    }
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v), i++) {
        bool full = c->layer_kind[i] == MLA_LAYER_FULL;
        size_t lo = full ? m->groups : 0, hi = full ? m->groups * n : 0;
        if (!mla_jv_size(v, &m->rank[i]) || m->rank[i] < lo || m->rank[i] > hi || m->rank[i] % m->groups) {
            if (full) mla_rd_fail(b, MLA_EFORMAT, "ranks", "layer %zu: expected a multiple of %zu from %zu to %zu", i, m->groups, lo, hi);
            else mla_rd_fail(b, MLA_EFORMAT, "ranks", "layer %zu: expected 0, the layer is no full attention", i);
            return;
        }
    }
}

void mla_config_read_mla(mla_rd *root, mla_rd *text, mla_config *c, bool retro)
{
    const mla_jv *in_text = mla_rd_obj(text, "mla"), *in_root = root->obj == text->obj ? NULL : mla_rd_obj(root, "mla");
    char where[64], q[96];
    mla_rd b = in_text ? *text : *root;
    if (*root->st != MLA_OK) return;
    if (in_text && in_root) mla_rd_fail(root, MLA_EFORMAT, "mla", "stands in the root and in text_config");
    else if (retro && !in_text && !in_root) mla_rd_fail(text, MLA_EFORMAT, "mla", "missing, but architecture %s is a retrofit", c->architecture);
    else if (!retro && (in_text || in_root)) mla_rd_fail(&b, MLA_EFORMAT, "mla", "not expected in architecture %s", c->architecture);
    if (*root->st != MLA_OK || !retro) return;
    strcpy(where, b.where);
    b.where = strcat(where, "mla.");
    b.obj = in_text ? in_text : in_root;
    mla_retrofit_config *m = &c->mla;
    const char *format = mla_rd_str(&b, "format", "absent"), *layout = mla_rd_str(&b, "layout", "absent");
    const char *dtype = mla_rd_str(&b, "dtype", "absent"), *file = mla_rd_str(&b, "factors_file", ""), *hex = mla_rd_str(&b, "factors_sha256", "");
    if (strcmp(format, "mla-factors/1"))
        mla_rd_fail(&b, MLA_EUNSUPPORTED, "format", "\"%s\" is not supported (mla-factors/1)", mla_printable(format, q, sizeof q));
    if (!mla_layout_parse(layout, &m->layout))
        mla_rd_fail(&b, MLA_EUNSUPPORTED, "layout", "\"%s\" is not supported (" MLA_LAYOUT_LIST ")", mla_printable(layout, q, sizeof q));
    if (!strcmp(dtype, "bfloat16")) m->dtype = MLA_BF16;
    else if (!strcmp(dtype, "float32")) m->dtype = MLA_F32;
    else mla_rd_fail(&b, MLA_EUNSUPPORTED, "dtype", "\"%s\" is not supported (bfloat16, float32)", mla_printable(dtype, q, sizeof q));
    m->groups = mla_rd_size(&b, "groups", 1, MLA_MAX_HEADS, MLA_REQUIRED);
    if (c->kv_heads % m->groups) mla_rd_fail(&b, MLA_EFORMAT, "groups", "%zu does not divide %zu KV heads", m->groups, c->kv_heads);
    read_ranks(&b, c);
    size_t want = m->layout == MLA_LAYOUT_N ? c->kv_heads * c->rope.rot : 0;
    m->rotary_width = mla_rd_size(&b, "rotary_width", 0, MLA_MAX_INTER, MLA_REQUIRED);
    if (m->rotary_width != want)
        mla_rd_fail(&b, MLA_EFORMAT, "rotary_width", "expected %zu (%zu KV heads of %zu rotated dims in layout n, 0 in rebuild), found %zu",
                    want, c->kv_heads, c->rope.rot, m->rotary_width);
    if (!mla_path_is_safe_relative(file) || !mla_ends_with(file, ".safetensors"))
        mla_rd_fail(&b, MLA_EFORMAT, "factors_file", "expected the name of a .safetensors file in this folder, found \"%s\"",
                    mla_printable(file, q, sizeof q));
    if (!parse_hex(hex, m->factors_sha256, 32))
        mla_rd_fail(&b, MLA_EFORMAT, "factors_sha256", "expected 64 lowercase hex digits, found \"%s\"", mla_printable(hex, q, sizeof q));
    m->factors_file = mla_rd_dup(&b, file);
}

void mla_config_read_quant(mla_rd *root, mla_rd *text, mla_config *c)
{
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
