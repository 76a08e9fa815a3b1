/* The subcommands of mla-verify: one function per file cmd/verify_*.c, one row each in the table of mla-verify.c. */
#ifndef MLA_CMD_VERIFY_H
#define MLA_CMD_VERIFY_H
#include "cli.h"

#endif
