/* The strict check that a text is JSON, before cJSON sees it. Private to io/. */
#ifndef MLA_IO_JSON_SCAN_H
#define MLA_IO_JSON_SCAN_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "io/json.h"

#define MLA_JSON_DEPTH 64u
#define MLA_JSON_VALUES ((size_t)1 << 22) /* 64 bytes each in cJSON: memory stays below about half a GiB */

/* Accepts exactly: one RFC 8259 value with whitespace around it; UTF-8; depth <= 64; at most MLA_JSON_VALUES values; no
 * NUL in strings, no lone surrogates; numbers of at most 63 characters (cJSON's buffer). MLA_EFORMAT names the byte. */
MLA_CHECKED mla_status mla_json_scan(const char *text, size_t n, const char *what, mla_err *err);
/* Whether everything that was ever put into v (an object or array) and below got its memory: printing refuses what did not. */
bool mla_jv_whole(const mla_jv *v);
#endif
