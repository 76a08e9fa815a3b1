/* The suites of this layer; main.c runs them. */
#ifndef TESTS_QUANT_SUITES_H
#define TESTS_QUANT_SUITES_H
#include <check.h>

Suite *suite_ggml(void);
Suite *suite_golden(void);
Suite *suite_derived(void);
Suite *suite_refuse(void);
Suite *suite_exl3(void);
Suite *suite_qconfig(void);
Suite *suite_qcheck(void);
#endif
