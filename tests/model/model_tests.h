/* The suites of this folder. */
#ifndef MLA_TESTS_MODEL_TESTS_H
#define MLA_TESTS_MODEL_TESTS_H
#include <check.h>

Suite *model_open_suite(void);
#endif
