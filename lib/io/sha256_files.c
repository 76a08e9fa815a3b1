/* Digests of many files. Every worker keeps up to two files ("lanes") in lockstep and takes the next file from a common
 * queue when one ends; without SHA instructions a worker hashes one file after the other with OpenSSL.
 * Which worker hashes which file never changes a digest. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/msg.h"
#include "io/sha256.h"
#include "io/sha256_x2.h"

#define CHUNK ((size_t)1 << 18) /* stays in the second-level cache */

typedef struct {
    mla_file_digest *f;
    const size_t *order; /* largest file first */
    size_t n;
    size_t lanes;        /* per worker: 2, or 1 when there are workers enough */
    atomic_size_t next;
    atomic_bool stop;
    mla_progress *prog;
    pthread_mutex_t mu;  /* guards prog, status and err */
    mla_status status;
    mla_err *err;
} job;

typedef struct {
    mla_file_digest *f; /* NULL: nothing to do */
    int fd;
    uint64_t read;
    uint32_t h[8];
    unsigned char *buf;
    size_t at, fill;
    bool eof;
} lane;

static void fail(job *j, mla_status st, const mla_err *err)
{
    pthread_mutex_lock(&j->mu);
    if (j->status == MLA_OK) {
        j->status = st;
        if (j->err) *j->err = *err;
    }
    pthread_mutex_unlock(&j->mu);
    atomic_store(&j->stop, true);
}

static void progress(job *j, size_t bytes)
{
    if (!j->prog) return;
    pthread_mutex_lock(&j->mu);
    mla_progress_add(j->prog, (double)bytes / 1048576);
    pthread_mutex_unlock(&j->mu);
}

static void lane_open(job *j, lane *l)
{
    static const uint32_t H0[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    mla_err err;
    l->f = NULL;
    size_t i = atomic_fetch_add(&j->next, 1);
    if (i >= j->n || atomic_load(&j->stop)) return;
    mla_file_digest *f = &j->f[j->order[i]];
    do l->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (l->fd < 0 && errno == EINTR);
    if (l->fd < 0) {
        fail(j, mla_sys_fail(&err, f->path, "open"), &err);
        return;
    }
    (void)posix_fadvise(l->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    memcpy(l->h, H0, sizeof H0);
    l->f = f;
    l->read = 0;
    l->at = l->fill = 0;
    l->eof = false;
}

/* Fills the buffer to CHUNK or the file's end. */
static bool lane_fill(job *j, lane *l)
{
    mla_err err;
    l->at = l->fill = 0;
    while (l->fill < CHUNK && !l->eof) {
        ssize_t k = read(l->fd, l->buf + l->fill, CHUNK - l->fill);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) {
            fail(j, mla_sys_fail(&err, l->f->path, "read"), &err);
            return false;
        }
        l->eof = k == 0;
        l->fill += (size_t)k;
    }
    l->read += l->fill;
    if (l->read > l->f->size || (l->eof && l->read != l->f->size)) {
        (void)mla_fail(&err, MLA_EIO, "%s: changed while it was read: %ju bytes at first, then %s", l->f->path, (uintmax_t)l->f->size,
                 l->read > l->f->size ? "more" : "fewer");
        fail(j, MLA_EIO, &err);
        return false;
    }
    progress(j, l->fill);
    return true;
}

/* The last bytes, the padding (FIPS 180-4, 5.1.1) and the digest. */
static void lane_finish(lane *l)
{
    unsigned char tail[128] = {0};
    size_t n = l->fill - l->at, blocks = n < 56 ? 1 : 2;
    memcpy(tail, l->buf + l->at, n);
    tail[n] = 0x80;
    for (size_t i = 0; i < 8; i++) tail[64 * blocks - 1 - i] = (unsigned char)(l->read * 8 >> (8 * i));
    mla_sha256_x1_blocks(l->h, tail, blocks);
    for (size_t i = 0; i < 32; i++) l->f->digest[i] = (unsigned char)(l->h[i / 4] >> (24 - 8 * (i % 4)));
    close(l->fd);
    l->f = NULL;
}

/* Brings the lane to at least one whole block, or to no file at all when the queue is empty. */
static void lane_ready(job *j, lane *l)
{
    while (l->f && l->fill - l->at < 64) {
        if (!l->eof) { /* a full chunk is a multiple of 64: nothing is left over before the end */
            if (!lane_fill(j, l)) {
                close(l->fd);
                l->f = NULL;
            }
            continue;
        }
        lane_finish(l);
        lane_open(j, l);
    }
}

static void run_lanes(job *j)
{
    lane l[2] = {{.fd = -1}, {.fd = -1}};
    mla_err err;
    for (size_t i = 0; i < j->lanes; i++) {
        l[i].buf = mla_alloc_raw(CHUNK, 1, 1);
        if (!l[i].buf) fail(j, mla_fail(&err, MLA_ENOMEM, "sha256 buffer"), &err);
    }
    for (size_t i = 0; i < j->lanes && !atomic_load(&j->stop); i++) lane_open(j, &l[i]);
    for (;;) {
        lane_ready(j, &l[0]);
        lane_ready(j, &l[1]);
        if (atomic_load(&j->stop) || (!l[0].f && !l[1].f)) break;
        size_t b0 = l[0].f ? (l[0].fill - l[0].at) / 64 : 0, b1 = l[1].f ? (l[1].fill - l[1].at) / 64 : 0;
        size_t both = b0 < b1 ? b0 : b1;
        if (both) {
            mla_sha256_x2_blocks(l[0].h, l[0].buf + l[0].at, l[1].h, l[1].buf + l[1].at, both);
            l[0].at += 64 * both;
            l[1].at += 64 * both;
        } else {
            lane *one = b0 ? &l[0] : &l[1];
            mla_sha256_x1_blocks(one->h, one->buf + one->at, b0 + b1);
            one->at += 64 * (b0 + b1);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        if (l[i].f) close(l[i].fd);
        mla_free(l[i].buf);
    }
}

/* One file after the other through OpenSSL, for CPUs without SHA instructions. */
static void run_plain(job *j)
{
    mla_err err;
    lane l = {.fd = -1, .buf = mla_alloc_raw(CHUNK, 1, 1)};
    if (!l.buf) fail(j, mla_fail(&err, MLA_ENOMEM, "sha256 buffer"), &err);
    while (l.buf) {
        lane_open(j, &l);
        if (!l.f) break;
        mla_sha256 *h;
        mla_status st = mla_sha256_new(&h, &err);
        if (st != MLA_OK) fail(j, st, &err);
        while (st == MLA_OK && !l.eof && !atomic_load(&j->stop) && lane_fill(j, &l)) mla_sha256_update(h, l.buf, l.fill);
        if (st == MLA_OK) {
            mla_sha256_get(h, l.f->digest);
            mla_sha256_free(h);
        }
        close(l.fd);
    }
    mla_free(l.buf);
}

static void worker(void *ctx, size_t begin, size_t end, size_t id)
{
    job *j = ctx;
    (void)begin, (void)end, (void)id;
    if (mla_sha256_x2_usable())
        run_lanes(j);
    else
        run_plain(j);
}

typedef struct {
    uint64_t size;
    size_t i;
} by_size;

static int larger_first(const void *a, const void *b)
{
    const by_size *x = a, *y = b;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

/* Sizes first, in the caller's order: an absent file is named the same on every run. */
static mla_status measure(mla_file_digest *f, size_t n, size_t *order, mla_err *err)
{
    mla_status st = MLA_OK;
    by_size *b = mla_alloc(n, 1, sizeof *b);
    if (!b) return mla_fail(err, MLA_ENOMEM, "%zu files", n);
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        struct stat sb;
        if (stat(f[i].path, &sb) != 0)
            st = mla_sys_fail(err, f[i].path, "stat");
        else if (!S_ISREG(sb.st_mode))
            st = mla_fail(err, MLA_EIO, "%s: expected a regular file", f[i].path);
        else
            b[i] = (by_size){f[i].size = (uint64_t)sb.st_size, i};
    }
    if (st == MLA_OK && n) qsort(b, n, sizeof *b, larger_first);
    for (size_t i = 0; i < n; i++) order[i] = b[i].i;
    mla_free(b);
    return st;
}

mla_status mla_sha256_files(mla_file_digest *f, size_t n, mla_pool *pool, mla_progress *prog, mla_err *err)
{
    size_t workers = mla_pool_threads(pool), *order = mla_alloc(n, 1, sizeof *order);
    if (!order) return mla_fail(err, MLA_ENOMEM, "%zu files", n);
    mla_status st = measure(f, n, order, err);
    if (st == MLA_OK) {
        job j = {.f = f, .order = order, .n = n, .lanes = n > workers ? 2 : 1, .prog = prog, .err = err};
        pthread_mutex_init(&j.mu, NULL);
        mla_par_for(pool, workers < n ? workers : n, 1, worker, &j);
        pthread_mutex_destroy(&j.mu);
        st = j.status;
    }
    mla_free(order);
    return st;
}
