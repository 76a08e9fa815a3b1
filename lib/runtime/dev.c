/* Device memory and weights of the runtime, every byte counted so that the peak is known. */
#include "base/alloc.h"
#include "base/ckd.h"
#include "runtime/rt.h"

static void count(mla_rt *rt, size_t bytes)
{
    rt->bytes += bytes;
    if (rt->bytes > rt->peak) rt->peak = rt->bytes;
}

mla_status rt_buf_new(mla_rt *rt, rt_buf *b, size_t n, size_t size, mla_err *err)
{
    size_t bytes;
    *b = (rt_buf){0};
    if (!mla_mul(&bytes, n, size)) return mla_fail(err, MLA_ENOMEM, "%zu x %zu bytes do not fit the address space", n, size);
    if (!bytes) bytes = 4;
    RT_TRY(RT_OP(rt, alloc, &b->p, bytes, err));
    b->bytes = bytes;
    count(rt, bytes);
    return MLA_OK;
}

void rt_buf_free(mla_rt *rt, rt_buf *b)
{
    if (b->p) RT_OP(rt, free, b->p), rt->moved++;
    rt->bytes -= b->bytes;
    *b = (rt_buf){0};
}

mla_status rt_scratch(mla_rt *rt, rt_scratch_id id, size_t rows, size_t width, mla_mem **out, mla_err *err)
{
    rt_buf *b = &rt->scratch[id];
    size_t n;
    if (!mla_mul(&n, rows, width) || n > SIZE_MAX / 4)
        return mla_fail(err, MLA_ENOMEM, "%zu x %zu activations do not fit the address space", rows, width);
    if (b->bytes < n * 4 || !b->p) {
        rt_buf_free(rt, b);
        RT_TRY(rt_buf_new(rt, b, n, 4, err));
    }
    *out = b->p;
    return MLA_OK;
}

mla_status rt_upload(mla_rt *rt, rt_buf *b, const float *v, size_t n, mla_err *err)
{
    RT_TRY(rt_buf_new(rt, b, n, 4, err));
    return n ? RT_OP(rt, upload, b->p, v, n * 4, err) : MLA_OK;
}

mla_status rt_vec(mla_rt *rt, rt_buf *b, mla_wkind k, size_t layer, size_t len, mla_err *err)
{
    float *v = NULL;
    RT_TRY(mla_model_vec(rt->model, k, layer, len, &v, err));
    mla_status st = rt_upload(rt, b, v, len, err);
    mla_free(v);
    return st;
}

mla_status rt_lin_new(mla_rt *rt, rt_lin *l, const mla_weight_desc *d, mla_err *err)
{
    *l = (rt_lin){.out = d->out, .in = d->in};
    RT_TRY(RT_OP(rt, weight_new, &l->w, d, err));
    count(rt, rt->be->ops->weight_bytes(l->w));
    return MLA_OK;
}

static mla_status mat_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    return mla_mat_rows(ctx, row0, n, dst, err);
}

/* As stored codes, or *done stays false: no such form, or a code or scale that is no number, which reading rows will name. */
static mla_status as_codes(mla_rt *rt, rt_lin *l, const mla_mat *m, mla_weight_desc *d, bool *done, mla_err *err)
{
    mla_coded c;
    bool fits;
    RT_TRY(mla_mat_coded(m, &c, &fits, err));
    if (fits && c.code == MLA_CODE_TRELLIS && m->kind == MLA_W_EMBED) fits = false;
    d->coded = fits ? &c : NULL;
    mla_status st = fits ? rt_lin_new(rt, l, d, err) : MLA_OK;
    d->coded = NULL;
    mla_coded_free(&c);
    *done = fits && st == MLA_OK;
    return st == MLA_EFORMAT ? MLA_OK : st;
}

/* Whether holding it decoded takes more memory than the stored form may. */
static bool grows(const mla_mat *m, mla_precision p)
{
    return (double)m->out * (double)m->in * (p == MLA_PREC_F32 ? 4 : 2) > 1.15 * (double)m->stored_bytes;
}

mla_status rt_lin_model(mla_rt *rt, rt_lin *l, mla_wkind k, size_t layer, mla_err *err)
{
    mla_mat m;
    bool done = false;
    RT_TRY(mla_model_mat(rt->model, k, layer, &m, err));
    mla_weight_desc d = {.out = m.out, .in = m.in, .precision = rt->o.precision, .rows = mat_rows, .ctx = &m};
    if (!rt->o.decode_weights) RT_TRY(as_codes(rt, l, &m, &d, &done, err));
    if (!done && !rt->o.decode_weights && grows(&m, d.precision)) {
        mla_mat *own = mla_alloc(1, 1, sizeof *own);
        if (!own) return mla_fail(err, MLA_ENOMEM, "a matrix of layer %zu", layer);
        *own = m;
        d.ctx = own, d.undecoded = true;
        mla_status st = rt_lin_new(rt, l, &d, err);
        l->mat = own;
        if (st != MLA_OK) rt_lin_free(rt, l);
        return st;
    }
    if (!done) RT_TRY(rt_lin_new(rt, l, &d, err));
    mla_mat_release(&m);
    return MLA_OK;
}

void rt_lin_free(mla_rt *rt, rt_lin *l)
{
    if (l->w && !l->borrowed) {
        rt->bytes -= rt->be->ops->weight_bytes(l->w);
        RT_OP(rt, weight_free, l->w);
    }
    if (!l->borrowed) mla_free(l->mat);
    rt_buf_free(rt, &l->bias);
    *l = (rt_lin){0};
}

mla_linear_job rt_job(const rt_lin *l, rt_rows y, rt_rows x, size_t T)
{
    return (mla_linear_job){l->w, {.y = y.p, .ldy = y.ld, .x = x.p, .ldx = x.ld, .T = T, .bias = l->bias.p}};
}

mla_status rt_linear(mla_rt *rt, const rt_lin *l, rt_rows y, rt_rows x, size_t T, mla_err *err)
{
    mla_linear_job j = rt_job(l, y, x, T);
    return RT_OP(rt, linear, j.w, &j.a, err);
}

mla_status rt_linear_out(mla_rt *rt, const rt_lin *l, const rt_io *io, rt_rows x, size_t T, mla_err *err)
{
    mla_linear_job j = rt_job(l, (rt_rows){io->out, l->out}, x, T);
    j.a.accumulate = io->add;
    return RT_OP(rt, linear, j.w, &j.a, err);
}
