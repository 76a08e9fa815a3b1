/* The pieces config.c is put together from; each fills its part of a config and reports through the reader's sticky
 * error or a status. Private to the model layer. */
#ifndef MLA_MODEL_CONFIG_PARTS_H
#define MLA_MODEL_CONFIG_PARTS_H
#include "model/arch.h"
#include "model/config.h"
#include "model/read.h"

/* Largest sizes a config may claim: far above any model, small enough that no product of two wraps. */
#define MLA_MAX_HIDDEN ((size_t)1 << 20)
#define MLA_MAX_INTER ((size_t)1 << 22)
#define MLA_MAX_VOCAB ((size_t)1 << 24)
#define MLA_MAX_LAYERS ((size_t)4096)
#define MLA_MAX_HEADS ((size_t)16384)
#define MLA_MAX_HEAD_DIM ((size_t)8192)
#define MLA_MAX_POS ((size_t)1 << 31)

/* rope_parameters or rope_theta + rope_scaling of the text config into c->rope (config_rope.c). c->head_dim, max_pos
 * and, for deepseek, qk_rope_dim are set before. */
void mla_config_read_rope(mla_rd *text, mla_config *c, const mla_arch_group *g);
/* Fills rope.inv_freq (and long_inv_freq) from the other fields; short/long factors (rot/2) only for longrope. */
mla_status mla_rope_resolve(mla_rope_config *r, const double *short_factor, const double *long_factor, mla_err *err);
/* YaRN's magnitude: 1 for scale <= 1, else 0.1 * mscale * ln(scale) + 1. */
double mla_yarn_mscale(double scale, double mscale);

/* The "mla" block of the text config or the root (config_mla.c); retro: the architecture is a retrofit's. */
void mla_config_read_mla(mla_rd *root, mla_rd *text, mla_config *c, bool retro);
/* shared_mla of the text config (config_shared.c); false: there is none, and nothing was done. */
bool mla_config_read_shared(mla_rd *text, mla_config *c, bool retro);
/* 2n lowercase hex digits; false otherwise. */
bool mla_parse_hex(const char *s, unsigned char *out, size_t n);
/* quantization_config (config_mla.c). */
void mla_config_read_quant(mla_rd *root, mla_rd *text, mla_config *c);

/* Cross-field checks on a filled config, whatever it came from (config_check.c); messages name the keys after
 * `where`. */
mla_status mla_config_check(const mla_config *c, const char *where, mla_err *err);
#endif
