/* What the fuzz targets share: checks, and places for the input. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/receipt.h"

void fuzz_broken(const char *what)
{
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

void fuzz_refused(mla_status st, const mla_err *err)
{
    if (st != MLA_EFORMAT && st != MLA_EUNSUPPORTED && st != MLA_EIO && st != MLA_EINVAL) fuzz_broken(mla_status_name(st));
    if (!err->msg[0] || strchr(err->msg, '\n')) fuzz_broken("an error is not one line");
}

void fuzz_touch(const void *p, size_t n)
{
    static volatile unsigned char sink;
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++) sink = c[i];
    (void)sink;
}

void fuzz_inside(const void *p, size_t n, const mla_mapped *m)
{
    const unsigned char *c = p;
    if (n && (c < m->data || n > m->size || (size_t)(c - m->data) > m->size - n)) fuzz_broken("bytes outside the file");
    fuzz_touch(p, n);
}

const char *fuzz_file(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[40];
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, n, 0) != (ssize_t)n) fuzz_broken("cannot write the input");
    return path;
}

static char folder[64];

static void drop_folder(void)
{
    mla_err err;
    (void)!mla_dir_remove(folder, &err);
}

const char *fuzz_folder(void)
{
    if (folder[0]) return folder;
    (void)snprintf(folder, sizeof folder, "%s/mla-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder)) fuzz_broken("no folder for the inputs");
    (void)atexit(drop_folder);
    return folder;
}

void fuzz_fix_root(mla_jv *obj)
{
    static const char GIVES[] = "its own files give \"";
    mla_err err;
    mla_manifest m;
    mla_status st = mla_manifest_from_json(&m, obj, &err);
    mla_manifest_free(&m);
    char *own = st == MLA_OK ? NULL : strstr(err.msg, GIVES);
    if (!own) return;
    own += sizeof GIVES - 1;
    own[strcspn(own, "\"")] = 0;
    if (!mla_jv_set_str(obj, "root_digest", own)) fuzz_broken("no memory for the root digest");
}

mla_json *fuzz_json(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_json *d;
    mla_status st = mla_json_parse(&d, (const char *)data, n, "input", &err);
    if (st == MLA_OK) return d;
    fuzz_refused(st, &err);
    return NULL;
}
