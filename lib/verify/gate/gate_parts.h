/* What the files of the gate share. Private to verify/gate/gate*.c. */
#ifndef MLA_VERIFY_GATE_PARTS_H
#define MLA_VERIFY_GATE_PARTS_H
#include <math.h>
#include <stdbool.h>

#include "model/model.h"
#include "runtime/runtime.h"
#include "text/corpus.h"
#include "tensor/kv_row.h"
#include "verify/gate/gate.h"
#include "verify/folder/identity.h"
#include "verify/reference/reference.h"

typedef struct {
    const mla_gate_input *in;
    const mla_policy *p;
    mla_jv *doc, *rules, *findings, *reports; /* rules stand under "gates" */
    mla_verdict worst;
    mla_model *model, *base; /* NULL: not given, or it could not be opened */
    mla_identity id, base_id;
    mla_rt *rt, *base_rt;
    mla_rt *other_rt;        /* the model on in->other; NULL: none */
    mla_reference ref;       /* all references as one; n == 0: none could be read */
    mla_corpus corpus;
} mla_gate;

typedef struct {
    const char *section, *name;
    mla_verdict verdict;
    double value, low, high, threshold; /* NAN: none */
} mla_gate_rule;
#define MLA_RULE(s, n, v) ((mla_gate_rule){(s), (n), (v), NAN, NAN, NAN, NAN})

void mla_gate_add(mla_gate *g, const mla_gate_rule *r, const char *fmt, ...) MLA_PRINTF(3, 4);
/* A rule that has nothing to judge here. */
void mla_gate_skip(mla_gate *g, const char *section, const char *name, const char *fmt, ...) MLA_PRINTF(4, 5);
/* A rule that could not be judged: why->msg, without folders of this machine. */
void mla_gate_unjudged(mla_gate *g, const char *section, const char *name, const mla_err *why);
/* Takes over the gates of a report, except those named in leave (NULL-terminated, may be NULL), and its findings. */
void mla_gate_take(mla_gate *g, const char *section, const mla_jv *report, const char *const *leave);

/* gate_rules.c: rules over a finished parity report. */
void mla_gate_rules_parity(mla_gate *g, const mla_jv *report);
/* gate_files.c: receipts, tokenizer, scales. */
void mla_gate_receipts(mla_gate *g);
void mla_gate_scales(mla_gate *g);
/* gate_capacity.c */
void mla_gate_capacity(mla_gate *g);
/* gate_runs.c: what runs the model: selfcheck, parity. */
void mla_gate_selfcheck(mla_gate *g);
void mla_gate_parity(mla_gate *g);
/* gate_paths.c: the ways a server runs the model */
void mla_gate_layers(mla_gate *g);
void mla_gate_paths(mla_gate *g);
void mla_gate_mtp(mla_gate *g);
mla_kv_type mla_gate_kv(const char *name);
mla_status mla_gate_open_runtime(mla_rt **rt, const mla_gate *g, const mla_model *m, const char *kv, bool mtp, mla_backend *be, mla_err *err);
#endif
