/* Suites of the runtime's test binary, and the model they share. */
#ifndef MLA_TESTS_RUNTIME_SUITES_H
#define MLA_TESTS_RUNTIME_SUITES_H
#include "harness.h"
#include "io/safetensors.h"
#include "runtime/runtime.h"
#include "runtime/score.h"

Suite *score_suite(void);
Suite *rope_suite(void);
Suite *tensors_suite(void);
Suite *reference_suite(void);
Suite *chunks_suite(void);
Suite *latent_suite(void);
Suite *shared_suite(void);
Suite *refuse_suite(void);
Suite *naive_suite(void);
Suite *packed_suite(void);
Suite *mixed_suite(void);

/* A model on a backend. Everything aborts the test on failure. */
typedef struct {
    mla_model *m;
    mla_backend *be;
    const mla_config *c;
} world;
world world_open(const char *path, size_t threads); /* path NULL: the tiny hybrid */
void world_close(world *w);
const char *tiny_hybrid(void);
mla_rt *world_rt(const world *w, mla_rt_opts o);

/* Logits (n - from, V) of ids through a fresh sequence in chunks of `chunk` tokens (0: all at once) with a last chunk of
 * `last` tokens (0: whatever remains). Caller frees. */
float *run_chunks(mla_rt *rt, const int32_t *ids, size_t n, size_t from, size_t chunk, size_t last);
/* n ids of plausible text: the recorded 64 input ids, repeated. Caller frees. */
int32_t *some_ids(size_t n);
/* Mean KLD over n rows of V logits. */
double mean_kld(const float *p, const float *q, size_t n, size_t V);
/* Relative bound of the fp32 error of anything after `layers` layers over S tokens, derived, not tuned:
 * gamma_prob (8 sqrt(N) u) for the N roundings along the longest path, for each of two sides (sqrt 2); docs/runtime.md.
 * Relative to the largest value of the tensor. */
double path_bound(const mla_config *c, double layers, size_t S);
/* The recorded tensors; tensor_f32 returns a caller-owned copy as f32. */
mla_st *recorded(void);
float *tensor_f32(const mla_st *s, const char *name, size_t *n);
#endif
