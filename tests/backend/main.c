/* Runs the suites of the backend layer. */
#include "lab.h"

int main(void)
{
    const mla_suite_fn suites[] = {suite_linear, suite_rows, suite_attention, suite_gdn, suite_cache, suite_moments, suite_edges, suite_divisor, suite_coded, suite_drawn, suite_exl3, suite_dot, suite_step};
    return mla_test_main("backend", suites, sizeof suites / sizeof *suites);
}
