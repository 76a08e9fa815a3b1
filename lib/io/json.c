/* cJSON behind a strict door: the text is scanned first (json_scan.c), duplicate keys are refused after. */
#include "io/json.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/map.h"
#include "io/file.h"
#include "io/json_scan.h"
#include "io/msg.h"

struct mla_json {
    cJSON *root;
};

#define FEW 16 /* up to this many keys, comparing all pairs is cheaper than hashing */
#define EXACT 9007199254740992.0 /* 2^53: beyond it a double no longer holds every integer */

static mla_status duplicate(const cJSON *v, const char *what, mla_err *err)
{
    mla_quoted q;
    return mla_fail(err, MLA_EFORMAT, "%s: duplicate key \"%s\"", what, mla_quote(&q, v->string, strlen(v->string)));
}

static mla_status no_duplicates(const cJSON *v, const char *what, mla_err *err)
{
    size_t n = 0;
    mla_map *seen = NULL;
    mla_status st = MLA_OK;
    if (cJSON_IsObject(v)) {
        for (const cJSON *c = v->child; c && n <= FEW; c = c->next) n++;
        if (n > FEW) st = mla_map_new(&seen, err);
    }
    for (const cJSON *c = v->child; c && st == MLA_OK; c = c->next) {
        if (seen) {
            bool had;
            st = mla_map_add(seen, c->string, strlen(c->string), 0, &had, err);
            if (st == MLA_OK && had) st = duplicate(c, what, err);
        } else if (c->string) {
            for (const cJSON *d = v->child; d != c; d = d->next)
                if (!strcmp(c->string, d->string)) {
                    st = duplicate(c, what, err);
                    break;
                }
        }
        if (st == MLA_OK && c->child) st = no_duplicates(c, what, err); /* at most MLA_JSON_DEPTH deep */
    }
    mla_map_free(seen);
    return st;
}

static mla_status adopt(mla_json **out, cJSON *root, const char *what, mla_err *err)
{
    mla_json *d = root ? mla_alloc(1, 1, sizeof *d) : NULL;
    if (!d) {
        cJSON_Delete(root);
        return mla_fail(err, MLA_ENOMEM, "%s: JSON document", what);
    }
    d->root = root;
    *out = d;
    return MLA_OK;
}

mla_status mla_json_parse(mla_json **out, const char *text, size_t n, const char *what, mla_err *err)
{
    mla_status st = mla_json_scan(text, n, what, err);
    if (st != MLA_OK) return st;
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, NULL, 0);
    if (!root) return mla_fail(err, MLA_ENOMEM, "%s: JSON document of %zu bytes", what, n);
    st = no_duplicates(root, what, err);
    if (st == MLA_OK) return adopt(out, root, what, err);
    cJSON_Delete(root);
    return st;
}

mla_status mla_json_read(mla_json **out, const char *path, size_t max, mla_err *err)
{
    char *text;
    size_t n;
    mla_status st = mla_file_read(&text, &n, path, max, err);
    if (st != MLA_OK) return st;
    st = mla_json_parse(out, text, n, path, err);
    mla_free(text);
    return st;
}

mla_status mla_json_new_object(mla_json **out, mla_err *err) { return adopt(out, cJSON_CreateObject(), "new", err); }

void mla_json_free(mla_json *d)
{
    if (!d) return;
    cJSON_Delete(d->root);
    mla_free(d);
}

mla_jv *mla_json_root(const mla_json *d) { return d->root; }

/* ---- looking ---- */
bool mla_jv_is_obj(const mla_jv *v) { return cJSON_IsObject(v); }
bool mla_jv_is_arr(const mla_jv *v) { return cJSON_IsArray(v); }
bool mla_jv_is_str(const mla_jv *v) { return cJSON_IsString(v); }
bool mla_jv_is_num(const mla_jv *v) { return cJSON_IsNumber(v); }
bool mla_jv_is_bool(const mla_jv *v) { return cJSON_IsBool(v); }
bool mla_jv_is_null(const mla_jv *v) { return cJSON_IsNull(v); }

const char *mla_jv_kind(const mla_jv *v)
{
    return !v ? "absent" : cJSON_IsObject(v) ? "object" : cJSON_IsArray(v) ? "array" : cJSON_IsString(v) ? "string"
         : cJSON_IsNumber(v) ? "number" : cJSON_IsBool(v) ? "boolean" : "null";
}

mla_jv *mla_jv_get(const mla_jv *obj, const char *key)
{
    return cJSON_IsObject(obj) ? cJSON_GetObjectItemCaseSensitive(obj, key) : NULL;
}

mla_jv *mla_jv_first(const mla_jv *v) { return v ? v->child : NULL; }
mla_jv *mla_jv_next(const mla_jv *v) { return v ? v->next : NULL; }
const char *mla_jv_key(const mla_jv *v) { return v ? v->string : NULL; }
const char *mla_jv_str(const mla_jv *v) { return cJSON_IsString(v) ? v->valuestring : NULL; }

size_t mla_jv_len(const mla_jv *v)
{
    size_t n = 0;
    for (const mla_jv *c = mla_jv_first(v); c; c = c->next) n++;
    return n;
}

bool mla_jv_bool(const mla_jv *v, bool *out)
{
    if (!cJSON_IsBool(v)) return false;
    *out = cJSON_IsTrue(v);
    return true;
}

bool mla_jv_f64(const mla_jv *v, double *out)
{
    if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble)) return false;
    *out = v->valuedouble;
    return true;
}

bool mla_jv_i64(const mla_jv *v, int64_t *out)
{
    double d; /* valuedouble, never valueint: that one saturates at 2^31 - 1 */
    if (!mla_jv_f64(v, &d) || d != trunc(d) || fabs(d) > EXACT) return false;
    *out = (int64_t)d;
    return true;
}

bool mla_jv_size(const mla_jv *v, size_t *out)
{
    int64_t i;
    if (!mla_jv_i64(v, &i) || i < 0) return false;
    *out = (size_t)i;
    return true;
}

/* ---- the hash index of one object ---- */
struct mla_jindex {
    mla_map *map; /* key -> position in at */
    mla_jv **at;
};

mla_status mla_json_index(mla_jindex **out, const mla_jv *obj, mla_err *err)
{
    if (!obj || !cJSON_IsObject(obj)) return mla_fail(err, MLA_EINVAL, "index of a JSON %s: expected an object", mla_jv_kind(obj));
    size_t n = mla_jv_len(obj), i = 0;
    mla_jindex *x = mla_alloc(1, 1, sizeof *x);
    if (!x) return mla_fail(err, MLA_ENOMEM, "index of %zu keys", n);
    x->at = mla_alloc(n, 1, sizeof *x->at);
    mla_status st = x->at ? mla_map_new(&x->map, err) : mla_fail(err, MLA_ENOMEM, "index of %zu keys", n);
    for (mla_jv *c = obj->child; c && st == MLA_OK; c = c->next, i++) {
        x->at[i] = c;
        st = mla_map_add(x->map, c->string, strlen(c->string), i, NULL, err);
    }
    if (st == MLA_OK)
        *out = x;
    else
        mla_jindex_free(x);
    return st;
}

mla_jv *mla_jindex_get(const mla_jindex *x, const char *key)
{
    size_t i;
    return mla_map_get(x->map, key, strlen(key), &i) ? x->at[i] : NULL;
}

void mla_jindex_free(mla_jindex *x)
{
    if (!x) return;
    mla_map_free(x->map);
    mla_free(x->at);
    mla_free(x);
}

/* ---- building: every function takes ownership of item and gives NULL when anything is NULL or out of memory ---- */
#define LOST 1 /* valueint, which containers do not use otherwise: a child is missing, there was no memory for it */

static mla_jv *lose(mla_jv *parent, cJSON *item)
{
    if (mla_jv_is_obj(parent) || mla_jv_is_arr(parent)) parent->valueint = LOST;
    cJSON_Delete(item);
    return NULL;
}

void mla_jv_lost(mla_jv *parent) { (void)lose(parent, NULL); }

bool mla_jv_whole(const mla_jv *v)
{
    if (!mla_jv_is_obj(v) && !mla_jv_is_arr(v)) return true;
    if (v->valueint == LOST) return false;
    for (const mla_jv *c = mla_jv_first(v); c; c = mla_jv_next(c))
        if (!mla_jv_whole(c)) return false;
    return true;
}

static mla_jv *put(mla_jv *obj, const char *key, cJSON *item)
{
    if (item && cJSON_IsObject(obj) && cJSON_AddItemToObject(obj, key, item)) return item;
    return lose(obj, item);
}

static mla_jv *set(mla_jv *obj, const char *key, cJSON *item)
{
    cJSON *old = mla_jv_get(obj, key);
    if (!old || !item) return put(obj, key, item);
    /* the replacement carries its own copy of the key; going through the key again would search twice */
    size_t n = strlen(key) + 1;
    char *k = cJSON_malloc(n);
    if (!k) return lose(obj, item);
    memcpy(k, key, n);
    if (item->string) cJSON_free(item->string);
    item->string = k;
    cJSON_ReplaceItemViaPointer(obj, old, item);
    return item;
}

static mla_jv *add(mla_jv *arr, cJSON *item)
{
    if (item && cJSON_IsArray(arr) && cJSON_AddItemToArray(arr, item)) return item;
    return lose(arr, item);
}


mla_jv *mla_jv_set_obj(mla_jv *obj, const char *key) { return set(obj, key, cJSON_CreateObject()); }
mla_jv *mla_jv_set_arr(mla_jv *obj, const char *key) { return set(obj, key, cJSON_CreateArray()); }
mla_jv *mla_jv_set_str(mla_jv *obj, const char *key, const char *s) { return s ? set(obj, key, cJSON_CreateString(s)) : NULL; }
mla_jv *mla_jv_set_f64(mla_jv *obj, const char *key, double v) { return set(obj, key, cJSON_CreateNumber(v)); }
mla_jv *mla_jv_set_size(mla_jv *obj, const char *key, size_t v) { return set(obj, key, cJSON_CreateNumber((double)v)); }
mla_jv *mla_jv_set_bool(mla_jv *obj, const char *key, bool v) { return set(obj, key, cJSON_CreateBool(v)); }
mla_jv *mla_jv_set_null(mla_jv *obj, const char *key) { return set(obj, key, cJSON_CreateNull()); }
mla_jv *mla_jv_set_copy(mla_jv *obj, const char *key, const mla_jv *v) { return v ? set(obj, key, cJSON_Duplicate(v, 1)) : NULL; }
mla_jv *mla_jv_put_obj(mla_jv *obj, const char *key) { return put(obj, key, cJSON_CreateObject()); }
mla_jv *mla_jv_put_str(mla_jv *obj, const char *key, const char *s) { return s ? put(obj, key, cJSON_CreateString(s)) : NULL; }
mla_jv *mla_jv_put_size(mla_jv *obj, const char *key, size_t v) { return put(obj, key, cJSON_CreateNumber((double)v)); }
mla_jv *mla_jv_add_obj(mla_jv *arr) { return add(arr, cJSON_CreateObject()); }
mla_jv *mla_jv_add_arr(mla_jv *arr) { return add(arr, cJSON_CreateArray()); }
mla_jv *mla_jv_add_str(mla_jv *arr, const char *s) { return s ? add(arr, cJSON_CreateString(s)) : NULL; }
mla_jv *mla_jv_add_f64(mla_jv *arr, double v) { return add(arr, cJSON_CreateNumber(v)); }
mla_jv *mla_jv_add_size(mla_jv *arr, size_t v) { return add(arr, cJSON_CreateNumber((double)v)); }

void mla_jv_remove(mla_jv *obj, const char *key)
{
    cJSON *c = mla_jv_get(obj, key);
    if (c) cJSON_Delete(cJSON_DetachItemViaPointer(obj, c));
}
