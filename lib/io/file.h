/* Files in and out. In: read-only mappings and small whole files. Out: written beside the final path,
 * length-checked, fsynced, renamed, folder fsynced: a reader sees the old file, the new one, never a mix. */
#ifndef MLA_IO_FILE_H
#define MLA_IO_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#ifdef __cplusplus
extern "C" {
#endif

/* Read-only mapping of a whole regular file (symlinks followed). size 0 gives data == NULL and is MLA_OK.
 * mtime/size/inode are remembered: mla_file_unchanged says whether the file still is what was opened. A file that
 * another process cuts short while it is mapped ends this one with SIGBUS where the missing bytes are read. */
typedef struct {
    const unsigned char *data;
    size_t size;
    char *path;
    uint64_t dev, ino;
    int64_t mtime_ns;
    int fd; /* open while data is there */
} mla_mapped;

MLA_CHECKED mla_status mla_file_map(mla_mapped *out, const char *path, mla_err *err);
void mla_file_unmap(mla_mapped *m); /* zeroed struct is fine */
/* The pages that lie wholly in [p, p + n) of the mapping are not needed soon: they stop counting as this process's memory
 * and come back when they are read again. Bytes outside of the mapping are left alone. */
void mla_file_release(const mla_mapped *m, const void *p, size_t n);
/* The bytes [p, p + n) of the mapping are needed soon: the system may read them ahead, and nobody waits for it. Nothing where they seem
 * to be in the page cache, or mla_file_bytes reads past it. */
void mla_file_want(const mla_mapped *m, const void *p, size_t n);

/* The bytes [p, p + n) of the mapping by reading the file: they stand at *from in room, which holds n + MLA_FILE_ROOM bytes on a
 * boundary of MLA_FILE_PAGE. Bytes in the page cache are taken from there; others are read through it, or past it where that is a
 * twentieth faster: both are tried on the first 256 MiB each of a file system. Several threads may read at once; what is not in the page
 * cache comes fastest some MiB at a time.
 * MLA_EIO names file, offset, expected and found bytes when the file was cut off meanwhile. */
#define MLA_FILE_PAGE 4096
#define MLA_FILE_ROOM (2 * MLA_FILE_PAGE)
MLA_CHECKED mla_status mla_file_bytes(const mla_mapped *m, const void *p, size_t n, void *room, const void **from, mla_err *err);
/* Whether [p, p + n), which lie in the mapping, seem to be in the page cache: a page in 16 MiB is asked for, and the last. A system that
 * does not tell says so of all. */
bool mla_file_cached(const mla_mapped *m, const void *p, size_t n);
/* How bytes that are not in the page cache are read: "buffered", "direct", or "undecided" so far. */
const char *mla_file_way(const mla_mapped *m);
bool mla_file_holds(const mla_mapped *m, const void *p, size_t n); /* [p, p + n) lies within the mapping */
MLA_CHECKED mla_status mla_file_unchanged(const mla_mapped *m, mla_err *err);

/* Whole file of at most `max` bytes; NUL appended after *size bytes. Caller frees *out with mla_free. */
MLA_CHECKED mla_status mla_file_read(char **out, size_t *size, const char *path, size_t max, mla_err *err);

typedef struct mla_out mla_out;
/* Opens a sibling ".NAME.tmp-PID-N" for writing. Nothing appears at `path` before mla_out_commit. */
MLA_CHECKED mla_status mla_out_open(mla_out **out, const char *path, mla_err *err);
MLA_CHECKED mla_status mla_out_write(mla_out *o, const void *data, size_t n, mla_err *err);
/* The size to come: space is reserved where the file system can. Fails only when there is certainly not enough. */
MLA_CHECKED mla_status mla_out_reserve(mla_out *o, uint64_t total, mla_err *err);
uint64_t mla_out_size(const mla_out *o);
/* sha256 over everything written so far (32 bytes), computed while writing; valid before commit. */
void mla_out_sha256(const mla_out *o, unsigned char digest[32]);
/* fsync, close, rename, fsync(dir). Frees o in every case; on failure the temp file is removed. */
MLA_CHECKED mla_status mla_out_commit(mla_out *o, mla_err *err);
void mla_out_abort(mla_out *o); /* removes the temp file; NULL is fine */

/* One call for a small file (text, JSON). */
MLA_CHECKED mla_status mla_file_write(const char *path, const void *data, size_t n, mla_err *err);

/* Puts src's content at dst without touching src: hard link, else reflink, else copy (temp+fsync+rename).
 * A symlinked src is resolved first. *how (may be NULL) becomes "linked", "cloned" or "copied". */
MLA_CHECKED mla_status mla_file_place(const char *src, const char *dst, const char **how, mla_err *err);

/* Names (not paths) of the regular files and symlinks-to-files below dir, '/'-separated relative paths, sorted
 * bytewise, recursing into folders; ".git*" and this toolkit's own temporary files skipped. Anything else (a symlink
 * to a folder or to nothing, a pipe, a device) is an error, never left out in silence. Caller frees with
 * mla_names_free. */
typedef struct {
    char **name;
    size_t n;
} mla_names;
MLA_CHECKED mla_status mla_dir_list(mla_names *out, const char *dir, mla_err *err);
void mla_names_free(mla_names *l);
/* Removes the temporary files that killed runs left below dir. Only under a lock: it would take a live run's, too. */
MLA_CHECKED mla_status mla_dir_sweep(const char *dir, mla_err *err);

MLA_CHECKED mla_status mla_file_size(uint64_t *size, const char *path, mla_err *err); /* of a regular file */
bool mla_path_exists(const char *path);
bool mla_path_is_dir(const char *path);
MLA_CHECKED mla_status mla_dir_make(const char *path, mla_err *err);        /* mkdir -p */
MLA_CHECKED mla_status mla_dir_remove(const char *path, mla_err *err);      /* rm -r, symlinks not followed; absent is OK */
MLA_CHECKED mla_status mla_path_rename(const char *from, const char *to, mla_err *err); /* rename + fsync parents */
/* "dir/name"; caller frees; NULL when out of memory. */
char *mla_path_join(const char *dir, const char *name);
/* False for absolute paths, empty parts, "." or ".." parts, backslashes, NUL or control characters. */
bool mla_path_is_safe_relative(const char *name);

/* An exclusive lock file: two builds into one output refuse each other. Released by the kernel on death. */
typedef struct mla_lock mla_lock;
MLA_CHECKED mla_status mla_lock_take(mla_lock **out, const char *path, mla_err *err);
void mla_lock_drop(mla_lock *l); /* unlinks the lock file; NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
