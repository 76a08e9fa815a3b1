/* Runtime tests. */
#include "suites.h"

int main(void)
{
    const mla_suite_fn s[] = {score_suite,  rope_suite,   naive_suite, tensors_suite,
                              chunks_suite, latent_suite, shared_suite, refuse_suite, packed_suite, mixed_suite, reference_suite};
    return mla_test_main("runtime", s, sizeof s / sizeof *s);
}
