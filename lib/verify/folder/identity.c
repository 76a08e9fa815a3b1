/* Digests of a model's files. */
#include "verify/folder/identity.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/sha256.h"

#define RECEIPT_MAX ((size_t)256 << 20)

static mla_status read_receipt(mla_manifest *m, const char *path, mla_err *err)
{
    mla_json *d = NULL;
    mla_status st = mla_json_read(&d, path, RECEIPT_MAX, err);
    if (st == MLA_OK) {
        st = mla_manifest_from_json(m, mla_json_root(d), err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", path);
    }
    mla_json_free(d);
    return st;
}

/* The digest over those files of the manifest that hold the model's tensors. */
static mla_status weights_digest(mla_identity *id, const mla_manifest *all, const mla_ckpt *ck, mla_err *err)
{
    mla_manifest part = {.file = mla_alloc(all->n, 1, sizeof *part.file)}; /* borrows the names: freed by hand */
    unsigned char root[32];
    if (!part.file) return mla_fail(err, MLA_ENOMEM, "%zu files", all->n);
    for (size_t i = 0; i < all->n; i++)
        for (size_t j = 0; j < mla_ckpt_shard_count(ck); j++)
            if (!strcmp(all->file[i].name, mla_ckpt_shard_name(ck, j))) part.file[part.n++] = all->file[i];
    mla_status st = MLA_OK;
    if (part.n == 1) memcpy(root, part.file[0].sha256, 32);
    else st = mla_manifest_root(&part, root, err);
    if (st == MLA_OK) mla_hex(root, 32, id->weights_sha256);
    mla_free(part.file);
    return st;
}

static mla_status of_folder(mla_identity *id, const mla_model *m, mla_pool *pool, mla_log *log, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    const char *dir = mla_ckpt_dir(mla_model_ckpt(m));
    mla_manifest all = {0};
    unsigned char root[32];
    char *path = mla_path_join(dir, MLA_RECEIPT_NAME);
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s", dir);
    if (st == MLA_OK && mla_path_exists(path)) {
        id->digest_source = "receipt";
        st = read_receipt(&all, path, err);
    } else if (st == MLA_OK) {
        st = mla_manifest_scan(&all, dir, SKIP, pool, log, err);
    }
    if (st == MLA_OK) st = mla_manifest_root(&all, root, err);
    if (st == MLA_OK) {
        char hex[65];
        mla_hex(root, 32, hex);
        (void)snprintf(id->root_digest, sizeof id->root_digest, "sha256:%s", hex);
        st = weights_digest(id, &all, mla_model_ckpt(m), err);
    }
    mla_manifest_free(&all);
    mla_free(path);
    return st;
}

mla_status mla_identity_of(mla_identity *out, const mla_model *m, mla_pool *pool, mla_log *log, mla_err *err)
{
    mla_identity id = {.digest_source = "files"};
    mla_status st;
    if (mla_model_ckpt(m)) {
        st = of_folder(&id, m, pool, log, err);
    } else {
        mla_file_digest f = {.path = mla_model_path(m)};
        st = mla_sha256_files(&f, 1, pool, NULL, err);
        mla_hex(f.digest, 32, id.weights_sha256);
        (void)snprintf(id.root_digest, sizeof id.root_digest, "sha256:%s", id.weights_sha256);
    }
    if (st == MLA_OK) st = mla_model_unchanged(m, err); /* what was hashed is what runs */
    mla_tok *tok = NULL;
    if (st == MLA_OK) st = mla_model_tokenizer_if_any(m, &tok, NULL, err);
    if (tok) {
        unsigned char d[32];
        mla_tok_sha256(tok, d);
        mla_hex(d, 32, id.tokenizer_sha256);
    }
    mla_tok_free(tok);
    *out = id;
    return st;
}

void mla_identity_put(mla_jv *doc, const char *key, const mla_identity *id, const mla_model *m)
{
    const mla_config *c = mla_model_config(m);
    const char *path = mla_model_path(m);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t b = n;
    while (b > 0 && path[b - 1] != '/') b--;
    char *name = mla_strndup(path + b, n - b);
    mla_jv *o = mla_jv_set_obj(doc, key);
    if (name) mla_jv_set_str(o, "name", mla_utf8_valid(name, strlen(name)) && name[0] != '.' ? name : "model");
    else mla_jv_lost(o);
    mla_free(name);
    mla_jv_set_str(o, "architecture", c->architecture);
    mla_jv_set_str(o, "root_digest", id->root_digest);
    mla_jv_set_str(o, "digest_source", id->digest_source);
    mla_jv_set_str(o, "weights_sha256", id->weights_sha256);
    if (id->tokenizer_sha256[0]) mla_jv_set_str(o, "tokenizer_sha256", id->tokenizer_sha256);
    if (c->mla.layout == MLA_LAYOUT_NONE) return;
    mla_jv *r = mla_jv_set_obj(o, "mla");
    mla_jv_set_str(r, "layout", mla_layout_name(c->mla.layout));
    mla_jv_set_size(r, "groups", c->mla.groups);
    mla_jv *ranks = mla_jv_set_arr(r, "rank");
    for (size_t i = 0; i < c->layers; i++)
        if (c->layer_kind[i] == MLA_LAYER_FULL) mla_jv_add_size(ranks, c->mla.rank[i]);
}
