/* A whole checkpoint folder of a configuration's true shapes, filled from a seed: what a benchmark or a trial run at real size reads when
 * nobody has the real weights. Same configuration and seed, same bytes, whatever the threads.
 *
 *     synthetic_checkpoint CONFIG.json TOKENIZER.json OUT [SEED]
 *
 * Matrices are uniform with variance 1 / (inputs), so that activations keep their size through any depth; norm gains are near one (stored as
 * the family stores them), A_log and dt_bias spread over what trained delta nets have. Shards of at most 4 GiB, a worker each. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/par.h"
#include "base/rng.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/build.h"
#include "model/writer.h"
#include "tensor/fp.h"

#define SHARD ((uint64_t)4 << 30)
enum { PIECE = 1 << 20, SHARDS = 4096 }; /* values filled at a time */

typedef struct {
    const bset *set;
    const char *out;
    uint64_t seed;
    size_t n, first[SHARDS + 1]; /* shard k holds tensors [first[k], first[k + 1]) */
    char name[SHARDS][40];
} plan;

static void must(mla_status st, const mla_err *err)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "synthetic_checkpoint: %s\n", err->msg);
    exit(3);
}

static bool ends(const char *name, const char *with)
{
    size_t n = strlen(name), w = strlen(with);
    return n >= w && !strcmp(name + n - w, with);
}

/* Value = mean + width (u - 1/2), u uniform in [0, 1). */
static void law(const mla_tensor *t, double *mean, double *width)
{
    double in = 1;
    for (size_t d = 1; d < t->ndim; d++) in *= (double)t->shape[d];
    *mean = 0;
    *width = sqrt(12 / in);
    if (t->ndim > 1) return;
    *width = 0.2;
    if (ends(t->name, "A_log")) *mean = 1, *width = 3;
    else if (ends(t->name, "dt_bias")) *mean = -2, *width = 4;
    else if (ends(t->name, "linear_attn.norm.weight")) *mean = 1; /* the others hold gain - 1 */
}

static uint64_t stream_of(uint64_t seed, const char *name)
{
    for (; *name; name++) seed = mla_rng_u64(seed, (unsigned char)*name);
    return seed;
}

static void write_shard(const plan *p, size_t k, uint16_t *buf)
{
    mla_stw *w;
    mla_err err;
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", p->out, p->name[k]);
    must(mla_stw_new(&w, path, &err), &err);
    for (size_t i = p->first[k]; i < p->first[k + 1]; i++) {
        const bt *b = &p->set->t[i];
        must(mla_stw_declare(w, b->name, MLA_BF16, b->nd, b->shape, &err), &err);
    }
    must(mla_stw_begin(w, &err), &err);
    for (size_t i = 0; i < mla_stw_count(w); i++) {
        const mla_tensor *t = mla_stw_at(w, i);
        double mean, width;
        uint64_t seed = stream_of(p->seed, t->name);
        law(t, &mean, &width);
        for (size_t at = 0, all = t->nbytes / 2; at < all; at += PIECE) {
            size_t n = all - at < PIECE ? all - at : PIECE;
            for (size_t j = 0; j < n; j++) buf[j] = mla_f32_bf16((float)(mean + width * (mla_rng_unit(seed, at + j) - 0.5)));
            must(mla_stw_write(w, buf, 2 * n, &err), &err);
        }
    }
    must(mla_stw_commit(w, NULL, &err), &err);
    fprintf(stderr, "%s\n", p->name[k]);
}

static void write_shards(void *ctx, size_t begin, size_t end, size_t worker)
{
    (void)worker;
    uint16_t *buf = malloc(PIECE * sizeof *buf);
    if (!buf) exit(3);
    for (size_t k = begin; k < end; k++) write_shard(ctx, k, buf);
    free(buf);
}

static void copy(const char *from, const char *dir, const char *name)
{
    static char buf[1 << 24];
    FILE *f = fopen(from, "rb");
    size_t n = f ? fread(buf, 1, sizeof buf - 1, f) : 0;
    bt_need(f && n < sizeof buf - 1, "%s cannot be read, or is too long", from);
    fclose(f);
    buf[n] = 0;
    put_text(dir, name, buf);
}

int main(int argc, char **argv)
{
    static plan p;
    bset set = {.shapes_only = true};
    mla_err err;
    mla_config c;
    mla_pool *pool;
    bt_need(argc == 4 || argc == 5, "usage: synthetic_checkpoint CONFIG.json TOKENIZER.json OUT [SEED]");
    p.out = argv[3];
    p.seed = argc == 5 ? strtoull(argv[4], NULL, 10) : 1;
    p.set = &set;
    bt_need(mkdir(p.out, 0777) == 0, "%s is there already, or cannot be made", p.out);
    copy(argv[1], p.out, "config.json");
    copy(argv[2], p.out, "tokenizer.json");
    mla_json *doc;
    must(mla_json_read(&doc, argv[1], 1 << 24, &err), &err);
    must(mla_config_from_json(&c, mla_json_root(doc), &err), &err);
    mla_json_free(doc);
    bset_model(&set, &c, c.family == MLA_FAM_QWEN3_5 ? "model.language_model." : "model.");
    if (c.mtp_layers) bset_mtp(&set, &c);
    if (c.has_vision) bset_vision_27b(&set); /* the only published tower of this family's size; nothing runs it */
    uint64_t bytes = 0;
    for (size_t i = 0; i < set.n; i++) {
        if (bytes && bytes + 2 * set.t[i].count > SHARD) p.first[++p.n] = i, bytes = 0;
        bytes += 2 * set.t[i].count;
        bt_need(p.n + 1 < SHARDS, "more than %d shards", SHARDS);
    }
    p.first[++p.n] = set.n;
    static const char *name[SHARDS];
    for (size_t k = 0; k < p.n; k++) {
        snprintf(p.name[k], sizeof p.name[k], "model-%05zu-of-%05zu.safetensors", k + 1, p.n);
        name[k] = p.name[k];
    }
    must(mla_pool_new(&pool, 0, &err), &err);
    mla_par_for(pool, p.n, 1, write_shards, &p);
    must(mla_writer_index_of(p.out, name, p.n, &err), &err);
    mla_pool_free(pool);
    mla_config_free(&c);
    bset_free(&set);
    return 0;
}
