/* The subcommands of mla-calibrate: one function per file cmd/calibrate_*.c, one row each in the table of mla-calibrate.c. */
#ifndef MLA_CMD_CALIBRATE_H
#define MLA_CMD_CALIBRATE_H
#include "cli.h"

mla_status cmd_calibrate_fp8(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_calibrate_fold(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_calibrate_corpus(cli *c, int argc, char **argv, mla_err *err);
#endif
