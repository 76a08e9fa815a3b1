/* References and probe.json files: an accepted one is whole, and what is written of it reads back as the same bytes. */
#include "verify/reference/reference.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "fuzz.h"

static void check_cases(const mla_reference *r)
{
    for (size_t i = 0; i < r->n; i++) {
        const mla_ref_case *c = &r->c[i];
        if (!c->name || !c->n_prompt || !c->n) fuzz_broken("an empty case");
        fuzz_touch(c->prompt, c->n_prompt * sizeof *c->prompt);
        fuzz_touch(c->completion, c->n * sizeof *c->completion);
        fuzz_touch(c->top1, c->n * sizeof *c->top1);
        fuzz_touch(c->confident, c->n * sizeof *c->confident);
        fuzz_touch(c->judged, c->n * sizeof *c->judged);
    }
    (void)mla_reference_positions(r);
    (void)mla_reference_longest(r);
}

static char *written(const mla_reference *r, size_t *n)
{
    mla_err err;
    char path[128], *text;
    (void)snprintf(path, sizeof path, "%s/reference.json", fuzz_folder());
    if (mla_reference_write(r, path, &err) != MLA_OK || mla_file_read(&text, n, path, 64 * FUZZ_MAX, &err) != MLA_OK) fuzz_broken(err.msg);
    return text;
}

static void check_again(const mla_reference *r)
{
    mla_err err;
    mla_reference q = {0};
    size_t n, m;
    char *a = written(r, &n);
    if (mla_reference_read(&q, fuzz_file((const uint8_t *)a, n), &err) != MLA_OK) fuzz_broken(err.msg);
    char *b = written(&q, &m);
    if (n != m || memcmp(a, b, n)) fuzz_broken("writing is not stable");
    mla_free(a);
    mla_free(b);
    mla_reference_free(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_reference r = {0};
    mla_status st = mla_reference_read(&r, fuzz_file(data, n), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    check_cases(&r);
    if (!r.probe) check_again(&r);
    mla_reference_free(&r);
    return 0;
}
