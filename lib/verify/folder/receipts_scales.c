/* Receipts: stored KV scales against the side file that says how they were measured (docs/format-kv-scales.md). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "verify/folder/receipts.h"

#define SIDE_FILE "mla_kv_scales.json"
#define SIDE_MAX ((size_t)64 << 20)
#define ROUNDING 0.005 /* relative: scales are stored in bf16 at the coarsest, half an ulp is 2^-9 */

static void compare(mla_findings *f, const mla_jv *layer, const char *part, double stored, const char *name)
{
    const mla_jv *o = mla_jv_get(layer, part);
    double told = 0;
    if (!o) return;
    if (!mla_jv_f64(mla_jv_get(o, "scale"), &told)) {
        mla_findings_add(f, "%s: layer %s: %s.scale: expected a number, found %s", SIDE_FILE, name, part, mla_jv_kind(mla_jv_get(o, "scale")));
    } else if (!(fabs(stored - told) <= ROUNDING * fabs(told))) {
        const char *what = mla_jv_str(mla_jv_get(o, "what"));
        mla_findings_add(f, "layer %s: KV scale of %s: %s says %.6g, the tensor holds %.6g", name, what ? what : part, SIDE_FILE, told, stored);
    }
}

static void one_layer(mla_findings *f, const mla_model *m, const mla_jv *layers, size_t layer, const char *name)
{
    mla_kv_scale s = {0};
    mla_err why = {0};
    const mla_jv *o = mla_jv_get(layers, name);
    if (!o || mla_model_kv_scale(m, layer, &s, &why) != MLA_OK) return; /* what cannot be read is another check's finding */
    if (!s.present) {
        mla_findings_add(f, "layer %s: %s has its KV scales, the checkpoint does not", name, SIDE_FILE);
        return;
    }
    compare(f, o, "k", (double)s.k, name);
    compare(f, o, "v", (double)s.v, name);
}

void mla_receipts_side_file(mla_findings *f, const mla_model *m, const char *dir)
{
    mla_json *d = NULL;
    mla_err why = {0};
    char name[32], *path = mla_path_join(dir, SIDE_FILE);
    const mla_config *c = mla_model_config(m);
    if (path && mla_path_exists(path)) {
        if (mla_json_read(&d, path, SIDE_MAX, &why) != MLA_OK) mla_findings_add(f, "%s", why.msg);
        const char *cache = d ? mla_jv_str(mla_jv_get(mla_json_root(d), "cache")) : NULL;
        if (d && (cache && !strcmp(cache, "fp8-keys16")) != c->kv_keys16)
            mla_findings_add(f, "%s was judged with a cache of %s, config.json says %s", SIDE_FILE, cache ? cache : "fp8", c->kv_keys16 ? "fp8-keys16" : "fp8");
        const mla_jv *layers = d ? mla_jv_get(mla_json_root(d), "layers") : NULL;
        for (size_t l = 0; layers && l < c->layers; l++) {
            (void)snprintf(name, sizeof name, "%zu", l);
            if (c->layer_kind[l] == MLA_LAYER_FULL) one_layer(f, m, layers, l, name);
        }
        for (size_t j = 0; layers && j < c->mtp_layers; j++) {
            (void)snprintf(name, sizeof name, "mtp.%zu", j);
            one_layer(f, m, layers, MLA_MTP(j), name);
        }
    }
    mla_json_free(d);
    mla_free(path);
}
