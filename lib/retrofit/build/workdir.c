/* Opening, keying and finishing OUT.partial. */
#include "retrofit/build/workdir.h"

#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "io/sha256.h"

static char *with_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    mla_str s = MLA_STR_MAX(8192);
    mla_str_putn(&s, path, n);
    mla_str_put(&s, suffix);
    if (!mla_str_ok(&s)) mla_str_free(&s);
    return s.s;
}

char *mla_workdir_piece(const mla_workdir *w, const char *name) { return mla_path_join(w->work, name); }

/* Does OUT.partial carry this key? */
static bool same_key(const mla_workdir *w, const char *hex)
{
    mla_err ignored;
    char *path = mla_workdir_piece(w, "key"), *text = NULL;
    size_t n = 0;
    bool same = path && mla_file_read(&text, &n, path, 1024, &ignored) == MLA_OK && n == 64 && memcmp(text, hex, 64) == 0;
    mla_free(path);
    mla_free(text);
    return same;
}

static mla_status make_parent(const char *out, mla_err *err)
{
    const char *slash = strrchr(out, '/');
    if (!slash || slash == out) return MLA_OK;
    char *dir = mla_strndup(out, (size_t)(slash - out));
    mla_status st = dir ? mla_dir_make(dir, err) : mla_fail(err, MLA_ENOMEM, "path of %s", out);
    mla_free(dir);
    return st;
}

mla_status mla_workdir_open(mla_workdir *w, const char *out, const unsigned char key[32], mla_log *log, mla_err *err)
{
    *w = (mla_workdir){.out = with_suffix(out, ""), .partial = with_suffix(out, ".partial")};
    char *lock = with_suffix(out, ".lock"), *keyfile = NULL, hex[65];
    mla_status st = MLA_OK;
    mla_hex(key, 32, hex);
    if (w->partial) w->work = mla_path_join(w->partial, ".mla-work");
    if (!w->out || !w->partial || !lock || !w->work) st = mla_fail(err, MLA_ENOMEM, "paths of %s", out);
    if (st == MLA_OK) st = make_parent(w->out, err);
    if (st == MLA_OK) st = mla_lock_take(&w->lock, lock, err);
    if (st == MLA_OK && mla_path_exists(w->out)) st = mla_fail(err, MLA_EINVAL, "%s exists: choose another output or remove it", out);
    if (st == MLA_OK && mla_path_exists(w->partial)) {
        w->resumed = same_key(w, hex);
        if (w->resumed) mla_info(log, "continuing %s.partial: same inputs", out);
        else {
            mla_info(log, "%s.partial is of other inputs: starting over", out);
            st = mla_dir_remove(w->partial, err);
        }
    }
    if (st == MLA_OK && !w->resumed) {
        st = mla_dir_make(w->work, err);
        keyfile = mla_workdir_piece(w, "key");
        if (st == MLA_OK && !keyfile) st = mla_fail(err, MLA_ENOMEM, "paths of %s", out);
        if (st == MLA_OK) st = mla_file_write(keyfile, hex, 64, err);
    }
    mla_free(lock);
    mla_free(keyfile);
    if (st != MLA_OK) mla_workdir_close(w);
    return st;
}

mla_status mla_workdir_finish(mla_workdir *w, mla_err *err)
{
    mla_status st = mla_dir_remove(w->work, err);
    if (st == MLA_OK) st = mla_path_rename(w->partial, w->out, err);
    return st;
}

void mla_workdir_close(mla_workdir *w)
{
    mla_lock_drop(w->lock);
    mla_free(w->out);
    mla_free(w->partial);
    mla_free(w->work);
    *w = (mla_workdir){0};
}
