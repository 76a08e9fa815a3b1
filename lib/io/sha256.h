/* Digests over OpenSSL (sha256.c is its only home): SHA-256 of bytes, streams and whole files, git blob ids.
 *
 * Many files are hashed at once by mla_sha256_files: two streams per core are interleaved with SHA-NI where the CPU
 * has it, since one stream leaves half of the unit idle. */
#ifndef MLA_IO_SHA256_H
#define MLA_IO_SHA256_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"

typedef struct mla_sha256 mla_sha256;
MLA_CHECKED mla_status mla_sha256_new(mla_sha256 **out, mla_err *err);
void mla_sha256_update(mla_sha256 *h, const void *data, size_t n);
/* Digest of what was fed so far; more may follow. Neither this nor feeding can fail. */
void mla_sha256_get(const mla_sha256 *h, unsigned char digest[32]);
void mla_sha256_free(mla_sha256 *h);

void mla_sha256_bytes(const void *data, size_t n, unsigned char digest[32]);
/* Lowercase hex with NUL. */
void mla_hex(const unsigned char *bytes, size_t n, char *out /* 2n+1 */);

/* SHA-1 of "blob <size>\0" + content: the id git and the Hub list for small files. */
void mla_git_blob_sha1(const void *data, size_t n, unsigned char digest[20]);

typedef struct {
    const char *path;          /* in */
    unsigned char digest[32];  /* out */
    uint64_t size;             /* out */
} mla_file_digest;
/* Digests of n files, any order of work, results independent of threads. prog (may be NULL) counts MiB. */
MLA_CHECKED mla_status mla_sha256_files(mla_file_digest *f, size_t n, mla_pool *pool, mla_progress *prog, mla_err *err);
#endif
