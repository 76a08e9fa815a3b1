/* mla-retrofit: turns a GQA checkpoint into an MLA or GLA one without training. The table of its subcommands. */
#include "retrofit.h"

static const cli_command COMMANDS[] = {
    {"build", "build a retrofitted checkpoint folder from a base", cmd_retrofit_build},
    {"plan", "print what build would do, from headers alone", cmd_retrofit_plan},
    {"stats", "collect statistics of a base over a corpus", cmd_retrofit_stats},
    {"solve", "solve factors from statistics", cmd_retrofit_solve},
    {"graft", "put factors beside a base", cmd_retrofit_graft},
    {"pack", "pack a checkpoint folder into one compressed bundle", cmd_retrofit_pack},
    {"unpack", "give back a packed folder, or single tensors of it", cmd_retrofit_unpack},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    static const cli_program P = {
        .name = "mla-retrofit",
        .about = "Turns an existing GQA checkpoint into one whose attention caches a latent (MLA, GLA), without training: "
                 "statistics over a corpus, closed-form factors per layer, and a complete checkpoint folder with a receipt.",
        .command = COMMANDS,
    };
    return cli_main(&P, argc, argv);
}
