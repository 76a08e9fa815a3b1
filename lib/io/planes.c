/* Splitting elements into byte planes, the frames of the planes, and back. */
#include "io/planes.h"

#include <math.h>
#include <string.h>

#include "io/zst.h"

#define TEXT_LEVEL 9
#define BLOCK 64 /* elements of the inner loops: a constant count, which the compiler turns into vector code */

static const struct {
    const char *name;
    size_t count;
} KIND[] = {{"text", 1}, {"bytes", 1}, {"f16", 2}, {"f32", 4}};

mla_planes mla_planes_of(mla_dtype t)
{
    switch (t) {
    case MLA_BF16:
    case MLA_F16: return MLA_PLANES_F16;
    case MLA_F32: return MLA_PLANES_F32;
    default: return MLA_PLANES_BYTES;
    }
}

size_t mla_planes_count(mla_planes k) { return KIND[k].count; }
const char *mla_planes_name(mla_planes k) { return KIND[k].name; }

bool mla_planes_parse(const char *s, mla_planes *out)
{
    for (size_t i = 0; s && i < sizeof KIND / sizeof *KIND; i++) {
        if (strcmp(s, KIND[i].name) != 0) continue;
        *out = (mla_planes)i;
        return true;
    }
    return false;
}

size_t mla_planes_bound(mla_planes k, size_t n)
{
    size_t w = KIND[k].count;
    return w * mla_zst_bound(n / w);
}

static void split16(unsigned char *restrict p, const unsigned char *restrict src, size_t n)
{
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        uint16_t x[BLOCK];
        memcpy(x, src + 2 * i, sizeof x);
        unsigned char *lo = p + i, *hi = p + n + i;
        for (size_t j = 0; j < BLOCK; j++) lo[j] = (unsigned char)(x[j] << 1 | x[j] >> 15);
        for (size_t j = 0; j < BLOCK; j++) hi[j] = (unsigned char)(x[j] >> 7);
    }
    for (; i < n; i++) {
        uint16_t x;
        memcpy(&x, src + 2 * i, 2);
        p[i] = (unsigned char)(x << 1 | x >> 15);
        p[n + i] = (unsigned char)(x >> 7);
    }
}

static void join16(unsigned char *restrict dst, const unsigned char *restrict p, size_t n)
{
    size_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        uint16_t x[BLOCK];
        const unsigned char *lo = p + i, *hi = p + n + i;
        for (size_t j = 0; j < BLOCK; j++) x[j] = (uint16_t)((lo[j] >> 1) | (uint16_t)(hi[j] << 7) | (uint16_t)(lo[j] << 15));
        memcpy(dst + 2 * i, x, sizeof x);
    }
    for (; i < n; i++) {
        uint16_t x = (uint16_t)((p[i] >> 1) | p[n + i] << 7 | p[i] << 15);
        memcpy(dst + 2 * i, &x, 2);
    }
}

static void split32(unsigned char *restrict p, const unsigned char *restrict src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, src + 4 * i, 4);
        x = x << 1 | x >> 31;
        for (size_t j = 0; j < 4; j++) p[j * n + i] = (unsigned char)(x >> 8 * j);
    }
}

static void join32(unsigned char *restrict dst, const unsigned char *restrict p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x = 0;
        for (size_t j = 0; j < 4; j++) x |= (uint32_t)p[j * n + i] << 8 * j;
        x = x >> 1 | x << 31;
        memcpy(dst + 4 * i, &x, 4);
    }
}

/* Can Huffman coding save two percent of the plane? Judged by the order-0 entropy of every 16th byte. */
static bool entropy_pays(const unsigned char *p, size_t n)
{
    size_t hist[256] = {0}, total = 0;
    size_t step = n >= 65536 ? 16 : 1;
    for (size_t i = 0; i < n; i += step, total++) hist[p[i]]++;
    double bits = 0;
    for (size_t i = 0; i < 256; i++)
        if (hist[i]) bits -= (double)hist[i] * log2((double)hist[i] / (double)total);
    return bits < 7.84 * (double)total;
}

mla_status mla_planes_pack(mla_planes k, void *dst, size_t cap, size_t size[MLA_PLANES_MAX], const void *src, size_t n, void *scratch,
                           mla_err *err)
{
    size_t w = KIND[k].count, m = n / w, at = 0;
    if (n % w) return mla_fail(err, MLA_EINTERNAL, "%zu bytes are no whole elements of %zu", n, w);
    if (k == MLA_PLANES_TEXT) return mla_zst_pack(dst, cap, &size[0], src, n, TEXT_LEVEL, err);
    const unsigned char *plane = w == 1 ? src : scratch;
    if (k == MLA_PLANES_F16) split16(scratch, src, m);
    if (k == MLA_PLANES_F32) split32(scratch, src, m);
    for (size_t j = 0; j < w; j++, plane += m) {
        mla_status st = mla_zst_pack_literals((char *)dst + at, cap - at, &size[j], plane, m, entropy_pays(plane, m), err);
        if (st != MLA_OK) return st;
        at += size[j];
    }
    return MLA_OK;
}

mla_status mla_planes_unpack(mla_planes k, void *dst, size_t n, const void *src, size_t src_n, const size_t size[MLA_PLANES_MAX], void *scratch,
                             mla_err *err)
{
    size_t w = KIND[k].count, m = n / w, at = 0;
    if (n % w) return mla_fail(err, MLA_EFORMAT, "%zu bytes are no whole elements of %zu", n, w);
    unsigned char *plane = w == 1 ? dst : scratch;
    for (size_t j = 0; j < w; j++, plane += m) {
        if (size[j] > src_n - at) return mla_fail(err, MLA_EFORMAT, "a frame of %zu bytes where %zu are left", size[j], src_n - at);
        mla_status st = mla_zst_unpack(plane, m, (const char *)src + at, size[j], err);
        if (st != MLA_OK) return st;
        at += size[j];
    }
    if (at != src_n) return mla_fail(err, MLA_EFORMAT, "frames of %zu bytes where %zu are stored", at, src_n);
    if (k == MLA_PLANES_F16) join16(dst, scratch, m);
    if (k == MLA_PLANES_F32) join32(dst, scratch, m);
    return MLA_OK;
}
