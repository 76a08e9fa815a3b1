/* The subcommands of mla-calibrate: one function per file cmd/calibrate_*.c, one row each in the table of mla-calibrate.c. */
#ifndef MLA_CMD_CALIBRATE_H
#define MLA_CMD_CALIBRATE_H
#include "cli.h"

#endif
