/* Binding a GGUF file: the same table, its own names; rows and values are brought into logical order at read. */
#include <string.h>

#include "model/model_impl.h"
#include "model/read.h"

static bool llama(const mla_model *m) { return !strcmp(m->cfg.architecture, "llama"); }

/* Only the llama converter permutes q and k; the qwen35 views are that family's. */
static mla_view view_of(const mla_model *m, const mla_wrow *row)
{
    return row->gguf_view == MLA_V_ROPE && !llama(m) ? MLA_V_PLAIN : row->gguf_view;
}

static mla_status bind_row(mla_model *m, const mla_wrow *row, size_t layer, mla_str *name, mla_err *err)
{
    mla_binding b = {.row = row, .out = mla_dim_size(&m->cfg, row->out), .in = mla_dim_size(&m->cfg, row->in)};
    mla_name_gguf(name, row, &m->cfg, layer);
    if (!mla_str_ok(name)) return mla_fail(err, MLA_ENOMEM, "tensor name");
    const mla_gguf_tensor *t = mla_gguf_find(m->gguf, mla_str_c(name));
    if (!t) return mla_fail(err, MLA_EFORMAT, "%s: missing", mla_str_c(name));
    mla_status st = mla_qmat_gguf(&b.q, t, err);
    if (st != MLA_OK) return st;
    bool vector = row->out == MLA_D_ONE;
    if (b.q.out != b.out || b.q.in != b.in || (vector && t->ndim != 1))
        return mla_fail(err, MLA_EFORMAT, "%s: expected [%zu, %zu], found %s [%zu, %zu]", t->name, b.out, b.in, b.q.format, b.q.out, b.q.in);
    b.view = view_of(m, row);
    b.xform = row->gguf_xform; /* norms are stored as 1 + w where the family has it */
    st = mla_bind_add(m, &b, layer, err);
    return st == MLA_OK ? mla_claim(m, t->name, err) : st;
}

mla_status mla_bind_gguf(mla_model *m, mla_err *err)
{
    mla_str name = MLA_STR_MAX(512);
    mla_status st = mla_map_new(&m->claimed, err);
    for (size_t pos = 0; st == MLA_OK && pos < 1 + m->cfg.layers + m->cfg.mtp_layers; pos++) {
        size_t layer = pos == 0 ? 0 : pos <= m->cfg.layers ? pos - 1 : MLA_MTP(pos - 1 - m->cfg.layers);
        for (size_t i = 0; st == MLA_OK && mla_wrow_at(i); i++) {
            const mla_wrow *row = mla_wrow_at(i);
            bool once = row->place == MLA_AT_MODEL || row->place == MLA_AT_MTP;
            if (row->gguf && once == (pos == 0) && mla_wrow_applies(row, &m->cfg, layer)) st = bind_row(m, row, layer, &name, err);
        }
    }
    if (st == MLA_OK) st = mla_claim(m, "rope_freqs.weight", err); /* read with the config */
    for (size_t i = 0; st == MLA_OK && i < mla_gguf_count(m->gguf); i++) {
        const mla_gguf_tensor *t = mla_gguf_at(m->gguf, i);
        char shown[80];
        if (!mla_map_has(m->claimed, t->name))
            st = mla_fail(err, MLA_EFORMAT, "%s: not expected in a %s model of %zu layers", mla_printable(t->name, shown, sizeof shown),
                          m->cfg.architecture, m->cfg.layers);
    }
    mla_str_free(&name);
    return st;
}
