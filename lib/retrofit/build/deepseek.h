/* Layout deepseek: the factors of layout absorbed-rope merged into the weights of a stock DeepSeek-V3 model without
 * experts, a complete folder that needs neither the base nor this toolkit (docs/retrofit.md, docs/format-factors.md).
 *
 * Per layer, h the input after its norm, c = E [k; v] - E mu with k = W_k h + b_k, v = W_v h + b_v:
 *   kv_a   [c | B | rotary values]: E [W_k; W_v], a zero row whose bias is the constant B, Er W_k; biases
 *   kv_a_layernorm divides by sqrt((|c|^2 + B^2) / n + eps), n = rank + 1: with B = 2^40 that is B / sqrt(n) up to the relative
 *          2^-80 (|c|^2 + n eps) / 2, below fp32 rounding for |c| < 2^27; gains are powers of two, kv_b takes the rest
 *   kv_b   per head [A_h^T D_K | D_V], its column of the constant holding the values' mean
 *   q      per head s [W_q | Rq_g W_q]; s = sqrt(d + w) times the base's softmax scale, undoing DeepSeek's (d + w)^-1/2
 *          with a query bias: q_a = [1; 0] with bias [0; B], its norm made harmless like kv_a's, q_b = [s W | s b]
 * Rotary rows stand as interleaved pairs in the order of their frequencies. */
#ifndef MLA_RETROFIT_DEEPSEEK_H
#define MLA_RETROFIT_DEEPSEEK_H
#include "base/err.h"
#include "base/log.h"
#include "io/json.h"
#include "model/model.h"
#include "retrofit/solve/factorize.h"

typedef struct {
    size_t H, G, d, D, w, rank, fold;
    size_t q_lora;          /* rank of q_a, constant included; 0: the base has no query bias, q_proj stands alone */
    size_t *slot, *freq;    /* (w/2): pairs of rotary values by frequency, and that frequency */
} mla_deepseek_shape;

/* One rank, one width and the same frequencies in all layers are needed; refused otherwise. */
MLA_CHECKED mla_status mla_deepseek_shape_of(mla_deepseek_shape *out, const mla_model *base, const mla_factorization *f, mla_err *err);
void mla_deepseek_shape_free(mla_deepseek_shape *s); /* zeroed struct is fine */
/* config.json of the folder. */
MLA_CHECKED mla_status mla_deepseek_config(mla_json **doc, const mla_model *base, const mla_deepseek_shape *s, mla_dtype dtype, mla_err *err);
/* Fills dir (existing): the base's other files, model.safetensors in dtype (MLA_BF16 or MLA_F32), index and config. */
MLA_CHECKED mla_status mla_deepseek_write(const char *dir, const mla_model *base, const mla_factorization *f, mla_dtype dtype, mla_log *log,
                                          mla_err *err);
#endif
