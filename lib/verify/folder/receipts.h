/* Receipts: is a finished checkpoint folder, byte for byte, what its receipt says, and does its configuration agree with
 * its tensors? Every difference is one finding that names the file or tensor; docs/reports.md lists the checks. */
#ifndef MLA_VERIFY_RECEIPTS_H
#define MLA_VERIFY_RECEIPTS_H
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/ckpt.h"
#include "io/json.h"
#include "io/receipt.h"
#include "model/model.h"
#include "verify/parity/stats.h"

#define MLA_RECEIPTS_SCHEMA "mla-receipts/1"

typedef struct {
    const char *base; /* NULL, or the base folder: compared with what the receipt says it was */
    const char *const *consumer; /* engines whose loading of KV scales is replayed (consumers.h) */
    size_t consumers;
    bool no_receipt;  /* the folder has none: configuration, scales, weights and consumers are judged all the same */
    bool values;      /* decode every matrix and count values that are not finite (reads all weights) */
    mla_pool *pool;
    mla_log *log;
} mla_receipts_opts;

/* Checks dir and fills doc (begun by the caller with schema and tool). *verdict is MLA_PASS without findings.
 * A folder without a receipt, or one that cannot be read at all, is an error, not a finding. */
MLA_CHECKED mla_status mla_receipts_check(mla_jv *doc, const char *dir, const mla_receipts_opts *o, mla_verdict *verdict, mla_err *err);
void mla_receipts_text(mla_str *out, const mla_jv *doc);

/* One line of text, as a finding of check `gate` ("files", "config", "scales", "weights", "base", "consumers"). */
typedef struct {
    mla_findings f[6];
    mla_jv *consumers;     /* array of the document: one report per replayed consumer */
    char unsupported[400]; /* why the model could not be opened at all: its claims were not judged; "" when it was */
} mla_receipts_findings;
enum { MLA_RF_FILES, MLA_RF_CONFIG, MLA_RF_SCALES, MLA_RF_WEIGHTS, MLA_RF_BASE, MLA_RF_CONSUMERS, MLA_RF_N };
/* Config claims against tensors: opens the model, reads every factor, every KV scale, every scale of a quantized weight;
 * used beside a parsed receipt (root; NULL when it could not be read). */
void mla_receipts_config(mla_receipts_findings *r, const char *dir, const mla_receipts_opts *o, const mla_manifest *found,
                         const mla_jv *root);
/* Every stored KV scale against mla_kv_scales.json, where the folder has one. */
void mla_receipts_side_file(mla_findings *f, const mla_model *m, const char *dir);
/* The quantization of config.json (root; NULL: none) against the stored parts, weight scales that are not finite, and
 * with `values` weights that are not: one finding a matrix, in name order. */
MLA_CHECKED mla_status mla_receipts_weights(mla_findings *f, const mla_ckpt *ck, const mla_jv *config, const mla_receipts_opts *o, mla_err *err);

/* The digest that a receipt carries of itself: SHA-256 of its text with the 64 digits of "receipt_sha256" as zeros.
 * True when the key is absent or right; *present tells which. */
bool mla_receipt_self_ok(const char *text, size_t n, bool *present);
#endif
