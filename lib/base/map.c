/* Open-addressing hash map over an insertion-ordered entry list; FNV-1a mixed with a multiply. */
#include "base/map.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

typedef struct {
    char *key;
    size_t len, value;
    uint64_t hash;
} entry;

struct mla_map {
    entry *e;
    size_t n, cap;
    size_t *slot; /* index + 1 into e, 0 = empty */
    size_t nslot; /* power of two */
};

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return (h ^ (h >> 29)) * 0x9E3779B97F4A7C15u;
}

mla_status mla_map_new(mla_map **out, mla_err *err)
{
    mla_map *m = mla_alloc(1, 1, sizeof *m);
    if (m) {
        m->nslot = 64;
        m->slot = mla_alloc(m->nslot, 1, sizeof *m->slot);
    }
    if (!m || !m->slot) {
        mla_map_free(m);
        return mla_fail(err, MLA_ENOMEM, "hash map");
    }
    *out = m;
    return MLA_OK;
}

void mla_map_free(mla_map *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->n; i++) mla_free(m->e[i].key);
    mla_free(m->e);
    mla_free(m->slot);
    mla_free(m);
}

static size_t *find(const mla_map *m, const char *key, size_t len, uint64_t h)
{
    size_t i = (size_t)(h >> 20) & (m->nslot - 1);
    for (;; i = (i + 1) & (m->nslot - 1)) {
        size_t s = m->slot[i];
        if (!s) return &m->slot[i];
        const entry *e = &m->e[s - 1];
        if (e->hash == h && e->len == len && memcmp(e->key, key, len) == 0) return &m->slot[i];
    }
}

static bool grow(mla_map *m)
{
    size_t nslot = m->nslot * 2;
    size_t *slot = mla_alloc(nslot, 1, sizeof *slot);
    if (!slot) return false;
    mla_free(m->slot);
    m->slot = slot;
    m->nslot = nslot;
    for (size_t i = 0; i < m->n; i++) *find(m, m->e[i].key, m->e[i].len, m->e[i].hash) = i + 1;
    return true;
}

mla_status mla_map_add(mla_map *m, const char *key, size_t len, size_t value, bool *existed, mla_err *err)
{
    uint64_t h = hash_bytes(key, len);
    size_t *s = find(m, key, len, h);
    if (existed) *existed = *s != 0;
    if (*s) return MLA_OK;
    if (m->n == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 32;
        entry *e = mla_realloc(m->e, cap, sizeof *e);
        if (!e) return mla_fail(err, MLA_ENOMEM, "hash map of %zu entries", cap);
        m->e = e;
        m->cap = cap;
    }
    if ((m->n + 1) * 2 > m->nslot) {
        if (!grow(m)) return mla_fail(err, MLA_ENOMEM, "hash map of %zu slots", m->nslot * 2);
        s = find(m, key, len, h);
    }
    char *k = mla_strndup(key, len);
    if (!k) return mla_fail(err, MLA_ENOMEM, "hash map key of %zu bytes", len);
    m->e[m->n] = (entry){k, len, value, h};
    *s = ++m->n;
    return MLA_OK;
}

bool mla_map_get(const mla_map *m, const char *key, size_t len, size_t *value)
{
    size_t s = *find(m, key, len, hash_bytes(key, len));
    if (!s) return false;
    if (value) *value = m->e[s - 1].value;
    return true;
}

bool mla_map_has(const mla_map *m, const char *key) { return mla_map_get(m, key, strlen(key), NULL); }
size_t mla_map_count(const mla_map *m) { return m->n; }

const char *mla_map_key(const mla_map *m, size_t i, size_t *len)
{
    if (len) *len = m->e[i].len;
    return m->e[i].key;
}

size_t mla_map_value(const mla_map *m, size_t i) { return m->e[i].value; }
