/* mla-retrofit plan: what build would do, from headers alone. */
#include "retrofit.h"
#include "retrofit/build/compare.h"
#include "retrofit/build/plan.h"

static void compared_text(const void *what, mla_str *out)
{
    mla_compared_table(what, out);
}

static void compared_json(const void *what, mla_jv *o)
{
    mla_jv_set_str(o, "schema", "mla-layouts/1");
    mla_compared_to_json(what, mla_jv_set_arr(o, "layouts"));
}

typedef struct {
    mla_recipe recipe;
    mla_plan plan;
} planned;

static void planned_text(const void *what, mla_str *out)
{
    const planned *p = what;
    mla_plan_table(&p->plan, &p->recipe, out);
}

static void planned_json(const void *what, mla_jv *o)
{
    const planned *p = what;
    mla_plan_to_json(&p->plan, &p->recipe, o);
}

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
    if (st == MLA_OK) st = cli_answer(c, compared_text, compared_json, rows, err);
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
    planned p;
    mla_recipe *r = &p.recipe;
    mla_model *m = NULL;
    mla_status st = retrofit_recipe(r, &a, err);
    if (st == MLA_OK && !(r->budget.keep > 0) && !r->budget.rank && !r->budget.kv_bytes) r->budget.keep = 0.5;
    if (st == MLA_OK) st = mla_model_open(&m, c->arg[0], err);
    if (st == MLA_OK) st = mla_recipe_resolve(r, mla_model_config(m), err);
    if (st == MLA_OK) st = mla_plan_make(&p.plan, m, r, err);
    if (st == MLA_OK) st = cli_answer(c, planned_text, planned_json, &p, err);
    mla_model_close(m);
    return st;
}
