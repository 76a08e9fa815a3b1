/* quantization_config: what config.json says about the weight format of every module.
 *
 * Read strictly: an unknown method, format, pattern or weight argument is refused by name, never guessed. The config and
 * the tensors are compared by mla_qmat_open_with, one module, and mla_qconfig_check, a whole checkpoint.
 * Everything but reading is const and safe to call from several threads at once. */
#ifndef MLA_QUANT_QCONFIG_H
#define MLA_QUANT_QCONFIG_H
#include "io/ckpt.h"
#include "io/json.h"
#include "quant/quant.h"

typedef enum {
    MLA_QM_NONE, /* config.json has no quantization_config: nothing may be quantized */
    MLA_QM_CT, MLA_QM_FP8, MLA_QM_MODELOPT, MLA_QM_AWQ, MLA_QM_GPTQ, MLA_QM_AUTOROUND, MLA_QM_EXL3
} mla_qmethod;

typedef enum { MLA_QX_EITHER, MLA_QX_QUANTIZED, MLA_QX_PLAIN } mla_qexpect;
typedef enum { MLA_QS_ANY, MLA_QS_TENSOR, MLA_QS_CHANNEL, MLA_QS_GROUP, MLA_QS_BLOCK } mla_qstrategy;
typedef enum { MLA_QT_UNTOLD, MLA_QT_NO, MLA_QT_YES } mla_qtold;
typedef enum { MLA_QC_UNTOLD, MLA_QC_3INST, MLA_QC_MCG, MLA_QC_MUL1 } mla_qcodebook;

struct mla_qscheme { /* what the config says of one module; zeros where it says nothing */
    mla_qexpect expect;
    mla_qlayout layout;      /* unless expect is PLAIN */
    unsigned bits;
    mla_qtold symmetric;
    mla_qtold g_idx;         /* columns look their group up in a stored g_idx */
    mla_qtold e8m0;          /* scales are E8M0 bytes */
    mla_qstrategy strategy;
    size_t group;            /* inputs per scale, with GROUP; 0: the whole row */
    size_t block_out, block_in; /* with BLOCK */
    mla_qtold zero_minus_1;  /* GPTQ: v1 stores zero - 1, v2 stores zero */
    mla_qcodebook codebook;  /* EXL3 */
    char why[200];           /* the rule that decided, for messages: "target \"Linear\" of group_0" */
};

/* `v` is the value of config.json's "quantization_config" (NULL or null: none), or the root of a ModelOpt
 * hf_quant_config.json. Nothing of it is kept. EFORMAT for wrong kinds and contradictions, EUNSUPPORTED for what this
 * toolkit does not read; both name key and value. Caller frees. */
MLA_CHECKED mla_status mla_qconfig_read(mla_qconfig **out, const mla_jv *v, mla_err *err);
void mla_qconfig_free(mla_qconfig *c); /* NULL is fine */
mla_qmethod mla_qconfig_method(const mla_qconfig *c);
const char *mla_qconfig_method_name(const mla_qconfig *c); /* "compressed-tensors"; "none". Static. */

/* What the config says of module `name` (its tensors' common name, as stored) of class `cls` ("Linear", "Embedding",
 * "other"). EFORMAT when two groups claim it. */
MLA_CHECKED mla_status mla_qconfig_scheme(const mla_qconfig *c, const char *name, const char *cls, mla_qscheme *out, mla_err *err);

/* The class of a module, from its tensors: "Embedding" when the last part of its name says so (embed, wte), "Linear"
 * for any other matrix, "other" for the rest (norms, convolutions). Static. */
const char *mla_qclass(const mla_qsource *src, const char *module);

typedef struct {
    size_t quantized, plain; /* Linear modules; embeddings are not counted */
    size_t bytes;            /* stored bytes of the quantized ones */
} mla_qsummary;

/* Every module of a checkpoint against the config: each opens as the config says, every ignore entry and every target
 * names a module or an ancestor of one (entries that would cover "lm_head" may be idle: tied models store none; so may
 * exclusions of the MTP head and the vision tower, which text-only checkpoints drop), and no
 * part of a quantized module stands alone. EFORMAT names the first disagreement. */
MLA_CHECKED mla_status mla_qconfig_check(const mla_qconfig *c, const mla_ckpt *ck, mla_qsummary *out, mla_err *err);
#endif
