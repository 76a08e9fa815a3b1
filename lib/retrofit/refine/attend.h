/* One head's causal attention over one row of tokens, forward and backward, and the error of a layer's output that follows:
 * what every local refinement is made of (refine_local.h, shared_local.h).
 *
 *   P = softmax(scale q k^T) over the keys up to each query,  o^ = P v
 *   loss = sum_t |W_O (gamma_t o (o^_t - o_t))|^2 = sum_t a_t^T (W_O^T W_O) a_t
 * Backwards from dO = dL/do^: dv = P^T dO, dS = P o (dO v^T - rowsum(P o dO v^T)), dk = scale dS^T q, dq = scale dS k.
 * Only queries phase, phase + stride, ... count; Q of them. f32 over one-threaded products, in blocks of queries: the order of
 * sums is fixed. */
#ifndef MLA_RETROFIT_ATTEND_H
#define MLA_RETROFIT_ATTEND_H
#include <stddef.h>

#define MLA_HEAD_BLOCK 64 /* queries per product: keys after the block's last query are skipped */

typedef struct {          /* which queries of a row of T tokens count */
    size_t T, phase, stride;
} mla_span;
size_t mla_span_queries(const mla_span *s);

typedef struct {
    size_t dk, dv;        /* dims of queries and keys, of values */
    float scale;
    const float *q, *k, *v; /* (T, dk; ldq), (T, dk; ldk), (T, dv; ldv) */
    size_t ldq, ldk, ldv;
    float *P;             /* (Q, T): written forward, read backward */
} mla_head;

typedef struct {          /* all of them added to, except dq */
    float *dk, *dv;       /* (T, dk; lddk), (T, dv; lddv) */
    float *dq;            /* (Q, dk - from; lddq): of query dims from on; NULL: not wanted */
    size_t lddk, lddv, lddq, from;
    float *S;             /* scratch (MLA_HEAD_BLOCK, T) */
} mla_head_grad;

/* o (Q, dv; ldo) */
void mla_head_forward(const mla_head *h, const mla_span *s, float *o, size_t ldo);
/* From dO (Q, dv; ldo). */
void mla_head_backward(const mla_head *h, const mla_span *s, const float *dO, size_t ldo, const mla_head_grad *g);

typedef struct {          /* a layer's output on one row; H d = width */
    size_t width;
    const float *WW;      /* (width, width) = W_O^T W_O */
    const float *gamma;   /* (T, width); NULL when ungated */
    const float *o;       /* (T, width): the target before the gate */
    float *A, *B;         /* scratch (T, width): gamma o (o^ - o), and its product with WW */
} mla_output;
/* The loss of o^ (Q, width); o^ NULL: of no output at all, the energy. */
double mla_output_loss(const mla_output *x, const mla_span *s, const float *o);
/* dL/do^ (Q, width), after mla_output_loss of it. */
void mla_output_back(const mla_output *x, const mla_span *s, float *dO);
#endif
