/* Inside of the runtime: what its files share. Not for the layers above.
 *
 * Rows of all jobs of a call stand one after the other in one residual buffer, so that every linear layer sees them
 * as one matrix; only what has a state (caches, delta net, rotation) walks the pieces of a block, one per sequence.
 * Letters as in backend.h: T rows, D hidden, H query heads, G KV heads, d head dim, r latent values, S cached tokens. */
#ifndef MLA_RUNTIME_RT_H
#define MLA_RUNTIME_RT_H
#include "model/shared.h"
#include "runtime/runtime.h"
#include "tensor/kv_row.h"

#define RT_TRY(e)                         \
    do {                                  \
        mla_status rt_st_ = (e);          \
        if (rt_st_ != MLA_OK) return rt_st_; \
    } while (0)
/* One backend operation: RT_OP(rt, add, y, x, n, err). */
#define RT_OP(rt, op, ...) ((rt)->be->ops->op((rt)->be, __VA_ARGS__))

typedef struct { /* device bytes, counted against the runtime's peak */
    mla_mem *p;
    size_t bytes;
} rt_buf;

typedef struct { /* a linear layer; w == NULL: the model has none */
    mla_weight *w;
    rt_buf bias;
    size_t out, in;
    mla_mat *mat;    /* what an undecoded weight reads rows of; else NULL */
    bool borrowed;   /* w and mat belong to another rt_lin (tied embeddings) */
} rt_lin;

typedef struct { /* rows of f32, ld elements apart */
    mla_mem *p;
    size_t ld;
} rt_rows;

typedef enum { RT_GQA, RT_LATENT_N, RT_LATENT_REBUILD, RT_LATENT_P, RT_LATENT_ABSORBED, RT_LATENT_DS, RT_LATENT_SHARED, RT_GDN } rt_kind;

typedef struct { /* widths of one attention layer */
    size_t H, G, d;          /* query heads, KV heads, head dim of q and k */
    size_t dv;               /* value dim per head */
    size_t rot;              /* rotated dims */
    size_t q_rot, q_nope;    /* where the rotated / the other dims start within a head of q */
    size_t dn;               /* dims per head that the latent's keys have: d - rot (N, P, DS) or d (rebuild, SHARED, absorbed-rope) */
    size_t qd;               /* width of a head of q as attention over latents takes it: d; absorbed-rope: d + kr */
    size_t kh;               /* heads that the latent's decoders tell apart: G; DS, SHARED, absorbed-rope: H */
    size_t kr;               /* width of a cached rotary key: rot; absorbed-rope: w */
    size_t groups, r, n;     /* latents per token, values and features of each */
    size_t G2;               /* rotary keys per token beside the latent: G (N, P), 1 (DS, SHARED, absorbed-rope), 0 */
    size_t divs;             /* score divisors per token: G (P), 0 */
    float scale;
} rt_dims;

typedef struct { /* a latent's projections; a = group, g = KV head */
    rt_lin *enc;             /* (groups) E_a: (r, n) */
    rt_buf mu;               /* (groups, n) subtracted before E; empty: none */
    rt_lin *key;             /* (groups) D_K: ((kh/groups) dn, r), bias mu_K in layouts rebuild and P */
    rt_lin *key_t;           /* (kh) D_K,g transposed: (r, dn), in layout P with mu_K,g as row r; NULL in the rebuild layout */
    rt_lin *val;             /* (kh) D_V,g: (dv, r), bias mu_V */
    rt_lin rot;              /* absorbed-rope: rotated keys (G d) -> (w) */
    rt_lin *query;           /* absorbed-rope: (G) rotated query (d) -> (w) */
    rt_buf center;           /* layout P: (G) what divisors are stored relative to */
} rt_latent;

typedef struct {
    size_t index;            /* as the model counts: 0.., or MLA_MTP(0) */
    rt_kind kind;
    rt_dims dim;
    bool loaded;
    rt_buf in_norm, post_norm, q_norm, k_norm; /* gains */
    rt_lin q, k, v, o, gate, up, down;
    rt_lin gdn_qkv, gdn_z, gdn_b, gdn_a, gdn_out;
    rt_buf conv_w, a_log, dt_bias, gdn_norm;
    rt_lin ds_q_a, ds_kv_a;
    rt_buf ds_q_a_norm, ds_kv_a_norm;
    rt_lin sh_key, *sh_query; /* SHARED: rotary keys (R rot, D); per query head (R rot, rot) */
    rt_latent lat;
    mla_factors f;           /* host copy; layout NONE: the layer caches keys and values */
    mla_shared sh;           /* host copy of shared-rotary factors, instead of f; r == 0: none */
    mla_kv_scale scale;
    size_t width[MLA_KV_PARTS]; /* cached values per token of every part; 0 for the delta net */
    rt_buf cache;            /* (pool slots) rows of rt_row */
} rt_layer;

typedef enum { /* scratch buffers by what they hold; they grow and are reused by every layer */
    RT_S_X, RT_S_H, RT_S_PROJ, RT_S_Q, RT_S_QROT, RT_S_QX, RT_S_K0, RT_S_K, RT_S_KROT, RT_S_V, RT_S_O, RT_S_OUT,
    RT_S_Y, RT_S_C, RT_S_KR, RT_S_A, RT_S_OL, RT_S_XC, RT_S_XK, RT_S_XV,
    RT_S_B1, RT_S_B2, RT_S_B3, RT_S_B4, RT_S_B5, RT_S_LOGITS, RT_S_COS, RT_S_SIN, RT_S_TRIAL,
    RT_S_N
} rt_scratch_id;

typedef struct { /* pages of the KV caches: one id is a range of slots in every layer's buffer */
    size_t page_tokens, cap; /* pages there is memory for */
    size_t want;             /* most pages the open sequences may need together */
    int32_t *free_id;        /* stack of ids not in use */
    int32_t *refs;           /* (cap) block tables that name an id */
    size_t n_free, used;     /* ids below `used` were handed out at least once */
} rt_pool;

/* RT_STEP_TOKENS: up to this many tokens of a sequence count as decoding (a step, a verified draft): latents stay absorbed.
 * RT_STEP_ROWS: of a step that is recorded, all sequences together; RT_TAPES: such steps kept. */
enum { RT_STEP_TOKENS = 4, RT_STEP_ROWS = 8, RT_TAPES = 4 };

typedef struct { /* a step that is recorded once it recurs: T[i] tokens of seq[i] */
    mla_seq *seq[RT_STEP_ROWS];
    size_t T[RT_STEP_ROWS], n;
    mla_tape *tape;          /* NULL: none yet */
    size_t moved, steps;     /* the runtime's `moved` of the tape or of the last plain steps, and how many these were */
    size_t used;             /* when: the one unused for longest makes room */
} rt_tape;

struct mla_rt {
    const mla_model *model;
    const mla_config *cfg;
    mla_backend *be;
    mla_rt_opts o;
    size_t bytes, peak;      /* device bytes now and at most */
    rt_layer *layer;         /* (n_layer) trunk, then the MTP head's when opened */
    size_t n_layer, n_trunk;
    rt_lin embed, head;
    rt_buf final_norm;
    rt_lin mtp_fc;
    rt_buf mtp_embed_norm, mtp_hidden_norm, mtp_norm;
    rt_pool pool;
    size_t open_seqs;
    mla_rt *parent;          /* resident weights belong to it; NULL: they are ours */
    mla_backend *single;     /* be, when it is this runtime's own */
    size_t children;         /* runtimes that use our weights */
    rt_buf scratch[RT_S_N];
    mla_kv_codec_fn codec;   /* NULL: none */
    void *codec_ctx;
    size_t moved;            /* counts what makes a recorded step void: memory given back, scales */
    rt_tape tape[RT_TAPES];
    size_t steps;            /* of all */
};

struct mla_seq {
    mla_rt *rt;
    size_t max_tokens, len;  /* tokens of the trunk */
    size_t mtp_len;          /* tokens of the MTP head's own cache */
    int32_t next_pos;        /* position of the next token */
    bool broken;             /* a run failed half-way: only reset helps */
    bool fresh;              /* states are to be zeroed before the next run */
    int32_t *pages;          /* block table, shared by trunk and MTP head */
    size_t n_pages, cap_pages;
    int32_t *pos;            /* (cap_pos, 3) T,H,W position of every token */
    size_t cap_pos;
    double *inv_freq;        /* (rot/2), settled by max_tokens */
    rt_buf cos, sin;         /* (table rows, rot/2) of tokens 0.. */
    size_t table;            /* rows filled */
    rt_buf *conv, *state;    /* (n_layer) delta net states; empty elsewhere */
    rt_buf len_at, pages_at; /* the cursor's: len, and the block table, of which `sent` entries are there */
    size_t sent;
    mla_cursor at;
};

typedef struct { /* rows [row, row + n) of a block belong to tokens [pos, pos + n) of a sequence */
    mla_seq *seq;
    size_t job, row, n, pos;
    mla_mem *cos, *sin;      /* of these tokens */
    const mla_cursor *at;    /* a step that may be recorded: what says pos, pages and rows of the tables; NULL: none */
    bool expand;             /* expanded form of a latent's attention */
} rt_piece;

typedef struct { /* a part of the residual stream that goes through a layer at once */
    mla_mem *x;              /* (rows, D) */
    size_t rows;
    rt_piece *piece;
    size_t n;
    mla_tap_fn tap;          /* NULL: nobody looks */
    void *ctx;
} rt_block;

typedef struct { /* what a mixer or an MLP reads, and where its result goes; (rows, D) both */
    mla_mem *h;
    const mla_norm_args *norm; /* NULL: h is normed; otherwise norm writes it, which the layers that read h first must do */
    mla_mem *out;
    bool add;                /* to what is there: the residual stream */
} rt_io;

/* dev.c: device memory and weights, all counted */
MLA_CHECKED mla_status rt_buf_new(mla_rt *rt, rt_buf *b, size_t count, size_t size, mla_err *err); /* b empty before */
void rt_buf_free(mla_rt *rt, rt_buf *b);
/* Scratch of at least count f32; the content is undefined. */
MLA_CHECKED mla_status rt_scratch(mla_rt *rt, rt_scratch_id id, size_t rows, size_t width, mla_mem **out, mla_err *err);
MLA_CHECKED mla_status rt_upload(mla_rt *rt, rt_buf *b, const float *v, size_t n, mla_err *err); /* allocates b */
MLA_CHECKED mla_status rt_vec(mla_rt *rt, rt_buf *b, mla_wkind k, size_t layer, size_t len, mla_err *err);
MLA_CHECKED mla_status rt_lin_new(mla_rt *rt, rt_lin *l, const mla_weight_desc *d, mla_err *err);
MLA_CHECKED mla_status rt_lin_model(mla_rt *rt, rt_lin *l, mla_wkind k, size_t layer, mla_err *err);
void rt_lin_free(mla_rt *rt, rt_lin *l);
/* y (T, out) = x (T, in) W^T + bias */
mla_linear_job rt_job(const rt_lin *l, rt_rows y, rt_rows x, size_t T);
MLA_CHECKED mla_status rt_linear(mla_rt *rt, const rt_lin *l, rt_rows y, rt_rows x, size_t T, mla_err *err);
/* The last layer of a mixer or an MLP, to io's out. */
MLA_CHECKED mla_status rt_linear_out(mla_rt *rt, const rt_lin *l, const rt_io *io, rt_rows x, size_t T, mla_err *err);

/* weights.c, latent.c: one layer's weights in and out of the device */
MLA_CHECKED mla_status rt_layer_load(mla_rt *rt, rt_layer *l, mla_err *err);
void rt_layer_drop(mla_rt *rt, rt_layer *l);
void rt_layer_want(mla_rt *rt, const rt_layer *l); /* its stored matrices may be read ahead */
MLA_CHECKED mla_status rt_embed_load(mla_rt *rt, mla_err *err);
void rt_embed_drop(mla_rt *rt);
MLA_CHECKED mla_status rt_head_load(mla_rt *rt, mla_err *err);
void rt_head_drop(mla_rt *rt);
MLA_CHECKED mla_status rt_mtp_load(mla_rt *rt, mla_err *err);
void rt_mtp_drop(mla_rt *rt);
MLA_CHECKED mla_status rt_latent_load(mla_rt *rt, rt_layer *l, mla_err *err);
/* Key and value projections of the base, unless they are there. */
MLA_CHECKED mla_status rt_attn_kv_load(mla_rt *rt, rt_layer *l, mla_err *err);
MLA_CHECKED mla_status rt_shared_load(mla_rt *rt, rt_layer *l, mla_err *err);
MLA_CHECKED mla_status rt_ds_load(mla_rt *rt, rt_layer *l, mla_err *err);
void rt_latent_drop(mla_rt *rt, rt_layer *l);
/* Widths of layer l from the configuration and l->f. */
MLA_CHECKED mla_status rt_layer_dims(const mla_rt *rt, rt_layer *l, mla_err *err);
/* The layer with this index (MLA_MTP(0) included), or an error. */
MLA_CHECKED mla_status rt_layer_find(mla_rt *rt, size_t index, rt_layer **out, mla_err *err);
/* "layer 3" or "MTP layer 0" for messages; buf of 32 bytes. */
const char *rt_layer_text(const rt_layer *l, char *buf);

/* runtime.c: F32, BF16 and F8_E4M3 can be cached. */
MLA_CHECKED mla_status rt_check_dtype(mla_dtype t, mla_err *err);

/* pool.c */
void rt_pool_init(mla_rt *rt);
void rt_pool_drop(mla_rt *rt);           /* frees every layer's cache buffer; no sequence is open */
MLA_CHECKED mla_status rt_pool_take(mla_rt *rt, int32_t *id, mla_err *err);
void rt_pool_give(mla_rt *rt, int32_t id);  /* one block table less */
void rt_pool_share(mla_rt *rt, int32_t id); /* one more */

/* seq.c, rope.c */
MLA_CHECKED mla_status rt_seq_room(mla_seq *s, size_t pages, mla_err *err);    /* block table can hold `pages` */
MLA_CHECKED mla_status rt_seq_pages(mla_seq *s, size_t tokens, mla_err *err); /* block table covers `tokens` */
/* Positions and rotation tables of T new tokens after the first `from`; pos3 as in mla_job. */
MLA_CHECKED mla_status rt_seq_positions(mla_seq *s, const int32_t *pos3, size_t T, mla_err *err);
/* Room for `rows` rows in the host positions and both device tables; what is there is kept. */
MLA_CHECKED mla_status rt_seq_tables(mla_seq *s, size_t rows, mla_err *err);
MLA_CHECKED mla_status rt_seq_states(mla_seq *s, mla_err *err);               /* zeroes what `fresh` promises */
/* cos and sin (T, rot/2) of positions pos (T, 3), host. */
void rt_rope_rows(const mla_config *c, const double *inv_freq, const int32_t *pos, size_t T, float *cos_out, float *sin_out);

/* step.c: a decode step by cursors in device memory, so that devices that can record it once and replay it. */
bool rt_step_fits(const mla_rt *rt, const mla_job *jobs, size_t n, mla_tap_fn tap);
/* The cursor of the sequence, with the length it has after its next T tokens, uploaded. */
MLA_CHECKED mla_status rt_step_cursor(mla_seq *s, size_t T, mla_err *err);
/* All layers of the trunk on the one block of such a step. */
MLA_CHECKED mla_status rt_step_run(mla_rt *rt, rt_block *b, mla_err *err);
/* The sequence's cursor, and every recorded step that it takes part in. */
void rt_step_free(mla_seq *s);

/* layer.c and its parts: all rows of a block through one layer. */
MLA_CHECKED mla_status rt_layer_run(mla_rt *rt, rt_layer *l, rt_block *b, mla_err *err);
MLA_CHECKED mla_status rt_attn(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err);
MLA_CHECKED mla_status rt_ds(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err);
MLA_CHECKED mla_status rt_shared(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err);
MLA_CHECKED mla_status rt_gdn(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err);
MLA_CHECKED mla_status rt_mlp(mla_rt *rt, rt_layer *l, rt_block *b, const rt_io *io, mla_err *err);
/* Fires `point` for every piece with its slice of data (rows, width). */
MLA_CHECKED mla_status rt_tap(mla_rt *rt, const rt_block *b, mla_tap_point point, size_t layer, rt_rows data, size_t width, mla_err *err);
/* A token's row in layer l's cache; bytes 0: it caches nothing per token. */
mla_kv_row rt_row(const mla_rt *rt, const rt_layer *l);
/* View of a part of layer l's cached rows of sequence s, heads head_stride elements apart, with its scale in FP8. Divisors are f32 in
 * f32 caches, f16 in bf16 ones, log2 codes in FP8. */
mla_kv_view rt_view(const mla_rt *rt, const rt_layer *l, const mla_seq *s, size_t part, size_t head_stride);

/* piece.c. Turns `n` heads of every row of x, `stride` elements apart, in their first `rot` dims, each by its token's position. */
typedef struct {
    size_t n, stride, rot;
} rt_heads;
MLA_CHECKED mla_status rt_turn(mla_rt *rt, const rt_block *b, rt_rows x, rt_heads h, mla_err *err);
/* Writes piece p's rows of x, `width` values each, into its sequence's cache. */
MLA_CHECKED mla_status rt_write(mla_rt *rt, mla_kv_view to, rt_rows x, const rt_piece *p, size_t width, mla_err *err);

/* codec.c: x (r.rows, r.width), about to be cached, through the codec when there is one; r.layer and r.x are set here. */
MLA_CHECKED mla_status rt_code(mla_rt *rt, const rt_layer *l, rt_rows x, mla_kv_rows r, mla_err *err);

/* latent_attn.c: attention of one piece over what layer l caches as latent. */
typedef struct {
    rt_rows q;               /* (n, H, qd) with rotated part rotated; whole q rotated in the rebuild layout */
    rt_rows o;               /* (n, H, dv) */
    rt_rows q2;              /* (n, H, rot) rotary queries apart from q, turned; p NULL: they stand in q at q_rot */
} rt_qo;
/* y[t,h] = W[h / m] x[t,h]; heads of y and x stand yh and xh apart. */
typedef struct {
    const rt_lin *w;         /* (G) */
    rt_rows y, x;
    size_t yh, xh, G, m;
} rt_head_map;
MLA_CHECKED mla_status rt_per_head(mla_rt *rt, const rt_head_map *a, size_t T, mla_err *err);
/* Layout absorbed-rope: qx (T, H, [q | w rotary values]) from q and rotated q (T, H, d). */
MLA_CHECKED mla_status rt_absorbed_query(mla_rt *rt, const rt_layer *l, size_t T, mla_mem *q, mla_mem *q_rot, mla_mem *qx, mla_err *err);
MLA_CHECKED mla_status rt_latent_attend(mla_rt *rt, const rt_layer *l, const rt_piece *p, rt_qo qo, mla_err *err);

/* head.c: final norm, logits, hidden states of all jobs whose rows stand in x. */
MLA_CHECKED mla_status rt_finish(mla_rt *rt, mla_job *jobs, size_t n, mla_mem *x, mla_tap_fn tap, mla_logits_fn sink, void *ctx, mla_err *err);
/* Logits of rows x (rows, D), already normed, to host memory. */
MLA_CHECKED mla_status rt_logits(mla_rt *rt, mla_mem *x, size_t rows, float *logits, mla_err *err);
MLA_CHECKED mla_status rt_norm(mla_rt *rt, const rt_buf *gain, rt_rows y, rt_rows x, size_t rows, size_t d, mla_err *err);
/* Most rows that go through a layer, or the head, at once when nobody taps: as many as make products of weights fast. */
static inline size_t rt_block_rows(const mla_rt *rt) { return rt->be->ops->queues ? 8192 : 1024; }
size_t rt_logit_rows(const mla_rt *rt);
#endif
