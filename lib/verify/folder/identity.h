/* Which model a report speaks of: digests of its files, never a path of this machine. */
#ifndef MLA_VERIFY_IDENTITY_H
#define MLA_VERIFY_IDENTITY_H
#include <stdbool.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/json.h"
#include "model/model.h"

typedef struct {
    char root_digest[80];      /* "sha256:<hex>": of the folder without its receipt, or of the one GGUF file */
    const char *digest_source; /* "receipt" (as recorded there) or "files" (hashed now); static */
    char weights_sha256[65];   /* of the weight file; of several: the root digest over the weight files */
    char tokenizer_sha256[65]; /* "" when there is none */
} mla_identity;

/* Reads the receipt, or hashes every file of the folder. */
MLA_CHECKED mla_status mla_identity_of(mla_identity *out, const mla_model *m, mla_pool *pool, mla_log *log, mla_err *err);
/* key: {name, architecture, root_digest, digest_source, weights_sha256, tokenizer_sha256, mla{...}}. */
void mla_identity_put(mla_jv *doc, const char *key, const mla_identity *id, const mla_model *m);
#endif
