/* The pieces of inspect, one per kind of file. Private to verify/inspect/inspect*.c. */
#ifndef MLA_VERIFY_INSPECT_PARTS_H
#define MLA_VERIFY_INSPECT_PARTS_H
#include "base/err.h"
#include "io/ckpt.h"
#include "io/gguf.h"
#include "io/json.h"
#include "model/config.h"

/* Each fills `doc`, the root object that already has "schema", "kind", "name". */
mla_status mla_inspect_folder(mla_jv *doc, const char *dir, mla_err *err);
mla_status mla_inspect_safetensors(mla_jv *doc, const char *path, mla_err *err);
mla_status mla_inspect_gguf(mla_jv *doc, const char *path, mla_err *err);
mla_status mla_inspect_json(mla_jv *doc, const char *path, mla_err *err);
mla_status mla_inspect_framed(mla_jv *doc, const char *path, mla_err *err);
/* True when the 8 bytes begin a framed file of ours: magic, u64 header length, JSON header. */
bool mla_inspect_is_framed(const unsigned char magic[8]);

void mla_inspect_note(mla_jv *doc, const char *fmt, ...) MLA_PRINTF(2, 3);
void mla_inspect_set_kind(mla_jv *doc, const char *kind);
/* "config": the resolved configuration. */
void mla_inspect_config(mla_jv *doc, const mla_config *c);
/* s[0..n) as JSON text: bytes that are no UTF-8 and NULs become '?'. Caller frees; NULL when out of memory. */
char *mla_inspect_clean(const char *s, size_t n);
void mla_inspect_put_text(mla_jv *obj, const char *key, const char *s, size_t n);

/* Sums by dtype (or format) while tensors are listed; written at the end as "totals". */
typedef struct {
    struct {
        const char *name; /* static text */
        size_t count;
        double bytes;
    } row[64];
    size_t n;
} mla_inspect_sums;
void mla_inspect_sum(mla_inspect_sums *s, const char *name, double bytes);
/* doc.totals[key] = [{name_key, count_key, bytes}] sorted by bytes, descending. */
void mla_inspect_put_sums(mla_jv *totals, const char *key, const char *name_key, const char *count_key, mla_inspect_sums *s);

/* "kv_scales" and "scales" of a checkpoint: every KV-cache scale tensor with its value, and where they come from. */
void mla_inspect_kv_scales(mla_jv *doc, const mla_ckpt *ck, const mla_config *c);
#endif
