/* Binding a Hugging Face folder: every expected tensor found by name and checked, every stored one accounted for. */
#include <string.h>

#include "model/model_impl.h"
#include "model/read.h"

const char *mla_shard_of(const mla_model *m, const mla_tensor *t)
{
    for (size_t i = 0; i < mla_ckpt_count(m->ckpt); i++)
        if (mla_ckpt_at(m->ckpt, i) == t) return mla_ckpt_shard_of(m->ckpt, i);
    return "?";
}

mla_status mla_claim(mla_model *m, const char *name, mla_err *err)
{
    return mla_map_add(m->claimed, name, strlen(name), 0, NULL, err);
}

static bool is_float(mla_dtype t) { return t == MLA_F32 || t == MLA_F16 || t == MLA_BF16; }

/* The stored tensor against its row: shape [out, in], [in] for vectors, [C, 1, K] for the convolution. */
static mla_status check_tensor(const mla_model *m, const mla_wrow *row, const mla_tensor *t, mla_err *err)
{
    const mla_config *c = &m->cfg;
    size_t out = mla_dim_size(c, row->stored_out ? row->stored_out : row->out), in = mla_dim_size(c, row->in);
    size_t shape[3] = {out, in, 0}, nd = 2;
    char want[96], found[96];
    if (row->out == MLA_D_ONE) shape[0] = in, nd = 1;
    if (row->conv) shape[1] = 1, shape[2] = in, nd = 3;
    if (!is_float(t->dtype))
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: expected BF16, F16 or F32 %s, found %s in %s: only matrices of linear layers are read quantized",
                        t->name, mla_shape_text(shape, nd, want, sizeof want), mla_tensor_text(t, found, sizeof found), mla_shard_of(m, t));
    if (!mla_shape_is(t, nd, shape))
        return mla_fail(err, MLA_EFORMAT, "%s: expected %s %s, found %s in %s", t->name, mla_dtype_name(t->dtype),
                        mla_shape_text(shape, nd, want, sizeof want), mla_tensor_text(t, found, sizeof found), mla_shard_of(m, t));
    return MLA_OK;
}

/* Formats quantize the matrices of linear layers; embeddings, norms, convolutions and vectors are plain. */
static bool is_linear(const mla_wrow *row)
{
    return row->out != MLA_D_ONE && !row->conv && row->kind != MLA_W_EMBED && mla_ends_with(row->hf, ".weight");
}

/* True when the matrix must be looked up as a module: it is stored in codes, or the config has a say in it. */
static bool as_module(const mla_model *m, const mla_wrow *row, const char *name, const mla_tensor *t)
{
    if (!is_linear(row)) return false;
    return t ? !is_float(t->dtype) || mla_qconfig_method(m->qcfg) != MLA_QM_NONE : mla_stored_quantized(m, name);
}

static mla_status bind_row(mla_model *m, const mla_wrow *row, size_t layer, mla_str *name, mla_err *err)
{
    const mla_config *c = &m->cfg;
    mla_name_hf(name, row, m->prefix, layer);
    if (!mla_str_ok(name)) return mla_fail(err, MLA_ENOMEM, "tensor name");
    mla_binding b = {.row = row, .out = mla_dim_size(c, row->out), .in = mla_dim_size(c, row->in)};
    b.view = row->hf_view;
    b.xform = row->norm && c->norm_plus_one ? MLA_X_PLUS_ONE : MLA_X_NONE;
    const mla_tensor *t = mla_ckpt_find(m->ckpt, mla_str_c(name));
    if (as_module(m, row, mla_str_c(name), t)) {
        mla_status st = mla_bind_quantized(m, mla_str_c(name), mla_dim_size(c, row->stored_out ? row->stored_out : row->out), b.in, &b.q, err);
        if (st == MLA_OK && b.q.ops->layout == MLA_QL_DENSE) st = check_tensor(m, row, t, err);
        return st == MLA_OK ? mla_bind_add(m, &b, layer, err) : st;
    }
    mla_status st = mla_ckpt_need(m->ckpt, mla_str_c(name), &t, err);
    if (st == MLA_OK) st = check_tensor(m, row, t, err);
    if (st != MLA_OK) return st;
    mla_tensor flat = *t;
    if (row->conv) flat.ndim = 2, flat.shape[1] = flat.shape[2]; /* [C, 1, K] -> [C, K] */
    st = mla_qmat_dense(&b.q, &flat, err);
    if (st == MLA_OK) st = mla_bind_add(m, &b, layer, err);
    return st == MLA_OK ? mla_claim(m, t->name, err) : st;
}

static mla_status find_prefix(mla_model *m, mla_err *err)
{
    static const char *const P[] = {"model.language_model.", "model."};
    char name[64];
    for (size_t i = 0; i < 2; i++) {
        strcpy(name, P[i]);
        if (!mla_ckpt_find(m->ckpt, strcat(name, "embed_tokens.weight"))) continue;
        if (m->prefix)
            return mla_fail(err, MLA_EFORMAT, "%s: stored beside model.language_model.embed_tokens.weight: two text models in one folder", name);
        m->prefix = P[i];
    }
    if (m->prefix && !strcmp(m->prefix, P[0]) && m->cfg.family != MLA_FAM_QWEN3_5)
        return mla_fail(err, MLA_EFORMAT, "model.language_model.embed_tokens.weight: not expected in %s", m->cfg.architecture);
    if (!m->prefix) m->prefix = m->cfg.has_vision ? P[0] : P[1]; /* the missing embedding is named by its binding */
    return MLA_OK;
}

/* MTP tensors are often lost by re-saves: a head that is announced but stored nowhere is noted, half a head refused. */
static mla_status settle_mtp(mla_model *m, mla_err *err)
{
    size_t stored = 0;
    for (size_t i = 0; i < mla_ckpt_count(m->ckpt); i++) stored += mla_starts_with(mla_ckpt_at(m->ckpt, i)->name, "mtp.");
    if (m->cfg.mtp_layers && !stored) {
        m->cfg.mtp_layers = 0;
        return mla_model_note(m, err, "config.json announces an MTP head, but no mtp.* tensor is stored: drafting is not available");
    }
    if (m->cfg.mtp_layers && m->cfg.mtp_own_embeddings) {
        m->cfg.mtp_layers = 0;
        return mla_model_note(m, err, "an MTP head with embeddings of its own is not supported: carried along, not used");
    }
    if (!m->cfg.mtp_layers && stored)
        return mla_model_note(m, err, "%zu mtp.* tensors are stored, but config.json announces no MTP head: carried along, not used", stored);
    return MLA_OK;
}

/* Tensors that are carried along without being read. */
static bool passed_through(const mla_model *m, const char *name)
{
    if (mla_ends_with(name, ".rotary_emb.inv_freq")) return true;
    if (m->cfg.family == MLA_FAM_QWEN3_5 && (mla_starts_with(name, "model.visual.") || mla_starts_with(name, "visual."))) return true;
    if (mla_starts_with(name, "mtp.")) return m->cfg.mtp_layers == 0;
    size_t layer = 0, n = 0;
    if (m->cfg.family == MLA_FAM_DEEPSEEK && mla_starts_with(name, "model.layers.")) { /* MTP layers past the trunk */
        for (const char *s = name + 13; *s >= '0' && *s <= '9' && n < 6; s++, n++) layer = layer * 10 + (size_t)(*s - '0');
        return n && layer >= m->cfg.layers;
    }
    return false;
}

static mla_status refuse_surplus(mla_model *m, mla_err *err)
{
    char text[96], name[200];
    for (size_t i = 0; i < mla_ckpt_count(m->ckpt); i++) {
        const mla_tensor *t = mla_ckpt_at(m->ckpt, i);
        if (mla_map_has(m->claimed, t->name) || passed_through(m, t->name)) continue;
        mla_printable(t->name, name, sizeof name);
        return mla_fail(err, MLA_EFORMAT, "%s: not expected in %s of %zu layers, found %s in %s", name, m->cfg.architecture, m->cfg.layers,
                        mla_tensor_text(t, text, sizeof text), mla_ckpt_shard_of(m->ckpt, i));
    }
    return MLA_OK;
}

/* A tied model may store its output matrix all the same. Plain, its shape must be right and the embedding is what counts;
 * quantized, it is the matrix that the format's loaders use, the embedding staying plain for look-ups. */
static mla_status tied_head(mla_model *m, mla_err *err)
{
    if (m->cfg.tied && mla_stored_quantized(m, "lm_head.weight")) {
        m->cfg.tied = false;
        return mla_model_note(m, err, "the embeddings are tied, but lm_head is stored quantized: used as stored");
    }
    const mla_tensor *t = m->cfg.tied ? mla_ckpt_find(m->ckpt, "lm_head.weight") : NULL;
    if (!t) return MLA_OK;
    mla_wrow row = {.out = MLA_D_VOCAB, .in = MLA_D_HIDDEN};
    mla_status st = check_tensor(m, &row, t, err);
    if (st == MLA_OK) st = mla_claim(m, t->name, err);
    return st == MLA_OK ? mla_model_note(m, err, "lm_head.weight is stored although the embeddings are tied: not used") : st;
}

mla_status mla_bind_hf(mla_model *m, mla_err *err)
{
    mla_str name = MLA_STR_MAX(512);
    mla_status st = mla_bind_check_quant(m, err);
    if (st == MLA_OK) st = find_prefix(m, err);
    if (st == MLA_OK) st = settle_mtp(m, err);
    if (st == MLA_OK) st = mla_map_new(&m->claimed, err);
    if (st == MLA_OK) st = tied_head(m, err);
    for (size_t pos = 0; st == MLA_OK && pos < 1 + m->cfg.layers + m->cfg.mtp_layers; pos++) {
        size_t layer = pos == 0 ? 0 : pos <= m->cfg.layers ? pos - 1 : MLA_MTP(pos - 1 - m->cfg.layers);
        for (size_t i = 0; st == MLA_OK && mla_wrow_at(i); i++) {
            const mla_wrow *row = mla_wrow_at(i);
            bool once = row->place == MLA_AT_MODEL || row->place == MLA_AT_MTP;
            if (once == (pos == 0) && mla_wrow_applies(row, &m->cfg, layer)) st = bind_row(m, row, layer, &name, err);
        }
    }
    if (st == MLA_OK && m->cfg.mla.layout == MLA_LAYOUT_SHARED) st = mla_bind_shared(m, err);
    else if (st == MLA_OK && m->cfg.mla.layout != MLA_LAYOUT_NONE) st = mla_bind_factors(m, err);
    if (st == MLA_OK) st = mla_bind_kv_scales(m, err);
    if (st == MLA_OK) st = refuse_surplus(m, err);
    mla_str_free(&name);
    return st;
}
