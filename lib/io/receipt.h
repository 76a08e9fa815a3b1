/* Receipts: what a folder must contain, byte for byte. docs/format-receipt.md describes the JSON.
 *
 * The root digest is the OMS one: SHA-256 over the concatenated raw sha256 digests of the files in code-point order of
 * their names (the subject digest that model_signing puts into its statement). No clock, host or absolute path. */
#ifndef MLA_IO_RECEIPT_H
#define MLA_IO_RECEIPT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/json.h"

#define MLA_RECEIPT_NAME "mla_receipt.json"

typedef struct {
    char *name;               /* relative, '/'-separated */
    uint64_t size;
    unsigned char sha256[32];
    bool has_git;             /* files up to 10 MiB carry the git blob id, too */
    unsigned char git_sha1[20];
} mla_receipt_file;

typedef struct {
    mla_receipt_file *file;   /* sorted by name */
    size_t n;
} mla_manifest;

/* Hashes every file of dir except those in skip (NULL-terminated list of relative names, may be NULL) and .git*.
 * A file name that is not UTF-8 or has control characters is refused. */
MLA_CHECKED mla_status mla_manifest_scan(mla_manifest *out, const char *dir, const char *const *skip, mla_pool *pool,
                                         mla_log *log, mla_err *err);
void mla_manifest_free(mla_manifest *m); /* a zeroed struct is fine */
MLA_CHECKED mla_status mla_manifest_root(const mla_manifest *m, unsigned char root[32], mla_err *err);
/* files: [{name,size,sha256,git_blob_sha1?}] under key "files" of obj, and "root_digest": "sha256:<hex>". */
MLA_CHECKED mla_status mla_manifest_to_json(const mla_manifest *m, mla_jv *obj, mla_err *err);
/* Refuses names that leave the folder, unsorted or duplicate names, and a root_digest that the files do not give. */
MLA_CHECKED mla_status mla_manifest_from_json(mla_manifest *out, const mla_jv *obj, mla_err *err);

/* Writes obj as a receipt, sealed: "receipt_sha256" is the sha256 of the whole text with those 64 digits as zeros, so that a
 * flip anywhere in the receipt shows. Atomic. */
MLA_CHECKED mla_status mla_receipt_write_sealed(const char *path, mla_jv *obj, mla_err *err);

/* Differences between what is recorded and what is there: one line each, in name order. Starts as a zeroed struct. */
typedef struct {
    mla_str text;             /* one finding a line: "config.json: sha256 expected ..., found ..." */
    size_t n;
} mla_findings;
void mla_manifest_diff(mla_findings *f, const mla_manifest *recorded, const mla_manifest *found);
void mla_findings_add(mla_findings *f, const char *fmt, ...) MLA_PRINTF(2, 3);
void mla_findings_free(mla_findings *f);
#endif
