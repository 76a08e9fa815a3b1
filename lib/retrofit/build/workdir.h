/* The unfinished output of a build: OUT.partial, keyed by everything that decides the result.
 *
 * A killed build leaves OUT.partial and no OUT. Running again with the same inputs continues from what is already
 * proven done (each piece is checked again when it is read); with other inputs the leftovers are removed, and said so.
 * The lock OUT.lock makes a second build into the same output refuse. */
#ifndef MLA_RETROFIT_WORKDIR_H
#define MLA_RETROFIT_WORKDIR_H
#include <stdbool.h>

#include "base/err.h"
#include "base/log.h"
#include "io/file.h"

typedef struct {
    char *out, *partial, *work; /* work = partial/.mla-work: pieces that do not belong to the result */
    mla_lock *lock;
    bool resumed;
} mla_workdir;

/* key: digest of all inputs. OUT must not exist (MLA_EINVAL otherwise). */
MLA_CHECKED mla_status mla_workdir_open(mla_workdir *w, const char *out, const unsigned char key[32], mla_log *log, mla_err *err);
/* Removes the work pieces and renames partial to OUT. */
MLA_CHECKED mla_status mla_workdir_finish(mla_workdir *w, mla_err *err);
void mla_workdir_close(mla_workdir *w); /* keeps OUT.partial; drops the lock; zeroed struct is fine */
char *mla_workdir_piece(const mla_workdir *w, const char *name); /* path in work; caller frees; NULL: out of memory */
#endif
