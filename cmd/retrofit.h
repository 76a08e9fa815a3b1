/* The subcommands of mla-retrofit: one function per file cmd/retrofit_*.c, one row each in the table of mla-retrofit.c. */
#ifndef MLA_CMD_RETROFIT_H
#define MLA_CMD_RETROFIT_H
#include "cli.h"

#endif
