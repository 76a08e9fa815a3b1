/* Files: mappings, atomic writes, placing, folders, paths, locks. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file_bytes.h"
#include "io/sha256.h"
#include "io/suites.h"

static size_t entries(const char *dir) /* every name, hidden and temporary ones, too */
{
    char cmd[1300];
    snprintf(cmd, sizeof cmd, "ls -A '%s' | wc -l", dir);
    FILE *f = popen(cmd, "r");
    size_t n = 999;
    ck_assert(f && fscanf(f, "%zu", &n) == 1);
    pclose(f);
    return n;
}

static void check_content(const char *path, const void *want, size_t n)
{
    mla_err err;
    char *text;
    size_t k;
    ck_ok(mla_file_read(&text, &k, path, 1 << 26, &err));
    ck_assert_uint_eq(k, n);
    ck_assert_int_eq(memcmp(text, want, n), 0);
    ck_assert_int_eq(text[n], 0);
    mla_free(text);
}

START_TEST(mapping_shows_the_bytes_and_notices_changes)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    char path[1200];
    snprintf(path, sizeof path, "%s", put_file(dir, "a", "hello", 5));
    mla_mapped m;
    ck_ok(mla_file_map(&m, path, &err));
    mla_file_want(&m, m.data, 5);
    mla_file_want(&m, (const char *)m.data + 4, 2); /* beyond the end: nothing */
    mla_file_want(&(mla_mapped){0}, NULL, 0);
    ck_assert(m.size == 5 && !memcmp(m.data, "hello", 5));
    ck_ok(mla_file_unchanged(&m, &err));
    FILE *f = fopen(path, "ab"); /* grows in place */
    ck_assert(f && fputc('!', f) == '!' && fclose(f) == 0);
    ck_refused(mla_file_unchanged(&m, &err), MLA_EIO, "5 bytes then, 6 now");
    put_file(dir, "b", "hello", 5);
    ck_assert_int_eq(rename(in_dir(dir, "b"), path), 0);
    ck_refused(mla_file_unchanged(&m, &err), MLA_EIO, "replaced by another file");
    ck_assert_int_eq(unlink(path), 0);
    ck_refused(mla_file_unchanged(&m, &err), MLA_EIO, "cannot stat");
    mla_file_unmap(&m);
    mla_file_unmap(&m); /* a zeroed struct is fine */
    put_file(dir, "empty", "", 0);
    ck_ok(mla_file_map(&m, in_dir(dir, "empty"), &err));
    ck_assert(m.size == 0 && m.data == NULL);
    mla_file_unmap(&m);
    drop_dir(dir);
}
END_TEST

/* Any bytes of a file, both ways; a file that was cut off is refused with its name, offset and sizes. */
START_TEST(bytes_read_from_a_mapped_file)
{
    enum { N = 5 * MLA_FILE_PAGE + 123 };
    static const size_t SPAN[][2] = {{0, 1}, {0, N}, {1, N - 1}, {7, MLA_FILE_PAGE}, {MLA_FILE_PAGE, MLA_FILE_PAGE}, {N - 1, 1}, {3 * MLA_FILE_PAGE - 1, 2}, {5, 0}};
    mla_err err;
    char *dir = mla_test_tmpdir();
    char path[1200], *data = mla_alloc_raw(N, 1, 1);
    unsigned char *room = aligned_alloc(MLA_FILE_PAGE, 8 * MLA_FILE_PAGE);
    for (size_t i = 0; i < N; i++) data[i] = (char)(i * 2654435761u >> 11);
    snprintf(path, sizeof path, "%s", put_file(dir, "w", data, N));
    mla_mapped m;
    ck_ok(mla_file_map(&m, path, &err));
    for (size_t i = 0; i < sizeof SPAN / sizeof *SPAN; i++) {
        const void *from;
        size_t at = SPAN[i][0], n = SPAN[i][1];
        memset(room, 0x55, 8 * MLA_FILE_PAGE);
        ck_ok(mla_file_bytes(&m, m.data + at, n, room, &from, &err));
        ck_assert((const unsigned char *)from >= room && (const unsigned char *)from + n <= room + n + MLA_FILE_ROOM);
        ck_assert(!memcmp(from, data + at, n));
        (void)mla_file_cached(&m, m.data + at, n); /* the machine's business */
        memset(room, 0x55, 8 * MLA_FILE_PAGE);
        if (!n || !mla_file_direct(&m, m.data + at, n, room, &from)) continue; /* not every file system has direct reads */
        ck_assert(!memcmp(from, data + at, n));
        data[at] ^= 1; /* negative control */
        ck_assert(memcmp(from, data + at, n));
        data[at] ^= 1;
    }
    const void *from;
    ck_refused(mla_file_bytes(&m, m.data + 1, N, room, &from, &err), MLA_EINVAL, "outside");
    ck_assert_int_eq(truncate(path, MLA_FILE_PAGE + 10), 0);
    ck_refused(mla_file_bytes(&m, m.data + 100, 2 * MLA_FILE_PAGE, room, &from, &err), MLA_EIO, "w: expected 8192 bytes at offset 100, found 4006");
    ck_assert(!mla_file_direct(&m, m.data + 100, 2 * MLA_FILE_PAGE, room, &from));
    ck_ok(mla_file_bytes(&m, m.data, MLA_FILE_PAGE + 10, room, &from, &err));
    mla_file_unmap(&m);
    free(room), mla_free(data);
    drop_dir(dir);
}
END_TEST

START_TEST(same_size_rewrite_is_noticed)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    char path[1200];
    snprintf(path, sizeof path, "%s", put_file(dir, "a", "hello", 5));
    mla_mapped m;
    ck_ok(mla_file_map(&m, path, &err));
    struct timespec t[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = 12345, .tv_nsec = 1}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, t, 0), 0);
    ck_refused(mla_file_unchanged(&m, &err), MLA_EIO, "written to");
    mla_file_unmap(&m);
    drop_dir(dir);
}
END_TEST

START_TEST(only_regular_files_are_read)
{
    mla_err err;
    mla_mapped m;
    char *text, *dir = mla_test_tmpdir();
    size_t n;
    ck_refused(mla_file_map(&m, dir, &err), MLA_EIO, "found a folder");
    ck_refused(mla_file_map(&m, "/dev/null", &err), MLA_EIO, "regular file");
    ck_refused(mla_file_read(&text, &n, in_dir(dir, "absent"), 10, &err), MLA_EIO, "absent");
    ck_assert_int_eq(mkfifo(in_dir(dir, "pipe"), 0600), 0);
    ck_refused(mla_file_map(&m, in_dir(dir, "pipe"), &err), MLA_EIO, "regular file"); /* must not hang */
    put_file(dir, "eleven", "12345678901", 11);
    ck_refused(mla_file_read(&text, &n, in_dir(dir, "eleven"), 10, &err), MLA_EFORMAT, "at most 10");
    ck_ok(mla_file_read(&text, &n, in_dir(dir, "eleven"), 11, &err));
    mla_free(text);
    drop_dir(dir);
}
END_TEST

START_TEST(writer_shows_nothing_before_commit_and_digests_on_the_way)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    char path[1200];
    snprintf(path, sizeof path, "%s", in_dir(dir, "out.bin"));
    size_t n = 700001; /* small pieces, pieces beyond the buffer, a tail */
    unsigned char *data = malloc(n), d1[32], d2[32];
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    mla_out *o;
    ck_ok(mla_out_open(&o, path, &err));
    size_t at = 0, step[] = {1, 100, 262144, 5, 300000, 7};
    for (size_t i = 0; i < 6; i++) {
        ck_ok(mla_out_write(o, data + at, step[i], &err));
        at += step[i];
        ck_assert_uint_eq(mla_out_size(o), at);
    }
    ck_ok(mla_out_write(o, data + at, n - at, &err));
    ck_assert(!mla_path_exists(path));
    mla_out_sha256(o, d1);
    ck_ok(mla_out_commit(o, &err));
    mla_sha256_bytes(data, n, d2);
    ck_assert_int_eq(memcmp(d1, d2, 32), 0);
    check_content(path, data, n);
    ck_assert_uint_eq(entries(dir), 1);
    ck_ok(mla_out_open(&o, path, &err)); /* an aborted rewrite leaves the old file as it was */
    ck_ok(mla_out_write(o, "x", 1, &err));
    mla_out_abort(o);
    check_content(path, data, n);
    ck_assert_uint_eq(entries(dir), 1);
    free(data);
    drop_dir(dir);
}
END_TEST

START_TEST(two_writers_of_one_path_do_not_mix)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    mla_out *a, *b;
    ck_ok(mla_out_open(&a, in_dir(dir, "f"), &err));
    ck_ok(mla_out_open(&b, in_dir(dir, "f"), &err));
    ck_ok(mla_out_write(a, "aaaa", 4, &err));
    ck_ok(mla_out_write(b, "bb", 2, &err));
    ck_ok(mla_out_commit(a, &err));
    check_content(in_dir(dir, "f"), "aaaa", 4);
    ck_ok(mla_out_commit(b, &err));
    check_content(in_dir(dir, "f"), "bb", 2);
    ck_assert_uint_eq(entries(dir), 1);
    ck_refused(mla_out_open(&a, in_dir(dir, "no/such/f"), &err), MLA_EIO, "create");
    ck_refused(mla_out_open(&a, dir, &err), MLA_EIO, "is a folder");
    drop_dir(dir);
}
END_TEST

START_TEST(full_disk_leaves_the_old_file_and_no_temp)
{
    mla_err err = {0};
    char *dir = mla_test_tmpdir();
    static unsigned char block[1 << 20];
    put_file(dir, "f", "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, l;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    l = (struct rlimit){.rlim_cur = 3 << 20, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &l), 0);
    mla_out *o;
    mla_status st = MLA_OK;
    ck_ok(mla_out_open(&o, in_dir(dir, "f"), &err));
    for (int i = 0; i < 5 && st == MLA_OK; i++) st = mla_out_write(o, block, sizeof block, &err);
    ck_assert_int_eq(st, MLA_EIO);
    ck_assert_ptr_nonnull(strstr(err.msg, "too large"));
    mla_out_abort(o);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_content(in_dir(dir, "f"), "old", 3);
    ck_assert_uint_eq(entries(dir), 1);
    drop_dir(dir);
}
END_TEST

START_TEST(placing_links_or_copies_and_never_touches_the_source)
{
    mla_err err;
    const char *how = NULL;
    struct stat a, b;
    char *dir = mla_test_tmpdir();
    put_file(dir, "blob", "content", 7);
    ck_assert_int_eq(symlink("blob", in_dir(dir, "link")), 0);
    ck_ok(mla_file_place(in_dir(dir, "link"), in_dir(dir, "out"), &how, &err)); /* the blob, not the symlink */
    ck_assert_str_eq(how, "linked");
    ck_assert_int_eq(lstat(in_dir(dir, "out"), &a), 0);
    ck_assert(S_ISREG(a.st_mode));
    ck_assert_int_eq(stat(in_dir(dir, "blob"), &b), 0);
    ck_assert_uint_eq(a.st_ino, b.st_ino);
    ck_ok(mla_file_place(in_dir(dir, "blob"), in_dir(dir, "out"), &how, &err)); /* again: already that file */
    ck_assert_uint_eq(entries(dir), 3);
    put_file(dir, "other", "old", 3);
    ck_ok(mla_file_place(in_dir(dir, "blob"), in_dir(dir, "other"), NULL, &err));
    check_content(in_dir(dir, "other"), "content", 7);
    ck_refused(mla_file_place(in_dir(dir, "absent"), in_dir(dir, "x"), &how, &err), MLA_EIO, "absent");
    ck_refused(mla_file_place(dir, in_dir(dir, "x"), &how, &err), MLA_EIO, "regular file");
    char *far = mla_test_tmpdir();
    static const char *const PLACE[] = {"/dev/shm", "/tmp", "/var/tmp"}; /* one of them is another file system: no links */
    size_t p = 0;
    ck_assert_int_eq(stat(far, &b), 0);
    while (p < 3 && (stat(PLACE[p], &a) != 0 || a.st_dev == b.st_dev || access(PLACE[p], W_OK) != 0)) p++;
    if (p < 3) {
        char dst[64];
        snprintf(dst, sizeof dst, "%s/mla-place-%ld", PLACE[p], (long)getpid());
        ck_ok(mla_file_place(in_dir(dir, "blob"), dst, &how, &err));
        ck_assert_str_eq(how, "copied");
        check_content(dst, "content", 7);
        unlink(dst);
    } else {
        mla_test_skip("placing across file systems", "no folder on another file system", 1);
    }
    check_content(in_dir(dir, "blob"), "content", 7);
    drop_dir(far);
    drop_dir(dir);
}
END_TEST

START_TEST(listing_is_sorted_complete_and_loud)
{
    mla_err err;
    mla_names l;
    char *dir = mla_test_tmpdir();
    ck_ok(mla_dir_make(in_dir(dir, "sub/deep"), &err));
    ck_ok(mla_dir_make(in_dir(dir, "sub/deep"), &err)); /* twice is fine */
    ck_ok(mla_dir_make(in_dir(dir, ".git/objects"), &err));
    put_file(dir, "b", "", 0);
    put_file(dir, "a\xc3\xa9", "", 0);
    put_file(dir, "aZ", "", 0);
    put_file(dir, "sub/deep/x", "", 0);
    put_file(dir, ".gitattributes", "", 0);
    put_file(dir, ".b.tmp-123-0", "", 0); /* left by a killed run */
    put_file(dir, ".b.tmp-12x-0", "", 0); /* only looks like one */
    ck_assert_int_eq(symlink("b", in_dir(dir, "c")), 0);
    static const char *const WANT[] = {".b.tmp-12x-0", "aZ", "a\xc3\xa9", "b", "c", "sub/deep/x"};
    ck_ok(mla_dir_list(&l, dir, &err));
    ck_assert_uint_eq(l.n, 6);
    for (size_t i = 0; i < 6; i++) ck_assert_str_eq(l.name[i], WANT[i]);
    mla_names_free(&l);
    ck_ok(mla_dir_sweep(dir, &err));
    ck_assert(!mla_path_exists(in_dir(dir, ".b.tmp-123-0")) && mla_path_exists(in_dir(dir, ".b.tmp-12x-0")));
    ck_assert_int_eq(symlink("nowhere", in_dir(dir, "sub/dangling")), 0);
    ck_refused(mla_dir_list(&l, dir, &err), MLA_EIO, "sub/dangling");
    ck_assert_int_eq(unlink(in_dir(dir, "sub/dangling")), 0);
    ck_assert_int_eq(symlink("..", in_dir(dir, "sub/loop")), 0);
    ck_refused(mla_dir_list(&l, dir, &err), MLA_EUNSUPPORTED, "sub/loop");
    ck_refused(mla_dir_list(&l, in_dir(dir, "absent"), &err), MLA_EIO, "absent");
    drop_dir(dir);
}
END_TEST

START_TEST(removing_does_not_follow_links)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    ck_ok(mla_dir_make(in_dir(dir, "keep"), &err));
    put_file(dir, "keep/precious", "1", 1);
    ck_ok(mla_dir_make(in_dir(dir, "gone/a/b"), &err));
    put_file(dir, "gone/a/b/f", "1", 1);
    ck_assert_int_eq(symlink("../keep", in_dir(dir, "gone/link")), 0);
    ck_ok(mla_dir_remove(in_dir(dir, "gone"), &err));
    ck_assert(!mla_path_exists(in_dir(dir, "gone")));
    ck_assert(mla_path_exists(in_dir(dir, "keep/precious")));
    ck_ok(mla_dir_remove(in_dir(dir, "gone"), &err));
    ck_ok(mla_path_rename(in_dir(dir, "keep"), in_dir(dir, "kept"), &err));
    ck_assert(mla_path_is_dir(in_dir(dir, "kept")) && !mla_path_is_dir(in_dir(dir, "kept/precious")));
    ck_refused(mla_path_rename(in_dir(dir, "keep"), in_dir(dir, "x"), &err), MLA_EIO, "rename");
    ck_refused(mla_dir_make(in_dir(dir, "kept/precious/x"), &err), MLA_EIO, "precious");
    drop_dir(dir);
}
END_TEST

START_TEST(relative_paths_that_leave_the_folder_are_unsafe)
{
    static const char *const SAFE[] = {"a", "a/b.c", "...", "a..b", ".hidden/x"};
    static const char *const UNSAFE[] = {"", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\\b", "a\nb", "a\x7f"};
    for (size_t i = 0; i < sizeof SAFE / sizeof *SAFE; i++) ck_assert_msg(mla_path_is_safe_relative(SAFE[i]), "%s", SAFE[i]);
    for (size_t i = 0; i < sizeof UNSAFE / sizeof *UNSAFE; i++)
        ck_assert_msg(!mla_path_is_safe_relative(UNSAFE[i]), "%zu: %s", i, UNSAFE[i]);
    char *p = mla_path_join("a/", "b"), *q = mla_path_join("a", "b"), *r = mla_path_join("/", "b");
    ck_assert_str_eq(p, "a/b");
    ck_assert_str_eq(q, "a/b");
    ck_assert_str_eq(r, "/b");
    mla_free(p);
    mla_free(q);
    mla_free(r);
}
END_TEST

START_TEST(a_lock_excludes_and_dies_with_its_process)
{
    mla_err err;
    mla_lock *a, *b;
    char *dir = mla_test_tmpdir();
    char path[1200];
    snprintf(path, sizeof path, "%s", in_dir(dir, "lock"));
    ck_ok(mla_lock_take(&a, path, &err));
    ck_refused(mla_lock_take(&b, path, &err), MLA_EIO, "another process");
    mla_lock_drop(a);
    ck_assert(!mla_path_exists(path));
    pid_t child = fork();
    if (child == 0) {
        mla_free(dir); /* memcheck looks at the child, too */
        _exit(mla_lock_take(&a, path, &err) == MLA_OK ? 7 : 1); /* dies holding it */
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    ck_assert(mla_path_exists(path));
    ck_ok(mla_lock_take(&b, path, &err));
    mla_lock_drop(b);
    mla_lock_drop(NULL);
    drop_dir(dir);
}
END_TEST

START_TEST(every_failing_allocation_is_an_error_without_leftovers)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    long k = 0;
    mla_status st;
    do {
        mla_alloc_fail_after(k);
        st = mla_file_write(in_dir(dir, "f"), "text", 4, &err);
        mla_alloc_fail_after(-1);
        ck_assert(st == MLA_OK || st == MLA_ENOMEM);
        ck_assert_msg(st == MLA_OK || k == 5 || entries(dir) == 0, "allocation %ld left a file", k);
    } while (st != MLA_OK && ++k < 50);
    ck_assert(st == MLA_OK && k >= 4);
    drop_dir(dir);
}
END_TEST

Suite *file_suite(void)
{
    Suite *s = suite_create("file");
    TCase *t = tcase_create("file");
    tcase_add_test(t, mapping_shows_the_bytes_and_notices_changes);
    tcase_add_test(t, bytes_read_from_a_mapped_file);
    tcase_add_test(t, same_size_rewrite_is_noticed);
    tcase_add_test(t, only_regular_files_are_read);
    tcase_add_test(t, writer_shows_nothing_before_commit_and_digests_on_the_way);
    tcase_add_test(t, two_writers_of_one_path_do_not_mix);
    tcase_add_test(t, full_disk_leaves_the_old_file_and_no_temp);
    tcase_add_test(t, placing_links_or_copies_and_never_touches_the_source);
    tcase_add_test(t, listing_is_sorted_complete_and_loud);
    tcase_add_test(t, removing_does_not_follow_links);
    tcase_add_test(t, relative_paths_that_leave_the_folder_are_unsafe);
    tcase_add_test(t, a_lock_excludes_and_dies_with_its_process);
    tcase_add_test(t, every_failing_allocation_is_an_error_without_leftovers);
    suite_add_tcase(s, t);
    return s;
}
