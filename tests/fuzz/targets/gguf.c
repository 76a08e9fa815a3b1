/* GGUF files: metadata and tensors of an accepted one are whole and inside it; then its model configuration. */
#include "io/gguf.h"

#include "fuzz.h"
#include "model/config.h"

static void check_kv(const mla_gguf *g, const mla_gguf_kv *kv)
{
    const char *s;
    size_t pos = 0, n, k = 0;
    uint64_t u;
    double d;
    fuzz_inside(kv->data, kv->nbytes, mla_gguf_file(g));
    for (; mla_gguf_str_next(kv, &pos, &s, &n); k++) fuzz_inside(s, n, mla_gguf_file(g));
    if (kv->type == MLA_GV_ARRAY && kv->item != MLA_GV_STRING && (kv->n > kv->nbytes || (kv->n && kv->nbytes % kv->n)))
        fuzz_broken("an array of more items than bytes");
    if (kv->type == MLA_GV_ARRAY && kv->item == MLA_GV_STRING && k != kv->n) fuzz_broken("a string array of another length");
    (void)mla_gguf_u64(g, kv->key, &u);
    (void)mla_gguf_f64(g, kv->key, &d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_gguf *g;
    mla_config c;
    mla_status st = mla_gguf_open(&g, fuzz_file(data, n), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    for (size_t i = 0; i < mla_gguf_count(g); i++) {
        const mla_gguf_tensor *t = mla_gguf_at(g, i);
        fuzz_inside(t->data, t->nbytes, mla_gguf_file(g));
        if (mla_gguf_find(g, t->name) != t || !mla_ggml_type_info(t->type)) fuzz_broken("a tensor that is not itself");
    }
    for (size_t i = 0; i < mla_gguf_kv_count(g); i++) check_kv(g, mla_gguf_kv_at(g, i));
    st = mla_config_from_gguf(&c, g, &err);
    if (st != MLA_OK) fuzz_refused(st, &err);
    else mla_config_free(&c);
    mla_gguf_close(g);
    return 0;
}
