/* Small charts as SVG text: lines or bars over linear or logarithmic axes, without any dependency.
 * Same data, same bytes. Points that cannot be drawn (not finite; not positive on a log axis) leave a gap. */
#ifndef MLA_BASE_SVG_H
#define MLA_BASE_SVG_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

#define MLA_SVG_SERIES_MAX 8

typedef struct {
    const char *label;   /* legend; NULL: not listed */
    const double *x, *y; /* (n); x NULL means 0, 1, 2, ... */
    size_t n;
} mla_svg_series;

typedef struct {
    const char *title, *x_label, *y_label; /* plain text, escaped here; NULL is fine */
    bool log_x, log_y;
    bool bars;           /* one bar per point of the first series; else polylines */
    const double *rule;  /* a dashed horizontal line at *rule (a threshold), or NULL */
    size_t width, height; /* pixels; 0 = 720 x 400 */
    const mla_svg_series *series;
    size_t n;            /* at most MLA_SVG_SERIES_MAX */
} mla_svg_chart;

/* Appends a whole <svg> document. A chart with nothing to draw says "no data". */
MLA_CHECKED mla_status mla_svg_write(mla_str *out, const mla_svg_chart *c, mla_err *err);

/* Text with &, <, >, " and ' escaped and characters that XML 1.0 forbids (also broken UTF-8) as '?'. For JUnit, too. */
void mla_xml_text(mla_str *out, const char *s);
#endif
