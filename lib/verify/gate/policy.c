/* Reading a policy: one table of fields, strict. */
#include "tensor/kv_row.h"
#include "verify/gate/policy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/file.h"
#include "io/msg.h"
#include "io/sha256.h"
#include "verify/folder/consumers.h"

#define FILE_MAX ((size_t)1 << 20)

typedef enum { BOOL, NUM, SIZE, BYTES, CHOICE, SIZES, NAMES, STRATA } kind;

typedef struct {
    const char *section, *name;
    kind kind;
    size_t at;           /* offset in mla_policy */
    double low, high;    /* of numbers and sizes */
    const char *choices; /* "a|b"; of CHOICE and NAMES */
    size_t room;         /* CHOICE: bytes; lists: offset of the count */
} field;

#define AT(m) offsetof(mla_policy, m)
#define SIZE_ROOM(m) sizeof(((mla_policy *)0)->m)

static const field FIELDS[] = {
    {"run", "kv_dtype", CHOICE, AT(kv_dtype), 0, 0, MLA_KV_TYPES, SIZE_ROOM(kv_dtype)},
    {"run", "against_kv_dtype", CHOICE, AT(against_kv_dtype), 0, 0, MLA_KV_TYPES, SIZE_ROOM(against_kv_dtype)},
    {"run", "precision", CHOICE, AT(precision), 0, 0, "reference|fast", SIZE_ROOM(precision)},
    {"receipts", "values", BOOL, AT(values), 0, 0, NULL, 0},
    {"receipts", "base", BOOL, AT(base), 0, 0, NULL, 0},
    {"receipts", "base_unchanged", BOOL, AT(base_unchanged), 0, 0, NULL, 0},
    {"receipts", "tokenizer", BOOL, AT(tokenizer), 0, 0, NULL, 0},
    {"receipts", "consumers", NAMES, AT(consumer), 0, 0, NULL, AT(n_consumer)},
    {"scales", "required", BOOL, AT(scales_required), 0, 0, NULL, 0},
    {"selfcheck", "far", BOOL, AT(far), 0, 0, NULL, 0},
    {"selfcheck", "slots", SIZE, AT(slots), 256, 1e11, NULL, 0},
    {"selfcheck", "tensor_parallel", SIZE, AT(ranks), 1, 1024, NULL, 0},
    {"parity", "min_agreement", NUM, AT(min_agreement), 0, 0.999999, NULL, 0},
    {"parity", "min_agreement_all", NUM, AT(min_agreement_all), 0, 0.999999, NULL, 0},
    {"parity", "min_exact_decodes", NUM, AT(min_exact_decodes), 0, 1, NULL, 0},
    {"parity", "max_kld", NUM, AT(max_kld), 0, 1e6, NULL, 0},
    {"parity", "max_kld_p99", NUM, AT(max_kld_p99), 0, 1e6, NULL, 0},
    {"parity", "max_ppl_ratio", NUM, AT(max_ppl_ratio), 0, 1e6, NULL, 0},
    {"parity", "near_tie_nats", NUM, AT(near_tie), 0, 10, NULL, 0},
    {"parity", "min_margin_nats", NUM, AT(min_margin), 0, 100, NULL, 0},
    {"parity", "aa_positions", SIZE, AT(aa_positions), 0, 1e9, NULL, 0},
    {"parity", "resamples", SIZE, AT(resamples), 100, 1e6, NULL, 0},
    {"parity", "seed", SIZE, AT(seed), 0, 9e15, NULL, 0},
    {"parity", "chunk", SIZE, AT(chunk), 1, 1e6, NULL, 0},
    {"parity", "rows", SIZE, AT(rows), 0, 1e9, NULL, 0},
    {"parity", "row_tokens", SIZE, AT(row_tokens), 2, 1e8, NULL, 0},
    {"parity", "contexts", SIZES, AT(context), 1, 1e8, NULL, AT(n_context)},
    {"parity", "answer_tokens", SIZE, AT(answer_tokens), 1, 1e5, NULL, 0},
    {"parity", "strata", STRATA, AT(stratum), 0, 0, NULL, AT(n_stratum)},
    {"paths", "check", NAMES, AT(check), 0, 0, "chunked|prefix|batch|threads|fp8|split", AT(n_check)},
    {"paths", "cases", SIZE, AT(path_cases), 1, 1e6, NULL, 0},
    {"paths", "tokens", SIZE, AT(path_tokens), 16, 1e8, NULL, 0},
    {"paths", "max_first_logprob", NUM, AT(max_first_logprob), 0, 100, NULL, 0},
    {"paths", "max_change", NUM, AT(max_change), 0, 100, NULL, 0},
    {"paths", "max_fp8_kld", NUM, AT(max_fp8_kld), 0, 1e6, NULL, 0},
    {"mtp", "drafts", SIZE, AT(drafts), 1, 8, NULL, 0},
    {"mtp", "cases", SIZE, AT(mtp_cases), 1, 1e6, NULL, 0},
    {"mtp", "tokens", SIZE, AT(mtp_tokens), 2, 1e6, NULL, 0},
    {"mtp", "max_acceptance_loss", NUM, AT(max_acceptance_loss), 0, 1, NULL, 0},
    {"layers", "max_error", NUM, AT(max_layer_error), 0, 1e6, NULL, 0},
    {"layers", "max_constant_share", NUM, AT(max_constant_share), 0, 1, NULL, 0},
    {"layers", "max_projection_error", NUM, AT(max_projection_error), 0, 1e6, NULL, 0},
    {"capacity", "max_kv_bytes_per_token", NUM, AT(max_kv_bytes), 0, 1e12, NULL, 0},
    {"capacity", "max_kv_ratio", NUM, AT(max_kv_ratio), 0, 1e6, NULL, 0},
    {"capacity", "gpu_memory", BYTES, AT(gpu_memory), 0, 0, NULL, 0},
    {"capacity", "context", SIZE, AT(context_tokens), 1, 1e9, NULL, 0},
    {"capacity", "min_sequences", NUM, AT(min_sequences), 0, 1e9, NULL, 0},
    {"capacity", "int32_slots", BOOL, AT(int32_slots), 0, 0, NULL, 0},
};
#define N_FIELDS (sizeof FIELDS / sizeof *FIELDS)

static const struct {
    const char *name;
    size_t flag; /* offset of its switch; SIZE_MAX: none */
} SECTIONS[] = {
    {"run", SIZE_MAX}, {"receipts", AT(receipts)}, {"scales", AT(scales)}, {"selfcheck", AT(selfcheck)}, {"parity", AT(parity)},
    {"paths", AT(paths)}, {"mtp", AT(mtp)}, {"layers", AT(layers)}, {"capacity", AT(capacity)},
};
#define N_SECTIONS (sizeof SECTIONS / sizeof *SECTIONS)

static void *slot(mla_policy *p, size_t at) { return (char *)p + at; }

static bool among(const char *choices, const char *s)
{
    size_t n = strlen(s);
    for (const char *c = choices; n && *c;) {
        size_t m = strcspn(c, "|");
        if (m == n && !strncmp(c, s, n)) return true;
        c += m + (c[m] == '|');
    }
    return false;
}

static mla_status read_num(double *out, const mla_jv *v, const char *what, double low, double high, mla_err *err)
{
    if (!mla_jv_f64(v, out)) return mla_fail(err, MLA_EFORMAT, "%s: expected a number, found %s", what, mla_jv_kind(v));
    if (!(*out >= low && *out <= high)) return mla_fail(err, MLA_EFORMAT, "%s: expected %g to %g, found %g", what, low, high, *out);
    return MLA_OK;
}

static mla_status read_size(size_t *out, const mla_jv *v, const char *what, double low, double high, mla_err *err)
{
    if (!mla_jv_size(v, out)) return mla_fail(err, MLA_EFORMAT, "%s: expected a whole number, found %s", what, mla_jv_kind(v));
    if (!((double)*out >= low && (double)*out <= high))
        return mla_fail(err, MLA_EFORMAT, "%s: expected %g to %g, found %zu", what, low, high, *out);
    return MLA_OK;
}

static mla_status read_text(char *out, size_t room, const mla_jv *v, const char *what, const char *choices, mla_err *err)
{
    const char *s = mla_jv_str(v);
    mla_quoted q;
    if (!s) return mla_fail(err, MLA_EFORMAT, "%s: expected a string, found %s", what, mla_jv_kind(v));
    if (strlen(s) + 1 > room || (choices && !among(choices, s)))
        return mla_fail(err, MLA_EFORMAT, "%s: expected %s%s, found \"%s\"", what, choices ? "one of " : "a shorter text", choices ? choices : "",
                        mla_quote(&q, s, strlen(s)));
    memcpy(out, s, strlen(s) + 1);
    return MLA_OK;
}

static mla_status list_room(const mla_jv *v, const char *what, mla_err *err)
{
    if (!mla_jv_is_arr(v)) return mla_fail(err, MLA_EFORMAT, "%s: expected an array, found %s", what, mla_jv_kind(v));
    size_t n = mla_jv_len(v);
    if (!n || n > MLA_POLICY_LIST) return mla_fail(err, MLA_EFORMAT, "%s: expected 1 to %d entries, found %zu", what, MLA_POLICY_LIST, n);
    return MLA_OK;
}

static mla_status read_stratum(mla_policy_stratum *s, const mla_jv *v, const char *what, mla_err *err)
{
    char name[96];
    mla_status st = MLA_OK;
    *s = (mla_policy_stratum){.from = NAN, .min_agreement = NAN};
    if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "%s: expected an object, found %s", what, mla_jv_kind(v));
    for (const mla_jv *f = mla_jv_first(v); f && st == MLA_OK; f = mla_jv_next(f)) {
        const char *k = mla_jv_key(f);
        mla_quoted q;
        (void)snprintf(name, sizeof name, "%s.%.40s", what, mla_quote(&q, k, strlen(k)));
        if (!strcmp(k, "by")) st = read_text(s->by, sizeof s->by, f, name, "context|language|kind", err);
        else if (!strcmp(k, "is")) st = read_text(s->is, sizeof s->is, f, name, NULL, err);
        else if (!strcmp(k, "from")) st = read_num(&s->from, f, name, 0, 1e9, err);
        else if (!strcmp(k, "min_agreement")) st = read_num(&s->min_agreement, f, name, 0, 0.999999, err);
        else if (!strcmp(k, "min_positions")) st = read_size(&s->min_positions, f, name, 0, 1e9, err);
        else st = mla_fail(err, MLA_EFORMAT, "%s: unknown field", name);
    }
    if (st == MLA_OK && (!s->by[0] || isnan(s->min_agreement)))
        st = mla_fail(err, MLA_EFORMAT, "%s: expected \"by\" and \"min_agreement\"", what);
    return st;
}

static mla_status read_list(mla_policy *p, const field *f, const mla_jv *v, const char *what, mla_err *err)
{
    size_t *n = slot(p, f->room), i = 0;
    char name[80];
    mla_status st = list_room(v, what, err);
    for (const mla_jv *e = mla_jv_first(v); e && st == MLA_OK; e = mla_jv_next(e), i++) {
        (void)snprintf(name, sizeof name, "%.60s[%zu]", what, i);
        if (f->kind == SIZES) st = read_size((size_t *)slot(p, f->at) + i, e, name, f->low, f->high, err);
        else if (f->kind == NAMES) st = read_text((char *)slot(p, f->at) + i * sizeof p->check[0], sizeof p->check[0], e, name, f->choices, err);
        else st = read_stratum((mla_policy_stratum *)slot(p, f->at) + i, e, name, err);
    }
    *n = i;
    return st;
}

static mla_status read_field(mla_policy *p, const field *f, const mla_jv *v, const char *what, mla_err *err)
{
    const char *s = mla_jv_str(v);
    switch (f->kind) {
    case BOOL:
        return mla_jv_bool(v, slot(p, f->at)) ? MLA_OK : mla_fail(err, MLA_EFORMAT, "%s: expected true or false, found %s", what, mla_jv_kind(v));
    case NUM: return read_num(slot(p, f->at), v, what, f->low, f->high, err);
    case SIZE: return read_size(slot(p, f->at), v, what, f->low, f->high, err);
    case BYTES:
        if (!s || !mla_parse_bytes(s, slot(p, f->at)))
            return mla_fail(err, MLA_EFORMAT, "%s: expected a size such as \"96GB\", found %s", what, mla_jv_kind(v));
        return MLA_OK;
    case CHOICE: return read_text(slot(p, f->at), f->room, v, what, f->choices, err);
    default: return read_list(p, f, v, what, err);
    }
}

static mla_status read_section(mla_policy *p, const mla_jv *v, const char *section, mla_err *err)
{
    char what[96];
    mla_quoted q;
    if (!mla_jv_is_obj(v)) return mla_fail(err, MLA_EFORMAT, "%s: expected an object, found %s", section, mla_jv_kind(v));
    for (const mla_jv *f = mla_jv_first(v); f; f = mla_jv_next(f)) {
        const field *hit = NULL;
        (void)snprintf(what, sizeof what, "%s.%.60s", section, mla_quote(&q, mla_jv_key(f), strlen(mla_jv_key(f))));
        for (size_t i = 0; i < N_FIELDS && !hit; i++)
            if (!strcmp(FIELDS[i].section, section) && !strcmp(FIELDS[i].name, mla_jv_key(f))) hit = &FIELDS[i];
        if (!hit) return mla_fail(err, MLA_EFORMAT, "%s: unknown field", what);
        mla_status st = read_field(p, hit, f, what, err);
        if (st != MLA_OK) return st;
    }
    return MLA_OK;
}

static mla_policy defaults(void)
{
    mla_policy p = {.near_tie = 0.1, .min_margin = 1, .aa_positions = 256, .resamples = 2000, .seed = 1, .rows = 8, .row_tokens = 1024,
                    .answer_tokens = 32, .path_cases = 4, .path_tokens = 320, .max_first_logprob = 0.06, .max_fp8_kld = 0.01, .drafts = 4, .mtp_cases = 12, .mtp_tokens = 64,
                    .kv_dtype = "f32", .precision = "reference", .against_kv_dtype = "f32"};
    for (size_t i = 0; i < N_FIELDS; i++) {
        double *d = slot(&p, FIELDS[i].at);
        if ((FIELDS[i].kind == NUM && *d == 0) || FIELDS[i].kind == BYTES) *d = NAN;
    }
    return p;
}

/* What the fields of a section mean only together. */
static mla_status check_whole(const mla_policy *p, mla_err *err)
{
    if (!isnan(p->min_sequences) && isnan(p->gpu_memory))
        return mla_fail(err, MLA_EFORMAT, "capacity.min_sequences: expected gpu_memory beside it");
    if (p->int32_slots && isnan(p->gpu_memory)) return mla_fail(err, MLA_EFORMAT, "capacity.int32_slots: expected gpu_memory beside it");
    if (p->layers && isnan(p->max_layer_error)) return mla_fail(err, MLA_EFORMAT, "layers.max_error: missing");
    if (p->paths && !p->n_check) return mla_fail(err, MLA_EFORMAT, "paths.check: missing");
    for (size_t i = 0; i < p->n_consumer; i++)
        if (!mla_consumer_find(p->consumer[i])) return mla_fail(err, MLA_EFORMAT, "receipts.consumers[%zu]: no such engine", i);
    for (size_t i = 0; i < N_SECTIONS; i++)
        if (SECTIONS[i].flag != SIZE_MAX && *(const bool *)((const char *)p + SECTIONS[i].flag)) return MLA_OK;
    return mla_fail(err, MLA_EFORMAT, "no section to judge: a policy without rules would pass everything");
}

mla_status mla_policy_from_json(mla_policy *out, const mla_jv *root, mla_err *err)
{
    mla_policy p = defaults();
    mla_quoted q;
    if (!mla_jv_is_obj(root)) return mla_fail(err, MLA_EFORMAT, "expected an object, found %s", mla_jv_kind(root));
    const char *schema = mla_jv_str(mla_jv_get(root, "schema"));
    if (!schema || strcmp(schema, MLA_POLICY_SCHEMA))
        return mla_fail(err, MLA_EFORMAT, "schema: expected \"" MLA_POLICY_SCHEMA "\", found %s",
                        schema ? mla_quote(&q, schema, strlen(schema)) : mla_jv_kind(mla_jv_get(root, "schema")));
    mla_status st = read_text(p.name, sizeof p.name, mla_jv_get(root, "name"), "name", NULL, err);
    for (const mla_jv *v = mla_jv_first(root); v && st == MLA_OK; v = mla_jv_next(v)) {
        const char *k = mla_jv_key(v);
        size_t s = 0;
        if (!strcmp(k, "schema") || !strcmp(k, "name")) continue;
        if (!strcmp(k, "comment")) {
            if (!mla_jv_str(v)) st = mla_fail(err, MLA_EFORMAT, "comment: expected a string, found %s", mla_jv_kind(v));
            continue;
        }
        while (s < N_SECTIONS && strcmp(SECTIONS[s].name, k)) s++;
        if (s == N_SECTIONS) return mla_fail(err, MLA_EFORMAT, "%s: unknown section", mla_quote(&q, k, strlen(k)));
        if (SECTIONS[s].flag != SIZE_MAX) *(bool *)slot(&p, SECTIONS[s].flag) = true;
        st = read_section(&p, v, SECTIONS[s].name, err);
    }
    if (st == MLA_OK) st = check_whole(&p, err);
    if (st == MLA_OK) *out = p;
    return st;
}

mla_status mla_policy_read(mla_policy *out, const char *path, mla_err *err)
{
    char *text = NULL;
    size_t n = 0;
    mla_json *d = NULL;
    unsigned char digest[32];
    mla_status st = mla_file_read(&text, &n, path, FILE_MAX, err);
    if (st != MLA_OK) return st;
    st = mla_json_parse(&d, text, n, path, err);
    if (st == MLA_OK) {
        st = mla_policy_from_json(out, mla_json_root(d), err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", path);
    }
    if (st == MLA_OK) {
        mla_sha256_bytes(text, n, digest);
        mla_hex(digest, 32, out->sha256);
    }
    mla_json_free(d);
    mla_free(text);
    return st;
}
