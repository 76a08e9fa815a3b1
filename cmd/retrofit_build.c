/* mla-retrofit build: the whole conversion in one command. */
#include "retrofit.h"

mla_status cmd_retrofit_build(cli *c, int argc, char **argv, mla_err *err)
{
    retrofit_args a = {0};
    cli_option opt[RETROFIT_OPTIONS + RETROFIT_REPORT_OPTIONS + 1];
    size_t n = retrofit_options(&a, opt, true);
    const char *stats = NULL;
    opt[n++] = (cli_option){.name = "stats", .kind = CLI_STR, .target = &stats, .metavar = "FILE", .group = "calibration",
                            .help = "use statistics collected before (mla-retrofit stats); a corpus is then read only for probing and refinement"};
    n += retrofit_report_options(&a, opt + n);
    const cli_spec spec = {
        .args = "BASE OUT",
        .about = "Builds a complete checkpoint folder OUT from BASE (a Hugging Face folder or a .gguf file): statistics over a corpus, "
                 "factors per layer, base shards linked, receipt written. OUT appears only when it is whole; a killed build continues "
                 "when it is run again with the same inputs.",
        .opt = opt, .nopt = n, .min_args = 2, .max_args = 2, .common = CLI_JSON | CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) {
        cli_list_free(&a.corpus);
        return err->status;
    }
    retrofit_run r;
    mla_build_result res = {0};
    mla_recipe asked; /* probing and refinement need text beside given statistics */
    mla_status st = retrofit_recipe(&asked, &a, err);
    if (st != MLA_OK) {
        cli_list_free(&a.corpus);
        return st;
    }
    bool text = !stats || asked.refine_steps || asked.balance_scan || asked.allocation == MLA_ALLOC_AUTO || asked.allocation == MLA_ALLOC_PROBE;
    st = retrofit_begin(&r, c, &a, c->arg[0], text, err);
    if (st == MLA_OK) {
        r.o.out = c->arg[1];
        r.o.stats = stats;
        r.o.held_stats = a.held_stats;
        st = mla_build(&res, &r.o, err);
        if (st == MLA_OK) st = retrofit_answer(c, &res, c->arg[1], a.report, err);
        mla_build_result_free(&res);
        retrofit_end(&r);
    }
    cli_list_free(&a.corpus);
    return st;
}
