/* The shared-rotary layout (docs/format-factors.md, section 6): everything an attention layer caches is linear in its input x.
 *
 * One layer; H query heads, d head dim, rot rotated dims (first), D hidden, r latent values, R shared rotary keys:
 *   cached per token: c = E x (r), z = RoPE(KR x) (R keys of rot values, each turned like a key of the base)
 *   logit_ts of head h = scale ( q . K_h c_s + RoPE(Q2_h q[0,rot))_t . z_s ),   q the normed query, not rotated
 *   output of head h   = V_h (sum_s p_ts c_s) + mu_h, then the base's gate and output projection.
 * Rows [0, rot) of K_h are what of the rotary dims is kept without position (the file splits them in two maps), the others
 * the dims that never rotate. */
#ifndef MLA_MODEL_SHARED_H
#define MLA_MODEL_SHARED_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"

#define MLA_SHARED_FILE "mla_artifact/shared_mla.safetensors"
#define MLA_SHARED_PARTS 6

typedef struct {
    size_t H, d, rot, D, r, R;
    float *E;       /* (r, D); first of one block that holds all parts */
    float *KR;      /* (R rot, D) */
    float *Q2;      /* (H, R rot, rot) */
    float *K, *V;   /* (H, d, r) each */
    float *mu;      /* (H, d) */
} mla_shared;

/* MLA_EUNSUPPORTED with the reason when a model of this shape cannot have the layout. */
MLA_CHECKED mla_status mla_shared_fits(const mla_config *c, mla_err *err);
MLA_CHECKED mla_status mla_shared_new(mla_shared *out, const mla_config *c, size_t r, size_t R, mla_err *err); /* zeros */
MLA_CHECKED mla_status mla_shared_copy(mla_shared *out, const mla_shared *s, mla_err *err);
void mla_shared_free(mla_shared *s); /* zeroed struct is fine */
/* Floats in part k (E, KR, Q2, K, V, mu in this order), and in all: the parts stand one after the other from E on. */
size_t mla_shared_part(const mla_shared *s, size_t k);
size_t mla_shared_floats(const mla_shared *s);

/* Factors of full-attention layer `layer` of an open model with config().mla.layout == MLA_LAYOUT_SHARED. Caller frees. */
MLA_CHECKED mla_status mla_model_shared(const mla_model *m, size_t layer, mla_shared *out, mla_err *err);

/* What a factor file says of the weights it was made for: SHA-256 over name and stored bytes of the first full-attention
 * layer's k_proj, the middle one's v_proj and the last one's o_proj. "original_bf16" when those are BF16, else "stored". */
typedef struct {
    const char *format;
    char fingerprint[65], config_sha256[65];
} mla_teacher;
MLA_CHECKED mla_status mla_teacher_of(mla_teacher *out, const mla_model *m, mla_err *err);
/* The teacher recorded in the model's factor file; strings are empty where the file has none. */
MLA_CHECKED mla_status mla_model_shared_teacher(const mla_model *m, mla_teacher *out, mla_err *err);

/* The factor file of all full-attention layers, in depth order; one r and R for all. source_sha256 (hex) names what the
 * factors were fitted on. digest gets the file's sha256. */
MLA_CHECKED mla_status mla_shared_write(const char *path, const mla_model *base, const mla_shared *s, const char *source_sha256,
                                        unsigned char digest[32], mla_err *err);
/* Tensor bytes of such a file. */
uint64_t mla_shared_file_bytes(const mla_config *c, size_t r, size_t R);
/* True when the plugin that reads such files (its class knows one base architecture, bf16 weights, one shared key) can serve
 * this base with R keys; *why (may be NULL) says what is missing. */
bool mla_shared_servable(const mla_model *base, size_t R, const char **why);
#endif
