/* A completion server that answers from a reference file, with faults on demand: what "mla-verify probe" is tested against.
 * usage: probe_server REFERENCE PORT_FILE DIALECT FAULT [KEY]
 * DIALECT: vllm, echo, text (echo whose tokens are texts that are no ids), step. FAULT: none, or one of those in main's list.
 * Binds the loopback on a free port, writes it to PORT_FILE, serves one connection after the other until it is killed. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/str.h"
#include "io/file.h"
#include "io/json.h"
#include "verify/reference/reference.h"

static mla_reference ref;
static const char *dialect, *fault, *key;
static size_t served;
static bool is(const char *name) { return !strcmp(fault, name); }

/* The case whose text begins with these ids; *at: position that is predicted after them. */
static const mla_ref_case *find(const int32_t *ids, size_t n)
{
    for (size_t k = 0; k < ref.n; k++) {
        const mla_ref_case *c = &ref.c[k];
        if (n < c->n_prompt || n > c->n_prompt + c->n || memcmp(ids, c->prompt, c->n_prompt * sizeof *ids)) continue;
        if (!memcmp(ids + c->n_prompt, c->completion, (n - c->n_prompt) * sizeof *ids)) return c;
    }
    return NULL;
}

typedef struct { int32_t top1, second, target; double lp1, lp2, lpt; } told;

static told tell(const mla_ref_case *c, size_t i)
{
    told t = {.top1 = c->top1[i], .target = c->completion[i], .lp1 = c->top1_logprob[i], .lp2 = c->top1_logprob[i] - c->margin[i], .lpt = c->target_logprob[i]};
    if (is("wrong") && i % 5 == 0) t.top1 = (t.top1 + 7) % 500; /* another argmax at every fifth position */
    if (t.top1 == t.target) t.lpt = t.lp1;
    for (t.second = 3; t.second == t.top1 || t.second == t.target; t.second++) continue;
    return t;
}

static void put_id(mla_str *s, int32_t id) { mla_str_printf(s, "\"%s%d\"", is("wrong-ids") ? "token_id:9" : !strcmp(dialect, "text") ? "t" : "token_id:", (int)id); }

static void vllm(mla_str *s, const mla_ref_case *c, const int32_t *ids, size_t n)
{
    mla_str_put(s, ",\"prompt_logprobs\":[null");
    for (size_t at = 1; at < n; at++) {
        if (at < c->n_prompt) {
            mla_str_printf(s, ",{\"%d\":{\"logprob\":-0.5,\"rank\":1}}", (int)ids[at]);
            continue;
        }
        told t = tell(c, at - c->n_prompt);
        mla_str_printf(s, ",{\"%d\":{\"logprob\":%.6f,\"rank\":1},\"%d\":{\"logprob\":%.6f,\"rank\":2}", (int)t.top1, is("positive") ? 3.0 : t.lp1, (int)t.second, t.lp2);
        if (t.target != t.top1 && !is("wrong-ids")) mla_str_printf(s, ",\"%d\":{\"logprob\":%.6f,\"rank\":9}", (int)t.target, t.lpt);
        mla_str_put(s, "}");
    }
    mla_str_put(s, is("short") ? "],\"x\":[" : "]");
}

static void echo(mla_str *s, const mla_ref_case *c, const int32_t *ids, size_t n)
{
    mla_str_put(s, ",\"logprobs\":{\"tokens\":[");
    for (size_t at = 0; at < n; at++) mla_str_put(s, at ? "," : ""), put_id(s, ids[at]);
    mla_str_put(s, "],\"token_logprobs\":[null");
    for (size_t at = 1; at < n; at++) mla_str_printf(s, ",%.6f", at < c->n_prompt ? -0.5 : tell(c, at - c->n_prompt).lpt);
    mla_str_put(s, "],\"top_logprobs\":[null");
    for (size_t at = 1; at < n; at++) {
        told t = at < c->n_prompt ? (told){.top1 = ids[at], .second = ids[at] + 1, .lp1 = -0.5, .lp2 = -2} : tell(c, at - c->n_prompt);
        mla_str_put(s, ",{"), put_id(s, t.top1), mla_str_printf(s, ":%.6f,", t.lp1), put_id(s, t.second), mla_str_printf(s, ":%.6f}", t.lp2);
    }
    mla_str_put(s, "]}");
}

/* Generated tokens from position i on. */
static void generate(mla_str *s, const mla_ref_case *c, size_t i, size_t n)
{
    bool content = !strcmp(dialect, "step");
    mla_str_put(s, content ? ",\"logprobs\":{\"content\":[" : ",\"logprobs\":{\"tokens\":[");
    for (size_t k = 0; k < n && i + k < c->n; k++) {
        told t = tell(c, i + k);
        if (is("decode") && k == 2) t.top1 = (t.top1 + 1) % 500;
        if (k) mla_str_put(s, ",");
        if (!content) put_id(s, t.top1);
        else {
            mla_str_printf(s, "{\"id\":%d,\"token\":\"x\",\"logprob\":%.6f,\"top_logprobs\":[{\"id\":%d,\"logprob\":%.6f},{\"id\":%d,\"logprob\":%.6f}", (int)t.top1, t.lp1,
                           (int)t.top1, t.lp1, (int)t.second, t.lp2);
            if (t.target != t.top1) mla_str_printf(s, ",{\"id\":%d,\"logprob\":%.6f}", (int)t.target, t.lpt);
            mla_str_put(s, "]}");
        }
    }
    mla_str_put(s, "]}");
}

static const char *complete(mla_str *s, const char *body, size_t n)
{
    mla_err err;
    mla_json *d;
    static int32_t ids[1 << 20];
    size_t k = 0, max = 1, v;
    if (mla_json_parse(&d, body, n, "request", &err) != MLA_OK) return "400 Bad Request";
    const mla_jv *o = mla_json_root(d);
    for (const mla_jv *p = mla_jv_first(mla_jv_get(o, "prompt")); p && k < sizeof ids / sizeof *ids; p = mla_jv_next(p))
        if (mla_jv_size(p, &v)) ids[k++] = (int32_t)v;
    (void)mla_jv_size(mla_jv_get(o, "max_tokens"), &max);
    bool prompt_logprobs = mla_jv_get(o, "prompt_logprobs") != NULL, echoes = mla_jv_get(o, "echo") != NULL;
    mla_json_free(d);
    const mla_ref_case *c = find(ids, k);
    if (!c) return "404 Not Found";
    if (!strcmp(dialect, "step") && (prompt_logprobs || echoes)) prompt_logprobs = echoes = false; /* ignores what it does not know */
    mla_str_put(s, "{\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\"\"");
    if (!is("no-logprobs")) {
        if (!strcmp(dialect, "vllm") && prompt_logprobs) vllm(s, c, ids, is("short") ? k - 1 : k);
        if ((!strcmp(dialect, "echo") || !strcmp(dialect, "text")) && echoes) echo(s, c, ids, is("short") ? k - 1 : k);
        else generate(s, c, k - c->n_prompt, max);
    }
    mla_str_put(s, "}]}");
    return "200 OK";
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w <= 0) return;
        p += w, n -= (size_t)w;
    }
}

static void reply(int fd, const char *status, const mla_str *s)
{
    mla_str h = MLA_STR_MAX(4096);
    size_t n = s->len;
    if (is("redirect")) status = "302 Found";
    if (is("500")) status = "500 Internal Server Error";
    if (is("boot") && served++ < 3) status = "503 Service Unavailable";
    mla_str_printf(&h, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n", status);
    if (is("redirect")) mla_str_put(&h, "Location: http://127.0.0.1:1/v1/completions\r\n");
    if (is("chunked")) {
        mla_str_put(&h, "Transfer-Encoding: chunked\r\n\r\n");
        send_all(fd, h.s, h.len);
        for (size_t at = 0; at < n; at += 1000) {
            size_t k = n - at < 1000 ? n - at : 1000;
            mla_str_clear(&h);
            mla_str_printf(&h, "%zx\r\n%.*s\r\n", k, (int)k, s->s + at);
            send_all(fd, h.s, h.len);
        }
        send_all(fd, "0\r\n\r\n", 5);
    } else {
        mla_str_printf(&h, "Content-Length: %zu\r\n\r\n", is("huge") ? (size_t)1 << 40 : is("cut") ? n + 100 : n);
        send_all(fd, h.s, h.len);
        if (is("slow")) send_all(fd, s->s, n / 2), sleep(30);
        else if (is("huge")) {
            static char blank[1 << 20];
            memset(blank, ' ', sizeof blank);
            for (size_t i = 0; i < 300; i++) send_all(fd, blank, sizeof blank);
        } else send_all(fd, mla_str_c(s), is("truncated") ? n / 2 : n);
    }
    mla_str_free(&h);
}

static void serve(int fd)
{
    static char in[1 << 24];
    size_t n = 0, need = 0;
    char *body = NULL;
    while (n + 1 < sizeof in) {
        ssize_t r = recv(fd, in + n, sizeof in - 1 - n, 0);
        if (r <= 0) return;
        n += (size_t)r;
        in[n] = 0;
        if (!body && (body = strstr(in, "\r\n\r\n"))) {
            body += 4;
            const char *l = strcasestr(in, "content-length:");
            need = l && l < body ? strtoul(l + 15, NULL, 10) : 0;
        }
        if (body && n - (size_t)(body - in) >= need) break;
    }
    if (!body) return;
    mla_str s = MLA_STR_MAX((size_t)1 << 28), auth = MLA_STR_MAX(4096);
    const char *status = "404 Not Found";
    mla_str_printf(&auth, "Authorization: Bearer %s\r\n", key ? key : "");
    if (key && !strstr(in, auth.s)) {
        status = "401 Unauthorized";
        mla_str_put(&s, "{\"error\":{\"message\":\"no key\"}}");
    } else if (!strncmp(in, "GET /v1/models ", 15)) {
        status = "200 OK";
        mla_str_put(&s, "{\"data\":[{\"id\":\"tiny\"}]}");
    } else if (!strncmp(in, "POST /v1/completions ", 21)) status = complete(&s, body, need);
    reply(fd, status, &s);
    mla_str_free(&s);
    mla_str_free(&auth);
}

int main(int argc, char **argv)
{
    static const char *const FAULT[] = {"none", "wrong", "decode", "wrong-ids", "short", "no-logprobs", "positive", "truncated", "cut", "500", "slow", "huge", "chunked",
                                        "redirect", "boot"};
    mla_err err;
    bool known = false;
    for (size_t i = 0; argc > 4 && i < sizeof FAULT / sizeof *FAULT; i++) known |= !strcmp(argv[4], FAULT[i]);
    if (!known) return fprintf(stderr, "usage: probe_server REFERENCE PORT_FILE vllm|echo|text|step FAULT [KEY]\n"), 2;
    dialect = argv[3], fault = argv[4], key = argc > 5 ? argv[5] : NULL;
    if (mla_reference_read(&ref, argv[1], &err) != MLA_OK) return fprintf(stderr, "%s\n", err.msg), 3;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    char text[16];
    if (s < 0 || bind(s, (struct sockaddr *)&a, sizeof a) || listen(s, 16) || getsockname(s, (struct sockaddr *)&a, &len)) return perror("probe_server"), 3;
    (void)snprintf(text, sizeof text, "%d", ntohs(a.sin_port));
    if (mla_file_write(argv[2], text, strlen(text), &err) != MLA_OK) return fprintf(stderr, "%s\n", err.msg), 3;
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int fd = accept(s, NULL, NULL);
        if (fd < 0) continue;
        serve(fd);
        close(fd);
    }
}
