/* Bundles (.mlapack): an accepted one gives every tensor and file it names, or refuses it with one line.
 *
 * An input that begins with the magic is a bundle as it stands. Any other is the index as JSON, a NUL, and the bytes of the
 * frames; root digest, tail and its sha256 are made right around them, so that mutations get behind the checksums. */
#include "io/bundle.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "fuzz.h"
#include "io/bundle_impl.h"
#include "io/sha256.h"
#include "io/zst.h"

#define READ_MAX ((size_t)1 << 22) /* decoded bytes per tensor that are still read */

static const char *assembled(const uint8_t *data, size_t n)
{
    static unsigned char file[8 * FUZZ_MAX];
    mla_err err;
    mla_str index = MLA_STR_MAX(6 * FUZZ_MAX);
    mla_bundle_tail t = {0};
    size_t text = strnlen((const char *)data, n), frames = text < n ? n - text - 1 : 0, stored;
    mla_json *d = fuzz_json(data, text);
    if (!d) return NULL;
    fuzz_fix_root(mla_json_root(d));
    if (mla_json_print(&index, mla_json_root(d), false, &err) != MLA_OK) fuzz_broken(err.msg);
    mla_json_free(d);
    memcpy(file, MLA_BUNDLE_MAGIC, 8);
    memcpy(file + 8, data + n - frames, frames);
    t.at = 8 + frames;
    t.bytes = index.len;
    if (mla_zst_pack(file + t.at, sizeof file - t.at - sizeof t, &stored, index.s, index.len, 1, &err) != MLA_OK) fuzz_broken(err.msg);
    t.stored = stored;
    mla_sha256_bytes(index.s, index.len, t.sha256);
    memcpy(t.magic, MLA_BUNDLE_MAGIC, 8);
    memcpy(file + t.at + t.stored, &t, sizeof t);
    mla_str_free(&index);
    return fuzz_file(file, (size_t)(t.at + t.stored + sizeof t));
}

static void read_all(const mla_bundle *b)
{
    static mla_pool *pool;
    mla_err err;
    char path[128];
    mla_bundle_sum sum;
    if (!pool && mla_pool_new(&pool, 1, &err) != MLA_OK) fuzz_broken(err.msg);
    mla_bundle_totals(b, &sum);
    const mla_tensor *t = mla_bundle_tensor_find(b, "w");
    if (t && t->nbytes <= READ_MAX) {
        void *p = mla_alloc(t->nbytes, 1, 1);
        if (!p) fuzz_broken("no memory for a tensor");
        mla_status st = mla_bundle_tensor_read(b, t, p, pool, &err);
        if (st != MLA_OK) fuzz_refused(st, &err);
        mla_free(p);
    }
    (void)snprintf(path, sizeof path, "%s/file", fuzz_folder());
    for (size_t i = 0; i < sum.files && i < 4; i++) {
        if (mla_bundle_manifest(b)->file[i].size > READ_MAX) continue;
        mla_status st = mla_bundle_extract(b, i, path, pool, NULL, &err);
        if (st != MLA_OK) fuzz_refused(st, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_bundle *b;
    if (n > FUZZ_MAX) return 0;
    const char *path = n >= 8 && !memcmp(data, MLA_BUNDLE_MAGIC, 8) ? fuzz_file(data, n) : assembled(data, n);
    if (!path) return 0;
    mla_status st = mla_bundle_open(&b, path, &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    read_all(b);
    mla_bundle_close(b);
    return 0;
}
