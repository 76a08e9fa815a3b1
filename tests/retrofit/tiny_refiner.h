/* A refiner over drawn text of the tiny hybrid: 12 rows of 48 tokens, one of 8 held out. */
#ifndef TESTS_RETROFIT_TINY_REFINER_H
#define TESTS_RETROFIT_TINY_REFINER_H
#include "retrofit/refine/refine.h"

enum { TINY_ROW = 48, TINY_ROWS = 12, TINY_FEATURES = 224 };

typedef struct {
    mla_model *m;
    mla_backend *be;
    mla_pool *pool;
    mla_refiner *r;
    char *dir;
    int32_t ids[TINY_ROWS * TINY_ROW];
} tiny_refiner;

void tiny_refiner_open(tiny_refiner *t, size_t threads, size_t steps);
void tiny_refiner_close(tiny_refiner *t);
/* Factors of rank r that keep every stride-th of `kept` features as it is. */
void tiny_refiner_factors(mla_factors *f, size_t r, size_t kept, size_t stride);
#endif
