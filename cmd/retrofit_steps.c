/* mla-retrofit stats, solve and graft: the three steps of build apart, so that statistics are collected once. */
#include "base/alloc.h"
#include "retrofit.h"

#define RANKS_MAX 4096 /* full-attention layers of any model */

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
    cli_option opt[RETROFIT_OPTIONS + RETROFIT_REPORT_OPTIONS + 1];
    size_t n = retrofit_options(&a, opt, false);
    opt[n++] = (cli_option){.name = "nested", .kind = CLI_FLAG, .target = &a.nested, .group = "what to build",
                            .help = "keep beside the factors what graft needs to give every smaller rank, byte for byte what build gives at that rank; "
                                    "with --keep 1 all ranks (a larger file: 16 bytes per direction and feature)"};
    n += retrofit_report_options(&a, opt + n);
    const cli_spec spec = {.args = "BASE FACTORS.safetensors STATS...",
                           .about = "Solves the factors of every layer from one or more statistics files and writes them to one file that graft "
                                    "puts beside any base of the same shape.",
                           .opt = opt, .nopt = n, .min_args = 3, .max_args = 1024, .common = CLI_JSON | CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    retrofit_run r;
    mla_build_result res = {0};
    mla_status st = retrofit_begin(&r, c, &a, c->arg[0], false, err);
    if (st != MLA_OK) return st;
    r.o.nested = a.nested;
    r.o.held_stats = a.held_stats;
    st = mla_build_solve(&res, &r.o, c->arg + 2, c->nargs - 2, c->arg[1], err);
    if (st == MLA_OK) st = retrofit_answer(c, &res, c->arg[1], a.report, err);
    mla_build_result_free(&res);
    retrofit_end(&r);
    return st;
}

mla_status cmd_retrofit_graft(cli *c, int argc, char **argv, mla_err *err)
{
    static const char *const RANKS = "ranks";
    retrofit_args a = {0};
    const cli_option opt[] = {
        {.name = "keep", .kind = CLI_DOUBLE, .target = &a.keep, .metavar = "F", .group = RANKS,
         .help = "cached values per token as a fraction of the base's, rotary keys counted (at most one of --keep, --rank, --kv-bytes, --ranks)"},
        {.name = "rank", .kind = CLI_SIZE, .target = &a.rank, .metavar = "N", .group = RANKS, .help = "latent values per token and layer, over all groups"},
        {.name = "kv-bytes", .kind = CLI_SIZE, .target = &a.kv_bytes, .metavar = "N", .group = RANKS, .help = "KV bytes per token over all layers, cached in bf16"},
        {.name = "allocation", .kind = CLI_CHOICE, .target = &a.allocation, .metavar = "uniform|spectrum", .group = RANKS, .def = "uniform",
         .help = "one rank for all layers, or ranks under the same total by the spectra in the file"},
        {.name = "ranks", .kind = CLI_STR, .target = &a.ranks, .metavar = "R,R,...", .group = RANKS,
         .help = "the rank of every full-attention layer, in depth order, such as build --allocation probe printed"},
        {.name = "names", .kind = CLI_CHOICE, .target = &a.names, .metavar = "mla|mvla", .group = "what to write", .def = "mla",
         .help = "spelling of architecture and config keys; mvla: the older one, Qwen3_5MVLAAbsorbedForCausalLM with mvla_* keys"},
    };
    const cli_spec spec = {.args = "BASE FACTORS.safetensors OUT",
                           .about = "Puts factors beside BASE: a complete checkpoint folder with linked base shards, config, index and receipt. One file "
                                    "solved with --nested serves every smaller rank: the result has the factors of a build at that rank with the same "
                                    "statistics, byte for byte. Without a rank the factors are taken as they are.",
                           .opt = opt, .nopt = sizeof opt / sizeof *opt, .min_args = 3, .max_args = 3, .common = CLI_JSON | CLI_DEVICE};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    retrofit_run r;
    mla_build_result res = {0};
    size_t *ranks = NULL, n = 0;
    mla_status st = MLA_OK;
    if (a.ranks && (a.keep > 0 || a.rank || a.kv_bytes || a.allocation))
        st = mla_fail(err, MLA_EINVAL, "--ranks gives every rank: no --keep, --rank, --kv-bytes or --allocation beside it");
    if (st == MLA_OK && a.ranks) {
        ranks = mla_alloc(RANKS_MAX, 1, sizeof *ranks);
        st = ranks ? retrofit_sizes(ranks, &n, RANKS_MAX, a.ranks, err) : mla_fail(err, MLA_ENOMEM, "--ranks");
    }
    if (st == MLA_OK) st = retrofit_begin(&r, c, &a, c->arg[0], false, err);
    if (st == MLA_OK) {
        r.o.out = c->arg[2];
        r.o.rank = ranks;
        r.o.n_rank = n;
        st = mla_build_graft(&res, &r.o, c->arg[1], err);
        if (st == MLA_OK) st = retrofit_answer(c, &res, c->arg[2], NULL, err);
        mla_build_result_free(&res);
        retrofit_end(&r);
    }
    mla_free(ranks);
    return st;
}
