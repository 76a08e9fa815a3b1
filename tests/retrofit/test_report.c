/* The report of a solve: every number is there, charts are well-formed, the same results give the same bytes. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "harness.h"
#include "io/file.h"
#include "retrofit/build/report.h"
#include "xml.h"

enum { L = 140, NS = 600 };

static char *text_of(const char *dir, const char *name)
{
    mla_err err;
    char *path = mla_path_join(dir, name), *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, path, 8 << 20, &err));
    mla_free(path);
    return text;
}

static const char *const CHART[] = {"spectra.svg", "ranks.svg", "key_share.svg", "losses.svg"};

START_TEST(page_and_charts)
{
    static mla_layer_result r[L];
    static double spectrum[L][NS];
    mla_err err;
    mla_recipe recipe = mla_recipe_default();
    recipe.layout = MLA_LAYOUT_N;
    recipe.objective = MLA_OBJ_BALANCED_PCA;
    for (size_t i = 0; i < L; i++) {
        double e = 1;
        for (size_t k = 0; k < NS; k++) spectrum[i][k] = e *= 0.97;
        r[i] = (mla_layer_result){.layer = 4 * i + 3, .rank = 10 + i, .predicted = 0.01 + 1e-4 * (double)i, .held_out = i % 2 ? 0.0123 : -1,
                                  .exact = 0.011, .energy = 32, .k_share = 0.25, .floored = i, .spectrum = spectrum[i], .n_spectrum = NS};
    }
    char *dir = mla_test_tmpdir(), *sub = mla_path_join(dir, "made/here"), *first[4];
    mla_factorization f = {.layers = L, .result = r};
    for (int turn = 0; turn < 2; turn++) {
        ck_ok(mla_report_write(sub, &f, &recipe, &err));
        for (size_t k = 0; k < 4; k++) {
            char *t = text_of(sub, CHART[k]);
            size_t n;
            const char *bad = xml_check(t, k == 0 ? "polyline" : "rect", &n);
            ck_assert_msg(!bad, "%s: %s", CHART[k], bad);
            if (k == 0) ck_assert_uint_eq(n, 70); /* every second of 140 layers: a chart holds 128 */
            if (k == 1 || k == 2) ck_assert_uint_eq(n, 1 + L);
            if (turn) ck_assert_str_eq(t, first[k]);
            if (turn) mla_free(first[k]);
            if (turn) mla_free(t);
            else first[k] = t;
        }
    }
    char *page = text_of(sub, "report.md");
    ck_assert_ptr_nonnull(strstr(page, "| 3 | 10 | 1 % | 1.1 % | - | - | 25.0 % | 32 | 0 |"));
    ck_assert_ptr_nonnull(strstr(page, "| 7 | 11 | 1.01 % | 1.1 % | 1.23 % | 1.218 | 25.0 % | 32 | 1 |"));
    ck_assert_ptr_nonnull(strstr(page, "objective balanced-pca"));
    ck_assert_ptr_null(strstr(page, "No held-out statistics"));
    mla_free(page);
    f.layers = 1; /* full rank: nothing measured */
    r[0].n_spectrum = 0, r[0].spectrum = NULL, r[0].held_out = -1;
    ck_ok(mla_report_write(sub, &f, &recipe, &err));
    page = text_of(sub, "report.md");
    ck_assert_ptr_nonnull(strstr(page, "Exact factors"));
    mla_free(page);
    char *file = mla_path_join(sub, "report.md");
    ck_assert_int_ne(mla_report_write(file, &f, &recipe, &err), MLA_OK); /* a file stands where the folder should be */
    mla_free(file);
    ck_ok(mla_dir_remove(dir, &err));
    mla_free(sub);
    mla_free(dir);
}
END_TEST

Suite *suite_report(void);
Suite *suite_report(void)
{
    Suite *s = suite_create("report");
    TCase *c = tcase_create("report");
    tcase_add_test(c, page_and_charts);
    suite_add_tcase(s, c);
    return s;
}
