/* Index maps between stored and logical order. */
#include "model/view.h"

/* Grouped value head j = k r + t (t-th head of key head k) stands at tiled position t nk + k. */
static size_t tiled_head(const mla_config *c, size_t j)
{
    size_t r = c->lin_v_heads / c->lin_k_heads;
    return (j % r) * c->lin_k_heads + j / r;
}

static size_t tiled(const mla_config *c, size_t i, size_t unit) { return tiled_head(c, i / unit) * unit + i % unit; }

/* Logical rows q|k|v of the fused projection whose key head h holds [q dk | k dk | v r dv | z r dv]. */
static size_t qkvz(const mla_config *c, size_t i, bool z)
{
    size_t dk = c->lin_k_dim, dv = c->lin_v_dim, r = c->lin_v_heads / c->lin_k_heads, key = c->lin_k_heads * dk;
    size_t block = 2 * dk + 2 * r * dv;
    if (z) return i / (r * dv) * block + 2 * dk + r * dv + i % (r * dv);
    if (i < key) return i / dk * block + i % dk;
    if (i < 2 * key) return (i - key) / dk * block + dk + i % dk;
    i -= 2 * key;
    return i / (r * dv) * block + 2 * dk + i % (r * dv);
}

size_t mla_view_src(const mla_config *c, mla_view v, size_t i)
{
    size_t hd = c->head_dim, key2, r;
    switch (v) {
    case MLA_V_PLAIN: return i;
    case MLA_V_ROPE: /* logical pair (j, j + hd/2) is stored as (2j, 2j + 1) */
        return i / hd * hd + (i % hd < hd / 2 ? 2 * (i % hd) : 2 * (i % hd - hd / 2) + 1);
    case MLA_V_TILED_QKV:
        key2 = 2 * c->lin_k_heads * c->lin_k_dim;
        return i < key2 ? i : key2 + tiled(c, i - key2, c->lin_v_dim);
    case MLA_V_TILED_ROWS:
    case MLA_V_TILED_COLS: return tiled(c, i, c->lin_v_dim);
    case MLA_V_TILED_HEADS: return tiled_head(c, i);
    case MLA_V_QKVZ_QKV: return qkvz(c, i, false);
    case MLA_V_QKVZ_Z: return qkvz(c, i, true);
    case MLA_V_BA_B:
    case MLA_V_BA_A:
        r = c->lin_v_heads / c->lin_k_heads;
        return i / r * 2 * r + (v == MLA_V_BA_A ? r : 0) + i % r;
    }
    return i;
}
