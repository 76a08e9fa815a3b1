/* Private to the bundle: what an opened one holds. */
#ifndef MLA_IO_BUNDLE_READ_H
#define MLA_IO_BUNDLE_READ_H
#include "io/bundle_impl.h"
#include "io/file.h"

struct mla_bundle {
    mla_mapped map;
    size_t chunk, data_end;  /* frames lie in [8, data_end) */
    mla_manifest man;
    mla_bundle_file *file;   /* parts of each file of the manifest */
    unsigned char sha256[32];
};
#endif
