/* What writing and folder work share. Private to io/. */
#ifndef MLA_IO_FILE_SYNC_H
#define MLA_IO_FILE_SYNC_H
#include <stdbool.h>

#include "base/err.h"

/* fsync of the folder that holds path: makes a create, rename or unlink in it durable. */
MLA_CHECKED mla_status mla_fsync_parent(const char *path, mla_err *err);
/* "DIR/.BASE.tmp-PID-SERIAL" for "DIR/BASE"; caller frees; NULL when out of memory. */
char *mla_temp_name(const char *path, unsigned serial);
/* Whether a file name (no folders) is one that mla_temp_name makes. */
bool mla_is_temp_name(const char *base);
#endif
