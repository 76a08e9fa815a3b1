/* A shared-rotary retrofit as a complete folder: base files, mla_artifact/shared_mla.safetensors, config.json, index. */
#ifndef MLA_RETROFIT_SHARED_GRAFT_H
#define MLA_RETROFIT_SHARED_GRAFT_H
#include "base/err.h"
#include "base/log.h"
#include "model/model.h"
#include "retrofit/shared_rotary/shared_fit.h"

/* source: hex SHA-256 of what the factors were fitted on. */
MLA_CHECKED mla_status mla_shared_graft(const char *dir, const mla_model *base, const mla_shared_fit *f, const char *source, mla_log *log, mla_err *err);
#endif
