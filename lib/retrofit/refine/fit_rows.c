/* Choice of rows, spread evenly over each text. */
#include "retrofit/refine/fit_rows.h"

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

mla_status mla_fit_rows(int32_t **out, size_t *held, size_t *fit, const mla_fit_text *t, const char *what, mla_err *err)
{
    size_t T = t->row_tokens, have = t->n_fit / T, want = t->tokens / T, kept = t->n_held / T;
    bool own = kept == 0; /* hold back every 8th */
    if (want > have) want = have;
    *held = own ? want / 8 : kept < MLA_FIT_HELD ? kept : MLA_FIT_HELD;
    *fit = own ? want - *held : want;
    if (*held == 0 || *fit == 0) return mla_fail(err, MLA_EINVAL, "%s needs text: %zu rows of %zu tokens to fit, %zu held out", what, *fit, T, *held);
    int32_t *ids = mla_alloc_raw(*held + *fit, T, sizeof *ids);
    if (!ids) return mla_fail(err, MLA_ENOMEM, "%zu rows", *held + *fit);
    for (size_t i = 0; !own && i < *held; i++) memcpy(ids + i * T, t->held + i * kept / *held * T, T * sizeof *ids);
    for (size_t i = 0, h = 0, f = 0; i < want; i++) {
        bool back = own && i % 8 == 7;
        size_t to = back ? h++ : *held + f++;
        memcpy(ids + to * T, t->fit + i * have / want * T, T * sizeof *ids);
    }
    *out = ids;
    return MLA_OK;
}
