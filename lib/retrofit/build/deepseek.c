/* The weights of a DeepSeek-style export, computed and written tensor by tensor. */
#include "retrofit/build/deepseek.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "linalg/gemm.h"
#include "model/writer.h"
#include "tensor/compare.h"
#include "tensor/dtype.h"

#define FILE_NAME "model.safetensors"
#define CONSTANT_LOG2 40 /* B = 2^40 */
#define BLOCK_VALUES ((size_t)1 << 20)

typedef struct {
    const mla_model *m;
    const mla_deepseek_shape *s;
    const mla_factors *f;    /* (layers) */
    mla_dtype dtype;
    mla_stw *w;
    void *packed;            /* BLOCK_VALUES of dtype */
    mla_progress prog;
} job;

static mla_status emit(job *j, const float *x, size_t n, mla_err *err)
{
    mla_status st = MLA_OK;
    size_t at, size = mla_dtype_bits(j->dtype) / 8;
    if (mla_count_nonfinite(x, n, &at)) return mla_fail(err, MLA_EFORMAT, "value %zu is not finite", at);
    for (size_t i = 0; st == MLA_OK && i < n; i += BLOCK_VALUES) {
        size_t k = n - i < BLOCK_VALUES ? n - i : BLOCK_VALUES;
        if (!mla_from_f32(j->packed, x + i, j->dtype, k)) return mla_fail(err, MLA_EINTERNAL, "conversion to %s", mla_dtype_name(j->dtype));
        st = mla_stw_write(j->w, j->packed, k * size, err);
        mla_progress_add(&j->prog, (double)k);
    }
    return st;
}

/* A norm over n values whose last is the constant B: x_i sqrt(n) / B. With gains 2^-e for B and B 2^-e for the rest, the next
 * matrix multiplies by fix = 2^e / sqrt(n), between 0.7 and 1.5, and everything is as if there were no norm. */
static double norm_fix(size_t n, int *e)
{
    *e = (int)lround(0.5 * log2((double)n));
    return ldexp(1, *e) / sqrt((double)n);
}

static mla_status norm_gains(job *j, size_t n, mla_err *err)
{
    int e;
    float *g = mla_alloc(n, 1, sizeof *g);
    if (!g) return mla_fail(err, MLA_ENOMEM, "norm of %zu", n);
    (void)norm_fix(n, &e);
    for (size_t i = 0; i < n; i++) g[i] = ldexpf(1, (i + 1 < n ? CONSTANT_LOG2 : 0) - e);
    mla_status st = emit(j, g, n, err);
    mla_free(g);
    return st;
}

static mla_status copy(job *j, mla_wkind k, size_t layer, mla_err *err)
{
    mla_mat m;
    mla_status st = mla_model_mat(j->m, k, layer, &m, err);
    if (st != MLA_OK) return st;
    size_t rows = BLOCK_VALUES / m.in ? BLOCK_VALUES / m.in : 1;
    if (rows > m.out) rows = m.out;
    float *x = mla_alloc_raw(rows, m.in, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "%zu rows of %zu", rows, m.in);
    for (size_t r = 0; st == MLA_OK && r < m.out; r += rows) {
        size_t n = m.out - r < rows ? m.out - r : rows;
        st = mla_mat_rows(&m, r, n, x, err);
        if (st == MLA_OK) st = emit(j, x, n * m.in, err);
    }
    mla_free(x);
    return st;
}

/* Rows [row0, row0 + n) of a projection and, in column `in`, its bias (0 without one): (n, in + 1). */
static mla_status affine(double **out, const job *j, mla_wkind k, mla_wkind bias, size_t layer, size_t row0, size_t n, mla_err *err)
{
    mla_mat m;
    float *b = NULL;
    *out = NULL;
    mla_status st = mla_model_mat(j->m, k, layer, &m, err);
    if (st == MLA_OK && mla_model_has(j->m, bias, layer)) st = mla_model_vec(j->m, bias, layer, m.out, &b, err);
    if (st != MLA_OK) return st;
    float *x = mla_alloc_raw(n, m.in, sizeof *x);
    double *y = mla_alloc_raw(n, m.in + 1, sizeof *y);
    if (!x || !y) st = mla_fail(err, MLA_ENOMEM, "%zu rows of %zu", n, m.in);
    if (st == MLA_OK) st = mla_mat_rows(&m, row0, n, x, err);
    for (size_t i = 0; st == MLA_OK && i < n; i++) {
        for (size_t c = 0; c < m.in; c++) y[i * (m.in + 1) + c] = x[i * m.in + c];
        y[i * (m.in + 1) + m.in] = b ? b[row0 + i] : 0;
    }
    mla_free(x);
    mla_free(b);
    if (st == MLA_OK) *out = y;
    else mla_free(y);
    return st;
}

static double *widen(const float *x, size_t n)
{
    double *y = mla_alloc_raw(n, 1, sizeof *y);
    for (size_t i = 0; y && i < n; i++) y[i] = x[i];
    return y;
}

/* Row `s` of the interleaved order: value of slot list position s / 2, real part first. */
static size_t paired(const mla_deepseek_shape *s, size_t row) { return s->slot[row / 2] + (row % 2 ? s->w / 2 : 0); }

/* q_proj, or q_b with the bias in the column of q_a's constant. */
static mla_status queries(job *j, size_t layer, mla_err *err)
{
    const mla_deepseek_shape *s = j->s;
    const mla_factors *f = &j->f[layer];
    size_t D = s->D, in = s->q_lora ? D + 1 : D, rows = s->d + s->w, m = s->H / s->G;
    int e;
    double scale = mla_config_attn_scale(mla_model_config(j->m)) * sqrt((double)rows) * (s->q_lora ? norm_fix(s->q_lora, &e) : 1);
    double *z = mla_alloc_raw(s->w, D + 1, sizeof *z);
    float *x = mla_alloc_raw(rows, in, sizeof *x);
    mla_status st = z && x ? MLA_OK : mla_fail(err, MLA_ENOMEM, "queries of %zu dims", rows);
    for (size_t h = 0; st == MLA_OK && h < s->H; h++) {
        double *W, *R = widen(f->Rq + h / m * s->w * s->d, s->w * s->d);
        st = affine(&W, j, MLA_W_Q, MLA_W_Q_BIAS, layer, h * s->d, s->d, err);
        if (st == MLA_OK && !R) st = mla_fail(err, MLA_ENOMEM, "rotary query of head %zu", h);
        if (st == MLA_OK) {
            mla_dgemm(&(mla_dgemm_args){.M = s->w, .N = D + 1, .K = s->d, .alpha = 1, .a = R, .lda = s->d, .b = W, .ldb = D + 1, .c = z, .ldc = D + 1});
            for (size_t r = 0; r < rows; r++) {
                const double *from = r < s->d ? W + r * (D + 1) : z + paired(s, r - s->d) * (D + 1);
                for (size_t c = 0; c < in; c++) x[r * in + c] = (float)(scale * from[c]);
            }
            st = emit(j, x, rows * in, err);
        }
        mla_free(W);
        mla_free(R);
    }
    mla_free(z);
    mla_free(x);
    return st;
}

/* [1; 0], row by row. */
static mla_status query_identity(job *j, mla_err *err)
{
    float *x = mla_alloc(j->s->D, 1, sizeof *x);
    mla_status st = x ? MLA_OK : mla_fail(err, MLA_ENOMEM, "row of %zu", j->s->D);
    for (size_t r = 0; st == MLA_OK && r < j->s->q_lora; r++) {
        if (r) x[r - 1] = 0;
        if (r < j->s->D) x[r] = 1;
        st = emit(j, x, j->s->D, err);
    }
    mla_free(x);
    return st;
}

static mla_status bias_of_constant(job *j, size_t n, mla_err *err)
{
    float *x = mla_alloc(n, 1, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "bias of %zu", n);
    x[n - 1] = ldexpf(1, CONSTANT_LOG2);
    mla_status st = emit(j, x, n, err);
    mla_free(x);
    return st;
}

/* Latent, constant and rotary rows of kv_a, or their bias. */
static mla_status latent(job *j, size_t layer, bool bias, mla_err *err)
{
    const mla_deepseek_shape *s = j->s;
    const mla_factors *f = &j->f[layer];
    size_t D = s->D, ld = D + 1, gd = s->G * s->d, r = s->rank, rows = r + 1 + s->w;
    double *K = NULL, *V = NULL, *E = widen(f->E, r * 2 * gd), *Er = widen(f->Er, s->w * gd), *x = mla_alloc(rows, ld, sizeof *x);
    float *y = mla_alloc(bias ? rows : D, 1, sizeof *y);
    mla_status st = E && Er && x && y ? MLA_OK : mla_fail(err, MLA_ENOMEM, "latent of %zu values", rows);
    if (st == MLA_OK) st = affine(&K, j, MLA_W_K, MLA_W_K_BIAS, layer, 0, gd, err);
    if (st == MLA_OK) st = affine(&V, j, MLA_W_V, MLA_W_V_BIAS, layer, 0, gd, err);
    if (st == MLA_OK) {
        mla_dgemm_args a = {.M = r, .N = ld, .K = gd, .alpha = 1, .a = E, .lda = 2 * gd, .b = K, .ldb = ld, .c = x, .ldc = ld};
        mla_dgemm(&a);
        a.a = E + gd, a.b = V, a.beta = 1;
        mla_dgemm(&a);
        mla_dgemm(&(mla_dgemm_args){.M = s->w, .N = ld, .K = gd, .alpha = 1, .a = Er, .lda = gd, .b = K, .ldb = ld, .c = x + (r + 1) * ld, .ldc = ld});
        for (size_t i = 0; i < r; i++)
            for (size_t k = 0; k < 2 * gd; k++) x[i * ld + D] -= E[i * 2 * gd + k] * f->mu[k];
        x[r * ld + D] = ldexp(1, CONSTANT_LOG2);
    }
    for (size_t i = 0; st == MLA_OK && i < rows; i++) {
        const double *from = x + (i <= r ? i : r + 1 + paired(s, i - r - 1)) * ld;
        if (bias) y[i] = (float)from[D];
        else {
            for (size_t c = 0; c < D; c++) y[c] = (float)from[c];
            st = emit(j, y, D, err);
        }
    }
    if (st == MLA_OK && bias) st = emit(j, y, rows, err);
    double *const all[] = {K, V, E, Er, x};
    for (size_t i = 0; i < 5; i++) mla_free(all[i]);
    mla_free(y);
    return st;
}

static mla_status expansion(job *j, size_t layer, mla_err *err)
{
    const mla_deepseek_shape *s = j->s;
    const mla_factors *f = &j->f[layer];
    size_t r = s->rank, gd = s->G * s->d, m = s->H / s->G;
    int e;
    double fix = norm_fix(r + 1, &e);
    float *x = mla_alloc_raw(2 * s->d, r + 1, sizeof *x);
    mla_status st = x ? MLA_OK : mla_fail(err, MLA_ENOMEM, "heads of %zu dims", s->d);
    for (size_t h = 0; st == MLA_OK && h < s->H; h++) {
        for (size_t i = 0; i < 2 * s->d; i++) {
            bool value = i >= s->d;
            size_t v = h / m * s->d + i - s->d; /* of the values, when it is one */
            const float *from = f->D + (value ? s->H * s->d + v : h * s->d + i) * r;
            for (size_t k = 0; k < r; k++) x[i * (r + 1) + k] = (float)(fix * from[k]);
            x[i * (r + 1) + r] = value ? (float)(fix * f->mu[gd + v]) : 0;
        }
        st = emit(j, x, 2 * s->d * (r + 1), err);
    }
    mla_free(x);
    return st;
}

static mla_status output_bias(job *j, size_t layer, mla_err *err)
{
    if (mla_model_has(j->m, MLA_W_O_BIAS, layer)) return copy(j, MLA_W_O_BIAS, layer, err);
    float *x = mla_alloc(j->s->D, 1, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "bias of %zu", j->s->D);
    mla_status st = emit(j, x, j->s->D, err);
    mla_free(x);
    return st;
}

typedef enum { COPY, QUERY, Q_ONE, Q_ONE_BIAS, Q_NORM, LATENT, LATENT_BIAS, KV_NORM, EXPAND, O_BIAS } maker;

static const struct {
    const char *name; /* after "model.layers.N."; a leading '/': alone */
    maker make;
    mla_wkind from;
    int lora;         /* 1: only with q_a, -1: only without */
} TENSOR[] = {
    {"/model.embed_tokens.weight", COPY, MLA_W_EMBED, 0},
    {"/model.norm.weight", COPY, MLA_W_FINAL_NORM, 0},
    {"/lm_head.weight", COPY, MLA_W_LM_HEAD, 0},
    {"input_layernorm.weight", COPY, MLA_W_INPUT_NORM, 0},
    {"post_attention_layernorm.weight", COPY, MLA_W_POST_NORM, 0},
    {"mlp.gate_proj.weight", COPY, MLA_W_GATE, 0},
    {"mlp.up_proj.weight", COPY, MLA_W_UP, 0},
    {"mlp.down_proj.weight", COPY, MLA_W_DOWN, 0},
    {"self_attn.q_proj.weight", QUERY, MLA_W_N, -1},
    {"self_attn.q_a_proj.weight", Q_ONE, MLA_W_N, 1},
    {"self_attn.q_a_proj.bias", Q_ONE_BIAS, MLA_W_N, 1},
    {"self_attn.q_a_layernorm.weight", Q_NORM, MLA_W_N, 1},
    {"self_attn.q_b_proj.weight", QUERY, MLA_W_N, 1},
    {"self_attn.kv_a_proj_with_mqa.weight", LATENT, MLA_W_N, 0},
    {"self_attn.kv_a_proj_with_mqa.bias", LATENT_BIAS, MLA_W_N, 0},
    {"self_attn.kv_a_layernorm.weight", KV_NORM, MLA_W_N, 0},
    {"self_attn.kv_b_proj.weight", EXPAND, MLA_W_N, 0},
    {"self_attn.o_proj.weight", COPY, MLA_W_O, 0},
    {"self_attn.o_proj.bias", O_BIAS, MLA_W_N, 0},
};

static bool has(const job *j, size_t k)
{
    if (TENSOR[k].from == MLA_W_LM_HEAD && mla_model_config(j->m)->tied) return false;
    return TENSOR[k].lora == 0 || (TENSOR[k].lora > 0) == (j->s->q_lora > 0);
}

static mla_status shape_of(const job *j, size_t k, size_t layer, size_t *nd, size_t shape[2], mla_err *err)
{
    const mla_deepseek_shape *s = j->s;
    const size_t kv = s->rank + 1 + s->w, q = s->H * (s->d + s->w);
    mla_mat m;
    *nd = 2;
    switch (TENSOR[k].make) {
    case COPY: {
        mla_status st = mla_model_mat(j->m, TENSOR[k].from, layer, &m, err);
        if (st != MLA_OK) return st;
        bool norm = strstr(TENSOR[k].name, "norm") != NULL;
        *nd = norm ? 1 : 2;
        shape[0] = norm ? m.in : m.out, shape[1] = m.in;
        break;
    }
    case QUERY: shape[0] = q, shape[1] = s->q_lora ? s->q_lora : s->D; break;
    case Q_ONE: shape[0] = s->q_lora, shape[1] = s->D; break;
    case LATENT: shape[0] = kv, shape[1] = s->D; break;
    case EXPAND: shape[0] = 2 * s->H * s->d, shape[1] = s->rank + 1; break;
    case Q_ONE_BIAS: case Q_NORM: *nd = 1, shape[0] = s->q_lora; break;
    case LATENT_BIAS: *nd = 1, shape[0] = kv; break;
    case KV_NORM: *nd = 1, shape[0] = s->rank + 1; break;
    case O_BIAS: *nd = 1, shape[0] = s->D; break;
    }
    return MLA_OK;
}

static mla_status make(job *j, size_t k, size_t layer, mla_err *err)
{
    switch (TENSOR[k].make) {
    case COPY: return copy(j, TENSOR[k].from, layer, err);
    case QUERY: return queries(j, layer, err);
    case Q_ONE: return query_identity(j, err);
    case Q_ONE_BIAS: return bias_of_constant(j, j->s->q_lora, err);
    case Q_NORM: return norm_gains(j, j->s->q_lora, err);
    case LATENT: return latent(j, layer, false, err);
    case LATENT_BIAS: return latent(j, layer, true, err);
    case KV_NORM: return norm_gains(j, j->s->rank + 1, err);
    case EXPAND: return expansion(j, layer, err);
    case O_BIAS: return output_bias(j, layer, err);
    }
    return mla_fail(err, MLA_EINTERNAL, "tensor %zu", k);
}

static void name_of(mla_str *out, size_t k, size_t layer)
{
    mla_str_clear(out);
    if (TENSOR[k].name[0] == '/') mla_str_put(out, TENSOR[k].name + 1);
    else mla_str_printf(out, "model.layers.%zu.%s", layer, TENSOR[k].name);
}

/* Declares every tensor, or writes the one of this name (NULL: declare). */
static mla_status each(job *j, const char *wanted, double *values, mla_err *err)
{
    size_t layers = mla_model_config(j->m)->layers, nd, shape[2];
    mla_str name = MLA_STR_MAX(256);
    mla_status st = MLA_OK;
    bool done = false;
    for (size_t l = 0; st == MLA_OK && !done && l < layers; l++)
        for (size_t k = 0; st == MLA_OK && !done && k < sizeof TENSOR / sizeof *TENSOR; k++) {
            if ((TENSOR[k].name[0] == '/' && l) || !has(j, k)) continue;
            name_of(&name, k, l);
            if (!mla_str_ok(&name)) st = mla_fail(err, MLA_ENOMEM, "tensor name");
            else if (!wanted) {
                st = shape_of(j, k, l, &nd, shape, err);
                if (st == MLA_OK) st = mla_stw_declare(j->w, mla_str_c(&name), j->dtype, nd, shape, err);
                *values += (double)shape[0] * (double)(nd == 2 ? shape[1] : 1);
            } else if (!strcmp(mla_str_c(&name), wanted)) {
                done = true;
                if ((st = make(j, k, l, err)) != MLA_OK) st = mla_wrap(err, "%s", wanted);
            }
        }
    mla_str_free(&name);
    if (st == MLA_OK && wanted && !done) return mla_fail(err, MLA_EINTERNAL, "%s: no maker", wanted);
    return st;
}

static mla_status weights(job *j, const char *dir, mla_log *log, mla_err *err)
{
    double values = 0;
    char *path = mla_path_join(dir, FILE_NAME);
    j->packed = mla_alloc_raw(BLOCK_VALUES, mla_dtype_bits(j->dtype) / 8, 1);
    mla_status st = path && j->packed ? mla_stw_new(&j->w, path, err) : mla_fail(err, MLA_ENOMEM, "weights");
    if (st == MLA_OK) st = each(j, NULL, &values, err);
    if (st == MLA_OK) st = mla_stw_begin(j->w, err);
    if (st == MLA_OK) {
        j->prog = mla_progress_begin(log, "weights", values, "values");
        for (size_t i = 0; st == MLA_OK && i < mla_stw_count(j->w); i++) st = each(j, mla_stw_at(j->w, i)->name, NULL, err);
        mla_progress_end(&j->prog);
    }
    if (st == MLA_OK) {
        st = mla_stw_commit(j->w, NULL, err);
        j->w = NULL;
    }
    mla_stw_abort(j->w);
    mla_free(j->packed);
    mla_free(path);
    return st;
}

mla_status mla_deepseek_write(const char *dir, const mla_model *base, const mla_factorization *f, mla_dtype dtype, mla_log *log, mla_err *err)
{
    static const char *const WEIGHTS[] = {FILE_NAME};
    mla_deepseek_shape s = {0};
    mla_placed placed;
    mla_json *doc = NULL;
    char *path = mla_path_join(dir, "config.json");
    mla_writer_opts wo = {.log = log};
    mla_status st = path ? mla_deepseek_shape_of(&s, base, f, err) : mla_fail(err, MLA_ENOMEM, "path");
    job j = {.m = base, .s = &s, .f = f->factors, .dtype = dtype};
    if (st == MLA_OK) st = mla_writer_place_texts(base, dir, &wo, &placed, err);
    if (st == MLA_OK) st = weights(&j, dir, log, err);
    if (st == MLA_OK) st = mla_writer_index_of(dir, WEIGHTS, 1, err);
    if (st == MLA_OK) st = mla_deepseek_config(&doc, base, &s, dtype, err);
    if (st == MLA_OK) st = mla_json_write(path, mla_json_root(doc), err);
    mla_json_free(doc);
    mla_deepseek_shape_free(&s);
    mla_free(path);
    return st;
}
