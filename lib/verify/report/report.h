/* JUnit XML and Markdown from a verdict document. Every verify command's JSON has the same frame: "schema", "verdict",
 * "model" {...}, and "gates" [{name, verdict, reason}]; what else it holds is shown where the writer knows it.
 *
 * JUnit keeps to the subset that all readers share; a gate that is not met is a <failure>, one that could not be judged
 * an <error>. Markdown stays below 1 MiB, the limit of a job summary. */
#ifndef MLA_VERIFY_REPORT_H
#define MLA_VERIFY_REPORT_H
#include "base/err.h"
#include "base/str.h"
#include "io/json.h"
#include "verify/parity/stats.h"

/* Verdict of a rule that has nothing to judge in this model (a split of one latent group): told, counts for nothing. */
#define MLA_NOT_APPLICABLE "not applicable"
#define MLA_MARKDOWN_MAX ((size_t)1000 * 1000)

MLA_CHECKED mla_status mla_report_junit(mla_str *out, const mla_jv *doc, mla_err *err);
MLA_CHECKED mla_status mla_report_markdown(mla_str *out, const mla_jv *doc, mla_err *err);

/* Reads used by all writers of text: a number (0 when absent), a string, with a default. */
double mla_doc_num(const mla_jv *o, const char *key);
const char *mla_doc_str(const mla_jv *o, const char *key, const char *def);
/* Text of a name or message on one line: control characters become '?'. */
void mla_doc_line(mla_str *out, const char *s);
/* Adds {name, verdict, reason} to a document's "gates"; returns the new object, for figures. */
mla_jv *mla_doc_gate(mla_jv *gates, const char *name, mla_verdict v, const char *fmt, ...) MLA_PRINTF(4, 5);
/* Text without the path of folder dir: a report names no folder of this machine. Caller frees; NULL: no memory. */
char *mla_doc_local(const char *s, size_t n, const char *dir);
#endif
