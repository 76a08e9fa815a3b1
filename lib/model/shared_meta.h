/* The header of a shared-rotary factor file, in words: geometry and semantics that reader and writer agree on. Private to
 * the model layer. */
#ifndef MLA_MODEL_SHARED_META_H
#define MLA_MODEL_SHARED_META_H
#include "io/json.h"
#include "model/shared.h"

#define MLA_SHARED_KIND "q38_prerope_shared_mla_native_v1" /* one shared key: what the plugin loads */
#define MLA_SHARED_KIND_R "mla_shared_rotary_v1"           /* the same with several shared keys: this toolkit's own */

/* Geometry and semantics of a file for this model, into empty objects; false: out of memory. */
bool mla_shared_geometry(mla_jv *o, const mla_config *c, size_t r);
bool mla_shared_semantics(mla_jv *o, const mla_config *c, size_t r, size_t R);

/* The tensors of one layer, "layers.<L>.<name>", all F32. */
#define MLA_SHARED_TENSORS 6
extern const char *const mla_shared_tensor[MLA_SHARED_TENSORS];
/* Shape of tensor k for factors of these sizes. */
void mla_shared_shape(const mla_config *c, size_t r, size_t R, size_t k, size_t shape[3], size_t *ndim);
#endif
