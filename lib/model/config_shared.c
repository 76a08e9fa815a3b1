/* text_config.shared_mla (docs/format-factors.md, section 6), alone or beside an "mla" block of ours that must agree. */
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/config_parts.h"
#include "model/shared.h"

/* The block's own words: ranks (all alike) and rotary width. A file of the plugin's maker has no such block; the factor file
 * itself tells them at opening. */
static void read_block(mla_rd *b, mla_config *c)
{
    mla_retrofit_config *m = &c->mla;
    const char *layout = mla_rd_str(b, "layout", "absent"), *file = mla_rd_str(b, "factors_file", "absent");
    const mla_jv *list = mla_rd_arr(b, "ranks");
    size_t i = 0, rank = 0;
    if (strcmp(layout, mla_layout_name(MLA_LAYOUT_SHARED)))
        mla_rd_fail(b, MLA_EFORMAT, "layout", "expected \"%s\" beside shared_mla", mla_layout_name(MLA_LAYOUT_SHARED));
    if (strcmp(file, m->factors_file)) mla_rd_fail(b, MLA_EFORMAT, "factors_file", "expected shared_mla.artifact, \"%s\"", m->factors_file);
    if (mla_jv_len(list) != c->layers) mla_rd_fail(b, MLA_EFORMAT, "ranks", "expected a list of %zu ranks, one per layer, found %zu", c->layers, mla_jv_len(list));
    for (const mla_jv *v = mla_jv_first(list); *b->st == MLA_OK && v; v = mla_jv_next(v), i++) {
        bool full = c->layer_kind[i] == MLA_LAYER_FULL, number = mla_jv_size(v, &m->rank[i]);
        if (full && !rank) rank = m->rank[i];
        if (!number || m->rank[i] != (full ? rank : 0) || m->rank[i] > c->hidden || (full && !rank))
            mla_rd_fail(b, MLA_EFORMAT, "ranks", "layer %zu: expected %s in layout shared-rotary", i,
                        full ? "one rank for all full-attention layers, 1 to the hidden size," : "0, the layer is no full attention,");
    }
    size_t most = c->kv_heads * c->rope.rot;
    m->rotary_width = mla_rd_size(b, "rotary_width", 1, most, MLA_REQUIRED);
    if (*b->st == MLA_OK && m->rotary_width % c->rope.rot)
        mla_rd_fail(b, MLA_EFORMAT, "rotary_width", "expected a multiple of %zu rotated dims, found %zu", c->rope.rot, m->rotary_width);
}

bool mla_config_read_shared(mla_rd *text, mla_config *c, bool retro)
{
    const mla_jv *at = mla_rd_obj(text, "shared_mla"), *block = mla_rd_obj(text, "mla");
    char where[64], q[96];
    if (!at || *text->st != MLA_OK) return at != NULL;
    mla_rd b = *text;
    mla_retrofit_config *m = &c->mla;
    strcpy(where, text->where);
    b.where = strcat(where, "shared_mla.");
    b.obj = at;
    if (!retro) mla_rd_fail(text, MLA_EFORMAT, "shared_mla", "not expected in architecture %s", c->architecture);
    if (*text->st == MLA_OK) *text->st = mla_shared_fits(c, text->err);
    const char *file = mla_rd_str(&b, "artifact", ""), *hex = mla_rd_str(&b, "artifact_sha256", "");
    if (!mla_path_is_safe_relative(file) || !mla_ends_with(file, ".safetensors"))
        mla_rd_fail(&b, MLA_EFORMAT, "artifact", "expected the name of a .safetensors file in this folder, found \"%s\"", mla_printable(file, q, sizeof q));
    if (!mla_parse_hex(hex, m->factors_sha256, 32))
        mla_rd_fail(&b, MLA_EFORMAT, "artifact_sha256", "expected 64 lowercase hex digits, found \"%s\"", mla_printable(hex, q, sizeof q));
    m->layout = MLA_LAYOUT_SHARED;
    m->groups = 1;
    m->dtype = MLA_F32;
    m->factors_file = mla_rd_dup(&b, file);
    m->rank = mla_alloc(c->layers, 1, sizeof *m->rank);
    if (*text->st == MLA_OK && !m->rank) *text->st = mla_fail(text->err, MLA_ENOMEM, "config: ranks");
    if (*text->st != MLA_OK || !block) return true;
    strcpy(where, text->where);
    b.where = strcat(where, "mla.");
    b.obj = block;
    read_block(&b, c);
    return true;
}
