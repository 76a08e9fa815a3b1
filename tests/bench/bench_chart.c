/* A chart from figures: lines "SERIES<tab>X<tab>Y" on stdin, in order; SVG to FILE.
 *
 * usage: bench_chart FILE title x-label y-label   (logarithmic y) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/svg.h"
#include "io/file.h"
#include "lab.h"

enum { POINTS = 64 };

int main(int argc, char **argv)
{
    static char name[MLA_SVG_COLORS][96];
    static double x[MLA_SVG_COLORS][POINTS], y[MLA_SVG_COLORS][POINTS];
    mla_svg_series s[MLA_SVG_COLORS];
    size_t n = 0;
    char line[256];
    if (argc != 5) return 2;
    while (fgets(line, sizeof line, stdin)) {
        char *a = strchr(line, '\t'), *b = a ? strchr(a + 1, '\t') : NULL;
        size_t k = 0;
        if (!b) return 2;
        *a = '\0';
        while (k < n && strcmp(name[k], line)) k++;
        if (k == MLA_SVG_COLORS) {
            fprintf(stderr, "bench_chart: more than %d series\n", MLA_SVG_COLORS);
            return 2;
        }
        if (k == n) {
            (void)snprintf(name[k], sizeof name[k], "%.95s", line);
            s[n++] = (mla_svg_series){.label = name[k], .x = x[k], .y = y[k]};
        }
        if (s[k].n == POINTS) return 2;
        x[k][s[k].n] = strtod(a + 1, NULL);
        y[k][s[k].n++] = strtod(b + 1, NULL);
    }
    mla_err err = {0};
    mla_str out = MLA_STR_MAX(1 << 20);
    lab_must(mla_svg_write(&out, &(mla_svg_chart){.title = argv[2], .x_label = argv[3], .y_label = argv[4], .log_y = true, .series = s, .n = n}, &err), &err);
    lab_must(mla_file_write(argv[1], out.s, out.len, &err), &err);
    mla_str_free(&out);
    return 0;
}
