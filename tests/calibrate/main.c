/* Calibration tests. */
#include "lab.h"

int main(void)
{
    const mla_suite_fn s[] = {measure_suite, write_suite, study_suite};
    return mla_test_main("calibrate", s, sizeof s / sizeof *s);
}
