/* The subcommands of mla-calibrate: one function per file cmd/calibrate_*.c, one row each in the table of mla-calibrate.c. */
#ifndef MLA_CMD_CALIBRATE_H
#define MLA_CMD_CALIBRATE_H
#include "cli.h"
#include "model/model.h"
#include "text/corpus.h"

mla_status cmd_calibrate_fp8(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_calibrate_fold(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_calibrate_corpus(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_calibrate_study(cli *c, int argc, char **argv, mla_err *err);

/* Token ids of `files`, or of the bundled text `fallback` when there are none. */
MLA_CHECKED mla_status calibrate_text(mla_corpus *out, const mla_model *m, const cli_list *files, const char *fallback, mla_err *err);
#endif
