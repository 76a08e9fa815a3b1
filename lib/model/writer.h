/* The pieces of an output checkpoint: the base's files put beside the new ones, the index over all, the config.
 *
 * The caller owns the order: it makes the folder (OUT.partial), calls these, writes its own tensor files and the receipt,
 * syncs and renames. Every file written here is written whole or not at all (temp, fsync, rename), so a broken run can
 * be repeated into the same folder. Same inputs, same bytes. */
#ifndef MLA_MODEL_WRITER_H
#define MLA_MODEL_WRITER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "model/model.h"

typedef struct {
    mla_dtype dtype; /* GGUF bases only: MLA_BF16 or MLA_F32 for every logical tensor; 0 (zeroed struct) = MLA_BF16 */
    mla_log *log;    /* progress and notes; NULL = silent */
} mla_writer_opts;

typedef struct {
    size_t linked, cloned, copied, written; /* files, by how they came */
    size_t skipped;                         /* stale weight files of the base that no index entry names */
} mla_placed;

/* Puts the base's files into the existing folder `out`.
 * Folder base: every file of it, unchanged, except those that are regenerated (model.safetensors.index.json,
 * config.json, mla_receipt.json) and *.safetensors that its index does not name.
 * GGUF base: writes model.safetensors (logical tensors under their Hugging Face names), tokenizer.json,
 * tokenizer_config.json and generation_config.json.
 * opts and placed may be NULL. `out` must not be the base's own folder. */
MLA_CHECKED mla_status mla_writer_place_base(const mla_model *base, const char *out, const mla_writer_opts *opts, mla_placed *placed,
                                             mla_err *err);

/* The base's files without its weights: for an output that brings weights of its own. Folder base: every file but weights
 * (*.safetensors), their quantization's hf_quant_config.json and what is regenerated; GGUF base: tokenizer and generation settings. */
MLA_CHECKED mla_status mla_writer_place_texts(const mla_model *base, const char *out, const mla_writer_opts *opts, mla_placed *placed,
                                              mla_err *err);

/* out/model.safetensors.index.json over the n files named, as mla_writer_index writes it. */
MLA_CHECKED mla_status mla_writer_index_of(const char *out, const char *const *name, size_t n, mla_err *err);

/* Whether a file of this name is made anew for the output and not carried over. */
bool mla_writer_regenerates(const char *name);

/* Writes out/model.safetensors.index.json over the base's weight files and the n added ones (names within `out`), as
 * they are there: weight_map sorted by name, metadata.total_size = sum of tensor bytes. A tensor in two files is refused.
 * A name that is among the base's files, too, is taken once. `out` may be the base's own folder (files added to it). */
MLA_CHECKED mla_status mla_writer_index(const mla_model *base, const char *out, const char *const *added, size_t n, mla_err *err);

/* The output's config.json as a new document: the base's own (a GGUF base: made from its metadata), with
 * architectures[0] and the "mla" block (docs/format-factors.md) of retrofit `r` set; r == NULL keeps the architecture.
 * The quantization config of a quantized base stays, and names the factor modules of r among those left plain, in its
 * method's own spelling (ignore, modules_to_not_convert, exclude_modules, dynamic, extra_config). Caller edits (receipt digest, KV scheme), writes with mla_json_write and frees. Ranks outside the model, a base that is
 * a retrofit already, or a GGUF rope that config.json cannot express are refused. */
MLA_CHECKED mla_status mla_writer_config(mla_json **doc, const mla_model *base, const mla_retrofit_config *r, const mla_writer_opts *opts,
                                         mla_err *err);
/* The object of a config document that holds the text model's keys: text_config where there is one, else the root. */
mla_jv *mla_writer_text_config(const mla_json *doc);
#endif
