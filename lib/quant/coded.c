/* A stored matrix as codes: dispatch by layout, and what the describers share. */
#include "quant/coded.h"

#include "base/alloc.h"
#include "quant/coded_parts.h"
#include "quant/formats.h"

bool mla_coded_ints(mla_coded *c, unsigned bits, int zero)
{
    static const mla_code KIND[] = {[2] = MLA_CODE_CRUMB, [3] = MLA_CODE_CRUMB_BIT, [4] = MLA_CODE_NIBBLE,
                                    [5] = MLA_CODE_NIBBLE_BIT, [6] = MLA_CODE_NIBBLE_CRUMB, [8] = MLA_CODE_INT8};
    if (bits < 2 || bits > 8 || bits == 7) return false;
    c->code = KIND[bits];
    int low = bits < 4 ? 3 : 15, high = bits == 6 ? 3 : 1;
    for (int i = 0; i < 16; i++) {
        c->lo[i] = (float)((i & low) - zero);
        c->hi[i] = (float)((i & high) * (low + 1));
    }
    return true;
}

bool mla_coded_scale(mla_coded *c, mla_dtype t)
{
    if (t == MLA_F32) c->scale = MLA_SCALE_F32;
    else if (t == MLA_F16) c->scale = MLA_SCALE_F16;
    else if (t == MLA_BF16) c->scale = MLA_SCALE_BF16;
    else return false;
    return true;
}

mla_status mla_coded_order(mla_coded *c, bool *fits, const mla_tensor *idx, mla_err *err)
{
    size_t groups = mla_qceil(c->in, c->group);
    bool natural = true;
    *fits = true;
    for (size_t i = 0; i < c->in && natural; i++) natural = mla_qword(idx->data, i) == i / c->group;
    if (natural) return MLA_OK;
    uint32_t *perm = mla_alloc_raw(c->in, 1, sizeof *perm);
    size_t *next = mla_alloc_raw(groups, 1, sizeof *next);
    mla_status st = perm && next ? MLA_OK : mla_fail(err, MLA_ENOMEM, "%s: order of %zu columns", idx->name, c->in);
    for (size_t g = 0; st == MLA_OK && g < groups; g++) next[g] = g * c->group;
    for (size_t i = 0; st == MLA_OK && *fits && i < c->in; i++) {
        size_t g = mla_qword(idx->data, i);
        *fits = g < groups && next[g] < c->in && next[g] < (g + 1) * c->group;
        if (*fits) perm[next[g]++] = (uint32_t)i;
    }
    mla_free(next);
    if (st == MLA_OK && *fits) c->perm = perm;
    else mla_free(perm);
    return st;
}

static bool describe(mla_coded *c, const mla_qmat *m)
{
    switch (m->ops->layout) {
    case MLA_QL_GGUF: return mla_coded_gguf(c, m);
    case MLA_QL_CT_PACK: return mla_coded_ct_pack(c, m);
    case MLA_QL_AWQ: return mla_coded_awq(c, m);
    case MLA_QL_GPTQ: return mla_coded_gptq(c, m);
    case MLA_QL_EXL3: return mla_coded_exl3(c, m);
    default: return mla_coded_grid(c, m);
    }
}

/* The stored order of columns of formats that keep one. */
static const mla_tensor *order_of(const mla_qmat *m)
{
    const mla_tensor *last = &m->part[m->nparts - 1];
    bool may = m->ops->layout == MLA_QL_GPTQ || m->ops->layout == MLA_QL_CT_PACK;
    return may && last->dtype == MLA_I32 && last->ndim == 1 && last->shape[0] == m->in ? last : NULL;
}

mla_status mla_qmat_coded(mla_coded *out, bool *fits, const mla_qmat *m, mla_err *err)
{
    mla_coded c = {.out = m->out, .in = m->in, .ctx = m};
    const mla_tensor *idx = order_of(m);
    *out = c;
    *fits = m->out && m->in && m->in <= UINT32_MAX && describe(&c, m);
    if (c.code == MLA_CODE_TRELLIS || mla_code_bare(c.code)) c.group = m->in;
    if (*fits && c.group < m->in && c.group % MLA_CODED_UNIT) *fits = false;
    if (*fits && idx) {
        mla_status st = mla_coded_order(&c, fits, idx, err);
        if (st != MLA_OK) return st;
    }
    if (*fits) *out = c;
    return MLA_OK;
}

void mla_coded_free(mla_coded *c)
{
    if (!c) return;
    mla_free((void *)(uintptr_t)c->perm);
    c->perm = NULL;
}
