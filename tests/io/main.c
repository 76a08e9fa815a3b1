/* Runs the suites of the io layer. */
#include "io/suites.h"

int main(void)
{
    const mla_suite_fn suites[] = {file_suite, json_suite, safetensors_suite, ckpt_suite, gguf_suite,
                                   sha256_suite, zst_suite, receipt_suite, bad_suite};
    return mla_test_main("io", suites, sizeof suites / sizeof *suites);
}
