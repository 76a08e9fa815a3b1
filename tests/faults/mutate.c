/* Plants one fault in a copy of a finished folder and seals it again, so that no digest gives it away: what is left to
 * notice it is how the model answers. For tests/e2e/faults.sh.
 *
 *     mutate FAULT DIR      edits DIR, then renews the digests in config.json and the receipt
 *     mutate reseal DIR     renews the digests only (a file was replaced by hand) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/json.h"
#include "io/receipt.h"
#include "io/safetensors.h"
#include "io/sha256.h"
#include "model/model.h"
#include "tensor/fp.h"

static void die(const char *what, const mla_err *err)
{
    fprintf(stderr, "mutate: %s: %s\n", what, err->msg);
    exit(1);
}

typedef enum { KEEP, EDIT, DROP } action;
typedef struct { /* what a visitor knows of the model */
    const mla_config *c;
    const mla_st *file;
    const mla_ids *script; /* tokens that begin every letter of one script and no other */
} world;
/* v: the tensor's n values, to be changed in place. */
typedef action (*visit_fn)(const world *w, const mla_tensor *t, float *v, size_t n);

static float value_at(const mla_tensor *t, size_t i)
{
    if (t->dtype == MLA_F32) return ((const float *)t->data)[i];
    return mla_bf16_f32(((const uint16_t *)t->data)[i]);
}

static bool is_float(const mla_tensor *t) { return t->dtype == MLA_F32 || t->dtype == MLA_BF16; }

static size_t count_of(const mla_tensor *t)
{
    size_t n = 1;
    for (size_t i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

static void store(void *dst, const mla_tensor *t, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (t->dtype == MLA_F32) ((float *)dst)[i] = v[i];
        else ((uint16_t *)dst)[i] = mla_f32_bf16(v[i]);
    }
}

/* The same file with what visit changed; says how many tensors that were, and fails when there was none. */
static void rewrite(const char *dir, const char *name, const mla_config *c, const mla_ids *script, visit_fn visit)
{
    mla_err err = {0};
    mla_st *s;
    char *path = mla_path_join(dir, name);
    if (mla_st_open(&s, path, &err) != MLA_OK) die(name, &err);
    size_t n = mla_st_count(s), kept = 0, changed = 0;
    mla_tensor *out = mla_alloc(n, 1, sizeof *out);
    world w = {c, s, script};
    for (size_t i = 0; i < n; i++) {
        const mla_tensor *t = mla_st_at(s, i);
        size_t k = count_of(t);
        float *v = is_float(t) ? mla_alloc(k, 1, sizeof *v) : NULL;
        for (size_t j = 0; v && j < k; j++) v[j] = value_at(t, j);
        action a = visit(&w, t, v, v ? k : 0);
        changed += a != KEEP;
        if (a != DROP) out[kept++] = *t;
        if (a == EDIT) {
            void *data = mla_alloc(t->nbytes, 1, 1);
            store(data, t, v, k);
            out[kept - 1].data = data;
        }
        mla_free(v);
    }
    if (!changed) {
        fprintf(stderr, "mutate: %s: nothing to change\n", name);
        exit(1);
    }
    char *fresh = mla_path_join(dir, "fresh.safetensors");
    unsigned char digest[32];
    if (mla_st_write(fresh, out, kept, digest, &err) != MLA_OK) die(name, &err);
    mla_st_close(s);
    if (mla_path_rename(fresh, path, &err) != MLA_OK) die(name, &err);
    fprintf(stderr, "mutate: %s: %zu tensors\n", name, changed);
    mla_free(fresh);
    mla_free(path);
}

static bool in_mtp(const mla_tensor *t) { return !strncmp(t->name, "mtp.", 4); }
static bool named(const mla_tensor *t, const char *suffix) { return !in_mtp(t) && mla_ends_with(t->name, suffix); }

/* ---- the base's tensors ---- */
/* Gains of rotated dims moved from the keys to the queries, as if a gain could pass through a rotation. */
static action gain_after_rope(const world *w, const mla_tensor *t, float *v, size_t n)
{
    char other[256];
    bool q = named(t, "self_attn.q_norm.weight"), k = named(t, "self_attn.k_norm.weight");
    if (!q && !k) return KEEP;
    (void)snprintf(other, sizeof other, "%.*s%s", (int)(strlen(t->name) - strlen("q_norm.weight")), t->name, q ? "k_norm.weight" : "q_norm.weight");
    const mla_tensor *o = mla_st_find(w->file, other);
    for (size_t i = 0; o && i < w->c->rope.rot && i < n; i++) v[i] = k ? 0 : (1 + v[i]) * (1 + value_at(o, i)) - 1;
    return EDIT;
}

/* Rows of every head's rotated dims reordered, so that neighbours are paired where halves should be. */
static action rotary_pairing(const world *w, const mla_tensor *t, float *v, size_t n)
{
    bool q = named(t, "self_attn.q_proj.weight"), k = named(t, "self_attn.k_proj.weight");
    size_t D = w->c->hidden, d = w->c->head_dim, step = q && w->c->attn_gate ? 2 * d : d, rot = w->c->rope.rot;
    if (!q && !k) return KEEP;
    float *old = mla_alloc(rot, D, sizeof *old);
    for (size_t h = 0; h * step * D < n; h++) {
        float *head = v + h * step * D;
        memcpy(old, head, rot * D * sizeof *old);
        for (size_t i = 0; i < rot; i++) memcpy(head + i * D, old + (i % 2 * (rot / 2) + i / 2) * D, D * sizeof *old);
    }
    mla_free(old);
    return EDIT;
}

/* 1 + w read as w: the gain loses its one. */
static action gain_without_one(const world *w, const mla_tensor *t, float *v, size_t n)
{
    (void)w;
    if (!named(t, "self_attn.q_norm.weight") && !named(t, "self_attn.k_norm.weight")) return KEEP;
    for (size_t i = 0; i < n; i++) v[i] -= 1;
    return EDIT;
}

/* [q | gate] of every head read as [gate | q]. */
static action gate_halves(const world *w, const mla_tensor *t, float *v, size_t n)
{
    size_t half = w->c->head_dim * w->c->hidden;
    if (!named(t, "self_attn.q_proj.weight")) return KEEP;
    for (size_t at = 0; at + 2 * half <= n; at += 2 * half)
        for (size_t i = 0; i < half; i++) {
            float x = v[at + i];
            v[at + i] = v[at + half + i];
            v[at + half + i] = x;
        }
    return EDIT;
}

static action mtp_dropped(const world *w, const mla_tensor *t, float *v, size_t n)
{
    (void)w, (void)v, (void)n;
    return in_mtp(t) ? DROP : KEEP;
}

static action weight_doubled(const world *w, const mla_tensor *t, float *v, size_t n)
{
    (void)w;
    if (!named(t, "layers.3.self_attn.v_proj.weight")) return KEEP;
    for (size_t i = 0; i < n; i++) v[i] *= 2;
    return EDIT;
}

/* Embeddings of the tokens that Cyrillic letters begin with are zeros, as where a table of rows lost what it took for unused. */
static action script_dropped(const world *w, const mla_tensor *t, float *v, size_t n)
{
    if (!named(t, "embed_tokens.weight")) return KEEP;
    for (size_t i = 0; i < w->script->n; i++) {
        size_t at = (size_t)w->script->id[i] * w->c->hidden;
        if (at + w->c->hidden <= n) memset(v + at, 0, w->c->hidden * sizeof *v);
    }
    return EDIT;
}

/* First tokens of the two halves of the Cyrillic alphabet: single bytes, where the vocabulary has no longer ones. */
static void cyrillic(const mla_model *m, mla_ids *out)
{
    static const char *const LETTER[] = {"\xd0\xb0", "\xd1\x80"};
    mla_err err = {0};
    mla_tok *tok;
    if (mla_model_tokenizer(m, &tok, &err) != MLA_OK) die("tokenizer", &err);
    for (size_t i = 0; i < 2; i++) {
        mla_ids one = {0};
        if (mla_tok_encode(tok, &one, LETTER[i], 2, false, &err) != MLA_OK || mla_ids_push(out, one.id[0], &err) != MLA_OK) die("tokens", &err);
        mla_ids_free(&one);
    }
    mla_tok_free(tok);
}

/* KV heads moved round by one: another base of the same shape. */
static action other_base(const world *w, const mla_tensor *t, float *v, size_t n)
{
    size_t head = w->c->head_dim * w->c->hidden;
    if (!named(t, "self_attn.k_proj.weight") && !named(t, "self_attn.v_proj.weight")) return KEEP;
    float *first = mla_alloc(head, 1, sizeof *first);
    memcpy(first, v, head * sizeof *v);
    memmove(v, v + head, (n - head) * sizeof *v);
    memcpy(v + n - head, first, head * sizeof *v);
    mla_free(first);
    return EDIT;
}

/* ---- factors and scales ---- */
static action mean_dropped(const world *w, const mla_tensor *t, float *v, size_t n)
{
    (void)w;
    if (!named(t, "self_attn.mla.mean")) return KEEP;
    memset(v, 0, n * sizeof *v);
    return EDIT;
}

/* The last of the rotary keys that all heads share is never written. */
static action rotary_key_lost(const world *w, const mla_tensor *t, float *v, size_t n)
{
    size_t rows = w->c->rope.rot * t->shape[t->ndim - 1];
    if (!named(t, "self_attn.mla.rotary_encoder.weight") || n < rows) return KEEP;
    memset(v + n - rows, 0, rows * sizeof *v);
    return EDIT;
}

/* Layer 3 gets what was solved for layer 5. */
static action another_layer(const world *w, const mla_tensor *t, float *v, size_t n)
{
    char other[256];
    const char *at = strstr(t->name, "layers.3.");
    if (!at) return KEEP;
    (void)snprintf(other, sizeof other, "%.*slayers.5.%s", (int)(at - t->name), t->name, at + strlen("layers.3."));
    const mla_tensor *o = mla_st_find(w->file, other);
    for (size_t i = 0; o && i < n; i++) v[i] = value_at(o, i);
    return o ? EDIT : KEEP;
}

static action scale_doubled(const world *w, const mla_tensor *t, float *v, size_t n)
{
    (void)w;
    if (!named(t, "layers.3.self_attn.mla.latent_scale") || n != 1) return KEEP;
    v[0] *= 2;
    return EDIT;
}

static action scale_zero(const world *w, const mla_tensor *t, float *v, size_t n)
{
    (void)w;
    if (!named(t, "layers.3.self_attn.mla.latent_scale") || n != 1) return KEEP;
    v[0] = 0;
    return EDIT;
}

/* ---- sealing ---- */
static void renew(const char *dir, mla_jv *o, const char *file_key, const char *sha_key)
{
    mla_err err = {0};
    char hex[65];
    const char *name = mla_jv_str(mla_jv_get(o, file_key));
    if (!name) return;
    char *path = mla_path_join(dir, name);
    mla_file_digest f = {.path = path};
    if (mla_sha256_files(&f, 1, NULL, NULL, &err) != MLA_OK) die(name, &err);
    mla_hex(f.digest, 32, hex);
    mla_jv_set_str(o, sha_key, hex);
    mla_free(path);
}

static void seal(const char *dir)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_err err = {0};
    mla_json *config, *receipt;
    mla_manifest m;
    char *c = mla_path_join(dir, "config.json"), *r = mla_path_join(dir, MLA_RECEIPT_NAME);
    if (!mla_path_exists(r)) { /* a base: nothing is sealed */
        mla_free(c);
        mla_free(r);
        return;
    }
    if (mla_json_read(&config, c, (size_t)1 << 24, &err) != MLA_OK) die("config.json", &err);
    mla_jv *root = mla_json_root(config), *text = mla_jv_get(root, "text_config");
    renew(dir, mla_jv_get(text ? text : root, "mla"), "factors_file", "factors_sha256");
    renew(dir, mla_jv_get(root, "mla_kv_scales"), "file", "sha256");
    if (mla_json_write(c, root, &err) != MLA_OK) die("config.json", &err);
    if (mla_json_read(&receipt, r, (size_t)1 << 24, &err) != MLA_OK || mla_manifest_scan(&m, dir, SKIP, NULL, NULL, &err) != MLA_OK ||
        mla_manifest_to_json(&m, mla_json_root(receipt), &err) != MLA_OK || mla_receipt_write_sealed(r, mla_json_root(receipt), &err) != MLA_OK)
        die("receipt", &err);
    mla_manifest_free(&m);
    mla_json_free(receipt);
    mla_json_free(config);
    mla_free(c);
    mla_free(r);
}

/* The index without the tensors that went from the weights. */
static void trim_index(const char *dir)
{
    mla_err err = {0};
    mla_json *d;
    char *path = mla_path_join(dir, "model.safetensors.index.json");
    if (mla_json_read(&d, path, (size_t)1 << 24, &err) != MLA_OK) die("index", &err);
    mla_jv *map = mla_jv_get(mla_json_root(d), "weight_map");
    for (mla_jv *v = mla_jv_first(map); v;) {
        mla_jv *next = mla_jv_next(v);
        if (!strncmp(mla_jv_key(v), "mtp.", 4) && mla_jv_str(v) && !strcmp(mla_jv_str(v), "model.safetensors")) mla_jv_remove(map, mla_jv_key(v));
        v = next;
    }
    if (mla_json_write(path, mla_json_root(d), &err) != MLA_OK) die("index", &err);
    mla_json_free(d);
    mla_free(path);
}

#define WEIGHTS "model.safetensors"
#define FACTORS "mla_factors-00001-of-00001.safetensors"
#define SCALES "mla_kv_scales.safetensors"

static const struct {
    const char *name, *file;
    visit_fn visit;
} FAULTS[] = {
    {"gain-after-rope", WEIGHTS, gain_after_rope}, {"rotary-pairing", WEIGHTS, rotary_pairing}, {"gain-without-one", WEIGHTS, gain_without_one},
    {"gate-halves", WEIGHTS, gate_halves},         {"mtp-dropped", WEIGHTS, mtp_dropped},       {"weight-doubled", WEIGHTS, weight_doubled},
    {"other-base", WEIGHTS, other_base},           {"script-dropped", WEIGHTS, script_dropped},
    {"mean-dropped", FACTORS, mean_dropped},       {"another-layer", FACTORS, another_layer},   {"rotary-key-lost", FACTORS, rotary_key_lost},
    {"scale-doubled", SCALES, scale_doubled},      {"scale-zero", SCALES, scale_zero},
};

int main(int argc, char **argv)
{
    mla_err err = {0};
    mla_model *m;
    bool found = argc == 3 && !strcmp(argv[1], "reseal");
    if (argc == 3 && !found) {
        mla_ids script = {0};
        if (mla_model_open(&m, argv[2], &err) != MLA_OK) die(argv[2], &err);
        cyrillic(m, &script);
        for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++) {
            if (strcmp(FAULTS[i].name, argv[1])) continue;
            rewrite(argv[2], FAULTS[i].file, mla_model_config(m), &script, FAULTS[i].visit);
            found = true;
        }
        mla_ids_free(&script);
        mla_model_close(m);
    }
    if (!found) {
        fprintf(stderr, "usage: mutate FAULT DIR\n");
        return 2;
    }
    if (!strcmp(argv[1], "mtp-dropped")) trim_index(argv[2]);
    seal(argv[2]);
    return 0;
}
