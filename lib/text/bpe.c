/* BPE merging with a linked list of symbols and a heap of candidate pairs. */
#include "text/bpe.h"

#include "base/alloc.h"
#include "base/ckd.h"

static size_t home(const mla_bpe *b, uint64_t key)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 32) & (b->nslot - 1);
}

mla_status mla_bpe_init(mla_bpe *b, size_t n, mla_err *err)
{
    size_t nslot = 64;
    while (nslot / 2 < n) {
        if (!mla_mul(&nslot, nslot, 2)) return mla_fail(err, MLA_ENOMEM, "table of %zu merges", n);
    }
    b->slot = mla_alloc_raw(nslot, 1, sizeof *b->slot);
    if (!b->slot) return mla_fail(err, MLA_ENOMEM, "table of %zu merges", n);
    for (size_t i = 0; i < nslot; i++) b->slot[i] = (mla_bpe_slot){0, 0, -1};
    b->nslot = nslot;
    b->n = 0;
    return MLA_OK;
}

void mla_bpe_free(mla_bpe *b)
{
    mla_free(b->slot);
    *b = (mla_bpe){0};
}

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

void mla_bpe_add(mla_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
    uint64_t key = pair_key(left, right);
    size_t i = home(b, key);
    while (b->slot[i].merged >= 0 && b->slot[i].key != key) i = (i + 1) & (b->nslot - 1);
    if (b->slot[i].merged < 0) b->n++;
    b->slot[i] = (mla_bpe_slot){key, rank, merged};
}

static const mla_bpe_slot *find(const mla_bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right);
    for (size_t i = home(b, key);; i = (i + 1) & (b->nslot - 1)) {
        if (b->slot[i].merged < 0) return NULL;
        if (b->slot[i].key == key) return &b->slot[i];
    }
}

#define NONE UINT32_MAX

typedef struct {
    int32_t id; /* -1: swallowed by its left neighbour */
    uint32_t prev, next;
} symbol;

typedef struct {
    uint32_t rank, pos; /* compared in this order */
    int32_t left, right, merged; /* ids when the pair was seen: differs later = out of date */
} cand;

static bool before(const cand *a, const cand *b) { return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos; }

static void sift_up(cand *h, size_t i)
{
    cand x = h[i];
    for (; i > 0 && before(&x, &h[(i - 1) / 2]); i = (i - 1) / 2) h[i] = h[(i - 1) / 2];
    h[i] = x;
}

static cand pop(cand *h, size_t *n)
{
    cand top = h[0], x = h[--*n];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < *n; i = k) {
        if (k + 1 < *n && before(&h[k + 1], &h[k])) k++;
        if (!before(&h[k], &x)) break;
        h[i] = h[k];
    }
    h[i] = x;
    return top;
}

/* A heap entry for the pair that starts at pos, when it is a merge. The heap has room (see reserve). */
static void push_pair(const mla_bpe *b, const symbol *s, uint32_t pos, cand *h, size_t *n)
{
    if (pos == NONE || s[pos].next == NONE) return;
    int32_t left = s[pos].id, right = s[s[pos].next].id;
    const mla_bpe_slot *m = find(b, left, right);
    if (!m) return;
    h[*n] = (cand){m->rank, pos, left, right, m->merged};
    sift_up(h, (*n)++);
}

/* n symbols; at most n - 1 first candidates, and n - 1 merges that take one out and put two in. */
static mla_status reserve(mla_bpe_work *w, size_t n, mla_err *err)
{
    if (n >= (size_t)1 << 31) return mla_fail(err, MLA_EUNSUPPORTED, "a word of %zu symbols", n);
    if (w->sym_cap < n) {
        size_t cap = n < 64 ? 64 : n + n / 2;
        mla_free(w->sym);
        mla_free(w->heap);
        *w = (mla_bpe_work){0};
        w->sym = mla_alloc_raw(cap, 1, sizeof(symbol));
        w->heap = mla_alloc_raw(2 * cap, 1, sizeof(cand));
        if (!w->sym || !w->heap) return mla_fail(err, MLA_ENOMEM, "a word of %zu symbols", n);
        w->sym_cap = cap;
        w->heap_cap = 2 * cap;
    }
    return MLA_OK;
}

void mla_bpe_work_free(mla_bpe_work *w)
{
    mla_free(w->sym);
    mla_free(w->heap);
    *w = (mla_bpe_work){0};
}

mla_status mla_bpe_merge(const mla_bpe *b, mla_bpe_work *w, int32_t *id, size_t *n, mla_err *err)
{
    if (*n < 2) return MLA_OK;
    mla_status st = reserve(w, *n, err);
    if (st) return st;
    symbol *s = w->sym;
    cand *h = w->heap;
    size_t heap_n = 0, count = *n;
    for (size_t i = 0; i < count; i++)
        s[i] = (symbol){id[i], i ? (uint32_t)(i - 1) : NONE, i + 1 < count ? (uint32_t)(i + 1) : NONE};
    for (size_t i = 0; i + 1 < count; i++) push_pair(b, s, (uint32_t)i, h, &heap_n);
    while (heap_n) {
        cand c = pop(h, &heap_n);
        symbol *left = &s[c.pos];
        if (left->id != c.left || left->next == NONE || s[left->next].id != c.right) continue;
        symbol *right = &s[left->next];
        left->id = c.merged;
        left->next = right->next;
        right->id = -1;
        if (left->next != NONE) s[left->next].prev = c.pos;
        push_pair(b, s, left->prev, h, &heap_n);
        push_pair(b, s, c.pos, h, &heap_n);
    }
    size_t k = 0;
    for (uint32_t i = 0; i != NONE; i = s[i].next) id[k++] = s[i].id;
    *n = k;
    return MLA_OK;
}
