/* quantization_config of fp8, AWQ, GPTQ, auto-round and EXL3: one scheme for all modules, and lists of exceptions. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "quant/qconfig_impl.h"

static void say(mla_qscheme *s, const char *why) { snprintf(s->why, sizeof s->why, "%s", why); }

/* A scheme by groups of this size; -1 is the whole row. */
static mla_status read_groups(mla_qscheme *s, const mla_jv *v, mla_err *err)
{
    bool told;
    mla_status st = mla_qget_bits(&s->bits, v, "bits", err);
    if (!st) st = mla_qget_group(&s->group, &told, v, "group_size", err);
    if (!st && told) s->strategy = MLA_QS_GROUP;
    return st;
}

mla_status mla_qread_fp8(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    const char *fmt = "e4m3", *scale = NULL;
    bool blocks;
    c->base = (mla_qscheme){.expect = MLA_QX_QUANTIZED, .layout = MLA_QL_FP8, .bits = 8, .strategy = MLA_QS_TENSOR};
    c->rest = MLA_QREST_ALL;
    say(&c->base, "the fp8 config");
    mla_status st = mla_qget_str(&fmt, v, "fmt", err);
    if (!st) st = mla_qget_str(&scale, v, "scale_fmt", err);
    if (!st) st = mla_qget_block(&c->base, &blocks, v, "weight_block_size", err);
    if (st) return st;
    if (strcmp(fmt, "e4m3") != 0) return mla_fail(err, MLA_EUNSUPPORTED, "fmt \"%.60s\"", fmt);
    if (scale && strcmp(scale, "ue8m0") != 0 && strcmp(scale, "float") != 0)
        return mla_fail(err, MLA_EUNSUPPORTED, "scale_fmt \"%.60s\"", scale);
    if (scale) c->base.e8m0 = !strcmp(scale, "ue8m0") ? MLA_QT_YES : MLA_QT_NO;
    if (blocks) c->base.strategy = MLA_QS_BLOCK;
    const mla_jv *only = mla_jv_get(v, "modules_to_convert");
    if (only && !mla_jv_is_null(only)) return mla_fail(err, MLA_EUNSUPPORTED, "modules_to_convert: only exclusions are read here");
    st = mla_qignore_read(c, v, "modules_to_not_convert", MLA_QP_PART, err);
    if (!st) st = mla_qignore_read(c, v, "ignored_layers", MLA_QP_PART, err);
    return st;
}

mla_status mla_qread_awq(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    const char *version = NULL;
    mla_qtold zero = MLA_QT_UNTOLD;
    c->base = (mla_qscheme){.expect = MLA_QX_QUANTIZED, .layout = MLA_QL_AWQ};
    c->rest = MLA_QREST_BLOCKS;
    say(&c->base, "the awq config");
    mla_status st = read_groups(&c->base, v, err);
    if (!st) st = mla_qget_bool(&zero, v, "zero_point", err);
    if (!st) st = mla_qget_str(&version, v, "version", err);
    if (!st && !version) st = mla_qget_str(&version, v, "format", err); /* newer spelling */
    if (st) return st;
    if (!version || (strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0))
        return mla_fail(err, MLA_EUNSUPPORTED, "version \"%.60s\", only gemm is read here", version ? version : "");
    if (c->base.bits != 4) return mla_fail(err, MLA_EUNSUPPORTED, "bits %u, expected 4", c->base.bits);
    if (c->base.strategy != MLA_QS_GROUP) return mla_fail(err, MLA_EFORMAT, "no group_size");
    if (zero != MLA_QT_YES) return mla_fail(err, MLA_EUNSUPPORTED, "zero_point is not true");
    return mla_qignore_read(c, v, "modules_to_not_convert", MLA_QP_SUBSTR, err);
}

/* "dynamic": {"-:pattern": {...}} leaves modules out, {"+:pattern" or "pattern": {bits, group_size, sym, desc_act}} changes
 * their scheme; the first match counts. */
static mla_status read_dynamic(mla_qconfig *c, const mla_jv *list, mla_err *err)
{
    if (!list || mla_jv_is_null(list)) return MLA_OK;
    if (!mla_jv_is_obj(list)) return mla_fail(err, MLA_EFORMAT, "dynamic: expected an object, found %s", mla_jv_kind(list));
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        const char *key = mla_jv_key(v);
        mla_qscheme s = c->base;
        mla_status st = MLA_OK;
        bool minus = !strncmp(key, "-:", 2), plus = !strncmp(key, "+:", 2);
        if (!minus) {
            if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "dynamic.%.60s: expected an object", key);
            s.expect = MLA_QX_QUANTIZED;
            st = read_groups(&s, v, err);
            if (!st) st = mla_qget_bool(&s.symmetric, v, "sym", err);
            if (!st) st = mla_qget_bool(&s.g_idx, v, "desc_act", err);
            snprintf(s.why, sizeof s.why, "dynamic \"%.120s\"", key);
        }
        if (!st) st = mla_qrule_add(c, minus ? MLA_QR_IGNORE : MLA_QR_OVERRIDE, MLA_QP_RE, minus || plus ? key + 2 : key, 0, &s, err);
        if (st) return mla_wrap(err, "dynamic");
    }
    return MLA_OK;
}

/* A name, or an array of names, or of arrays of them, into c->within. */
static mla_status read_within(mla_qconfig *c, const mla_jv *v, const char *key, mla_err *err)
{
    if (!v || mla_jv_is_null(v)) return MLA_OK;
    if (mla_jv_is_arr(v)) {
        mla_status st = MLA_OK;
        for (const mla_jv *x = mla_jv_first(v); !st && x; x = mla_jv_next(x)) st = read_within(c, x, key, err);
        return st;
    }
    const char *text = mla_jv_str(v);
    if (!text || !*text) return mla_fail(err, MLA_EFORMAT, "%s: expected names, found %s", key, mla_jv_kind(v));
    while (*text) { /* auto-round joins several names by commas */
        size_t n = strcspn(text, ",");
        char *part = mla_strndup(text, n), **more = mla_realloc(c->within, c->nwithin + 1, sizeof *more);
        if (more) c->within = more;
        if (!part || !more) {
            mla_free(part);
            return mla_fail(err, MLA_ENOMEM, "%s", key);
        }
        c->within[c->nwithin++] = part;
        text += n + (text[n] == ',');
    }
    return MLA_OK;
}

mla_status mla_qread_gptq(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    const char *format = NULL, *alias = NULL, *pack = "int32";
    c->base = (mla_qscheme){.expect = MLA_QX_QUANTIZED, .layout = MLA_QL_GPTQ, .symmetric = MLA_QT_YES, .g_idx = MLA_QT_NO};
    c->rest = MLA_QREST_OPEN;
    mla_status st = read_groups(&c->base, v, err);
    if (!st) st = mla_qget_bool(&c->base.symmetric, v, "sym", err);
    if (!st) st = mla_qget_bool(&c->base.g_idx, v, "desc_act", err);
    if (!st) st = mla_qget_bool(&c->lm_head, v, "lm_head", err);
    if (!st) st = mla_qget_str(&format, v, "checkpoint_format", err);
    if (!st) st = mla_qget_str(&alias, v, "format", err);
    if (!st) st = mla_qget_str(&pack, v, "pack_dtype", err);
    if (st) return st;
    if (format && alias && strcmp(format, alias) != 0)
        return mla_fail(err, MLA_EFORMAT, "checkpoint_format \"%.60s\", but format \"%.60s\"", format, alias);
    if (!format) format = alias ? alias : "gptq";
    if (strcmp(format, "gptq") != 0 && strcmp(format, "gptq_v2") != 0)
        return mla_fail(err, MLA_EUNSUPPORTED, "checkpoint_format \"%.60s\"", format);
    c->base.zero_minus_1 = strcmp(format, "gptq") ? MLA_QT_NO : MLA_QT_YES;
    if (strcmp(pack, "int32") != 0) return mla_fail(err, MLA_EUNSUPPORTED, "pack_dtype \"%.60s\"", pack);
    if (c->base.bits != 2 && c->base.bits != 4 && c->base.bits != 8)
        return mla_fail(err, MLA_EUNSUPPORTED, "bits %u, expected 2, 4 or 8", c->base.bits);
    if (c->base.strategy != MLA_QS_GROUP) return mla_fail(err, MLA_EFORMAT, "no group_size");
    say(&c->base, "the gptq config");
    st = read_dynamic(c, mla_jv_get(v, "dynamic"), err);
    if (!st) st = read_within(c, mla_jv_get(v, "modules_in_block_to_quantize"), "modules_in_block_to_quantize", err);
    return st;
}

/* "extra_config": {module: {bits, group_size, sym, data_type}}; 16 bits and more are plain. */
static mla_status read_extra(mla_qconfig *c, const mla_jv *list, mla_err *err)
{
    if (!list || mla_jv_is_null(list)) return MLA_OK;
    if (!mla_jv_is_obj(list)) return mla_fail(err, MLA_EFORMAT, "extra_config: expected an object, found %s", mla_jv_kind(list));
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v)) {
        const char *key = mla_jv_key(v), *type = "int";
        mla_qscheme s = c->base;
        if (strpbrk(key, "*+?^$()[]{}|\\")) return mla_fail(err, MLA_EUNSUPPORTED, "extra_config: \"%.100s\" is no module name", key);
        if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "extra_config.%.100s: expected an object", key);
        mla_status st = read_groups(&s, v, err);
        if (!st) st = mla_qget_bool(&s.symmetric, v, "sym", err);
        if (!st) st = mla_qget_str(&type, v, "data_type", err);
        if (st) return mla_wrap(err, "extra_config.%.100s", key);
        if (s.bits < 16 && strcmp(type, "int") != 0)
            return mla_fail(err, MLA_EUNSUPPORTED, "extra_config.%.100s: data_type \"%.60s\"", key, type);
        s.expect = s.bits >= 16 ? MLA_QX_PLAIN : MLA_QX_QUANTIZED;
        snprintf(s.why, sizeof s.why, "extra_config \"%.120s\"", key);
        st = mla_qrule_add(c, MLA_QR_OVERRIDE, MLA_QP_EXACT, key, 0, &s, err);
        if (st) return mla_wrap(err, "extra_config");
    }
    return MLA_OK;
}

mla_status mla_qread_autoround(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    static const struct { const char *name; mla_qlayout layout; } PACKING[] = {
        {"auto_round:auto_gptq", MLA_QL_GPTQ}, {"auto_round:auto_awq", MLA_QL_AWQ}, {"auto_round:llm_compressor", MLA_QL_CT_PACK}};
    const char *packing = "", *type = "int";
    c->base = (mla_qscheme){.expect = MLA_QX_QUANTIZED, .symmetric = MLA_QT_YES, .g_idx = MLA_QT_NO, .zero_minus_1 = MLA_QT_YES};
    c->rest = MLA_QREST_OPEN;
    c->within_open = true;
    say(&c->base, "the auto-round config");
    mla_status st = read_groups(&c->base, v, err);
    if (!st) st = mla_qget_bool(&c->base.symmetric, v, "sym", err);
    if (!st) st = mla_qget_str(&packing, v, "packing_format", err);
    if (!st) st = mla_qget_str(&type, v, "data_type", err);
    if (st) return st;
    for (size_t i = 0; i < sizeof PACKING / sizeof *PACKING; i++)
        if (!strcmp(PACKING[i].name, packing)) c->base.layout = PACKING[i].layout;
    if (!c->base.layout) return mla_fail(err, MLA_EUNSUPPORTED, "packing_format \"%.60s\"", packing);
    if (strcmp(type, "int") != 0) return mla_fail(err, MLA_EUNSUPPORTED, "data_type \"%.60s\"", type);
    if (!c->base.bits || c->base.strategy != MLA_QS_GROUP) return mla_fail(err, MLA_EFORMAT, "no bits or no group_size");
    st = read_extra(c, mla_jv_get(v, "extra_config"), err);
    if (!st) st = read_within(c, mla_jv_get(v, "block_name_to_quantize"), "block_name_to_quantize", err);
    return st;
}

mla_status mla_qread_exl3(mla_qconfig *c, const mla_jv *v, mla_err *err)
{
    static const struct { const char *name; mla_qcodebook codebook; } BOOK[] = {
        {"3inst", MLA_QC_3INST}, {"mcg", MLA_QC_MCG}, {"mul1", MLA_QC_MUL1}};
    const char *book = NULL;
    double bits;
    const mla_jv *b = mla_jv_get(v, "bits");
    c->base = (mla_qscheme){.expect = MLA_QX_QUANTIZED, .layout = MLA_QL_EXL3};
    c->rest = MLA_QREST_OPEN; /* loaders of this format probe the tensors; `bits` is an average */
    say(&c->base, "the exl3 config");
    mla_status st = mla_qget_str(&book, v, "codebook", err);
    if (st) return st;
    if (b && !mla_jv_is_null(b) && (!mla_jv_f64(b, &bits) || !(bits >= 1 && bits <= 16)))
        return mla_fail(err, MLA_EFORMAT, "bits: expected an average width, found %s", mla_jv_kind(b));
    for (size_t i = 0; book && i < sizeof BOOK / sizeof *BOOK; i++)
        if (!strcmp(BOOK[i].name, book)) c->base.codebook = BOOK[i].codebook;
    if (book && !c->base.codebook) return mla_fail(err, MLA_EUNSUPPORTED, "codebook \"%.60s\"", book);
    return MLA_OK;
}
