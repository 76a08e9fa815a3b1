/* What the backend tests share: one backend per variant and thread count, deterministic inputs, fp64 references. */
#ifndef MLA_TESTS_BACKEND_LAB_H
#define MLA_TESTS_BACKEND_LAB_H
#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "harness.h"
#include "tensor/compare.h"

/* Runs body(be, is_ref) on every variant this CPU has, REF first; counts the missing ones as skipped. */
typedef void (*lab_body)(mla_backend *be, mla_isa isa);
void lab_each_isa(const char *what, size_t threads, lab_body body);
mla_backend *lab_open(mla_isa isa, size_t threads); /* NULL: this CPU lacks it */

/* n normals of stream `seed`, times scale. Caller frees with mla_free. */
float *lab_normals(size_t n, uint64_t seed, double scale);
float *lab_poisoned(size_t n);             /* all NaN */
float *lab_copy(const float *x, size_t n);
/* n floats that end at an inaccessible page, filled with normals; touching past the end kills the test. Never freed. */
float *lab_guarded(size_t n, uint64_t seed);
static inline mla_mem *dev(const void *p) { return (mla_mem *)(uintptr_t)p; }

/* Bitwise comparison; prints the first difference. */
bool lab_same_bits(const char *what, const float *got, const float *want, size_t n);
/* max |got - want| <= tol and everything finite; prints otherwise. */
bool lab_close(const char *what, const float *got, const double *want, size_t n, double tol);

mla_weight *lab_weight(mla_backend *be, const float *w, size_t out, size_t in, mla_precision p);

/* fp64 attention over dense f32 keys and values: args as in mla_attn_args with k, k2, v dense (S, heads, d). */
typedef struct {
    const float *q, *q2, *k, *k2, *v;
    size_t T, H, dk, dk2, dv, kh, k2h, vh, pos0;
    double scale;
} lab_attn;
void lab_attention(const lab_attn *a, double *o, double *p2 /* (S), may be NULL */);

/* fp64 gated delta rule, token by token. state (nv, dk, dv) read and replaced. */
typedef struct {
    const float *qkv, *a, *b, *A_log, *dt_bias;
    size_t T, nk, nv, dk, dv;
} lab_gdn;
void lab_gated_delta(const lab_gdn *g, double *state, double *o);

Suite *suite_linear(void);
Suite *suite_rows(void);
Suite *suite_attention(void);
Suite *suite_gdn(void);
Suite *suite_cache(void);
Suite *suite_moments(void);
Suite *suite_edges(void);
Suite *suite_divisor(void);
Suite *suite_coded(void);
Suite *suite_drawn(void);
Suite *suite_exl3(void);
Suite *suite_dot(void);
Suite *suite_step(void);
#endif
