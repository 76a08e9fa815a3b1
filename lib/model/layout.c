/* The layouts of a retrofit by name: the one table. */
#include <string.h>

#include "model/config.h"
#include "model/shared.h"

static const char *const NAME[] = {[MLA_LAYOUT_NONE] = "none", [MLA_LAYOUT_N] = "n", [MLA_LAYOUT_REBUILD] = "rebuild", [MLA_LAYOUT_P] = "p",
                                   [MLA_LAYOUT_SHARED] = "shared-rotary",
                                   [MLA_LAYOUT_ABSORBED] = "absorbed-rope", [MLA_LAYOUT_DEEPSEEK] = "deepseek"};
_Static_assert(sizeof NAME / sizeof *NAME == MLA_LAYOUTS, "a name for every layout");

const char *mla_layout_name(mla_layout l) { return (unsigned)l < MLA_LAYOUTS ? NAME[l] : "?"; }

bool mla_layout_parse(const char *s, mla_layout *out)
{
    for (int i = MLA_LAYOUT_NONE + 1; i < MLA_LAYOUTS; i++)
        if (!strcmp(s, NAME[i])) {
            *out = (mla_layout)i;
            return true;
        }
    return false;
}

size_t mla_layout_rotary(const mla_config *c, mla_layout l)
{
    return l == MLA_LAYOUT_N || l == MLA_LAYOUT_P ? c->kv_heads * c->rope.rot : 0;
}

size_t mla_layout_key_dims(const mla_config *c, mla_layout l)
{
    return l == MLA_LAYOUT_N || l == MLA_LAYOUT_P || l == MLA_LAYOUT_SHARED ? c->head_dim - c->rope.rot : c->head_dim;
}

size_t mla_config_rotary_values(const mla_config *c, size_t layer) { return c->mla.width ? c->mla.width[layer] : c->mla.rotary_width; }

size_t mla_layout_divisors(const mla_config *c, mla_layout l) { return l == MLA_LAYOUT_P ? c->kv_heads : 0; }

mla_status mla_layout_fits(const mla_config *c, mla_layout l, mla_err *err)
{
    if ((l == MLA_LAYOUT_N || l == MLA_LAYOUT_P) && c->rope.rot == c->head_dim)
        return mla_fail(err, MLA_EINVAL, "layout %s needs key dims without rotation; this model rotates all %zu: use layout rebuild", mla_layout_name(l),
                        c->head_dim);
    if (l == MLA_LAYOUT_SHARED) return mla_shared_fits(c, err);
    if (l == MLA_LAYOUT_P && !c->qk_norm)
        return mla_fail(err, MLA_EINVAL, "layout p moves the norm of the keys into a divisor; %s has no QK-norm, so nothing is left to divide by: "
                        "layout n caches the same without divisors", c->architecture);
    return MLA_OK;
}
