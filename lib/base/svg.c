/* Charts as SVG text: scales, ticks, lines, steps, bars, bands, legend. */
#include "base/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT 74.0
#define RIGHT 16.0
#define TOP 34.0
#define BOTTOM 48.0

#define DOTS_MAX 32 /* points up to which a line shows each of them */

/* Colour-blind safe, and of middling lightness: they stand on white as on near-black. Black and grey differ by scheme. */
static const char STYLE[] =
    "<style>text{font:11px sans-serif;fill:#222}.t{font-size:14px;font-weight:600}.b{fill:#fff}.g{stroke:#ddd}.a{stroke:#222}"
    ".r{stroke:#d22;stroke-dasharray:5 4}.l{fill:none;stroke:currentColor;stroke-width:1.6;stroke-linejoin:round}"
    ".f{fill:currentColor}.n{fill:currentColor;fill-opacity:.2}"
    ".c0{color:#0079c1}.c1{color:#d55e00}.c2{color:#009e73}.c3{color:#c2679a}.c4{color:#c98a00}.c5{color:#3fa0dc}.c8{color:#8a63d2}"
    ".c6{color:#111}.c7{color:#888}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.b{fill:#161a1f}.g{stroke:#333a42}.a{stroke:#ccc}.c6{color:#eee}.c7{color:#999}}"
    "</style>\n";
static const unsigned char RAMP[][3] = {{0x4a, 0x6f, 0xd0}, {0x1f, 0x9e, 0x89}, {0xc9, 0x8a, 0x00}, {0xd0, 0x45, 0x5a}};

typedef struct { /* data -> pixels along one axis */
    double lo, hi, p0, p1;
    bool log, any, whole; /* whole: counts, with ticks at whole numbers alone */
} axis;

static bool usable(const axis *a, double v) { return isfinite(v) && (!a->log || v > 0); }

static double place(const axis *a, double v)
{
    // cppcheck-suppress invalidFunctionArg ; the only call with v = 0 asks for an axis that is not logarithmic
    double lo = a->log ? log10(a->lo) : a->lo, hi = a->log ? log10(a->hi) : a->hi, t = a->log ? log10(v) : v;
    return a->p0 + (t - lo) / (hi - lo) * (a->p1 - a->p0);
}

static void widen(axis *a, double v)
{
    if (!usable(a, v)) return;
    if (!a->any || v < a->lo) a->lo = v;
    if (!a->any || v > a->hi) a->hi = v;
    a->any = true;
}

/* A tick distance of 1, 2 or 5 times a power of ten giving about `want` ticks. */
static double step_for(const axis *a, double want)
{
    double raw = (a->hi - a->lo) / want, p = pow(10, floor(log10(raw))), f = raw / p, step = (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10) * p;
    return a->whole && step < 1 ? 1 : step;
}

/* The nearest of 1, 2, 5 times a power of ten that is not above v, or (up) not below it. */
static double round_log(double v, bool up)
{
    static const double AT[] = {1, 2, 5, 10};
    double p = pow(10, floor(log10(v) + 1e-9)), best = up ? 10 * p : p;
    for (size_t i = 0; i < 4; i++) {
        if (up && AT[i] * p >= v * (1 - 1e-9)) return AT[i] * p;
        if (!up && AT[i] * p <= v * (1 + 1e-9)) best = AT[i] * p;
    }
    return best;
}

/* Ends on ticks, on a logarithmic axis of many decades on decades; never empty. */
static void settle(axis *a, double want)
{
    if (!a->any) return;
    if (a->log) {
        bool many = log10(a->hi / a->lo) > 3;
        a->lo = many ? pow(10, floor(log10(a->lo) + 1e-9)) : round_log(a->lo, false);
        a->hi = many ? pow(10, ceil(log10(a->hi) - 1e-9)) : round_log(a->hi, true);
        if (!(a->hi > a->lo)) a->hi = a->lo * 10;
        return;
    }
    if (!(a->hi > a->lo)) {
        double pad = a->lo != 0 ? fabs(a->lo) / 2 : 1;
        a->lo -= pad;
        a->hi += pad;
    }
    double step = step_for(a, want);
    a->lo = floor(a->lo / step + 1e-9) * step;
    a->hi = ceil(a->hi / step - 1e-9) * step;
}

void mla_xml_text(mla_str *out, const char *s)
{
    bool valid = mla_utf8_valid(s, strlen(s));
    for (const char *p = s; *p; p++) {
        unsigned char b = (unsigned char)*p;
        switch (*p) {
        case '&': mla_str_put(out, "&amp;"); break;
        case '<': mla_str_put(out, "&lt;"); break;
        case '>': mla_str_put(out, "&gt;"); break;
        case '"': mla_str_put(out, "&quot;"); break;
        case '\'': mla_str_put(out, "&#39;"); break;
        default:
            /* U+FFFE and U+FFFF are no XML characters either; they are 0xEF 0xBF 0xBE/0xBF */
            if ((b < 0x20 && b != '\n' && b != '\t') || b == 0x7f || (!valid && b >= 0x80)) {
                mla_str_put(out, "?");
            } else if (b == 0xef && (unsigned char)p[1] == 0xbf && (unsigned char)p[2] >= 0xbe) {
                mla_str_put(out, "?");
                p += 2;
            } else {
                mla_str_putn(out, p, 1);
            }
        }
    }
}

static void text_at(mla_str *out, double x, double y, const char *attr, const char *s)
{
    mla_str_printf(out, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, attr);
    mla_xml_text(out, s);
    mla_str_put(out, "</text>\n");
}

static void tick(mla_str *out, const axis *a, const axis *other, double v, bool vertical)
{
    char label[32];
    double p = place(a, v);
    (void)snprintf(label, sizeof label, "%.6g", v);
    if (vertical) {
        mla_str_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"g\"/>\n", other->p0, p, other->p1, p);
        text_at(out, other->p0 - 6, p + 4, " text-anchor=\"end\"", label);
    } else {
        mla_str_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"g\"/>\n", p, other->p0, p, other->p1);
        text_at(out, p, other->p0 + 16, " text-anchor=\"middle\"", label);
    }
}

static void ticks(mla_str *out, const axis *a, const axis *other, bool vertical)
{
    if (a->log) {
        double decades = log10(a->hi / a->lo), every = decades > 8 ? ceil(decades / 8) : 1;
        for (double k = floor(log10(a->lo) + 1e-9); k <= log10(a->hi) + 1e-9; k += every)
            for (size_t i = 0; i < (decades > 3.5 ? 1u : 3u); i++) { /* few decades: 2 and 5 between them */
                double v = pow(10, k) * (double[]){1, 2, 5}[i];
                if (v >= a->lo * (1 - 1e-9) && v <= a->hi * (1 + 1e-9)) tick(out, a, other, v, vertical);
            }
        return;
    }
    double step = step_for(a, vertical ? 6 : 8);
    for (double k = ceil(a->lo / step - 1e-9) + 0.0 /* no minus zero */; k * step <= a->hi + step * 1e-9; k++) tick(out, a, other, k * step, vertical);
}

static double x_of(const mla_svg_series *s, size_t i) { return s->x ? s->x[i] : (double)i; }

/* The attribute that colours series k: a class, or along a ramp its own colour. A band goes with the series before it. */
static const char *color_of(char buf[40], const mla_svg_chart *c, size_t k)
{
    if (c->series[k].kind == MLA_SVG_BAND && k) k--;
    if (!c->ramp) {
        (void)snprintf(buf, 40, "c%zu", k);
        return buf;
    }
    enum { STOPS = sizeof RAMP / sizeof *RAMP };
    size_t span = c->n > 1 ? c->n - 1 : 1, at = k * (STOPS - 1), i = at / span;
    if (i >= STOPS - 1) i = STOPS - 2;
    unsigned v[3];
    for (size_t j = 0; j < 3; j++) v[j] = (unsigned)((RAMP[i][j] * (span * (i + 1) - at) + RAMP[i + 1][j] * (at - span * i)) / span);
    (void)snprintf(buf, 40, "\" style=\"color:#%02x%02x%02x", v[0], v[1], v[2]);
    return buf;
}

static bool drawable(const mla_svg_series *s, size_t i, const axis *ax, const axis *ay)
{
    return usable(ax, x_of(s, i)) && usable(ay, s->y[i]) && (s->kind != MLA_SVG_BAND || usable(ay, s->hi[i]));
}

static void draw_line(mla_str *out, const mla_svg_series *s, const axis *ax, const axis *ay, const char *color)
{
    bool open = false, step = s->kind == MLA_SVG_STEP;
    for (size_t i = 0; i < s->n; i++) {
        if (!drawable(s, i, ax, ay)) {
            if (open) mla_str_put(out, "\"/>\n");
            open = false;
            continue;
        }
        if (!open) mla_str_printf(out, "<polyline class=\"l %s\" points=\"", color);
        double px = place(ax, x_of(s, i)), py = place(ay, s->y[i]);
        if (open && step) mla_str_printf(out, " %.2f,%.2f", px, place(ay, s->y[i - 1]));
        mla_str_printf(out, "%s%.2f,%.2f", open ? " " : "", px, py);
        open = true;
    }
    if (open) mla_str_put(out, "\"/>\n");
    for (size_t i = 0; !step && s->n <= DOTS_MAX && i < s->n; i++)
        if (drawable(s, i, ax, ay))
            mla_str_printf(out, "<circle class=\"f %s\" cx=\"%.2f\" cy=\"%.2f\" r=\"2.5\"/>\n", color, place(ax, x_of(s, i)), place(ay, s->y[i]));
}

/* One polygon per run of drawable points: along the lower edge and back along the upper one. */
static void draw_band(mla_str *out, const mla_svg_series *s, const axis *ax, const axis *ay, const char *color)
{
    for (size_t b = 0, e; b < s->n; b = e + 1) {
        for (e = b; e < s->n && drawable(s, e, ax, ay); e++) {}
        if (e == b) continue;
        mla_str_printf(out, "<polygon class=\"n %s\" points=\"", color);
        for (size_t i = b; i < e; i++) mla_str_printf(out, "%.2f,%.2f ", place(ax, x_of(s, i)), place(ay, s->y[i]));
        for (size_t i = e; i-- > b;) mla_str_printf(out, "%.2f,%.2f%s", place(ax, x_of(s, i)), place(ay, s->hi[i]), i > b ? " " : "");
        mla_str_put(out, "\"/>\n");
    }
}

/* bar `which` of `of` that share each place */
static void draw_bars(mla_str *out, const mla_svg_series *s, const axis *ax, const axis *ay, const char *color, size_t which, size_t of)
{
    double w = (ax->p1 - ax->p0) / (double)(s->n ? s->n : 1) * 0.8 / (double)of;
    double base = !ay->log && ay->lo < 0 ? place(ay, 0) : ay->p0;
    for (size_t i = 0; i < s->n; i++) {
        if (!drawable(s, i, ax, ay)) continue;
        double p = place(ay, s->y[i]), top = p < base ? p : base, x = place(ax, x_of(s, i)) + ((double)which - (double)of / 2) * w;
        mla_str_printf(out, "<rect class=\"f %s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n", color, x, top, w, fabs(base - p));
    }
}

/* Bands below, then bars, then lines. */
static void draw_all(mla_str *out, const mla_svg_chart *c, const axis *ax, const axis *ay)
{
    char color[40];
    size_t bars = 0, bar = 0;
    for (size_t k = 0; k < c->n; k++) {
        bars += c->series[k].kind == MLA_SVG_BARS;
        if (c->series[k].kind == MLA_SVG_BAND) draw_band(out, &c->series[k], ax, ay, color_of(color, c, k));
    }
    for (size_t k = 0; k < c->n; k++)
        if (c->series[k].kind == MLA_SVG_BARS) draw_bars(out, &c->series[k], ax, ay, color_of(color, c, k), bar++, bars);
    for (size_t k = 0; k < c->n; k++)
        if (c->series[k].kind == MLA_SVG_LINE || c->series[k].kind == MLA_SVG_STEP) draw_line(out, &c->series[k], ax, ay, color_of(color, c, k));
}

static void frame(mla_str *out, const mla_svg_chart *c, double w, double h, double right)
{
    mla_str_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n%s"
                   "<rect class=\"b\" width=\"%.0f\" height=\"%.0f\"/>\n",
                   w, h, w, h, STYLE, w, h);
    if (c->title) text_at(out, LEFT, 20, " class=\"t\"", c->title);
    if (c->x_label) text_at(out, (LEFT + right) / 2, h - 10, " text-anchor=\"middle\"", c->x_label);
    if (c->y_label) {
        char attr[96];
        double y = (TOP + h - BOTTOM) / 2;
        (void)snprintf(attr, sizeof attr, " text-anchor=\"middle\" transform=\"rotate(-90 14 %.1f)\"", y);
        text_at(out, 14, y, attr, c->y_label);
    }
}

/* Room beside the plot for the legend: the longest label, at what a wide sans serif takes. 0: a single series needs none. */
static double legend_width(const mla_svg_chart *c)
{
    size_t longest = 0;
    for (size_t i = 0; c->n > 1 && i < c->n; i++)
        if (c->series[i].label && strlen(c->series[i].label) > longest) longest = strlen(c->series[i].label);
    return longest ? 38 + 6.6 * (double)longest : 0;
}

/* Every nth label where not all of them fit beside the plot. */
static void legend(mla_str *out, const mla_svg_chart *c, double x, double height)
{
    double y = TOP + 14;
    char color[40];
    size_t fit = (size_t)(height / 16), every = fit ? (c->n + fit - 1) / fit : 1;
    for (size_t i = 0; c->n > 1 && i < c->n; i += every) {
        if (!c->series[i].label) continue;
        if (c->series[i].kind == MLA_SVG_BAND)
            mla_str_printf(out, "<path class=\"n %s\" d=\"M%.1f %.1fh20v10h-20z\"/>\n", color_of(color, c, i), x, y - 9);
        else
            mla_str_printf(out, "<line class=\"l %s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", color_of(color, c, i), x, y - 4, x + 20, y - 4);
        text_at(out, x + 26, y, "", c->series[i].label);
        y += 16;
    }
}

/* Series of one bar each are told apart by the legend: their places on the x axis are no numbers. */
static bool has_places(const mla_svg_chart *c)
{
    for (size_t k = 0; k < c->n; k++)
        if (c->series[k].n > 1 || c->series[k].x || c->series[k].kind != MLA_SVG_BARS) return true;
    return false;
}

static void widen_all(axis *ax, axis *ay, const mla_svg_chart *c)
{
    bool bars = false;
    size_t places = 1;
    ax->whole = true;
    for (size_t k = 0; k < c->n; k++) {
        const mla_svg_series *s = &c->series[k];
        bars |= s->kind == MLA_SVG_BARS;
        if (s->n > places) places = s->n;
        for (size_t i = 0; i < s->n; i++) {
            if (!drawable(s, i, ax, ay)) continue;
            widen(ax, x_of(s, i));
            ax->whole = ax->whole && x_of(s, i) == floor(x_of(s, i));
            widen(ay, s->y[i]);
            if (s->kind == MLA_SVG_BAND) widen(ay, s->hi[i]);
        }
    }
    if (!ax->any) return;
    if (c->rule) widen(ay, *c->rule);
    if (!ay->log && ay->lo > 0 && (bars || !c->close_up)) widen(ay, 0);
    if (bars && !ay->log && ay->hi < 0) widen(ay, 0);
    if (bars && !ax->log) { /* half a bar's place beyond the outer ones */
        double half = places > 1 && ax->hi > ax->lo ? (ax->hi - ax->lo) / (double)(places - 1) / 2 : 0.5;
        widen(ax, ax->lo - half);
        widen(ax, ax->hi + half);
    } else {
        settle(ax, 8);
    }
    settle(ay, 6);
}

mla_status mla_svg_write(mla_str *out, const mla_svg_chart *c, mla_err *err)
{
    size_t most = c->ramp ? MLA_SVG_SERIES_MAX : MLA_SVG_COLORS;
    if (c->n > most) return mla_fail(err, MLA_EINVAL, "chart of %zu series: at most %zu", c->n, most);
    double w = c->width ? (double)c->width : 720, h = c->height ? (double)c->height : 400;
    axis ax = {.p0 = LEFT, .p1 = w - RIGHT - legend_width(c), .log = c->log_x}, ay = {.p0 = h - BOTTOM, .p1 = TOP, .log = c->log_y};
    widen_all(&ax, &ay, c);
    frame(out, c, w, h, ax.p1);
    if (!ax.any) {
        text_at(out, w / 2, h / 2, " text-anchor=\"middle\"", "no data");
    } else {
        if (has_places(c)) ticks(out, &ax, &ay, false);
        ticks(out, &ay, &ax, true);
        draw_all(out, c, &ax, &ay);
        if (c->rule && usable(&ay, *c->rule)) {
            double p = place(&ay, *c->rule);
            mla_str_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"r\"/>\n", ax.p0, p, ax.p1, p);
        }
        mla_str_printf(out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" class=\"a\"/>\n", ax.p0, ay.p1, ay.p0, ax.p1);
        legend(out, c, ax.p1 + 12, ay.p0 - ay.p1);
    }
    mla_str_put(out, "</svg>\n");
    return mla_str_ok(out) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "chart of more than %zu bytes", out->max);
}
