/* Helpers of the benchmark programs. */
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "text/corpus.h"

#define PIECE ((size_t)1 << 20) /* bytes a worker takes at a time */

void lab_must(mla_status st, const mla_err *err)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "bench: %s: %s\n", mla_status_name(st), err->msg);
    exit(3);
}

double lab_now(void)
{
    const char *clock = getenv("MLA_BENCH_CLOCK");
    struct timespec t;
    if (!clock || strcmp(clock, "cpu")) return mla_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void lab_add(lab_series *s, double v)
{
    if (s->n < LAB_MAX) s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double lab_median(const lab_series *s)
{
    double t[LAB_MAX];
    if (s->n == 0) return 0;
    memcpy(t, s->v, s->n * sizeof *t);
    qsort(t, s->n, sizeof *t, by_value);
    return s->n % 2 ? t[s->n / 2] : 0.5 * (t[s->n / 2 - 1] + t[s->n / 2]);
}

void lab_print_value(const char *key, double v)
{
    printf("%s %.9g\n", key, v);
    fflush(stdout);
}

void lab_print(const char *key, const lab_series *s) { lab_print_value(key, lab_median(s)); }

char *lab_area(size_t bytes)
{
    char *p = mla_alloc_raw(bytes, 1, 1);
    if (!p) {
        fprintf(stderr, "bench: no memory for an area of %zu bytes\n", bytes);
        exit(3);
    }
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t u = mla_rng_u64(7, i);
        memcpy(p + i, &u, 8);
    }
    return p;
}

typedef struct {
    const char *data;
    uint64_t sink[256];
} sweep;

typedef uint64_t u64x2 __attribute__((vector_size(16), aligned(16)));

/* 256 bytes a step, prefetched 4 KiB ahead: the fastest of the variants tried on recent x86 cores. */
static void sweep_piece(void *ctx, size_t begin, size_t end, size_t worker)
{
    sweep *s = ctx;
    u64x2 a[4] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
    for (size_t i = begin; i + 256 <= end; i += 256) {
        const u64x2 *p = (const u64x2 *)(const void *)(s->data + i);
        for (size_t j = 0; j < 4; j++) __builtin_prefetch(s->data + i + 4096 + 64 * j);
        for (size_t j = 0; j < 16; j += 4) a[0] ^= p[j], a[1] ^= p[j + 1], a[2] ^= p[j + 2], a[3] ^= p[j + 3];
    }
    a[0] ^= a[1] ^ a[2] ^ a[3];
    s->sink[worker % 256] += a[0][0] ^ a[0][1];
}

double lab_sweep(mla_pool *pool, const char *area, size_t bytes)
{
    sweep s = {.data = area};
    double t = lab_now();
    mla_par_for(pool, bytes, PIECE, sweep_piece, &s);
    t = lab_now() - t;
    return t;
}

mla_backend *lab_backend(size_t threads)
{
    mla_err err = {0};
    mla_backend *be;
    const char *v = getenv("MLA_BENCH_VARIANT");
    lab_must(mla_backend_open(&be, &(mla_backend_opts){.threads = threads}, &err), &err);
    if (v && *v && !mla_cpu_pick_named(v, &mla_cpu_of(be)->kern)) {
        fprintf(stderr, "MLA_BENCH_VARIANT: this CPU has no variant %s\n", v);
        exit(3);
    }
    return be;
}

size_t lab_arg(int argc, char **argv, int at, size_t def)
{
    char *end;
    if (argc <= at) return def;
    unsigned long v = strtoul(argv[at], &end, 10);
    if (*end || v == 0) {
        fprintf(stderr, "bench: argument %d is \"%s\", a positive number was expected\n", at, argv[at]);
        exit(2);
    }
    return v;
}

int32_t *lab_ids(const mla_model *m, const char *corpus, size_t n)
{
    mla_err err = {0};
    mla_tok *tok = NULL;
    mla_corpus c = {0};
    lab_must(mla_model_tokenizer(m, &tok, &err), &err);
    lab_must(mla_corpus_add(&c, corpus, tok, mla_model_config(m)->vocab, &err), &err);
    int32_t *ids = mla_alloc(n, 1, sizeof *ids);
    if (!ids || c.ids.n == 0) {
        fprintf(stderr, "bench: no %zu token ids from %s\n", n, corpus);
        exit(3);
    }
    for (size_t i = 0; i < n; i++) ids[i] = c.ids.id[i % c.ids.n];
    mla_corpus_free(&c);
    mla_tok_free(tok);
    return ids;
}
