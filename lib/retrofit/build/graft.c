/* The factors file, and a folder made of base files, factors, config and index. */
#include "retrofit/build/graft.h"

#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model/writer.h"
#include "tensor/compare.h"
#include "tensor/dtype.h"

enum { PARTS = 6 }; /* the last but two in layout p, the last two in layout absorbed-rope */
static const char *const PART[PARTS] = {"encoder.weight", "decoder.weight", "mean", "divisor_center", "rotary_encoder.weight", "rotary_query.weight"};

/* Which parts factors of a layout have: the i-th of them; PARTS when there is none. */
static size_t part_at(const mla_factors *f, size_t i)
{
    if (i < 3) return i;
    if (f->center && i == 3) return 3;
    return f->w && i < 5 ? i + 1 : PARTS;
}

mla_status mla_factors_name(mla_str *name, const mla_model *base, size_t layer, const char *part, mla_err *err)
{
    mla_str_clear(name);
    if (mla_model_gguf(base)) mla_str_printf(name, "model.layers.%zu.self_attn.", layer);
    else {
        mla_status st = mla_model_name(base, MLA_W_O, layer, name, err);
        if (st != MLA_OK) return st;
        const char *s = mla_str_c(name), *at = strstr(s, "o_proj");
        if (!at) return mla_fail(err, MLA_EINTERNAL, "%s: no o_proj in the name", s);
        name->len = (size_t)(at - s);
        name->s[name->len] = 0;
    }
    mla_str_put(name, "mla.");
    mla_str_put(name, part);
    return mla_str_ok(name) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "tensor name");
}

static void part_shape(const mla_factors *f, size_t part, size_t shape[3], size_t *ndim)
{
    const size_t keys = f->n / 2;
    const size_t s[PARTS][3] = {{f->groups, f->r, f->n}, {f->groups, f->nd, f->r}, {f->groups, f->n, 0}, {f->heads, 0, 0},
                                {f->w, keys, 0}, {f->d ? keys / f->d : 0, f->w, f->d}};
    static const size_t DIMS[PARTS] = {3, 3, 2, 1, 2, 3};
    memcpy(shape, s[part], sizeof s[part]);
    *ndim = DIMS[part];
}

mla_status mla_factors_write(const char *path, const mla_model *base, const mla_factorization *f, unsigned char digest[32], mla_err *err)
{
    size_t per = 3;
    while (f->layers && part_at(&f->factors[0], per) < PARTS) per++;
    size_t n = f->layers * per;
    mla_tensor *t = mla_alloc(n, 1, sizeof *t);
    char **name = mla_alloc(n, 1, sizeof *name);
    void **data = mla_alloc(n, 1, sizeof *data);
    mla_str s = MLA_STR_MAX(1024);
    mla_status st = t && name && data ? MLA_OK : mla_fail(err, MLA_ENOMEM, "factors of %zu layers", f->layers);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        const mla_factors *fl = &f->factors[i / per];
        size_t p = part_at(fl, i % per);
        const float *src[PARTS] = {fl->E, fl->D, fl->mu, fl->center, fl->Er, fl->Rq};
        t[i].dtype = p >= 2 || f->f32 ? MLA_F32 : MLA_BF16;
        part_shape(fl, p, t[i].shape, &t[i].ndim);
        size_t count = mla_tensor_numel(&t[i]);
        t[i].nbytes = count * mla_dtype_bits(t[i].dtype) / 8;
        if ((st = mla_factors_name(&s, base, f->result[i / per].layer, PART[p], err)) != MLA_OK) break;
        name[i] = mla_strdup(mla_str_c(&s));
        data[i] = mla_alloc_raw(t[i].nbytes, 1, 1);
        if (!name[i] || !data[i]) st = mla_fail(err, MLA_ENOMEM, "factors of layer %zu", f->result[i / per].layer);
        else if (mla_count_nonfinite(src[p], count, NULL)) st = mla_fail(err, MLA_EINTERNAL, "%s is not finite", name[i]);
        else (void)mla_from_f32(data[i], src[p], t[i].dtype, count);
        t[i].name = name[i];
        t[i].data = data[i];
    }
    mla_st_note note = {.key = f->refined ? MLA_FACTORS_REFINED : NULL, .value = f->refined};
    if (f->deepseek) note = (mla_st_note){.key = MLA_FACTORS_LAYOUT, .value = mla_layout_name(MLA_LAYOUT_DEEPSEEK)}; /* solved, thus not refined */
    if (st == MLA_OK) st = mla_st_write_note(path, t, n, note, digest, err);
    for (size_t i = 0; i < n; i++) {
        if (name) mla_free(name[i]);
        if (data) mla_free(data[i]);
    }
    mla_free(t);
    mla_free(name);
    mla_free(data);
    mla_str_free(&s);
    return st == MLA_OK ? st : mla_wrap(err, "factors");
}

/* The block-quantized values of a GGUF base need more bits than bf16 holds. */
static mla_dtype gguf_dtype(const mla_model *base)
{
    const mla_gguf *g = mla_model_gguf(base);
    for (size_t i = 0; g && i < mla_gguf_count(g); i++) {
        const mla_ggml_info *t = mla_ggml_type_info(mla_gguf_at(g, i)->type);
        if (t && t->block > 1) return MLA_F32;
        if (mla_gguf_at(g, i)->ndim > 1 && mla_gguf_at(g, i)->type != MLA_GT_BF16) return MLA_F32;
    }
    return MLA_BF16;
}

mla_dtype mla_graft_dtype(const mla_model *base)
{
    return mla_model_gguf(base) ? gguf_dtype(base) : mla_model_config(base)->dtype == MLA_BF16 ? MLA_BF16 : MLA_F32;
}

static mla_status write_config(const char *dir, const mla_model *base, const mla_factorization *f, bool old_names, const unsigned char digest[32],
                               const mla_writer_opts *wo, mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    mla_json *doc = NULL;
    char file[] = MLA_FACTORS_FILE, *path = mla_path_join(dir, "config.json");
    mla_retrofit_config r = {.layout = f->factors[0].layout, .groups = f->factors[0].groups, .rotary_width = f->rotary_width,
                              .freq_fold = f->freq_fold, .dtype = f->f32 ? MLA_F32 : MLA_BF16, .factors_file = file,
                              .old_names = old_names};
    bool differ = false;
    for (size_t i = 0; i < f->layers; i++) differ = differ || f->factors[i].w != f->factors[0].w;
    r.rank = mla_alloc(c->layers, 1, sizeof *r.rank);
    r.width = differ ? mla_alloc(c->layers, 1, sizeof *r.width) : NULL;
    memcpy(r.factors_sha256, digest, 32);
    mla_status st = r.rank && (r.width || !differ) && path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "config of %zu layers", c->layers);
    for (size_t i = 0; st == MLA_OK && i < f->layers; i++) r.rank[f->result[i].layer] = f->factors[i].groups * f->factors[i].r;
    for (size_t i = 0; st == MLA_OK && differ && i < f->layers; i++) r.width[f->result[i].layer] = f->factors[i].w;
    if (st == MLA_OK) st = mla_writer_config(&doc, base, &r, wo, err);
    if (st == MLA_OK) st = mla_json_write(path, mla_json_root(doc), err);
    mla_json_free(doc);
    mla_free(r.rank);
    mla_free(r.width);
    mla_free(path);
    return st;
}

mla_status mla_graft(const char *dir, const mla_model *base, const mla_factorization *f, bool old_names, mla_log *log, mla_err *err)
{
    static const char *const ADDED[] = {MLA_FACTORS_FILE};
    mla_writer_opts wo = {.dtype = gguf_dtype(base), .log = log};
    unsigned char digest[32];
    char *path = mla_path_join(dir, MLA_FACTORS_FILE);
    mla_placed placed = {0};
    mla_status st = path && f->layers ? MLA_OK : mla_fail(err, MLA_ENOMEM, "graft");
    if (st == MLA_OK) st = mla_writer_place_base(base, dir, &wo, &placed, err);
    if (st == MLA_OK) st = mla_factors_write(path, base, f, digest, err);
    if (st == MLA_OK) st = mla_writer_index(base, dir, ADDED, 1, err);
    if (st == MLA_OK) st = write_config(dir, base, f, old_names, digest, &wo, err);
    if (st == MLA_OK)
        mla_info(log, "base files: %zu linked, %zu cloned, %zu copied, %zu written", placed.linked, placed.cloned, placed.copied, placed.written);
    mla_free(path);
    return st;
}
