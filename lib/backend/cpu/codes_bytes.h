/* Products of one row with codes of 4, 5 and 6 bits where looking floats up is slow (AVX2): an octet becomes bytes, each byte an
 * integer u with v = (u - b) / a, and w = fma(u, s / a, -s b / a), which is v s rounded once (b / a is 0 or a power of two,
 * coded.c). The same weights, the same chain of sums. Included by codes_body.h. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_CODES_BYTES_H
#define MLA_BACKEND_CPU_CODES_BYTES_H

/* Bits 4 and 5 of codes 0, 2, 4, 6 of octet o in *even, of 1, 3, 5, 7 in *odd, from words of one or two bits a code. */
MLA_VEC void high_bits(const mla_code kind, const uint32_t *plane, size_t o, size_t h, v16i *even, v16i *odd)
{
    unsigned width = kind == MLA_CODE_NIBBLE_BIT ? 1 : 2, n = 4 / width;
    v16i t = v16i_shr(v16i_load(plane + o / n * MLA_NR + h), (unsigned)(o % n) * 2 * width), bits = v16i_set(width == 1 ? 0x10101010u : 0x30303030u);
    *even = v16i_and(v16i_shl(t, 4), bits);
    *odd = v16i_and(v16i_shl(t, 4 - width), bits);
}

MLA_VEC void gemv_bytes_of(const mla_code kind, const size_t np, float *c, const float *x, const mla_code_block *q, bool add)
{
    v16 acc[2 * MLA_CODE_PANELS];
    v16i look = v16i_look_load(q->look), low = v16i_set(0x0f0f0f0fu);
    MLA_UNROLL
    for (size_t j = 0; j < 2 * np; j++) acc[j] = v16_set(0);
    size_t o = 0, end = q->first / 8;
    for (size_t seg = 0; o < q->octets; seg++, end += q->seg / 8) {
        if (end > q->octets) end = q->octets;
        for (; o < end; o++) {
            MLA_UNROLL
            for (size_t j = 0; j < 2 * np; j++) {
                size_t panel = j / 2 * q->panel_words, h = j % 2 * 16, at = (j / 2 * MLA_CODE_SEGS + seg) * MLA_NR + h;
                const uint32_t *a = q->a + panel + o * MLA_NR + h;
                __builtin_prefetch((const char *)a + MLA_AHEAD);
                v16i w = v16i_load(a), even = v16i_and(w, low), odd = v16i_and(v16i_shr(w, 4), low);
                if (kind == MLA_CODE_NIBBLE) even = v16i_look_bytes(look, even), odd = v16i_look_bytes(look, odd);
                else {
                    v16i e, d;
                    high_bits(kind, q->b + panel, o, h, &e, &d);
                    even = v16i_or(even, e), odd = v16i_or(odd, d);
                }
                v16 s = v16_load(q->s + at), m = v16_load(q->m + at);
                MLA_UNROLL
                for (unsigned i = 0; i < 8; i++) {
                    v16 u = v16_from_int(v16i_byte(i % 2 ? odd : even, i / 2));
                    acc[j] = v16_fma(v16_set(x[8 * o + i]), v16_fma(u, s, m), acc[j]);
                }
            }
        }
    }
    MLA_UNROLL
    for (size_t j = 0; j < 2 * np; j++) {
        if (add) acc[j] = v16_fma(v16_load(c + 16 * j), v16_set(1.0f), acc[j]);
        v16_store(c + 16 * j, acc[j]);
    }
}

static void row_codes_gemv_bytes(float *c, const float *x, const mla_code_block *q, size_t np, bool add)
{
#define GEMV_BYTES(kind)                                     \
    if (np == 1) gemv_bytes_of(kind, 1, c, x, q, add);       \
    else gemv_bytes_of(kind, MLA_CODE_PANELS, c, x, q, add);
    switch (q->code) {
    case MLA_CODE_NIBBLE: GEMV_BYTES(MLA_CODE_NIBBLE) break;
    case MLA_CODE_NIBBLE_BIT: GEMV_BYTES(MLA_CODE_NIBBLE_BIT) break;
    default: GEMV_BYTES(MLA_CODE_NIBBLE_CRUMB) break;
    }
#undef GEMV_BYTES
}
#endif
