/* EXL3 packed: states one by one, golden matrices value by value, products within a derived bound; the same bits in every variant. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "coded_lab.h"
#include "quant/exl3_tile.h"
#include "tensor/bound.h"

static const matrix *now; /* of the callbacks below */

/* Every value of every tile as the dequantizer's, in every variant. */
static void check_tiles(const matrix *m, mla_backend *be, const mla_weight *w)
{
    const mla_trellis *t = &m->c.trellis;
    mla_cpu *c = mla_cpu_of(be);
    float got[256 * MLA_NR], want[16 * 16];
    for (size_t p = 0; p < w->panels; p++)
        for (size_t kp = 0; kp * MLA_KP < w->in; kp++) {
            size_t tiles = mla_min_size(MLA_KP, w->in - kp * MLA_KP) / 16;
            mla_cpu_code_tile(c->k, w, p, kp, got, NULL);
            for (size_t a = 0; a < tiles; a++)
                for (size_t b = 0; b < 2; b++) {
                    size_t at = (kp * 16 + a) * (t->out128 / 16) + 2 * p + b;
                    mla_exl3_tile(want, 16, t->tiles + at * 16 * t->twice_k, t->twice_k, (mla_qcodebook)(t->codebook + MLA_QC_3INST));
                    for (size_t r = 0; r < 16; r++)
                        for (size_t col = 0; col < 16; col++) {
                            float g = got[(a * 16 + r) * MLA_NR + col / 8 * 16 + b * 8 + col % 8];
                            ck_assert_msg(g == want[r * 16 + col], "%s: tile %zu value (%zu, %zu): %g, want %g", m->name, at, r, col, (double)g, (double)want[r * 16 + col]);
                        }
                }
        }
}

/* Transforms without their factors are sqrt(128) times orthogonal, so rounding errors keep their norms: stages 2 x 7 with
 * their scalings, a product of length n between them. With V the codebook values of the 128 outputs around o,
 *   |error of y_o| <= g |sv_o| |V|_F |su x|_2,   g = gamma_prob(n + 20) here + gamma_prob(20) of the rows compared with;
 * on the fast path V itself may be off by 2^-11 of every value, and so by as much of its norm. */
static double exl3_bound(const matrix *m, const float *su, const float *sv, const float *x, size_t o, bool fast)
{
    double v = 0, s = 0, g = mla_gamma_prob(MLA_F32, m->q.in + 20) + mla_gamma_prob(MLA_F32, 20) + (fast ? 0x1p-11 : 0);
    for (size_t r = o / 128 * 128; r < o / 128 * 128 + 128; r++)
        for (size_t i = 0; i < m->q.in; i++) v += pow((double)m->w[r * m->q.in + i] / ((double)su[i] * sv[r]), 2);
    for (size_t i = 0; i < m->q.in; i++) s += pow((double)su[i] * x[i], 2);
    return g * fabs((double)sv[o]) * sqrt(v) * sqrt(s);
}

static float *exl3_first, *exl3_fast; /* products of the reference variant */
static void check_exl3(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    const matrix *m = now;
    size_t in = m->q.in, out = m->q.out, T = 16;
    mla_weight *w;
    float *x = lab_normals(T * in, 21, 1), *su = mla_alloc(in, 1, sizeof *su), *sv = mla_alloc(out, 1, sizeof *sv);
    m->c.sides(&m->c, su, sv);
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = out, .in = in, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q, .coded = &m->c}, &err));
    check_tiles(m, be, w);
    float *y = product(be, w, x, in, out, T), *one = product(be, w, x + 3 * in, in, out, 1);
    ck_assert(lab_same_bits("exl3 row alone", one, y + 3 * out, out));
    if (isa == MLA_ISA_REF) exl3_first = lab_copy(y, T * out);
    ck_assert_msg(lab_same_bits("exl3", y, exl3_first, T * out), "%s: another variant's bits", m->name);
    for (size_t o = 0; o < out; o += 37) {
        double want = 0, tol = exl3_bound(m, su, sv, x, o, false);
        for (size_t i = 0; i < in; i++) want += (double)x[i] * m->w[o * in + i];
        ck_assert_msg(fabs(y[o] - want) <= tol, "%s output %zu: error %g > %g", m->name, o, fabs(y[o] - want), tol);
        ck_assert_double_lt(tol, 1e-2 * fabs(want) + 1e-2); /* the bound means something */
    }
    be->ops->weight_free(be, w);
    mla_free(y), mla_free(one);

    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = out, .in = in, .precision = MLA_PREC_BF16, .rows = qmat_rows, .ctx = (void *)(uintptr_t)&m->q, .coded = &m->c}, &err));
    y = product(be, w, x, in, out, T), one = product(be, w, x + 3 * in, in, out, 1);
    ck_assert(lab_same_bits("exl3 row alone, fast", one, y + 3 * out, out));
    if (isa == MLA_ISA_REF) exl3_fast = lab_copy(y, T * out);
    if (isa != MLA_ISA_AVX512BF16) ck_assert_msg(lab_same_bits("exl3, fast", y, exl3_fast, T * out), "%s: another variant's bits", m->name); /* where f16 arithmetic rounds */
    for (size_t o = 0; o < out; o += 37) {
        double want = 0, tol = exl3_bound(m, su, sv, x, o, true);
        for (size_t i = 0; i < in; i++) want += (double)x[i] * m->w[o * in + i];
        ck_assert_msg(fabs(y[o] - want) <= tol, "%s output %zu, fast: error %g > %g", m->name, o, fabs(y[o] - want), tol);
    }
    be->ops->weight_free(be, w);
    mla_free(x), mla_free(su), mla_free(sv), mla_free(y), mla_free(one);
}

START_TEST(exl3)
{
    matrix m;
    matrix_exl3(&m, (size_t)_i);
    ck_assert(m.fits);
    now = &m;
    lab_each_isa(m.name, 2, check_exl3);
    mla_free(exl3_first), mla_free(exl3_fast);
    matrix_drop(&m);
}
END_TEST

/* Every state of every codebook: at 8 bits a state is two bytes of a ring of 256. */
enum { STATES_IN = 256, STATES_OUT = 384, STATES_TILES = STATES_IN / 16 * (STATES_OUT / 16) };

/* Byte i of ring t. The first 128 rings go on by an odd step and so hold every pair of that difference; the others go on by an even step
 * and by 1 in turn: the 256 pairs of that difference fill two of them. */
static unsigned char ring_byte(size_t t, size_t i)
{
    if (t < 128) return (unsigned char)((2 * t + 1) * i);
    size_t step = (t - 128) / 2 * 2;
    return (unsigned char)(t % 2 * 128 + i / 2 * (step + 1) + i % 2 * step);
}

static void ones(const mla_coded *c, float *su, float *sv)
{
    for (size_t i = 0; i < c->trellis.out128; i++) su[i < c->trellis.in128 ? i : 0] = sv[i] = 1;
}

static void check_states(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    mla_weight *w;
    (void)isa;
    ck_ok(be->ops->weight_new(be, &w, &(mla_weight_desc){.out = STATES_OUT, .in = STATES_IN, .rows = qmat_rows, .coded = &now->c}, &err));
    check_tiles(now, be, w), be->ops->weight_free(be, w);
}

START_TEST(every_state)
{
    unsigned char *tiles = mla_alloc(STATES_TILES, 256, 1), *seen = mla_alloc(1, 65536, 1);
    size_t n = 0;
    for (size_t i = 0; i < (size_t)256 * STATES_TILES; i++) tiles[i] = ring_byte(i / 256, i % 256 ^ 3);
    for (size_t t = 0; t < STATES_TILES; t++)
        for (size_t i = 0; i < 256; i++) seen[tiles[256 * t + (i ^ 3)] << 8 | tiles[256 * t + ((i + 1) % 256 ^ 3)]] = 1;
    for (size_t s = 0; s < 65536; s++) n += seen[s];
    ck_assert_uint_eq(n, 65536);
    mla_coded c = {.out = STATES_OUT, .in = STATES_IN, .code = MLA_CODE_TRELLIS, .group = STATES_IN, .sides = ones, .trellis = {tiles, 16, (unsigned)_i, STATES_IN, STATES_OUT}};
    matrix m = {.name = _i == 0 ? "3inst" : _i == 1 ? "mcg" : "mul1", .q.in = STATES_IN, .q.out = STATES_OUT, .c = c};
    now = &m, lab_each_isa(m.name, 2, check_states);
    mla_free(tiles), mla_free(seen);
}
END_TEST

Suite *suite_exl3(void)
{
    Suite *s = suite_create("exl3");
    TCase *c = tcase_create("exl3");
    tcase_add_loop_test(c, exl3, 0, N_CODED_EXL3);
    tcase_add_loop_test(c, every_state, 0, 3);
    suite_add_tcase(s, c);
    return s;
}
