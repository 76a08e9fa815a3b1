/* Charts from the results of a factorization, and the page that holds them. */
#include "retrofit/build/report.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/svg.h"
#include "io/file.h"

enum { POINTS = 256, TEXT_MAX = 4 << 20 };

static mla_status put(const char *dir, const char *name, const mla_str *text, mla_err *err)
{
    char *path = mla_path_join(dir, name);
    mla_status st = path && mla_str_ok(text) ? mla_file_write(path, text->s, text->len, err) : mla_fail(err, MLA_ENOMEM, "%s", name);
    mla_free(path);
    return st;
}

static mla_status put_chart(const char *dir, const char *name, const mla_svg_chart *c, mla_err *err)
{
    mla_str s = MLA_STR_MAX(TEXT_MAX);
    mla_status st = mla_svg_write(&s, c, err);
    if (st == MLA_OK) st = put(dir, name, &s, err);
    mla_str_free(&s);
    return st == MLA_OK ? st : mla_wrap(err, "chart %s", name);
}

/* Every layer's eigenvalues as shares of its energy, by index; at most POINTS of them, MLA_SVG_SERIES_MAX layers. */
static mla_status spectra(const char *dir, const mla_factorization *f, mla_err *err)
{
    size_t every = (f->layers + MLA_SVG_SERIES_MAX - 1) / MLA_SVG_SERIES_MAX, n = (f->layers + every - 1) / every;
    double *x = mla_alloc(n, 2 * POINTS, sizeof *x);
    mla_svg_series *s = mla_alloc(n, 1, sizeof *s);
    char (*label)[32] = mla_alloc(n, 1, sizeof *label);
    mla_status st = x && s && label ? MLA_OK : mla_fail(err, MLA_ENOMEM, "spectra of %zu layers", n);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        const mla_layer_result *r = &f->result[i * every];
        double *xi = x + 2 * POINTS * i, *yi = xi + POINTS;
        size_t m = r->n_spectrum < POINTS ? r->n_spectrum : POINTS;
        for (size_t k = 0; k < m; k++) {
            size_t at = k * r->n_spectrum / m;
            xi[k] = (double)at + 1;
            yi[k] = r->energy > 0 ? r->spectrum[at] / r->energy : 0;
        }
        (void)snprintf(label[i], sizeof label[i], "layer %zu", r->layer);
        s[i] = (mla_svg_series){.x = xi, .y = yi, .n = m, .kind = MLA_SVG_STEP};
        if (n <= 12 || i % (n / 6) == 0 || i + 1 == n) s[i].label = label[i];
    }
    if (st == MLA_OK)
        st = put_chart(dir, "spectra.svg", &(mla_svg_chart){.title = "Spectra of the layers", .x_label = "direction", .y_label = "share of the layer's energy",
                                                            .log_y = true, .ramp = true, .series = s, .n = n}, err);
    mla_free(x);
    mla_free(s);
    mla_free(label);
    return st;
}

static double rank_of(const mla_layer_result *r) { return (double)r->rank; }
static double share_of(const mla_layer_result *r) { return 100 * r->k_share; }
static double predicted_of(const mla_layer_result *r) { return 100 * r->predicted; }
static double held_of(const mla_layer_result *r) { return r->held_out >= 0 ? 100 * r->held_out : -1; /* below a log axis: left out */ }

typedef double (*value_of)(const mla_layer_result *r);

/* One or two quantities per layer. */
static mla_status by_layer(const char *dir, const char *name, mla_svg_chart c, const mla_factorization *f, const value_of v[2],
                           const char *const label[2], mla_err *err)
{
    size_t n = f->layers, k = v[1] ? 2 : 1;
    double *x = mla_alloc(n, 3, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "chart of %zu layers", n);
    mla_svg_series s[2];
    for (size_t j = 0; j < k; j++) {
        s[j] = (mla_svg_series){.label = label[j], .x = x, .y = x + n * (j + 1), .n = n, .kind = c.log_y ? MLA_SVG_LINE : MLA_SVG_BARS};
        for (size_t i = 0; i < n; i++) x[n * (j + 1) + i] = v[j](&f->result[i]);
    }
    for (size_t i = 0; i < n; i++) x[i] = (double)f->result[i].layer;
    c.x_label = "layer";
    c.series = s;
    c.n = k;
    mla_status st = put_chart(dir, name, &c, err);
    mla_free(x);
    return st;
}

static mla_status page(mla_str *s, const mla_factorization *f, const mla_recipe *recipe, bool measured, bool held, mla_err *err)
{
    mla_json *d;
    mla_status st = mla_json_new_object(&d, err);
    if (st != MLA_OK) return st;
    mla_recipe_to_json(recipe, mla_json_root(d));
    mla_str_printf(s, "# Retrofit report\n\nLayout %s, objective %s, %zu group%s, factors stored in %s.\n\n", mla_layout_name(recipe->layout),
                   mla_objective_name(recipe->objective), recipe->groups, recipe->groups == 1 ? "" : "s", f->f32 ? "f32" : "bf16");
    mla_str_put(s, "| layer | rank | predicted loss | as stored | held-out loss | held-out / predicted | keys' share | energy | metric floor hits |\n"
                   "|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < f->layers; i++) {
        const mla_layer_result *r = &f->result[i];
        mla_str_printf(s, "| %zu | %zu | %.4g %% | %.4g %% |", r->layer, r->rank, 100 * r->predicted, 100 * r->exact);
        if (r->held_out >= 0) mla_str_printf(s, " %.4g %% |", 100 * r->held_out);
        else mla_str_put(s, " - |");
        if (r->held_out >= 0 && r->predicted > 0) mla_str_printf(s, " %.3f |", r->held_out / r->predicted);
        else mla_str_put(s, " - |");
        mla_str_printf(s, " %.1f %% | %.4g | %zu |\n", 100 * r->k_share, r->energy, r->floored);
    }
    mla_str_put(s, "\nLosses are shares of the layer's weighted energy: predicted by the spectrum, of the factors as they are stored, and on statistics "
                   "of other text. A held-out loss well above the predicted one asks for more calibration text.\n\n");
    if (measured) mla_str_put(s, "![spectra](spectra.svg)\n\n![ranks](ranks.svg)\n\n![keys' share of the latent](key_share.svg)\n\n![losses](losses.svg)\n\n");
    else mla_str_put(s, "Exact factors: there are no spectra and no losses.\n\n");
    if (measured && !held) mla_str_put(s, "No held-out statistics were given.\n\n");
    mla_str_put(s, "Recipe:\n\n```json\n");
    st = mla_json_print(s, mla_json_root(d), true, err);
    mla_str_put(s, "\n```\n");
    mla_json_free(d);
    return st;
}

mla_status mla_report_write(const char *dir, const mla_factorization *f, const mla_recipe *recipe, mla_err *err)
{
    bool measured = false, held = false;
    for (size_t i = 0; i < f->layers; i++) measured |= f->result[i].n_spectrum > 0, held |= f->result[i].held_out >= 0;
    mla_str s = MLA_STR_MAX(TEXT_MAX);
    mla_status st = mla_dir_make(dir, err);
    if (st == MLA_OK && measured) {
        st = spectra(dir, f, err);
        if (st == MLA_OK)
            st = by_layer(dir, "ranks.svg", (mla_svg_chart){.title = "Latent values per token", .y_label = "rank"}, f, (value_of[2]){rank_of, NULL},
                          (const char *const[2]){"rank", NULL}, err);
        if (st == MLA_OK)
            st = by_layer(dir, "key_share.svg", (mla_svg_chart){.title = "Share of the latent that serves keys", .y_label = "%"}, f,
                          (value_of[2]){share_of, NULL}, (const char *const[2]){"keys", NULL}, err);
        if (st == MLA_OK)
            st = by_layer(dir, "losses.svg", (mla_svg_chart){.title = "Loss of energy by layer", .y_label = "%", .log_y = true}, f,
                          (value_of[2]){predicted_of, held ? held_of : NULL}, (const char *const[2]){"predicted", "held-out"}, err);
    }
    if (st == MLA_OK) st = page(&s, f, recipe, measured, held, err);
    if (st == MLA_OK) st = put(dir, "report.md", &s, err);
    mla_str_free(&s);
    return st == MLA_OK ? st : mla_wrap(err, "report %s", dir);
}
