/* Digests over OpenSSL's EVP interface, and hashing of many files with two streams per core.
 *
 * Digests in one call use the low-level functions: EVP allocates for each of them, and a void function cannot say that
 * there was no memory. OpenSSL 3 deprecates them in favour of EVP and keeps them. */
#include "io/sha256.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

struct mla_sha256 {
    EVP_MD_CTX *ctx, *copy; /* copy: scratch of mla_sha256_get, primed at creation */
    bool failed;
};

mla_status mla_sha256_new(mla_sha256 **out, mla_err *err)
{
    mla_sha256 *h = mla_alloc(1, 1, sizeof *h);
    if (h) {
        h->ctx = EVP_MD_CTX_new();
        h->copy = EVP_MD_CTX_new();
    }
    if (!h || !h->ctx || !h->copy || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        mla_sha256_free(h);
        return mla_fail(err, MLA_ENOMEM, "sha256 context");
    }
    *out = h;
    return MLA_OK;
}

void mla_sha256_update(mla_sha256 *h, const void *data, size_t n)
{
    if (n && EVP_DigestUpdate(h->ctx, data, n) != 1) h->failed = true;
}

void mla_sha256_get(const mla_sha256 *h, unsigned char digest[32])
{
    if (h->failed || EVP_MD_CTX_copy_ex(h->copy, h->ctx) != 1 || EVP_DigestFinal_ex(h->copy, digest, NULL) != 1)
        memset(digest, 0, 32);
}

bool mla_sha256_ok(const mla_sha256 *h) { return !h->failed; }

void mla_sha256_free(mla_sha256 *h)
{
    if (!h) return;
    EVP_MD_CTX_free(h->ctx);
    EVP_MD_CTX_free(h->copy);
    mla_free(h);
}

void mla_sha256_bytes(const void *data, size_t n, unsigned char digest[32])
{
    SHA256_CTX c;
    SHA256_Init(&c);
    if (n) SHA256_Update(&c, data, n);
    SHA256_Final(digest, &c);
}

void mla_hex(const unsigned char *bytes, size_t n, char *out)
{
    static const char HEX[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = HEX[bytes[i] >> 4];
        out[2 * i + 1] = HEX[bytes[i] & 15];
    }
    out[2 * n] = 0;
}

void mla_git_blob_sha1(const void *data, size_t n, unsigned char digest[20])
{
    char head[32];
    int k = snprintf(head, sizeof head, "blob %zu", n);
    SHA_CTX c;
    SHA1_Init(&c);
    SHA1_Update(&c, head, (size_t)k + 1);
    if (n) SHA1_Update(&c, data, n);
    SHA1_Final(digest, &c);
}
