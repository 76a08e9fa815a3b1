/* A stored matrix in any weight format, as the rest of the toolkit sees it: W [out, in], read as rows of f32.
 *
 * An mla_qmat is a small value of borrowed views: it owns nothing, copies freely and dies with the container (file
 * mapping) of its parts. One mla_qformat row per weight format says how the format is recognised, described and
 * decoded; quant.c holds the table, so a new format is one file with one row and no change to any reader.
 * Everything here is read-only and safe to call from several threads at once. */
#ifndef MLA_QUANT_QUANT_H
#define MLA_QUANT_QUANT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/gguf.h"
#include "tensor/tensor.h"

#define MLA_QMAT_PARTS 6 /* most stored tensors one matrix is made of */

typedef struct mla_qmat mla_qmat;

/* Where a format looks for the parts of a module ("model.layers.0.mlp.up_proj" + ".weight_scale"). */
typedef struct {
    const mla_tensor *(*find)(const void *ctx, const char *name); /* NULL when the container lacks the name */
    const void *ctx;
} mla_qsource;

typedef struct {
    const char *family; /* "dense", "gguf" */
    /* True when the stored parts of `module` are this format's; NULL: never found by module name. */
    bool (*detect)(const mla_qsource *src, const char *module);
    /* Fills *out and checks every part's type and shape against the others. */
    mla_status (*describe)(mla_qmat *out, const mla_qsource *src, const char *module, mla_err *err);
    /* Rows [row0, row0 + nrows) into dst [nrows, in]; the range was checked. */
    mla_status (*rows)(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err);
} mla_qformat;

struct mla_qmat {
    const char *name;   /* of the main stored tensor, borrowed: for messages */
    const char *format; /* as printed: "BF16", "GGUF Q4_1"; static */
    const mla_qformat *ops;
    size_t out, in;     /* W [out, in]; a 1-D tensor is one row: out == 1 */
    mla_tensor part[MLA_QMAT_PARTS]; /* part[0] holds the codes or the values; a format's file names the others */
    size_t nparts;
    uint32_t kind;      /* the format's own selector, e.g. the ggml type */
};

/* A dense tensor of dtype F32, F16, BF16 or F64, 2-D or 1-D (one row). Refused (EUNSUPPORTED) otherwise, by name. */
MLA_CHECKED mla_status mla_qmat_dense(mla_qmat *out, const mla_tensor *t, mla_err *err);

/* A GGUF tensor, 2-D (in = ne[0], out = ne[1]) or 1-D (one row), of any type that quant/gguf_blocks.h decodes. */
MLA_CHECKED mla_status mla_qmat_gguf(mla_qmat *out, const mla_gguf_tensor *t, mla_err *err);

/* The matrix of a module by its name without ".weight": the first format of the table that recognises its parts.
 * EFORMAT when none does, naming the module. */
MLA_CHECKED mla_status mla_qmat_open(mla_qmat *out, const mla_qsource *src, const char *module, mla_err *err);

/* Decodes rows [row0, row0 + nrows) into dst [nrows, in], exactly as the format defines each value in f32 (F64 is
 * rounded to f32). EINVAL when the range leaves the matrix. Non-finite scales or values come out as stored. */
MLA_CHECKED mla_status mla_qmat_rows_f32(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err);

size_t mla_qmat_bytes(const mla_qmat *m); /* stored bytes of all parts */

/* Counts decoded values that are NaN or infinite, a row at a time; *first_row (may be NULL) is the first row with
 * one, or m->out. A matrix to be trusted counts 0. */
MLA_CHECKED mla_status mla_qmat_nonfinite(const mla_qmat *m, size_t *count, size_t *first_row, mla_err *err);

/* "GGUF Q4_1 [576, 1536]" into buf; returns buf. */
const char *mla_qmat_text(const mla_qmat *m, char *buf, size_t cap);

/* The table, for listings: row i, or NULL past its end. */
const mla_qformat *mla_qformat_at(size_t i);
#endif
