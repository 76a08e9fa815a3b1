/* A GGUF base as model.safetensors: every logical tensor under its Hugging Face name, decoded row block by row block. */
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/arch.h"
#include "model/model_impl.h"
#include "model/writer_impl.h"

#define BLOCK_VALUES ((size_t)1 << 20)

typedef struct {
    const mla_model *m;
    const mla_arch_group *group;
    mla_dtype dtype;
    mla_stw *w;
    mla_map *at;   /* HF name -> position in `todo` */
    struct todo { mla_wkind kind; size_t layer; const mla_wrow *row; } *todo;
    size_t n;
    uint64_t values;
} job;

static mla_status declare(job *j, const mla_wrow *row, size_t layer, mla_str *name, mla_err *err)
{
    const mla_config *c = &j->m->cfg;
    size_t out = mla_dim_size(c, row->out), in = mla_dim_size(c, row->in), nd = 2, shape[3] = {out, in, 0};
    if (row->out == MLA_D_ONE) shape[0] = in, nd = 1;
    if (row->conv) shape[1] = 1, shape[2] = in, nd = 3;
    mla_name_hf(name, row, "model.", layer);
    if (!mla_str_ok(name)) return mla_fail(err, MLA_ENOMEM, "tensor name");
    struct todo *t = mla_realloc(j->todo, j->n + 1, sizeof *t);
    if (!t) return mla_fail(err, MLA_ENOMEM, "%zu tensors", j->n + 1);
    j->todo = t;
    t[j->n] = (struct todo){row->kind, layer, row};
    j->values += (uint64_t)out * in;
    mla_status st = mla_map_add(j->at, mla_str_c(name), name->len, j->n++, NULL, err);
    return st == MLA_OK ? mla_stw_declare(j->w, mla_str_c(name), j->dtype, nd, shape, err) : st;
}

static mla_status declare_all(job *j, mla_err *err)
{
    const mla_config *c = &j->m->cfg;
    mla_str name = MLA_STR_MAX(512);
    mla_status st = MLA_OK;
    for (size_t pos = 0; st == MLA_OK && pos < 1 + c->layers + c->mtp_layers; pos++) {
        size_t layer = pos == 0 ? 0 : pos <= c->layers ? pos - 1 : MLA_MTP(pos - 1 - c->layers);
        for (size_t i = 0; st == MLA_OK && mla_wrow_at(i); i++) {
            const mla_wrow *row = mla_wrow_at(i);
            bool once = row->place == MLA_AT_MODEL || row->place == MLA_AT_MTP;
            if (row->gguf && once == (pos == 0) && mla_wrow_applies(row, c, layer)) st = declare(j, row, layer, &name, err);
        }
    }
    mla_str_free(&name);
    return st;
}

/* The family's stored value: norms without the 1 that reading has in them. */
static void store_form(const job *j, const mla_wrow *row, float *x, size_t n)
{
    if (row->norm && (j->group->flags & MLA_AF_PLUS_ONE))
        for (size_t i = 0; i < n; i++) x[i] -= 1;
}

static mla_status write_tensor(job *j, const struct todo *t, mla_progress *prog, mla_err *err)
{
    mla_mat w = {0};
    mla_status st = mla_model_mat(j->m, t->kind, t->layer, &w, err);
    if (st != MLA_OK) return st;
    size_t rows = BLOCK_VALUES / w.in ? BLOCK_VALUES / w.in : 1;
    if (rows > w.out) rows = w.out;
    float *x = mla_alloc_raw(rows, w.in, sizeof *x);
    void *packed = mla_alloc_raw(rows, w.in, mla_dtype_bits(j->dtype) / 8);
    if (!x || !packed) st = mla_fail(err, MLA_ENOMEM, "%zu rows of %zu", rows, w.in);
    for (size_t r = 0; st == MLA_OK && r < w.out; r += rows) {
        size_t n = w.out - r < rows ? w.out - r : rows;
        st = mla_mat_rows(&w, r, n, x, err);
        if (st != MLA_OK) break;
        store_form(j, t->row, x, n * w.in);
        if (!mla_from_f32(packed, x, j->dtype, n * w.in)) st = mla_fail(err, MLA_EINTERNAL, "conversion to %s", mla_dtype_name(j->dtype));
        else st = mla_stw_write(j->w, packed, n * w.in * (mla_dtype_bits(j->dtype) / 8), err);
        mla_progress_add(prog, (double)(n * w.in));
    }
    mla_free(x);
    mla_free(packed);
    return st;
}

mla_status mla_writer_gguf_weights(const mla_model *base, const char *out, const mla_writer_opts *opts, mla_err *err)
{
    const char *arch = base->cfg.architecture;
    job j = {.m = base, .group = mla_arch_of_gguf(arch, strlen(arch)), .dtype = opts->dtype ? opts->dtype : MLA_BF16};
    char *path = mla_path_join(out, "model.safetensors");
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path");
    if (st == MLA_OK && j.dtype != MLA_BF16 && j.dtype != MLA_F32)
        st = mla_fail(err, MLA_EINVAL, "output dtype %s: expected BF16 or F32", mla_dtype_name(j.dtype));
    if (st == MLA_OK && !j.group) st = mla_fail(err, MLA_EINTERNAL, "%s: no group", arch);
    if (st == MLA_OK) st = mla_map_new(&j.at, err);
    if (st == MLA_OK) st = mla_stw_new(&j.w, path, err);
    if (st == MLA_OK) st = declare_all(&j, err);
    if (st == MLA_OK) st = mla_stw_begin(j.w, err);
    if (st == MLA_OK) {
        mla_progress prog = mla_progress_begin(opts->log, "weights", (double)j.values, "values");
        for (size_t i = 0; st == MLA_OK && i < mla_stw_count(j.w); i++) {
            const char *name = mla_stw_at(j.w, i)->name;
            size_t k = 0;
            (void)mla_map_get(j.at, name, strlen(name), &k);
            st = write_tensor(&j, &j.todo[k], &prog, err);
        }
        mla_progress_end(&prog);
    }
    if (st == MLA_OK) {
        st = mla_stw_commit(j.w, NULL, err);
        j.w = NULL;
    }
    mla_stw_abort(j.w);
    mla_map_free(j.at);
    mla_free(j.todo);
    mla_free(path);
    return st;
}
