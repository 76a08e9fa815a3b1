/* Test binary of the quant layer. */
#include "harness.h"
#include "suites.h"

int main(void)
{
    static const mla_suite_fn all[] = {suite_ggml,   suite_golden,  suite_derived, suite_refuse,
                                       suite_exl3,   suite_qconfig, suite_qcheck};
    return mla_test_main("quant", all, sizeof all / sizeof *all);
}
