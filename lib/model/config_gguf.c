/* GGUF metadata -> mla_config, for the architectures of arch.c that name a GGUF form. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "model/config_parts.h"
#include "quant/gguf_blocks.h"

typedef struct { /* reads "ARCH.key" with a sticky error */
    const mla_gguf *g;
    char arch[32], key[96];
    mla_status st;
    mla_err *err;
} meta;

static const char *key_of(meta *m, const char *key)
{
    snprintf(m->key, sizeof m->key, "%s.%s", m->arch, key);
    return m->key;
}

static size_t size_of(meta *m, const char *key, size_t lo, size_t hi, size_t def)
{
    uint64_t v;
    const char *k = key_of(m, key);
    if (m->st != MLA_OK) return lo;
    if (!mla_gguf_kv_find(m->g, k)) {
        if (def == MLA_REQUIRED) m->st = mla_fail(m->err, MLA_EFORMAT, "%s: missing", k);
        return def == MLA_REQUIRED ? lo : def;
    }
    if (mla_gguf_u64(m->g, k, &v) && v >= lo && v <= hi) return (size_t)v;
    m->st = mla_fail(m->err, MLA_EFORMAT, "%s: expected an integer from %zu to %zu", k, lo, hi);
    return lo;
}

/* The decimal of fewest digits that is this f32: metadata of 1e-5 reads as 1e-5, not as 9.99999974737875e-06. */
static double shortest(double v)
{
    char buf[40];
    if ((double)(float)v != v) return v;
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtof(buf, NULL) == (float)v) return strtod(buf, NULL);
    }
    return v;
}

static double f64_of(meta *m, const char *key, double lo, double hi, double def)
{
    double v;
    const char *k = key_of(m, key);
    if (m->st != MLA_OK || !mla_gguf_kv_find(m->g, k)) return def;
    if (mla_gguf_f64(m->g, k, &v) && v >= lo && v <= hi) return shortest(v);
    m->st = mla_fail(m->err, MLA_EFORMAT, "%s: expected a number from %g to %g", k, lo, hi);
    return def;
}

static bool has_tensor(const meta *m, const char *name) { return mla_gguf_find(m->g, name) != NULL; }

static void read_sizes(meta *m, mla_config *c)
{
    const mla_gguf_tensor *embd = mla_gguf_find(m->g, "token_embd.weight");
    if (!embd) m->st = mla_fail(m->err, MLA_EFORMAT, "token_embd.weight: missing");
    else if (embd->ne[1] < 1 || embd->ne[1] > MLA_MAX_VOCAB)
        m->st = mla_fail(m->err, MLA_EFORMAT, "token_embd.weight: expected 1 to %zu rows, found %zu", MLA_MAX_VOCAB, embd->ne[1]);
    c->vocab = embd ? embd->ne[1] : 1;
    c->hidden = size_of(m, "embedding_length", 1, MLA_MAX_HIDDEN, MLA_REQUIRED);
    c->intermediate = size_of(m, "feed_forward_length", 1, MLA_MAX_INTER, MLA_REQUIRED);
    c->layers = size_of(m, "block_count", 1, MLA_MAX_LAYERS, MLA_REQUIRED);
    c->mtp_layers = size_of(m, "nextn_predict_layers", 0, 16, 0); /* counted in block_count */
    if (m->st == MLA_OK && c->mtp_layers >= c->layers)
        m->st = mla_fail(m->err, MLA_EFORMAT, "%s: %zu of %zu blocks", key_of(m, "nextn_predict_layers"), c->mtp_layers, c->layers);
    c->layers -= m->st == MLA_OK ? c->mtp_layers : 0;
    c->heads = size_of(m, "attention.head_count", 1, MLA_MAX_HEADS, MLA_REQUIRED);
    c->kv_heads = size_of(m, "attention.head_count_kv", 1, MLA_MAX_HEADS, c->heads);
    c->max_pos = size_of(m, "context_length", 1, MLA_MAX_POS, MLA_REQUIRED);
    c->rms_eps = f64_of(m, "attention.layer_norm_rms_epsilon", 0, 0.1, 1e-6);
    c->head_dim = size_of(m, "attention.key_length", 1, MLA_MAX_HEAD_DIM, c->hidden % c->heads ? MLA_REQUIRED : c->hidden / c->heads);
    size_t value = size_of(m, "attention.value_length", 1, MLA_MAX_HEAD_DIM, c->head_dim);
    if (m->st == MLA_OK && value != c->head_dim)
        m->st = mla_fail(m->err, MLA_EUNSUPPORTED, "%s: value heads of %zu beside key heads of %zu are not supported", m->arch, value, c->head_dim);
    c->experts = size_of(m, "expert_count", 0, 1 << 16, 0);
    size_t window = size_of(m, "attention.sliding_window", 0, MLA_MAX_POS, 0);
    c->sliding_window = window >= c->max_pos ? 0 : window;
}

static void read_flags(meta *m, mla_config *c, const mla_arch_group *g)
{
    c->tied = !has_tensor(m, "output.weight");
    c->qk_norm = g->flags & MLA_AF_QK_NORM;
    c->attn_gate = g->flags & MLA_AF_GATE;
    c->norm_plus_one = false; /* stored gains are the full factor */
    c->q_bias = has_tensor(m, "blk.0.attn_q.bias");
    c->kv_bias = has_tensor(m, "blk.0.attn_k.bias");
    c->o_bias = has_tensor(m, "blk.0.attn_output.bias");
    c->mlp_bias = has_tensor(m, "blk.0.ffn_gate.bias");
}

static void read_hybrid(meta *m, mla_config *c)
{
    c->lin_conv = size_of(m, "ssm.conv_kernel", 2, 64, MLA_REQUIRED);
    c->lin_k_dim = size_of(m, "ssm.state_size", 1, MLA_MAX_HEAD_DIM, MLA_REQUIRED);
    c->lin_k_heads = size_of(m, "ssm.group_count", 1, MLA_MAX_HEADS, MLA_REQUIRED);
    c->lin_v_heads = size_of(m, "ssm.time_step_rank", 1, MLA_MAX_HEADS, MLA_REQUIRED);
    size_t inner = size_of(m, "ssm.inner_size", 1, MLA_MAX_INTER, MLA_REQUIRED);
    if (m->st == MLA_OK && inner % c->lin_v_heads)
        m->st = mla_fail(m->err, MLA_EFORMAT, "%s: %zu is not a multiple of %zu value heads", key_of(m, "ssm.inner_size"), inner, c->lin_v_heads);
    c->lin_v_dim = inner / c->lin_v_heads;
}

static void read_layers(meta *m, mla_config *c, bool hybrid)
{
    size_t interval = hybrid ? size_of(m, "full_attention_interval", 1, MLA_MAX_LAYERS, 4) : 1;
    if (m->st != MLA_OK) return;
    c->layer_kind = mla_alloc(c->layers, 1, sizeof *c->layer_kind);
    if (!c->layer_kind) {
        m->st = mla_fail(m->err, MLA_ENOMEM, "config: %zu layers", c->layers);
        return;
    }
    for (size_t i = 0; i < c->layers; i++) c->layer_kind[i] = (i + 1) % interval ? MLA_LAYER_LINEAR : MLA_LAYER_FULL;
}

/* u32 or i32 array of four: T, H, W, unused. */
static void read_sections(meta *m, mla_rope_config *r)
{
    const mla_gguf_kv *kv = mla_gguf_kv_find(m->g, key_of(m, "rope.dimension_sections"));
    if (!kv) return;
    size_t sum = 0;
    bool ok = kv->type == MLA_GV_ARRAY && (kv->item == MLA_GV_U32 || kv->item == MLA_GV_I32) && kv->n >= 3 && kv->nbytes == 4 * kv->n;
    for (size_t i = 0; ok && i < kv->n; i++) {
        uint32_t v;
        memcpy(&v, kv->data + 4 * i, 4);
        ok = v <= 65536 && (i < 3 || v == 0);
        if (ok && i < 3) r->mrope_section[i] = v;
        if (ok) sum += v;
    }
    r->mrope_interleaved = true;
    if (!ok || sum != r->rot / 2)
        m->st = mla_fail(m->err, MLA_EFORMAT, "%s: expected three sizes that sum to %zu", m->key, r->rot / 2);
}

/* rope_freqs.weight divides the frequencies (llama3 scaling, its parameters are not stored). The published parameters
 * (low 1, high 4, context 8192, factor = the largest divisor) are recognised, so that config.json can name them. */
static void read_freqs(meta *m, mla_config *c)
{
    const mla_gguf_tensor *t = mla_gguf_find(m->g, "rope_freqs.weight");
    mla_rope_config *r = &c->rope;
    size_t n = r->rot / 2;
    if (!t || m->st != MLA_OK) return;
    float *div = mla_alloc(n, 1, sizeof *div);
    if (!div) {
        m->st = mla_fail(m->err, MLA_ENOMEM, "rope_freqs.weight");
        return;
    }
    double most = 1;
    if (t->ndim != 1 || t->ne[0] != n || r->kind != MLA_ROPE_DEFAULT)
        m->st = mla_fail(m->err, MLA_EFORMAT, "rope_freqs.weight: expected %zu values without another rope scaling, found %zu", n, t->ne[0]);
    if (m->st == MLA_OK) m->st = mla_gguf_rows_f32(t, 0, 1, div, m->err);
    for (size_t i = 0; m->st == MLA_OK && i < n; i++) {
        if (!(div[i] >= 1e-3f && div[i] <= 1e6f)) m->st = mla_fail(m->err, MLA_EFORMAT, "rope_freqs.weight: value %zu is %g", i, (double)div[i]);
        else if (div[i] > most) most = div[i];
    }
    if (m->st == MLA_OK) {
        mla_rope_config l3 = {.kind = MLA_ROPE_LLAMA3, .theta = r->theta, .factor = most, .low_freq = 1, .high_freq = 4,
                              .original_max = 8192, .rot = r->rot};
        m->st = mla_rope_resolve(&l3, NULL, NULL, m->err);
        bool same = m->st == MLA_OK;
        for (size_t i = 0; m->st == MLA_OK && i < n; i++) {
            double want = r->inv_freq[i] / div[i];
            same = same && fabs(l3.inv_freq[i] - want) <= 1e-6 * want;
            r->inv_freq[i] = want;
        }
        r->kind = same ? MLA_ROPE_LLAMA3 : MLA_ROPE_DEFAULT;
        if (same) r->factor = most, r->low_freq = 1, r->high_freq = 4, r->original_max = 8192;
        r->custom = !same;
        mla_free(l3.inv_freq);
    }
    mla_free(div);
}

static void read_rope(meta *m, mla_config *c)
{
    mla_rope_config *r = &c->rope;
    const char *type = NULL;
    size_t n = 0;
    r->rot = size_of(m, "rope.dimension_count", 2, MLA_MAX_HEAD_DIM, c->head_dim);
    r->theta = f64_of(m, "rope.freq_base", 1.0001, 1e12, 10000);
    r->factor = r->attention_factor = 1;
    r->original_max = c->max_pos;
    r->truncate = true;
    if (m->st == MLA_OK && (r->rot % 2 || r->rot > c->head_dim))
        m->st = mla_fail(m->err, MLA_EFORMAT, "%s: %zu of %zu head dims", key_of(m, "rope.dimension_count"), r->rot, c->head_dim);
    if (mla_gguf_str(m->g, key_of(m, "rope.scaling.type"), &type, &n) && !(n == 4 && !memcmp(type, "none", 4))) {
        r->factor = f64_of(m, "rope.scaling.factor", 1, 1e6, 1);
        if (n == 6 && !memcmp(type, "linear", 6)) {
            r->kind = MLA_ROPE_LINEAR;
        } else if (n == 4 && !memcmp(type, "yarn", 4)) {
            r->kind = MLA_ROPE_YARN;
            r->original_max = size_of(m, "rope.scaling.original_context_length", 1, MLA_MAX_POS, c->max_pos);
            r->beta_fast = f64_of(m, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
            r->beta_slow = f64_of(m, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
            /* there the key scales the magnitude that YaRN derives */
            r->attention_factor = f64_of(m, "rope.scaling.attn_factor", 1e-3, 1e3, 1) * mla_yarn_mscale(r->factor, 1);
        } else if (m->st == MLA_OK) {
            m->st = mla_fail(m->err, MLA_EUNSUPPORTED, "%s: not supported (none, linear, yarn)", key_of(m, "rope.scaling.type"));
        }
    }
    if (m->st == MLA_OK) read_sections(m, r);
    if (m->st == MLA_OK) m->st = mla_rope_resolve(r, NULL, NULL, m->err);
    read_freqs(m, c);
}

static void read_tokens(const mla_gguf *g, mla_config *c)
{
    static const char *const EOS[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    uint64_t id;
    c->bos = mla_gguf_u64(g, "tokenizer.ggml.bos_token_id", &id) && id < c->vocab ? (int)id : -1;
    for (size_t i = 0; i < 2; i++)
        if (mla_gguf_u64(g, EOS[i], &id) && id < c->vocab && !(c->n_eos && c->eos[0] == (int)id)) c->eos[c->n_eos++] = (int)id;
}

mla_status mla_config_from_gguf(mla_config *out, const mla_gguf *g, mla_err *err)
{
    const char *name;
    size_t n;
    uint64_t parts = 1;
    meta m = {.g = g, .err = err};
    *out = (mla_config){.dtype = MLA_BF16, .bos = -1};
    if (!mla_gguf_str(g, "general.architecture", &name, &n)) return mla_fail(err, MLA_EFORMAT, "general.architecture: missing");
    const mla_arch_group *group = mla_arch_of_gguf(name, n);
    if (!group) return mla_fail(err, MLA_EUNSUPPORTED, "architecture %.*s is not supported", n < 40 ? (int)n : 40, name);
    if (mla_gguf_u64(g, "split.count", &parts) && parts > 1)
        return mla_fail(err, MLA_EUNSUPPORTED, "split.count: a GGUF model in %zu parts is not supported", (size_t)parts);
    memcpy(m.arch, group->gguf, strlen(group->gguf) + 1);
    bool hybrid = group->flags & MLA_AF_HYBRID;
    out->family = group->family;
    out->architecture = mla_strdup(m.arch);
    out->model_type = mla_strdup(m.arch);
    if (!out->architecture || !out->model_type) m.st = mla_fail(err, MLA_ENOMEM, "config");
    read_sizes(&m, out);
    if (m.st == MLA_OK) read_flags(&m, out, group);
    if (m.st == MLA_OK && hybrid) read_hybrid(&m, out);
    if (m.st == MLA_OK) read_layers(&m, out, hybrid);
    if (m.st == MLA_OK) read_rope(&m, out);
    if (m.st == MLA_OK) read_tokens(g, out);
    if (m.st == MLA_OK) m.st = mla_config_check(out, "", err);
    if (m.st != MLA_OK) mla_config_free(out);
    return m.st;
}
