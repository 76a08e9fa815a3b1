/* Thread pool: workers take pieces from one counter; the pieces themselves are fixed by n and grain.
 *
 * A short spin before sleeping keeps back-to-back small loops (decode) cheap. A loop ends when its pieces are done, not when
 * every worker has looked: who comes late, because other programs hold its core, finds the gate closed and is not waited for. */
#include "base/par.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "base/alloc.h"

#define SPIN 4000
#define OPEN ((uint64_t)1 << 31)   /* of the gate: pieces may be taken */
#define INSIDE (OPEN - 1)          /* workers that are taking them */
#define EPOCH(g) ((g) >> 32)       /* which loop */

typedef struct {
    struct mla_pool *pool;
    size_t id;
} worker_arg;

struct mla_pool {
    size_t threads;
    pthread_t *tid; /* threads - 1 */
    worker_arg *arg;
    pthread_mutex_t mu;
    pthread_cond_t start, done;
    _Atomic uint64_t gate;
    atomic_size_t next;
    atomic_bool quit, waiting; /* waiting: the caller sleeps on done */
    mla_par_fn fn;
    void *ctx;
    size_t n, grain;
    size_t started;
};

static void run_pieces(mla_pool *p, size_t worker)
{
    for (;;) {
        size_t b = atomic_fetch_add(&p->next, p->grain);
        if (b >= p->n) return;
        size_t e = p->n - b < p->grain ? p->n : b + p->grain;
        p->fn(p->ctx, b, e, worker);
    }
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool is_new(const mla_pool *p, uint64_t seen)
{
    uint64_t g = atomic_load(&p->gate);
    return ((g & OPEN) && EPOCH(g) != seen) || atomic_load(&p->quit);
}

/* Through the gate of a loop not seen before; false when it closed meanwhile. */
static bool enter(mla_pool *p, uint64_t *seen)
{
    uint64_t g = atomic_load(&p->gate);
    while ((g & OPEN) && EPOCH(g) != *seen)
        if (atomic_compare_exchange_weak(&p->gate, &g, g + 1)) {
            *seen = EPOCH(g);
            return true;
        }
    return false;
}

static void leave(mla_pool *p)
{
    uint64_t g = atomic_fetch_sub(&p->gate, 1);
    if ((g & INSIDE) != 1 || !atomic_load(&p->waiting)) return;
    pthread_mutex_lock(&p->mu);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->mu);
}

static void *worker_main(void *v)
{
    worker_arg *a = v;
    mla_pool *p = a->pool;
    uint64_t seen = 0;
    for (;;) {
        for (int i = 0; i < SPIN && !is_new(p, seen); i++) cpu_relax();
        if (!is_new(p, seen)) {
            pthread_mutex_lock(&p->mu);
            while (!is_new(p, seen)) pthread_cond_wait(&p->start, &p->mu);
            pthread_mutex_unlock(&p->mu);
        }
        if (atomic_load(&p->quit)) return NULL;
        if (!enter(p, &seen)) continue;
        run_pieces(p, a->id);
        leave(p);
    }
}

mla_status mla_pool_new(mla_pool **out, size_t threads, mla_err *err)
{
    if (threads == 0) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        threads = n > 0 ? (size_t)n : 1;
    }
    if (threads > 1024) return mla_fail(err, MLA_EINVAL, "%zu threads: at most 1024", threads);
    mla_pool *p = mla_alloc(1, 1, sizeof *p);
    if (!p) return mla_fail(err, MLA_ENOMEM, "thread pool");
    p->threads = threads;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->start, NULL);
    pthread_cond_init(&p->done, NULL);
    p->tid = mla_alloc(threads, 1, sizeof *p->tid);
    p->arg = mla_alloc(threads, 1, sizeof *p->arg);
    if (!p->tid || !p->arg) {
        mla_pool_free(p);
        return mla_fail(err, MLA_ENOMEM, "thread pool of %zu", threads);
    }
    for (size_t i = 1; i < threads; i++) {
        p->arg[i] = (worker_arg){p, i};
        if (pthread_create(&p->tid[i], NULL, worker_main, &p->arg[i]) != 0) {
            mla_pool_free(p);
            return mla_fail(err, MLA_EIO, "cannot start thread %zu of %zu", i + 1, threads);
        }
        p->started++;
    }
    *out = p;
    return MLA_OK;
}

void mla_pool_free(mla_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->quit, true);
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->mu);
    for (size_t i = 1; i <= p->started; i++) pthread_join(p->tid[i], NULL);
    pthread_cond_destroy(&p->start);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->mu);
    mla_free(p->tid);
    mla_free(p->arg);
    mla_free(p);
}

size_t mla_pool_threads(const mla_pool *p) { return p ? p->threads : 1; }

void mla_par_for(mla_pool *p, size_t n, size_t grain, mla_par_fn fn, void *ctx)
{
    if (n == 0) return;
    if (grain == 0) grain = 1;
    if (!p || p->threads == 1 || n <= grain) {
        for (size_t b = 0; b < n; b += grain) fn(ctx, b, n - b < grain ? n : b + grain, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    atomic_store(&p->next, 0);
    pthread_mutex_lock(&p->mu);
    uint64_t epoch = (EPOCH(atomic_load(&p->gate)) + 1) & UINT32_MAX;
    if (epoch == 0) epoch = 1; /* 0: what a worker that saw nothing has seen */
    atomic_store(&p->gate, epoch << 32 | OPEN);
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->mu);
    run_pieces(p, 0);
    atomic_fetch_and(&p->gate, ~OPEN);
    for (int i = 0; i < SPIN && (atomic_load(&p->gate) & INSIDE); i++) cpu_relax();
    if (!(atomic_load(&p->gate) & INSIDE)) return;
    pthread_mutex_lock(&p->mu);
    atomic_store(&p->waiting, true);
    while (atomic_load(&p->gate) & INSIDE) pthread_cond_wait(&p->done, &p->mu);
    atomic_store(&p->waiting, false);
    pthread_mutex_unlock(&p->mu);
}
