/* Local refinement through the operations of a device (backend/fit.h), here those of the plain reference: what the host computes, in
 * every layout, and whole refinements that reach the same loss. tests/cuda/test_refine.c runs the same cases on a GPU. */
#include "harness.h"
#include "local_cases.h"

static void tell(const char *name, const char *what, double got, double allowed)
{
    ck_assert_msg(got <= allowed, "%s: %s differs by %g, allowed %g", name, what, got, allowed);
}

/* The CPU with the reference's operations as its own. */
static void lend(mla_backend *be, mla_backend_ops *ops)
{
    *ops = *be->ops;
    ops->fit = &mla_fit_plain;
    be->ops = ops;
}

START_TEST(a_device_computes_what_the_host_does)
{
    mla_backend *be;
    mla_backend_ops ops;
    mla_err err;
    ck_ok(mla_backend_open(&be, &(mla_backend_opts){.threads = 2}, &err));
    lend(be, &ops);
    ck_ok(local_run(be, &LOCAL_CASE[_i], tell, &err));
    mla_backend_close(be);
}
END_TEST

typedef struct {
    mla_model *m;
    mla_backend *be;
    mla_backend_ops ops;
    mla_pool *pool;
    char *dir;
} lab;

static void open_lab(lab *l)
{
    mla_err err;
    l->dir = mla_test_tmpdir();
    ck_ok(mla_model_open(&l->m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_backend_open(&l->be, &(mla_backend_opts){.threads = 2}, &err));
    ck_ok(mla_pool_new(&l->pool, 2, &err));
    lend(l->be, &l->ops);
}

static void close_lab(lab *l)
{
    mla_pool_free(l->pool);
    mla_backend_close(l->be);
    mla_model_close(l->m);
    mla_free(l->dir);
}

START_TEST(a_refinement_there_reaches_the_same_loss)
{
    lab l;
    mla_err err;
    open_lab(&l);
    ck_ok(local_refine_both(l.be, l.m, l.pool, l.dir, tell, &err));
    close_lab(&l);
}
END_TEST

START_TEST(rows_are_the_same_wherever_they_are_kept)
{
    lab l;
    mla_err err;
    open_lab(&l);
    for (size_t i = 0; i < RECORD_CASES; i++) ck_ok(local_record(l.be, l.m, l.pool, l.dir, RECORD_CASE[i].layout, RECORD_CASE[i].groups, tell, &err));
    close_lab(&l);
}
END_TEST

START_TEST(a_kept_row_that_is_not_finite_is_refused)
{
    mla_model *m;
    mla_backend *be;
    mla_backend_ops ops;
    mla_row_store *s;
    mla_err err;
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_backend_open(&be, &(mla_backend_opts){.threads = 2}, &err));
    lend(be, &ops);
    mla_row_shape shape = {.T = 5, .q = 40, .y = 20, .all = 60};
    ck_ok(mla_row_store_new(&s, be, mla_model_config(m), &shape, 3, &err));
    for (size_t l = 0; l < mla_model_config(m)->layers; l++)
        if (mla_row_store_layer(s, l)) ck_ok(ops.zero(be, mla_row_store_layer(s, l), 3 * 60 * 2, &err));
    ck_ok(mla_row_store_check(s, &err));
    const uint16_t inf = 0xff80;
    ck_ok(ops.upload(be, mla_at_bytes(mla_row_store_layer(s, 5), (2 * 60 + 59) * 2), &inf, 2, &err));
    ck_refused(mla_row_store_check(s, &err), MLA_EFORMAT, "layer 5: an activation is not finite");
    mla_row_store_free(s);
    mla_backend_close(be);
    mla_model_close(m);
}
END_TEST

static mla_status (*real_alloc)(mla_backend *, mla_mem **, size_t, mla_err *);
static size_t most, largest;

static mla_status small_alloc(mla_backend *be, mla_mem **out, size_t bytes, mla_err *err)
{
    if (bytes > largest) largest = bytes;
    if (bytes <= most) return real_alloc(be, out, bytes, err);
    *out = NULL;
    return mla_fail(err, MLA_ENOMEM, "device memory: %zu bytes", bytes);
}

START_TEST(a_device_without_room_leaves_it_to_the_host)
{
    mla_model *m;
    mla_backend *be;
    mla_backend_ops host, ops;
    mla_pool *pool;
    mla_factors f[4];
    mla_refined r[4];
    mla_err err;
    char *dir = mla_test_tmpdir();
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_backend_open(&be, &(mla_backend_opts){.threads = 2}, &err));
    ck_ok(mla_pool_new(&pool, 2, &err));
    ck_ok(local_refine(be, m, pool, dir, &f[0], &r[0], &err)); /* on the host; records the rows */
    host = *be->ops;
    be->ops = &host;
    lend(be, &ops);
    real_alloc = ops.alloc, ops.alloc = small_alloc, most = SIZE_MAX, largest = 0;
    ck_ok(local_refine(be, m, pool, dir, &f[1], &r[1], &err));
    ck_assert(memcmp(f[0].E, f[1].E, f[0].r * f[0].n * 4) != 0); /* other roundings: it was there */
    const size_t room[] = {0, largest - 1};
    for (size_t i = 0; i < 2; i++) {
        most = room[i];
        ck_ok(local_refine(be, m, pool, dir, &f[2 + i], &r[2 + i], &err));
        ck_assert(r[0].before == r[2 + i].before && r[0].after == r[2 + i].after);
        ck_assert(memcmp(f[0].E, f[2 + i].E, f[0].r * f[0].n * 4) == 0);
    }
    for (size_t i = 0; i < 4; i++) mla_factors_free(&f[i]);
    mla_pool_free(pool);
    mla_backend_close(be);
    mla_model_close(m);
    mla_free(dir);
}
END_TEST

Suite *suite_refine_device(void);
Suite *suite_refine_device(void)
{
    Suite *s = suite_create("refine_device");
    TCase *c = tcase_create("refine_device");
    tcase_add_loop_test(c, a_device_computes_what_the_host_does, 0, LOCAL_CASES);
    tcase_add_test(c, a_refinement_there_reaches_the_same_loss);
    tcase_add_test(c, rows_are_the_same_wherever_they_are_kept);
    tcase_add_test(c, a_kept_row_that_is_not_finite_is_refused);
    tcase_add_test(c, a_device_without_room_leaves_it_to_the_host);
    tcase_set_timeout(c, 600);
    suite_add_tcase(s, c);
    return s;
}
