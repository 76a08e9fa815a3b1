/* Look-ups in an opened GGUF file. Everything was checked when it was opened. */
#include <string.h>

#include "io/gguf.h"
#include "io/gguf_impl.h"

const mla_mapped *mla_gguf_file(const mla_gguf *g) { return &g->file; }
size_t mla_gguf_alignment(const mla_gguf *g) { return g->align; }
size_t mla_gguf_count(const mla_gguf *g) { return g->n; }
const mla_gguf_tensor *mla_gguf_at(const mla_gguf *g, size_t i) { return i < g->n ? &g->t[i] : NULL; }
size_t mla_gguf_kv_count(const mla_gguf *g) { return g->nkv; }
const mla_gguf_kv *mla_gguf_kv_at(const mla_gguf *g, size_t i) { return i < g->nkv ? &g->kv[i] : NULL; }

const mla_gguf_tensor *mla_gguf_find(const mla_gguf *g, const char *name)
{
    size_t i;
    return mla_map_get(g->names, name, strlen(name), &i) ? &g->t[i] : NULL;
}

const mla_gguf_kv *mla_gguf_kv_find(const mla_gguf *g, const char *key)
{
    size_t i;
    return mla_map_get(g->keys, key, strlen(key), &i) ? &g->kv[i] : NULL;
}

/* An integer of any width as sign and 64-bit pattern; false for other types. */
static bool integer(const mla_gguf_kv *kv, bool *negative, uint64_t *v)
{
    if (!kv) return false;
    bool is_signed = false;
    switch (kv->type) {
    case MLA_GV_U8: case MLA_GV_U16: case MLA_GV_U32: case MLA_GV_U64: break;
    case MLA_GV_I8: case MLA_GV_I16: case MLA_GV_I32: case MLA_GV_I64: is_signed = true; break;
    default: return false;
    }
    uint64_t u = 0;
    for (size_t i = kv->nbytes; i-- > 0;) u = u << 8 | kv->data[i];
    unsigned bits = (unsigned)(8 * kv->nbytes);
    *negative = is_signed && (u >> (bits - 1) & 1);
    if (*negative && bits < 64) u |= ~(uint64_t)0 << bits;
    *v = u;
    return true;
}

bool mla_gguf_u64(const mla_gguf *g, const char *key, uint64_t *out)
{
    bool negative;
    uint64_t v;
    if (!integer(mla_gguf_kv_find(g, key), &negative, &v) || negative) return false;
    *out = v;
    return true;
}

bool mla_gguf_f64(const mla_gguf *g, const char *key, double *out)
{
    const mla_gguf_kv *kv = mla_gguf_kv_find(g, key);
    bool negative;
    uint64_t v;
    if (integer(kv, &negative, &v)) {
        *out = negative ? -(double)(~v + 1) : (double)v;
        return true;
    }
    if (kv && kv->type == MLA_GV_F32) {
        float f;
        uint32_t u = mla_le32(kv->data);
        memcpy(&f, &u, sizeof f);
        *out = (double)f;
        return true;
    }
    if (kv && kv->type == MLA_GV_F64) {
        uint64_t u = mla_le64(kv->data);
        memcpy(out, &u, sizeof *out);
        return true;
    }
    return false;
}

bool mla_gguf_bool(const mla_gguf *g, const char *key, bool *out)
{
    const mla_gguf_kv *kv = mla_gguf_kv_find(g, key);
    if (!kv || kv->type != MLA_GV_BOOL) return false;
    *out = kv->data[0] != 0;
    return true;
}

bool mla_gguf_str(const mla_gguf *g, const char *key, const char **s, size_t *n)
{
    const mla_gguf_kv *kv = mla_gguf_kv_find(g, key);
    if (!kv || kv->type != MLA_GV_STRING) return false;
    *s = (const char *)kv->data;
    *n = kv->n;
    return true;
}

bool mla_gguf_str_next(const mla_gguf_kv *kv, size_t *pos, const char **s, size_t *n)
{
    if (kv->type != MLA_GV_ARRAY || kv->item != MLA_GV_STRING || kv->nbytes - *pos < 8) return false;
    *n = (size_t)mla_le64(kv->data + *pos);
    *s = (const char *)kv->data + *pos + 8;
    *pos += 8 + *n;
    return true;
}
