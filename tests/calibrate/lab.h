/* What the calibration suites share: the tiny hybrid, its texts, exact factors. */
#ifndef MLA_TESTS_CALIBRATE_LAB_H
#define MLA_TESTS_CALIBRATE_LAB_H
#include "calibrate/calibrate.h"
#include "harness.h"
#include "text/corpus.h"

typedef struct {
    mla_model *m;
    mla_backend *be;
    mla_rt *rt;
    const mla_config *c;
} lab;
lab lab_open(const char *path, mla_rt_opts o, size_t threads); /* path NULL: the tiny hybrid; kv_dtype 0: bf16 */
void lab_close(lab *l);
/* Full-rank factors in every full-attention layer. */
void lab_exact(lab *l, size_t groups); /* layout N */
void lab_exact_layout(lab *l, mla_layout layout, size_t groups);
/* n token ids of a bundled text ("tune.jsonl"). Caller frees. */
int32_t *lab_ids(const lab *l, const char *file, size_t n);

Suite *measure_suite(void);
Suite *write_suite(void);
Suite *study_suite(void);
#endif
