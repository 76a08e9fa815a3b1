/* mla-calibrate: measures what a model caches and writes FP8 KV scales. The table of its subcommands. */
#include "calibrate.h"

static const cli_command COMMANDS[] = {
    {"fp8", "measure, judge and write FP8 KV-cache scales", cmd_calibrate_fp8},
    {"fold", "move KV scales into the weights, for engines that load none", cmd_calibrate_fold},
    {"study", "compare KV-cache formats: KLD, agreement and bytes", cmd_calibrate_study},
    {"corpus", "describe, tokenize and digest a corpus", cmd_calibrate_corpus},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    static const cli_program P = {
        .name = "mla-calibrate",
        .about = "Runs a model over a corpus, records the range of everything it caches, and writes validated FP8 KV-cache "
                 "scales; compares cache formats; describes, tokenizes and hashes corpora.",
        .command = COMMANDS,
    };
    return cli_main(&P, argc, argv);
}
