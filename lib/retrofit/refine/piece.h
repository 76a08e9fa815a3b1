/* Finished work on disk, so that a killed build does not do it twice: a refined layer, a row of numbers. */
#ifndef MLA_RETROFIT_PIECE_H
#define MLA_RETROFIT_PIECE_H
#include <stdbool.h>

#include "retrofit/refine/refine.h"

MLA_CHECKED mla_status mla_piece_write(const char *path, const mla_factors *f, const mla_refined *r, mla_err *err);
/* False when there is no such file, or it is not whole, or of another shape than f; f and r are then untouched. */
bool mla_piece_read(const char *path, mla_factors *f, mla_refined *r);

/* n numbers (sensitivities, losses of a scan), exact. */
MLA_CHECKED mla_status mla_piece_write_numbers(const char *path, const double *x, size_t n, mla_err *err);
bool mla_piece_read_numbers(const char *path, double *x, size_t n);
#endif
