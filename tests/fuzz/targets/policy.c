/* Gate policies and build recipes: strict JSON, refused by name or whole. */
#include "verify/gate/policy.h"

#include <string.h>

#include "fuzz.h"
#include "retrofit/build/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_policy p;
    mla_recipe r;
    mla_status st = mla_policy_read(&p, fuzz_file(data, n), &err);
    if (st != MLA_OK) fuzz_refused(st, &err);
    else if (p.n_stratum > MLA_POLICY_LIST || p.n_check > MLA_POLICY_LIST || p.n_context > MLA_POLICY_LIST || strlen(p.sha256) != 64)
        fuzz_broken("a policy of more than it has room for");
    r = mla_recipe_default();
    st = mla_recipe_read(&r, fuzz_file(data, n), &err);
    if (st != MLA_OK) fuzz_refused(st, &err);
    return 0;
}
