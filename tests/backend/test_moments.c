/* Second moments in fp64 and the eigenproblem behind the same door. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "lab.h"

static const struct {
    size_t T, n;
} SHAPES[] = {{1, 1}, {3, 31}, {257, 33}, {600, 97}, {256, 48}, {40, 150}};
#define NSHAPES (sizeof SHAPES / sizeof *SHAPES)

typedef struct {
    double *acc, *sum;
} moments;

static moments run(mla_backend *be, const float *x, size_t ldx, size_t T, size_t n, const double *w, const double *shift)
{
    mla_err err = {0};
    moments m = {mla_alloc(n, n, sizeof(double)), mla_alloc(n, 1, sizeof(double))};
    for (size_t i = 0; i < n * n; i++) m.acc[i] = 0.5; /* added to, not replaced */
    ck_ok(be->ops->gram(be, &(mla_gram_args){.acc = dev(m.acc), .sum = dev(m.sum), .x = dev(x), .ldx = ldx, .T = T, .n = n,
                                             .w = w ? dev(w) : NULL, .shift = shift ? dev(shift) : NULL}, &err));
    return m;
}

static void check_gram(mla_backend *be, mla_isa isa)
{
    mla_backend *ref = lab_open(MLA_ISA_REF, 1);
    (void)isa;
    for (size_t s = 0; s < NSHAPES * 4; s++) {
        size_t T = SHAPES[s / 4].T, n = SHAPES[s / 4].n, ldx = n + 2;
        float *x = lab_normals(T * ldx, 70 + s, 1);
        double *w = mla_alloc(T, 1, sizeof *w), *shift = mla_alloc(n, 1, sizeof *shift);
        for (size_t t = 0; t < T; t++) w[t] = mla_rng_unit(1, t), x[t * ldx] += 800; /* one massive channel */
        for (size_t i = 0; i < n; i++) shift[i] = i ? 0.1 : 800;
        const double *pw = s & 1 ? w : NULL, *ps = s & 2 ? shift : NULL;
        moments m = run(be, x, ldx, T, n, pw, ps), r = run(ref, x, ldx, T, n, pw, ps);
        ck_assert(!memcmp(m.acc, r.acc, n * n * sizeof(double)) && !memcmp(m.sum, r.sum, n * sizeof(double)));
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < n; j++) {
                long double want = 0.5L, mag = 0.5L;
                for (size_t t = 0; t < T; t++) {
                    long double a = x[t * ldx + i] - (ps ? ps[i] : 0), b = x[t * ldx + j] - (ps ? ps[j] : 0), p = (pw ? pw[t] : 1) * a * b;
                    want += p, mag += fabsl(p);
                }
                ck_assert_msg(fabsl(m.acc[i * n + j] - want) <= ((double)T + 8) * 0x1p-53 * (double)mag, "T %zu n %zu (%zu,%zu)", T, n, i, j);
                ck_assert(m.acc[i * n + j] == m.acc[j * n + i]);
            }
        for (size_t threads = 1; threads <= 5; threads += 2) {
            mla_backend *b2 = lab_open(isa, threads);
            moments m2 = run(b2, x, ldx, T, n, pw, ps);
            ck_assert(!memcmp(m.acc, m2.acc, n * n * sizeof(double)) && !memcmp(m.sum, m2.sum, n * sizeof(double)));
            m2.acc[0] = nextafter(m2.acc[0], 1e9); /* negative control */
            ck_assert(memcmp(m.acc, m2.acc, n * n * sizeof(double)));
            mla_free(m2.acc), mla_free(m2.sum);
            mla_backend_close(b2);
        }
        mla_free(x), mla_free(w), mla_free(shift), mla_free(m.acc), mla_free(m.sum), mla_free(r.acc), mla_free(r.sum);
    }
    mla_backend_close(ref);
}

START_TEST(gram_and_sums) { lab_each_isa("gram", 2, check_gram); }
END_TEST

START_TEST(gram_of_the_sum_alone_and_of_nothing)
{
    mla_err err = {0};
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    float x[6] = {1, 2, 3, 4, 5, 6};
    double sum[2] = {10, 20}, acc[4] = {1, 2, 3, 4};
    ck_ok(be->ops->gram(be, &(mla_gram_args){.sum = dev(sum), .x = dev(x), .ldx = 2, .T = 3, .n = 2}, &err));
    ck_assert(sum[0] == 19 && sum[1] == 32);
    ck_ok(be->ops->gram(be, &(mla_gram_args){.acc = dev(acc), .x = dev(x), .ldx = 2, .T = 0, .n = 2}, &err));
    ck_assert(acc[0] == 1 && acc[1] == 2 && acc[2] == 3 && acc[3] == 4);
    x[3] = NAN; /* shows up where it belongs */
    ck_ok(be->ops->gram(be, &(mla_gram_args){.acc = dev(acc), .x = dev(x), .ldx = 2, .T = 3, .n = 2}, &err));
    ck_assert(acc[0] == 36 && isnan(acc[1]) && isnan(acc[2]) && isnan(acc[3]));
    mla_backend_close(be);
}
END_TEST

START_TEST(eigh_through_the_door)
{
    mla_err err = {0};
    mla_backend *be = lab_open(MLA_ISA_AUTO, 2);
    double a[9] = {2, 0, 0, 0, 1, 0, 0, 0, 3}, w[3];
    ck_ok(be->ops->eigh(be, a, w, 3, &err));
    ck_assert(w[0] == 1 && w[1] == 2 && w[2] == 3);
    ck_assert(a[1] == 1 && a[3] == 1 && a[8] == 1); /* row i = eigenvector i */
    a[0] = NAN;
    ck_refused(be->ops->eigh(be, a, w, 3, &err), MLA_EINVAL, "not finite");
    mla_backend_close(be);
}
END_TEST

Suite *suite_moments(void)
{
    Suite *s = suite_create("moments");
    TCase *t = tcase_create("moments");
    tcase_add_test(t, gram_and_sums);
    tcase_add_test(t, gram_of_the_sum_alone_and_of_nothing);
    tcase_add_test(t, eigh_through_the_door);
    suite_add_tcase(s, t);
    return s;
}
