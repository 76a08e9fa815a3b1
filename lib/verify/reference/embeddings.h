/* Prompts that are no token ids: embeddings as a vision tower and the embedding table give them, with positions in three
 * dimensions. A safetensors file holds them: NAME.inputs_embeds (T, D), any float type, and NAME.position_ids (3, T), I64 or
 * I32, rows T, H, W (docs/format-reference.md). */
#ifndef MLA_VERIFY_EMBEDDINGS_H
#define MLA_VERIFY_EMBEDDINGS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct { /* zeroed: none */
    char *name, *file;   /* of the prompt; last part of the file's path */
    char sha256[65];     /* of the file */
    float *embeds;       /* (n, width) */
    int32_t *pos3;       /* (3, n) */
    size_t n, width;
} mla_embedded;
void mla_embedded_free(mla_embedded *e);
MLA_CHECKED mla_status mla_embedded_copy(mla_embedded *out, const mla_embedded *e, mla_err *err);

/* The prompt `name` of a file, or, name == NULL, all of them in name order: *out (*n), freed one by one and with mla_free.
 * MLA_EFORMAT: tensors missing or of another shape, values not finite, positions outside 0..2^31-2; sha256 (hex, NULL: any) that
 * is not the file's. */
MLA_CHECKED mla_status mla_embedded_read(mla_embedded **out, size_t *n, const char *path, const char *name, const char *sha256, mla_err *err);
#endif
