/* A checkpoint folder: which files, which tensor in which file, and whether index and headers agree. */
#include "io/ckpt.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/map.h"
#include "base/str.h"
#include "io/file.h"
#include "io/json.h"
#include "io/msg.h"

#define INDEX "model.safetensors.index.json"
#define SINGLE "model.safetensors"
#define INDEX_MAX ((size_t)1 << 28)

typedef struct {
    char *name; /* within dir */
    mla_st *st;
} shard;

typedef struct {
    const mla_tensor *t;
    size_t shard;
} place;

struct mla_ckpt {
    char *dir;
    bool indexed;
    shard *shard; /* sorted by name */
    size_t nshard;
    place *at; /* sorted by tensor name */
    size_t n;
    mla_map *names;  /* tensor name -> position in at */
    mla_names stray; /* sorted */
};

typedef struct { /* one entry of weight_map */
    const char *name, *file;
    size_t shard;
} mapping;

static mla_status add_shard(mla_ckpt *c, const char *name, mla_err *err)
{
    shard *s = mla_realloc(c->shard, c->nshard + 1, sizeof *s);
    if (!s) return mla_fail(err, MLA_ENOMEM, "%zu shards", c->nshard + 1);
    c->shard = s;
    s[c->nshard] = (shard){mla_strdup(name), NULL};
    return s[c->nshard++].name ? MLA_OK : mla_fail(err, MLA_ENOMEM, "shard name");
}

static int by_shard_name(const void *a, const void *b)
{
    return strcmp(((const shard *)a)->name, ((const shard *)b)->name);
}

/* The distinct files of weight_map, sorted; m[i].shard gets the position of entry i's file. */
static mla_status collect_shards(mla_ckpt *c, mapping *m, size_t n, mla_err *err)
{
    mla_quoted q, q2;
    mla_map *files;
    mla_status st = mla_map_new(&files, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        bool had;
        if (!mla_path_is_safe_relative(m[i].file))
            st = mla_fail(err, MLA_EFORMAT, "tensor \"%s\" is mapped to \"%s\", which is no path within the folder",
                          mla_quote(&q, m[i].name, strlen(m[i].name)), mla_quote(&q2, m[i].file, strlen(m[i].file)));
        else if ((st = mla_map_add(files, m[i].file, strlen(m[i].file), 0, &had, err)) == MLA_OK && !had)
            st = add_shard(c, m[i].file, err);
    }
    mla_map_free(files);
    if (st != MLA_OK) return st;
    if (c->nshard) qsort(c->shard, c->nshard, sizeof *c->shard, by_shard_name);
    if ((st = mla_map_new(&files, err)) != MLA_OK) return st;
    for (size_t i = 0; i < c->nshard && st == MLA_OK; i++)
        st = mla_map_add(files, c->shard[i].name, strlen(c->shard[i].name), i, NULL, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) (void)mla_map_get(files, m[i].file, strlen(m[i].file), &m[i].shard);
    mla_map_free(files);
    return st;
}

static mla_status open_shards(mla_ckpt *c, mla_err *err)
{
    mla_status st = MLA_OK;
    for (size_t i = 0; i < c->nshard && st == MLA_OK; i++) {
        char *path = mla_path_join(c->dir, c->shard[i].name);
        if (!path)
            st = mla_fail(err, MLA_ENOMEM, "path of %s", c->shard[i].name);
        else if (c->indexed && !mla_path_exists(path))
            st = mla_fail(err, MLA_EIO, "%s/" INDEX " names %s, which is absent", c->dir, c->shard[i].name);
        else
            st = mla_st_open(&c->shard[i].st, path, err);
        mla_free(path);
    }
    return st;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const place *)a)->t->name, ((const place *)b)->t->name);
}

/* All tensors of all shards, sorted by name; a name in two shards is refused. */
static mla_status gather(mla_ckpt *c, mla_err *err)
{
    mla_quoted q;
    size_t n = 0;
    for (size_t i = 0; i < c->nshard; i++) n += mla_st_count(c->shard[i].st);
    c->at = mla_alloc(n, 1, sizeof *c->at);
    if (!c->at) return mla_fail(err, MLA_ENOMEM, "%zu tensors", n);
    for (size_t i = 0; i < c->nshard; i++)
        for (size_t k = 0; k < mla_st_count(c->shard[i].st); k++) c->at[c->n++] = (place){mla_st_at(c->shard[i].st, k), i};
    if (n) qsort(c->at, n, sizeof *c->at, by_tensor_name);
    mla_status st = mla_map_new(&c->names, err);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        bool had;
        const char *name = c->at[i].t->name;
        st = mla_map_add(c->names, name, strlen(name), i, &had, err);
        if (st == MLA_OK && had)
            st = mla_fail(err, MLA_EFORMAT, "%s: tensor \"%s\" is in two shards, %s and %s", c->dir,
                          mla_quote(&q, name, strlen(name)), c->shard[c->at[i - 1].shard].name, c->shard[c->at[i].shard].name);
    }
    return st;
}

/* Index and headers must say the same: nothing mapped that a shard lacks, nothing in a shard unmapped. */
static mla_status check_index(const mla_ckpt *c, const mapping *m, size_t n, mla_err *err)
{
    mla_quoted q;
    for (size_t i = 0; i < n; i++) {
        size_t k;
        bool known = mla_map_get(c->names, m[i].name, strlen(m[i].name), &k);
        mla_quote(&q, m[i].name, strlen(m[i].name));
        if (!known)
            return mla_fail(err, MLA_EFORMAT, "%s: the index maps tensor \"%s\" to %s, whose header lacks it", c->dir, q.s, m[i].file);
        if (c->at[k].shard != m[i].shard)
            return mla_fail(err, MLA_EFORMAT, "%s: the index maps tensor \"%s\" to %s, whose header lacks it (it is in %s)", c->dir,
                            q.s, m[i].file, c->shard[c->at[k].shard].name);
    }
    if (n == c->n) return MLA_OK; /* keys are unique and all found: the sets are equal */
    mla_map *mapped;
    mla_status st = mla_map_new(&mapped, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < n && st == MLA_OK; i++) st = mla_map_add(mapped, m[i].name, strlen(m[i].name), i, NULL, err);
    for (size_t i = 0; i < c->n && st == MLA_OK; i++) {
        const char *name = c->at[i].t->name;
        if (!mla_map_has(mapped, name))
            st = mla_fail(err, MLA_EFORMAT, "%s: tensor \"%s\" is in %s, but the index does not map it (stale index?)", c->dir,
                          mla_quote(&q, name, strlen(name)), c->shard[c->at[i].shard].name);
    }
    mla_map_free(mapped);
    return st;
}

static mla_status read_map(mapping **out, size_t *n, const mla_jv *root, mla_err *err)
{
    mla_quoted q;
    const mla_jv *map = mla_jv_get(root, "weight_map");
    if (!mla_jv_is_obj(map)) return mla_fail(err, MLA_EFORMAT, "weight_map is %s, expected an object", mla_jv_kind(map));
    size_t k = 0, len = mla_jv_len(map);
    mapping *m = mla_alloc(len, 1, sizeof *m);
    if (!m) return mla_fail(err, MLA_ENOMEM, "weight_map of %zu entries", len);
    for (const mla_jv *v = mla_jv_first(map); v; v = mla_jv_next(v), k++) {
        m[k] = (mapping){.name = mla_jv_key(v), .file = mla_jv_str(v)};
        if (!m[k].file) {
            mla_status st = mla_fail(err, MLA_EFORMAT, "tensor \"%s\" is mapped to %s, expected a file name",
                                     mla_quote(&q, m[k].name, strlen(m[k].name)), mla_jv_kind(v));
            mla_free(m);
            return st;
        }
    }
    *out = m;
    *n = len;
    return MLA_OK;
}

static mla_status open_indexed(mla_ckpt *c, const char *path, mla_err *err)
{
    mla_json *doc = NULL;
    mapping *m = NULL;
    size_t n = 0;
    c->indexed = true;
    mla_status st = mla_json_read(&doc, path, INDEX_MAX, err);
    if (st != MLA_OK) return st;
    st = read_map(&m, &n, mla_json_root(doc), err);
    if (st == MLA_OK && n == 0) st = mla_fail(err, MLA_EFORMAT, "weight_map is empty");
    if (st == MLA_OK) st = collect_shards(c, m, n, err);
    if (st != MLA_OK) mla_wrap(err, "%s", path);
    if (st == MLA_OK) st = open_shards(c, err);
    if (st == MLA_OK) st = gather(c, err);
    if (st == MLA_OK) st = check_index(c, m, n, err);
    mla_free(m);
    mla_json_free(doc);
    return st;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The *.safetensors names directly in the folder, sorted. */
static mla_status list_safetensors(mla_names *l, const char *dir, mla_err *err)
{
    mla_status st = MLA_OK;
    DIR *d = opendir(dir);
    if (!d) return mla_sys_fail(err, dir, "read the folder");
    for (struct dirent *e; st == MLA_OK && (errno = 0, e = readdir(d));) {
        if (!mla_ends_with(e->d_name, ".safetensors") || e->d_name[0] == '.') continue;
        char **name = mla_realloc(l->name, l->n + 1, sizeof *name), *copy = mla_strdup(e->d_name);
        if (name) l->name = name;
        if (name && copy)
            name[l->n++] = copy;
        else {
            mla_free(copy);
            st = mla_fail(err, MLA_ENOMEM, "list of %zu files", l->n + 1);
        }
    }
    if (st == MLA_OK && errno) st = mla_sys_fail(err, dir, "read the folder");
    closedir(d);
    if (l->n) qsort(l->name, l->n, sizeof *l->name, by_bytes);
    return st;
}

/* Without an index: model.safetensors, or the only *.safetensors there is. */
static mla_status choose_single(mla_ckpt *c, const mla_names *l, mla_err *err)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->name[i], SINGLE)) return add_shard(c, SINGLE, err);
    if (l->n == 1) return add_shard(c, l->name[0], err);
    if (l->n == 0) return mla_fail(err, MLA_EIO, "%s: holds neither " SINGLE " nor " INDEX, c->dir);
    return mla_fail(err, MLA_EFORMAT, "%s: %zu *.safetensors files and no " INDEX ": which are the model?", c->dir, l->n);
}

/* Keeps in l only the files that no shard is. */
static void keep_strays(const mla_ckpt *c, mla_names *l)
{
    size_t k = 0, s = 0;
    for (size_t i = 0; i < l->n; i++) { /* both sorted */
        while (s < c->nshard && strcmp(c->shard[s].name, l->name[i]) < 0) s++;
        if (s < c->nshard && !strcmp(c->shard[s].name, l->name[i]))
            mla_free(l->name[i]);
        else
            l->name[k++] = l->name[i];
    }
    l->n = k;
}

static mla_status open_folder(mla_ckpt *c, mla_err *err)
{
    struct stat sb;
    char *index = mla_path_join(c->dir, INDEX);
    if (!index) return mla_fail(err, MLA_ENOMEM, "path of " INDEX);
    mla_status st = list_safetensors(&c->stray, c->dir, err);
    if (st == MLA_OK && lstat(index, &sb) == 0) { /* lstat: an index that is a broken link is an error, not an absence */
        st = open_indexed(c, index, err);
    } else if (st == MLA_OK) {
        st = choose_single(c, &c->stray, err);
        if (st == MLA_OK) st = open_shards(c, err);
        if (st == MLA_OK) st = gather(c, err);
    }
    if (st == MLA_OK) keep_strays(c, &c->stray);
    mla_free(index);
    return st;
}

static mla_status open_file(mla_ckpt *c, const char *path, mla_err *err)
{
    const char *slash = strrchr(path, '/');
    c->dir = !slash ? mla_strdup(".") : slash == path ? mla_strdup("/") : mla_strndup(path, (size_t)(slash - path));
    if (!c->dir) return mla_fail(err, MLA_ENOMEM, "folder of %s", path);
    mla_status st = add_shard(c, slash ? slash + 1 : path, err);
    if (st == MLA_OK) st = mla_st_open(&c->shard[0].st, path, err);
    return st == MLA_OK ? gather(c, err) : st;
}

mla_status mla_ckpt_open(mla_ckpt **out, const char *dir, mla_err *err)
{
    mla_status st;
    mla_ckpt *c = mla_alloc(1, 1, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "checkpoint %s", dir);
    if (!mla_path_is_dir(dir)) {
        st = open_file(c, dir, err);
    } else {
        c->dir = mla_strdup(dir);
        st = c->dir ? open_folder(c, err) : mla_fail(err, MLA_ENOMEM, "path %s", dir);
    }
    if (st == MLA_OK)
        *out = c;
    else
        mla_ckpt_close(c);
    return st;
}

void mla_ckpt_close(mla_ckpt *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->nshard; i++) {
        mla_st_close(c->shard[i].st);
        mla_free(c->shard[i].name);
    }
    mla_free(c->shard);
    mla_free(c->at);
    mla_map_free(c->names);
    mla_names_free(&c->stray);
    mla_free(c->dir);
    mla_free(c);
}

const char *mla_ckpt_dir(const mla_ckpt *c) { return c->dir; }
size_t mla_ckpt_count(const mla_ckpt *c) { return c->n; }
const mla_tensor *mla_ckpt_at(const mla_ckpt *c, size_t i) { return i < c->n ? c->at[i].t : NULL; }
const char *mla_ckpt_shard_of(const mla_ckpt *c, size_t i) { return i < c->n ? c->shard[c->at[i].shard].name : NULL; }
size_t mla_ckpt_shard_count(const mla_ckpt *c) { return c->nshard; }
const char *mla_ckpt_shard_name(const mla_ckpt *c, size_t i) { return i < c->nshard ? c->shard[i].name : NULL; }
const mla_st *mla_ckpt_shard(const mla_ckpt *c, size_t i) { return i < c->nshard ? c->shard[i].st : NULL; }
size_t mla_ckpt_stray_count(const mla_ckpt *c) { return c->stray.n; }
const char *mla_ckpt_stray(const mla_ckpt *c, size_t i) { return i < c->stray.n ? c->stray.name[i] : NULL; }

const mla_tensor *mla_ckpt_find(const mla_ckpt *c, const char *name)
{
    size_t i;
    return mla_map_get(c->names, name, strlen(name), &i) ? c->at[i].t : NULL;
}

mla_status mla_ckpt_need(const mla_ckpt *c, const char *name, const mla_tensor **out, mla_err *err)
{
    /* An absent shard and a header that lacks a mapped tensor were refused when the folder was opened, each by its
     * own message; what is left is a name that nothing mentions. */
    *out = mla_ckpt_find(c, name);
    if (*out) return MLA_OK;
    if (c->indexed) return mla_fail(err, MLA_EFORMAT, "%s: not in the index of %s (%zu tensors in %zu shards)", name, c->dir, c->n, c->nshard);
    return mla_fail(err, MLA_EFORMAT, "%s: not in %s/%s (%zu tensors)", name, c->dir, c->shard[0].name, c->n);
}

bool mla_ckpt_present(const char *dir)
{
    mla_names l = {0};
    mla_err err = {0};
    bool any = false;
    if (mla_dir_list(&l, dir, &err) == MLA_OK)
        for (size_t i = 0; i < l.n; i++) any = any || mla_ends_with(l.name[i], ".safetensors") || mla_ends_with(l.name[i], ".safetensors.index.json");
    mla_names_free(&l);
    return any;
}
