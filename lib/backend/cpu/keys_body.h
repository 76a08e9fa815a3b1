/* Stored key rows to a B panel by way of 16-dim strips: for variants without a transposing kernel of their own.
 * Include after rows_body.h and the variant's pack_f32. Private to backend/cpu. */
#ifndef MLA_BACKEND_CPU_KEYS_BODY_H
#define MLA_BACKEND_CPU_KEYS_BODY_H

MLA_VEC void keys_of(const mla_dtype t, float *dst, const mla_stored_rows *r)
{
    const size_t bytes = t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1;
    float strip[MLA_NR * 16];
    v16 s = v16_set(r->scale);
    for (size_t i = 0; i < r->n; i++)
        for (size_t b = 0; b < r->d * bytes; b += MLA_LINE) __builtin_prefetch((const char *)r->next[i] + b, 0, 2);
    for (size_t c = 0; c < r->d; c += 16) {
        size_t w = r->d - c < 16 ? r->d - c : 16;
        for (size_t i = 0; i < r->n; i++) v16_store(strip + i * 16, load_stored(t, r->row[i], c, w, s));
        pack_f32(dst + c * MLA_NR, strip, 16, r->n, w);
    }
}

static void row_keys(float *dst, const mla_stored_rows *r)
{
    if (r->dtype == MLA_BF16)
        keys_of(MLA_BF16, dst, r);
    else if (r->dtype == MLA_F8_E4M3)
        keys_of(MLA_F8_E4M3, dst, r);
    else
        keys_of(MLA_F32, dst, r);
}
#endif
