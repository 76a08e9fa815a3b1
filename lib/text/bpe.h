/* Byte-pair merging: the lowest rank first, leftmost first among equals, as Sennrich et al. (2016) with ranked merges. */
#ifndef MLA_TEXT_BPE_H
#define MLA_TEXT_BPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* (left id, right id) -> rank and merged id; open addressing. Zero-initialised is empty. */
typedef struct {
    uint64_t key; /* left << 32 | right */
    uint32_t rank;
    int32_t merged; /* -1: empty slot */
} mla_bpe_slot;

typedef struct {
    mla_bpe_slot *slot;
    size_t nslot, n; /* nslot: a power of two, 0 before mla_bpe_init */
} mla_bpe;

/* Room for n pairs; the table never grows beyond. */
MLA_CHECKED mla_status mla_bpe_init(mla_bpe *b, size_t n, mla_err *err);
void mla_bpe_free(mla_bpe *b);
/* Pairs arrive in rank order; a pair given again takes the later rank, as in the library. */
void mla_bpe_add(mla_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged);

/* Scratch of one encoding thread; zero-initialise. */
typedef struct {
    void *sym, *heap;
    size_t sym_cap, heap_cap;
} mla_bpe_work;
void mla_bpe_work_free(mla_bpe_work *w);

/* Merges id[0..*n) in place. O(n log n). EUNSUPPORTED for words of 2^31 symbols or more. */
MLA_CHECKED mla_status mla_bpe_merge(const mla_bpe *b, mla_bpe_work *w, int32_t *id, size_t *n, mla_err *err);
#endif
