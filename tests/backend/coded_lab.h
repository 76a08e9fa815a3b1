/* What the suites of packed weights share: golden matrices, drawn codes with their definition in plain C, products. */
#ifndef MLA_TESTS_BACKEND_CODED_LAB_H
#define MLA_TESTS_BACKEND_CODED_LAB_H
#include "io/safetensors.h"
#include "lab.h"
#include "quant/coded.h"
#include "quant/qconfig.h"
#include "tensor/coded.h"

typedef struct { /* one matrix to multiply with, decoded for the references */
    const char *name;
    mla_qmat q;
    mla_coded c;
    bool fits;
    float *w; /* (out, in) */
    mla_st *st;
    mla_qconfig *cfg;
} matrix;

extern const char *const CODED_GOLDEN[]; /* golden-quant/NAME */
enum { N_CODED_GOLDEN = 23 };
typedef struct {
    const char *file;
    uint32_t type;
    bool fits;
} coded_gguf;
extern const coded_gguf CODED_GGUF[];
enum { N_CODED_GGUF = 17 };
extern const char *const CODED_EXL3[];
enum { N_CODED_EXL3 = 12 };
void matrix_golden(matrix *m, size_t i);
void matrix_gguf(matrix *m, size_t i);
void matrix_exl3(matrix *m, size_t i);
void matrix_drop(matrix *m);
mla_status qmat_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err);

/* y (T, out), freed by the caller; nothing beyond a row is written */
float *product(mla_backend *be, const mla_weight *w, const float *x, size_t in, size_t out, size_t T);
/* |y - x W'| <= gamma_in sum |x w| in fp64, which both orders of the sum keep */
void near_fp64(const matrix *m, const float *x, const float *y, size_t T);

/* s, v and m of place p of a filled row: W = s v + m */
typedef struct {
    float s, v, m;
} coded_parts;
coded_parts coded_at(const mla_coded *c, const mla_coded_row *r, size_t p);

/* Drawn codes: any kind with any scale, sizes that fill no word, no panel and no block, groups that straddle blocks. */
typedef struct {
    mla_code code;
    unsigned bits;
    mla_scale_kind scale;
    mla_offset_kind offset;
    size_t out, in, group, super;
    enum { ODD, WHOLE, MIDDLE, E2M1, TINY, SIGNED } values; /* i - 3, i, i - half; fp4 under E4M3 over a factor; MIDDLE under tiny scales;
                                                               16 i - 127 */
    bool full;                                              /* every code is the largest */
} drawn;
extern const drawn DRAWN[];
extern const size_t N_DRAWN;
void drawn_make(mla_coded *c, const drawn *d);
mla_status drawn_fill(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *err);
mla_status drawn_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err);
#endif
