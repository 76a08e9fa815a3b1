/* The suites of this folder and what they share. */
#ifndef MLA_TESTS_MODEL_TESTS_H
#define MLA_TESTS_MODEL_TESTS_H
#include <check.h>

#include "base/err.h"
#include "model/config.h"

Suite *model_config_suite(void);
Suite *model_open_suite(void);

/* Reads tests/fixtures/configs/NAME. */
mla_status read_config(mla_config *c, const char *name, mla_err *err);
#endif
