/* mla-retrofit plan: what build would do, from headers alone. */
#include "retrofit.h"
#include "retrofit/compare.h"
#include "retrofit/plan.h"

/* --compare-layouts: this one does run the model. */
static mla_status compare(cli *c, const retrofit_args *a, const char *stats, mla_err *err)
{
    retrofit_run r;
    mla_compared rows[MLA_COMPARE_LAYOUTS];
    mla_status st = retrofit_begin(&r, c, a, c->arg[0], true, err);
    if (st != MLA_OK) return st;
    mla_budget *b = &r.o.recipe.budget;
    if (!(b->keep > 0) && !b->rank && !b->kv_bytes) b->keep = 0.5;
    r.o.stats = stats;
    st = mla_compare_layouts(rows, &r.o, err);
    if (st == MLA_OK && c->json) {
        mla_json *d;
        st = mla_json_new_object(&d, err);
        if (st == MLA_OK) {
            mla_jv_set_str(mla_json_root(d), "schema", "mla-layouts/1");
            mla_compared_to_json(rows, mla_jv_set_arr(mla_json_root(d), "layouts"));
            st = cli_print_json(mla_json_root(d), err);
            mla_json_free(d);
        }
    } else if (st == MLA_OK) {
        mla_str s = MLA_STR_MAX(1 << 16);
        mla_compared_table(rows, &s);
        st = cli_print(&s, err);
        mla_str_free(&s);
    }
    retrofit_end(&r);
    return st;
}

mla_status cmd_retrofit_plan(cli *c, int argc, char **argv, mla_err *err)
{
    retrofit_args a = {0};
    cli_option opt[RETROFIT_OPTIONS + 2];
    size_t n = retrofit_options(&a, opt, true);
    bool layouts = false;
    const char *stats = NULL;
    opt[n++] = (cli_option){.name = "compare-layouts", .kind = CLI_FLAG, .target = &layouts, .group = "what to build",
                            .help = "models that rotate whole heads: rebuild, absorbed-rope and deepseek side by side at the budget, with the KL divergence "
                                    "from the base on held-out text (runs the model)"};
    opt[n++] = (cli_option){.name = "stats", .kind = CLI_STR, .target = &stats, .metavar = "FILE", .group = "calibration",
                            .help = "with --compare-layouts: statistics collected before (mla-retrofit stats) instead of a corpus"};
    const cli_spec spec = {.args = "BASE",
                           .about = "Prints what build would do with BASE: ranks, bytes per token, memory, disk. Reads headers only and refuses "
                                    "what build would refuse at reading. Without a budget it plans --keep 0.5.",
                           .opt = opt, .nopt = n, .min_args = 1, .max_args = 1, .common = CLI_JSON | CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) {
        cli_list_free(&a.corpus);
        return err->status;
    }
    if (layouts) {
        mla_status done = compare(c, &a, stats, err);
        cli_list_free(&a.corpus);
        return done;
    }
    cli_list_free(&a.corpus);
    mla_recipe r;
    mla_model *m = NULL;
    mla_plan p;
    mla_status st = retrofit_recipe(&r, &a, err);
    if (st == MLA_OK && !(r.budget.keep > 0) && !r.budget.rank && !r.budget.kv_bytes) r.budget.keep = 0.5;
    if (st == MLA_OK) st = mla_model_open(&m, c->arg[0], err);
    if (st == MLA_OK) st = mla_recipe_resolve(&r, mla_model_config(m), err);
    if (st == MLA_OK) st = mla_plan_make(&p, m, &r, err);
    if (st == MLA_OK && c->json) {
        mla_json *d;
        st = mla_json_new_object(&d, err);
        if (st == MLA_OK) {
            mla_plan_to_json(&p, &r, mla_json_root(d));
            st = cli_print_json(mla_json_root(d), err);
            mla_json_free(d);
        }
    } else if (st == MLA_OK) {
        mla_str s = MLA_STR_MAX(1 << 16);
        mla_plan_table(&p, &r, &s);
        st = cli_print(&s, err);
        mla_str_free(&s);
    }
    mla_model_close(m);
    return st;
}
