/* The direct half of mla_file_bytes alone. Private to io/. */
#ifndef MLA_IO_FILE_BYTES_H
#define MLA_IO_FILE_BYTES_H
#include "io/file.h"

/* As mla_file_bytes, past the page cache; false where that cannot be, or the file was cut off. */
bool mla_file_direct(const mla_mapped *m, const void *p, size_t n, void *room, const void **from);
#endif
