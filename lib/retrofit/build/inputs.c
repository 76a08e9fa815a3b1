/* Opening the base, tokenizing the corpora, digesting both. */
#include "retrofit/build/inputs.h"

#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"

static mla_status digest_base(mla_inputs *in, const mla_input_opts *o, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    if (mla_path_is_dir(o->base)) {
        mla_status st = mla_manifest_scan(&in->base_files, o->base, SKIP, o->pool, o->log, err);
        if (st == MLA_OK) st = mla_manifest_root(&in->base_files, in->base_digest, err);
        return st;
    }
    mla_file_digest f = {.path = o->base};
    mla_status st = mla_sha256_files(&f, 1, o->pool, NULL, err);
    if (st != MLA_OK) return st;
    const char *slash = strrchr(o->base, '/');
    in->base_files.file = mla_alloc(1, 1, sizeof *in->base_files.file);
    if (!in->base_files.file) return mla_fail(err, MLA_ENOMEM, "manifest of %s", o->base);
    in->base_files.n = 1;
    mla_receipt_file *rf = in->base_files.file;
    rf->name = mla_strdup(slash ? slash + 1 : o->base);
    if (!rf->name) return mla_fail(err, MLA_ENOMEM, "manifest of %s", o->base);
    rf->size = f.size;
    memcpy(rf->sha256, f.digest, 32);
    return mla_manifest_root(&in->base_files, in->base_digest, err);
}

mla_status mla_inputs_open_base(mla_inputs *in, mla_recipe *recipe, const mla_input_opts *o, mla_err *err)
{
    *in = (mla_inputs){0};
    mla_status st = mla_model_open(&in->model, o->base, err);
    if (st == MLA_OK) st = mla_recipe_resolve(recipe, mla_model_config(in->model), err);
    if (st == MLA_OK) st = digest_base(in, o, err);
    if (st != MLA_OK) mla_inputs_close(in);
    return st;
}

/* Rows 0..n of ids into fit or, every 8th, into held. */
static mla_status split_rows(mla_inputs *in, const int32_t *ids, size_t n, size_t row, mla_err *err)
{
    in->fit = mla_alloc_raw(n, 1, sizeof *in->fit);
    in->held = mla_alloc_raw(n, 1, sizeof *in->held);
    if (!in->fit || !in->held) return mla_fail(err, MLA_ENOMEM, "%zu tokens", n);
    for (size_t r = 0, at = 0; at < n; r++, at += row) {
        size_t k = n - at < row ? n - at : row;
        bool out = r % 8 == 7 && k == row;
        memcpy(out ? in->held + in->n_held : in->fit + in->n_fit, ids + at, k * sizeof *ids);
        *(out ? &in->n_held : &in->n_fit) += k;
    }
    return MLA_OK;
}

static void digest_ids(unsigned char out[32], const int32_t *ids, size_t n)
{
    mla_sha256_bytes(ids, n * sizeof *ids, out); /* little-endian i32, as every file of ours */
}

static mla_status read_corpora(mla_inputs *in, const mla_recipe *r, const mla_input_opts *o, const char *no_tokenizer, mla_err *err)
{
    size_t vocab = mla_model_config(in->model)->vocab;
    mla_corpus c = {.no_tokenizer = no_tokenizer}, h = c;
    mla_status st = MLA_OK;
    for (size_t i = 0; st == MLA_OK && i < o->n_corpus; i++) st = mla_corpus_add(&c, o->corpus[i], in->tok, vocab, err);
    if (st == MLA_OK && o->held_out) st = mla_corpus_add(&h, o->held_out, in->tok, vocab, err);
    if (st == MLA_OK) {
        size_t n = c.ids.n < r->calibration_tokens ? c.ids.n : r->calibration_tokens;
        in->held_from = o->held_out ? "file" : "every 8th row";
        if (!o->held_out) st = split_rows(in, c.ids.id, n, r->row_tokens, err);
        else {
            in->fit = c.ids.id, in->held = h.ids.id;
            in->n_fit = n, in->n_held = h.ids.n - h.ids.n % r->row_tokens;
            c.ids.id = h.ids.id = NULL;
        }
    }
    mla_corpus_free(&c);
    mla_corpus_free(&h);
    if (st != MLA_OK) return st;
    digest_ids(in->fit_digest, in->fit, in->n_fit);
    digest_ids(in->held_digest, in->held, in->n_held);
    size_t n;
    const mla_config *cfg = mla_model_config(in->model);
    if (r->layout == MLA_LAYOUT_SHARED) n = 2 * cfg->kv_heads * cfg->head_dim;
    else if ((st = mla_factors_dims(cfg, r->layout, 1, &n, err)) != MLA_OK) return st;
    if (in->n_fit < 10 * n) {
        if (!o->force)
            return mla_fail(err, MLA_EINVAL,
                            "%zu calibration tokens for %zu features: at least %zu (10 per feature) are needed, or --force", in->n_fit, n, 10 * n);
        mla_warn(o->log, "%zu calibration tokens for %zu features: the predicted losses will look better than they are", in->n_fit, n);
    }
    return MLA_OK;
}

mla_status mla_inputs_read_text(mla_inputs *in, const mla_recipe *recipe, const mla_input_opts *o, mla_err *err)
{
    mla_err why = {0};
    mla_status st = mla_model_tokenizer_if_any(in->model, &in->tok, &why, err);
    if (st != MLA_OK) return st;
    if (!in->tok) mla_info(o->log, "no tokenizer (%s): corpora must be token ids", why.msg);
    return read_corpora(in, recipe, o, why.msg, err);
}

void mla_inputs_close(mla_inputs *in)
{
    mla_free(in->fit);
    mla_free(in->held);
    mla_manifest_free(&in->base_files);
    mla_tok_free(in->tok);
    mla_model_close(in->model);
    *in = (mla_inputs){0};
}
