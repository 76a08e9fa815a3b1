/* Do the FP8 KV scales of a folder arrive? Each engine's own renaming is replayed over the stored names, and what it would
 * do with every scale is said: consumed, or dropped and why. A dropped scale means a cache at scale 1.0, in silence.
 * docs/format-kv-scales.md has the table; sources: formats page, section 5. */
#ifndef MLA_VERIFY_CONSUMERS_H
#define MLA_VERIFY_CONSUMERS_H
#include "base/err.h"
#include "io/receipt.h"
#include "model/model.h"

typedef struct mla_consumer mla_consumer;
const mla_consumer *mla_consumer_find(const char *name); /* NULL when unknown */
const mla_consumer *mla_consumer_at(size_t i);           /* NULL past the last */
const char *mla_consumer_name(const mla_consumer *c);
const char *mla_consumer_about(const mla_consumer *c);

/* Fills out (an empty object): {consumer, about, scales: [{tensor, layer, part, renamed, verdict "consumed" | "dropped", reason}],
 * layers: [{layer, verdict "calibrated" | "folded" | "one scale for both" | "at 1.0"}], side_file}. A finding for every dropped scale, every
 * full-attention layer left at 1.0 while others are calibrated, and every needed file or config block that is missing or wrong. */
MLA_CHECKED mla_status mla_consumer_replay(mla_jv *out, mla_findings *f, const mla_model *m, const mla_consumer *c, mla_err *err);
#endif
