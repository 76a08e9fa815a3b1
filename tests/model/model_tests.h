/* The suites of this folder and what they share. */
#ifndef MLA_TESTS_MODEL_TESTS_H
#define MLA_TESTS_MODEL_TESTS_H
#include <check.h>

#include "base/err.h"
#include "build.h"
#include "model/model.h"

Suite *model_config_suite(void);
Suite *model_open_suite(void);
Suite *model_gguf_suite(void);
Suite *model_factors_suite(void);
Suite *model_writer_suite(void);
Suite *model_quant_suite(void);
Suite *model_shared_suite(void);

/* Reads tests/fixtures/configs/NAME. */
mla_status read_config(mla_config *c, const char *name, mla_err *err);
/* Every kind of every layer of both models is equal. */
void same_weights(const mla_model *a, const mla_model *b);
#endif
