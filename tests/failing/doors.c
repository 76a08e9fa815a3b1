/* Calls that fail when told to: linked into the three programs by mk/failing.mk, in front of libc.
 *
 * MLA_FAIL=CALL:ERRNO:K makes call number K (from 0, counted from main on, over all threads) of that kind fail with the errno
 * (a number; 0 for write and read: only half is done). When it comes to that, one byte goes to descriptor MLA_FAIL_FD.
 * MLA_FAIL_TRACE=1 tells on stderr where it came. "swap" fails nothing: at open number K it renames the file MLA_FAIL_WITH to MLA_FAIL_PATH, as whoever replaces a source does.
 * "alloc" counts malloc, calloc, realloc and aligned_alloc of the program and of every library; under AddressSanitizer,
 * which needs those for itself, the allocations of base/alloc.h. */
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"

enum { ALLOC, OPEN, READ, WRITE, FSYNC, RENAME, MMAP, CLOSE, LINK, MKDIR, SWAP, CALLS };
static const char *const NAME[CALLS] = {"alloc", "open", "read", "write", "fsync", "rename", "mmap", "close", "link", "mkdir", "swap"};

static int armed = -1, failure, report = -1;
static atomic_long countdown;

static bool fails(int call)
{
    if (armed != call || atomic_fetch_sub(&countdown, 1) != 0) return false;
    (void)!syscall(SYS_write, report, "!", 1);
    if (getenv("MLA_FAIL_TRACE")) {
        void *at[40];
        backtrace_symbols_fd(at, backtrace(at, 40), 2);
    }
    errno = failure;
    return true;
}

__attribute__((constructor)) static void arm(void) /* of the program: after those of all libraries */
{
    const char *what = getenv("MLA_FAIL"), *fd = getenv("MLA_FAIL_FD");
    char name[16];
    long k;
    if (!what || sscanf(what, "%15[a-z]:%d:%ld", name, &failure, &k) != 3) return;

    report = fd ? atoi(fd) : -1;
    atomic_store(&countdown, k);
    for (int i = 0; i < CALLS; i++)
        if (!strcmp(name, NAME[i])) armed = i;
#ifdef __SANITIZE_ADDRESS__
    if (armed == ALLOC) mla_alloc_fail_after(k);
#endif
}

#ifdef __SANITIZE_ADDRESS__
__attribute__((destructor)) static void tell(void)
{
    if (armed == ALLOC && mla_alloc_fail_after(-1) < 0) (void)!syscall(SYS_write, report, "!", 1);
}
#endif

#ifndef __SANITIZE_ADDRESS__
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n) { return fails(ALLOC) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails(ALLOC) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails(ALLOC) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t align, size_t n) { return fails(ALLOC) ? NULL : __libc_memalign(align, n); }
#endif

static void swap(void)
{
    if (fails(SWAP)) (void)syscall(SYS_renameat2, AT_FDCWD, getenv("MLA_FAIL_WITH"), AT_FDCWD, getenv("MLA_FAIL_PATH"), 0);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    swap();
    return fails(OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    swap();
    return fails(OPEN) ? -1 : (int)syscall(SYS_openat, dir, path, flags, mode);
}

ssize_t read(int fd, void *p, size_t n)
{
    if (!fails(READ)) return (ssize_t)syscall(SYS_read, fd, p, n);
    return failure ? -1 : (ssize_t)syscall(SYS_read, fd, p, (n + 1) / 2);
}

ssize_t write(int fd, const void *p, size_t n)
{
    if (!fails(WRITE)) return (ssize_t)syscall(SYS_write, fd, p, n);
    return failure ? -1 : (ssize_t)syscall(SYS_write, fd, p, (n + 1) / 2);
}

int fsync(int fd) { return fails(FSYNC) ? -1 : (int)syscall(SYS_fsync, fd); }
int rename(const char *from, const char *to) { return fails(RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0); }
int link(const char *from, const char *to) { return fails(LINK) ? -1 : (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0); }
int mkdir(const char *path, mode_t mode) { return fails(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode); }

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
    return fails(MMAP) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}

int close(int fd)
{
    bool fail = fails(CLOSE);
    int rc = (int)syscall(SYS_close, fd); /* Linux closes even when it reports an error */
    if (fail) errno = failure;
    return fail ? -1 : rc;
}
