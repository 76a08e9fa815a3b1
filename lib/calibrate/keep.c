/* What was measured so far, in a file of its own: a run that was cut off goes on after its last whole pass and ends in
 * the same bytes. Layout, little-endian: magic (8), key (32), rows done, layers (u64 each), then per layer and part amax,
 * sum of squares (f64), values (u64) and, with a percentile, the histogram (CAL_BINS u64); sha256 of all that (32). */
#include <string.h>

#include "base/alloc.h"
#include "calibrate/parts.h"
#include "io/file.h"
#include "io/sha256.h"

static const char MAGIC[9] = "mlacal01";

typedef struct {
    unsigned char *p;
    bool load;
} cursor;

static void pass(cursor *c, void *v, size_t n)
{
    if (c->load) memcpy(v, c->p, n);
    else memcpy(c->p, v, n);
    c->p += n;
}

static size_t file_size(const mla_cal *c)
{
    size_t part = 24 + (c->o.percentile > 0 ? CAL_BINS * sizeof(uint64_t) : 0);
    return 8 + 32 + 16 + 2 * c->n * part + 32;
}

static void pass_ranges(cursor *at, mla_cal *c)
{
    for (size_t i = 0; i < 2 * c->n; i++) {
        mla_cal_part *p = i % 2 ? &c->layer[i / 2].v : &c->layer[i / 2].k;
        pass(at, &p->amax, 8);
        pass(at, &p->sum2, 8);
        pass(at, &p->n, 8);
        if (p->hist) pass(at, p->hist, CAL_BINS * sizeof *p->hist);
    }
}

mla_status cal_keep_save(mla_cal *c, size_t row, mla_err *err)
{
    size_t size = file_size(c);
    unsigned char *buf = mla_alloc(size, 1, 1);
    uint64_t rows = row, n = c->n;
    cursor at = {buf, false};
    if (!buf) return mla_fail(err, MLA_ENOMEM, "%s", c->o.keep);
    memcpy(at.p, MAGIC, 8);
    memcpy(at.p + 8, c->o.keep_key, 32);
    at.p += 40;
    pass(&at, &rows, 8);
    pass(&at, &n, 8);
    pass_ranges(&at, c);
    mla_sha256_bytes(buf, size - 32, at.p);
    mla_status st = mla_file_write(c->o.keep, buf, size, err);
    mla_free(buf);
    return st;
}

mla_status cal_keep_load(mla_cal *c, size_t *row, mla_err *err)
{
    size_t size = 0, want = file_size(c);
    char *text = NULL;
    unsigned char digest[32];
    uint64_t rows, n;
    *row = 0;
    if (!mla_path_exists(c->o.keep)) return MLA_OK;
    mla_status st = mla_file_read(&text, &size, c->o.keep, (size_t)1 << 30, err);
    if (st != MLA_OK) return st;
    cursor at = {(unsigned char *)text, true};
    if (size < 40 || memcmp(at.p, MAGIC, 8) != 0) st = mla_fail(err, MLA_EFORMAT, "%s: no kept measurement", c->o.keep);
    else if (memcmp(at.p + 8, c->o.keep_key, 32) != 0)
        st = mla_fail(err, MLA_EINVAL, "%s: kept by a run with another model, text or options; remove it, or name another file", c->o.keep);
    else if (size != want) st = mla_fail(err, MLA_EFORMAT, "%s: %zu bytes, expected %zu", c->o.keep, size, want);
    if (st == MLA_OK) {
        mla_sha256_bytes(text, size - 32, digest);
        if (memcmp(digest, text + size - 32, 32) != 0) st = mla_fail(err, MLA_EFORMAT, "%s: its sha256 does not match: damaged", c->o.keep);
    }
    if (st == MLA_OK) {
        at.p += 40;
        pass(&at, &rows, 8);
        pass(&at, &n, 8);
        if (n != c->n || rows > c->rows) st = mla_fail(err, MLA_EFORMAT, "%s: %llu rows of %llu layers", c->o.keep, (unsigned long long)rows, (unsigned long long)n);
    }
    if (st == MLA_OK) {
        pass_ranges(&at, c);
        *row = (size_t)rows;
        mla_info(c->o.log, "%s: going on after %zu of %zu rows", c->o.keep, *row, c->rows);
    }
    mla_free(text);
    return st;
}
