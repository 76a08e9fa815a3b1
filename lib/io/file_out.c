/* Writing: a sibling temp file, digest on the way, length check, fsync, rename, fsync of the folder.
 * Errors are final: after a failed fsync the kernel may call lost pages clean, so nothing is retried. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/file_sync.h"
#include "io/msg.h"
#include "io/sha256.h"

#define BUF ((size_t)1 << 18) /* small writes are gathered; larger ones go straight through */

struct mla_out {
    char *path, *tmp;
    int fd;
    uint64_t size;     /* bytes accepted, buffered ones included */
    mla_sha256 *sha;   /* NULL for plain copies */
    unsigned char *buf;
    size_t fill;
};

mla_status mla_fsync_parent(const char *path, mla_err *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash ? mla_strdup(".") : slash == path ? mla_strdup("/") : mla_strndup(path, (size_t)(slash - path));
    if (!dir) return mla_fail(err, MLA_ENOMEM, "folder of %s", path);
    mla_status st = MLA_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        st = mla_sys_fail(err, dir, "open the folder");
    /* some file systems have no fsync for folders and say so: their rename is all there is */
    else if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        st = mla_sys_fail(err, dir, "fsync the folder");
    if (fd >= 0) close(fd);
    mla_free(dir);
    return st;
}

char *mla_temp_name(const char *path, unsigned serial)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t dir = (size_t)(base - path), cap = dir + 280;
    char *tmp = mla_alloc_raw(cap, 1, 1);
    if (!tmp) return NULL;
    memcpy(tmp, path, dir); /* names have 255 bytes at most: a long one is cut, the serial keeps it apart */
    snprintf(tmp + dir, cap - dir, ".%.200s.tmp-%ld-%u", base, (long)getpid(), serial);
    return tmp;
}

#define SERIALS 1000u

static mla_status create_temp(char **tmp, int *fd, const char *path, mla_err *err)
{
    for (unsigned i = 0; i < SERIALS; i++) {
        *tmp = mla_temp_name(path, i);
        if (!*tmp) return mla_fail(err, MLA_ENOMEM, "temporary name of %s", path);
        do *fd = open(*tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        while (*fd < 0 && errno == EINTR);
        if (*fd >= 0) return MLA_OK;
        if (errno != EEXIST) break; /* EEXIST: left by a dead process of our id, or in use by this one */
        mla_free(*tmp);
        *tmp = NULL;
    }
    mla_status st = mla_sys_fail(err, path, "create a temporary file beside it");
    mla_free(*tmp);
    *tmp = NULL;
    return st;
}

static mla_status open_out(mla_out **out, const char *path, bool hash, mla_err *err)
{
    if (mla_path_is_dir(path)) return mla_fail(err, MLA_EIO, "%s: is a folder, cannot become a file", path);
    mla_out *o = mla_alloc(1, 1, sizeof *o);
    if (!o) return mla_fail(err, MLA_ENOMEM, "writer of %s", path);
    o->fd = -1;
    o->path = mla_strdup(path);
    o->buf = mla_alloc_raw(BUF, 1, 1);
    mla_status st = MLA_OK;
    if (!o->path || !o->buf)
        st = mla_fail(err, MLA_ENOMEM, "writer of %s", path);
    else if (!hash || (st = mla_sha256_new(&o->sha, err)) == MLA_OK)
        st = create_temp(&o->tmp, &o->fd, path, err);
    if (st == MLA_OK)
        *out = o;
    else
        mla_out_abort(o);
    return st;
}

mla_status mla_out_open(mla_out **out, const char *path, mla_err *err) { return open_out(out, path, true, err); }

mla_status mla_out_reserve(mla_out *o, uint64_t total, mla_err *err)
{
    if (total > INT64_MAX) return mla_fail(err, MLA_EIO, "%s: %ju bytes: no file is that long", o->path, (uintmax_t)total);
    if (total == 0 || fallocate(o->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)total) == 0) return MLA_OK;
    if (errno == ENOSPC || errno == EFBIG || errno == EDQUOT) return mla_sys_fail(err, o->path, "reserve space");
    return MLA_OK; /* best effort: not every file system can */
}

static mla_status write_all(mla_out *o, const unsigned char *p, size_t n, mla_err *err)
{
    while (n) {
        ssize_t k = write(o->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return mla_sys_fail(err, o->path, "write");
        if (k == 0) return mla_fail(err, MLA_EIO, "%s: cannot write: the system took 0 of %zu bytes", o->path, n);
        p += k;
        n -= (size_t)k;
    }
    return MLA_OK;
}

static mla_status flush(mla_out *o, mla_err *err)
{
    size_t n = o->fill;
    o->fill = 0;
    return write_all(o, o->buf, n, err);
}

mla_status mla_out_write(mla_out *o, const void *data, size_t n, mla_err *err)
{
    if (n == 0) return MLA_OK;
    if (o->sha) mla_sha256_update(o->sha, data, n);
    o->size += n;
    if (n > BUF - o->fill) {
        mla_status st = flush(o, err);
        if (st != MLA_OK) return st;
        if (n >= BUF) return write_all(o, data, n, err);
    }
    memcpy(o->buf + o->fill, data, n);
    o->fill += n;
    return MLA_OK;
}

uint64_t mla_out_size(const mla_out *o) { return o->size; }
void mla_out_sha256(const mla_out *o, unsigned char digest[32]) { mla_sha256_get(o->sha, digest); }

static void out_free(mla_out *o)
{
    mla_sha256_free(o->sha);
    mla_free(o->buf);
    mla_free(o->tmp);
    mla_free(o->path);
    mla_free(o);
}

void mla_out_abort(mla_out *o)
{
    if (!o) return;
    if (o->fd >= 0) close(o->fd);
    if (o->tmp) unlink(o->tmp);
    out_free(o);
}

mla_status mla_out_commit(mla_out *o, mla_err *err)
{
    struct stat sb;
    mla_status st = flush(o, err);
    if (st != MLA_OK) goto fail;
    if (fstat(o->fd, &sb) != 0) {
        st = mla_sys_fail(err, o->path, "stat what was written");
        goto fail;
    }
    if ((uintmax_t)sb.st_size != o->size) {
        st = mla_fail(err, MLA_EIO, "%s: wrote %ju bytes, the file has %jd", o->path, (uintmax_t)o->size,
                      (intmax_t)sb.st_size);
        goto fail;
    }
    if (fsync(o->fd) != 0) {
        st = mla_sys_fail(err, o->path, "fsync");
        goto fail;
    }
    int fd = o->fd;
    o->fd = -1;
    if (close(fd) != 0 && errno != EINTR) { /* EINTR: closed all the same, and the data is on disk */
        st = mla_sys_fail(err, o->path, "close");
        goto fail;
    }
    if (rename(o->tmp, o->path) != 0) {
        st = mla_sys_fail(err, o->path, "rename the finished file to its name");
        goto fail;
    }
    st = mla_fsync_parent(o->path, err);
    out_free(o);
    return st;
fail:
    mla_out_abort(o);
    return st;
}

mla_status mla_file_write(const char *path, const void *data, size_t n, mla_err *err)
{
    mla_out *o;
    mla_status st = mla_out_open(&o, path, err);
    if (st != MLA_OK) return st;
    st = mla_out_write(o, data, n, err);
    if (st != MLA_OK) {
        mla_out_abort(o);
        return st;
    }
    return mla_out_commit(o, err);
}

/* A temp file beside dst that shares src's content: the hard link itself, or a reflinked file. */
static bool temp_link(const char *src, const char *tmp) { return link(src, tmp) == 0; }

static bool temp_clone(const char *src, const char *tmp)
{
    bool ok = false;
    int in = open(src, O_RDONLY | O_CLOEXEC), fd = -1;
    if (in >= 0) fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
        ok = ioctl(fd, FICLONE, in) == 0 && fsync(fd) == 0;
        ok = close(fd) == 0 && ok;
        if (!ok) unlink(tmp);
    }
    if (in >= 0) close(in);
    return ok;
}

static mla_status place_shared(const char *src, const char *dst, const char **how, mla_err *err)
{
    for (unsigned i = 0; i < SERIALS; i++) {
        char *tmp = mla_temp_name(dst, i);
        if (!tmp) return mla_fail(err, MLA_ENOMEM, "temporary name of %s", dst);
        bool linked = temp_link(src, tmp);
        if (!linked && errno == EEXIST) {
            mla_free(tmp);
            continue;
        }
        mla_status st = MLA_OK;
        *how = linked ? "linked" : temp_clone(src, tmp) ? "cloned" : NULL;
        if (*how) {
            if (rename(tmp, dst) != 0) st = mla_sys_fail(err, dst, "rename the placed file to its name");
            unlink(tmp); /* rename leaves both names when dst already is that very file */
            if (st == MLA_OK) st = mla_fsync_parent(dst, err);
        }
        mla_free(tmp);
        return st;
    }
    return mla_sys_fail(err, dst, "create a temporary file beside it");
}

static mla_status place_copy(const char *src, const char *dst, mla_err *err)
{
    mla_mapped m;
    mla_out *o = NULL;
    mla_status st = mla_file_map(&m, src, err);
    if (st != MLA_OK) return st;
    st = open_out(&o, dst, false, err);
    if (st == MLA_OK) st = mla_out_reserve(o, m.size, err);
    for (size_t at = 0; st == MLA_OK && at < m.size;) {
        size_t n = m.size - at < ((size_t)1 << 26) ? m.size - at : (size_t)1 << 26;
        st = mla_out_write(o, m.data + at, n, err);
        at += n;
    }
    if (st == MLA_OK) st = mla_file_unchanged(&m, err);
    if (st == MLA_OK) {
        st = mla_out_commit(o, err);
        o = NULL;
    }
    mla_out_abort(o);
    mla_file_unmap(&m);
    return st;
}

mla_status mla_file_place(const char *src, const char *dst, const char **how, mla_err *err)
{
    const char *way = NULL;
    struct stat sb;
    mla_status st;
    char *real = realpath(src, NULL);
    if (!real) return mla_sys_fail(err, src, "resolve");
    if (stat(real, &sb) != 0)
        st = mla_sys_fail(err, src, "stat");
    else if (!S_ISREG(sb.st_mode))
        st = mla_fail(err, MLA_EIO, "%s: expected a regular file to place", src);
    else if (mla_path_is_dir(dst))
        st = mla_fail(err, MLA_EIO, "%s: is a folder, cannot become a file", dst);
    else
        st = place_shared(real, dst, &way, err);
    if (st == MLA_OK && !way) {
        way = "copied";
        st = place_copy(real, dst, err);
    }
    if (st == MLA_OK && how) *how = way;
    free(real);
    return st;
}
