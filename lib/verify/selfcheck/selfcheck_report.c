/* Selfcheck: which cases, the document, the table. */
#include <stdio.h>
#include <string.h>

#include "tensor/kv_row.h"
#include "verify/report/report.h"
#include "verify/selfcheck/selfcheck.h"
#include "verify/selfcheck/tested.h"

static bool same(const mla_selfcheck_shape *a, const mla_selfcheck_shape *b)
{
    return a->heads == b->heads && a->kv_heads == b->kv_heads && a->dim == b->dim && a->rank == b->rank && a->groups == b->groups && a->rot == b->rot;
}

size_t mla_selfcheck_shapes(mla_selfcheck_shape *out, const mla_config *c)
{
    static const mla_selfcheck_shape COMMON[] = {
        {"gqa", 24, 4, 256, 0, 0, 0},           {"gqa", 9, 3, 64, 0, 0, 0},         {"latent 512 + shared key 64", 16, 1, 0, 512, 1, 64},
        {"latent 768 + keys 4 x 64", 24, 4, 0, 768, 1, 64}, {"two groups of 384 + keys 4 x 64", 24, 4, 0, 768, 2, 64},
    };
    size_t n = 0;
    if (!c) {
        for (; n < sizeof COMMON / sizeof *COMMON; n++) out[n] = COMMON[n];
        return n;
    }
    for (size_t l = 0; l < c->layers && n < 8; l++) {
        mla_selfcheck_shape s = {.name = "gqa", .heads = c->heads, .kv_heads = c->kv_heads, .dim = c->head_dim};
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (c->family == MLA_FAM_DEEPSEEK) s = (mla_selfcheck_shape){"latent", c->heads, 1, 0, c->kv_lora_rank, 1, c->qk_rope_dim};
        if (c->mla.layout == MLA_LAYOUT_ABSORBED) s = (mla_selfcheck_shape){"latent", c->heads, 1, 0, c->mla.rank[l], 1, mla_config_rotary_values(c, l)};
        if (mla_layout_rotary(c, c->mla.layout)) s = (mla_selfcheck_shape){"latent", c->heads, c->kv_heads, 0, c->mla.rank[l], c->mla.groups, c->rope.rot};
        if (c->mla.layout == MLA_LAYOUT_SHARED) s = (mla_selfcheck_shape){"latent", c->heads, 1, 0, c->mla.rank[l], 1, c->mla.rotary_width};
        bool seen = false; /* the rebuild layout forms whole keys: its attention is the base's */
        for (size_t i = 0; i < n; i++) seen = seen || same(&s, &out[i]);
        if (!seen) out[n++] = s;
    }
    return n;
}

mla_status mla_selfcheck_rank(mla_selfcheck_shape *s, size_t ranks, mla_err *err)
{
    if (ranks < 2) return MLA_OK;
    bool split = !s->dim && s->groups > 1;
    if (s->heads % ranks || (split && s->groups % ranks))
        return mla_fail(err, MLA_EINVAL, "tensor-parallel size %zu: %s, %zu heads in %zu groups, does not divide", ranks, s->name, s->heads, s->dim ? s->kv_heads : s->groups);
    s->heads /= ranks;
    s->kv_heads = s->kv_heads > ranks ? s->kv_heads / ranks : 1; /* fewer keys than ranks are kept by several */
    if (split) {
        s->groups /= ranks;
        s->rank /= ranks;
    }
    return MLA_OK;
}

typedef struct {
    mla_jv *cases;
    size_t ran, failed, skipped;
    double worst;
} tally;

static mla_status one(tally *t, mla_backend *be, const mla_selfcheck_shape *s, const mla_selfcheck_case *c, mla_err *err)
{
    mla_selfcheck_result r;
    mla_err why = {0};
    mla_status st = mla_selfcheck_run(&r, be, s, c, &why);
    if (st != MLA_OK && st != MLA_ENOMEM) {
        *err = why;
        return st;
    }
    bool ok = st == MLA_OK && mla_selfcheck_ok(&r);
    mla_jv *o = mla_jv_add_obj(t->cases);
    mla_jv_set_str(o, "shape", s->name);
    mla_jv_set_size(o, "heads", s->heads);
    mla_jv_set_str(o, "kv_dtype", mla_kv_type_name((mla_kv_type){c->dtype, c->keys16}));
    mla_jv_set_size(o, "page", c->page);
    mla_jv_set_size(o, "queries", c->queries);
    mla_jv_set_bool(o, "far", c->far);
    mla_jv_set_size(o, "slots", r.pool_slots);
    mla_jv_set_size(o, "row_values", r.row_values);
    mla_jv_set_size(o, "farthest_slot", r.farthest_slot);
    mla_jv_set_str(o, "verdict", ok ? "pass" : st == MLA_OK ? "fail" : "not enough evidence");
    if (st != MLA_OK) {
        mla_jv_set_str(o, "reason", why.msg);
        t->skipped++;
        return MLA_OK;
    }
    mla_jv_set_f64(o, "error_over_bound", r.worst);
    mla_jv_set_f64(o, "max_error", r.max_error);
    mla_jv_set_size(o, "nonfinite", r.nonfinite);
    mla_jv_set_size(o, "stored_wrong", r.stored_wrong);
    t->ran++;
    t->failed += !ok;
    if (r.worst > t->worst) t->worst = r.worst;
    return MLA_OK;
}

static mla_verdict put_gate(mla_jv *gates, const char *name, const tally *t)
{
    mla_verdict v = t->failed ? MLA_FAIL : t->skipped || !t->ran ? MLA_NO_EVIDENCE : MLA_PASS;
    mla_str s = MLA_STR_MAX(512);
    mla_str_printf(&s, "%zu of %zu cases within the bound (largest error %.3g of it)", t->ran - t->failed, t->ran, t->worst);
    if (t->skipped) mla_str_printf(&s, "; %zu not run: no memory for the pool", t->skipped);
    mla_doc_gate(gates, name, v, "%s", mla_str_c(&s));
    mla_str_free(&s);
    return v;
}

/* A gate of its own: right answers on this machine say nothing of a combination that nobody recorded. */
static mla_status put_combination(mla_jv *doc, mla_jv *gates, mla_backend *be, const mla_selfcheck_opts *o, mla_verdict *verdict, mla_err *err)
{
    char name[128];
    bool found;
    mla_status st = mla_tested_find(&found, o->tested, mla_tested_combination(be, o->ranks, name, sizeof name), err);
    if (st != MLA_OK) return st;
    mla_jv_set_str(doc, "combination", name);
    mla_jv_set_bool(doc, "combination_tested", found);
    if (found) mla_doc_gate(gates, "combination", MLA_PASS, "%s is among the tested combinations", name);
    else if (o->allow_untested) mla_doc_gate(gates, "combination", MLA_PASS, "%s is untested, and allowed by MLA_ALLOW_UNTESTED", name);
    else {
        mla_doc_gate(gates, "combination", MLA_NO_EVIDENCE, "%s is not among the tested combinations; MLA_ALLOW_UNTESTED=1 lets it pass", name);
        if (*verdict == MLA_PASS) *verdict = MLA_NO_EVIDENCE;
    }
    return MLA_OK;
}

/* Decode and prefill over every cache type of one shape in one pool, as one gate. */
static mla_status one_pool(tally *t, mla_backend *be, const mla_selfcheck_shape *s, bool far, size_t slots, mla_err *err)
{
    static const mla_kv_type KV[] = {{MLA_F32, false}, {MLA_BF16, false}, {MLA_F8_E4M3, false}, {MLA_F8_E4M3, true}};
    for (size_t k = 0; k < (be->ops->mixed_rows ? 4 : 3); k++)
        for (size_t q = 1; q <= 5; q += 4) {
            /* f32 would be a pool of 8 GiB; offsets are in elements, so bf16 and fp8 say it all */
            if ((far || slots) && (KV[k].dtype == MLA_F32 || KV[k].keys16)) continue;
            mla_selfcheck_case c = {.dtype = KV[k].dtype, .keys16 = KV[k].keys16, .page = q == 1 ? 64 : 16, .far = far, .slots = slots, .queries = q};
            if (one(t, be, s, &c, err) != MLA_OK) return err->status;
        }
    return MLA_OK;
}

mla_status mla_selfcheck(mla_jv *doc, mla_backend *be, const mla_selfcheck_opts *o, mla_verdict *verdict, mla_err *err)
{
    enum { NEAR, FAR, SLOTS, POOLS };
    const bool wanted[POOLS] = {true, o->far, o->slots > 0};
    mla_selfcheck_shape shape[8];
    size_t n = mla_selfcheck_shapes(shape, o->cfg);
    mla_status st = MLA_OK;
    *verdict = MLA_PASS;
    mla_jv_set_str(doc, "verdict", "");
    mla_jv *gates = mla_jv_set_arr(doc, "gates"), *cases = mla_jv_set_arr(doc, "cases");
    size_t kept = 0;
    for (size_t i = 0; i < n && st == MLA_OK; i++) {
        mla_status divides = mla_selfcheck_rank(&shape[i], o->ranks, err);
        if (divides == MLA_OK) shape[kept++] = shape[i];
        else if (o->cfg || (i + 1 == n && !kept)) st = divides; /* of common shapes those that divide will do */
    }
    n = kept;
    mla_progress prog = mla_progress_begin(o->log, "selfcheck", (double)(n * (1 + wanted[FAR] + wanted[SLOTS])), "shapes");
    for (size_t pool = NEAR; pool < POOLS; pool++)
        for (size_t i = 0; wanted[pool] && i < n && st == MLA_OK; i++) {
            tally t = {.cases = cases};
            char name[128], where[48] = "";
            if (pool == FAR) (void)snprintf(where, sizeof where, ", beyond int32 slots");
            if (pool == SLOTS) (void)snprintf(where, sizeof where, ", a cache of %zu slots", o->slots);
            (void)snprintf(name, sizeof name, "%s, %zu heads%s", shape[i].name, shape[i].heads, where);
            st = one_pool(&t, be, &shape[i], pool == FAR, pool == SLOTS ? o->slots : 0, err);
            if (st != MLA_OK) break;
            mla_verdict v = put_gate(gates, name, &t);
            if (v == MLA_FAIL || (v == MLA_NO_EVIDENCE && *verdict == MLA_PASS)) *verdict = v;
            mla_progress_add(&prog, 1);
        }
    if (st == MLA_OK && o->tested) st = put_combination(doc, gates, be, o, verdict, err);
    mla_jv_set_str(doc, "verdict", mla_verdict_name(*verdict));
    if (st == MLA_OK) mla_progress_end(&prog);
    return st;
}

void mla_selfcheck_text(mla_str *out, const mla_jv *doc)
{
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g))
        mla_str_printf(out, "%-20s %s: %s\n", mla_doc_str(g, "verdict", ""), mla_doc_str(g, "name", ""), mla_doc_str(g, "reason", ""));
    mla_str_printf(out, "verdict: %s\n", mla_doc_str(doc, "verdict", "?"));
}
