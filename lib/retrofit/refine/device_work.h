/* What device.c keeps on a device and its passes (device_pass.c, device_slots.c) work on. R slots, Q queries of each. */
#ifndef MLA_RETROFIT_REFINE_DEVICE_WORK_H
#define MLA_RETROFIT_REFINE_DEVICE_WORK_H
#include "retrofit/refine/device.h"

enum { MLA_DEV_PARTS = 5 }; /* E, D, mu, Er, Rq */

struct mla_dev_local {
    mla_backend *be;
    const mla_fit_ops *op;
    mla_local p;              /* sizes */
    mla_row_shape s;
    size_t n_rows, slots, r, w;
    size_t nd, kw, kh;        /* decoded values per group, dims of a key, heads of keys */
    mla_mem *bits, *own;      /* (n_rows, s.all) bf16; the same, or NULL: borrowed */
    mla_mem *o;               /* (n_rows, T, H d) targets */
    mla_mem *WW;              /* (H d, H d) */
    mla_mem *cos, *sin, *back;/* (T, rot/2); back: -sin */
    mla_mem *ucos, *usin;     /* layout absorbed-rope: the transposed rotation without the attention factor */
    mla_mem *gain, *ones;     /* (d - rot); ones */
    mla_mem *sums;            /* f64 (slots) */
    size_t count[MLA_DEV_PARTS];
    mla_mem *x[MLA_DEV_PARTS], *g[MLA_DEV_PARTS], *m[MLA_DEV_PARTS], *v[MLA_DEV_PARTS]; /* in one block */
    mla_mem *params, *room;   /* blocks */
    mla_mem *q;               /* (R, H, Q, kw) */
    mla_mem *P, *S;           /* (R, H, Q, T) */
    mla_mem *oh;              /* (R, H, Q, d) o^ - o, then dL/do^ / 2 */
    mla_mem *A, *B, *gate;    /* (R, Q, H d) */
    mla_mem *Yc;              /* (R, T, groups, n) */
    mla_mem *Yh, *dY;         /* (R, T, groups, nd) */
    mla_mem *c, *dc;          /* (R, T, groups, r) */
    mla_mem *K, *dK;          /* (R, kh, T, kw) */
    mla_mem *V, *dV;          /* (R, G, T, d) */
    mla_mem *inv;             /* (R, G, T) layout P */
    /* absorbed-rope */
    mla_mem *qr;              /* (R, H, Q, d) rotated queries */
    mla_mem *tc, *ts;         /* (R, Q, rot/2) */
    mla_mem *kr;              /* (G, R, T, d) rotated keys */
    mla_mem *z, *dz, *zh;     /* (R, T, w) twice; (R, H, T, w) */
    mla_mem *dq;              /* (R, H, Q, w) */
};

static inline size_t mla_dev_queries(const mla_dev_local *d, const mla_dev_rows *s) { return (d->s.T - 1) / s->stride + 1; }
static inline size_t mla_dev_phase(const mla_dev_rows *s, size_t i) { return s->phase ? s->phase[i] : 0; }
/* Rotary keys stand beside the latent as they are. */
static inline bool mla_dev_beside(const mla_dev_local *d) { return d->p.layout == MLA_LAYOUT_N || d->p.layout == MLA_LAYOUT_P; }
static inline const mla_mem *mla_cat(const mla_mem *p, size_t elems) { return (const mla_mem *)((const char *)p + elems * 4); }

/* A spread over the rows of s of what is recorded `at` values into each row; per query: from the row's first one on, `token`
 * values a token, otherwise all tokens. Sizes and strides are the caller's. */
mla_spread_args mla_dev_recorded(const mla_dev_local *d, const mla_dev_rows *s, size_t at, size_t token, bool per_query);
/* The same of equal parts of memory, `each` elements apart, or of one array for all (each 0). */
mla_spread_args mla_dev_parts(const mla_mem *x, size_t parts, size_t each);

/* a.count 0: one product. */
MLA_CHECKED mla_status mla_dev_product(mla_dev_local *d, mla_product_args a, mla_err *err);
/* y at strides yp (parts), ys[0], ys[1], 1 from a's sources at xs[0], xs[1], 1. */
MLA_CHECKED mla_status mla_dev_spread(mla_dev_local *d, mla_spread_args a, mla_mem *y, const size_t n[3], size_t yp, const size_t ys[2], const size_t xs[2],
                                      mla_err *err);
#define MLA_DIMS(...) (const size_t[]){__VA_ARGS__}

/* Parameters and the room of passes for rank r and w rotary values; kept while those stay. */
MLA_CHECKED mla_status mla_dev_local_shape(mla_dev_local *d, size_t r, size_t w, mla_err *err);
/* q (R, H, Q, d) of the rows. */
MLA_CHECKED mla_status mla_dev_queries_of(mla_dev_local *d, const mla_dev_rows *s, mla_mem *q, mla_err *err);

/* q, K, V from what is decoded, and back: dY, Er and Rq. */
MLA_CHECKED mla_status mla_dev_slots_inputs(mla_dev_local *d, const mla_dev_rows *s, mla_err *err);
MLA_CHECKED mla_status mla_dev_slots_back(mla_dev_local *d, const mla_dev_rows *s, mla_err *err);
#endif
