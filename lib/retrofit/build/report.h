/* What a solve found, for people: report.md and charts (SVG) of spectra, ranks, the keys' share, predicted and held-out
 * losses. The same inputs give the same bytes; no clock, host name or path. */
#ifndef MLA_RETROFIT_REPORT_H
#define MLA_RETROFIT_REPORT_H
#include "base/err.h"
#include "retrofit/solve/factorize.h"
#include "retrofit/build/recipe.h"

/* Makes dir and writes report.md, spectra.svg, ranks.svg, key_share.svg and losses.svg into it; files of those names are
 * replaced. Without spectra (full rank, or grafted factors) only what is known is written. */
MLA_CHECKED mla_status mla_report_write(const char *dir, const mla_factorization *f, const mla_recipe *recipe, mla_err *err);
#endif
