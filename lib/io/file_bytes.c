/* Bytes of a mapped file by reads into the caller's memory, buffered or direct.
 *
 * Which of the two is faster is a matter of the file system and what lies under it, not of the file: runs of bytes that are not in the page
 * cache are read either way in turns, a whole run each (side by side, direct reads crowd out the others), and what took less time a byte
 * is kept, by file system, as long as the process lives. Direct reads leave nothing in the page cache for the next process: they must be
 * a tenth faster. */
#include "io/file_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "io/msg.h"

#define ENOUGH ((uint64_t)256 << 20)
enum { BUFFERED, DIRECT, WAYS, UNDECIDED = WAYS, SYSTEMS = 32 };

typedef struct {
    _Atomic uint64_t dev;            /* + 1; 0: free */
    atomic_int way;                  /* + 1; 0: undecided */
    atomic_int turn;                 /* of the run that is read */
    _Atomic uint64_t run, left, begun; /* its bytes, those to come, its beginning in ns */
    _Atomic uint64_t read[WAYS], ns[WAYS];
} file_system;

/* NULL: more of them than anybody has. */
static file_system *system_of(uint64_t dev)
{
    static file_system all[SYSTEMS];
    for (size_t i = 0; i < SYSTEMS; i++) {
        uint64_t was = 0;
        if (atomic_load(&all[i].dev) == dev + 1 || atomic_compare_exchange_strong(&all[i].dev, &was, dev + 1) || was == dev + 1) return &all[i];
    }
    return NULL;
}
static int way_of(file_system *f) { return !f ? BUFFERED : atomic_load(&f->way) ? atomic_load(&f->way) - 1 : UNDECIDED; }

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void mla_file_begin(const mla_mapped *m, size_t n)
{
    file_system *f = system_of(m->dev);
    if (way_of(f) != UNDECIDED) return;
    atomic_store(&f->turn, atomic_load(&f->read[BUFFERED]) <= atomic_load(&f->read[DIRECT]) ? BUFFERED : DIRECT);
    atomic_store(&f->begun, now_ns());
    atomic_store(&f->run, n);
    atomic_store(&f->left, n);
}
/* n bytes of a run are there; with the last of them the run counts. */
static void count(file_system *f, size_t n)
{
    uint64_t left = atomic_load(&f->left);
    while (left >= n && !atomic_compare_exchange_weak(&f->left, &left, left - n)) continue;
    if (left != n) return;
    int turn = atomic_load(&f->turn), none = 0;
    atomic_fetch_add(&f->ns[turn], now_ns() - atomic_load(&f->begun));
    atomic_fetch_add(&f->read[turn], atomic_load(&f->run));
    double read[WAYS] = {(double)atomic_load(&f->read[BUFFERED]), (double)atomic_load(&f->read[DIRECT])};
    if (read[BUFFERED] < (double)ENOUGH || read[DIRECT] < (double)ENOUGH) return;
    bool direct = (double)atomic_load(&f->ns[BUFFERED]) / read[BUFFERED] >= 1.1 * ((double)atomic_load(&f->ns[DIRECT]) / read[DIRECT]);
    (void)atomic_compare_exchange_strong(&f->way, &none, (direct ? DIRECT : BUFFERED) + 1);
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
    file_system *f = system_of(m->dev);
    int way = way_of(f), take = way == UNDECIDED ? atomic_load(&f->turn) : way;
    if (take == DIRECT && (mla_file_cached(m, p, n) || !mla_file_direct(m, p, n, room, from))) take = BUFFERED, *from = room;
    mla_status st = take == BUFFERED ? read_buffered(m, p, n, room, err) : MLA_OK; /* says what is wrong with a file that was cut off */
    if (st == MLA_OK && way == UNDECIDED) count(f, n);
    return st;
}

const char *mla_file_way(const mla_mapped *m)
{
    static const char *const NAME[] = {[BUFFERED] = "buffered", [DIRECT] = "direct", [UNDECIDED] = "undecided"};
    return NAME[way_of(system_of(m->dev))];
}

void mla_file_want(const mla_mapped *m, const void *p, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p, a = from / page * page;
    if (!n || !mla_file_holds(m, p, n) || way_of(system_of(m->dev)) == DIRECT || mla_file_cached(m, p, n)) return;
    (void)madvise((void *)a, from + n - a, MADV_WILLNEED);
}
