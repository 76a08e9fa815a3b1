/* Unpacking into OUT.partial, keyed by the bundle's digest; files that a killed run left whole are kept. */
#include "retrofit/build/unpack.h"

#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "retrofit/build/workdir.h"

static bool done_before(const char *path, const mla_receipt_file *r)
{
    mla_err ignored;
    mla_file_digest d = {.path = path};
    return mla_path_exists(path) && mla_sha256_files(&d, 1, NULL, NULL, &ignored) == MLA_OK && d.size == r->size &&
           memcmp(d.digest, r->sha256, 32) == 0;
}

static mla_status place(const mla_bundle *b, size_t i, const mla_workdir *w, mla_pool *pool, mla_progress *prog, mla_err *err)
{
    const mla_receipt_file *r = &mla_bundle_manifest(b)->file[i];
    char *path = mla_path_join(w->partial, r->name);
    if (!path) return mla_fail(err, MLA_ENOMEM, "path of %s", r->name);
    mla_status st = MLA_OK;
    char *slash = strrchr(path, '/');
    *slash = 0;
    st = mla_dir_make(path, err);
    *slash = '/';
    if (st == MLA_OK && w->resumed && done_before(path, r)) mla_progress_add(prog, (double)r->size / 1048576.0);
    else if (st == MLA_OK) st = mla_bundle_extract(b, i, path, pool, prog, err);
    mla_free(path);
    return st;
}

mla_status mla_unpack(const mla_bundle *b, const char *out, mla_pool *pool, mla_log *log, mla_err *err)
{
    mla_workdir w;
    mla_bundle_sum sum;
    mla_status st = mla_workdir_open(&w, out, mla_bundle_digest(b), log, err);
    if (st != MLA_OK) return st;
    st = mla_dir_sweep(w.partial, err);
    mla_bundle_totals(b, &sum);
    mla_progress prog = mla_progress_begin(log, "unpacking", (double)sum.bytes / 1048576.0, "MiB");
    for (size_t i = 0; st == MLA_OK && i < mla_bundle_manifest(b)->n; i++) st = place(b, i, &w, pool, &prog, err);
    mla_progress_end(&prog);
    if (st == MLA_OK) st = mla_workdir_finish(&w, err);
    mla_workdir_close(&w);
    return st;
}

mla_status mla_unpack_tensors(const mla_bundle *b, const char *const *name, size_t n, const char *out, mla_pool *pool, mla_err *err)
{
    if (mla_path_exists(out)) return mla_fail(err, MLA_EINVAL, "%s exists: choose another output or remove it", out);
    mla_tensor *t = mla_alloc(n, 1, sizeof *t);
    mla_status st = t ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%zu tensors", n);
    size_t got = 0;
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        const mla_tensor *found = mla_bundle_tensor_find(b, name[i]);
        if (!found) {
            st = mla_fail(err, MLA_EINVAL, "%s: the bundle has no such tensor", name[i]);
            break;
        }
        t[i] = *found;
        void *data = mla_alloc_raw(found->nbytes, 1, 1);
        t[i].data = data;
        got = i + 1;
        st = data ? mla_bundle_tensor_read(b, found, data, pool, err) : mla_fail(err, MLA_ENOMEM, "%s: %zu bytes", name[i], found->nbytes);
    }
    unsigned char digest[32];
    if (st == MLA_OK) st = mla_st_write(out, t, n, digest, err);
    for (size_t i = 0; i < got; i++) mla_free((void *)(uintptr_t)t[i].data);
    mla_free(t);
    return st;
}
