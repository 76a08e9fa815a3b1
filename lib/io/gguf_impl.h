/* The opened GGUF file, shared by parsing (gguf.c) and look-ups (gguf_get.c). Private to io/. */
#ifndef MLA_IO_GGUF_IMPL_H
#define MLA_IO_GGUF_IMPL_H
#include "base/map.h"
#include "io/gguf.h"

struct mla_gguf {
    mla_mapped file;
    size_t align;
    mla_gguf_kv *kv;
    size_t nkv;
    mla_map *keys; /* key -> position in kv; owns the key text */
    mla_gguf_tensor *t;
    size_t n;
    mla_map *names; /* name -> position in t; owns the name text */
};

size_t mla_gguf_value_size(mla_gguf_vtype t); /* bytes of a scalar; 0 for strings and arrays */

static inline uint64_t mla_le64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}
static inline uint32_t mla_le32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
#endif
