/* Test tensors that may be changed. */
#include "bag.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "harness.h"

static const mla_tensor *find(const void *ctx, const char *name)
{
    const bag *b = ctx;
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->t[i].name, name)) return &b->t[i];
    return NULL;
}

void bag_empty(bag *b)
{
    memset(b, 0, sizeof *b);
    b->src = (mla_qsource){find, b};
}

static void copy_in(bag *b, const mla_tensor *t)
{
    ck_assert_uint_lt(b->n, BAG_MAX);
    mla_tensor c = *t;
    void *data = mla_alloc(t->nbytes, 1, 1);
    if (t->nbytes) memcpy(data, t->data, t->nbytes);
    c.name = mla_strdup(t->name);
    c.data = data;
    b->t[b->n++] = c;
}

void bag_add(bag *b, const char *name, mla_dtype t, size_t ndim, size_t d0, size_t d1, const void *data)
{
    mla_tensor x = {.name = name, .dtype = t, .ndim = ndim, .shape = {d0, d1}, .data = data};
    x.nbytes = mla_tensor_numel(&x) * mla_dtype_bits(t) / 8;
    copy_in(b, &x);
}

void bag_open(bag *b, const char *name)
{
    mla_err err;
    mla_st *s;
    char path[128];
    bag_empty(b);
    snprintf(path, sizeof path, "golden-quant/%s.safetensors", name);
    ck_ok(mla_st_open(&s, mla_fixture(path), &err));
    for (size_t i = 0; i < mla_st_count(s); i++) {
        const mla_tensor *t = mla_st_at(s, i);
        if (strcmp(t->name, "m.dequantized") != 0) {
            copy_in(b, t);
            continue;
        }
        b->out = t->shape[0], b->in = t->shape[1];
        b->want = mla_alloc(t->nbytes, 1, 1);
        memcpy(b->want, t->data, t->nbytes);
    }
    ck_assert_ptr_nonnull(b->want);
    mla_st_close(s);
    snprintf(path, sizeof path, "golden-quant/%s.json", name);
    ck_ok(mla_json_read(&b->json, mla_fixture(path), 1 << 20, &err));
}

/* The views are const; the bag's own memory is not. */
static void *writable(const void *p)
{
    union { const void *c; void *v; } u = {p};
    return u.v;
}

static void drop_at(bag *b, size_t i)
{
    mla_free(writable(b->t[i].name));
    mla_free(writable(b->t[i].data));
    b->t[i] = b->t[--b->n];
}

void bag_free(bag *b)
{
    while (b->n) drop_at(b, b->n - 1);
    mla_free(b->want);
    mla_json_free(b->json);
}

mla_tensor *bag_find(bag *b, const char *name)
{
    for (size_t i = 0; i < b->n; i++)
        if (!strcmp(b->t[i].name, name)) return &b->t[i];
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

void *bag_data(bag *b, const char *name) { return writable(bag_find(b, name)->data); }
void bag_drop(bag *b, const char *name) { drop_at(b, (size_t)(bag_find(b, name) - b->t)); }

void bag_rename(bag *b, const char *from, const char *to)
{
    mla_tensor *t = bag_find(b, from);
    mla_free(writable(t->name));
    t->name = mla_strdup(to);
}

mla_qconfig *bag_config(const bag *b)
{
    mla_err err;
    mla_qconfig *c = NULL;
    ck_ok(mla_qconfig_read(&c, mla_jv_get(mla_json_root(b->json), "quantization_config"), &err));
    return c;
}

mla_status read_config(mla_qconfig **out, const char *text, mla_err *err)
{
    mla_json *d;
    char *s = mla_strdup(text);
    for (char *p = s; *p; p++)
        if (*p == '\'') *p = '"';
    ck_assert_msg(mla_json_parse(&d, s, strlen(s), "test config", err) == MLA_OK, "%s", err->msg);
    mla_status st = mla_qconfig_read(out, mla_json_root(d), err);
    mla_json_free(d);
    mla_free(s);
    return st;
}

mla_qconfig *config_of(const char *text)
{
    mla_err err;
    mla_qconfig *c = NULL;
    ck_ok(read_config(&c, text, &err));
    return c;
}

static void same(const float *got, const float *want, size_t row0, size_t n, size_t in)
{
    for (size_t i = 0; i < n * in; i++)
        ck_assert_msg(memcmp(got + i, want + row0 * in + i, sizeof *got) == 0, "row %zu column %zu: %.9g, expected %.9g",
                      row0 + i / in, i % in, (double)got[i], (double)want[row0 * in + i]);
}

void bag_decodes_to(bag *b, const mla_qconfig *cfg, const float *want)
{
    mla_err err;
    mla_qmat m;
    ck_ok(mla_qmat_open_with(&m, &b->src, "m", cfg, &err));
    ck_assert_uint_eq(m.out, b->out);
    ck_assert_uint_eq(m.in, b->in);
    float *got = mla_alloc(m.out, m.in, sizeof *got);
    ck_ok(mla_qmat_rows_f32(&m, 0, m.out, got, &err));
    same(got, want, 0, m.out, m.in);
    for (size_t r = 0, n = 1; r < m.out; r += n, n = n % 5 + 1) { /* runs of 1 to 5 rows that start anywhere */
        size_t run = m.out - r < n ? m.out - r : n;
        memset(got, 0xff, m.out * m.in * sizeof *got);
        ck_ok(mla_qmat_rows_f32(&m, r, run, got, &err));
        same(got, want, r, run, m.in);
        if (run < m.out) ck_assert(((unsigned char *)(got + run * m.in))[0] == 0xff);
    }
    mla_free(got);
}
