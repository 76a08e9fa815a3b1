/* Models for the tests, written with names and orders spelled out here, not taken from the code under test. */
#include "build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "base/str.h"
#include "harness.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"
#include "tensor/fp.h"

void bt_need(bool ok, const char *fmt, ...)
{
    va_list ap;
    if (ok) return;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

const char *in_dir(const char *dir, const char *name)
{
    static char ring[8][1200];
    static unsigned at;
    char *b = ring[at++ % 8];
    snprintf(b, sizeof ring[0], "%s/%s", dir, name);
    return b;
}

static void put_bytes(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    bt_need(f != NULL, "cannot create %s", path);
    bool written = n == 0 || fwrite(data, 1, n, f) == n;
    bt_need(fclose(f) == 0 && written, "cannot write %s", path);
}

void put_text(const char *dir, const char *name, const char *text) { put_bytes(in_dir(dir, name), text, strlen(text)); }

void copy_fixture(const char *fixture, const char *dir, const char *name)
{
    FILE *f = fopen(mla_fixture(fixture), "rb");
    bt_need(f != NULL, "no fixture %s", fixture);
    static char buf[1 << 20];
    size_t n = fread(buf, 1, sizeof buf, f);
    bt_need(n < sizeof buf, "%s is too long", fixture);
    fclose(f);
    put_bytes(in_dir(dir, name), buf, n);
}

bt *bset_add(bset *s, size_t a, size_t b, size_t c, const char *fmt, ...)
{
    s->t = realloc(s->t, (s->n + 1) * sizeof *s->t);
    bt_need(s->t != NULL, "no memory");
    bt *t = &s->t[s->n++];
    *t = (bt){.dtype = MLA_BF16, .shape = {a, b, c}, .count = 1};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    for (size_t d[3] = {a, b, c}; t->nd < 3 && d[t->nd]; t->nd++) t->count *= d[t->nd];
    uint64_t seed = 7;
    for (const char *p = t->name; *p; p++) seed = seed * 1099511628211u + (unsigned char)*p;
    if (s->shapes_only) return t;
    t->v = malloc(t->count * sizeof *t->v);
    for (size_t i = 0; i < t->count; i++) t->v[i] = mla_bf16_f32(mla_f32_bf16((float)(mla_rng_unit(seed, i) - 0.5)));
    return t;
}

bt *bset_find(const bset *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->t[i].name, name)) return &s->t[i];
    bt_need(false, "no tensor %s", name);
    return NULL;
}

void bset_drop(bset *s, const char *name)
{
    bt *t = bset_find(s, name);
    free(t->v);
    *t = s->t[--s->n];
}

void bset_free(bset *s)
{
    for (size_t i = 0; i < s->n; i++) free(s->t[i].v);
    free(s->t);
    *s = (bset){0};
}

void bset_write(const bset *s, const char *dir, const char *file)
{
    mla_err err = {0};
    mla_tensor *t = calloc(s->n, sizeof *t);
    void **data = calloc(s->n, sizeof *data);
    for (size_t i = 0; i < s->n; i++) {
        const bt *b = &s->t[i];
        t[i] = (mla_tensor){.name = b->name, .dtype = b->dtype, .ndim = b->nd, .nbytes = b->count * mla_dtype_bits(b->dtype) / 8};
        for (size_t d = 0; d < b->nd; d++) t[i].shape[d] = b->shape[d];
        data[i] = calloc(t[i].nbytes + 1, 1);
        (void)mla_from_f32(data[i], b->v, b->dtype, b->count);
        t[i].data = data[i];
    }
    bt_need(mla_st_write(in_dir(dir, file), t, s->n, NULL, &err) == MLA_OK, "%s", err.msg);
    for (size_t i = 0; i < s->n; i++) free(data[i]);
    free(data);
    free(t);
}

void bset_write_sparse(const bset *s, const char *dir, const char *file)
{
    mla_str h = MLA_STR_MAX((size_t)64 << 20);
    char shape[96];
    uint64_t at = 0;
    mla_str_put(&h, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < s->n; i++) {
        const bt *t = &s->t[i];
        uint64_t end = at + t->count * (mla_dtype_bits(t->dtype) / 8);
        mla_str_printf(&h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", t->name, mla_dtype_name(t->dtype),
                       mla_shape_text(t->shape, t->nd, shape, sizeof shape), (unsigned long long)at, (unsigned long long)end);
        at = end;
    }
    mla_str_put(&h, "}");
    while (h.len % 8) mla_str_put(&h, " ");
    bt_need(mla_str_ok(&h), "no memory");
    FILE *f = fopen(in_dir(dir, file), "wb");
    uint64_t n = h.len;
    bt_need(f && fwrite(&n, 1, 8, f) == 8 && fwrite(h.s, 1, h.len, f) == h.len && fflush(f) == 0, "cannot write %s", file);
    bt_need(ftruncate(fileno(f), (off_t)(8 + n + at)) == 0 && fclose(f) == 0, "cannot write %s", file);
    mla_str_free(&h);
}

static void attention(bset *s, const mla_config *c, const char *p)
{
    size_t H = c->hidden, hd = c->head_dim, q = c->heads * hd, kv = c->kv_heads * hd;
    bset_add(s, c->attn_gate ? 2 * q : q, H, 0, "%sself_attn.q_proj.weight", p);
    bset_add(s, kv, H, 0, "%sself_attn.k_proj.weight", p);
    bset_add(s, kv, H, 0, "%sself_attn.v_proj.weight", p);
    bset_add(s, H, q, 0, "%sself_attn.o_proj.weight", p);
    if (c->q_bias) bset_add(s, q, 0, 0, "%sself_attn.q_proj.bias", p);
    if (c->kv_bias) bset_add(s, kv, 0, 0, "%sself_attn.k_proj.bias", p);
    if (c->kv_bias) bset_add(s, kv, 0, 0, "%sself_attn.v_proj.bias", p);
    if (c->o_bias) bset_add(s, H, 0, 0, "%sself_attn.o_proj.bias", p);
    if (c->qk_norm) bset_add(s, hd, 0, 0, "%sself_attn.q_norm.weight", p);
    if (c->qk_norm) bset_add(s, hd, 0, 0, "%sself_attn.k_norm.weight", p);
}

static void deepseek(bset *s, const mla_config *c, const char *p)
{
    size_t H = c->hidden, dn = c->qk_nope_dim, dr = c->qk_rope_dim, r = c->kv_lora_rank;
    if (c->q_lora_rank) {
        bset_add(s, c->q_lora_rank, H, 0, "%sself_attn.q_a_proj.weight", p);
        bset_add(s, c->q_lora_rank, 0, 0, "%sself_attn.q_a_layernorm.weight", p);
        bset_add(s, c->heads * (dn + dr), c->q_lora_rank, 0, "%sself_attn.q_b_proj.weight", p);
    } else {
        bset_add(s, c->heads * (dn + dr), H, 0, "%sself_attn.q_proj.weight", p);
    }
    bset_add(s, r + dr, H, 0, "%sself_attn.kv_a_proj_with_mqa.weight", p);
    bset_add(s, r, 0, 0, "%sself_attn.kv_a_layernorm.weight", p);
    bset_add(s, c->heads * (dn + c->v_head_dim), r, 0, "%sself_attn.kv_b_proj.weight", p);
    bset_add(s, H, c->heads * c->v_head_dim, 0, "%sself_attn.o_proj.weight", p);
}

static void delta_net(bset *s, const mla_config *c, const char *p)
{
    size_t H = c->hidden, key = c->lin_k_heads * c->lin_k_dim, val = c->lin_v_heads * c->lin_v_dim, nv = c->lin_v_heads;
    if (c->family == MLA_FAM_QWEN3_NEXT) {
        bset_add(s, 2 * key + 2 * val, H, 0, "%slinear_attn.in_proj_qkvz.weight", p);
        bset_add(s, 2 * nv, H, 0, "%slinear_attn.in_proj_ba.weight", p);
    } else {
        bset_add(s, 2 * key + val, H, 0, "%slinear_attn.in_proj_qkv.weight", p);
        bset_add(s, val, H, 0, "%slinear_attn.in_proj_z.weight", p);
        bset_add(s, nv, H, 0, "%slinear_attn.in_proj_b.weight", p);
        bset_add(s, nv, H, 0, "%slinear_attn.in_proj_a.weight", p);
    }
    bset_add(s, 2 * key + val, 1, c->lin_conv, "%slinear_attn.conv1d.weight", p);
    bset_add(s, nv, 0, 0, "%slinear_attn.A_log", p);
    bset_add(s, nv, 0, 0, "%slinear_attn.dt_bias", p);
    bset_add(s, c->lin_v_dim, 0, 0, "%slinear_attn.norm.weight", p);
    bset_add(s, H, val, 0, "%slinear_attn.out_proj.weight", p);
}

static void mlp_and_norms(bset *s, const mla_config *c, const char *p)
{
    size_t H = c->hidden, I = c->intermediate;
    bset_add(s, H, 0, 0, "%sinput_layernorm.weight", p);
    bset_add(s, H, 0, 0, "%spost_attention_layernorm.weight", p);
    bset_add(s, I, H, 0, "%smlp.gate_proj.weight", p);
    bset_add(s, I, H, 0, "%smlp.up_proj.weight", p);
    bset_add(s, H, I, 0, "%smlp.down_proj.weight", p);
    if (!c->mlp_bias) return;
    bset_add(s, I, 0, 0, "%smlp.gate_proj.bias", p);
    bset_add(s, I, 0, 0, "%smlp.up_proj.bias", p);
    bset_add(s, H, 0, 0, "%smlp.down_proj.bias", p);
}

void bset_model(bset *s, const mla_config *c, const char *prefix)
{
    char p[96];
    bset_add(s, c->vocab, c->hidden, 0, "%sembed_tokens.weight", prefix);
    bset_add(s, c->hidden, 0, 0, "%snorm.weight", prefix);
    if (!c->tied) bset_add(s, c->vocab, c->hidden, 0, "lm_head.weight");
    for (size_t l = 0; l < c->layers; l++) {
        snprintf(p, sizeof p, "%slayers.%zu.", prefix, l);
        mlp_and_norms(s, c, p);
        if (c->layer_kind[l] == MLA_LAYER_LINEAR) delta_net(s, c, p);
        else if (c->family == MLA_FAM_DEEPSEEK) deepseek(s, c, p);
        else attention(s, c, p);
    }
}

void bset_mtp(bset *s, const mla_config *c)
{
    size_t H = c->hidden;
    bset_add(s, H, 2 * H, 0, "mtp.fc.weight");
    bset_add(s, H, 0, 0, "mtp.pre_fc_norm_embedding.weight");
    bset_add(s, H, 0, 0, "mtp.pre_fc_norm_hidden.weight");
    bset_add(s, H, 0, 0, "mtp.norm.weight");
    mlp_and_norms(s, c, "mtp.layers.0.");
    attention(s, c, "mtp.layers.0.");
}

void bset_vision(bset *s)
{
    bset_add(s, 8, 3, 4, "model.visual.patch_embed.proj.weight");
    bset_add(s, 8, 0, 0, "model.visual.blocks.0.norm1.weight");
}

static void with_bias(bset *s, size_t out, size_t in, const char *name)
{
    bset_add(s, out, in, 0, "model.visual.%s.weight", name);
    bset_add(s, out, 0, 0, "model.visual.%s.bias", name);
}

void bset_vision_27b(bset *s)
{
    char p[96];
    with_bias(s, 1152, 3 * 2 * 16 * 16, "patch_embed.proj"); /* stored [1152, 3, 2, 16, 16] */
    bset_add(s, 2304, 1152, 0, "model.visual.pos_embed.weight");
    for (unsigned b = 0; b < 27; b++) {
        static const struct {
            const char *name;
            size_t out, in;
        } L[] = {{"norm1", 1152, 0}, {"norm2", 1152, 0}, {"attn.qkv", 3456, 1152}, {"attn.proj", 1152, 1152},
                 {"mlp.linear_fc1", 4304, 1152}, {"mlp.linear_fc2", 1152, 4304}};
        for (size_t i = 0; i < sizeof L / sizeof *L; i++) {
            snprintf(p, sizeof p, "blocks.%u.%s", b, L[i].name);
            with_bias(s, L[i].out, L[i].in, p);
        }
    }
    with_bias(s, 1152, 0, "merger.norm");
    with_bias(s, 4608, 4608, "merger.linear_fc1");
    with_bias(s, 5120, 4608, "merger.linear_fc2");
}

static void kv_bytes(gb *g, const void *data, size_t n)
{
    while (g->kvlen + n > g->kvcap) {
        g->kvcap = g->kvcap ? 2 * g->kvcap : 4096;
        g->kv = realloc(g->kv, g->kvcap);
        bt_need(g->kv != NULL, "no memory");
    }
    memcpy(g->kv + g->kvlen, data, n);
    g->kvlen += n;
}

static void kv_u32(gb *g, unsigned v) { kv_bytes(g, &(uint32_t){v}, 4); }

static void kv_string(gb *g, const char *s)
{
    kv_bytes(g, &(uint64_t){strlen(s)}, 8);
    kv_bytes(g, s, strlen(s));
}

static void kv_key(gb *g, const char *key, unsigned type)
{
    g->nkv++;
    kv_string(g, key);
    kv_u32(g, type);
}

void gb_u32(gb *g, const char *key, unsigned v) { kv_key(g, key, MLA_GV_U32), kv_u32(g, v); }
void gb_f32(gb *g, const char *key, float v) { kv_key(g, key, MLA_GV_F32), kv_bytes(g, &v, 4); }
void gb_str(gb *g, const char *key, const char *v) { kv_key(g, key, MLA_GV_STRING), kv_string(g, v); }

void gb_u32s(gb *g, const char *key, const unsigned *v, size_t n)
{
    kv_key(g, key, MLA_GV_ARRAY);
    kv_u32(g, MLA_GV_U32);
    kv_bytes(g, &(uint64_t){n}, 8);
    for (size_t i = 0; i < n; i++) kv_u32(g, v[i]);
}

void gb_i32s(gb *g, const char *key, const int *v, size_t n)
{
    kv_key(g, key, MLA_GV_ARRAY);
    kv_u32(g, MLA_GV_I32);
    kv_bytes(g, &(uint64_t){n}, 8);
    for (size_t i = 0; i < n; i++) kv_u32(g, (unsigned)v[i]);
}

void gb_strs(gb *g, const char *key, const char *const *v, size_t n)
{
    kv_key(g, key, MLA_GV_ARRAY);
    kv_u32(g, MLA_GV_STRING);
    kv_bytes(g, &(uint64_t){n}, 8);
    for (size_t i = 0; i < n; i++) kv_string(g, v[i]);
}

void gb_bool(gb *g, const char *key, bool v) { kv_key(g, key, MLA_GV_BOOL), kv_bytes(g, &(unsigned char){v}, 1); }

void gb_copy_kv(gb *g, const mla_gguf *from, const char *prefix)
{
    for (size_t i = 0; i < mla_gguf_kv_count(from); i++) {
        const mla_gguf_kv *kv = mla_gguf_kv_at(from, i);
        if (strncmp(kv->key, prefix, strlen(prefix))) continue;
        kv_key(g, kv->key, kv->type);
        if (kv->type == MLA_GV_ARRAY) kv_u32(g, kv->item), kv_bytes(g, &(uint64_t){kv->n}, 8);
        if (kv->type == MLA_GV_STRING) kv_bytes(g, &(uint64_t){kv->n}, 8);
        kv_bytes(g, kv->data, kv->nbytes);
    }
}

void gb_write(const gb *g, const char *path)
{
    gb h = {0}; /* the file's bytes, grown with the same helper */
    uint64_t at = 0;
    kv_bytes(&h, "GGUF", 4);
    kv_u32(&h, 3);
    kv_bytes(&h, &(uint64_t){g->t.n}, 8);
    kv_bytes(&h, &(uint64_t){g->nkv}, 8);
    kv_bytes(&h, g->kv, g->kvlen);
    for (size_t i = 0; i < g->t.n; i++) {
        const bt *t = &g->t.t[i];
        kv_string(&h, t->name);
        kv_u32(&h, (unsigned)t->nd);
        for (size_t d = t->nd; d-- > 0;) kv_bytes(&h, &(uint64_t){t->shape[d]}, 8);
        kv_u32(&h, MLA_GT_F32);
        kv_bytes(&h, &at, 8);
        at += (4 * t->count + 31) / 32 * 32;
    }
    static const char zero[32];
    kv_bytes(&h, zero, (32 - h.kvlen % 32) % 32);
    for (size_t i = 0; i < g->t.n; i++) {
        kv_bytes(&h, g->t.t[i].v, 4 * g->t.t[i].count);
        kv_bytes(&h, zero, (32 - 4 * g->t.t[i].count % 32) % 32);
    }
    put_bytes(path, h.kv, h.kvlen);
    free(h.kv);
}

void gb_free(gb *g)
{
    free(g->kv);
    bset_free(&g->t);
    *g = (gb){0};
}
