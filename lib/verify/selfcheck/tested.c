/* The table of tested combinations: {"schema", "combinations": ["...", ...]}, sorted. */
#include "verify/selfcheck/tested.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "io/file.h"
#include "io/json.h"

const char *mla_tested_combination(mla_backend *be, size_t ranks, char *buf, size_t cap)
{
    char split[40] = "";
    const char *text = be->ops->describe(be), *compute = strstr(text, "compute "), *driver = strstr(text, "driver ");
    struct utsname u;
    if (ranks > 1) (void)snprintf(split, sizeof split, ", tensor-parallel %zu", ranks);
    if (!strncmp(text, "cuda", 4)) {
        (void)snprintf(buf, cap, "cuda %.*s, %s%s", compute ? (int)strcspn(compute, ",") : 0, compute ? compute : "", driver ? driver : "driver unknown", split);
        return buf;
    }
    if (uname(&u) != 0) (void)snprintf(u.machine, sizeof u.machine, "unknown");
    (void)snprintf(buf, cap, "%.*s on %.40s%s", (int)strcspn(text, ","), text, u.machine, split);
    return buf;
}

static mla_status read_table(mla_json **d, const mla_jv **list, const char *path, mla_err *err)
{
    mla_status st = mla_json_read(d, path, 1 << 20, err);
    if (st != MLA_OK) return st;
    const char *schema = mla_jv_str(mla_jv_get(mla_json_root(*d), "schema"));
    *list = mla_jv_get(mla_json_root(*d), "combinations");
    if (schema && !strcmp(schema, MLA_TESTED_SCHEMA) && mla_jv_is_arr(*list)) return MLA_OK;
    mla_json_free(*d);
    *d = NULL;
    return mla_fail(err, MLA_EFORMAT, "%s: expected a table " MLA_TESTED_SCHEMA " with a list \"combinations\"", path);
}

static bool listed(const mla_jv *list, const char *combination)
{
    for (const mla_jv *v = mla_jv_first(list); v; v = mla_jv_next(v))
        if (mla_jv_str(v) && !strcmp(mla_jv_str(v), combination)) return true;
    return false;
}

mla_status mla_tested_find(bool *found, const char *path, const char *combination, mla_err *err)
{
    mla_json *d = NULL;
    const mla_jv *list;
    *found = false;
    mla_status st = read_table(&d, &list, path, err);
    if (st != MLA_OK) return st;
    *found = listed(list, combination);
    mla_json_free(d);
    return MLA_OK;
}

mla_status mla_tested_record(const char *path, const char *combination, mla_err *err)
{
    mla_json *old = NULL, *d;
    const mla_jv *list = NULL;
    mla_status st = mla_path_exists(path) ? read_table(&old, &list, path, err) : MLA_OK;
    bool there = st == MLA_OK && listed(list, combination);
    if (st == MLA_OK && !there) st = mla_json_new_object(&d, err);
    if (st == MLA_OK && !there) {
        mla_jv *out = NULL;
        bool ok = mla_jv_set_str(mla_json_root(d), "schema", MLA_TESTED_SCHEMA) && (out = mla_jv_set_arr(mla_json_root(d), "combinations")), put = false;
        for (const mla_jv *v = mla_jv_first(list); ok && v; v = mla_jv_next(v)) {
            const char *s = mla_jv_str(v) ? mla_jv_str(v) : "";
            if (!put && strcmp(combination, s) < 0) ok = put = mla_jv_add_str(out, combination) != NULL;
            ok = ok && mla_jv_add_str(out, s);
        }
        if (ok && !put) ok = mla_jv_add_str(out, combination) != NULL;
        st = ok ? mla_json_write(path, mla_json_root(d), err) : mla_fail(err, MLA_ENOMEM, "table of tested combinations");
        mla_json_free(d);
    }
    mla_json_free(old);
    return st;
}
