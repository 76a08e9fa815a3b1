/* Test binary of the retrofit layer. */
#include "harness.h"

Suite *suite_solve(void);
Suite *suite_stats(void);
Suite *suite_ranks(void);
Suite *suite_nested(void);
Suite *suite_objective(void);
Suite *suite_robust(void);
Suite *suite_report(void);
Suite *suite_refine(void);
Suite *suite_refine_device(void);
Suite *suite_shared(void);
Suite *suite_absorbed(void);
Suite *suite_sequential(void);

int main(void)
{
    const mla_suite_fn all[] = {suite_solve,     suite_stats,  suite_ranks,  suite_nested, suite_objective,
                                suite_robust, suite_report, suite_refine, suite_refine_device, suite_shared, suite_absorbed, suite_sequential};
    return mla_test_main("retrofit", all, sizeof all / sizeof *all);
}
