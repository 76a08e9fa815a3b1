/* The verify layer's tests. */
#include "suites.h"

int main(void)
{
    static const mla_suite_fn SUITES[] = {suite_stats, suite_reference};
    return mla_test_main("verify", SUITES, sizeof SUITES / sizeof *SUITES);
}
