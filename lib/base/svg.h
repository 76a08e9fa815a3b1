/* Small charts as SVG text: lines, steps, bars and bands over linear or logarithmic axes, without any dependency.
 * Same data, same bytes. Points that cannot be drawn (not finite; not positive on a log axis) leave a gap. Colours follow
 * the reader's light or dark scheme. Files are written by the caller (io/file.h). */
#ifndef MLA_BASE_SVG_H
#define MLA_BASE_SVG_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

#define MLA_SVG_SERIES_MAX 128
#define MLA_SVG_COLORS 9 /* distinct colours of a chart that is no ramp */

typedef enum {
    MLA_SVG_LINE,        /* a polyline with a dot per point when there are few */
    MLA_SVG_STEP,        /* the value holds from its x to the next point's: spectra, counts */
    MLA_SVG_BARS,        /* one bar per point; several series of bars stand side by side */
    MLA_SVG_BAND         /* the area between y and hi: intervals */
} mla_svg_kind;

typedef struct {
    const char *label;   /* legend; NULL: not listed */
    const double *x, *y; /* (n); x NULL means 0, 1, 2, ... */
    size_t n;
    mla_svg_kind kind;
    const double *hi;    /* (n), bands only: the upper edge */
} mla_svg_series;

typedef struct {
    const char *title, *x_label, *y_label; /* plain text, escaped here; NULL is fine */
    bool log_x, log_y;
    bool close_up;       /* the y axis begins where the data do; otherwise at zero, where heights compare (never for bars) */
    bool ramp;           /* series in one run of colours, first to last (layers by depth), instead of distinct ones */
    const double *rule;  /* a dashed horizontal line at *rule (a threshold), or NULL */
    size_t width, height; /* pixels; 0 = 720 x 400 */
    const mla_svg_series *series; /* a band takes the colour of the series before it */
    size_t n;            /* at most MLA_SVG_COLORS, with ramp MLA_SVG_SERIES_MAX */
} mla_svg_chart;

/* Appends a whole <svg> document. A chart with nothing to draw says "no data". */
MLA_CHECKED mla_status mla_svg_write(mla_str *out, const mla_svg_chart *c, mla_err *err);

/* Text with &, <, >, " and ' escaped and characters that XML 1.0 forbids (also broken UTF-8) as '?'. For JUnit, too. */
void mla_xml_text(mla_str *out, const char *s);
#endif
