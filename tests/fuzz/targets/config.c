/* config.json: the model's shape, and what quantization_config says of two modules. */
#include "model/config.h"

#include "fuzz.h"
#include "quant/qconfig.h"

static void try_quant(const mla_jv *v)
{
    mla_err err;
    mla_qconfig *q;
    mla_qscheme s;
    mla_status st = mla_qconfig_read(&q, v, &err);
    if (st == MLA_OK) {
        st = mla_qconfig_scheme(q, "model.layers.3.self_attn.k_proj", "Linear", &s, &err);
        if (st == MLA_OK) st = mla_qconfig_scheme(q, "model.embed_tokens", "Embedding", &s, &err);
        mla_qconfig_free(q);
    }
    if (st != MLA_OK) fuzz_refused(st, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_config c;
    mla_json *d = fuzz_json(data, n);
    if (!d) return 0;
    mla_status st = mla_config_from_json(&c, mla_json_root(d), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        if (c.layer_kind || c.architecture) fuzz_broken("a refused config is not empty");
    } else {
        if (mla_config_full_layers(&c) > c.layers) fuzz_broken("more full layers than layers");
        fuzz_touch(c.layer_kind, c.layers * sizeof *c.layer_kind);
        if (c.rope.inv_freq) fuzz_touch(c.rope.inv_freq, c.rope.rot / 2 * sizeof *c.rope.inv_freq);
        mla_config_free(&c);
    }
    try_quant(mla_jv_get(mla_json_root(d), "quantization_config"));
    mla_json_free(d);
    return 0;
}
