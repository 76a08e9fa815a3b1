/* KLD, top-1 agreement and perplexity ratio of many factor files against their base, on the same text.
 *
 * usage: bench_quality BASE CORPUS threads rows row_tokens FACTORS.safetensors...
 * The first rows of the corpus, each its own sequence from position 0, on the reference path with an f32 cache: what
 * `mla-verify parity --against BASE --corpus CORPUS` measures, with the base run once for all files. One line a file:
 * FILE mean-KLD(base || file) top-1-agreement perplexity-ratio base-perplexity. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "lab.h"
#include "linalg/gemm.h"
#include "retrofit/solve/nested.h"
#include "runtime/score.h"

typedef struct {
    double kld, nll, agree;
} tally;

typedef struct {
    mla_rt *rt;
    size_t T, V;
    const int32_t *ids;   /* the row */
    float *base;          /* (T, V) */
    mla_score *score;     /* (T) of the base */
    bool record;
    tally *to;
} bench;

static mla_status on_logits(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err)
{
    bench *b = ctx;
    (void)job;
    for (size_t i = 0; i < n; i++) {
        size_t t = row0 + i;
        const float *row = logits + i * b->V;
        mla_score s;
        mla_status st = mla_score_row(&s, row, b->V, t + 1 < b->T ? b->ids[t + 1] : -1, err);
        if (st != MLA_OK) return mla_wrap(err, "position %zu", t);
        b->to->nll -= s.target_logprob;
        if (b->record) {
            b->score[t] = s;
            for (size_t j = 0; j < b->V; j++) b->base[t * b->V + j] = row[j];
            continue;
        }
        double d;
        if ((st = mla_kld_row(&d, b->base + t * b->V, row, b->V, err)) != MLA_OK) return st;
        b->to->kld += d;
        b->to->agree += s.top1 == b->score[t].top1;
    }
    return MLA_OK;
}

static void pass(bench *b, tally *to)
{
    mla_err err = {0};
    mla_job job = {.ids = b->ids, .T = b->T};
    lab_must(mla_seq_new(&job.seq, b->rt, b->T, &err), &err);
    b->to = to;
    lab_must(mla_rt_run_sink(b->rt, &job, 1, NULL, on_logits, b, &err), &err);
    mla_seq_free(job.seq);
}

int main(int argc, char **argv)
{
    mla_blas_settle(argv);
    if (argc < 7) {
        fprintf(stderr, "usage: bench_quality BASE CORPUS threads rows row_tokens FACTORS...\n");
        return 2;
    }
    mla_err err = {0};
    mla_model *m;
    mla_backend *be;
    size_t threads = lab_arg(argc, argv, 3, 1), rows = lab_arg(argc, argv, 4, 8), files = (size_t)argc - 6;
    bench b = {.T = lab_arg(argc, argv, 5, 1024)};
    lab_must(mla_model_open(&m, argv[1], &err), &err);
    lab_must(mla_backend_open(&be, &(mla_backend_opts){.threads = threads}, &err), &err);
    mla_rt_opts ro = {.precision = MLA_PREC_F32, .kv_dtype = MLA_F32};
    lab_must(mla_rt_open(&b.rt, m, be, &ro, &err), &err);
    b.V = mla_model_config(m)->vocab;
    int32_t *ids = lab_ids(m, argv[2], rows * b.T);
    mla_factor_source *src = mla_alloc(files, 1, sizeof *src);
    tally base = {0}, *t = mla_alloc(files, 1, sizeof *t);
    b.base = mla_alloc_raw(b.T, b.V, sizeof *b.base);
    b.score = mla_alloc(b.T, 1, sizeof *b.score);
    if (!src || !t || !b.base || !b.score) {
        fprintf(stderr, "bench_quality: out of memory for %zu x %zu logits\n", b.T, b.V);
        return 3;
    }
    for (size_t i = 0; i < files; i++) lab_must(mla_factor_source_read(&src[i], argv[6 + i], m, &err), &err);
    for (size_t r = 0; r < rows; r++) {
        b.ids = ids + r * b.T;
        b.record = true;
        pass(&b, &base);
        b.record = false;
        for (size_t i = 0; i < files; i++) {
            for (size_t l = 0; l < src[i].layers; l++) lab_must(mla_rt_set_factors(b.rt, src[i].layer[l].layer, &src[i].layer[l].f, &err), &err);
            pass(&b, &t[i]);
            for (size_t l = 0; l < src[i].layers; l++) lab_must(mla_rt_set_factors(b.rt, src[i].layer[l].layer, NULL, &err), &err);
        }
        fprintf(stderr, "row %zu of %zu\n", r + 1, rows);
    }
    double n = (double)(rows * b.T), targets = (double)(rows * (b.T - 1));
    for (size_t i = 0; i < files; i++)
        printf("%s %.6g %.6g %.6g %.6g\n", argv[6 + i], t[i].kld / n, t[i].agree / n, exp((t[i].nll - base.nll) / targets), exp(base.nll / targets));
    for (size_t i = 0; i < files; i++) mla_factor_source_free(&src[i]);
    mla_free(src);
    mla_free(t);
    mla_free(b.base);
    mla_free(b.score);
    mla_free(ids);
    mla_rt_close(b.rt);
    mla_backend_close(be);
    mla_model_close(m);
    return 0;
}
