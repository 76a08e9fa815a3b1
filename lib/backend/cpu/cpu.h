/* The CPU backend's own state and the functions its op table is made of. Private to backend/.
 *
 * One op at a time per backend (the pool is not reentrant): ops share one growable scratch block and never keep
 * pointers into it. Device memory is host memory: an mla_mem * is the address itself. */
#ifndef MLA_BACKEND_CPU_CPU_H
#define MLA_BACKEND_CPU_CPU_H
#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/par.h"

typedef struct {
    mla_backend base;
    mla_pool *pool;
    size_t threads;
    const mla_cpu_kern *k; /* = &kern */
    mla_cpu_kern kern;
    char *scratch;
    size_t scratch_bytes;
    char text[200];
} mla_cpu;

typedef enum { MLA_W_DECODED, MLA_W_CODES, MLA_W_TRELLIS, MLA_W_UNDECODED } mla_weight_form;

typedef struct { /* bits of the planes, inputs that fill whole words of both */
    unsigned a, b, unit;
} mla_code_plane;
extern const mla_code_plane mla_code_planes[MLA_CODE_TRELLIS];

typedef struct { /* one block of a panel of codes: where its parts stand, in bytes */
    size_t scales, offsets, supers, super_offs, marks, a, b, bytes;
} mla_code_part;

typedef struct { /* panels of codes */
    mla_coded c;            /* without perm, fill and what belongs to the format */
    size_t octets;          /* inputs / 8, rounded up */
    size_t groups, supers, blocks;
    mla_code_part part[2];  /* of a block of MLA_KP inputs, of the last one */
    bool ints;              /* codes stand for integers u, v = factor u + shift, and no scale is so odd that this loses a bit */
    uint8_t look[16];       /* NIBBLE: u */
    float factor, shift;
    mla_dot_form dot;       /* products in whole numbers: u - base = v / factor, by `unit` octets */
    int32_t base;
    size_t unit;
    float e4m3;             /* entries of the table are e4m3 numbers times this, one rounding aside; 0: they are not */
    bool split;             /* digits hold for every scale */
    float digits[16];
} mla_code_layout;

struct mla_weight {
    mla_weight_form form;
    size_t out, in, panels; /* panels of MLA_NR outputs; TRELLIS: in and panels of stored dims, multiples of 128 */
    size_t trellis_in;      /* TRELLIS: inputs, the rest of `in` is padding */
    size_t panel_bytes, bytes;
    mla_precision precision;
    char *data;             /* DECODED: (panels) of (in, MLA_NR) f32 or (ceil(in/2), MLA_NR) bf16 pairs */
    char *block;            /* what data lies in */
    uint32_t *perm;         /* CODES: (in) input of every place; NULL: as they come */
    mla_code_layout code;
    mla_trellis_plan plan;  /* TRELLIS: pairs of panels of (in128 / 16, 2 K, 32) u16 */
    float *su, *sv;         /* TRELLIS: (in128), (out128), sv with both transforms' 1/128 */
    mla_rows_fn rows;       /* UNDECODED */
    void *ctx;
};

static inline mla_cpu *mla_cpu_of(mla_backend *be) { return (mla_cpu *)(void *)be; }
static inline float *mla_f32p(mla_mem *p) { return (float *)(void *)p; }
static inline const float *mla_cf32p(const mla_mem *p) { return (const float *)(const void *)p; }
static inline double *mla_f64p(mla_mem *p) { return (double *)(void *)p; }
static inline size_t mla_min_size(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t mla_ceil_div(size_t a, size_t b) { return a / b + (a % b != 0); }

mla_status mla_cpu_open(mla_backend **out, const mla_backend_opts *o, mla_err *err);
/* Fills the table of a variant; false when this CPU cannot run it. AUTO gives the best. */
bool mla_cpu_pick(mla_isa isa, mla_cpu_kern *out);
/* The same for tests and benchmarks, one step of an isa at a time: ref, avx2, avxvnni, avx512, avx512vnni, avx512bf16, avx512fp16. */
bool mla_cpu_pick_named(const char *name, mla_cpu_kern *out);

/* Scratch: sum sizes with mla_cut (64-byte aligned pieces, false on overflow), then take the block once per op. */
bool mla_cut(size_t *total, size_t *off, size_t a, size_t b, size_t size);
mla_status mla_cpu_scratch(mla_cpu *c, size_t bytes, const char *what, char **out, mla_err *err);
/* 64-byte aligned, not zeroed; asks for huge pages when large. Free with mla_free. */
void *mla_cpu_big(size_t bytes);

/* C (M, N; ldc) = A (M, K; lda) B, or alpha_i C + A B with alpha (M); B in panels (ceil(N/32), K, 32), C rows must
 * hold N rounded up to 32. abuf: (MLA_MR, MLA_LDA) f32. Summation as in the linear contract. */
typedef struct {
    const float *a;
    size_t lda;
    const float *b;
    float *c;
    size_t ldc, M, N, K;
    const float *alpha;
} mla_mm;
void mla_cpu_mm(const mla_cpu_kern *k, float *abuf, const mla_mm *g);
/* B panels (ceil(N/32), K, 32) from row-major (K, N; ld). */
void mla_cpu_panels(float *dst, const float *src, size_t ld, size_t K, size_t N);

mla_status mla_cpu_weight_new(mla_backend *, mla_weight **out, const mla_weight_desc *, mla_err *);
void mla_cpu_weight_free(mla_backend *, mla_weight *);
size_t mla_cpu_weight_bytes(const mla_weight *);
mla_status mla_cpu_coded_new(mla_cpu *, mla_weight *w, const mla_weight_desc *, mla_err *); /* fills *w; freed by the caller */
/* Finds ints, dot and split, and what belongs to them; odd: some scale is none that codes as integers may take */
void mla_cpu_code_kinds(mla_code_layout *l, bool odd);
mla_status mla_cpu_trellis_new(mla_cpu *, mla_weight *w, const mla_weight_desc *, mla_err *);
/* Values at [MLA_KP kp, + at most MLA_KP) of panel p of CODES or TRELLIS, rounded up to octets: dst (MLA_KP, MLA_NR).
 * scales: room of 2 MLA_CODE_PANELS MLA_CODE_SEGS MLA_NR f32. */
void mla_cpu_code_tile(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t kp, float *dst, float *scales);
/* c (np, MLA_NR) = or += the same times x, panels p .. p + np - 1 */
void mla_cpu_code_gemv(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t np, size_t kp, const float *x, float *c, float *scales);
/* What dot_gemv takes of panel p: codes of CODES with code.dot, and its scales, in `scales` */
mla_code_block mla_cpu_code_dot_block(const mla_cpu_kern *k, const mla_weight *w, size_t p, size_t kp, float *scales);
#define MLA_CODE_SCALES ((size_t)2 * MLA_CODE_PANELS * MLA_CODE_SEGS * MLA_NR)
/* Around the product of TRELLIS: x (T, in; ldx) to x2 (T, in128), y2 (T, out128) to y. */
void mla_cpu_trellis_in(const mla_cpu_kern *k, const mla_weight *w, float *x2, const float *x);
void mla_cpu_trellis_out(const mla_cpu_kern *k, const mla_weight *w, float *y2); /* one row in place */
mla_status mla_cpu_linear(mla_backend *, const mla_weight *, const mla_linear_args *, mla_err *);
mla_status mla_cpu_embed(mla_backend *, const mla_weight *, mla_mem *y, const int32_t *ids, size_t T, mla_err *);
mla_status mla_cpu_rmsnorm(mla_backend *, const mla_norm_args *, mla_err *);
mla_status mla_cpu_gated_norm(mla_backend *, const mla_gated_norm_args *, mla_err *);
mla_status mla_cpu_rope(mla_backend *, const mla_rope_args *, mla_err *);
mla_status mla_cpu_add(mla_backend *, mla_mem *y, const mla_mem *x, size_t n, mla_err *);
mla_status mla_cpu_add_rows(mla_backend *, mla_mem *y, size_t ldy, size_t rows, size_t d, const mla_mem *v, float s, mla_err *);
mla_status mla_cpu_silu_mul(mla_backend *, mla_mem *y, const mla_mem *a, const mla_mem *b, size_t n, mla_err *);
mla_status mla_cpu_sigmoid_mul(mla_backend *, mla_mem *x, const mla_mem *gate, size_t rows, size_t d, size_t ldg, mla_err *);
mla_status mla_cpu_copy_rows(mla_backend *, mla_mem *y, size_t ldy, const mla_mem *x, size_t ldx, size_t rows, size_t d, mla_err *);
mla_status mla_cpu_kv_write(mla_backend *, const mla_kv_write_args *, mla_err *);
mla_status mla_cpu_kv_read(mla_backend *, const mla_kv_read_args *, mla_err *);
mla_status mla_cpu_attention(mla_backend *, const mla_attn_args *, mla_err *);
mla_status mla_cpu_divisor(mla_backend *, const mla_divisor_args *, mla_err *);
mla_status mla_cpu_conv(mla_backend *, const mla_conv_args *, mla_err *);
mla_status mla_cpu_gdn(mla_backend *, const mla_gdn_args *, mla_err *);
mla_status mla_cpu_gram(mla_backend *, const mla_gram_args *, mla_err *);
mla_status mla_cpu_gated_change(mla_backend *, const mla_change_args *, mla_err *);
mla_status mla_cpu_range(mla_backend *, const mla_mem *x, size_t rows, size_t d, size_t ld, mla_range *out, mla_err *);
mla_status mla_cpu_eigh(mla_backend *, double *a, double *w, size_t n, mla_err *);

/* Bytes of one element of a cache dtype; 0 when a cache cannot hold it. */
size_t mla_kv_elem_bytes(mla_dtype t);
mla_status mla_kv_check(const mla_kv_view *v, const char *what, mla_err *err);
/* What a cursor says of a call of T tokens; at NULL: nothing changes. */
mla_status mla_cursor_get(const mla_cursor *at, size_t T, size_t *pos0, const int32_t **pages, const char *what, mla_err *err);
/* Divisors (divisor.c): their view, and 1 / d of n tokens from s0 on for one head. */
mla_status mla_divisor_check(const mla_kv_view *v, const char *what, mla_err *err);
void mla_divisor_inverse(float *m, const mla_kv_view *v, size_t head, size_t s0, size_t n);
/* Address of element `col` (from the view's own col on) of token s. 64-bit slot arithmetic. */
char *mla_kv_at(const mla_kv_view *v, size_t elem_bytes, size_t s, size_t col);
#endif
