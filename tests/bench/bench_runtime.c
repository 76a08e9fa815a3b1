/* Prefill and decode of the runtime on one model, with the read-only sweep between the repetitions.
 *
 * usage: bench_runtime MODEL CORPUS IDS_OUT threads prefill decode repetitions sweep_MiB
 * Writes the ids that were fed to IDS_OUT, one per line, for the other engines of the same run. Prints:
 *   {f32,bf16,packed,packed16}_prefill, _decode   tokens/s, medians: weights decoded to f32 or bf16; as stored, with f32 or
 *                                                 with bf16 activations and cache
 *   .._bytes                                      bytes that decoding one token must read: weights + cache
 *   .._memory                                     bytes on the device at most: weights, cache, activations
 *   .._next                                       the greedy token after the prompt, so that engines can be compared
 *   stored                                        bytes of the model's file
 *   sweep                                         bytes/s of the sweep */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "lab.h"
#include "runtime/score.h"

typedef struct {
    mla_model *m;
    mla_backend *be;
    mla_pool *pool;
    int32_t *ids;
    size_t prefill, decode, reps, area_bytes;
    char *area;
    lab_series sweep;
} lab;

static int32_t best(const float *logits, size_t V)
{
    mla_err err = {0};
    mla_score s;
    lab_must(mla_score_row(&s, logits, V, -1, &err), &err);
    return s.top1;
}

/* One repetition: the prompt from an empty cache, then greedy tokens one by one. */
static int32_t repetition(lab *b, mla_rt *rt, mla_seq *seq, float *logits, lab_series *pre, lab_series *dec)
{
    mla_err err = {0};
    size_t V = mla_rt_config(rt)->vocab;
    lab_add(&b->sweep, (double)b->area_bytes / lab_sweep(b->pool, b->area, b->area_bytes));
    mla_seq_reset(seq);
    mla_job job = {.seq = seq, .ids = b->ids, .T = b->prefill, .logits_from = b->prefill - 1, .logits = logits};
    double t = lab_now();
    lab_must(mla_rt_run(rt, &job, 1, NULL, NULL, &err), &err);
    lab_add(pre, (double)b->prefill / (lab_now() - t));
    int32_t first = best(logits, V), id = first;
    t = lab_now();
    for (size_t i = 0; i < b->decode; i++) {
        mla_job one = {.seq = seq, .ids = &id, .T = 1, .logits_from = 0, .logits = logits};
        lab_must(mla_rt_run(rt, &one, 1, NULL, NULL, &err), &err);
        id = best(logits, V);
    }
    lab_add(dec, (double)b->decode / (lab_now() - t));
    return first;
}

static void engine(lab *b, const char *name, mla_precision p, mla_dtype kv, bool decoded)
{
    mla_err err = {0};
    mla_rt *rt = NULL;
    mla_seq *seq = NULL;
    lab_series pre = {.n = 0}, dec = {.n = 0}, none = {.n = 0};
    char key[64];
    lab_must(mla_rt_open(&rt, b->m, b->be, &(mla_rt_opts){.precision = p, .kv_dtype = kv, .gdn_chunk = 64, .decode_weights = decoded}, &err), &err);
    lab_must(mla_seq_new(&seq, rt, b->prefill + b->decode + 1, &err), &err);
    float *logits = mla_alloc(mla_rt_config(rt)->vocab, 1, sizeof *logits);
    if (!logits) exit(3);
    int32_t first = 0;
    (void)repetition(b, rt, seq, logits, &none, &none); /* warm-up: pages touched, threads started */
    for (size_t i = 0; i < b->reps; i++) first = repetition(b, rt, seq, logits, &pre, &dec);
    snprintf(key, sizeof key, "%s_prefill", name);
    lab_print(key, &pre);
    snprintf(key, sizeof key, "%s_decode", name);
    lab_print(key, &dec);
    snprintf(key, sizeof key, "%s_bytes", name);
    double width = p == MLA_PREC_BF16 ? 2 : 4, context = (double)b->prefill + 0.5 * (double)b->decode;
    double weights = decoded ? width * (double)mla_model_trunk_params(b->m) : (double)mla_model_stored_bytes(b->m);
    lab_print_value(key, weights + context * (double)mla_rt_kv_bytes_per_token(rt));
    snprintf(key, sizeof key, "%s_memory", name);
    lab_print_value(key, (double)mla_rt_peak_bytes(rt));
    snprintf(key, sizeof key, "%s_next", name);
    lab_print_value(key, (double)first);
    mla_free(logits);
    mla_seq_free(seq);
    mla_rt_close(rt);
}

int main(int argc, char **argv)
{
    mla_err err = {0};
    if (argc < 4) {
        fprintf(stderr, "usage: bench_runtime MODEL CORPUS IDS_OUT [threads prefill decode repetitions sweep_MiB]\n");
        return 2;
    }
    size_t threads = lab_arg(argc, argv, 4, 1);
    lab b = {.prefill = lab_arg(argc, argv, 5, 512), .decode = lab_arg(argc, argv, 6, 64), .reps = lab_arg(argc, argv, 7, 3),
             .area_bytes = lab_arg(argc, argv, 8, 1280) << 20};
    lab_must(mla_model_open(&b.m, argv[1], &err), &err);
    b.be = lab_backend(threads);
    lab_must(mla_pool_new(&b.pool, threads, &err), &err);
    b.ids = lab_ids(b.m, argv[2], b.prefill);
    b.area = lab_area(b.area_bytes);
    FILE *f = fopen(argv[3], "w");
    if (!f) return 3;
    for (size_t i = 0; i < b.prefill; i++) fprintf(f, "%d\n", (int)b.ids[i]);
    if (fclose(f) != 0) return 3;
    engine(&b, "packed", MLA_PREC_F32, MLA_F32, false);
    engine(&b, "packed16", MLA_PREC_BF16, MLA_BF16, false);
    engine(&b, "bf16", MLA_PREC_BF16, MLA_BF16, true);
    engine(&b, "f32", MLA_PREC_F32, MLA_F32, true);
    lab_print_value("stored", (double)mla_model_stored_bytes(b.m));
    lab_print("sweep", &b.sweep);
    mla_free(b.area);
    mla_free(b.ids);
    mla_pool_free(b.pool);
    mla_backend_close(b.be);
    mla_model_close(b.m);
    return 0;
}
