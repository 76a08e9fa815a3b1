/* What the runtime's suites share: opening the tiny hybrid, running ids in chunks, recorded tensors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "suites.h"
#include "tensor/bound.h"

const char *tiny_hybrid(void) { return mla_fixture("tiny-hybrid"); }

world world_open(const char *path, size_t threads)
{
    mla_err err = {0};
    world w = {0};
    ck_ok(mla_model_open(&w.m, path ? path : tiny_hybrid(), &err));
    ck_ok(mla_backend_open(&w.be, &(mla_backend_opts){.threads = threads}, &err));
    w.c = mla_model_config(w.m);
    return w;
}

void world_close(world *w)
{
    mla_backend_close(w->be);
    mla_model_close(w->m);
}

mla_rt *world_rt(const world *w, mla_rt_opts o)
{
    mla_err err = {0};
    mla_rt *rt;
    if (!o.kv_dtype) o.kv_dtype = MLA_F32;
    ck_ok(mla_rt_open(&rt, w->m, w->be, &o, &err));
    return rt;
}

float *run_chunks(mla_rt *rt, const int32_t *ids, size_t n, size_t from, size_t chunk, size_t last)
{
    mla_err err = {0};
    mla_seq *s;
    size_t V = mla_rt_config(rt)->vocab;
    float *out = mla_alloc(n - from, V, sizeof *out);
    ck_assert(out);
    ck_ok(mla_seq_new(&s, rt, n, &err));
    for (size_t at = 0; at < n;) {
        size_t left = n - at, T = chunk ? chunk : left;
        if (last && left > last && T > left - last) T = left - last;
        if (T > left) T = left;
        mla_job j = {.seq = s, .ids = ids + at, .T = T, .logits_from = from <= at ? 0 : from >= at + T ? T : from - at};
        if (j.logits_from < T) j.logits = out + (at + j.logits_from - from) * V;
        ck_ok(mla_rt_run(rt, &j, 1, NULL, NULL, &err));
        at += T;
        ck_assert_uint_eq(mla_seq_len(s), at);
    }
    mla_seq_free(s);
    return out;
}

double path_bound(const mla_config *c, double layers, size_t S)
{
    /* two norms and q, gate/up reductions over D, head norm and logits over d, softmax and average over S, output
     * projections over H d and I; the delta net's recurrence over S tokens counts like the average */
    double per = 4.0 * (double)c->hidden + 2.0 * (double)c->head_dim + (double)S + (double)(c->heads * c->head_dim) + (double)c->intermediate;
    double n = per * layers + 2.0 * (double)c->hidden;
    return sqrt(2) * mla_gamma_prob(MLA_F32, (size_t)n);
}

mla_st *recorded(void)
{
    mla_err err = {0};
    mla_st *s;
    ck_ok(mla_st_open(&s, mla_fixture("references/tiny-hybrid.tensors.safetensors"), &err));
    return s;
}

float *tensor_f32(const mla_st *s, const char *name, size_t *n)
{
    const mla_tensor *t = mla_st_find(s, name);
    ck_assert_msg(t != NULL, "no tensor %s", name);
    *n = mla_tensor_numel(t);
    float *v = mla_alloc(*n, sizeof *v, 1);
    ck_assert(v && mla_to_f32(v, t->data, t->dtype, *n));
    return v;
}

int32_t *some_ids(size_t n)
{
    mla_st *s = recorded();
    size_t k;
    float *v = tensor_f32(s, "input_ids", &k);
    int32_t *ids = mla_alloc(n, sizeof *ids, 1);
    ck_assert(ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)v[i % k];
    mla_free(v);
    mla_st_close(s);
    return ids;
}

double mean_kld(const float *p, const float *q, size_t n, size_t V)
{
    mla_err err = {0};
    double sum = 0, k;
    for (size_t i = 0; i < n; i++) {
        ck_ok(mla_kld_row(&k, p + i * V, q + i * V, V, &err));
        sum += k;
    }
    return sum / (double)n;
}
