/* Shared by the calibration suites. */
#include "lab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

lab lab_open(const char *path, mla_rt_opts o, size_t threads)
{
    mla_err err = {0};
    lab l = {0};
    if (!o.kv_dtype) o.kv_dtype = MLA_BF16;
    ck_ok(mla_model_open(&l.m, path ? path : mla_fixture("tiny-hybrid"), &err));
    ck_ok(mla_backend_open(&l.be, &(mla_backend_opts){.threads = threads}, &err));
    ck_ok(mla_rt_open(&l.rt, l.m, l.be, &o, &err));
    l.c = mla_model_config(l.m);
    return l;
}

void lab_close(lab *l)
{
    mla_rt_close(l->rt);
    mla_backend_close(l->be);
    mla_model_close(l->m);
}

void lab_exact(lab *l, size_t groups) { lab_exact_layout(l, MLA_LAYOUT_N, groups); }

void lab_exact_layout(lab *l, mla_layout layout, size_t groups)
{
    mla_err err = {0};
    mla_factors f;
    size_t n;
    ck_ok(mla_factors_dims(l->c, layout, groups, &n, &err));
    ck_ok(mla_factors_new(&f, layout, groups, n, n, &err));
    mla_factors_identity(&f);
    for (size_t i = 0; i < l->c->layers; i++)
        if (l->c->layer_kind[i] == MLA_LAYER_FULL) ck_ok(mla_rt_set_factors(l->rt, i, &f, &err));
    mla_factors_free(&f);
}

int32_t *lab_ids(const lab *l, const char *file, size_t n)
{
    mla_err err = {0};
    mla_corpus c = {0};
    mla_tok *tok;
    char path[600];
    const char *root = getenv("MLA_ROOT");
    snprintf(path, sizeof path, "%s/calib/%s", root && *root ? root : ".", file);
    ck_ok(mla_model_tokenizer(l->m, &tok, &err));
    ck_ok(mla_corpus_add(&c, path, tok, l->c->vocab, &err));
    ck_assert(c.ids.n >= n);
    int32_t *ids = mla_alloc(n, sizeof *ids, 1);
    memcpy(ids, c.ids.id, n * sizeof *ids);
    mla_corpus_free(&c);
    mla_tok_free(tok);
    return ids;
}
