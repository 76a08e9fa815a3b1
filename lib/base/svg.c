/* Charts as SVG text: scales, ticks, lines, bars, legend. */
#include "base/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT 74.0
#define RIGHT 16.0
#define TOP 34.0
#define BOTTOM 48.0

static const char *const COLOR[MLA_SVG_SERIES_MAX] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#000000", "#999999"};

typedef struct { /* data -> pixels along one axis */
    double lo, hi, p0, p1;
    bool log, any;
} axis;

static bool usable(const axis *a, double v) { return isfinite(v) && (!a->log || v > 0); }

static double place(const axis *a, double v)
{
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
static double step_for(double span, double want)
{
    double raw = span / want, p = pow(10, floor(log10(raw))), f = raw / p;
    return (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10) * p;
}

/* Ends on ticks (linear) or decades (log), never empty. */
static void settle(axis *a, double want)
{
    if (!a->any) return;
    if (a->log) {
        a->lo = pow(10, floor(log10(a->lo) + 1e-9));
        a->hi = pow(10, ceil(log10(a->hi) - 1e-9));
        if (!(a->hi > a->lo)) a->hi = a->lo * 10;
        return;
    }
    if (!(a->hi > a->lo)) {
        double pad = a->lo != 0 ? fabs(a->lo) / 2 : 1;
        a->lo -= pad;
        a->hi += pad;
    }
    double step = step_for(a->hi - a->lo, want);
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
    (void)snprintf(label, sizeof label, "%.4g", v);
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
        for (double k = 0; k <= decades + 1e-9; k += every) tick(out, a, other, a->lo * pow(10, k), vertical);
        return;
    }
    double step = step_for(a->hi - a->lo, vertical ? 6 : 8), n = round((a->hi - a->lo) / step);
    for (double k = 0; k <= n; k++) {
        double v = a->lo + k * step;
        tick(out, a, other, fabs(v) < step * 1e-9 ? 0 : v, vertical);
    }
}

static double x_of(const mla_svg_series *s, size_t i) { return s->x ? s->x[i] : (double)i; }

static void draw_line(mla_str *out, const mla_svg_series *s, const axis *ax, const axis *ay, const char *color)
{
    bool open = false;
    for (size_t i = 0; i < s->n; i++) {
        if (!usable(ax, x_of(s, i)) || !usable(ay, s->y[i])) {
            if (open) mla_str_put(out, "\"/>\n");
            open = false;
            continue;
        }
        if (!open) mla_str_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" stroke-linejoin=\"round\" points=\"", color);
        mla_str_printf(out, "%s%.2f,%.2f", open ? " " : "", place(ax, x_of(s, i)), place(ay, s->y[i]));
        open = true;
    }
    if (open) mla_str_put(out, "\"/>\n");
}

static void draw_bars(mla_str *out, const mla_svg_series *s, const axis *ax, const axis *ay)
{
    double w = (ax->p1 - ax->p0) / (double)(s->n ? s->n : 1) * 0.8;
    for (size_t i = 0; i < s->n; i++) {
        if (!usable(ax, x_of(s, i)) || !usable(ay, s->y[i])) continue;
        double p = place(ay, s->y[i]);
        mla_str_printf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n", place(ax, x_of(s, i)) - w / 2, p,
                       w, ay->p0 - p, COLOR[0]);
    }
}

static void frame(mla_str *out, const mla_svg_chart *c, double w, double h)
{
    mla_str_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n"
                   "<style>text{font:11px sans-serif;fill:#222}.t{font-size:14px;font-weight:600}.g{stroke:#ddd}.a{stroke:#222}"
                   ".r{stroke:#c00;stroke-dasharray:5 4}</style>\n<rect width=\"%.0f\" height=\"%.0f\" fill=\"#fff\"/>\n",
                   w, h, w, h, w, h);
    if (c->title) text_at(out, LEFT, 20, " class=\"t\"", c->title);
    if (c->x_label) text_at(out, (LEFT + w - RIGHT) / 2, h - 10, " text-anchor=\"middle\"", c->x_label);
    if (c->y_label) {
        char attr[96];
        double y = (TOP + h - BOTTOM) / 2;
        (void)snprintf(attr, sizeof attr, " text-anchor=\"middle\" transform=\"rotate(-90 14 %.1f)\"", y);
        text_at(out, 14, y, attr, c->y_label);
    }
}

static void legend(mla_str *out, const mla_svg_chart *c, double x1)
{
    double y = TOP + 14;
    if (c->n < 2) return;
    for (size_t i = 0; i < c->n; i++) {
        if (!c->series[i].label) continue;
        mla_str_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>\n", x1 - 150, y - 4,
                       x1 - 130, y - 4, COLOR[i]);
        text_at(out, x1 - 124, y, "", c->series[i].label);
        y += 16;
    }
}

mla_status mla_svg_write(mla_str *out, const mla_svg_chart *c, mla_err *err)
{
    if (c->n > MLA_SVG_SERIES_MAX) return mla_fail(err, MLA_EINVAL, "chart of %zu series: at most %d", c->n, MLA_SVG_SERIES_MAX);
    double w = c->width ? (double)c->width : 720, h = c->height ? (double)c->height : 400;
    axis ax = {.p0 = LEFT, .p1 = w - RIGHT, .log = c->log_x}, ay = {.p0 = h - BOTTOM, .p1 = TOP, .log = c->log_y};
    for (size_t k = 0; k < c->n; k++)
        for (size_t i = 0; i < c->series[k].n; i++) {
            double x = x_of(&c->series[k], i), y = c->series[k].y[i];
            if (!usable(&ax, x) || !usable(&ay, y)) continue;
            widen(&ax, x);
            widen(&ay, y);
        }
    frame(out, c, w, h);
    if (!ax.any) {
        text_at(out, w / 2, h / 2, " text-anchor=\"middle\"", "no data");
    } else {
        if (c->rule) widen(&ay, *c->rule);
        if (!ay.log && ay.lo > 0) widen(&ay, 0); /* heights compare only from zero */
        if (c->bars && !ax.log) {
            widen(&ax, ax.lo - 0.5);
            widen(&ax, ax.hi + 0.5);
        }
        settle(&ax, 8);
        settle(&ay, 6);
        ticks(out, &ax, &ay, false);
        ticks(out, &ay, &ax, true);
        if (c->bars && c->n)
            draw_bars(out, &c->series[0], &ax, &ay);
        else
            for (size_t k = 0; k < c->n; k++) draw_line(out, &c->series[k], &ax, &ay, COLOR[k]);
        if (c->rule && usable(&ay, *c->rule)) {
            double p = place(&ay, *c->rule);
            mla_str_printf(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"r\"/>\n", ax.p0, p, ax.p1, p);
        }
        mla_str_printf(out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" class=\"a\"/>\n", ax.p0, ay.p1, ay.p0, ax.p1);
        legend(out, c, ax.p1);
    }
    mla_str_put(out, "</svg>\n");
    return mla_str_ok(out) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "chart of more than %zu bytes", out->max);
}
