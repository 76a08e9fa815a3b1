/* HTTP requests to one server, over libcurl (http.c is its only home): JSON in, JSON out, nothing followed and nothing trusted.
 *
 * TLS certificates are verified, redirects are not followed, answers are bounded in time and size. The authorization
 * header is never part of a message. */
#ifndef MLA_VERIFY_HTTP_H
#define MLA_VERIFY_HTTP_H
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

typedef struct mla_http mla_http;
typedef struct {
    const char *url;      /* http:// or https://, up to the path before "/v1"; a trailing "/v1" is fine */
    const char *bearer;   /* secret of "Authorization: Bearer", NULL: none; copied, never printed */
    const char *ca_file;  /* PEM of certificates to trust instead of the system's; NULL: the system's */
    double timeout_s;     /* of one request as a whole; 0: 300 */
    double wait_s;        /* a server that is still booting: refused connections and 503 are tried again this long */
    size_t max_body;      /* bytes of an answer at most; 0: 256 MiB */
    mla_log *log;
} mla_http_opts;

/* Refuses other schemes, credentials inside the URL, control characters in the secret. */
MLA_CHECKED mla_status mla_http_open(mla_http **out, const mla_http_opts *o, mla_err *err);
void mla_http_close(mla_http *h); /* NULL is fine */

/* POSTs body to URL + path. Any status gives MLA_OK and *status; MLA_EIO: no answer (refused, cut short, too slow, too large). 429
 * and 503 are tried twice more. The answer's bytes are NUL-terminated in *answer (cleared first). */
MLA_CHECKED mla_status mla_http_post(mla_http *h, const char *path, const char *body, size_t n, mla_str *answer, long *status, mla_err *err);
/* GET, for a list of models. */
MLA_CHECKED mla_status mla_http_get(mla_http *h, const char *path, mla_str *answer, long *status, mla_err *err);
#endif
