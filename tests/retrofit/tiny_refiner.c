/* Opens model, backend, pool and refiner of the tests that run one layer with several thread counts. */
#include "tiny_refiner.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"

void tiny_refiner_open(tiny_refiner *t, size_t threads, size_t steps)
{
    mla_err err;
    t->dir = mla_test_tmpdir();
    for (size_t i = 0; i < TINY_ROWS * TINY_ROW; i++) t->ids[i] = (int32_t)mla_rng_below(77, i, 2048);
    ck_ok(mla_model_open(&t->m, mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_backend_open(&t->be, &(mla_backend_opts){.threads = threads}, &err));
    ck_ok(mla_pool_new(&t->pool, threads, &err));
    mla_refine_opts o = {.rows = {.model = t->m, .be = t->be, .pool = t->pool, .layout = MLA_LAYOUT_N, .groups = 1, .row_tokens = TINY_ROW, .dir = t->dir},
                         .fit = t->ids, .n_fit = TINY_ROWS * TINY_ROW, .tokens = TINY_ROWS * TINY_ROW, .steps = steps};
    ck_ok(mla_refiner_new(&t->r, &o, &err));
}

void tiny_refiner_close(tiny_refiner *t)
{
    mla_refiner_free(t->r);
    mla_pool_free(t->pool);
    mla_backend_close(t->be);
    mla_model_close(t->m);
    mla_free(t->dir);
}

void tiny_refiner_factors(mla_factors *f, size_t r, size_t kept, size_t stride)
{
    mla_err err;
    ck_ok(mla_factors_new(f, MLA_LAYOUT_N, 1, TINY_FEATURES, r, &err));
    for (size_t i = 0; i < kept; i++) f->E[i * TINY_FEATURES + stride * i] = f->D[stride * i * r + i] = 1;
}
