/* Digests first, then the sums in their order. */
#include "retrofit/stats/merge.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"
#include "retrofit/stats/stats_file.h"

static int by_digest(const void *a, const void *b)
{
    const mla_file_digest *x = a, *y = b;
    return memcmp(x->digest, y->digest, sizeof x->digest);
}

mla_status mla_stats_read_all(mla_stats *out, const char *const *path, size_t n, const mla_config *c, mla_layout layout, mla_pool *pool, mla_err *err)
{
    mla_file_digest *f = mla_alloc(n, 1, sizeof *f);
    if (!f) return mla_fail(err, MLA_ENOMEM, "%zu statistics files", n);
    for (size_t i = 0; i < n; i++) f[i].path = path[i];
    mla_status st = mla_sha256_files(f, n, pool, NULL, err);
    if (st == MLA_OK) qsort(f, n, sizeof *f, by_digest);
    for (size_t i = 1; st == MLA_OK && i < n; i++)
        if (!by_digest(&f[i - 1], &f[i]))
            st = mla_fail(err, MLA_EINVAL, "%s and %s are the same statistics: their text would count twice", f[i - 1].path, f[i].path);
    if (st == MLA_OK) st = mla_stats_new(out, c, layout, NULL, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        mla_stats s = {0};
        st = mla_stats_read(&s, f[i].path, err);
        if (st == MLA_OK && (st = mla_stats_merge(out, &s, err)) != MLA_OK) st = mla_wrap(err, "%s", f[i].path);
        mla_stats_free(&s);
    }
    mla_free(f);
    if (st != MLA_OK) mla_stats_free(out);
    return st;
}
