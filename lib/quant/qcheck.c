/* A whole checkpoint against its quantization config. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "quant/qconfig_impl.h"

static const mla_tensor *find_in_ckpt(const void *ctx, const char *name) { return mla_ckpt_find(ctx, name); }

/* Parts that make a module a matrix, and parts that mean nothing without one. */
static const char *const MATRIX[] = {"weight", "weight_packed", "qweight", "trellis"};
static const char *const LOOSE[] = {"weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "weight_shape",
                                    "weight_zero_point", "weight_g_idx", "qzeros", "scales", "g_idx", "suh", "svh", "su", "sv"};

static bool one_of(const char *s, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], s)) return true;
    return false;
}

typedef struct {
    const mla_qconfig *c;
    const mla_ckpt *ck;
    mla_map *modules; /* every module and every ancestor of one */
    bool *hit;        /* per rule */
    mla_qsummary sum;
} check;

static mla_status collect(check *k, mla_err *err)
{
    for (size_t i = 0; i < mla_ckpt_count(k->ck); i++) {
        const char *name = mla_ckpt_at(k->ck, i)->name, *dot = strrchr(name, '.');
        while (dot && dot > name) { /* its module, then each ancestor */
            mla_status st = mla_map_add(k->modules, name, (size_t)(dot - name), 0, NULL, err);
            if (st) return st;
            while (dot > name && *--dot != '.') {}
        }
    }
    return MLA_OK;
}

static mla_status one_module(check *k, const char *name, mla_err *err)
{
    mla_qsource src = {find_in_ckpt, k->ck};
    const char *cls = mla_qclass(&src, name);
    const mla_qconfig *c = k->c;
    char part[512];
    for (size_t i = 0; i < c->nrules; i++) {
        const mla_qrule *r = &c->rule[i];
        if (mla_qpattern_matches(&r->pattern, name) ||
            (r->kind == MLA_QR_TARGET && r->pattern.kind == MLA_QP_EXACT && !strcmp(r->pattern.text, cls)))
            k->hit[i] = true;
    }
    bool matrix = false;
    for (size_t i = 0; i < sizeof MATRIX / sizeof *MATRIX && !matrix; i++) {
        int n = snprintf(part, sizeof part, "%s.%s", name, MATRIX[i]);
        const mla_tensor *t = n > 0 && (size_t)n < sizeof part ? mla_ckpt_find(k->ck, part) : NULL;
        matrix = t && (t->ndim == 2 || i > 0);
    }
    if (!matrix) return MLA_OK;
    mla_qmat m;
    mla_status st = mla_qmat_open_with(&m, &src, name, c, err);
    if (st) return st;
    if (m.ops->layout != MLA_QL_DENSE) {
        k->sum.quantized++;
        k->sum.bytes += mla_qmat_bytes(&m);
    } else if (!strcmp(cls, "Linear")) k->sum.plain++;
    return MLA_OK;
}

/* "m.scales" without "m.qweight": a part whose matrix is gone. */
static mla_status no_loose_parts(check *k, mla_err *err)
{
    for (size_t i = 0; i < mla_ckpt_count(k->ck); i++) {
        const char *name = mla_ckpt_at(k->ck, i)->name, *dot = strrchr(name, '.');
        if (!dot || !one_of(dot + 1, LOOSE, sizeof LOOSE / sizeof *LOOSE)) continue;
        bool found = false;
        for (size_t j = 0; j < sizeof MATRIX / sizeof *MATRIX && !found; j++) {
            char part[512];
            int n = snprintf(part, sizeof part, "%.*s.%s", (int)(dot - name), name, MATRIX[j]);
            found = n > 0 && (size_t)n < sizeof part && mla_ckpt_find(k->ck, part);
        }
        if (!found) return mla_fail(err, MLA_EFORMAT, "%s: a part of a quantized matrix that is not there", name);
    }
    return MLA_OK;
}

/* Modules of parts that publishers leave out while the exclusions stay: a tied lm_head, the MTP head, the vision tower. */
static const char *const OPTIONAL[] = {"lm_head", "mtp.fc", "mtp.layers.0.mlp.up_proj", "mtp.layers.0.self_attn.q_proj", "visual.blocks.0.attn.qkv",
                                       "visual.merger.linear_fc1", "model.visual.blocks.0.attn.qkv", "model.visual.merger.linear_fc1"};
static bool may_be_idle(const mla_qrule *r)
{
    for (size_t i = 0; i < sizeof OPTIONAL / sizeof *OPTIONAL; i++)
        if ((i == 0 || r->kind == MLA_QR_IGNORE) && mla_qpattern_matches(&r->pattern, OPTIONAL[i])) return true;
    return false;
}

static mla_status no_idle_rules(check *k, mla_err *err)
{
    for (size_t i = 0; i < k->c->nrules; i++) {
        const mla_qrule *r = &k->c->rule[i];
        if (k->hit[i] || may_be_idle(r)) continue;
        return mla_fail(err, MLA_EFORMAT, "quantization_config: the %s \"%s\" names no module of this checkpoint",
                        r->kind == MLA_QR_IGNORE ? "exclusion" : r->kind == MLA_QR_TARGET ? "target" : "override", r->pattern.text);
    }
    return MLA_OK;
}

mla_status mla_qconfig_check(const mla_qconfig *c, const mla_ckpt *ck, mla_qsummary *out, mla_err *err)
{
    check k = {.c = c, .ck = ck};
    mla_status st = mla_map_new(&k.modules, err);
    if (st) return st;
    k.hit = mla_alloc(c->nrules, 1, sizeof *k.hit);
    if (!k.hit) st = mla_fail(err, MLA_ENOMEM, "%zu rules", c->nrules);
    if (!st) st = collect(&k, err);
    for (size_t i = 0; !st && i < mla_map_count(k.modules); i++) st = one_module(&k, mla_map_key(k.modules, i, NULL), err);
    if (!st) st = no_loose_parts(&k, err);
    if (!st) st = no_idle_rules(&k, err);
    if (!st && k.sum.quantized == 0 && c->rest != MLA_QREST_PLAIN && c->method != MLA_QM_NONE)
        st = mla_fail(err, MLA_EFORMAT, "quantization_config: %s, but no module is quantized", mla_qconfig_method_name(c));
    if (!st) *out = k.sum;
    mla_free(k.hit);
    mla_map_free(k.modules);
    return st;
}
