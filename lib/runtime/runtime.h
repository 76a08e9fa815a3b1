/* The built-in inference runtime: a model bound to a backend, sequences with their caches and states, and forward
 * passes in chunks. Decode of a retrofit is absorbed MLA, prefill expands the latent; docs/runtime.md says when.
 *
 * One code path serves prefill, decode and statistics: mla_rt_run advances several sequences layer by layer, so that
 * in streaming mode each layer's weights are loaded once, used by every sequence of the call, and dropped. */
#ifndef MLA_RUNTIME_RUNTIME_H
#define MLA_RUNTIME_RUNTIME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "model/model.h"
#include "model/shared.h"

typedef struct mla_rt mla_rt;
typedef struct mla_seq mla_seq;

typedef struct {
    mla_precision precision;   /* MLA_PREC_F32 = reference path */
    mla_dtype kv_dtype;        /* MLA_F32 (reference), MLA_BF16, MLA_F8_E4M3 */
    bool keys16;               /* an FP8 cache, of this runtime or of one that shares its weights, keeps rotary keys (or keys beside
                                  values) in bf16: tensor/kv_row.h. CPU only */
    size_t page_tokens;        /* 0 = 64 */
    size_t gdn_chunk;          /* 0 = recurrent everywhere; 64 = chunked form for T > 1 */
    bool stream_layers;        /* hold one layer's weights at a time; two on a device that queues, which loads one while it computes */
    bool absorb_prefill;       /* absorbed form in prefill, too (tests) */
    bool expand_decode;        /* expanded form in decode, too (tests) */
    bool mtp;                  /* load the MTP head */
    bool decode_weights;       /* hold weights decoded at the precision instead of as stored (tests, benchmarks) */
    bool plain_steps;          /* decode steps operation by operation, where the device could replay a recorded one (tests, benchmarks) */
    mla_log *log;
} mla_rt_opts;

/* Borrow model and backend. FP8 caches need scales: stored ones, or mla_rt_set_kv_scale; otherwise refused by name. */
MLA_CHECKED mla_status mla_rt_open(mla_rt **out, const mla_model *m, mla_backend *be, const mla_rt_opts *o, mla_err *err);
/* A second runtime on the same weights with caches of its own in another dtype: comparing cache formats takes no second
 * copy of the model. It has the factors of `of` and starts with its scales; factors of both are then fixed. Close it
 * before `of`. In streaming mode it loads layers by itself. */
MLA_CHECKED mla_status mla_rt_share(mla_rt **out, mla_rt *of, mla_dtype kv_dtype, mla_err *err);
/* The same with `of`'s cache dtype and one thread of its own: may run while `of`'s other single runtimes run. *out NULL without an
 * error: the device has no such thing, `of` streams its layers, or it has a codec. */
MLA_CHECKED mla_status mla_rt_single(mla_rt **out, mla_rt *of, mla_err *err);
void mla_rt_close(mla_rt *rt); /* NULL is fine; sequences and sharing runtimes first */
const mla_config *mla_rt_config(const mla_rt *rt);
const mla_model *mla_rt_model(const mla_rt *rt);
bool mla_rt_has_mtp(const mla_rt *rt);
/* Layout of a layer's factors now: stored or set; MLA_LAYOUT_NONE when it caches keys and values (or is no attention). */
mla_layout mla_rt_layout(const mla_rt *rt, size_t layer);

/* Replaces (or removes, f == NULL) the factors of a layer without touching the model: probes and searches.
 * The factors are copied; the layer's KV scale is forgotten. Not allowed while sequences are open. */
MLA_CHECKED mla_status mla_rt_set_factors(mla_rt *rt, size_t layer, const mla_factors *f, mla_err *err);
/* The same with factors of the shared-rotary layout (model/shared.h). */
MLA_CHECKED mla_status mla_rt_set_shared(mla_rt *rt, size_t layer, const mla_shared *s, mla_err *err);
MLA_CHECKED mla_status mla_rt_set_kv_scale(mla_rt *rt, size_t layer, mla_kv_scale s, mla_err *err);
/* KV bytes per token over all layers (the MTP head's too when opened with it), with the current factors and dtype. */
size_t mla_rt_kv_bytes_per_token(const mla_rt *rt);
bool mla_rt_keys16(const mla_rt *rt);
size_t mla_rt_peak_bytes(const mla_rt *rt); /* device bytes held at most, weights included */

/* Rows about to be cached: one part of one layer, copied to the host, dense. */
typedef struct {
    size_t layer;             /* MLA_MTP(j) for the head */
    size_t part;              /* 0: keys or latents, 1: values or rotary keys, as in mla_kv_scale */
    size_t rows, width, head; /* head: values of one KV head, or of one latent */
    float *x;                 /* (rows, width) */
} mla_kv_rows;
typedef mla_status (*mla_kv_codec_fn)(void *ctx, const mla_kv_rows *r, mla_err *err);
/* What fn leaves in x is cached instead, in the runtime's cache dtype: any cache format as quantize-dequantize, without a
 * kernel of its own. A reference path: every row goes through host memory. A row must not depend on others of a call,
 * which may bring any number of them. Divisors of layout P do not pass. MLA_TAP_ATTN then shows coded keys and values.
 * NULL: as given. Runtimes that share weights have each their own. */
void mla_rt_set_codec(mla_rt *rt, mla_kv_codec_fn fn, void *ctx);

/* max_tokens also settles kinds of RoPE that depend on the length (dynamic, longrope), whatever the chunks. */
MLA_CHECKED mla_status mla_seq_new(mla_seq **out, mla_rt *rt, size_t max_tokens, mla_err *err);
/* A sequence that goes on from where `src` stands (prefix reuse; a way back before drafted tokens are verified). Full
 * pages are shared, the rest is copied; both then live on their own. max_tokens as in mla_seq_new, at least src's length;
 * with RoPE that depends on the length it must equal src's. */
MLA_CHECKED mla_status mla_seq_fork(mla_seq **out, const mla_seq *src, size_t max_tokens, mla_err *err);
void mla_seq_free(mla_seq *s); /* NULL is fine */
size_t mla_seq_len(const mla_seq *s);
void mla_seq_reset(mla_seq *s); /* length 0, states zero */

/* Observation: called on the host thread with device memory, f32 rows. Which points fire: see names. */
typedef enum {
    MLA_TAP_EMBED,      /* (T, D) */
    MLA_TAP_MIXER,      /* (T, D) attention or delta-net output after its output projection */
    MLA_TAP_MLP,        /* (T, D) */
    MLA_TAP_LAYER,      /* (T, D) residual stream after the layer */
    MLA_TAP_Q_NORM,     /* (T, H*d) after q_norm gain, before rotation */
    MLA_TAP_K_NORM,     /* (T, G*d) after k_norm gain, before rotation */
    MLA_TAP_ATTN,       /* mla_tap.attn is filled: everything the statistics need */
    MLA_TAP_LATENT,     /* (T, groups*r) what is cached as latent, before rounding */
    MLA_TAP_K_ROPE,     /* (T, G*rot in layout N | G*d) rotated keys as cached */
    MLA_TAP_V,          /* (T, G*d) */
    MLA_TAP_NORM,       /* (T, D) after the final norm */
    MLA_TAP_MTP_OUT     /* (T, D) MTP head after mtp.norm */
} mla_tap_point;

typedef struct mla_tap_attn { /* one full-attention layer on one chunk; device f32, dense rows unless a stride is given */
    mla_mem *x;         /* (T, D) the layer's input after its norm */
    mla_mem *q, *q_rot; /* (T, H, d) after norm and gain, before / after RoPE */
    mla_mem *k, *k_rot; /* (T, G, d) likewise */
    mla_mem *k_pre;     /* (T, G, d) before the norm; k without norms */
    mla_mem *v;         /* (T, G, d) */
    mla_mem *gate;      /* (T, H, d) pre-sigmoid, row stride gate_ld, head stride gate_h; NULL when ungated */
    size_t gate_ld, gate_h;
    mla_mem *o;         /* (T, H, d) attention output before gate and o_proj */
    size_t pos0;
    /* o2 (T, H, d), dense: what o would be with an FP8 cache of scales s. Chunks from position 0 only. */
    mla_status (*with_fp8)(const struct mla_tap_attn *a, mla_kv_scale s, mla_mem *o2, mla_err *err);
    const void *self;    /* the runtime's own */
} mla_tap_attn;

typedef struct {
    mla_tap_point point;
    size_t layer, seq;   /* layer index (MLA_MTP(j) for the head); index of the job in this run */
    mla_mem *data;       /* (rows, width) */
    size_t rows, width, ld;
    const mla_tap_attn *attn;
    mla_backend *be;
} mla_tap;
typedef mla_status (*mla_tap_fn)(void *ctx, const mla_tap *t, mla_err *err);

/* One sequence's part of a run. Outputs are host memory of the caller. */
typedef struct {
    mla_seq *seq;
    const int32_t *ids;      /* (T), or NULL with embeds */
    const float *embeds;     /* (T, D) host */
    const int32_t *pos3;     /* (3, T) T,H,W positions, or NULL: consecutive from the sequence's next position */
    size_t T;
    size_t logits_from;      /* rows [logits_from, T) get logits; T = none */
    float *logits;           /* (T - logits_from, V) */
    float *hidden;           /* (T, D) after the final norm, or NULL */
} mla_job;

/* Advances all jobs by their chunks. tap may be NULL. On error the sequences are unusable (reset them). */
MLA_CHECKED mla_status mla_rt_run(mla_rt *rt, mla_job *jobs, size_t n, mla_tap_fn tap, void *tap_ctx, mla_err *err);

/* Rows of logits may be many (T x V): a sink receives them in blocks instead of job.logits when set.
 * rows are job-relative token indices [row0, row0+n). */
typedef mla_status (*mla_logits_fn)(void *ctx, size_t job, size_t row0, size_t n, const float *logits, mla_err *err);
MLA_CHECKED mla_status mla_rt_run_sink(mla_rt *rt, mla_job *jobs, size_t n, mla_tap_fn tap, mla_logits_fn sink, void *ctx, mla_err *err);

/* MTP head over T tokens: hidden (T, D) after the trunk's final norm at positions p, next_ids (T) the tokens at p+1.
 * Writes logits (T, V) predicting p+2 and, when not NULL, its own post-norm output (T, D). Its KV cache lives in seq. */
typedef struct {
    mla_seq *seq;
    const float *hidden;     /* (T, D) */
    const int32_t *next_ids; /* (T) */
    size_t T;
    float *logits;           /* (T, V) or NULL */
    float *out;              /* (T, D) or NULL */
} mla_mtp_job;
/* The same with taps (layer MLA_MTP(0)). Entry j of the head's cache embeds trunk token j + 1 and stands at its
 * position; drafts may run past what the trunk has seen. */
MLA_CHECKED mla_status mla_rt_mtp_run(mla_rt *rt, const mla_mtp_job *job, mla_tap_fn tap, void *tap_ctx, mla_err *err);
MLA_CHECKED mla_status mla_rt_mtp(mla_rt *rt, mla_seq *seq, const float *hidden, const int32_t *next_ids, size_t T, float *logits,
                                  float *out, mla_err *err);
#endif
