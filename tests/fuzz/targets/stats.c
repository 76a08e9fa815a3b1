/* Statistics files: an accepted one holds arrays of the lengths it claims, finite to the last value. */
#include <math.h>

#include "fuzz.h"
#include "retrofit/stats/stats_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_stats s = {0};
    mla_status st = mla_stats_read(&s, fuzz_file(data, n), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    for (size_t i = 0; i < s.layers; i++) {
        mla_stats_array a[MLA_STATS_ARRAYS];
        size_t k = mla_stats_arrays(&s.layer[i], a);
        for (size_t j = 0; j < k; j++)
            for (size_t x = 0; x < a[j].count; x++)
                if (!isfinite(a[j].data[x])) fuzz_broken("a value that is not finite");
    }
    mla_stats_free(&s);
    return 0;
}
