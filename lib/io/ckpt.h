/* A checkpoint folder of safetensors: one file, or shards under model.safetensors.index.json.
 *
 * Opening reads headers only and settles where every tensor is. Refused by name: an index that names a missing
 * shard, a tensor that its shard lacks, a shard path that leaves the folder, a tensor in two shards, a tensor in a
 * listed shard that the index does not map. Files that no index entry names are reported through `stray`. */
#ifndef MLA_IO_CKPT_H
#define MLA_IO_CKPT_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/safetensors.h"
#include "tensor/tensor.h"

typedef struct mla_ckpt mla_ckpt;
/* Whether the folder holds any .safetensors file or an index of such; false when it cannot be read. */
bool mla_ckpt_present(const char *dir);
/* dir: a folder, or the path of one .safetensors file. */
MLA_CHECKED mla_status mla_ckpt_open(mla_ckpt **out, const char *dir, mla_err *err);
void mla_ckpt_close(mla_ckpt *c); /* NULL is fine */
const char *mla_ckpt_dir(const mla_ckpt *c);
size_t mla_ckpt_count(const mla_ckpt *c);                         /* tensors, sorted by name */
const mla_tensor *mla_ckpt_at(const mla_ckpt *c, size_t i);
const char *mla_ckpt_shard_of(const mla_ckpt *c, size_t i);       /* file name within the folder */
const mla_tensor *mla_ckpt_find(const mla_ckpt *c, const char *name);
/* The tensor, or an error that tells the three causes apart (not in the index, shard absent, header lacks it). */
MLA_CHECKED mla_status mla_ckpt_need(const mla_ckpt *c, const char *name, const mla_tensor **out, mla_err *err);
size_t mla_ckpt_shard_count(const mla_ckpt *c);
const char *mla_ckpt_shard_name(const mla_ckpt *c, size_t i);
const mla_st *mla_ckpt_shard(const mla_ckpt *c, size_t i);
size_t mla_ckpt_stray_count(const mla_ckpt *c);                   /* *.safetensors files that no entry names */
const char *mla_ckpt_stray(const mla_ckpt *c, size_t i);
#endif
