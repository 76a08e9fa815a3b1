/* Grafting: factors beside a base, as a complete checkpoint folder. The base's shards are linked, never rewritten. */
#ifndef MLA_RETROFIT_GRAFT_H
#define MLA_RETROFIT_GRAFT_H
#include <stdbool.h>

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "model/model.h"
#include "retrofit/solve/factorize.h"

#define MLA_FACTORS_LAYOUT "mla_layout" /* metadata: "deepseek" where solve made the factors for that export */
#define MLA_FACTORS_REFINED "mla_refined" /* metadata of a factors file whose layers were moved after solving: how */
#define MLA_FACTORS_FILE "mla_factors-00001-of-00001.safetensors"

/* Writes the factors of all layers to `path`; digest gets the file's sha256. Tensor names: docs/format-factors.md. */
MLA_CHECKED mla_status mla_factors_write(const char *path, const mla_model *base, const mla_factorization *f, unsigned char digest[32], mla_err *err);
/* "<prefix>layers.N.self_attn.mla.<part>", the prefix being that of the base's own tensors ("model." for a GGUF base). */
MLA_CHECKED mla_status mla_factors_name(mla_str *name, const mla_model *base, size_t layer, const char *part, mla_err *err);

/* How exports store weights of their own when nothing was asked: bf16 for a base that is stored so, else f32. */
mla_dtype mla_graft_dtype(const mla_model *base);
/* Fills dir (existing) with the base's files, the factors, config.json and the index. old_names: architecture and keys in
 * the older spelling (docs/format-factors.md). */
MLA_CHECKED mla_status mla_graft(const char *dir, const mla_model *base, const mla_factorization *f, bool old_names, mla_log *log, mla_err *err);
#endif
