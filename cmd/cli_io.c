/* What subcommands share beyond parsing: stdout, the backend they asked for, files that come with the toolkit. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli.h"
#include "io/file.h"

mla_status cli_backend_opts(const cli *c, mla_backend_opts *out, mla_err *err)
{
    *out = (mla_backend_opts){.device = c->device, .threads = c->threads};
    if (c->isa && !mla_isa_parse(c->isa, &out->isa)) return mla_fail(err, MLA_EINVAL, "--isa: unknown name \"%s\"", c->isa);
    return MLA_OK;
}

mla_status cli_backend_open(const cli *c, mla_backend **out, mla_err *err)
{
    mla_backend_opts o;
    if (cli_backend_opts(c, &o, err) != MLA_OK) return err->status;
    return mla_backend_open(out, &o, err);
}

mla_status cli_print(const mla_str *text, mla_err *err)
{
    if (!mla_str_ok(text)) return mla_fail(err, MLA_ENOMEM, "output of more than %zu bytes", text->max);
    errno = 0;
    if (fwrite(mla_str_c(text), 1, text->len, stdout) != text->len || fflush(stdout) != 0)
        return mla_fail(err, MLA_EIO, "stdout: cannot write: %s", strerror(errno));
    return MLA_OK;
}

mla_status cli_print_json(const mla_jv *v, mla_err *err)
{
    mla_str text = MLA_STR_MAX((size_t)1 << 30);
    mla_status st = mla_json_print(&text, v, true, err);
    if (st == MLA_OK) st = cli_print(&text, err);
    mla_str_free(&text);
    return st;
}

mla_status cli_answer(const cli *c, cli_text_fn text, cli_json_fn json, const void *what, mla_err *err)
{
    if (!c->json) {
        mla_str s = MLA_STR_MAX((size_t)1 << 20);
        text(what, &s);
        mla_status st = cli_print(&s, err);
        mla_str_free(&s);
        return st;
    }
    mla_json *d;
    if (mla_json_new_object(&d, err) != MLA_OK) return err->status;
    json(what, mla_json_root(d));
    mla_status st = cli_print_json(mla_json_root(d), err);
    mla_json_free(d);
    return st;
}

/* dir + rest + name when that file exists, else NULL. */
static char *try_path(const char *dir, const char *rest, const char *name)
{
    mla_str p = MLA_STR_MAX(2 * PATH_MAX);
    mla_str_printf(&p, "%s%s%s", dir, rest, name);
    char *out = mla_str_ok(&p) && mla_path_exists(p.s) ? mla_strdup(p.s) : NULL;
    mla_str_free(&p);
    return out;
}

mla_status cli_data_file(char **out, const char *name, mla_err *err)
{
    static const char *const REST[] = {"/../", "/../../", "/../../../", "/../share/mla-toolkit/"};
    char exe[PATH_MAX] = "";
    const char *data = getenv("MLA_DATA");
    *out = data && *data ? try_path(data, "/", name) : NULL;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash = n > 0 ? strrchr(exe, '/') : NULL;
    if (slash) *slash = '\0';
    for (size_t i = 0; slash && !*out && i < sizeof REST / sizeof *REST; i++) *out = try_path(exe, REST[i], name);
    if (!*out) *out = try_path(".", "/", name);
    if (!*out)
        return mla_fail(err, MLA_EIO, "%s: not found in $MLA_DATA, beside the program or in its ../share/mla-toolkit; name a file",
                        name);
    return MLA_OK;
}

char *cli_base_name(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t b = n;
    while (b > 0 && path[b - 1] != '/') b--;
    if (b == n || (n - b == 1 && path[b] == '.') || (n - b == 2 && !strncmp(path + b, "..", 2))) {
        char *real = realpath(path, NULL); /* "." and "..": ask for the folder's own name */
        char *s = real && strcmp(real, "/") ? strrchr(real, '/') : NULL;
        char *out = mla_strdup(s ? s + 1 : "model");
        free(real);
        return out;
    }
    return mla_strndup(path + b, n - b);
}
