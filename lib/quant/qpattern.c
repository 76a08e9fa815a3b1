/* Matching module names. */
#include "quant/qpattern.h"

#include <fnmatch.h>
#include <string.h>

#include "base/alloc.h"

static mla_status compile(mla_qpattern *p, mla_err *err)
{
    mla_str posix = MLA_STR_MAX(8192);
    regex_t *re = NULL;
    mla_status st = mla_qregex_translate(&posix, p->text, err);
    if (st) goto done;
    re = mla_alloc(1, 1, sizeof *re);
    if (!re) {
        st = mla_fail(err, MLA_ENOMEM, "pattern \"%s\"", p->text);
        goto done;
    }
    int rc = regcomp(re, mla_str_c(&posix), REG_EXTENDED | REG_NOSUB);
    if (rc) {
        char why[120];
        regerror(rc, re, why, sizeof why);
        st = mla_fail(err, rc == REG_ESPACE ? MLA_ENOMEM : MLA_EFORMAT, "pattern \"%s\": %s", p->text, why);
        mla_free(re);
        re = NULL;
    }
    p->re = re;
done:
    mla_str_free(&posix);
    return st;
}

mla_status mla_qpattern_make(mla_qpattern *out, mla_qpattern_kind kind, const char *text, mla_err *err)
{
    mla_qpattern p = {.kind = kind};
    mla_status st = MLA_OK;
    if (*text == 0) return mla_fail(err, MLA_EFORMAT, "an empty name pattern");
    p.text = mla_strdup(text);
    if (!p.text) return mla_fail(err, MLA_ENOMEM, "pattern");
    if (kind == MLA_QP_RE) st = compile(&p, err);
    if (st) mla_free(p.text);
    else *out = p;
    return st;
}

void mla_qpattern_drop(mla_qpattern *p)
{
    if (p->re) regfree(p->re);
    mla_free(p->re);
    p->re = NULL;
    mla_free(p->text);
    p->text = NULL;
}

static bool names_parts(const char *name, const char *part)
{
    size_t n = strlen(part);
    for (const char *at = name; (at = strstr(at, part)) != NULL; at++)
        if ((at == name || at[-1] == '.') && (at[n] == 0 || at[n] == '.')) return true;
    return false;
}

bool mla_qpattern_matches(const mla_qpattern *p, const char *name)
{
    switch (p->kind) {
    case MLA_QP_EXACT: return !strcmp(p->text, name);
    case MLA_QP_PART: return names_parts(name, p->text);
    case MLA_QP_SUBSTR: return strstr(name, p->text) != NULL;
    case MLA_QP_GLOB: return fnmatch(p->text, name, FNM_NOESCAPE) == 0;
    case MLA_QP_RE: return regexec(p->re, name, 0, NULL, 0) == 0;
    }
    return false;
}
