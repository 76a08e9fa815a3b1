/* JSON: what parses prints, parses again and prints the same. */
#include "io/json.h"

#include <string.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_json *again, *d = fuzz_json(data, n);
    mla_str a = MLA_STR_MAX(8 * FUZZ_MAX), b = MLA_STR_MAX(8 * FUZZ_MAX);
    if (!d) return 0;
    if (mla_json_print(&a, mla_json_root(d), false, &err) != MLA_OK) fuzz_broken(err.msg);
    if (mla_json_parse(&again, a.s, a.len, "printed", &err) != MLA_OK) fuzz_broken(err.msg);
    if (mla_json_print(&b, mla_json_root(again), false, &err) != MLA_OK || strcmp(a.s, b.s)) fuzz_broken("printing is not stable");
    mla_json_free(again);
    mla_json_free(d);
    mla_str_free(&a);
    mla_str_free(&b);
    return 0;
}
