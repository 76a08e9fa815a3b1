/* Gated delta rule: what the recurrent and the chunked form share. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_GDN_H
#define MLA_BACKEND_CPU_GDN_H
#include "backend/cpu/cpu.h"

typedef struct {
    const mla_cpu_kern *k;
    const mla_gdn_args *a;
    float *q, *key;         /* (nk, T, dk) l2-normalised; q times dk^-1/2 */
    float *kq;              /* (T, nk) k . q */
    float *alpha, *beta;    /* (T, nv) e^g, sigmoid(b) */
    double *g;              /* (T, nv) log decay, <= 0 */
    float *work;            /* per worker */
    size_t work_elems;
} mla_gdn_job;

size_t mla_gdn_chunk_elems(const mla_gdn_args *a);
/* par_for body over the nv heads: the chunked form. */
void mla_gdn_chunked(void *ctx, size_t begin, size_t end, size_t worker);
#endif
