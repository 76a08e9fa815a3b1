/* Pre-tokenizer steps over PCRE2 and the numeric test. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/split.h"

#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "text/pattern.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define PATTERN_MAX 4096 /* bytes of a pattern */

typedef struct {
    pcre2_code *re; /* NULL: a digits step */
    bool individual;
} step;

struct mla_split {
    step step[MLA_SPLIT_STEPS];
    size_t n;
};

struct mla_split_work {
    pcre2_match_data *data;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack; /* made when the machine stack's share was too small once */
    char *subject; /* text with stand-ins, when it needs any */
    size_t subject_cap;
};

mla_status mla_split_new(mla_split **out, mla_err *err)
{
    *out = mla_alloc(1, 1, sizeof **out);
    return *out ? MLA_OK : mla_fail(err, MLA_ENOMEM, "pre-tokenizer");
}

void mla_split_free(mla_split *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) pcre2_code_free(s->step[i].re);
    mla_free(s);
}

static mla_status room(const mla_split *s, mla_err *err)
{
    return s->n < MLA_SPLIT_STEPS ? MLA_OK : mla_fail(err, MLA_EUNSUPPORTED, "pre-tokenizer: more than %d steps", MLA_SPLIT_STEPS);
}

mla_status mla_split_add_regex(mla_split *s, const char *pattern, size_t n, mla_err *err)
{
    mla_status st = room(s, err);
    if (st) return st;
    if (n > PATTERN_MAX) return mla_fail(err, MLA_EUNSUPPORTED, "pre-tokenizer pattern of %zu bytes: at most %d", n, PATTERN_MAX);
    st = mla_pattern_check(pattern, n, err);
    if (st) return st;
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (!cc) return mla_fail(err, MLA_ENOMEM, "pre-tokenizer pattern");
    (void)pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!re) {
        PCRE2_UCHAR msg[160];
        (void)pcre2_get_error_message(code, msg, sizeof msg);
        return mla_fail(err, MLA_EFORMAT, "pre-tokenizer pattern, byte %zu: %s", (size_t)at, (char *)msg);
    }
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without it the interpreter gives the same matches */
    s->step[s->n++] = (step){re, false};
    return MLA_OK;
}

mla_status mla_split_add_digits(mla_split *s, bool individual, mla_err *err)
{
    mla_status st = room(s, err);
    if (st) return st;
    s->step[s->n++] = (step){NULL, individual};
    return MLA_OK;
}

void mla_split_work_free(mla_split_work *w)
{
    if (!w) return;
    pcre2_match_data_free(w->data);
    pcre2_match_context_free(w->ctx);
    pcre2_jit_stack_free(w->stack);
    mla_free(w->subject);
    mla_free(w);
}

mla_status mla_split_work_new(mla_split_work **out, mla_err *err)
{
    mla_split_work *w = mla_alloc(1, 1, sizeof *w);
    if (w) {
        w->data = pcre2_match_data_create(1, NULL); /* only the whole match is asked for */
        w->ctx = pcre2_match_context_create(NULL);
    }
    if (!w || !w->data || !w->ctx) {
        mla_split_work_free(w);
        return mla_fail(err, MLA_ENOMEM, "pre-tokenizer scratch");
    }
    (void)pcre2_set_heap_limit(w->ctx, 64 << 10); /* KiB */
    *out = w;
    return MLA_OK;
}

typedef struct {
    const mla_split *s;
    mla_split_work *w;
    const char *text, *subject; /* same length; the subject is what patterns see */
    mla_piece_fn fn;
    void *ctx;
    mla_err *err;
} run;

static mla_status emit(const run *r, size_t k, size_t begin, size_t end);

/* One match attempt in subject[from..end), offsets relative to `begin`. *hit: found. */
static mla_status match(const run *r, const step *p, size_t begin, size_t end, size_t from, bool *hit)
{
    PCRE2_SPTR sub = (PCRE2_SPTR)r->subject + begin;
    size_t n = end - begin;
    /* steps in proportion to the stretch: room for the known patterns' backtracking, none for exponential ones */
    (void)pcre2_set_match_limit(r->w->ctx, n < 100000000 ? 100000 + 16 * (uint32_t)n : UINT32_MAX);
    int rc = pcre2_match(p->re, sub, n, from, PCRE2_NO_UTF_CHECK, r->w->data, r->w->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !r->w->stack) {
        r->w->stack = pcre2_jit_stack_create(64 << 10, 4 << 20, NULL);
        pcre2_jit_stack_assign(r->w->ctx, NULL, r->w->stack); /* NULL again when there is no memory */
        rc = pcre2_match(p->re, sub, n, from, PCRE2_NO_UTF_CHECK, r->w->data, r->w->ctx);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(p->re, sub, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->w->data, r->w->ctx);
    *hit = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return MLA_OK;
    PCRE2_UCHAR msg[160];
    (void)pcre2_get_error_message(rc, msg, sizeof msg);
    return mla_fail(r->err, rc == PCRE2_ERROR_NOMEMORY ? MLA_ENOMEM : MLA_EUNSUPPORTED,
                    "pre-tokenizer pattern at byte %zu of a stretch of %zu: %s", from, n, (char *)msg);
}

static mla_status run_regex(const run *r, size_t k, size_t begin, size_t end)
{
    const step *p = &r->s->step[k];
    size_t n = end - begin, done = 0, from = 0;
    while (from <= n && n) {
        bool hit;
        mla_status st = match(r, p, begin, end, from, &hit);
        if (st) return st;
        if (!hit) break;
        const PCRE2_SIZE *o = pcre2_get_ovector_pointer(r->w->data);
        size_t a = o[0], b = o[1];
        if (a > done && (st = emit(r, k + 1, begin + done, begin + a))) return st;
        if (b > a && (st = emit(r, k + 1, begin + a, begin + b))) return st;
        done = b;
        from = b;
        if (a == b) { /* an empty match: look on from the next character */
            if (b == n) break;
            uint32_t cp;
            from += mla_utf8_step(r->subject + begin + b, n - b, &cp);
        }
    }
    return done < n ? emit(r, k + 1, begin + done, end) : MLA_OK;
}

static mla_status run_digits(const run *r, size_t k, size_t begin, size_t end)
{
    mla_status st = MLA_OK;
    size_t start = begin; /* of the piece being gathered */
    bool in_number = false;
    for (size_t i = begin; i < end && !st;) {
        uint32_t cp;
        size_t len = mla_utf8_step(r->text + i, end - i, &cp);
        bool numeric = mla_uc_numeric(cp);
        if (i > start && (numeric != in_number || (numeric && r->s->step[k].individual))) {
            st = emit(r, k + 1, start, i);
            start = i;
        }
        in_number = numeric;
        i += len;
    }
    if (!st && start < end) st = emit(r, k + 1, start, end);
    return st;
}

/* Hands text[begin..end) to step k, or to the caller behind the last. */
static mla_status emit(const run *r, size_t k, size_t begin, size_t end)
{
    if (k == r->s->n) return r->fn(r->ctx, r->text + begin, end - begin, r->err);
    return r->s->step[k].re ? run_regex(r, k, begin, end) : run_digits(r, k, begin, end);
}

/* The subject for the patterns: the text itself, or a copy with stand-ins of equal length. */
static mla_status subject(mla_split_work *w, const char *text, size_t n, const char **out, mla_err *err)
{
    *out = text;
    for (size_t i = 0; i < n;) {
        if ((unsigned char)text[i] < 0xE0) { /* nothing below U+0800 needs one */
            i++;
            continue;
        }
        uint32_t cp;
        size_t len = mla_utf8_step(text + i, n - i, &cp);
        uint32_t in = mla_uc_stand_in(cp);
        if (in != cp) {
            if (*out == text) {
                if (w->subject_cap < n) {
                    mla_free(w->subject);
                    w->subject_cap = 0;
                    w->subject = mla_alloc_raw(n, 1, 1);
                    if (!w->subject) return mla_fail(err, MLA_ENOMEM, "pre-tokenizer subject of %zu bytes", n);
                    w->subject_cap = n;
                }
                memcpy(w->subject, text, n);
                *out = w->subject;
            }
            (void)mla_utf8_put(w->subject + i, in);
        }
        i += len;
    }
    return MLA_OK;
}

mla_status mla_split_run(const mla_split *s, mla_split_work *w, const char *text, size_t n, mla_piece_fn fn, void *ctx,
                         mla_err *err)
{
    run r = {.s = s, .w = w, .text = text, .fn = fn, .ctx = ctx, .err = err};
    if (n == 0) return MLA_OK;
    mla_status st = subject(w, text, n, &r.subject, err);
    return st ? st : emit(&r, 0, 0, n);
}
