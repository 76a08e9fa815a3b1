/* One libcurl handle, reused: connection kept alive between requests. */
#include "verify/probe/http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"

#define BODY_MAX ((size_t)256 << 20)
#define AGAIN 2 /* further tries of an answer that asks for patience */

struct mla_http {
    CURL *curl;
    struct curl_slist *headers;
    char *base;
    double timeout, wait_until; /* mla_now() clock */
    size_t max_body;
    mla_str *answer; /* of the request in progress */
    bool too_large, waited;
    mla_log *log;
    char why[CURL_ERROR_SIZE];
};

static size_t take(char *data, size_t size, size_t n, void *ctx)
{
    mla_http *h = ctx;
    size_t bytes = size * n;
    if (bytes > h->max_body - h->answer->len) {
        h->too_large = true;
        return 0; /* ends the transfer */
    }
    mla_str_putn(h->answer, data, bytes);
    return mla_str_ok(h->answer) ? bytes : 0;
}

static mla_status check_url(const char *url, mla_err *err)
{
    bool http = !strncmp(url, "http://", 7), https = !strncmp(url, "https://", 8);
    const char *host = url + (https ? 8 : 7);
    if (!http && !https) return mla_fail(err, MLA_EINVAL, "expected a URL that begins with http:// or https://");
    if (!*host || *host == '/') return mla_fail(err, MLA_EINVAL, "the URL names no server");
    if (memchr(host, '@', strcspn(host, "/"))) return mla_fail(err, MLA_EINVAL, "a URL with credentials would show them: give them as a key file or variable");
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == '?' || *p == '#') return mla_fail(err, MLA_EINVAL, "the URL must not have blanks, a query or a fragment");
    return MLA_OK;
}

static char *base_of(const char *url)
{
    size_t n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    if (n > 3 && !strncmp(url + n - 3, "/v1", 3)) n -= 3;
    while (n && url[n - 1] == '/') n--;
    return mla_strndup(url, n);
}

static mla_status add_header(mla_http *h, const char *text, mla_err *err)
{
    struct curl_slist *l = curl_slist_append(h->headers, text);
    if (!l) return mla_fail(err, MLA_ENOMEM, "request headers");
    h->headers = l;
    return MLA_OK;
}

static mla_status set_headers(mla_http *h, const char *bearer, mla_err *err)
{
    mla_status st = add_header(h, "Content-Type: application/json", err);
    if (st == MLA_OK) st = add_header(h, "Expect:", err); /* no 100-continue round trip */
    if (st != MLA_OK || !bearer) return st;
    for (const char *p = bearer; *p; p++)
        if ((unsigned char)*p < 0x21 || (unsigned char)*p > 0x7e) return mla_fail(err, MLA_EINVAL, "the key has a blank or a control character inside");
    mla_str line = MLA_STR_MAX(1 << 16);
    mla_str_printf(&line, "Authorization: Bearer %s", bearer);
    st = mla_str_ok(&line) ? add_header(h, line.s, err) : mla_fail(err, MLA_EINVAL, "the key is too long");
    mla_str_free(&line);
    return st;
}

static CURLcode configure(mla_http *h, const mla_http_opts *o)
{
    CURL *c = h->curl;
    CURLcode r = curl_easy_setopt(c, CURLOPT_HTTPHEADER, h->headers);
    if (!r) r = curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    if (!r) r = curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    if (!r) r = curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    if (!r) r = curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 1L);
    if (!r) r = curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 2L);
    if (!r && o->ca_file) r = curl_easy_setopt(c, CURLOPT_CAINFO, o->ca_file);
    if (!r) r = curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    if (!r) r = curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(h->timeout * 1000));
    if (!r) r = curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, ""); /* what this libcurl can decode */
    if (!r) r = curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
    if (!r) r = curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
    if (!r) r = curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->why);
    return r;
}

mla_status mla_http_open(mla_http **out, const mla_http_opts *o, mla_err *err)
{
    *out = NULL;
    mla_status st = check_url(o->url, err);
    if (st != MLA_OK) return st;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return mla_fail(err, MLA_EINTERNAL, "libcurl cannot be initialised");
    mla_http *h = mla_alloc(1, 1, sizeof *h);
    if (!h) return mla_fail(err, MLA_ENOMEM, "HTTP client");
    h->timeout = o->timeout_s > 0 ? o->timeout_s : 300;
    h->max_body = o->max_body ? o->max_body : BODY_MAX;
    h->wait_until = o->wait_s > 0 ? mla_now() + o->wait_s : 0;
    h->log = o->log;
    h->base = base_of(o->url);
    h->curl = curl_easy_init();
    st = h->base && h->curl ? set_headers(h, o->bearer, err) : mla_fail(err, MLA_ENOMEM, "HTTP client");
    CURLcode r = st == MLA_OK ? configure(h, o) : CURLE_OK;
    if (r) st = mla_fail(err, MLA_EINTERNAL, "libcurl: %s", curl_easy_strerror(r));
    if (st != MLA_OK) mla_http_close(h);
    else *out = h;
    return st;
}

void mla_http_close(mla_http *h)
{
    if (!h) return;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->headers);
    mla_free(h->base);
    mla_free(h);
}

static void pause_ms(long ms) { (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL); }

/* A server that boots refuses connections, then says 503. */
static bool wait_more(mla_http *h, CURLcode r, long status)
{
    bool booting = r == CURLE_COULDNT_CONNECT || (r == CURLE_OK && status == 503);
    if (!booting || h->wait_until <= 0 || mla_now() >= h->wait_until) return false;
    if (!h->waited) mla_info(h->log, "waiting for the server");
    h->waited = true;
    pause_ms(250);
    return true;
}

static mla_status request(mla_http *h, const char *path, mla_str *answer, long *status, mla_err *err)
{
    mla_str url = MLA_STR_MAX(8192);
    mla_str_printf(&url, "%s%s", h->base, path);
    if (!mla_str_ok(&url) || curl_easy_setopt(h->curl, CURLOPT_URL, url.s)) {
        mla_str_free(&url);
        return mla_fail(err, MLA_ENOMEM, "URL of %s", path);
    }
    CURLcode r;
    int tries = 0;
    do {
        mla_str_clear(answer);
        h->answer = answer;
        h->too_large = false;
        h->why[0] = 0;
        *status = 0;
        r = curl_easy_perform(h->curl);
        if (r == CURLE_OK) curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, status);
        if (wait_more(h, r, *status)) continue;
        if (r != CURLE_OK || (*status != 429 && *status != 503) || tries == AGAIN) break;
        pause_ms(500L << tries++);
    } while (true);
    if (r == CURLE_OK) h->wait_until = 0; /* it answers: from now on a refused connection is a failure */
    mla_str_free(&url);
    if (h->too_large) return mla_fail(err, MLA_EIO, "%s: an answer of more than %zu bytes", path, h->max_body);
    if (r == CURLE_OPERATION_TIMEDOUT) return mla_fail(err, MLA_EIO, "%s: no whole answer within %g s", path, h->timeout);
    if (r != CURLE_OK) return mla_fail(err, MLA_EIO, "%s: %s", path, h->why[0] ? h->why : curl_easy_strerror(r));
    return MLA_OK;
}

mla_status mla_http_post(mla_http *h, const char *path, const char *body, size_t n, mla_str *answer, long *status, mla_err *err)
{
    CURLcode r = curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
    if (!r) r = curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, body);
    return r ? mla_fail(err, MLA_EINTERNAL, "libcurl: %s", curl_easy_strerror(r)) : request(h, path, answer, status, err);
}

mla_status mla_http_get(mla_http *h, const char *path, mla_str *answer, long *status, mla_err *err)
{
    CURLcode r = curl_easy_setopt(h->curl, CURLOPT_HTTPGET, 1L);
    return r ? mla_fail(err, MLA_EINTERNAL, "libcurl: %s", curl_easy_strerror(r)) : request(h, path, answer, status, err);
}
