/* Reading: whole-file mappings and small whole files. Only regular files (after symlinks) are accepted. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/ckd.h"
#include "io/msg.h"

/* O_NONBLOCK: opening a FIFO must not hang; it has no effect on regular files. */
static mla_status open_regular(int *fd, struct stat *sb, const char *path, mla_err *err)
{
    do *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0) return mla_sys_fail(err, path, "open");
    mla_status st = MLA_OK;
    if (fstat(*fd, sb) != 0)
        st = mla_sys_fail(err, path, "stat");
    else if (S_ISDIR(sb->st_mode))
        st = mla_fail(err, MLA_EIO, "%s: expected a file, found a folder", path);
    else if (!S_ISREG(sb->st_mode))
        st = mla_fail(err, MLA_EIO, "%s: expected a regular file, found a device, pipe or socket", path);
    else if (sb->st_size < 0 || (uintmax_t)sb->st_size > SIZE_MAX / 2)
        st = mla_fail(err, MLA_EIO, "%s: a size of %jd bytes does not fit memory", path, (intmax_t)sb->st_size);
    if (st != MLA_OK) close(*fd);
    return st;
}

static int64_t mtime_ns(const struct stat *sb)
{
    return (int64_t)sb->st_mtim.tv_sec * 1000000000 + sb->st_mtim.tv_nsec;
}

mla_status mla_file_map(mla_mapped *out, const char *path, mla_err *err)
{
    int fd;
    struct stat sb;
    *out = (mla_mapped){0};
    if (open_regular(&fd, &sb, path, err) != MLA_OK) return err ? err->status : MLA_EIO;
    mla_mapped m = {.size = (size_t)sb.st_size, .path = mla_strdup(path), .dev = (uint64_t)sb.st_dev,
                    .ino = (uint64_t)sb.st_ino, .mtime_ns = mtime_ns(&sb)};
    mla_status st = MLA_OK;
    if (!m.path) {
        st = mla_fail(err, MLA_ENOMEM, "path %s", path);
    } else if (m.size) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            st = mla_sys_fail(err, path, "map");
        else
            m.data = p, m.fd = fd;
    }
    if (!m.data) close(fd);
    if (st == MLA_OK)
        *out = m;
    else
        mla_file_unmap(&m);
    return st;
}

void mla_file_unmap(mla_mapped *m)
{
    if (m->data) {
        union { /* munmap wants the pointer that mmap gave, without const */
            const unsigned char *c;
            void *v;
        } p = {.c = m->data};
        munmap(p.v, m->size);
        close(m->fd);
    }
    mla_free(m->path);
    *m = (mla_mapped){0};
}

bool mla_file_holds(const mla_mapped *m, const void *p, size_t n)
{
    uintptr_t from = (uintptr_t)p, base = (uintptr_t)m->data;
    return m->data && from >= base && from - base <= m->size && n <= m->size - (from - base);
}

void mla_file_release(const mla_mapped *m, const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p;
    if (!mla_file_holds(m, p, n)) return;
    uintptr_t a = (from + page - 1) / page * page, e = (from + n) / page * page;
    if (e > a) (void)madvise((void *)a, e - a, MADV_DONTNEED); /* clean pages of a file: they are read again on demand */
}

mla_status mla_file_unchanged(const mla_mapped *m, mla_err *err)
{
    struct stat sb;
    if (stat(m->path, &sb) != 0) return mla_sys_fail(err, m->path, "stat");
    if ((uint64_t)sb.st_dev != m->dev || (uint64_t)sb.st_ino != m->ino)
        return mla_fail(err, MLA_EIO, "%s: replaced by another file since it was opened", m->path);
    if ((uintmax_t)sb.st_size != m->size)
        return mla_fail(err, MLA_EIO, "%s: changed since it was opened: %zu bytes then, %jd now", m->path, m->size,
                        (intmax_t)sb.st_size);
    if (mtime_ns(&sb) != m->mtime_ns)
        return mla_fail(err, MLA_EIO, "%s: written to since it was opened", m->path);
    return MLA_OK;
}

mla_status mla_file_size(uint64_t *size, const char *path, mla_err *err)
{
    struct stat sb;
    if (stat(path, &sb) != 0) return mla_sys_fail(err, path, "stat");
    if (!S_ISREG(sb.st_mode)) return mla_fail(err, MLA_EIO, "%s: expected a regular file", path);
    *size = (uint64_t)sb.st_size;
    return MLA_OK;
}

mla_status mla_file_read(char **out, size_t *size, const char *path, size_t max, mla_err *err)
{
    int fd;
    struct stat sb;
    if (open_regular(&fd, &sb, path, err) != MLA_OK) return err ? err->status : MLA_EIO;
    mla_status st = MLA_OK;
    size_t n = (size_t)sb.st_size, at = 0;
    char *buf = NULL;
    if (n > max) {
        st = mla_fail(err, MLA_EFORMAT, "%s: %zu bytes, at most %zu are accepted", path, n, max);
        goto done;
    }
    buf = mla_alloc_raw(n + 1, 1, 1);
    if (!buf) {
        st = mla_fail(err, MLA_ENOMEM, "%s: %zu bytes", path, n);
        goto done;
    }
    while (at <= n) { /* one byte more than promised: a file that grew is not read half */
        ssize_t k = read(fd, buf + at, n + 1 - at);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            st = mla_sys_fail(err, path, "read");
            goto done;
        }
        if (k == 0) break;
        at += (size_t)k;
    }
    if (at != n) {
        st = mla_fail(err, MLA_EIO, "%s: changed while it was read: %zu bytes promised, %s came", path, n,
                      at < n ? "fewer" : "more");
        goto done;
    }
    buf[n] = 0;
    *out = buf;
    *size = n;
    buf = NULL;
done:
    mla_free(buf);
    close(fd);
    return st;
}
