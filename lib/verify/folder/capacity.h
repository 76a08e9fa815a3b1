/* How much cache a model needs and what fits on a GPU, from its configuration and stored bytes alone.
 *
 * budget    = GPU memory x utilisation - reserve - weights
 * sequences = budget / (context x KV bytes per token + state bytes per sequence)
 * The reserve stands for activations, CUDA graphs and the runtime's own memory; the state is that of gated delta nets
 * (f32 matrices and convolution inputs), which does not grow with the context. */
#ifndef MLA_VERIFY_CAPACITY_H
#define MLA_VERIFY_CAPACITY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/json.h"
#include "model/config.h"
#include "tensor/kv_row.h"

#define MLA_CAPACITY_SCHEMA "mla-capacity/1"
#define MLA_GPU_UTILISATION 0.94
#define MLA_GPU_RESERVE (2.0 * 1024 * 1024 * 1024)

typedef struct {
    const mla_config *cfg;
    mla_kv_type kv;       /* what the caches hold */
    double keep;          /* > 0: as if retrofitted to this fraction of the base's KV values per token */
    size_t rank;          /* > 0: as if retrofitted to this rank (latent values over all groups) per layer */
    double weight_bytes;  /* of the model as it is; factors of a what-if are added */
    bool mtp;             /* count the MTP head's own cache */
} mla_capacity_model;

typedef struct {
    double gpu_bytes, utilisation, reserve;
    size_t context;       /* tokens of one sequence */
} mla_capacity_machine;

typedef struct {
    mla_layout layout;    /* of the cache: as stored, or of the what-if */
    double kv_bytes_per_token, kv_bytes_per_sequence, state_bytes_per_sequence;
    double weight_bytes;  /* factors of a what-if included */
    double budget;        /* bytes for caches and states; 0 when the weights do not fit */
    bool fits;
    double sequences;     /* of `context` tokens; fractional */
    double tokens;        /* longest single sequence */
    double cached_tokens; /* sequences x context: slots of the pool in use */
    size_t row_values;    /* widest cached row of a layer: latent and rotary keys, or the keys of all KV heads */
    uint64_t slot_limit;  /* floor(2^31 / row_values): what 32-bit element offsets reach */
    bool slot_exceeded;   /* cached_tokens > slot_limit */
} mla_capacity;

/* floor(2^31 / row): slots that a kernel with signed 32-bit element offsets addresses. row > 0. */
uint64_t mla_slot_limit(size_t row);

/* MLA_EINVAL when the what-if makes no sense for this model (rank above the feature count, keep that leaves no latent). */
MLA_CHECKED mla_status mla_capacity_of(mla_capacity *out, const mla_capacity_model *m, const mla_capacity_machine *g, mla_err *err);

/* Parameters of the whole checkpoint (text, MTP, vision) from its configuration. MLA_EUNSUPPORTED for MoE. */
MLA_CHECKED mla_status mla_param_count(double *out, const mla_config *c, const mla_jv *config_json, mla_err *err);

/* Average stored bits per parameter of published 27B-class checkpoints of a kind, embeddings, norms, vision and MTP
 * included: "bf16" 16, "fp8" 9.07, "int4" 6.75, "exl3" 5.36. 0 for an unknown name. */
double mla_weight_bits(const char *kind);

typedef struct {
    const char *name;            /* of the model, for the report */
    mla_capacity_model model;
    mla_capacity_machine machine;
    const char *weight_source;   /* "stored", "configuration", "given", "assumed fp8" */
    double params;               /* 0: not counted */
    const double *gpus;          /* (n_gpus) further cards, bytes */
    size_t n_gpus;
} mla_capacity_query;
/* The whole document: the query's own figures, what-if scenarios beside it, further cards. */
MLA_CHECKED mla_status mla_capacity_report(mla_json **out, const mla_capacity_query *q, mla_err *err);
void mla_capacity_text(mla_str *out, const mla_jv *doc);
#endif
