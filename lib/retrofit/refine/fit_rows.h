/* The rows of text that a local fit works on: held-out ones first, which no step sees, then those to fit. */
#ifndef MLA_RETROFIT_FIT_ROWS_H
#define MLA_RETROFIT_FIT_ROWS_H
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define MLA_FIT_HELD 8         /* held-out rows of a text of their own, at most */

typedef struct {
    const int32_t *fit, *held; /* token ids, whole rows are used; without held, every 8th chosen row of fit is held back */
    size_t n_fit, n_held;
    size_t row_tokens;
    size_t tokens;             /* at most this many of fit, spread evenly; SIZE_MAX: all */
} mla_fit_text;

/* Ids of held + fit rows, one after the other; the caller frees them. EINVAL, beginning with `what`: one kind has no row. */
MLA_CHECKED mla_status mla_fit_rows(int32_t **ids, size_t *held, size_t *fit, const mla_fit_text *t, const char *what, mla_err *err);
#endif
