/* zstd frames with checksum and content size, one per call. */
#include "io/zst.h"

#define ZSTD_STATIC_LINKING_ONLY /* ZSTD_c_literalCompressionMode has no other name */
#include <zstd.h>

size_t mla_zst_bound(size_t n) { return ZSTD_compressBound(n); }
const char *mla_zst_version(void) { return ZSTD_versionString(); }

typedef struct {
    ZSTD_cParameter name;
    int value;
} param;

/* One thread: the bytes depend on the parameters and the library only. */
static mla_status pack(void *dst, size_t cap, size_t *out_n, const void *src, size_t n, const param *p, size_t np, mla_err *err)
{
    mla_status st = MLA_OK;
    ZSTD_CCtx *c = ZSTD_createCCtx();
    if (!c) return mla_fail(err, MLA_ENOMEM, "zstd compressor");
    size_t k = ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    for (size_t i = 0; i < np && !ZSTD_isError(k); i++) k = ZSTD_CCtx_setParameter(c, p[i].name, p[i].value);
    if (!ZSTD_isError(k)) k = ZSTD_compress2(c, dst, cap, src, n);
    if (ZSTD_isError(k))
        st = mla_fail(err, MLA_EINTERNAL, "zstd frame of %zu bytes into %zu: %s", n, cap, ZSTD_getErrorName(k));
    else
        *out_n = k;
    ZSTD_freeCCtx(c);
    return st;
}

mla_status mla_zst_pack(void *dst, size_t cap, size_t *out_n, const void *src, size_t n, int level, mla_err *err)
{
    const param p[] = {{ZSTD_c_compressionLevel, level}};
    return pack(dst, cap, out_n, src, n, p, 1, err);
}

mla_status mla_zst_pack_literals(void *dst, size_t cap, size_t *out_n, const void *src, size_t n, bool entropy, mla_err *err)
{
    /* the largest acceleration skips the search; whether literals are coded is then asked for in words */
    const param p[] = {{ZSTD_c_compressionLevel, ZSTD_minCLevel()},
                       {ZSTD_c_literalCompressionMode, entropy ? ZSTD_ps_enable : ZSTD_ps_disable}};
    return pack(dst, cap, out_n, src, n, p, 2, err);
}

/* Header facts are checked before a byte is decoded: dst is never larger than the caller said. */
static mla_status check_frame(size_t n, const void *src, size_t src_n, mla_err *err)
{
    unsigned long long size = ZSTD_getFrameContentSize(src, src_n);
    if (size == ZSTD_CONTENTSIZE_ERROR) return mla_fail(err, MLA_EFORMAT, "not a zstd frame (%zu bytes)", src_n);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN) return mla_fail(err, MLA_EFORMAT, "a zstd frame that does not state its size");
    if (size != n) return mla_fail(err, MLA_EFORMAT, "a zstd frame of %llu decoded bytes, expected %zu", size, n);
    /* frame header descriptor (RFC 8878, 3.1.1.1.1): bit 2 says whether a checksum follows the last block */
    if (!(((const unsigned char *)src)[4] & 4)) return mla_fail(err, MLA_EFORMAT, "a zstd frame without a checksum");
    size_t whole = ZSTD_findFrameCompressedSize(src, src_n);
    if (ZSTD_isError(whole)) return mla_fail(err, MLA_EFORMAT, "zstd frame of %zu bytes: %s", src_n, ZSTD_getErrorName(whole));
    if (whole != src_n) return mla_fail(err, MLA_EFORMAT, "a zstd frame of %zu bytes, followed by %zu more", whole, src_n - whole);
    return MLA_OK;
}

mla_status mla_zst_unpack(void *dst, size_t n, const void *src, size_t src_n, mla_err *err)
{
    mla_status st = check_frame(n, src, src_n, err);
    if (st != MLA_OK) return st;
    unsigned char none;
    ZSTD_DCtx *d = ZSTD_createDCtx();
    if (!d) return mla_fail(err, MLA_ENOMEM, "zstd decompressor");
    size_t k = ZSTD_decompressDCtx(d, n ? dst : &none, n, src, src_n);
    ZSTD_freeDCtx(d);
    if (ZSTD_isError(k)) return mla_fail(err, MLA_EFORMAT, "zstd frame of %zu bytes: %s", src_n, ZSTD_getErrorName(k));
    if (k != n) return mla_fail(err, MLA_EFORMAT, "a zstd frame gave %zu bytes, expected %zu", k, n);
    return MLA_OK;
}
