/* A second opinion: small models with random weights on disk, and their forward pass in plain double precision,
 * written from the formats page without the runtime's code. */
#ifndef MLA_TESTS_RUNTIME_NAIVE_H
#define MLA_TESTS_RUNTIME_NAIVE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *arch, *type, *extra; /* extra: further config.json members, beginning with a comma */
    size_t D, I, L, H, G, d, rot, V;
    bool qkv_bias, o_bias, mlp_bias, qk_norm, tied;
    double eps, att;                 /* att: RoPE attention factor */
    double scale;                    /* softmax scale */
    const double *inv_freq;          /* (rot/2) */
    /* DeepSeek: rkv > 0 */
    size_t rq, rkv, dn, dv;
    /* Gated delta net (toy_write only): nv > 0: in even layers nk key and nv value heads of 128, 4 taps; attention is gated, norms hold gain - 1 */
    size_t nk, nv;
} toy;

/* Writes config.json and model.safetensors (float32) into a fresh folder; caller frees the path. */
char *toy_write(const toy *t);
/* Logits (T, V) of ids at positions 0..T-1. Caller frees. */
double *toy_logits(const toy *t, const int32_t *ids, size_t T);
#endif
