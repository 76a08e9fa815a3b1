/* Where the files of a shared-rotary retrofit go. The factor file stays out of the index: engines load it by its own loader. */
#include "retrofit/shared_rotary/shared_graft.h"

#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "model/writer.h"

static mla_status write_config(const char *dir, const mla_model *base, const mla_shared_fit *f, const unsigned char digest[32], const mla_writer_opts *wo,
                               mla_err *err)
{
    const mla_config *c = mla_model_config(base);
    mla_json *doc = NULL;
    char file[] = MLA_SHARED_FILE, *path = mla_path_join(dir, "config.json");
    mla_retrofit_config r = {.layout = MLA_LAYOUT_SHARED, .groups = 1, .dtype = MLA_F32, .factors_file = file, .rotary_width = f->keys * c->rope.rot};
    r.rank = mla_alloc(c->layers, 1, sizeof *r.rank);
    memcpy(r.factors_sha256, digest, 32);
    mla_status st = r.rank && path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "config of %zu layers", c->layers);
    for (size_t i = 0; st == MLA_OK && i < f->layers; i++) r.rank[f->result[i].layer] = f->rank;
    if (st == MLA_OK) st = mla_writer_config(&doc, base, &r, wo, err);
    if (st == MLA_OK) st = mla_json_write(path, mla_json_root(doc), err);
    mla_json_free(doc);
    mla_free(r.rank);
    mla_free(path);
    return st;
}

mla_status mla_shared_graft(const char *dir, const mla_model *base, const mla_shared_fit *f, const char *source, mla_log *log, mla_err *err)
{
    mla_writer_opts wo = {.dtype = MLA_F32, .log = log}; /* of a GGUF base: its values need not fit bf16 */
    unsigned char digest[32];
    char *path = mla_path_join(dir, MLA_SHARED_FILE), *folder = mla_path_join(dir, "mla_artifact");
    mla_placed placed = {0};
    mla_status st = path && folder ? MLA_OK : mla_fail(err, MLA_ENOMEM, "graft");
    if (st == MLA_OK) st = mla_writer_place_base(base, dir, &wo, &placed, err);
    if (st == MLA_OK) st = mla_dir_make(folder, err);
    if (st == MLA_OK) st = mla_shared_write(path, base, f->factors, source, digest, err);
    if (st == MLA_OK) st = mla_writer_index(base, dir, NULL, 0, err);
    if (st == MLA_OK) st = write_config(dir, base, f, digest, &wo, err);
    if (st == MLA_OK)
        mla_info(log, "base files: %zu linked, %zu cloned, %zu copied, %zu written", placed.linked, placed.cloned, placed.copied, placed.written);
    mla_free(path);
    mla_free(folder);
    return st;
}
