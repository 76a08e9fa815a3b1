/* The backend's attention with bf16 products: queries and cached heads are gathered into dense bf16 rows of 256, then the
 * prefill kernel runs. Gathering costs O(S) a call, attention O(T S). */
#include "cuda/attn.cuh"
#include "cuda/be.cuh"
#include "cuda/prefill.cuh"

/* Row (token, head) = [a (wa) | b (wb) | zeros], bf16; part x has heads_x heads, shared evenly; a over its divisor where
 * it has one. One thread per pair. */
struct GatherPart {
    AttnView v;
    int heads, width;
};
static __global__ void gather_heads(__nv_bfloat162 *dst, GatherPart a, GatherPart b, AttnView div, int divh, size_t tokens, int heads)
{
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, row = i / (PREFILL_D / 2), s = row / (size_t)heads;
    const int e = (int)(i % (PREFILL_D / 2)) * 2, h = (int)(row % (size_t)heads);
    if (s >= tokens) return;
    float x[2];
    for (int k = 0; k < 2; k++) {
        const int at = e + k;
        x[k] = at < a.width             ? view_value(a.v, view_row(a.v, 0, (long long)s, (int)((long long)h * a.heads / heads)) + at)
               : at < a.width + b.width ? view_value(b.v, view_row(b.v, 0, (long long)s, (int)((long long)h * b.heads / heads)) + at - a.width)
                                        : 0.f;
        if (divh && at < a.width) x[k] *= view_inverse(div, view_row(div, 0, (long long)s, (int)((long long)h * divh / heads)));
    }
    dst[i] = __floats2bfloat162_rn(x[0], x[1]);
}

/* Whether the fast kernel serves these shapes: no observation (that needs the fp32 kernel's own logits). */
bool attn_bf16_fits(const mla_attn_args *a)
{
    const size_t k2h = a->q2 ? a->k2h : a->kh, dk2 = a->q2 ? a->dk2 : 0;
    return a->bf16 && !a->p2 && !a->probs && a->dk + dk2 <= PREFILL_D && a->dv <= PREFILL_D && a->dv % 2 == 0 && a->ldo % 2 == 0 &&
           (uintptr_t)a->o % 8 == 0 && (k2h % a->kh == 0 || a->kh % k2h == 0) && a->pos0 + a->T < ((size_t)1 << 30) && prefill_here() &&
           (!a->divh || (!a->qb && a->kh % a->divh == 0)); /* keys are divided */
}

/* p: the call's device views; scratch: attn_bf16_bytes. */
mla_status attn_bf16(mla_cuda *c, const mla_attn_args *a, const AttnP *p, char *scratch, mla_err *err)
{
    const size_t S = a->pos0 + a->T, kk = a->q2 && a->k2h > a->kh ? a->k2h : a->kh, row = PREFILL_D * 2;
    __nv_bfloat162 *q = (__nv_bfloat162 *)scratch, *k = (__nv_bfloat162 *)(scratch + a->T * a->H * row), *v = (__nv_bfloat162 *)((char *)k + S * kk * row);
    auto rows = [](const DecodeRows &r) { return AttnView{r.p, NULL, 0, r.t, 0, r.h, 1, MLA_F32, 1.f}; };
    const int none = 1, dk2 = p->dk2;
    auto gather = [&](__nv_bfloat162 *dst, const GatherPart &x, const GatherPart &y, size_t tokens, size_t heads, int divh = 0) {
        gather_heads<<<grid_of(tokens * heads * (PREFILL_D / 2), 256), 256, 0, c->stream>>>(dst, x, y, p->div, divh, tokens, (int)heads);
    };
    gather(q, {rows(p->q), p->H, p->dk}, {rows(p->q2), dk2 ? p->H : none, dk2}, a->T, a->H);
    gather(k, {p->k, p->kh, p->dk}, {p->k2, dk2 ? p->k2h : none, dk2}, S, kk, p->divh);
    gather(v, {p->v, p->vh, p->dv}, {p->v, none, 0}, S, a->vh);
    mla_status st = launched("attention", err);
    if (st) return st;
    const PrefillP f = {(const __nv_bfloat16 *)q, (const __nv_bfloat16 *)k, (const __nv_bfloat16 *)v, f32p(a->o), NULL, a->T, a->pos0, a->H, kk, a->vh,
                        a->dv, a->ldo, a->scale};
    return prefill_run(&f, c->stream, err);
}

/* Device scratch of attn_bf16, bytes. */
size_t attn_bf16_bytes(const mla_attn_args *a)
{
    const size_t S = a->pos0 + a->T, kk = a->q2 && a->k2h > a->kh ? a->k2h : a->kh;
    return (a->T * a->H + S * (kk + a->vh)) * PREFILL_D * 2;
}
