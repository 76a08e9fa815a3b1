/* Digests over OpenSSL's SHA functions, and hashing of many files with two streams per core.
 *
 * The low-level functions: EVP allocates whenever a digest is begun or taken, and a digest that is all zero because there was no
 * memory must not exist. OpenSSL 3 deprecates them in favour of EVP and keeps them; they run the same code. */
#include "io/sha256.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>
#include <stdio.h>

#include "base/alloc.h"

struct mla_sha256 {
    SHA256_CTX c;
};

mla_status mla_sha256_new(mla_sha256 **out, mla_err *err)
{
    mla_sha256 *h = mla_alloc(1, 1, sizeof *h);
    if (!h) return mla_fail(err, MLA_ENOMEM, "sha256 context");
    SHA256_Init(&h->c);
    *out = h;
    return MLA_OK;
}

void mla_sha256_update(mla_sha256 *h, const void *data, size_t n)
{
    if (n) SHA256_Update(&h->c, data, n);
}

void mla_sha256_get(const mla_sha256 *h, unsigned char digest[32])
{
    SHA256_CTX c = h->c;
    SHA256_Final(digest, &c);
}

void mla_sha256_free(mla_sha256 *h) { mla_free(h); }

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
