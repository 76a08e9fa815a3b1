/* JUnit XML: one test case per gate, then one per case of the report that has an agreement of its own. */
#include <string.h>

#include "base/svg.h"
#include "verify/report/report.h"

typedef enum { OK, FAILURE, ERROR, SKIPPED } outcome;

static outcome outcome_of(const mla_jv *o)
{
    const char *v = mla_doc_str(o, "verdict", "");
    return !strcmp(v, "pass") ? OK : !strcmp(v, "fail") ? FAILURE : !strcmp(v, MLA_NOT_APPLICABLE) ? SKIPPED : ERROR;
}

static void put_attr(mla_str *out, const char *name, const char *value)
{
    mla_str_printf(out, " %s=\"", name);
    for (const char *p = value; *p;) { /* line breaks in an attribute would be folded: keep one line */
        size_t n = strcspn(p, "\n\r\t");
        char piece[256];
        if (n > sizeof piece - 1) n = sizeof piece - 1;
        while (n > 1 && ((unsigned char)p[n] & 0xc0) == 0x80) n--;
        memcpy(piece, p, n);
        piece[n] = '\0';
        mla_xml_text(out, piece);
        p += n;
        if (*p == '\n' || *p == '\r' || *p == '\t') {
            mla_str_put(out, " ");
            p++;
        }
    }
    mla_str_put(out, "\"");
}

static void put_case(mla_str *out, const char *suite, const char *name, outcome o, const char *reason)
{
    mla_str_put(out, "    <testcase");
    put_attr(out, "classname", suite);
    put_attr(out, "name", name);
    mla_str_put(out, " time=\"0\"");
    if (o == OK || o == SKIPPED) {
        mla_str_put(out, o == OK ? "/>\n" : "><skipped/></testcase>\n");
        return;
    }
    const char *tag = o == FAILURE ? "failure" : "error";
    mla_str_printf(out, ">\n      <%s", tag);
    put_attr(out, "message", reason);
    mla_str_printf(out, " type=\"%s\">", o == FAILURE ? "gate" : "evidence");
    mla_xml_text(out, reason);
    mla_str_printf(out, "</%s>\n    </testcase>\n", tag);
}

/* What a finding list (receipts, selfcheck) says, joined, for the body of a failed gate. */
static void put_all(mla_str *out, const mla_jv *doc, const char *suite)
{
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g))
        put_case(out, suite, mla_doc_str(g, "name", "gate"), outcome_of(g), mla_doc_str(g, "reason", "no reason given"));
    for (const mla_jv *f = mla_jv_first(mla_jv_get(doc, "findings")); f; f = mla_jv_next(f))
        put_case(out, suite, mla_doc_str(f, "name", "finding"), FAILURE, mla_doc_str(f, "text", mla_jv_str(f) ? mla_jv_str(f) : ""));
}

mla_status mla_report_junit(mla_str *out, const mla_jv *doc, mla_err *err)
{
    size_t n[4] = {0};
    const char *schema = mla_doc_str(doc, "schema", "mla-report/1");
    char suite[64];
    size_t len = strcspn(schema, "/");
    if (len > sizeof suite - 1) len = sizeof suite - 1;
    memcpy(suite, schema, len);
    suite[len] = '\0';
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g)) n[outcome_of(g)]++;
    n[FAILURE] += mla_jv_len(mla_jv_get(doc, "findings"));
    size_t all = n[OK] + n[FAILURE] + n[ERROR] + n[SKIPPED];
    mla_str_put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite");
    put_attr(out, "name", suite);
    mla_str_printf(out, " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\" time=\"0\">\n", all, n[FAILURE], n[ERROR], n[SKIPPED]);
    put_all(out, doc, suite);
    mla_str_put(out, "  </testsuite>\n</testsuites>\n");
    return mla_str_ok(out) ? MLA_OK : mla_fail(err, MLA_ENOMEM, "JUnit report of more than %zu bytes", out->max);
}
