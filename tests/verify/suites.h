/* One suite per file of tests/verify. */
#ifndef MLA_TESTS_VERIFY_SUITES_H
#define MLA_TESTS_VERIFY_SUITES_H
#include "harness.h"

Suite *suite_stats(void);
Suite *suite_reference(void);
Suite *suite_capacity(void);
Suite *suite_report(void);
Suite *suite_receipts(void);
Suite *suite_inspect(void);
Suite *suite_parity(void);
Suite *suite_selfcheck(void);
Suite *suite_gate(void);
Suite *suite_paths(void);
Suite *suite_embeddings(void);
#endif
