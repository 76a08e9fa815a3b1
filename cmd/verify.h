/* The subcommands of mla-verify: one function per file cmd/verify_*.c, one row each in the table of mla-verify.c. */
#ifndef MLA_CMD_VERIFY_H
#define MLA_CMD_VERIFY_H
#include "cli.h"

mla_status cmd_verify_parity(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_record(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_capacity(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_receipts(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_selfcheck(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_probe(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_gate(cli *c, int argc, char **argv, mla_err *err);
mla_status cmd_verify_inspect(cli *c, int argc, char **argv, mla_err *err);

#endif
