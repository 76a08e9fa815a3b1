/* Bytes of a mapped file by reads into the caller's memory, buffered or direct.
 *
 * Which of the two is faster is a matter of the file system and what lies under it, not of the file: what is not in the page cache is first
 * read one way, then the other, and timed while reads of that way alone are under way (side by side, direct reads crowd out the others);
 * what took less time a byte is kept, by file system, as long as the process lives. Direct reads leave nothing in the page cache for the
 * next process: they must be a twentieth faster. */
#include "io/file_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "io/msg.h"

#define ENOUGH ((uint64_t)256 << 20)
enum { BUFFERED, DIRECT, WAYS, UNDECIDED = WAYS, SYSTEMS = 32 };

typedef struct {
    uint64_t dev;                    /* + 1; 0: free */
    int way;                         /* + 1; 0: undecided, then: */
    int turn;                        /* the way of reads that begin */
    size_t under_way[WAYS];
    uint64_t since;                  /* when reads of `turn` alone were under way; 0: they are not */
    uint64_t read[WAYS], ns[WAYS];
} file_system;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below; a read takes milliseconds */

/* NULL: more of them than anybody has. */
static file_system *system_of(uint64_t dev)
{
    static file_system all[SYSTEMS];
    for (size_t i = 0; i < SYSTEMS; i++) {
        if (!all[i].dev) all[i].dev = dev + 1;
        if (all[i].dev == dev + 1) return &all[i];
    }
    return NULL;
}
static int way_of(uint64_t dev)
{
    pthread_mutex_lock(&lock);
    file_system *f = system_of(dev);
    int way = !f ? BUFFERED : f->way ? f->way - 1 : UNDECIDED;
    pthread_mutex_unlock(&lock);
    return way;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A read begins: its way, and where its trial is counted; NULL: it is none. */
static int begin(uint64_t dev, file_system **trial)
{
    pthread_mutex_lock(&lock);
    file_system *f = system_of(dev);
    int way = !f ? BUFFERED : f->way ? f->way - 1 : f->turn;
    *trial = f && !f->way ? f : NULL;
    if (*trial) {
        f->under_way[way]++;
        if (!f->since && !f->under_way[!way]) f->since = now_ns();
    }
    pthread_mutex_unlock(&lock);
    return way;
}
/* A read of n bytes of the trial has ended. */
static void end(file_system *f, int way, size_t n)
{
    pthread_mutex_lock(&lock);
    uint64_t now = now_ns();
    f->under_way[way]--;
    if (way == f->turn && f->since) f->read[way] += n;
    if (f->since && (!f->under_way[f->turn] || f->read[f->turn] >= ENOUGH)) f->ns[f->turn] += now - f->since, f->since = 0;
    if (!f->since && f->read[f->turn] >= ENOUGH) f->turn = !f->turn;
    if (!f->way && f->read[BUFFERED] >= ENOUGH && f->read[DIRECT] >= ENOUGH) {
        double buffered = (double)f->ns[BUFFERED] / (double)f->read[BUFFERED], direct = (double)f->ns[DIRECT] / (double)f->read[DIRECT];
        f->way = (buffered >= 1.05 * direct ? DIRECT : BUFFERED) + 1;
    }
    if (!f->since && f->under_way[f->turn] && !f->under_way[!f->turn]) f->since = now;
    pthread_mutex_unlock(&lock);
}

bool mla_file_cached(const mla_mapped *m, const void *p, size_t n)
{
    size_t at = (size_t)((const unsigned char *)p - m->data), step = (size_t)16 << 20;
    for (size_t i = 0; i < n + step; i += step) {
        size_t x = at + (i < n ? i : n - 1);
        unsigned char in = 1;
        if (n && mincore((void *)(uintptr_t)(m->data + x / MLA_FILE_PAGE * MLA_FILE_PAGE), 1, &in) == 0 && !(in & 1)) return false;
    }
    return true;
}

/* [at, at + n) of the file into room, until there are `least` bytes or the file ends: *got. Direct reads that stop inside a page are at
 * the end. */
static bool read_all(int fd, bool direct, char *room, size_t at, size_t n, size_t least, size_t *got)
{
    for (*got = 0; *got < least;) {
        ssize_t k = pread(fd, room + *got, n - *got, (off_t)(at + *got));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return false;
        *got += (size_t)k;
        if (k == 0 || (direct && k % MLA_FILE_PAGE)) return true;
    }
    return true;
}

bool mla_file_direct(const mla_mapped *m, const void *p, size_t n, void *room, const void **from)
{
    char path[40];
    size_t at = (size_t)((const unsigned char *)p - m->data), skip = at % MLA_FILE_PAGE, least = skip + n, got;
    snprintf(path, sizeof path, "/proc/self/fd/%d", m->fd); /* opened anew: one file description has one way */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0) return false;
    bool ok = read_all(fd, true, room, at - skip, (least + MLA_FILE_PAGE - 1) / MLA_FILE_PAGE * MLA_FILE_PAGE, least, &got);
    close(fd);
    *from = (const char *)room + skip;
    return ok && got >= least;
}
static mla_status read_buffered(const mla_mapped *m, const void *p, size_t n, void *room, mla_err *err)
{
    size_t at = (size_t)((const unsigned char *)p - m->data), got;
    if (!read_all(m->fd, false, room, at, n, n, &got)) return mla_sys_fail(err, m->path, "read");
    if (got == n) return MLA_OK;
    return mla_fail(err, MLA_EIO, "%s: expected %zu bytes at offset %zu, found %zu: cut off since it was opened", m->path, n, at, got);
}

mla_status mla_file_bytes(const mla_mapped *m, const void *p, size_t n, void *room, const void **from, mla_err *err)
{
    *from = room;
    if (!n) return MLA_OK;
    if (!mla_file_holds(m, p, n)) return mla_fail(err, MLA_EINVAL, "%s: %zu bytes from outside of the file", m->path ? m->path : "a file", n);
    if (mla_file_cached(m, p, n)) return read_buffered(m, p, n, room, err);
    file_system *trial;
    int way = begin(m->dev, &trial);
    mla_status st = MLA_OK;
    if (way == BUFFERED || !mla_file_direct(m, p, n, room, from)) {
        *from = room;
        st = read_buffered(m, p, n, room, err); /* says what is wrong with a file that was cut off */
    }
    if (trial) end(trial, way, n);
    return st;
}

const char *mla_file_way(const mla_mapped *m)
{
    static const char *const NAME[] = {[BUFFERED] = "buffered", [DIRECT] = "direct", [UNDECIDED] = "undecided"};
    return NAME[way_of(m->dev)];
}

void mla_file_want(const mla_mapped *m, const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p, a = from / page * page;
    if (!n || !mla_file_holds(m, p, n) || way_of(m->dev) == DIRECT || mla_file_cached(m, p, n)) return;
    (void)madvise((void *)a, from + n - a, MADV_WILLNEED);
}
