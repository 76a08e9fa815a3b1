/* The folded folder: weight files, index, config, receipt; written beside, renamed last. */
#include "calibrate/fold.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "calibrate/calibrate.h"
#include "calibrate/fold_edits.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "model/kv_names.h"

#define INDEX "model.safetensors.index.json"

typedef struct {
    const mla_model *m;
    const mla_ckpt *ck;
    const char *dir;      /* of m */
    char *partial;
    mla_fold_edits x;
    mla_fold_sum *sum;
    uint64_t dropped;     /* bytes of scale tensors left out */
    unsigned char factors[32];
    bool has_factors;     /* the factors file was rewritten */
} work;

/* A scale that goes: what is cached is right at 1.0 now. Scales of queries and probabilities stay. */
static bool is_scale(const char *name)
{
    size_t layer;
    const mla_kv_spelling *s = mla_kv_spelling_of(name, &layer);
    return s && mla_kv_part_cached(s->part);
}

/* Tensors of a shard that stay, and whether any of them changes or goes. */
static bool touched(const work *w, const mla_st *s, size_t *left)
{
    bool any = false;
    *left = 0;
    for (size_t i = 0; i < mla_st_count(s); i++) {
        const char *name = mla_st_at(s, i)->name;
        bool scale = is_scale(name);
        any = any || scale || mla_fold_find(&w->x, name);
        *left += !scale;
    }
    return any;
}

static mla_status rewrite(work *w, const mla_st *s, const char *path, unsigned char digest[32], mla_err *err)
{
    mla_stw *o;
    mla_status st = mla_stw_new(&o, path, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; st == MLA_OK && i < mla_st_meta_count(s); i++) st = mla_stw_meta(o, mla_st_meta_key(s, i), mla_st_meta_value(s, i), err);
    for (size_t i = 0; st == MLA_OK && i < mla_st_count(s); i++) {
        const mla_tensor *t = mla_st_at(s, i);
        if (is_scale(t->name)) w->dropped += t->nbytes;
        else st = mla_stw_declare(o, t->name, t->dtype, t->ndim, t->shape, err);
    }
    if (st == MLA_OK) st = mla_stw_begin(o, err);
    for (size_t i = 0; st == MLA_OK && i < mla_stw_count(o); i++) {
        const mla_tensor *t = mla_st_find(s, mla_stw_at(o, i)->name);
        const mla_fold_edit *e = mla_fold_find(&w->x, t->name);
        void *copy = e ? mla_alloc_raw(t->nbytes, 1, 1) : NULL;
        if (e && !copy) st = mla_fail(err, MLA_ENOMEM, "%s", t->name);
        if (st == MLA_OK && e) st = mla_fold_apply(e, t, copy, w->sum, err);
        if (st == MLA_OK) st = mla_stw_write(o, e ? copy : t->data, t->nbytes, err);
        mla_free(copy);
    }
    if (st != MLA_OK) mla_stw_abort(o);
    else st = mla_stw_commit(o, digest, err);
    w->sum->rewritten += st == MLA_OK;
    return st;
}

static const mla_st *shard_named(const work *w, const char *name)
{
    for (size_t i = 0; i < mla_ckpt_shard_count(w->ck); i++)
        if (!strcmp(mla_ckpt_shard_name(w->ck, i), name)) return mla_ckpt_shard(w->ck, i);
    return NULL;
}

static bool regenerated(const char *name)
{
    return !strcmp(name, "config.json") || !strcmp(name, INDEX) || !strcmp(name, MLA_RECEIPT_NAME) || !strcmp(name, MLA_KV_SCALES_JSON) ||
           !strcmp(name, MLA_SGLANG_SCALES);
}

static mla_status place(work *w, const char *name, mla_err *err)
{
    char *from = mla_path_join(w->dir, name), *to = mla_path_join(w->partial, name);
    const mla_st *s = shard_named(w, name);
    unsigned char digest[32];
    size_t left = 0;
    mla_status st = from && to ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of %s", name);
    if (st == MLA_OK && strchr(name, '/')) {
        char *slash = strrchr(to, '/');
        *slash = 0;
        st = mla_dir_make(to, err);
        *slash = '/';
    }
    if (st == MLA_OK && s && touched(w, s, &left)) {
        if (left) st = rewrite(w, s, to, digest, err);
        else
            for (size_t i = 0; i < mla_st_count(s); i++) w->dropped += mla_st_at(s, i)->nbytes;
        if (left && !strncmp(name, "mla_factors", 11)) memcpy(w->factors, digest, 32), w->has_factors = true;
    } else if (st == MLA_OK) st = mla_file_place(from, to, NULL, err);
    mla_free(from);
    mla_free(to);
    return st;
}

/* A JSON file of m, edited, into the new folder. Absent: nothing. */
static mla_status edit_json(work *w, const char *name, mla_status (*edit)(work *, mla_jv *, mla_err *), mla_err *err)
{
    char *from = mla_path_join(w->dir, name), *to = mla_path_join(w->partial, name);
    mla_json *d = NULL;
    mla_status st = from && to ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of %s", name);
    if (st == MLA_OK && mla_path_exists(from)) {
        st = mla_json_read(&d, from, (size_t)256 << 20, err);
        if (st == MLA_OK) st = edit(w, mla_json_root(d), err);
        if (st == MLA_OK && !strcmp(name, MLA_RECEIPT_NAME)) st = mla_receipt_write_sealed(to, mla_json_root(d), err);
        else if (st == MLA_OK) st = mla_json_write(to, mla_json_root(d), err);
    }
    mla_json_free(d);
    mla_free(from);
    mla_free(to);
    return st;
}

static mla_status edit_index(work *w, mla_jv *root, mla_err *err)
{
    size_t total;
    mla_jv *map = mla_jv_get(root, "weight_map"), *meta = mla_jv_get(root, "metadata");
    for (size_t i = 0; i < mla_ckpt_count(w->ck); i++)
        if (is_scale(mla_ckpt_at(w->ck, i)->name)) mla_jv_remove(map, mla_ckpt_at(w->ck, i)->name);
    if (mla_jv_size(mla_jv_get(meta, "total_size"), &total) && total >= w->dropped && !mla_jv_set_size(meta, "total_size", total - (size_t)w->dropped))
        return mla_fail(err, MLA_ENOMEM, "index");
    return MLA_OK;
}

/* A quantization_config that was there for the scales alone goes with them. */
static void drop_scheme(mla_jv *owner)
{
    mla_jv *q = mla_jv_get(owner, "quantization_config");
    if (!q) return;
    mla_jv_remove(q, "kv_cache_scheme");
    mla_jv_remove(q, "kv_cache_quant_algo");
    const char *format = mla_jv_str(mla_jv_get(q, "format")), *algo = mla_jv_str(mla_jv_get(q, "quant_algo"));
    bool empty = format && !strcmp(format, "dense") && mla_jv_len(mla_jv_get(q, "config_groups")) == 0;
    if (empty || (algo && !strcmp(algo, "NO_QUANT"))) mla_jv_remove(owner, "quantization_config");
}

static mla_status edit_config(work *w, mla_jv *root, mla_err *err)
{
    mla_jv *text = mla_jv_get(root, "text_config"), *owner = text ? text : root, *mla = mla_jv_get(owner, "mla");
    char hex[65], key[24];
    drop_scheme(root);
    drop_scheme(owner);
    mla_hex(w->factors, 32, hex);
    if (w->has_factors && (!mla || !mla_jv_set_str(mla, "factors_sha256", hex)))
        return mla_fail(err, MLA_EUNSUPPORTED, "config.json: expected an object \"mla\" that names the factors file");
    mla_jv_remove(root, "mla_kv_scales");
    mla_jv *b = mla_jv_set_obj(root, "mla_kv_scales"), *list;
    bool ok = mla_jv_set_str(b, "format", MLA_KV_SCALES_FORMAT) && mla_jv_set_bool(b, "folded", true) && mla_jv_set_str(b, "dtype", "float8_e4m3fn");
    list = mla_jv_set_obj(b, "exponents");
    for (size_t i = 0; ok && i < w->x.layers; i++) {
        size_t l = w->x.layer[i];
        if (l >= MLA_MTP(0)) (void)snprintf(key, sizeof key, "mtp.%zu", l - MLA_MTP(0));
        else (void)snprintf(key, sizeof key, "%zu", l);
        mla_jv *o = mla_jv_set_arr(list, key);
        ok = mla_jv_add_f64(o, w->x.k[i]) && mla_jv_add_f64(o, w->x.v[i]);
    }
    return ok ? MLA_OK : mla_fail(err, MLA_ENOMEM, "config.json");
}

static mla_status edit_receipt(work *w, mla_jv *root, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_manifest files = {0};
    mla_jv_remove(root, "kv_scales");
    mla_jv *o = mla_jv_set_obj(root, "kv_scales");
    if (!mla_jv_set_bool(o, "folded", true)) return mla_fail(err, MLA_ENOMEM, "receipt");
    mla_status st = mla_manifest_scan(&files, w->partial, SKIP, NULL, NULL, err);
    if (st == MLA_OK) st = mla_manifest_to_json(&files, root, err);
    mla_manifest_free(&files);
    return st;
}

/* The new folder opens, and every layer that caches says 1.0. */
static mla_status check(work *w, mla_err *err)
{
    mla_model *m;
    mla_status st = mla_model_open(&m, w->partial, err);
    for (size_t i = 0; st == MLA_OK && i < w->x.layers; i++) {
        mla_kv_scale s;
        st = mla_model_kv_scale(m, w->x.layer[i], &s, err);
        if (st == MLA_OK && !(s.present && s.k == 1 && s.v == 1)) st = mla_fail(err, MLA_EINTERNAL, "layer %zu of the folded folder does not say 1.0", w->x.layer[i]);
    }
    mla_model_close(m);
    return st;
}

static mla_status write_all(work *w, mla_log *log, mla_err *err)
{
    mla_names names = {0};
    mla_status st = mla_dir_list(&names, w->dir, err);
    mla_progress prog = mla_progress_begin(log, "folding", (double)names.n, "files");
    for (size_t i = 0; st == MLA_OK && i < names.n; i++) {
        if (!regenerated(names.name[i])) st = place(w, names.name[i], err);
        mla_progress_add(&prog, 1);
    }
    mla_progress_end(&prog);
    mla_names_free(&names);
    if (st == MLA_OK && w->sum->tensors != w->x.n) st = mla_fail(err, MLA_EINTERNAL, "%zu of %zu edits were carried out", w->sum->tensors, w->x.n);
    if (st == MLA_OK) st = edit_json(w, INDEX, edit_index, err);
    if (st == MLA_OK) st = edit_json(w, "config.json", edit_config, err);
    if (st == MLA_OK) st = check(w, err);
    if (st == MLA_OK) st = edit_json(w, MLA_RECEIPT_NAME, edit_receipt, err);
    return st;
}

mla_status mla_fold(const mla_model *m, const char *out, mla_log *log, mla_fold_sum *sum, mla_err *err)
{
    work w = {.m = m, .ck = mla_model_ckpt(m), .sum = sum};
    mla_lock *lock = NULL;
    mla_str partial = MLA_STR_MAX(8192), name = MLA_STR_MAX(8192);
    *sum = (mla_fold_sum){0};
    if (mla_path_exists(out)) return mla_fail(err, MLA_EINVAL, "%s exists: choose another output or remove it", out);
    mla_status st = mla_fold_plan(&w.x, m, err);
    mla_str_printf(&partial, "%s.partial", out);
    mla_str_printf(&name, "%s.lock", out);
    if (st == MLA_OK && (!mla_str_ok(&partial) || !mla_str_ok(&name))) st = mla_fail(err, MLA_ENOMEM, "path of %s", out);
    if (st == MLA_OK) {
        w.partial = partial.s;
        w.dir = mla_ckpt_dir(w.ck);
        sum->layers = w.x.layers;
        st = mla_lock_take(&lock, name.s, err);
    }
    if (st == MLA_OK) {
        st = mla_dir_remove(w.partial, err); /* of a killed run: made anew in seconds */
        if (st == MLA_OK) st = mla_dir_make(w.partial, err);
        if (st == MLA_OK) st = write_all(&w, log, err);
        if (st == MLA_OK) st = mla_path_rename(w.partial, out, err);
        if (st != MLA_OK) {
            mla_err ignored;
            if (mla_dir_remove(w.partial, &ignored) != MLA_OK) mla_warn(log, "%s could not be removed", w.partial);
        }
        mla_lock_drop(lock);
    }
    mla_fold_edits_free(&w.x);
    mla_str_free(&partial);
    mla_str_free(&name);
    return st;
}
