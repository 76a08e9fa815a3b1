/* Folders, paths and locks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "io/file_sync.h"
#include "io/msg.h"

#define MAX_DEPTH 64u

bool mla_path_exists(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0;
}

bool mla_path_is_dir(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

char *mla_path_join(const char *dir, const char *name)
{
    size_t d = strlen(dir), n = strlen(name);
    char *p = mla_alloc_raw(d + n + 2, 1, 1);
    if (!p) return NULL;
    memcpy(p, dir, d);
    if (d && dir[d - 1] != '/') p[d++] = '/';
    memcpy(p + d, name, n + 1);
    return p;
}

bool mla_path_is_safe_relative(const char *name)
{
    if (!*name) return false;
    for (const char *part = name;;) {
        size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f || part[i] == '\\') return false;
        if (!part[n]) return true;
        part += n + 1;
    }
}

bool mla_is_temp_name(const char *base)
{
    const char *t = strstr(base, ".tmp-");
    if (base[0] != '.' || !t || t == base) return false;
    for (const char *next; (next = strstr(t + 1, ".tmp-"));) t = next;
    t += 5;
    size_t pid = strspn(t, "0123456789");
    if (!pid || t[pid] != '-') return false;
    t += pid + 1;
    size_t serial = strspn(t, "0123456789");
    return serial && !t[serial];
}

mla_status mla_dir_make(const char *path, mla_err *err)
{
    char *p = mla_strdup(path);
    if (!p) return mla_fail(err, MLA_ENOMEM, "path %s", path);
    mla_status st = MLA_OK;
    for (char *s = p; st == MLA_OK;) {
        s += strspn(s, "/");
        s += strcspn(s, "/");
        char keep = *s;
        *s = 0;
        if (*p && mkdir(p, 0777) != 0 && !(errno == EEXIST && mla_path_is_dir(p))) st = mla_sys_fail(err, p, "make the folder");
        *s = keep;
        if (!keep) break;
    }
    mla_free(p);
    return st;
}

/* ---- listing: a callback for every file below a folder ---- */
typedef struct {
    const char *root;
    char **name;
    size_t n, cap;
    bool temps; /* true: only temp names, false: everything else */
} listing;

static mla_status list_add(listing *l, char *rel, mla_err *err) /* takes rel */
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 32;
        char **name = mla_realloc(l->name, cap, sizeof *name);
        if (!name) {
            mla_free(rel);
            return mla_fail(err, MLA_ENOMEM, "list of %zu names", cap);
        }
        l->name = name;
        l->cap = cap;
    }
    l->name[l->n++] = rel;
    return MLA_OK;
}

static mla_status list_dir(listing *l, const char *rel, unsigned depth, mla_err *err);

static mla_status list_entry(listing *l, const char *rel, const char *base, unsigned depth, mla_err *err)
{
    struct stat sb, target;
    mla_status st = MLA_OK;
    bool temp = mla_is_temp_name(base);
    char *name = *rel ? mla_path_join(rel, base) : mla_strdup(base);
    char *path = name ? mla_path_join(l->root, name) : NULL;
    if (!path)
        st = mla_fail(err, MLA_ENOMEM, "path of %s", base);
    else if (lstat(path, &sb) != 0)
        st = mla_sys_fail(err, path, "stat");
    else if (S_ISDIR(sb.st_mode))
        st = list_dir(l, name, depth + 1, err);
    else if (temp != l->temps)
        ;
    else if (S_ISLNK(sb.st_mode) && stat(path, &target) != 0)
        st = mla_fail(err, MLA_EIO, "%s: a symlink whose target is absent", path);
    else if (S_ISREG(sb.st_mode) || (S_ISLNK(sb.st_mode) && S_ISREG(target.st_mode))) {
        st = list_add(l, name, err);
        name = NULL;
    } else if (S_ISLNK(sb.st_mode))
        st = mla_fail(err, MLA_EUNSUPPORTED, "%s: a symlink to a folder or device: not followed", path);
    else
        st = mla_fail(err, MLA_EUNSUPPORTED, "%s: neither a file nor a folder", path);
    mla_free(name);
    mla_free(path);
    return st;
}

static mla_status list_dir(listing *l, const char *rel, unsigned depth, mla_err *err)
{
    if (depth > MAX_DEPTH) return mla_fail(err, MLA_EUNSUPPORTED, "%s/%s: folders nested deeper than %u", l->root, rel, MAX_DEPTH);
    char *path = *rel ? mla_path_join(l->root, rel) : mla_strdup(l->root);
    if (!path) return mla_fail(err, MLA_ENOMEM, "path of %s", rel);
    mla_status st = MLA_OK;
    DIR *d = opendir(path);
    if (!d) st = mla_sys_fail(err, path, "read the folder");
    while (st == MLA_OK) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            if (errno) st = mla_sys_fail(err, path, "read the folder");
            break;
        }
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || mla_starts_with(e->d_name, ".git")) continue;
        st = list_entry(l, rel, e->d_name, depth, err);
    }
    if (d) closedir(d);
    mla_free(path);
    return st;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static mla_status list_all(mla_names *out, const char *dir, bool temps, mla_err *err)
{
    listing l = {.root = dir, .temps = temps};
    mla_status st = list_dir(&l, "", 0, err);
    *out = (mla_names){l.name, l.n};
    if (st != MLA_OK) {
        mla_names_free(out);
        return st;
    }
    if (l.n) qsort(l.name, l.n, sizeof *l.name, by_bytes); /* strcmp compares as unsigned char */
    return MLA_OK;
}

mla_status mla_dir_list(mla_names *out, const char *dir, mla_err *err) { return list_all(out, dir, false, err); }

mla_status mla_dir_sweep(const char *dir, mla_err *err)
{
    mla_names l;
    mla_status st = list_all(&l, dir, true, err);
    for (size_t i = 0; st == MLA_OK && i < l.n; i++) {
        char *p = mla_path_join(dir, l.name[i]);
        if (!p)
            st = mla_fail(err, MLA_ENOMEM, "path of %s", l.name[i]);
        else if (unlink(p) != 0 && errno != ENOENT)
            st = mla_sys_fail(err, p, "remove the abandoned temporary file");
        mla_free(p);
    }
    mla_names_free(&l);
    return st;
}

void mla_names_free(mla_names *l)
{
    for (size_t i = 0; i < l->n; i++) mla_free(l->name[i]);
    mla_free(l->name);
    *l = (mla_names){0};
}

/* ---- removing: by descriptors, so that a symlink swapped in on the way is unlinked, never entered ---- */
static mla_status remove_at(int parent, const char *base, unsigned depth, const char *path, mla_err *err)
{
    if (unlinkat(parent, base, 0) == 0 || errno == ENOENT) return MLA_OK;
    if (errno != EISDIR && errno != EPERM) return mla_sys_fail(err, path, "remove");
    if (depth > MAX_DEPTH) return mla_fail(err, MLA_EUNSUPPORTED, "%s: folders nested deeper than %u", path, MAX_DEPTH);
    int fd = openat(parent, base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        mla_status st = mla_sys_fail(err, path, "remove the folder");
        if (fd >= 0) close(fd);
        return st;
    }
    mla_status st = MLA_OK;
    while (st == MLA_OK) {
        errno = 0;
        struct dirent *e = readdir(d);
        if (!e) {
            if (errno) st = mla_sys_fail(err, path, "read the folder");
            break;
        }
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) st = remove_at(dirfd(d), e->d_name, depth + 1, path, err);
    }
    closedir(d);
    if (st == MLA_OK && unlinkat(parent, base, AT_REMOVEDIR) != 0 && errno != ENOENT) st = mla_sys_fail(err, path, "remove the folder");
    return st;
}

mla_status mla_dir_remove(const char *path, mla_err *err) { return remove_at(AT_FDCWD, path, 0, path, err); }

mla_status mla_path_rename(const char *from, const char *to, mla_err *err)
{
    if (rename(from, to) != 0) {
        mla_status st = mla_sys_fail(err, from, "rename");
        mla_wrap(err, "to %s", to);
        return st;
    }
    mla_status st = mla_fsync_parent(to, err);
    return st == MLA_OK ? mla_fsync_parent(from, err) : st;
}

/* ---- locks: flock dies with its process; the inode check closes the race with a holder that unlinks ---- */
struct mla_lock {
    int fd;
    char *path;
};

mla_status mla_lock_take(mla_lock **out, const char *path, mla_err *err)
{
    mla_lock *l = mla_alloc(1, 1, sizeof *l);
    if (!l) return mla_fail(err, MLA_ENOMEM, "lock %s", path);
    l->path = mla_strdup(path);
    mla_status st = l->path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "lock %s", path);
    l->fd = -1;
    while (st == MLA_OK) {
        struct stat mine, there;
        l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (l->fd < 0)
            st = mla_sys_fail(err, path, "open the lock file");
        else if (flock(l->fd, LOCK_EX | LOCK_NB) != 0)
            st = errno == EWOULDBLOCK ? mla_fail(err, MLA_EIO, "%s: another process is writing here", path)
                                      : mla_sys_fail(err, path, "lock");
        else if (fstat(l->fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
            break;
        if (l->fd >= 0) close(l->fd);
        l->fd = -1;
    }
    if (st == MLA_OK) {
        *out = l;
        return MLA_OK;
    }
    mla_free(l->path);
    mla_free(l);
    return st;
}

void mla_lock_drop(mla_lock *l)
{
    if (!l) return;
    unlink(l->path);
    close(l->fd);
    mla_free(l->path);
    mla_free(l);
}
