/* Logical weights out of stored ones: rows and vectors in f32, in Hugging Face order, checked for finiteness. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/model_impl.h"
#include "tensor/compare.h"

static bool once(mla_wkind k)
{
    return k == MLA_W_EMBED || k == MLA_W_FINAL_NORM || k == MLA_W_LM_HEAD || (k >= MLA_W_MTP_FC && k <= MLA_W_MTP_NORM);
}

bool mla_slot_row(const mla_model *m, mla_wkind k, size_t layer, size_t *row)
{
    if ((unsigned)k >= MLA_W_N) return false;
    if (once(k)) *row = 0;
    else if (layer >= MLA_MTP(0) && layer - MLA_MTP(0) < m->cfg.mtp_layers) *row = 1 + m->cfg.layers + (layer - MLA_MTP(0));
    else if (layer < m->cfg.layers) *row = 1 + layer;
    else return false;
    return true;
}

const mla_binding *mla_binding_of(const mla_model *m, mla_wkind k, size_t layer)
{
    size_t row;
    if (k == MLA_W_LM_HEAD && m->cfg.tied) k = MLA_W_EMBED;
    if (!mla_slot_row(m, k, layer, &row)) return NULL;
    size_t s = m->slot[row * MLA_W_N + k];
    return s ? &m->bind[s - 1] : NULL;
}

mla_status mla_bind_add(mla_model *m, const mla_binding *b, size_t layer, mla_err *err)
{
    size_t row;
    if (!mla_slot_row(m, b->row->kind, layer, &row)) return mla_fail(err, MLA_EINTERNAL, "%s: no slot in layer %zu", b->q.name, layer);
    if ((m->nbind & (m->nbind - 1)) == 0) { /* grows by doubling */
        mla_binding *n = mla_realloc(m->bind, m->nbind ? 2 * m->nbind : 1, sizeof *n);
        if (!n) return mla_fail(err, MLA_ENOMEM, "%zu bindings", m->nbind);
        m->bind = n;
    }
    m->bind[m->nbind++] = *b;
    m->slot[row * MLA_W_N + b->row->kind] = m->nbind;
    return MLA_OK;
}

bool mla_model_has(const mla_model *m, mla_wkind k, size_t layer) { return mla_binding_of(m, k, layer) != NULL; }

static mla_status absent(const mla_model *m, mla_wkind k, size_t layer, mla_err *err)
{
    for (size_t i = 0; mla_wrow_at(i); i++)
        if (mla_wrow_at(i)->kind == k)
            return mla_fail(err, MLA_EINVAL, "%s has no %s in layer %zu", m->cfg.architecture, mla_wrow_at(i)->hf, layer);
    return mla_fail(err, MLA_EINVAL, "%s: no weight of kind %d", m->cfg.architecture, (int)k);
}

mla_status mla_model_mat(const mla_model *m, mla_wkind k, size_t layer, mla_mat *out, mla_err *err)
{
    const mla_binding *b = mla_binding_of(m, k, layer);
    if (!b) return absent(m, k, layer, err);
    *out = (mla_mat){.model = m, .kind = k, .layer = layer, .out = b->out, .in = b->in, .stored_bytes = mla_qmat_bytes(&b->q)};
    return MLA_OK;
}

/* Decodes logical rows: runs of rows that are stored consecutively go in one call. */
static mla_status gather_rows(const mla_model *m, const mla_binding *b, size_t row0, size_t n, float *dst, mla_err *err)
{
    mla_view v = b->out == 1 || mla_view_cols(b->view) ? MLA_V_PLAIN : b->view;
    mla_status st = MLA_OK;
    for (size_t i = 0; i < n && st == MLA_OK;) {
        size_t src = mla_view_src(&m->cfg, v, row0 + i), run = 1;
        if (v == MLA_V_PLAIN) run = n;
        while (i + run < n && mla_view_src(&m->cfg, v, row0 + i + run) == src + run) run++;
        st = mla_row_cache_rows(m->rows, &b->q, src, run, dst + i * b->in, err);
        i += run;
    }
    return st;
}

/* Column order of a permuted row (or vector), row by row through a scratch row. */
static mla_status permute_cols(const mla_config *c, const mla_binding *b, size_t n, float *dst, mla_err *err)
{
    if (b->view == MLA_V_PLAIN || !(b->out == 1 || mla_view_cols(b->view))) return MLA_OK;
    float *row = mla_alloc_raw(b->in, 1, sizeof *row);
    if (!row) return mla_fail(err, MLA_ENOMEM, "%s: a row of %zu values", b->q.name, b->in);
    for (size_t i = 0; i < n; i++, dst += b->in) {
        memcpy(row, dst, b->in * sizeof *row);
        for (size_t j = 0; j < b->in; j++) dst[j] = row[mla_view_src(c, b->view, j)];
    }
    mla_free(row);
    return MLA_OK;
}

static mla_status transform(const mla_binding *b, size_t row0, size_t n, float *dst, mla_err *err)
{
    size_t count = n * b->in, at;
    size_t bad = mla_count_nonfinite(dst, count, &at);
    if (bad)
        return mla_fail(err, MLA_EFORMAT, "%s: non-finite value at [%zu, %zu] (%zu of %zu values read)", b->q.name, row0 + at / b->in,
                        at % b->in, bad, count);
    for (size_t i = 0; b->xform == MLA_X_PLUS_ONE && i < count; i++) dst[i] += 1;
    for (size_t i = 0; b->xform == MLA_X_LOG_NEG && i < count; i++) {
        if (!(dst[i] < 0)) return mla_fail(err, MLA_EFORMAT, "%s: entry %zu: expected -exp(A_log) < 0, found %g", b->q.name, i, (double)dst[i]);
        dst[i] = (float)log(-(double)dst[i]);
    }
    return MLA_OK;
}

mla_status mla_mat_rows(const mla_mat *w, size_t row0, size_t n, float *dst, mla_err *err)
{
    const mla_binding *b = mla_binding_of(w->model, w->kind, w->layer);
    if (!b) return absent(w->model, w->kind, w->layer, err);
    if (row0 > b->out || n > b->out - row0)
        return mla_fail(err, MLA_EINVAL, "%s: %zu rows from %zu asked, the matrix has %zu", b->q.name, n, row0, b->out);
    const mla_config *c = &w->model->cfg;
    mla_status st = gather_rows(w->model, b, row0, n, dst, err);
    if (st == MLA_OK) st = permute_cols(c, b, n, dst, err);
    return st == MLA_OK ? transform(b, row0, n, dst, err) : st;
}

/* The stored row of a logical one; map is the mla_mat. */
static size_t stored_row(const void *map, size_t row)
{
    const mla_mat *w = map;
    return mla_view_src(&w->model->cfg, mla_binding_of(w->model, w->kind, w->layer)->view, row);
}

/* Columns stay as they are stored; the inputs are brought to them. */
static mla_status order_cols(const mla_mat *w, const mla_binding *b, mla_coded *c, mla_err *err)
{
    uint32_t *perm = mla_alloc_raw(b->in, 1, sizeof *perm);
    if (!perm) return mla_fail(err, MLA_ENOMEM, "%s: order of %zu columns", b->q.name, b->in);
    for (size_t j = 0; j < b->in; j++) perm[mla_view_src(&w->model->cfg, b->view, j)] = (uint32_t)j;
    c->perm = perm;
    return MLA_OK;
}

/* Tells every file of the model about the stored bytes of w; each knows which are its own. */
static void advise(const mla_mat *w, void (*tell)(const mla_mapped *, const void *, size_t))
{
    const mla_model *m = w->model;
    const mla_binding *b = mla_binding_of(m, w->kind, w->layer);
    for (size_t p = 0; b && p < b->q.nparts; p++) {
        const mla_tensor *t = &b->q.part[p];
        if (m->gguf) tell(mla_gguf_file(m->gguf), t->data, t->nbytes);
        for (size_t s = 0; m->ckpt && s < mla_ckpt_shard_count(m->ckpt); s++) tell(mla_st_file(mla_ckpt_shard(m->ckpt, s)), t->data, t->nbytes);
    }
}
void mla_mat_want(const mla_mat *w) { advise(w, mla_file_want); }
void mla_mat_release(const mla_mat *w) { advise(w, mla_file_release); }

static mla_status read_stored(const mla_coded *c, size_t at, size_t n, void *room, const void **from, mla_err *err)
{
    return mla_file_bytes(c->file, c->stored + at, n, room, from, err);
}
static bool near_stored(const mla_coded *c)
{
    size_t n = c->code == MLA_CODE_TRELLIS ? mla_trellis_bytes(&c->trellis) : c->out * c->in * 2;
    return mla_file_cached(c->file, c->stored, n);
}
_Static_assert(MLA_CODED_ROOM >= MLA_FILE_ROOM, "room beside the bytes");
/* Codes or tiles that start at p: by reading the file that holds them, where one does. */
static void from_file(mla_coded *c, const mla_model *m, const char *name, const unsigned char *p, size_t n)
{
    const mla_mapped *f = m->gguf ? mla_gguf_file(m->gguf) : NULL;
    for (size_t s = 0; m->ckpt && !(f && mla_file_holds(f, p, n)) && s < mla_ckpt_shard_count(m->ckpt); s++) f = mla_st_file(mla_ckpt_shard(m->ckpt, s));
    if (f && mla_file_holds(f, p, n)) c->read = read_stored, c->near = near_stored, c->file = f, c->stored = p, c->name = name;
}

mla_status mla_mat_coded(const mla_mat *w, mla_coded *out, bool *fits, mla_err *err)
{
    const mla_binding *b = mla_binding_of(w->model, w->kind, w->layer);
    if (!b) return absent(w->model, w->kind, w->layer, err);
    *fits = false;
    *out = (mla_coded){0};
    if (b->xform != MLA_X_NONE) return MLA_OK;
    mla_status st = mla_qmat_coded(out, fits, &b->q, err);
    if (st != MLA_OK || !*fits) return st;
    bool cols = mla_view_cols(b->view), rows = b->view != MLA_V_PLAIN && !cols;
    if ((out->code == MLA_CODE_TRELLIS && (rows || cols)) || (cols && out->perm)) {
        *fits = false;
        mla_coded_free(out);
        return MLA_OK;
    }
    out->out = b->out; /* a view may show some rows of a fused matrix */
    if (rows) out->row_of = stored_row, out->map = w;
    else if (out->code == MLA_CODE_BF16) from_file(out, w->model, b->q.name, b->q.part[0].data, out->out * out->in * 2);
    else if (out->code == MLA_CODE_TRELLIS) from_file(out, w->model, b->q.name, out->trellis.tiles, mla_trellis_bytes(&out->trellis));
    return cols ? order_cols(w, b, out, err) : MLA_OK;
}

mla_status mla_model_vec(const mla_model *m, mla_wkind k, size_t layer, size_t len, float **out, mla_err *err)
{
    mla_mat w = {0};
    *out = NULL;
    mla_status st = mla_model_mat(m, k, layer, &w, err);
    if (st != MLA_OK) return st;
    if (w.out != 1 || w.in != len)
        return mla_fail(err, MLA_EINVAL, "%s: expected a vector of %zu, found [%zu, %zu]", mla_binding_of(m, k, layer)->q.name, len, w.out, w.in);
    float *v = mla_alloc_raw(len, 1, sizeof *v);
    if (!v) return mla_fail(err, MLA_ENOMEM, "a vector of %zu values", len);
    st = mla_mat_rows(&w, 0, 1, v, err);
    if (st == MLA_OK) *out = v;
    else mla_free(v);
    return st;
}

mla_status mla_model_name(const mla_model *m, mla_wkind k, size_t layer, mla_str *out, mla_err *err)
{
    const mla_binding *b = mla_binding_of(m, k, layer);
    if (!b) return absent(m, k, layer, err);
    mla_str_clear(out);
    mla_str_put(out, b->q.name);
    return mla_str_ok(out) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s: name", b->q.name);
}
