/* What the toolkit itself makes of a model, as plain files for comparison with other libraries.
 *
 * usage: dump logits MODEL IDS_FILE OUT     f32 logits (T, V) of the ids (one per line) on the reference path
 *        dump encode MODEL TEXT_FILE OUT    ids of every text of a NUL-separated file, one line per text
 *        dump matrices MODEL - OUT          every matrix of the trunk as f32 under its stored name, a safetensors file
 *        dump shared MODEL RANK OUT         a shared-rotary factor file of this model's shape with random values */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "model/shared.h"
#include "runtime/runtime.h"
#include "text/tokenizer.h"

static void must(mla_status st, const mla_err *err)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "dump: %s: %s\n", mla_status_name(st), err->msg);
    exit(3);
}

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;
    size_t cap = 0;
    *n = 0;
    for (size_t got = 1; f && got;) {
        if (*n + 65536 > cap && !(p = mla_realloc(p, cap = 2 * cap + 65536, 1))) exit(3);
        *n += got = fread(p + *n, 1, cap - *n - 1, f);
    }
    if (!f || ferror(f)) {
        fprintf(stderr, "dump: cannot read %s\n", path);
        exit(3);
    }
    fclose(f);
    p[*n] = 0;
    return p;
}

static void logits(const mla_model *m, const char *text, FILE *out)
{
    mla_err err = {0};
    mla_backend *be = NULL;
    mla_rt *rt = NULL;
    mla_seq *seq = NULL;
    size_t V = mla_model_config(m)->vocab, T = 0;
    int32_t *ids = mla_alloc(strlen(text) + 1, 1, sizeof *ids);
    if (!ids) exit(3);
    for (char *end; ; text = end) {
        long v = strtol(text, &end, 10);
        if (end == text) break;
        ids[T++] = (int32_t)v;
    }
    float *row = mla_alloc(T, V, sizeof *row);
    if (!row) exit(3);
    must(mla_backend_open(&be, &(mla_backend_opts){0}, &err), &err);
    must(mla_rt_open(&rt, m, be, &(mla_rt_opts){.precision = MLA_PREC_F32, .kv_dtype = MLA_F32}, &err), &err);
    must(mla_seq_new(&seq, rt, T, &err), &err);
    mla_job job = {.seq = seq, .ids = ids, .T = T, .logits_from = 0, .logits = row};
    must(mla_rt_run(rt, &job, 1, NULL, NULL, &err), &err);
    if (fwrite(row, V * sizeof *row, T, out) != T) exit(3);
    mla_free(row);
    mla_free(ids);
    mla_seq_free(seq);
    mla_rt_close(rt);
    mla_backend_close(be);
}

static void encode(const mla_model *m, const char *text, size_t n, FILE *out)
{
    mla_err err = {0};
    mla_tok *tok = NULL;
    must(mla_model_tokenizer(m, &tok, &err), &err);
    for (size_t at = 0; at < n;) {
        size_t len = strlen(text + at);
        mla_ids ids = {0};
        must(mla_tok_encode(tok, &ids, text + at, len, false, &err), &err);
        for (size_t i = 0; i < ids.n; i++) fprintf(out, i ? " %d" : "%d", (int)ids.id[i]);
        fputc('\n', out);
        mla_ids_free(&ids);
        at += len + 1;
    }
    mla_tok_free(tok);
}

static void shared(const mla_model *m, size_t rank, const char *path)
{
    static const char SOURCE[] = "0000000000000000000000000000000000000000000000000000000000000001";
    mla_err err = {0};
    mla_shared s;
    size_t layers = mla_config_full_layers(mla_model_config(m));
    unsigned char digest[32];
    must(mla_shared_new(&s, mla_model_config(m), rank, 1, &err), &err);
    for (size_t i = 0; i < mla_shared_floats(&s); i++) s.E[i] = (float)(mla_rng_unit(1, i) - 0.5);
    mla_shared *all = mla_alloc(layers, 1, sizeof *all); /* the same values for every layer */
    if (!all) exit(3);
    for (size_t i = 0; i < layers; i++) all[i] = s;
    must(mla_shared_write(path, m, all, SOURCE, digest, &err), &err);
    mla_free(all);
    mla_shared_free(&s);
}

static void matrices(const mla_model *m, const char *path)
{
    mla_err err = {0};
    size_t layers = mla_model_config(m)->layers, n = 0;
    unsigned char digest[32];
    mla_tensor *t = mla_alloc(layers * MLA_W_N, 1, sizeof *t);
    if (!t) exit(3);
    for (size_t i = 0; i < layers * MLA_W_N; i++) {
        mla_mat w;
        mla_str name = MLA_STR_MAX(512);
        if (!mla_model_has(m, (mla_wkind)(i % MLA_W_N), i / MLA_W_N)) continue;
        must(mla_model_mat(m, (mla_wkind)(i % MLA_W_N), i / MLA_W_N, &w, &err), &err);
        must(mla_model_name(m, (mla_wkind)(i % MLA_W_N), i / MLA_W_N, &name, &err), &err);
        bool again = w.out == 1 || w.in == 1;
        for (size_t k = 0; k < n; k++) again = again || !strcmp(t[k].name, mla_str_c(&name)); /* of the model, not of a layer */
        float *x = again ? NULL : mla_alloc(w.out, w.in, sizeof *x);
        if (again || !x) {
            mla_str_free(&name);
            if (again) continue;
            exit(3);
        }
        must(mla_mat_rows(&w, 0, w.out, x, &err), &err);
        t[n++] = (mla_tensor){.name = mla_strdup(mla_str_c(&name)), .dtype = MLA_F32, .ndim = 2, .shape = {w.out, w.in}, .data = x, .nbytes = 4 * w.out * w.in};
        mla_str_free(&name);
    }
    must(mla_st_write(path, t, n, digest, &err), &err);
    for (size_t k = 0; k < n; k++) mla_free((void *)(uintptr_t)t[k].name), mla_free((void *)(uintptr_t)t[k].data);
    mla_free(t);
}

int main(int argc, char **argv)
{
    mla_err err = {0};
    mla_model *m = NULL;
    size_t n;
    if (argc != 5 || (strcmp(argv[1], "logits") && strcmp(argv[1], "encode") && strcmp(argv[1], "matrices") && strcmp(argv[1], "shared"))) {
        fprintf(stderr, "usage: dump logits|encode|matrices|shared MODEL INPUT OUT\n");
        return 2;
    }
    must(mla_model_open(&m, argv[2], &err), &err);
    if (!strcmp(argv[1], "shared") || !strcmp(argv[1], "matrices")) {
        if (argv[1][0] == 's') shared(m, (size_t)strtoul(argv[3], NULL, 10), argv[4]);
        else matrices(m, argv[4]);
        mla_model_close(m);
        return 0;
    }
    char *in = slurp(argv[3], &n);
    FILE *out = fopen(argv[4], "wb");
    if (!out) return 3;
    if (!strcmp(argv[1], "logits")) logits(m, in, out);
    else encode(m, in, n, out);
    if (fclose(out) != 0) return 3;
    mla_free(in);
    mla_model_close(m);
    return 0;
}
