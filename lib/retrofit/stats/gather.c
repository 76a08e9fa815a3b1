/* Part by part: read it if it is there, otherwise collect and write it; sum in order. Where a device computes, a thread writes and sums
 * a part while the next one is collected. */
#include "retrofit/stats/gather.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/sha256.h"
#include "retrofit/stats/collect.h"
#include "retrofit/stats/stats_file.h"

#define PART_ROWS 32 /* rows per part: what a killed collection can lose */

typedef struct {
    const mla_gather_opts *o;
    const int32_t *ids;
    size_t n;
    mla_rt *rt;            /* opened when the first part is missing */
    mla_collector *col;
    mla_stats *out;
    mla_stats room[2];     /* parts that are collected take them in turn */
    size_t collected;
    mla_pool *pool;        /* of the writer */
    mla_stats *part;       /* what is written, and whereto; NULL: in memory only */
    char *path;
    pthread_t writer;
    bool writing;
    mla_err err;
} gather;

static mla_status start(gather *g, mla_err *err)
{
    const mla_gather_opts *o = g->o;
    mla_rt_opts ro = {.precision = o->precision, .kv_dtype = MLA_F32, .stream_layers = o->stream_layers, .log = o->log};
    mla_status st = mla_rt_open(&g->rt, o->model, o->be, &ro, err);
    mla_collect_opts co = {.rt = g->rt, .model = o->model, .be = o->be, .pool = o->pool, .layout = o->recipe->layout,
                           .plain = mla_objective_plain(o->recipe->objective), .row_tokens = o->recipe->row_tokens, .rows_per_run = o->stream_layers || o->be->ops->queues ? PART_ROWS : 1,
                           .split = o->precision == MLA_PREC_BF16};
    if (st == MLA_OK) st = mla_collector_new(&g->col, &co, g->ids, g->n, err);
    return st;
}

/* A part on disk counts only if it reads back whole and is of this base and corpus. */
static bool load_part(mla_stats *part, const char *path, const mla_gather_opts *o)
{
    mla_err why;
    if (!path || !mla_path_exists(path)) return false;
    if (mla_stats_read(part, path, &why) != MLA_OK) return false;
    if (!memcmp(part->base_digest, o->base_digest, 32) && !memcmp(part->corpus_digest, o->corpus_digest, 32)) return true;
    mla_stats_free(part);
    return false;
}

/* Part p into one of the two rooms, which is clear. */
static mla_status make_part(gather *g, mla_stats **part, size_t p, mla_progress *prog, mla_err *err)
{
    const mla_gather_opts *o = g->o;
    size_t span = PART_ROWS * o->recipe->row_tokens, at = p * span, n = g->n - at < span ? g->n - at : span;
    mla_stats *s = *part = &g->room[g->collected++ % 2];
    mla_status st = MLA_OK;
    if (!g->col) st = start(g, err);
    if (st == MLA_OK && !s->layer) st = mla_stats_new(s, mla_model_config(o->model), o->recipe->layout, o->pool, err);
    if (st != MLA_OK) return st;
    memcpy(s->base_digest, o->base_digest, 32);
    memcpy(s->corpus_digest, o->corpus_digest, 32);
    return mla_collect(g->col, s, g->ids + at, n, prog, err);
}

static mla_status keep_part(gather *g, mla_pool *pool, mla_err *err)
{
    mla_status st = g->path ? mla_stats_write(g->part, g->path, NULL, pool, err) : MLA_OK;
    if (st == MLA_OK) st = mla_stats_merge(g->out, g->part, err);
    mla_stats_clear(g->part, pool);
    mla_free(g->path);
    g->path = NULL;
    return st;
}

static void *keep(void *ctx)
{
    gather *g = ctx;
    g->err.status = keep_part(g, g->pool, &g->err);
    return NULL;
}

/* What an earlier part has come to. */
static mla_status kept(gather *g, mla_err *err)
{
    if (!g->writing) return MLA_OK;
    g->writing = false;
    pthread_join(g->writer, NULL);
    if (g->err.status != MLA_OK) *err = g->err;
    return g->err.status;
}

/* Takes path. */
static mla_status keep_collected(gather *g, mla_stats *part, char *path, mla_err *err)
{
    mla_status st = kept(g, err);
    if (st != MLA_OK) {
        mla_free(path);
        return st;
    }
    g->part = part, g->path = path;
    if (!g->o->be->ops->queues) return keep_part(g, g->o->pool, err); /* the host computes: there is nobody to spare */
    if (!g->pool && (st = mla_pool_new(&g->pool, mla_pool_threads(g->o->pool), err)) != MLA_OK) return st;
    g->writing = pthread_create(&g->writer, NULL, keep, g) == 0;
    return g->writing ? MLA_OK : keep_part(g, g->pool, err);
}

/* A part that is there is summed behind the one that is written. */
static mla_status keep_read(gather *g, mla_stats *part, mla_err *err)
{
    mla_status st = kept(g, err);
    if (st == MLA_OK) st = mla_stats_merge(g->out, part, err);
    mla_stats_free(part);
    return st;
}

mla_status mla_gather(mla_stats *out, const mla_gather_opts *o, const int32_t *ids, size_t n, mla_err *err)
{
    gather g = {.o = o, .ids = ids, .n = n, .out = out};
    mla_err why;
    size_t span = PART_ROWS * o->recipe->row_tokens, parts = (n + span - 1) / span;
    mla_progress prog = mla_progress_begin(o->log, o->name, (double)n, "tokens");
    mla_status st = mla_stats_new(out, mla_model_config(o->model), o->recipe->layout, o->pool, err);
    size_t reused = 0;
    for (size_t p = 0; st == MLA_OK && p < parts; p++) {
        char name[96];
        snprintf(name, sizeof name, "%.40s-%05zu.mlastats", o->name, p);
        char *path = o->dir ? mla_path_join(o->dir, name) : NULL;
        mla_stats read = {0}, *made;
        if (o->dir && !path) st = mla_fail(err, MLA_ENOMEM, "path of part %zu", p);
        else if (load_part(&read, path, o)) reused++, st = keep_read(&g, &read, err);
        else if ((st = make_part(&g, &made, p, &prog, err)) == MLA_OK) st = keep_collected(&g, made, path, err), path = NULL;
        mla_free(path);
    }
    mla_status last = kept(&g, st == MLA_OK ? err : &why);
    if (st == MLA_OK) st = last;
    if (st == MLA_OK) {
        memcpy(out->base_digest, o->base_digest, 32);
        memcpy(out->corpus_digest, o->corpus_digest, 32);
        out->row_tokens = o->recipe->row_tokens;
        mla_progress_end(&prog);
        if (reused) mla_info(o->log, "%s: %zu of %zu parts were already there", o->name, reused, parts);
    } else {
        mla_stats_free(out);
    }
    mla_free(g.path);
    for (size_t i = 0; i < 2; i++) mla_stats_free(&g.room[i]);
    mla_pool_free(g.pool);
    mla_collector_free(g.col);
    mla_rt_close(g.rt);
    return st;
}
