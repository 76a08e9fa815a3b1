/* Hostile input: every catalogued file is refused with one precise line in little memory; the controls open; cut and
 * bit-flipped files never crash a reader, and whatever it accepts has its bytes inside the file. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bad/bad_files.h"
#include "base/alloc.h"
#include "io/ckpt.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/suites.h"

static long peak_kib(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss;
}

/* Reads every byte that the reader promises, so that a sanitizer or the kernel objects to a wrong promise. */
static unsigned touch(const void *p, size_t n, const mla_mapped *m)
{
    const unsigned char *c = p;
    unsigned sum = 0;
    ck_assert(n == 0 || (c >= m->data && n <= m->size && (size_t)(c - m->data) <= m->size - n));
    for (size_t i = 0; i < n; i++) sum += c[i];
    return sum;
}

static mla_status open_ckpt(const char *path, mla_err *err)
{
    mla_ckpt *c;
    mla_status st = mla_ckpt_open(&c, path, err);
    if (st != MLA_OK) return st;
    for (size_t s = 0; s < mla_ckpt_shard_count(c); s++) {
        const mla_st *f = mla_ckpt_shard(c, s);
        for (size_t i = 0; i < mla_st_count(f); i++) touch(mla_st_at(f, i)->data, mla_st_at(f, i)->nbytes, mla_st_file(f));
    }
    mla_ckpt_close(c);
    return MLA_OK;
}

static mla_status open_gguf(const char *path, mla_err *err)
{
    mla_gguf *g;
    mla_status st = mla_gguf_open(&g, path, err);
    if (st != MLA_OK) return st;
    for (size_t i = 0; i < mla_gguf_count(g); i++) touch(mla_gguf_at(g, i)->data, mla_gguf_at(g, i)->nbytes, mla_gguf_file(g));
    for (size_t i = 0; i < mla_gguf_kv_count(g); i++) {
        const mla_gguf_kv *kv = mla_gguf_kv_at(g, i);
        size_t pos = 0, n;
        const char *s;
        touch(kv->data, kv->nbytes, mla_gguf_file(g));
        while (mla_gguf_str_next(kv, &pos, &s, &n)) touch(s, n, mla_gguf_file(g));
    }
    mla_gguf_close(g);
    return MLA_OK;
}

static mla_status open_any(mla_bad_kind kind, const char *path, mla_err *err)
{
    return kind == MLA_BAD_GGUF ? open_gguf(path, err) : open_ckpt(path, err);
}

START_TEST(every_hostile_file_is_refused_with_one_precise_line)
{
    mla_err err = {0};
    char path[1200], *dir = mla_test_tmpdir();
    const char *name, *expect;
    ck_assert_int_eq(mla_bad_write((size_t)_i, dir, path, sizeof path, &name, &expect), MLA_OK);
    long before = peak_kib();
    mla_status st = open_any(mla_bad_kind_of((size_t)_i), path, &err);
    long grown = peak_kib() - before;
    ck_assert_msg(st == MLA_EFORMAT || st == MLA_EIO || st == MLA_EUNSUPPORTED, "%s: %s (%s)", name, mla_status_name(st), err.msg);
    ck_assert_msg(strstr(err.msg, expect) != NULL, "%s: \"%s\" lacks \"%s\"", name, err.msg, expect);
    ck_assert_msg(strstr(err.msg, name) != NULL, "%s: \"%s\" does not name the file", name, err.msg);
    ck_assert_msg(strchr(err.msg, '\n') == NULL && strlen(err.msg) < 700, "%s: not one line: %s", name, err.msg);
    ck_assert_msg(grown < 64 * 1024, "%s: %ld KiB to refuse it", name, grown);
    drop_dir(dir);
}
END_TEST

START_TEST(the_controls_open)
{
    mla_err err;
    char path[1200], *dir = mla_test_tmpdir();
    for (int kind = MLA_BAD_SAFETENSORS; kind <= MLA_BAD_FOLDER; kind++) {
        ck_assert_int_eq(mla_good_write((mla_bad_kind)kind, dir, path, sizeof path), MLA_OK);
        ck_ok(open_any((mla_bad_kind)kind, path, &err));
    }
    drop_dir(dir);
}
END_TEST

START_TEST(names_are_unique_and_listed)
{
    mla_err err;
    char *text, path[1200], want[128];
    size_t n, count = mla_bad_count();
    const char *root = getenv("MLA_ROOT"), **name = calloc(count, sizeof *name), *expect;
    snprintf(path, sizeof path, "%s/tests/bad/README.md", root && *root ? root : ".");
    ck_ok(mla_file_read(&text, &n, path, 1 << 20, &err));
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(mla_bad_write(i, "/nonexistent", path, sizeof path, &name[i], &expect), MLA_EIO);
        snprintf(want, sizeof want, "| `%s` |", name[i]);
        ck_assert_msg(strstr(text, want) != NULL, "tests/bad/README.md lacks %s", want);
        for (size_t k = 0; k < i; k++)
            ck_assert_msg(strcmp(name[i], name[k]) || mla_bad_kind_of(i) != mla_bad_kind_of(k), "two cases are called %s", name[i]);
    }
    free(name);
    mla_free(text);
}
END_TEST

/* The bytes of a good file, changed by `change` and written as NAME in dir. */
static char *good_bytes(mla_bad_kind kind, const char *dir, size_t *n)
{
    mla_err err;
    char path[1200], *text;
    ck_assert_int_eq(mla_good_write(kind, dir, path, sizeof path), MLA_OK);
    ck_ok(mla_file_read(&text, n, path, 1 << 20, &err));
    ck_assert_int_eq(unlink(path), 0);
    return text;
}

START_TEST(every_cut_is_refused)
{
    mla_bad_kind kind = (mla_bad_kind)_i;
    mla_err err;
    size_t n;
    char *dir = mla_test_tmpdir(), *good = good_bytes(kind, dir, &n);
    const char *name = kind == MLA_BAD_GGUF ? "x.gguf" : "x.safetensors";
    ck_assert_uint_gt(n, 100);
    for (size_t k = 0; k < n; k++) {
        put_file(dir, name, good, k);
        mla_status st = open_any(kind, in_dir(dir, name), &err);
        ck_assert_msg(st == MLA_EFORMAT, "cut to %zu of %zu bytes: %s", k, n, mla_status_name(st));
    }
    put_file(dir, name, good, n);
    ck_ok(open_any(kind, in_dir(dir, name), &err));
    mla_free(good);
    drop_dir(dir);
}
END_TEST

START_TEST(no_bit_flip_crashes_a_reader)
{
    mla_bad_kind kind = (mla_bad_kind)_i;
    mla_err err;
    size_t n, refused = 0, opened = 0;
    char *dir = mla_test_tmpdir(), *good = good_bytes(kind, dir, &n);
    const char *name = kind == MLA_BAD_GGUF ? "x.gguf" : "x.safetensors";
    for (size_t bit = 0; bit < 8 * n; bit++) {
        good[bit / 8] = (char)(good[bit / 8] ^ (1 << bit % 8));
        put_file(dir, name, good, n);
        mla_status st = open_any(kind, in_dir(dir, name), &err);
        ck_assert_msg(st == MLA_OK || st == MLA_EFORMAT || st == MLA_EUNSUPPORTED, "bit %zu: %s (%s)", bit, mla_status_name(st), err.msg);
        ck_assert(st == MLA_OK || !strchr(err.msg, '\n'));
        *(st == MLA_OK ? &opened : &refused) += 1;
        good[bit / 8] = (char)(good[bit / 8] ^ (1 << bit % 8));
    }
    ck_assert_uint_gt(refused, n); /* most flips of a header matter */
    ck_assert_uint_gt(opened, 0);  /* flips of data, names and padding do not */
    mla_free(good);
    drop_dir(dir);
}
END_TEST

START_TEST(a_zero_dimension_divides_nothing)
{
    mla_err err;
    mla_gguf *g;
    char *dir = mla_test_tmpdir();
    unsigned char b[4 + 4 + 8 + 8 + 8 + 1 + 4 + 16 + 4 + 8] = "GGUF\x03";
    b[8] = 1;          /* one tensor, no metadata */
    b[24] = 1;         /* name length */
    b[32] = 'a';
    b[33] = 2;         /* n_dims: [0, 7] */
    b[45] = 7;
    b[53] = MLA_GT_Q4_0;
    put_file(dir, "z.gguf", b, sizeof b);
    ck_refused(mla_gguf_open(&g, in_dir(dir, "z.gguf"), &err), MLA_EFORMAT, "end behind the file"); /* no padding to 96 */
    unsigned char padded[96] = {0};
    memcpy(padded, b, sizeof b);
    put_file(dir, "z.gguf", padded, sizeof padded);
    ck_ok(mla_gguf_open(&g, in_dir(dir, "z.gguf"), &err));
    ck_assert(mla_gguf_at(g, 0)->nbytes == 0 && mla_gguf_at(g, 0)->ne[1] == 7);
    mla_gguf_close(g);
    drop_dir(dir);
}
END_TEST

Suite *bad_suite(void)
{
    Suite *s = suite_create("bad");
    TCase *t = tcase_create("bad");
    tcase_add_loop_test(t, every_hostile_file_is_refused_with_one_precise_line, 0, (int)mla_bad_count());
    tcase_add_test(t, the_controls_open);
    tcase_add_test(t, names_are_unique_and_listed);
    tcase_add_loop_test(t, every_cut_is_refused, MLA_BAD_SAFETENSORS, MLA_BAD_FOLDER);
    tcase_add_loop_test(t, no_bit_flip_crashes_a_reader, MLA_BAD_SAFETENSORS, MLA_BAD_FOLDER);
    tcase_add_test(t, a_zero_dimension_divides_nothing);
    suite_add_tcase(s, t);
    return s;
}
