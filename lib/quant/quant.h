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
typedef struct mla_qconfig mla_qconfig; /* quant/qconfig.h: what config.json says of each module */
typedef struct mla_qscheme mla_qscheme; /* quant/qconfig.h: what it says of one */

typedef enum { /* how the parts of a matrix are laid out; docs/weight-formats.md has one line for each */
    MLA_QL_DENSE, MLA_QL_GGUF, MLA_QL_CT_PACK, MLA_QL_INT8, MLA_QL_FP8, MLA_QL_NVFP4_CT, MLA_QL_NVFP4_MODELOPT,
    MLA_QL_MXFP4, MLA_QL_AWQ, MLA_QL_GPTQ, MLA_QL_EXL3,
    MLA_QL_N
} mla_qlayout;

/* Where a format looks for the parts of a module ("model.layers.0.mlp.up_proj" + ".weight_scale"). */
typedef struct {
    const mla_tensor *(*find)(const void *ctx, const char *name); /* NULL when the container lacks the name */
    const void *ctx;
} mla_qsource;

typedef struct {
    const char *family; /* "dense", "gguf", "compressed-tensors pack-quantized", ... */
    mla_qlayout layout;
    /* True when the stored parts of `module` are this format's; NULL: never found by module name. */
    bool (*detect)(const mla_qsource *src, const char *module);
    /* Fills *out and checks every part's type and shape against the others, and against `want` when it is there. */
    mla_status (*describe)(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qscheme *want, mla_err *err);
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
    unsigned bits;      /* of a code, rounded up; 0 for dense and GGUF */
    size_t group_out, group_in; /* outputs and inputs that share a scale (before any g_idx); 0: not by groups */
    size_t row_block;   /* rows decode fastest in aligned runs of this many (EXL3: 128, which one row costs, too); >= 1 */
    uint32_t scale_parts; /* bit i: part[i] holds scales */
};

/* A dense tensor of dtype F32, F16, BF16 or F64, 2-D or 1-D (one row). Refused (EUNSUPPORTED) otherwise, by name. */
MLA_CHECKED mla_status mla_qmat_dense(mla_qmat *out, const mla_tensor *t, mla_err *err);

/* A GGUF tensor, 2-D (in = ne[0], out = ne[1]) or 1-D (one row), of any type that quant/gguf_blocks.h decodes. */
MLA_CHECKED mla_status mla_qmat_gguf(mla_qmat *out, const mla_gguf_tensor *t, mla_err *err);

/* The matrix of a module by its name without ".weight", from its tensors alone: the format of the table that
 * recognises its parts. EFORMAT when none does or when two do, naming the module. What tensors cannot tell stays open:
 * a GPTQ matrix opens, but refuses to decode, because only the config says how its zero points are stored. */
MLA_CHECKED mla_status mla_qmat_open(mla_qmat *out, const mla_qsource *src, const char *module, mla_err *err);

/* The same, tensors and config together (cfg from quant/qconfig.h; NULL: as mla_qmat_open). EFORMAT, naming module and
 * rule, when they disagree: another layout, bits, symmetry, strategy, group or block than the config says; a Linear that
 * the config quantizes stored plain; a quantized module that it keeps plain; quantized tensors without any config. */
MLA_CHECKED mla_status mla_qmat_open_with(mla_qmat *out, const mla_qsource *src, const char *module, const mla_qconfig *cfg,
                                          mla_err *err);

/* The model's own dimensions of the matrix. EXL3 stores both padded to multiples of 128: *m is then trimmed (rows and
 * columns past the end are never decoded). EFORMAT for any other difference. */
MLA_CHECKED mla_status mla_qmat_expect(mla_qmat *m, size_t out, size_t in, mla_err *err);

/* Decodes rows [row0, row0 + nrows) into dst [nrows, in], exactly as the format defines each value in f32 (F64 is
 * rounded to f32). EINVAL when the range leaves the matrix. Non-finite scales or values come out as stored. */
MLA_CHECKED mla_status mla_qmat_rows_f32(const mla_qmat *m, size_t row0, size_t nrows, float *dst, mla_err *err);

size_t mla_qmat_bytes(const mla_qmat *m); /* stored bytes of all parts */

/* Counts decoded values that are NaN or infinite, a row at a time; *first_row (may be NULL) is the first row with
 * one, or m->out. A matrix to be trusted counts 0. */
MLA_CHECKED mla_status mla_qmat_nonfinite(const mla_qmat *m, size_t *count, size_t *first_row, mla_err *err);

/* The stored scales of a matrix, counted. Zeros, NaN, infinities and negative values are reported, never changed: a
 * zero scale is a row of zeros, a NaN makes NaN values. GGUF keeps its scales in its blocks: n is 0 there. */
typedef struct {
    size_t n, zero, nonfinite, negative;
    const char *part;   /* name of the stored tensor with the first zero or non-finite scale; NULL when there is none */
    size_t first;       /* its position in that tensor */
} mla_qscales;
MLA_CHECKED mla_status mla_qmat_scales(const mla_qmat *m, mla_qscales *out, mla_err *err);

/* "GGUF Q4_1 [576, 1536]" into buf; returns buf. */
const char *mla_qmat_text(const mla_qmat *m, char *buf, size_t cap);

/* The table, for listings: row i, or NULL past its end. */
const mla_qformat *mla_qformat_at(size_t i);
#endif
