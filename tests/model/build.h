/* Small models for the tests: named tensors with known values, written as safetensors folders or GGUF files. */
#ifndef MLA_TESTS_MODEL_BUILD_H
#define MLA_TESTS_MODEL_BUILD_H
#include <stdbool.h>
#include <stddef.h>

#include "io/gguf.h"
#include "model/config.h"
#include "tensor/dtype.h"

/* Says what is wrong and aborts, which fails a test; programs of tests/tools without a test runner use these helpers, too. */
void bt_need(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

typedef struct {
    char name[160];
    mla_dtype dtype;
    size_t nd, shape[3], count;
    float *v; /* (count): values that bf16 holds exactly */
} bt;

typedef struct {
    bt *t;
    size_t n;
    bool shapes_only; /* set before adding: no values, for bset_write_sparse */
} bset;

/* Adds a tensor of pseudo-random bf16 values that depend on its name only; zero dims end the shape. */
bt *bset_add(bset *s, size_t a, size_t b, size_t c, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
bt *bset_find(const bset *s, const char *name); /* fails the test when absent */
void bset_drop(bset *s, const char *name);
void bset_free(bset *s);
/* dir/file, every tensor in its dtype (integer dtypes: zeros). */
void bset_write(const bset *s, const char *dir, const char *file);
/* The same as a header over a hole: gigabytes that take no room. */
void bset_write_sparse(const bset *s, const char *dir, const char *file);

/* All tensors of a model of this config under Hugging Face names; prefix "model." or "model.language_model.". */
void bset_model(bset *s, const mla_config *c, const char *prefix);
void bset_mtp(bset *s, const mla_config *c);
void bset_vision(bset *s);
void bset_vision_27b(bset *s); /* the published tower */

void put_text(const char *dir, const char *name, const char *text);
void copy_fixture(const char *fixture, const char *dir, const char *name);
const char *in_dir(const char *dir, const char *name); /* ring of 8 */

/* A GGUF file under construction. */
typedef struct {
    unsigned char *kv;
    size_t nkv, kvlen, kvcap;
    bset t; /* shape in HF order; written reversed, as F32 */
} gb;
void gb_u32(gb *g, const char *key, unsigned v);
void gb_f32(gb *g, const char *key, float v);
void gb_str(gb *g, const char *key, const char *v);
void gb_u32s(gb *g, const char *key, const unsigned *v, size_t n);
void gb_i32s(gb *g, const char *key, const int *v, size_t n);
void gb_strs(gb *g, const char *key, const char *const *v, size_t n);
void gb_bool(gb *g, const char *key, bool v);
void gb_copy_kv(gb *g, const mla_gguf *from, const char *prefix); /* entries whose key starts with prefix */
void gb_write(const gb *g, const char *path);
void gb_free(gb *g);

/* A folder's tensor in place, and the metadata, as llama.cpp's converter stores them for architecture llama, qwen2, qwen3, qwen35. */
void gguf_tensor(bt *t, const mla_config *c, bool llama);
void gguf_keys(gb *g, const mla_config *c, const char *arch);
/* A GGUF file of this config, and the folder's tensors that it stands for. */
void gguf_llama(gb *g, const mla_config *c, bset *folder);
void gguf_qwen35(gb *g, const mla_config *c, bset *folder);
#endif
