/* A checkpoint folder in one compressed file, readable tensor by tensor (docs/format-bundle.md).
 *
 * Every tensor of a safetensors shard, every header and every other file is a part; parts are cut into chunks and chunks are
 * zstd frames of byte planes (planes.h), so that any tensor is read without its neighbours and all cores work on one file.
 * Packing and unpacking give back the same bytes; the index holds the manifest of the folder (receipt.h). */
#ifndef MLA_IO_BUNDLE_H
#define MLA_IO_BUNDLE_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/receipt.h"
#include "tensor/tensor.h"

#define MLA_BUNDLE_FORMAT "mla-bundle/1"
#define MLA_BUNDLE_SUFFIX ".mlapack"

typedef struct {
    size_t files;
    uint64_t bytes, stored;             /* of the folder, of the bundle */
    uint64_t float_bytes, float_stored; /* the part of both that is 16-bit floating point */
} mla_bundle_sum;

/* Packs dir into the new file path, atomically; same folder and zstd version, same bytes. A shard that is no valid safetensors
 * file, or any file that changes meanwhile, is refused by name. */
MLA_CHECKED mla_status mla_bundle_write(const char *path, const char *dir, mla_pool *pool, mla_log *log, mla_bundle_sum *sum, mla_err *err);

typedef struct mla_bundle mla_bundle;
/* Maps the file and checks the index as a whole: digest, names, sizes, every frame within the file and in its place. */
MLA_CHECKED mla_status mla_bundle_open(mla_bundle **out, const char *path, mla_err *err);
void mla_bundle_close(mla_bundle *b); /* NULL is fine */
const mla_manifest *mla_bundle_manifest(const mla_bundle *b);
void mla_bundle_totals(const mla_bundle *b, mla_bundle_sum *out);
const unsigned char *mla_bundle_digest(const mla_bundle *b); /* 32 bytes: the sha256 of the index, which pins all content */

/* data == NULL. A name may repeat across folders of shards: the first is found. NULL when absent. */
const mla_tensor *mla_bundle_tensor_find(const mla_bundle *b, const char *name);
/* The bytes of one tensor (t from the call above) into dst of t->nbytes. Reads its frames alone. */
MLA_CHECKED mla_status mla_bundle_tensor_read(const mla_bundle *b, const mla_tensor *t, void *dst, mla_pool *pool, mla_err *err);

/* File i of the manifest, written to path atomically and only if its sha256 is the recorded one. */
MLA_CHECKED mla_status mla_bundle_extract(const mla_bundle *b, size_t i, const char *path, mla_pool *pool, mla_progress *prog, mla_err *err);
#endif
