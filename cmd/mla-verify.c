/* mla-verify: proves that a checkpoint is what it claims and answers as its base does. The table of its subcommands. */
#include "verify.h"

static const cli_command COMMANDS[] = {
    {"probe", "compare a running server with recorded answers", cmd_verify_probe},
    {"gate", "a whole release policy in one run: one verdict, with JUnit, Markdown and charts", cmd_verify_gate},
    {"parity", "compares answers with recorded ids or with a base model", cmd_verify_parity},
    {"record", "writes down a model's answers as a reference", cmd_verify_record},
    {"capacity", "cache bytes, sequences and tokens on a GPU; int32 slot limit", cmd_verify_capacity},
    {"receipts", "checks every file, config claim and tensor of a finished checkpoint", cmd_verify_receipts},
    {"selfcheck", "attention kernels on first, middle and last cache block against fp64", cmd_verify_selfcheck},
    {"inspect", "names, dtypes, shapes, formats and scales of any checkpoint or file of this toolkit", cmd_verify_inspect},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv)
{
    static const cli_program P = {
        .name = "mla-verify",
        .about = "Judges checkpoints: what is inside them, whether their receipts hold, how much cache they need, and "
                 "whether they still answer like the original, as a CI gate.",
        .command = COMMANDS,
    };
    return cli_main(&P, argc, argv);
}
