/* FP8 KV scales: measured over a corpus, judged against a bf16 cache, written into the checkpoint.
 *
 *   mla_cal_measure   runs the model over the corpus and records the range of everything that is cached
 *   mla_cal_judge     runs it again, bf16 and FP8 caches side by side: KLD, saturation, underflow
 *   mla_cal_write     scales, side file, index and config into the model's folder
 *
 * cached byte = e4m3(x / scale), x ~ byte scale; scale = limit / 448 or up to twice that: within this octave, where large
 * nearly constant channels fall between two FP8 values decides; of 8 alignments the one is taken whose cache changes the
 * gated attention output of its own layer least, measured with the layer's own queries. A layer that is never observed, a value that is not
 * finite, a scale that does not read back are errors with the layer's name: nothing falls back to 1.0.
 * docs/format-kv-scales.md describes the files. */
#ifndef MLA_CALIBRATE_CALIBRATE_H
#define MLA_CALIBRATE_CALIBRATE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "base/str.h"
#include "io/json.h"
#include "model/model.h"
#include "runtime/runtime.h"

#define MLA_KV_SCALES_FILE "mla_kv_scales.safetensors"
#define MLA_KV_SCALES_JSON "mla_kv_scales.json"
#define MLA_KV_SCALES_FORMAT "mla-kv-scales/1"

typedef struct {
    double percentile;   /* of |x|, percent; 0 = largest absolute value */
    double headroom;     /* the limit is this times the measured value; 0 = MLA_CAL_HEADROOM; at least 1 */
    size_t row_tokens;   /* tokens of a sequence, each from position 0; 0 = 1024; the last row may be shorter */
    size_t run_tokens;   /* tokens of all sequences of one pass (streaming loads the layers once per pass); 0 = 8192 */
    size_t search_rows;  /* rows on which the alignment of scales is tried; 0 = 8 */
    bool no_search;      /* scales stay at limit / 448 */
    /* As many rows at once as pool has threads, each on one, where mla_rt_single can and the activations of so many rows stay
     * below 2 GiB; the result is the same. NULL: one after the other. */
    mla_pool *pool;
    const char *keep;    /* file that holds the ranges after every pass, or NULL; a run that finds it goes on from there */
    unsigned char keep_key[32]; /* digest of all that decides them: a file with another key is refused */
    mla_log *log;
} mla_cal_opts;
/* Unseen text goes beyond a corpus. In a float format room above costs nothing but subnormals far below. */
#define MLA_CAL_HEADROOM 1.5

typedef struct { /* one part of what a layer caches */
    const char *name;            /* "keys", "values", "latent", "rotary keys"; NULL: the layer has no second part */
    double amax, sum2;           /* over all values */
    double percentile;           /* |x| at opts.percentile, upper edge of its bin (1/32 octave); 0 when not asked */
    double bound;                /* analytic: sqrt(d) max|gain| of QK-normed keys; 0: there is none */
    uint64_t n;                  /* values observed */
    uint64_t *hist;              /* counts by the upper 13 bits of |x|; NULL without percentile */
    float base;                  /* limit / 448 */
    double error[8];             /* change of the attention output at base 2^(j/8): sum of squares; 0 when not tried */
    float scale;                 /* rounded to the dtype it is stored in */
    bool wide;                   /* stays bf16 in the cache that is judged: nothing is counted */
    uint64_t judged, saturated, underflowed; /* values of the second pass: beyond 448 scale; not zero, stored as zero */
} mla_cal_part;

typedef struct {
    size_t layer;                /* as the model counts; MLA_MTP(j) for the MTP head */
    mla_cal_part k, v;           /* as in mla_kv_scale */
} mla_cal_layer;

typedef struct { /* FP8 against bf16 cache; KLD(bf16 || FP8) in nats */
    size_t positions, agree;     /* equal argmax */
    double kld_mean, kld_p99, kld_max;
} mla_cal_verdict;

typedef struct {
    mla_cal_opts o;
    mla_cal_layer *layer;        /* every layer that caches, trunk first */
    size_t n;
    size_t tokens, rows;         /* of the measuring corpus */
    unsigned char corpus_sha256[32];
    bool has_corpus_sha256;      /* set by the caller with corpus_sha256: recorded in the files */
    bool keys16;                 /* rows of two element types (mla_rt_keys16): recorded, the scales are the same */
    bool retrofit;               /* latent names instead of key and value names */
    mla_dtype scale_dtype;       /* of the stored scales */
    mla_cal_verdict verdict;     /* positions 0: not judged */
} mla_cal;

/* How GQA scales are spelled (formats page, section 5). A retrofit has names of its own in any case. */
typedef enum {
    MLA_CAL_CT,       /* self_attn.k_scale, [1] of the model's dtype, kv_cache_scheme of compressed-tensors */
    MLA_CAL_MODELOPT  /* self_attn.k_proj.k_scale, [] F32, kv_cache_quant_algo FP8 */
} mla_cal_spelling;
bool mla_cal_spelling_parse(const char *name, mla_cal_spelling *out); /* "compressed-tensors", "modelopt" */
/* The spelling a model asks for: its own quantization method's, else compressed-tensors. */
mla_cal_spelling mla_cal_spelling_of(const mla_config *c);

/* For whom scales are written: decides the spelling and files beside the weights. An engine's own renaming, replayed over the
 * result, is verify/folder/consumers.h. */
typedef enum {
    MLA_CAL_FOR_SELF,    /* "mla-toolkit": the model's own spelling */
    MLA_CAL_FOR_VLLM,    /* "vllm": 0.33 and later */
    MLA_CAL_FOR_REMAP,   /* "vllm-remap": before 0.33, models with a load_weights of their own */
    MLA_CAL_FOR_SGLANG,  /* "sglang": and kv_cache_scales.json for --quantization-param-path */
    MLA_CAL_FOR_TRTLLM   /* "tensorrt-llm": and hf_quant_config.json */
} mla_cal_consumer;
#define MLA_SGLANG_SCALES "kv_cache_scales.json"
bool mla_cal_consumer_parse(const char *name, mla_cal_consumer *out);
mla_cal_spelling mla_cal_consumer_spelling(mla_cal_consumer k, const mla_config *c);
/* Writes the consumer's file into the folder of m, beside what mla_cal_write wrote; nothing for the first three. */
MLA_CHECKED mla_status mla_cal_side_files(const mla_cal *c, const mla_model *m, mla_cal_consumer k, mla_err *err);

/* rt: opened with a bf16 (or f32) cache, with the MTP head when its cache is to be calibrated. ids (n): whole corpus.
 * Fills *out, scales chosen (rounded for `s`); mla_cal_free in every case. Refused: no tokens, a layer with all values
 * zero or never observed, non-finite values (layer, part, row and token named), keys beyond their analytic bound. */
MLA_CHECKED mla_status mla_cal_measure(mla_cal *out, mla_rt *rt, const int32_t *ids, size_t n, mla_cal_spelling s, const mla_cal_opts *o,
                                       mla_err *err);
void mla_cal_free(mla_cal *c);
/* Both caches over ids (n), rows as in measuring. Sets c->verdict and the counts of every part. */
MLA_CHECKED mla_status mla_cal_judge(mla_cal *c, mla_rt *rt, const int32_t *ids, size_t n, mla_err *err);
/* Puts the scales of c into a runtime. */
MLA_CHECKED mla_status mla_cal_apply(const mla_cal *c, mla_rt *rt, mla_err *err);

/* Writes scales file, side file, index and config.json into the folder of `m`, each whole or not at all and in an order
 * that leaves a valid checkpoint at any moment; then opens the folder again and compares every scale with what was
 * meant. Scales of an earlier run are replaced; scales in another file are refused by name. GGUF is refused.
 * The receipt is the caller's. */
MLA_CHECKED mla_status mla_cal_write(const mla_cal *c, const mla_model *m, mla_cal_spelling s, mla_err *err);

/* One line per layer and part, then the verdict. */
void mla_cal_text(const mla_cal *c, mla_str *out);
/* The side file's content as a new document. */
MLA_CHECKED mla_status mla_cal_json(mla_json **doc, const mla_cal *c, mla_err *err);
/* "layer 3", "MTP layer 0"; buf of 32 bytes. */
const char *mla_cal_layer_text(size_t layer, char *buf);
#endif
