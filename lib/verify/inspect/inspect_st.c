/* inspect: checkpoint folders and single safetensors files. */
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "quant/quant.h"
#include "verify/inspect/inspect_parts.h"

#define CONFIG_MAX ((size_t)64 << 20)

static void put_tensor(mla_jv *list, const mla_tensor *t, const char *file)
{
    mla_jv *o = mla_jv_add_obj(list);
    mla_jv_put_str(o, "name", t->name);
    mla_jv_put_str(o, "dtype", mla_dtype_name(t->dtype));
    mla_jv *s = mla_jv_set_arr(o, "shape");
    for (size_t i = 0; i < t->ndim; i++) mla_jv_add_size(s, t->shape[i]);
    mla_jv_put_size(o, "bytes", t->nbytes);
    if (file) mla_jv_put_str(o, "file", file);
}

static const mla_tensor *find_in_ckpt(const void *ctx, const char *name) { return mla_ckpt_find(ctx, name); }

/* Weight formats by matrix: every module (a name without its last part) that a row of the format table recognises. */
static mla_status sum_formats(const mla_ckpt *ck, mla_inspect_sums *s, mla_err *err)
{
    mla_map *seen = NULL;
    mla_status st = mla_map_new(&seen, err);
    mla_qsource src = {find_in_ckpt, ck};
    for (size_t i = 0; st == MLA_OK && i < mla_ckpt_count(ck); i++) {
        const char *name = mla_ckpt_at(ck, i)->name, *dot = strrchr(name, '.');
        if (!dot) continue;
        bool existed = false;
        st = mla_map_add(seen, name, (size_t)(dot - name), i, &existed, err);
        if (st != MLA_OK || existed) continue;
        char *module = mla_strndup(name, (size_t)(dot - name));
        if (!module) st = mla_fail(err, MLA_ENOMEM, "module name");
        mla_qmat m;
        mla_err ignored = {0};
        if (module && mla_qmat_open(&m, &src, module, &ignored) == MLA_OK) mla_inspect_sum(s, m.format, (double)mla_qmat_bytes(&m));
        mla_free(module);
    }
    mla_map_free(seen);
    return st;
}

static mla_status list_ckpt(mla_jv *doc, const mla_ckpt *ck, mla_err *err)
{
    mla_inspect_sums dtypes = {0}, formats = {0};
    double bytes = 0;
    mla_jv *files = mla_jv_set_arr(doc, "files");
    for (size_t i = 0; i < mla_ckpt_shard_count(ck); i++) {
        mla_jv *o = mla_jv_add_obj(files);
        mla_jv_set_str(o, "name", mla_ckpt_shard_name(ck, i));
        mla_jv_set_size(o, "bytes", mla_st_file(mla_ckpt_shard(ck, i))->size);
    }
    mla_jv *totals = mla_jv_set_obj(doc, "totals"), *list = mla_jv_set_arr(doc, "tensors");
    for (size_t i = 0; i < mla_ckpt_count(ck); i++) {
        const mla_tensor *t = mla_ckpt_at(ck, i);
        put_tensor(list, t, mla_ckpt_shard_of(ck, i));
        mla_inspect_sum(&dtypes, mla_dtype_name(t->dtype), (double)t->nbytes);
        bytes += (double)t->nbytes;
    }
    mla_status st = sum_formats(ck, &formats, err);
    mla_jv_set_size(totals, "tensors", mla_ckpt_count(ck));
    mla_jv_set_f64(totals, "bytes", bytes);
    mla_inspect_put_sums(totals, "by_dtype", "dtype", "tensors", &dtypes);
    mla_inspect_put_sums(totals, "by_format", "format", "matrices", &formats);
    for (size_t i = 0; i < mla_ckpt_stray_count(ck); i++)
        mla_inspect_note(doc, "%s: not named by the index; loaders that follow the index ignore it", mla_ckpt_stray(ck, i));
    return st;
}

static void put_metadata(mla_jv *doc, const mla_st *s)
{
    mla_jv *a = mla_jv_set_arr(doc, "metadata");
    for (size_t i = 0; i < mla_st_meta_count(s); i++) {
        mla_jv *o = mla_jv_add_obj(a);
        mla_jv_set_str(o, "key", mla_st_meta_key(s, i));
        mla_jv_set_str(o, "value", mla_st_meta_value(s, i));
    }
}

mla_status mla_inspect_safetensors(mla_jv *doc, const char *path, mla_err *err)
{
    mla_ckpt *ck = NULL;
    mla_inspect_set_kind(doc, "safetensors");
    mla_status st = mla_ckpt_open(&ck, path, err);
    if (st == MLA_OK) st = list_ckpt(doc, ck, err);
    if (st == MLA_OK) put_metadata(doc, mla_ckpt_shard(ck, 0));
    if (st == MLA_OK) mla_inspect_kv_scales(doc, ck, NULL);
    mla_ckpt_close(ck);
    return st;
}

/* config.json beside the shards: absent and unknown are notes, broken is an error. *c is filled when *known. */
static mla_status read_config(mla_jv *doc, const char *dir, mla_config *c, bool *known, mla_err *err)
{
    mla_json *d = NULL;
    char *path = mla_path_join(dir, "config.json");
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s", dir);
    *known = false;
    if (st == MLA_OK && !mla_path_exists(path)) {
        mla_inspect_note(doc, "config.json: absent");
    } else if (st == MLA_OK) {
        st = mla_json_read(&d, path, CONFIG_MAX, err);
        mla_err why = {0};
        mla_status read = st == MLA_OK ? mla_config_from_json(c, mla_json_root(d), &why) : st;
        *known = read == MLA_OK;
        if (read == MLA_EUNSUPPORTED) {
            mla_inspect_note(doc, "config.json: %s", why.msg);
        } else if (read != MLA_OK && st == MLA_OK) {
            *err = why;
            st = mla_wrap(err, "%s", path);
        }
        if (*known) mla_inspect_config(doc, c);
    }
    mla_json_free(d);
    mla_free(path);
    return st;
}

static mla_status list_other_files(mla_jv *doc, const char *dir, const mla_ckpt *ck, mla_err *err)
{
    mla_names l = {0};
    mla_status st = mla_dir_list(&l, dir, err);
    mla_jv *a = mla_jv_set_arr(doc, "other_files");
    for (size_t i = 0; i < l.n; i++) {
        bool shard = false;
        for (size_t j = 0; ck && j < mla_ckpt_shard_count(ck); j++) shard = shard || !strcmp(l.name[i], mla_ckpt_shard_name(ck, j));
        if (!shard) mla_jv_add_str(a, l.name[i]);
    }
    mla_names_free(&l);
    return st;
}

mla_status mla_inspect_folder(mla_jv *doc, const char *dir, mla_err *err)
{
    mla_ckpt *ck = NULL;
    mla_config c = {0};
    bool known = false;
    mla_inspect_set_kind(doc, "checkpoint");
    mla_status st = read_config(doc, dir, &c, &known, err);
    bool weights = st != MLA_OK || !known || mla_ckpt_present(dir);
    if (!weights) {
        mla_inspect_set_kind(doc, "config");
        mla_inspect_note(doc, "no safetensors file: a configuration without weights");
    }
    if (st == MLA_OK && weights) st = mla_ckpt_open(&ck, dir, err);
    if (st == MLA_OK && weights) st = list_ckpt(doc, ck, err);
    if (st == MLA_OK && weights) mla_inspect_kv_scales(doc, ck, known ? &c : NULL);
    if (st == MLA_OK) st = list_other_files(doc, dir, ck, err);
    mla_ckpt_close(ck);
    mla_config_free(&c);
    return st;
}
