/* The inside of mla_qconfig: rules in the order of the file, and one default. Inside the quant layer only. */
#ifndef MLA_QUANT_QCONFIG_IMPL_H
#define MLA_QUANT_QCONFIG_IMPL_H
#include "quant/qconfig.h"
#include "quant/qpattern.h"

typedef enum {
    MLA_QR_IGNORE, /* keeps a module plain; stronger than every target */
    MLA_QR_TARGET, /* a group claims modules by name, pattern or class */
    MLA_QR_OVERRIDE /* the first match decides, its scheme may be plain */
} mla_qrule_kind;

typedef struct {
    mla_qrule_kind kind;
    mla_qpattern pattern;
    size_t group;       /* of a target: which group of the file */
    mla_qscheme scheme; /* of a target or override */
} mla_qrule;

/* What becomes of a Linear that no rule names. */
typedef enum {
    MLA_QREST_PLAIN,  /* only targets are quantized */
    MLA_QREST_ALL,    /* all are, lm_head open */
    MLA_QREST_BLOCKS, /* those of the decoder layers are, the others open */
    MLA_QREST_OPEN    /* the tensors decide: the config has no way to list what was left out */
} mla_qrest;

struct mla_qconfig {
    mla_qmethod method;
    mla_qrule *rule;
    size_t nrules;
    mla_qscheme base; /* of a quantized module that no rule names */
    mla_qrest rest;
    mla_qtold lm_head; /* GPTQ says so; UNTOLD: by rest */
    char **within;     /* GPTQ and auto-round: parts of names that are quantized, the rest being plain; n == 0: no list */
    size_t nwithin;
    bool within_open;  /* modules outside the list are open, not plain */
};

/* Adds a rule; `text` as the file spells it. */
MLA_CHECKED mla_status mla_qrule_add(mla_qconfig *c, mla_qrule_kind kind, mla_qpattern_kind how, const char *text, size_t group,
                                     const mla_qscheme *scheme, mla_err *err);
/* An array of strings (NULL and null: none) as rules to ignore. how: EXACT also knows "re:"; GLOB is PART without * ? [. */
MLA_CHECKED mla_status mla_qignore_read(mla_qconfig *c, const mla_jv *obj, const char *key, mla_qpattern_kind how, mla_err *err);

/* One value by key; absent and null leave *out alone. EFORMAT for another kind. */
MLA_CHECKED mla_status mla_qget_str(const char **out, const mla_jv *obj, const char *key, mla_err *err);
MLA_CHECKED mla_status mla_qget_bool(mla_qtold *out, const mla_jv *obj, const char *key, mla_err *err);
MLA_CHECKED mla_status mla_qget_bits(unsigned *out, const mla_jv *obj, const char *key, mla_err *err); /* 1 to 64 */
/* A group size: -1 becomes 0 (the whole row); *told says that it was there. */
MLA_CHECKED mla_status mla_qget_group(size_t *out, bool *told, const mla_jv *obj, const char *key, mla_err *err);
/* [rows, columns], both positive. *told says that it was there. */
MLA_CHECKED mla_status mla_qget_block(mla_qscheme *s, bool *told, const mla_jv *obj, const char *key, mla_err *err);

/* One reader per method; `v` is an object. Each fills rules, base and rest. */
MLA_CHECKED mla_status mla_qread_ct(mla_qconfig *c, const mla_jv *v, mla_err *err);
MLA_CHECKED mla_status mla_qread_fp8(mla_qconfig *c, const mla_jv *v, mla_err *err);
MLA_CHECKED mla_status mla_qread_modelopt(mla_qconfig *c, const mla_jv *v, mla_err *err);
MLA_CHECKED mla_status mla_qread_awq(mla_qconfig *c, const mla_jv *v, mla_err *err);
MLA_CHECKED mla_status mla_qread_gptq(mla_qconfig *c, const mla_jv *v, mla_err *err);
MLA_CHECKED mla_status mla_qread_autoround(mla_qconfig *c, const mla_jv *v, mla_err *err);
MLA_CHECKED mla_status mla_qread_exl3(mla_qconfig *c, const mla_jv *v, mla_err *err);

/* One weights block of config_groups (also ModelOpt's): type, bits, symmetry, strategy, group, block. */
MLA_CHECKED mla_status mla_qread_weights(mla_qscheme *s, bool *is_float, const mla_jv *weights, mla_err *err);
/* Every string of group.targets as a target rule. */
MLA_CHECKED mla_status mla_qread_targets(mla_qconfig *c, const mla_jv *group, size_t index, const mla_qscheme *scheme, mla_err *err);
#endif
