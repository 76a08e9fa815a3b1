/* A packed folder back on disk. OUT appears when it is whole; a killed run continues when it is run again. */
#ifndef MLA_RETROFIT_UNPACK_H
#define MLA_RETROFIT_UNPACK_H
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "io/bundle.h"

/* Every file of the bundle into the new folder out; each is written only if its sha256 is the recorded one. */
MLA_CHECKED mla_status mla_unpack(const mla_bundle *b, const char *out, mla_pool *pool, mla_log *log, mla_err *err);
/* n tensors of the bundle into one new safetensors file; a name that the bundle lacks is refused. */
MLA_CHECKED mla_status mla_unpack_tensors(const mla_bundle *b, const char *const *name, size_t n, const char *out, mla_pool *pool, mla_err *err);
#endif
