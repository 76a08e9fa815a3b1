/* Placing a base's files and indexing the result. */
#include "model/writer.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/safetensors.h"
#include "model/writer_impl.h"

#define INDEX_NAME "model.safetensors.index.json"

void mla_jtext_str(mla_str *out, const char *s, size_t n)
{
    size_t from = 0;
    mla_str_put(out, "\"");
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        mla_str_putn(out, s + from, i - from);
        if (c < 0x20) mla_str_printf(out, "\\u%04x", c);
        else mla_str_printf(out, "\\%c", c);
        from = i + 1;
    }
    mla_str_putn(out, s + from, n - from);
    mla_str_put(out, "\"");
}

mla_status mla_writer_text(const char *out, const char *name, const mla_str *text, mla_err *err)
{
    char *path = mla_path_join(out, name);
    mla_status st = path && mla_str_ok(text) ? mla_file_write(path, mla_str_c(text), text->len, err)
                                             : mla_fail(err, MLA_ENOMEM, "%s/%s: text", out, name);
    mla_free(path);
    return st;
}

mla_status mla_writer_json(const char *out, const char *name, const mla_jv *v, mla_err *err)
{
    char *path = mla_path_join(out, name);
    mla_status st = path ? mla_json_write(path, v, err) : mla_fail(err, MLA_ENOMEM, "%s/%s: path", out, name);
    mla_free(path);
    return st;
}

bool mla_writer_regenerates(const char *name)
{
    static const char *const NAME[] = {INDEX_NAME, "config.json", MLA_RECEIPT_NAME};
    for (size_t i = 0; i < sizeof NAME / sizeof *NAME; i++)
        if (!strcmp(name, NAME[i])) return true;
    return false;
}

static bool stray(const mla_ckpt *c, const char *name)
{
    for (size_t i = 0; i < mla_ckpt_stray_count(c); i++)
        if (!strcmp(name, mla_ckpt_stray(c, i))) return true;
    return false;
}

static mla_status place_one(const char *from, const char *out, const char *name, mla_placed *p, mla_err *err)
{
    const char *how = "copied";
    char *src = mla_path_join(from, name), *dst = mla_path_join(out, name);
    mla_status st = src && dst ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of %s", name);
    char *slash = dst ? strrchr(dst, '/') : NULL;
    if (st == MLA_OK && strchr(name, '/')) { /* a file in a sub-folder */
        *slash = 0;
        st = mla_dir_make(dst, err);
        *slash = '/';
    }
    if (st == MLA_OK) st = mla_file_place(src, dst, &how, err);
    if (st == MLA_OK) {
        p->linked += !strcmp(how, "linked");
        p->cloned += !strcmp(how, "cloned");
        p->copied += !strcmp(how, "copied");
    }
    mla_free(src);
    mla_free(dst);
    return st;
}

static bool of_weights(const char *name) { return mla_ends_with(name, ".safetensors") || !strcmp(name, "hf_quant_config.json"); }

/* Every file of the base, or (texts) those that are no weights. */
static mla_status place_folder(const mla_model *base, const char *out, bool texts, mla_log *log, mla_placed *p, mla_err *err)
{
    const mla_ckpt *c = mla_model_ckpt(base);
    mla_names l = {0};
    mla_status st = mla_dir_list(&l, mla_ckpt_dir(c), err);
    for (size_t i = 0; st == MLA_OK && i < l.n; i++) {
        if (mla_writer_regenerates(l.name[i]) || (texts && of_weights(l.name[i]))) continue;
        if (stray(c, l.name[i])) {
            mla_warn(log, "%s: not carried over: the base's index does not name it", l.name[i]);
            p->skipped++;
            continue;
        }
        st = place_one(mla_ckpt_dir(c), out, l.name[i], p, err);
    }
    mla_names_free(&l);
    return st;
}

mla_status mla_writer_place_base(const mla_model *base, const char *out, const mla_writer_opts *opts, mla_placed *placed, mla_err *err)
{
    mla_placed local = {0}, *p = placed ? placed : &local;
    mla_writer_opts none = {0};
    const mla_writer_opts *o = opts ? opts : &none;
    *p = (mla_placed){0};
    if (!mla_path_is_dir(out)) return mla_fail(err, MLA_EINVAL, "%s: expected an existing folder to write into", out);
    if (mla_model_ckpt(base)) return place_folder(base, out, false, o->log, p, err);
    mla_status st = mla_writer_gguf_weights(base, out, o, err);
    if (st == MLA_OK) st = mla_writer_gguf_tokenizer(base, out, &p->written, err);
    p->written += st == MLA_OK;
    return st;
}

mla_status mla_writer_place_texts(const mla_model *base, const char *out, const mla_writer_opts *opts, mla_placed *placed, mla_err *err)
{
    *placed = (mla_placed){0};
    if (mla_model_ckpt(base)) return place_folder(base, out, true, opts->log, placed, err);
    return mla_writer_gguf_tokenizer(base, out, &placed->written, err);
}

typedef struct { /* the weight_map under construction: names in file order, sorted before printing */
    mla_map *file_of; /* tensor -> index of file */
    const char **name, **file;
    size_t n, nfile;
    uint64_t bytes;
} index_map;

static mla_status add_file(index_map *x, const char *out, const char *name, mla_err *err)
{
    mla_st *s = NULL;
    for (size_t i = 0; i < x->nfile; i++)
        if (!strcmp(x->file[i], name)) return MLA_OK;
    x->file[x->nfile] = name;
    char *path = mla_path_join(out, name);
    mla_status st = path ? mla_st_open(&s, path, err) : mla_fail(err, MLA_ENOMEM, "path of %s", name);
    for (size_t i = 0; st == MLA_OK && i < mla_st_count(s); i++) {
        const mla_tensor *t = mla_st_at(s, i);
        bool had;
        size_t other;
        st = mla_map_add(x->file_of, t->name, strlen(t->name), x->nfile, &had, err);
        if (st == MLA_OK && had && mla_map_get(x->file_of, t->name, strlen(t->name), &other))
            st = mla_fail(err, MLA_EFORMAT, "%s: in %s and in %s", t->name, x->file[other], name);
        x->bytes += t->nbytes; /* spans of mapped files: cannot wrap */
    }
    x->nfile++;
    mla_st_close(s);
    mla_free(path);
    return st;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static mla_status print_index(index_map *x, const char *out, mla_err *err)
{
    size_t n = mla_map_count(x->file_of), f;
    mla_str s = MLA_STR_MAX((size_t)1 << 28);
    x->name = mla_alloc(n, 1, sizeof *x->name);
    if (!x->name) return mla_fail(err, MLA_ENOMEM, "index of %zu tensors", n);
    for (size_t i = 0; i < n; i++) x->name[i] = mla_map_key(x->file_of, i, NULL);
    if (n) qsort(x->name, n, sizeof *x->name, by_name);
    mla_str_printf(&s, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {", (unsigned long long)x->bytes);
    for (size_t i = 0; i < n; i++) {
        mla_str_put(&s, i ? ",\n    " : "\n    ");
        mla_jtext_str(&s, x->name[i], strlen(x->name[i]));
        mla_str_put(&s, ": ");
        f = 0;
        (void)mla_map_get(x->file_of, x->name[i], strlen(x->name[i]), &f);
        mla_jtext_str(&s, x->file[f], strlen(x->file[f]));
    }
    mla_str_put(&s, "\n  }\n}\n");
    mla_status st = mla_writer_text(out, INDEX_NAME, &s, err);
    mla_str_free(&s);
    return st;
}

/* Index over files of the base (c == NULL: one model.safetensors) and n more. */
static mla_status index_files(const char *out, const mla_ckpt *c, size_t shards, const char *const *added, size_t n, mla_err *err)
{
    index_map x = {0};
    x.file = mla_alloc(shards + n, 1, sizeof *x.file);
    mla_status st = x.file ? mla_map_new(&x.file_of, err) : mla_fail(err, MLA_ENOMEM, "index of %zu files", shards + n);
    for (size_t i = 0; st == MLA_OK && i < shards; i++) st = add_file(&x, out, c ? mla_ckpt_shard_name(c, i) : "model.safetensors", err);
    for (size_t i = 0; st == MLA_OK && i < n; i++)
        st = mla_path_is_safe_relative(added[i]) ? add_file(&x, out, added[i], err)
                                                 : mla_fail(err, MLA_EINVAL, "%s: no file name within the folder", added[i]);
    if (st == MLA_OK) st = print_index(&x, out, err);
    mla_map_free(x.file_of);
    mla_free(x.name);
    mla_free(x.file);
    return st;
}

mla_status mla_writer_index(const mla_model *base, const char *out, const char *const *added, size_t n, mla_err *err)
{
    const mla_ckpt *c = mla_model_ckpt(base);
    return index_files(out, c, c ? mla_ckpt_shard_count(c) : 1, added, n, err);
}

mla_status mla_writer_index_of(const char *out, const char *const *name, size_t n, mla_err *err) { return index_files(out, NULL, 0, name, n, err); }
