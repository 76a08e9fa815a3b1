/* Receipt JSON: no clock, no host, no absolute path; the same inputs give the same bytes. */
#include "retrofit/build/receipt.h"

#include <string.h>

#include "base/alloc.h"
#include "base/version.h"
#include "io/receipt.h"
#include "io/sha256.h"
#include "model/writer.h"

static void put_digest(mla_jv *o, const char *key, const unsigned char d[32])
{
    char text[80] = "sha256:";
    mla_hex(d, 32, text + 7);
    mla_jv_set_str(o, key, text);
}

/* The factors file of a graft and how its ranks became those of the result. */
static void put_source(mla_jv *o, const mla_receipt_content *c)
{
    const mla_factor_source *s = c->source;
    bool cut = false;
    put_digest(o, "sha256", c->stats_digest);
    mla_jv_set_bool(o, "nested", s->nested);
    mla_jv *ranks = mla_jv_set_arr(o, "solved_ranks");
    for (size_t i = 0; i < s->layers; i++) {
        size_t own = s->layer[i].f.groups * s->layer[i].f.r;
        mla_jv_add_size(ranks, own);
        cut = cut || c->f->result[i].rank != own;
    }
    mla_jv_set_bool(o, "prefix", cut);
    if (s->refined) mla_jv_set_str(o, "refined", s->refined);
}

static mla_status fill(mla_jv *o, const mla_receipt_content *c, const mla_manifest *m, mla_err *err)
{
    mla_jv_set_str(o, "schema", "mla-receipt/1");
    mla_jv *tool = mla_jv_set_obj(o, "tool");
    mla_jv_set_str(tool, "name", "mla-retrofit");
    mla_jv_set_str(tool, "version", MLA_VERSION);
    mla_jv_set_str(tool, "computed_with", c->computed_with);
    mla_recipe_to_json(c->recipe, mla_jv_set_obj(o, "recipe"));
    if (c->recipe->balance_scan) mla_jv_set_f64(o, "balance_chosen", c->f->balance);
    mla_jv_set_str(o, "factors_stored_as", c->shared || c->f->f32 ? "float32" : "bfloat16");
    mla_jv *base = mla_jv_set_obj(o, "base");
    mla_status st = mla_manifest_to_json(&c->in->base_files, base, err);
    if (st != MLA_OK) return st;
    mla_jv *cal = mla_jv_set_obj(o, "calibration");
    mla_jv_set_f64(cal, "tokens", c->tokens);
    put_digest(cal, "corpus_digest", c->stats_digest);
    if (c->stats_base) put_digest(cal, "statistics_base", c->stats_base);
    if (c->in->n_held) {
        mla_jv_set_size(cal, "held_out_tokens", c->in->n_held);
        put_digest(cal, "held_out_digest", c->in->held_digest);
        mla_jv_set_str(cal, "held_out_from", c->in->held_from);
    }
    if (c->source) put_source(mla_jv_set_obj(o, "factors_source"), c);
    if (c->shared) mla_shared_fit_to_json(c->shared, mla_jv_set_arr(o, "layers"));
    else mla_factorization_to_json(c->f, mla_jv_set_arr(o, "layers"));
    return mla_manifest_to_json(m, o, err);
}

/* The base is what was hashed when the run began: the weight files that were open all the time, and every file that the
 * output carries over (both lists are sorted). Layout deepseek writes weights of its own, under names that the base may have. */
static mla_status base_unchanged(const mla_receipt_content *c, const mla_manifest *now, mla_err *err)
{
    const mla_manifest *was = &c->in->base_files;
    mla_status st = mla_model_unchanged(c->in->model, err);
    if (st != MLA_OK || mla_model_gguf(c->in->model)) return st;
    for (size_t i = 0, j = 0; i < was->n && j < now->n;) {
        const mla_receipt_file *a = &was->file[i], *b = &now->file[j];
        int order = strcmp(a->name, b->name);
        bool made = mla_writer_regenerates(a->name) || (c->recipe->layout == MLA_LAYOUT_DEEPSEEK && strstr(a->name, ".safetensors"));
        if (order == 0 && !made && memcmp(a->sha256, b->sha256, 32) != 0)
            return mla_fail(err, MLA_EIO, "%s of the base changed while it was read", a->name);
        i += order <= 0;
        j += order >= 0;
    }
    return MLA_OK;
}

mla_status mla_receipt_write(const char *dir, const mla_receipt_content *c, mla_pool *pool, mla_log *log, unsigned char root[32], mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_manifest m = {0};
    mla_json *d = NULL;
    char *path = mla_path_join(dir, MLA_RECEIPT_NAME);
    mla_status st = path ? mla_manifest_scan(&m, dir, SKIP, pool, log, err) : mla_fail(err, MLA_ENOMEM, "path of the receipt");
    if (st == MLA_OK) st = base_unchanged(c, &m, err);
    if (st == MLA_OK) st = mla_json_new_object(&d, err);
    if (st == MLA_OK) st = fill(mla_json_root(d), c, &m, err);
    if (st == MLA_OK) st = mla_manifest_root(&m, root, err);
    if (st == MLA_OK) st = mla_receipt_write_sealed(path, mla_json_root(d), err);
    mla_json_free(d);
    mla_manifest_free(&m);
    mla_free(path);
    return st == MLA_OK ? st : mla_wrap(err, "receipt");
}
