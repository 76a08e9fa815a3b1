/* Part by part: read it if it is there, otherwise collect and write it; sum in order. */
#include "retrofit/stats/gather.h"

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

static mla_status make_part(gather *g, mla_stats *part, size_t p, const char *path, mla_progress *prog, mla_err *err)
{
    const mla_gather_opts *o = g->o;
    size_t span = PART_ROWS * o->recipe->row_tokens, at = p * span, n = g->n - at < span ? g->n - at : span;
    mla_status st = MLA_OK;
    if (!g->col) st = start(g, err);
    if (st == MLA_OK) st = mla_stats_new(part, mla_model_config(o->model), o->recipe->layout, err);
    if (st != MLA_OK) return st;
    memcpy(part->base_digest, o->base_digest, 32);
    memcpy(part->corpus_digest, o->corpus_digest, 32);
    st = mla_collect(g->col, part, g->ids + at, n, prog, err);
    if (st == MLA_OK && path) st = mla_stats_write(part, path, NULL, err);
    if (st != MLA_OK) mla_stats_free(part);
    return st;
}

mla_status mla_gather(mla_stats *out, const mla_gather_opts *o, const int32_t *ids, size_t n, mla_err *err)
{
    gather g = {.o = o, .ids = ids, .n = n};
    size_t span = PART_ROWS * o->recipe->row_tokens, parts = (n + span - 1) / span;
    mla_progress prog = mla_progress_begin(o->log, o->name, (double)n, "tokens");
    mla_status st = mla_stats_new(out, mla_model_config(o->model), o->recipe->layout, err);
    size_t reused = 0;
    for (size_t p = 0; st == MLA_OK && p < parts; p++) {
        char name[96];
        snprintf(name, sizeof name, "%.40s-%05zu.mlastats", o->name, p);
        char *path = o->dir ? mla_path_join(o->dir, name) : NULL;
        mla_stats part = {0};
        if (o->dir && !path) st = mla_fail(err, MLA_ENOMEM, "path of part %zu", p);
        else if (load_part(&part, path, o)) reused++;
        else st = make_part(&g, &part, p, path, &prog, err);
        if (st == MLA_OK) st = mla_stats_merge(out, &part, err);
        mla_stats_free(&part);
        mla_free(path);
    }
    if (st == MLA_OK) {
        memcpy(out->base_digest, o->base_digest, 32);
        memcpy(out->corpus_digest, o->corpus_digest, 32);
        out->row_tokens = o->recipe->row_tokens;
        mla_progress_end(&prog);
        if (reused) mla_info(o->log, "%s: %zu of %zu parts were already there", o->name, reused, parts);
    } else {
        mla_stats_free(out);
    }
    mla_collector_free(g.col);
    mla_rt_close(g.rt);
    return st;
}
