/* mla-retrofit stats, solve and graft: the three steps of build apart, so that statistics are collected once. */
#include "retrofit.h"

mla_status cmd_retrofit_stats(cli *c, int argc, char **argv, mla_err *err)
{
    retrofit_args a = {0};
    cli_option opt[RETROFIT_OPTIONS];
    size_t n = retrofit_options(&a, opt, true);
    const cli_spec spec = {.args = "BASE OUT.mlastats",
                           .about = "Collects the statistics of BASE over a corpus into one file (docs/format-stats.md). Files of several runs "
                                    "over different text can be given together to solve.",
                           .opt = opt, .nopt = n, .min_args = 2, .max_args = 2, .common = CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) {
        cli_list_free(&a.corpus);
        return err->status;
    }
    retrofit_run r;
    mla_status st = retrofit_begin(&r, c, &a, c->arg[0], true, err);
    if (st == MLA_OK) {
        st = mla_build_stats(&r.o, c->arg[1], err);
        retrofit_end(&r);
    }
    cli_list_free(&a.corpus);
    return st;
}

mla_status cmd_retrofit_solve(cli *c, int argc, char **argv, mla_err *err)
{
    retrofit_args a = {0};
    cli_option opt[RETROFIT_OPTIONS];
    size_t n = retrofit_options(&a, opt, false);
    const cli_spec spec = {.args = "BASE FACTORS.safetensors STATS...",
                           .about = "Solves the factors of every layer from one or more statistics files and writes them to one file that graft "
                                    "puts beside any base of the same shape.",
                           .opt = opt, .nopt = n, .min_args = 3, .max_args = 1024, .common = CLI_JSON | CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    retrofit_run r;
    mla_build_result res = {0};
    mla_status st = retrofit_begin(&r, c, &a, c->arg[0], false, err);
    if (st != MLA_OK) return st;
    st = mla_build_solve(&res, &r.o, c->arg + 2, c->nargs - 2, c->arg[1], err);
    if (st == MLA_OK) st = retrofit_answer(c, &res, c->arg[1], err);
    mla_build_result_free(&res);
    retrofit_end(&r);
    return st;
}

mla_status cmd_retrofit_graft(cli *c, int argc, char **argv, mla_err *err)
{
    const cli_spec spec = {.args = "BASE FACTORS.safetensors OUT",
                           .about = "Puts factors beside BASE: a complete checkpoint folder with linked base shards, config, index and receipt.",
                           .min_args = 3, .max_args = 3, .common = CLI_JSON | CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    retrofit_args a = {0};
    retrofit_run r;
    mla_build_result res = {0};
    mla_status st = retrofit_begin(&r, c, &a, c->arg[0], false, err);
    if (st != MLA_OK) return st;
    r.o.out = c->arg[2];
    st = mla_build_graft(&res, &r.o, c->arg[1], err);
    if (st == MLA_OK) st = retrofit_answer(c, &res, c->arg[2], err);
    mla_build_result_free(&res);
    retrofit_end(&r);
    return st;
}
