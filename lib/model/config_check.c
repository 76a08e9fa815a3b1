/* Cross-field validation: each rule one line that names the keys, what is expected and what was found. */
#include <stdarg.h>
#include <stdio.h>

#include "model/config_parts.h"

static mla_status fail(mla_err *err, const char *where, const char *key, const char *fmt, ...) MLA_PRINTF(4, 5);
static mla_status fail(mla_err *err, const char *where, const char *key, const char *fmt, ...)
{
    char text[500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mla_fail(err, MLA_EFORMAT, "%s%s: %s", where, key, text);
}

static mla_status check_hybrid(const mla_config *c, const char *where, mla_err *err)
{
    if (!(c->lin_v_heads % c->lin_k_heads == 0))
        return fail(err, where, "linear_num_value_heads", "%zu is not a multiple of linear_num_key_heads %zu",
         c->lin_v_heads, c->lin_k_heads);
    if (!(c->lin_k_heads * c->lin_k_dim <= MLA_MAX_INTER))
        return fail(err, where, "linear_num_key_heads", "%zu heads of %zu are more than %zu channels",
         c->lin_k_heads, c->lin_k_dim, MLA_MAX_INTER);
    if (!(c->lin_v_heads * c->lin_v_dim <= MLA_MAX_INTER))
        return fail(err, where, "linear_num_value_heads", "%zu heads of %zu are more than %zu channels",
         c->lin_v_heads, c->lin_v_dim, MLA_MAX_INTER);
    return MLA_OK;
}

mla_status mla_config_check(const mla_config *c, const char *where, mla_err *err)
{
    if (!(c->kv_heads <= c->heads && c->heads % c->kv_heads == 0))
        return fail(err, where, "num_attention_heads", "%zu is not a multiple of num_key_value_heads %zu",
         c->heads, c->kv_heads);
    if (!(c->heads * c->head_dim <= MLA_MAX_INTER))
        return fail(err, where, "head_dim", "%zu heads of %zu are more than %zu values", c->heads, c->head_dim, MLA_MAX_INTER);
    if (!(c->rms_eps > 0))
        return fail(err, where, "rms_norm_eps", "expected more than 0, found %g", c->rms_eps);
    if (!(c->rope.rot <= c->head_dim))
        return fail(err, where, "head_dim", "%zu rotated dims in a head of %zu", c->rope.rot, c->head_dim);
    if (!(mla_config_full_layers(c) > 0))
        return fail(err, where, "layer_types", "none of %zu layers is full attention", c->layers);
    if (c->family == MLA_FAM_QWEN3_5 || c->family == MLA_FAM_QWEN3_NEXT) return check_hybrid(c, where, err);
    if (c->family == MLA_FAM_DEEPSEEK && !(c->heads * (c->qk_nope_dim + c->v_head_dim) <= MLA_MAX_INTER))
        return fail(err, where, "v_head_dim", "%zu heads of %zu + %zu are more than %zu values",
             c->heads, c->qk_nope_dim, c->v_head_dim, MLA_MAX_INTER);
    return MLA_OK;
}
