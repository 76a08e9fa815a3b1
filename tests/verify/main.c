/* The verify layer's tests. */
#include "suites.h"

int main(void)
{
    static const mla_suite_fn SUITES[] = {suite_stats, suite_reference, suite_capacity, suite_report, suite_receipts, suite_inspect, suite_parity, suite_selfcheck, suite_gate, suite_paths, suite_embeddings};
    return mla_test_main("verify", SUITES, sizeof SUITES / sizeof *SUITES);
}
