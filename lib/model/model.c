/* Opening a model: container, configuration, binding; and the plain accessors. */
#include "model/model.h"

#include <stdarg.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/model_impl.h"

#define CONFIG_MAX ((size_t)16 << 20)

mla_status mla_model_note(mla_model *m, mla_err *err, const char *fmt, ...)
{
    mla_str text = MLA_STR_MAX(1000);
    va_list ap;
    va_start(ap, fmt);
    mla_str_vprintf(&text, fmt, ap);
    va_end(ap);
    char **note = mla_realloc(m->note, m->nnote + 1, sizeof *note);
    if (!note || !mla_str_ok(&text)) {
        mla_str_free(&text);
        if (note) m->note = note;
        return mla_fail(err, MLA_ENOMEM, "%s: note", m->path);
    }
    m->note = note;
    note[m->nnote++] = text.s; /* a string's buffer is freed with mla_free */
    return MLA_OK;
}

/* generation_config.json may list more stop tokens than config.json (Qwen3.5: <|im_end|>). */
static mla_status add_generation_eos(mla_model *m, const char *dir, mla_err *err)
{
    char *path = mla_path_join(dir, "generation_config.json");
    mla_json *doc = NULL;
    mla_status st = MLA_OK;
    if (!path) return mla_fail(err, MLA_ENOMEM, "path");
    if (!mla_path_exists(path)) goto done;
    st = mla_json_read(&doc, path, CONFIG_MAX, err);
    if (st != MLA_OK) goto done;
    const mla_jv *e = mla_jv_get(mla_json_root(doc), "eos_token_id");
    for (const mla_jv *v = mla_jv_is_arr(e) ? mla_jv_first(e) : e; v; v = mla_jv_is_arr(e) ? mla_jv_next(v) : NULL) {
        size_t id, i = 0;
        if (mla_jv_is_null(v)) continue;
        if (!mla_jv_size(v, &id) || id >= m->cfg.vocab) {
            st = mla_fail(err, MLA_EFORMAT, "%s: eos_token_id: expected ids below %zu", path, m->cfg.vocab);
            break;
        }
        while (i < m->cfg.n_eos && m->cfg.eos[i] != (int)id) i++;
        if (i == m->cfg.n_eos && i < sizeof m->cfg.eos / sizeof *m->cfg.eos) m->cfg.eos[m->cfg.n_eos++] = (int)id;
    }
done:
    mla_json_free(doc);
    mla_free(path);
    return st;
}

static mla_status open_folder(mla_model *m, mla_err *err)
{
    char *path = mla_path_join(m->path, "config.json");
    if (!path) return mla_fail(err, MLA_ENOMEM, "path");
    mla_status st = MLA_OK;
    if (!mla_path_exists(path)) st = mla_fail(err, MLA_EIO, "%s: not there: expected a Hugging Face folder or the path of a .gguf file", path);
    if (st == MLA_OK) st = mla_json_read(&m->json, path, CONFIG_MAX, err);
    if (st == MLA_OK && (st = mla_config_from_json(&m->cfg, mla_json_root(m->json), err)) != MLA_OK) st = mla_wrap(err, "%s", path);
    mla_free(path);
    if (st == MLA_OK) st = add_generation_eos(m, m->path, err);
    return st == MLA_OK ? mla_bind_read_quant(m, err) : st;
}

/* What the rest of the toolkit cannot run yet, by name, before any tensor is looked at. */
static mla_status refuse_unsupported(const mla_model *m, mla_err *err)
{
    const mla_config *c = &m->cfg;
    if (c->experts)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: %s: mixture-of-experts layers (%zu experts) are not supported yet", m->path,
                        c->architecture, c->experts);
    if (c->sliding_window)
        return mla_fail(err, MLA_EUNSUPPORTED, "%s: sliding attention (a window of %zu tokens in a context of %zu) is not supported", m->path,
                        c->sliding_window, c->max_pos);
    return MLA_OK;
}

static mla_status new_slots(mla_model *m, mla_err *err)
{
    m->slot = mla_alloc(1 + m->cfg.layers + m->cfg.mtp_layers, MLA_W_N, sizeof *m->slot);
    m->scale = mla_alloc(m->cfg.layers + m->cfg.mtp_layers, 1, sizeof *m->scale);
    if (!m->slot || !m->scale) return mla_fail(err, MLA_ENOMEM, "%s: %zu layers", m->path, m->cfg.layers);
    return mla_row_cache_new(&m->rows, err);
}

mla_status mla_model_open(mla_model **out, const char *path, mla_err *err)
{
    *out = NULL;
    mla_model *m = mla_alloc(1, 1, sizeof *m);
    if (!m || !(m->path = mla_strdup(path))) {
        mla_free(m);
        return mla_fail(err, MLA_ENOMEM, "%s: model", path);
    }
    bool folder = mla_path_is_dir(path);
    mla_status st;
    if (folder) {
        st = open_folder(m, err);
    } else if (mla_ends_with(path, ".safetensors")) {
        st = mla_fail(err, MLA_EINVAL, "%s: a weight file alone is no model: give its folder", path);
    } else {
        st = mla_gguf_open(&m->gguf, path, err);
        if (st == MLA_OK && (st = mla_config_from_gguf(&m->cfg, m->gguf, err)) != MLA_OK) st = mla_wrap(err, "%s", path);
        m->prefix = "model.";
    }
    if (st == MLA_OK) st = refuse_unsupported(m, err);
    if (st == MLA_OK && folder) st = mla_ckpt_open(&m->ckpt, path, err);
    if (st == MLA_OK) st = new_slots(m, err);
    if (st == MLA_OK && (st = folder ? mla_bind_hf(m, err) : mla_bind_gguf(m, err)) != MLA_OK) st = mla_wrap(err, "%s", path);
    if (st == MLA_OK) *out = m;
    else mla_model_close(m);
    return st;
}

void mla_model_close(mla_model *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->nnote; i++) mla_free(m->note[i]);
    mla_free(m->note);
    mla_free(m->bind);
    mla_free(m->slot);
    mla_free(m->scale);
    mla_map_free(m->claimed);
    mla_config_free(&m->cfg);
    mla_ckpt_close(m->ckpt);
    mla_gguf_close(m->gguf);
    mla_st_close(m->shared);
    mla_json_free(m->json);
    mla_json_free(m->hf_quant);
    mla_qconfig_free(m->qcfg);
    mla_row_cache_free(m->rows);
    mla_free(m->path);
    mla_free(m);
}

const mla_config *mla_model_config(const mla_model *m) { return &m->cfg; }
const char *mla_model_path(const mla_model *m) { return m->path; }
const mla_ckpt *mla_model_ckpt(const mla_model *m) { return m->ckpt; }
const mla_gguf *mla_model_gguf(const mla_model *m) { return m->gguf; }
const mla_json *mla_model_config_json(const mla_model *m) { return m->json; }
const char *mla_model_prefix(const mla_model *m) { return m->prefix; }
size_t mla_model_note_count(const mla_model *m) { return m->nnote; }
const char *mla_model_note_at(const mla_model *m, size_t i) { return m->note[i]; }

uint64_t mla_model_stored_bytes(const mla_model *m)
{
    uint64_t sum = 0; /* cannot wrap: disjoint spans of mapped files */
    for (size_t i = 0; m->ckpt && i < mla_ckpt_count(m->ckpt); i++) sum += mla_ckpt_at(m->ckpt, i)->nbytes;
    for (size_t i = 0; m->gguf && i < mla_gguf_count(m->gguf); i++) sum += mla_gguf_at(m->gguf, i)->nbytes;
    for (size_t i = 0; m->shared && i < mla_st_count(m->shared); i++) sum += mla_st_at(m->shared, i)->nbytes;
    return sum;
}

uint64_t mla_model_trunk_params(const mla_model *m)
{
    uint64_t sum = 0;
    for (size_t pos = 0; pos <= m->cfg.layers; pos++)
        for (size_t k = 0; k < MLA_W_N; k++) {
            size_t s = m->slot[pos * MLA_W_N + k];
            if (s && m->bind[s - 1].row->place != MLA_AT_MTP) sum += (uint64_t)m->bind[s - 1].out * m->bind[s - 1].in;
        }
    return sum;
}

mla_status mla_model_unchanged(const mla_model *m, mla_err *err)
{
    const mla_gguf *g = mla_model_gguf(m);
    const mla_ckpt *ck = mla_model_ckpt(m);
    if (g) return mla_file_unchanged(mla_gguf_file(g), err);
    for (size_t i = 0; i < mla_ckpt_shard_count(ck); i++)
        if (mla_file_unchanged(mla_st_file(mla_ckpt_shard(ck, i)), err) != MLA_OK) return err->status;
    return MLA_OK;
}
