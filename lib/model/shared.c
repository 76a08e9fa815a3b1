/* Shared-rotary factors in memory, and which models can have them. */
#include "model/shared.h"

#include <string.h>

#include "base/alloc.h"
#include "base/ckd.h"

mla_status mla_shared_fits(const mla_config *c, mla_err *err)
{
    size_t rot = c->rope.rot, d = c->head_dim;
    if (c->family == MLA_FAM_DEEPSEEK) return mla_fail(err, MLA_EUNSUPPORTED, "layout shared-rotary: %s caches a latent and one rotary key already", c->architecture);
    if (rot == 0) return mla_fail(err, MLA_EUNSUPPORTED, "layout shared-rotary: this model rotates no key dims, there is nothing to share: use layout n");
    if (rot == d)
        return mla_fail(err, MLA_EUNSUPPORTED, "layout shared-rotary needs key dims without rotation beside one shared rotary key; this model "
                        "rotates all %zu: use layout rebuild", d);
    if (d - rot < rot)
        return mla_fail(err, MLA_EUNSUPPORTED, "layout shared-rotary: the file keeps the rotary residual in %zu rows (the unrotated dims), %zu rotated "
                        "dims need as many: use layout n", d - rot, rot);
    if (c->rope.attention_factor != 1)
        return mla_fail(err, MLA_EUNSUPPORTED, "layout shared-rotary: rotation with an attention factor of %g has no place in the file: use layout n",
                        c->rope.attention_factor);
    return MLA_OK;
}

size_t mla_shared_part(const mla_shared *s, size_t k)
{
    const size_t n[MLA_SHARED_PARTS] = {s->r * s->D, s->R * s->rot * s->D, s->H * s->R * s->rot * s->rot, s->H * s->d * s->r, s->H * s->d * s->r, s->H * s->d};
    return k < MLA_SHARED_PARTS ? n[k] : 0;
}

size_t mla_shared_floats(const mla_shared *s)
{
    size_t n = 0;
    for (size_t k = 0; k < MLA_SHARED_PARTS; k++) n += mla_shared_part(s, k);
    return n;
}

static mla_status allocate(mla_shared *s, mla_err *err)
{
    float **part[MLA_SHARED_PARTS] = {&s->E, &s->KR, &s->Q2, &s->K, &s->V, &s->mu};
    size_t check;
    float *at = mla_mul(&check, s->H * s->d, s->r) && mla_mul(&check, s->D, s->r + s->R * s->rot) ? mla_alloc(mla_shared_floats(s), 1, sizeof *at) : NULL;
    if (!at) {
        *s = (mla_shared){0};
        return mla_fail(err, MLA_ENOMEM, "shared-rotary factors");
    }
    for (size_t k = 0; k < MLA_SHARED_PARTS; k++) {
        *part[k] = at;
        at += mla_shared_part(s, k);
    }
    return MLA_OK;
}

mla_status mla_shared_new(mla_shared *out, const mla_config *c, size_t r, size_t R, mla_err *err)
{
    *out = (mla_shared){.H = c->heads, .d = c->head_dim, .rot = c->rope.rot, .D = c->hidden, .r = r, .R = R};
    mla_status st = mla_shared_fits(c, err);
    if (st == MLA_OK && (r == 0 || r > c->hidden))
        st = mla_fail(err, MLA_EINVAL, "rank %zu: the latent of layout shared-rotary has 1 to %zu values (the hidden size)", r, c->hidden);
    if (st == MLA_OK && (R == 0 || R > c->kv_heads))
        st = mla_fail(err, MLA_EINVAL, "%zu shared rotary keys: expected 1 to %zu (the KV heads)", R, c->kv_heads);
    if (st == MLA_OK) return allocate(out, err);
    *out = (mla_shared){0};
    return st;
}

mla_status mla_shared_copy(mla_shared *out, const mla_shared *s, mla_err *err)
{
    *out = *s;
    mla_status st = allocate(out, err);
    if (st == MLA_OK) memcpy(out->E, s->E, mla_shared_floats(s) * sizeof *s->E);
    return st;
}

void mla_shared_free(mla_shared *s)
{
    mla_free(s->E);
    *s = (mla_shared){0};
}
