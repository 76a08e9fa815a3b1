/* What is inside a file or folder, from headers alone: checkpoint folders, .safetensors, GGUF, an index, config.json,
 * and the toolkit's own receipts, references, statistics, token files and reports.
 *
 * One JSON document ("mla-inspect/1", docs/reports.md) holds everything; the table for people is written from it. Tensor data is
 * not read, except single values that are scales. Time and memory grow with the headers, not with the weights. */
#ifndef MLA_VERIFY_INSPECT_H
#define MLA_VERIFY_INSPECT_H
#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"
#include "io/json.h"

#define MLA_INSPECT_SCHEMA "mla-inspect/1"

/* Opens path, whatever it is, and describes it. A file that its strict reader refuses is refused here with the same
 * line; a well-formed config.json of an unknown architecture is a note, not an error. Caller frees *out. */
MLA_CHECKED mla_status mla_inspect(mla_json **out, const char *path, mla_err *err);

typedef struct {
    bool tensors;  /* one line per tensor */
    bool metadata; /* one line per metadata entry */
} mla_inspect_text_opts;
/* The document as a table for people. Names from the file are printed with control characters replaced. */
void mla_inspect_text(mla_str *out, const mla_jv *doc, const mla_inspect_text_opts *o);
#endif
