/* Statistics on disk: docs/format-stats.md. A JSON header with schema, digests and shapes, then one zstd frame per
 * array (fp64 split into byte planes, checksum on), so that one layer can be read without the others. */
#ifndef MLA_RETROFIT_STATS_FILE_H
#define MLA_RETROFIT_STATS_FILE_H
#include "base/err.h"
#include "base/par.h"
#include "retrofit/stats/stats.h"

#define MLA_STATS_SCHEMA "mla-stats/1"

/* Atomic; deterministic bytes, whatever the threads of pool (NULL: one). digest (may be NULL) = sha256 of the file. */
MLA_CHECKED mla_status mla_stats_write(const mla_stats *s, const char *path, unsigned char digest[32], mla_pool *pool, mla_err *err);
/* Reads and checks everything: shapes against the header, every frame's checksum, all values finite. */
MLA_CHECKED mla_status mla_stats_read(mla_stats *out, const char *path, mla_err *err);
#endif
