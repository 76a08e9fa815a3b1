/* Private to the bundle: parts, and the batches of chunks that all workers share. */
#ifndef MLA_IO_BUNDLE_IMPL_H
#define MLA_IO_BUNDLE_IMPL_H
#include "io/bundle.h"
#include "io/planes.h"

#define MLA_BUNDLE_MAGIC "MLABNDL1"
#define MLA_BUNDLE_CHUNK ((size_t)1 << 20)
#define MLA_BUNDLE_INDEX_MAX ((size_t)1 << 29)
#define MLA_BUNDLE_CHUNK_MAX ((size_t)1 << 26)

typedef struct { /* the last 64 bytes of the file, little-endian */
    uint64_t at, stored, bytes;    /* the frame of the index JSON */
    unsigned char sha256[32];      /* of the JSON */
    char magic[8];
} mla_bundle_tail;

typedef struct {
    mla_planes kind;
    size_t bytes, at;   /* decoded; position of the first frame */
    size_t stored;      /* all frames */
    uint32_t *frame;    /* mla_planes_count sizes per chunk */
    size_t frames;
    mla_tensor tensor;  /* name NULL: no tensor; the name is owned */
} mla_bundle_part;

typedef struct {
    mla_bundle_part *part;
    size_t n;
} mla_bundle_file;

void mla_bundle_files_free(mla_bundle_file *f, size_t n);

/* Work on chunks: up to `slots` of them in flight, each with its own buffers. */
typedef struct {
    mla_planes kind;
    const unsigned char *in;
    size_t n, stored;            /* decoded bytes; bytes of all frames */
    size_t size[MLA_PLANES_MAX]; /* of each frame */
    unsigned char *out, *own, *scratch; /* out: own, or the caller's memory */
    mla_status st;
    mla_err err;
} mla_chunk;

typedef struct {
    mla_chunk *slot;
    size_t slots, used;
    mla_pool *pool;
} mla_batch;
MLA_CHECKED mla_status mla_batch_new(mla_batch *b, mla_pool *pool, size_t chunk, mla_err *err);
void mla_batch_free(mla_batch *b);
/* Runs the used slots, in parallel; the error of the first failing chunk, in their order. */
MLA_CHECKED mla_status mla_batch_run(mla_batch *b, bool pack, mla_err *err);
#endif
