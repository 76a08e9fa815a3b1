#include "harness.h"
#include "model_tests.h"

int main(void)
{
    const mla_suite_fn suites[] = {model_config_suite, model_open_suite, model_gguf_suite, model_factors_suite, model_writer_suite,
                                   model_quant_suite, model_shared_suite};
    return mla_test_main("model", suites, sizeof suites / sizeof *suites);
}
