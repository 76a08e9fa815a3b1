/* A few decoded row blocks behind one lock; blocks are decoded outside of it. */
#include "model/row_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"

#define SLOTS 4 /* of at most 128 rows each: threads that read different matrices, not a copy of the model */

typedef struct {
    const void *codes; /* part[0].data of the matrix; NULL: empty */
    size_t row0;       /* first row of the block */
    float *rows;       /* (row_block, in) */
    size_t used;       /* clock at the last use */
} slot;

struct mla_row_cache {
    pthread_mutex_t lock;
    slot slot[SLOTS];
    size_t clock;
};

mla_status mla_row_cache_new(mla_row_cache **out, mla_err *err)
{
    mla_row_cache *c = mla_alloc(1, 1, sizeof *c);
    *out = NULL;
    if (!c) return mla_fail(err, MLA_ENOMEM, "row cache");
    if (pthread_mutex_init(&c->lock, NULL)) {
        mla_free(c);
        return mla_fail(err, MLA_ENOMEM, "row cache: lock");
    }
    *out = c;
    return MLA_OK;
}

void mla_row_cache_free(mla_row_cache *c)
{
    if (!c) return;
    for (size_t i = 0; i < SLOTS; i++) mla_free(c->slot[i].rows);
    pthread_mutex_destroy(&c->lock);
    mla_free(c);
}

/* Copies rows [at, at + n) of the block that starts at row0, when it is kept. */
static bool take(mla_row_cache *c, const mla_qmat *q, size_t row0, size_t at, size_t n, float *dst)
{
    bool found = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < SLOTS && !found; i++) {
        slot *s = &c->slot[i];
        if (s->codes != q->part[0].data || s->row0 != row0) continue;
        memcpy(dst, s->rows + at * q->in, n * q->in * sizeof *dst);
        s->used = ++c->clock;
        found = true;
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

/* Keeps a decoded block in place of the one that was longest unused; owns rows from here on. */
static void keep(mla_row_cache *c, const mla_qmat *q, size_t row0, float *rows)
{
    pthread_mutex_lock(&c->lock);
    slot *s = &c->slot[0];
    for (size_t i = 1; i < SLOTS; i++)
        if (c->slot[i].used < s->used) s = &c->slot[i];
    float *old = s->rows;
    *s = (slot){.codes = q->part[0].data, .row0 = row0, .rows = rows, .used = ++c->clock};
    pthread_mutex_unlock(&c->lock);
    mla_free(old);
}

/* Some rows [at, at + n) of the block [row0, row0 + count). */
static mla_status part_of(mla_row_cache *c, const mla_qmat *q, size_t row0, size_t count, size_t at, size_t n, float *dst, mla_err *err);

mla_status mla_row_cache_rows(mla_row_cache *c, const mla_qmat *q, size_t row0, size_t n, float *dst, mla_err *err)
{
    size_t block = q->row_block;
    mla_status st = MLA_OK;
    if (block <= 1 || row0 > q->out || n > q->out - row0) return mla_qmat_rows_f32(q, row0, n, dst, err);
    for (size_t end = row0 + n; st == MLA_OK && row0 < end;) {
        size_t first = row0 / block * block, count = q->out - first < block ? q->out - first : block, run;
        if (row0 == first && end - row0 >= count) { /* whole blocks, up to the end of the matrix or of the request */
            run = end == q->out ? end - row0 : (end - row0) / block * block;
            st = mla_qmat_rows_f32(q, row0, run, dst, err);
        } else {
            run = first + count < end ? first + count - row0 : end - row0;
            st = part_of(c, q, first, count, row0 - first, run, dst, err);
        }
        row0 += run;
        dst += run * q->in;
    }
    return st;
}

static mla_status part_of(mla_row_cache *c, const mla_qmat *q, size_t row0, size_t count, size_t at, size_t n, float *dst, mla_err *err)
{
    if (take(c, q, row0, at, n, dst)) return MLA_OK;
    float *rows = mla_alloc_raw(count, q->in, sizeof *rows);
    if (!rows) return mla_fail(err, MLA_ENOMEM, "%s: %zu rows of %zu values", q->name, count, q->in);
    mla_status st = mla_qmat_rows_f32(q, row0, count, rows, err);
    if (st != MLA_OK) {
        mla_free(rows);
        return st;
    }
    memcpy(dst, rows + at * q->in, n * q->in * sizeof *dst);
    keep(c, q, row0, rows);
    return MLA_OK;
}
