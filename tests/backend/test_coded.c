/* Packed weights: every golden matrix of every format against the decoded weight bit by bit and against fp64, for every variant and
 * number of rows. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "coded_lab.h"

static const size_t ROWS[] = {1, 2, 15, 17, 240}; /* one, a few, past a tile, past a block of tokens */
#define NROWS (sizeof ROWS / sizeof *ROWS)

/* One backend: packed (and undecoded) against decoded, rows of one call against calls of one row. */
static void check_matrix(const matrix *m, mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    size_t in = m->q.in, out = m->q.out;
    mla_weight *dense, *packed = NULL, *lazy;
    mla_weight_desc d = {.out = out, .in = in, .precision = MLA_PREC_F32, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q};
    float *x = lab_normals(ROWS[NROWS - 1] * in, 7, 1);
    ck_ok(be->ops->weight_new(be, &dense, &d, &err));
    if (m->fits) {
        d.coded = &m->c;
        ck_ok(be->ops->weight_new(be, &packed, &d, &err));
        d.coded = NULL;
    }
    d.undecoded = true;
    ck_ok(be->ops->weight_new(be, &lazy, &d, &err));
    ck_assert_uint_eq(be->ops->weight_bytes(lazy), 0);
    for (size_t r = 0; r < NROWS; r++) {
        size_t T = isa == MLA_ISA_REF && ROWS[r] > 20 ? 20 : ROWS[r];
        float *want = product(be, dense, x, in, out, T), *got = product(be, lazy, x, in, out, T);
        ck_assert_msg(lab_same_bits(m->name, got, want, T * out), "%s, undecoded, %zu rows", m->name, T);
        mla_free(got);
        if (packed) {
            got = product(be, packed, x, in, out, T);
            if (T <= 2) near_fp64(m, x, got, T);
            if (!m->c.perm) ck_assert_msg(lab_same_bits(m->name, got, want, T * out), "%s, %zu rows", m->name, T);
            float *last = product(be, packed, x + (T - 1) * in, in, out, 1);
            ck_assert_msg(lab_same_bits(m->name, last, got + (T - 1) * out, out), "%s: row %zu alone", m->name, T - 1);
            mla_free(last), mla_free(got);
        }
        mla_free(want);
    }
    be->ops->weight_free(be, dense), be->ops->weight_free(be, packed), be->ops->weight_free(be, lazy);
    mla_free(x);
}

static const matrix *now; /* of the callback below */
static void check_now(mla_backend *be, mla_isa isa) { check_matrix(now, be, isa); }
/* Rows out of a packed table, and counted bytes: no more than 1.15 of what is stored, edges and short last panels aside. */
static void check_embed_and_bytes(const matrix *m)
{
    mla_err err = {0};
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    mla_weight *w;
    size_t in = m->q.in, n = 5, padded = (m->q.out + 31) / 32 * 32;
    int32_t ids[5] = {0, (int32_t)m->q.out - 1, 3, (int32_t)m->q.out / 2, 3};
    float *y = lab_poisoned(n * in);
    mla_weight_desc d = {.out = m->q.out, .in = in, .precision = MLA_PREC_F32, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q, .coded = &m->c};
    ck_ok(be->ops->weight_new(be, &w, &d, &err));
    ck_ok(be->ops->embed(be, w, dev(y), ids, n, &err));
    for (size_t t = 0; t < n; t++) ck_assert(lab_same_bits(m->name, y + t * in, m->w + (size_t)ids[t] * in, in));
    double stored = (double)mla_qmat_bytes(&m->q) / (double)m->q.out * (double)padded;
    ck_assert_msg((double)be->ops->weight_bytes(w) <= 1.15 * stored + 1024, "%s: %zu bytes for %.0f stored", m->name, be->ops->weight_bytes(w), stored);
    be->ops->weight_free(be, w);
    mla_backend_close(be);
    mla_free(y);
}

START_TEST(golden)
{
    matrix m;
    matrix_golden(&m, (size_t)_i);
    ck_assert_msg(m.fits, "%s has no packed form", m.name);
    ck_assert(!m.c.perm == !(strstr(m.name, "actorder") || strstr(m.name, "descact")));
    now = &m;
    lab_each_isa(m.name, 2, check_now);
    check_embed_and_bytes(&m);
    matrix_drop(&m);
}
END_TEST

START_TEST(golden_gguf)
{
    matrix m;
    matrix_gguf(&m, (size_t)_i);
    ck_assert_msg(m.fits == CODED_GGUF[_i].fits, "%s: packed form %d", m.name, m.fits);
    now = &m;
    lab_each_isa(m.name, 2, check_now);
    if (m.fits) check_embed_and_bytes(&m);
    matrix_drop(&m);
}
END_TEST

Suite *suite_coded(void)
{
    Suite *s = suite_create("coded");
    TCase *c = tcase_create("coded");
    tcase_add_loop_test(c, golden, 0, N_CODED_GOLDEN);
    tcase_add_loop_test(c, golden_gguf, 0, N_CODED_GGUF);
    suite_add_tcase(s, c);
    return s;
}
