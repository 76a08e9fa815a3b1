/* The system fails: the nth write, fsync, rename or close goes wrong, or the process dies. A reader then finds the old
 * file or the new one, never a mix, and a failed call leaves no temporary file behind.
 *
 * The definitions below take the place of libc's for the whole test binary; they fail only when told to. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "io/suites.h"

enum { WRITE, FSYNC, RENAME, CLOSE, CALLS };
static long countdown[CALLS] = {-1, -1, -1, -1}; /* fails when it reaches 0 */
static int failure;                             /* errno to give; 0: write takes only half */

static bool fails(int call) { return countdown[call] >= 0 && countdown[call]-- == 0; }

ssize_t write(int fd, const void *p, size_t n)
{
    if (fails(WRITE)) {
        if (failure == 0) return (ssize_t)syscall(SYS_write, fd, p, (n + 1) / 2);
        errno = failure;
        return -1;
    }
    return (ssize_t)syscall(SYS_write, fd, p, n);
}

int fsync(int fd)
{
    if (fails(FSYNC)) {
        errno = failure;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    if (fails(RENAME)) {
        errno = failure;
        return -1;
    }
    return (int)syscall(SYS_renameat2, -100 /* AT_FDCWD */, from, -100, to, 0);
}

int close(int fd)
{
    if (fails(CLOSE)) {
        (void)syscall(SYS_close, fd); /* Linux closes even when it reports an error */
        errno = failure;
        return -1;
    }
    return (int)syscall(SYS_close, fd);
}

static size_t temps(const char *dir)
{
    char cmd[1300];
    size_t n = 999;
    snprintf(cmd, sizeof cmd, "ls -A '%s' | grep -c tmp", dir);
    FILE *f = popen(cmd, "r");
    ck_assert(f && fscanf(f, "%zu", &n) == 1);
    pclose(f);
    return n;
}

#define SIZE ((size_t)700000)
static unsigned char old_data[100], new_data[SIZE];

/* Whether path has the new content; anything but exactly the old or the new fails. */
static bool is_new(const char *path)
{
    mla_err err;
    char *text;
    size_t n;
    ck_ok(mla_file_read(&text, &n, path, SIZE * 2, &err));
    bool fresh = n == SIZE && !memcmp(text, new_data, SIZE), stale = n == sizeof old_data && !memcmp(text, old_data, n);
    ck_assert_msg(fresh || stale, "%zu bytes that are neither the old nor the new content", n);
    mla_free(text);
    return fresh;
}

static mla_status write_pieces(const char *path, mla_err *err)
{
    mla_out *o;
    mla_status st = mla_out_open(&o, path, err);
    for (size_t at = 0; st == MLA_OK && at < SIZE; at += 100000) { /* buffered and direct writes */
        st = mla_out_write(o, new_data + at, 100000, err);
        if (st != MLA_OK) mla_out_abort(o);
    }
    return st == MLA_OK ? mla_out_commit(o, err) : st;
}

/* Fails call number k of a kind with each error, for k = 0, 1, ... until the kind is no longer reached. */
START_TEST(every_failing_call_leaves_the_old_or_the_new_file)
{
    static const int ERRORS[] = {EIO, ENOSPC, EINTR, 0};
    int call = _i;
    mla_err err;
    char *dir = mla_test_tmpdir();
    size_t failed = 0;
    for (size_t i = 0; i < SIZE; i++) new_data[i] = (unsigned char)mla_rng_u64(1, i);
    for (size_t e = 0; e < (call == WRITE ? 4 : 2); e++)
        for (long k = 0;; k++) {
            put_file(dir, "f", old_data, sizeof old_data);
            failure = ERRORS[e];
            countdown[call] = k;
            mla_status st = write_pieces(in_dir(dir, "f"), &err);
            bool reached = countdown[call] < 0;
            countdown[call] = -1;
            bool harmless = call == WRITE && (failure == EINTR || failure == 0);
            if (!reached) {
                ck_assert_int_eq(st, MLA_OK);
                ck_assert_int_ge(k, 1); /* the sweep did something */
                break;
            }
            bool fresh = is_new(in_dir(dir, "f"));
            if (harmless) {
                ck_assert_msg(st == MLA_OK && fresh, "call %ld, errno %d: %s", k, failure, err.msg);
            } else if (st != MLA_OK) {
                failed++;
                ck_assert_int_eq(st, MLA_EIO);
                ck_assert_ptr_nonnull(strstr(err.msg, failure == EIO ? "Input/output error" : "No space left"));
            } else { /* only closing a folder may fail without a word: its fsync was good */
                ck_assert(call == CLOSE && fresh);
            }
            ck_assert_uint_eq(temps(dir), 0);
        }
    ck_assert_uint_ge(failed, 2);
    drop_dir(dir);
}
END_TEST

START_TEST(safetensors_and_placing_fail_cleanly)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    mla_tensor t = {.name = "a", .dtype = MLA_U8, .ndim = 1, .shape = {SIZE}, .data = new_data, .nbytes = SIZE};
    put_file(dir, "src", old_data, sizeof old_data);
    failure = EIO;
    for (int call = WRITE; call <= CLOSE; call++) {
        if (call == CLOSE) continue; /* readers close, too: covered above */
        countdown[call] = 0;
        ck_refused(mla_st_write(in_dir(dir, "t.safetensors"), &t, 1, NULL, &err), MLA_EIO, "Input/output error");
        countdown[call] = -1;
        ck_assert(!mla_path_exists(in_dir(dir, "t.safetensors")) || call == FSYNC);
        ck_assert_uint_eq(temps(dir), 0);
    }
    countdown[RENAME] = 0;
    ck_refused(mla_file_place(in_dir(dir, "src"), in_dir(dir, "dst"), NULL, &err), MLA_EIO, "rename");
    countdown[RENAME] = -1;
    ck_assert(!mla_path_exists(in_dir(dir, "dst")));
    ck_assert_uint_eq(temps(dir), 0);
    drop_dir(dir);
}
END_TEST

START_TEST(a_killed_writer_leaves_the_old_or_the_new_file)
{
    mla_err err;
    char *dir = mla_test_tmpdir();
    size_t fresh = 0;
    for (size_t i = 0; i < SIZE; i++) new_data[i] = (unsigned char)mla_rng_u64(1, i);
    for (uint64_t i = 0; i < 60; i++) {
        put_file(dir, "f", old_data, sizeof old_data);
        pid_t child = fork();
        if (child == 0) {
            for (;;)
                if (write_pieces(in_dir(dir, "f"), &err) != MLA_OK) _exit(1);
        }
        while (i % 2 && !is_new(in_dir(dir, "f"))) usleep(200); /* every other writer gets through once, however slow the machine */
        usleep((useconds_t)mla_rng_below(5, i, 6000));
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status));
        fresh += is_new(in_dir(dir, "f"));
    }
    ck_ok(mla_dir_sweep(dir, &err));
    ck_assert_uint_eq(temps(dir), 0);
    ck_assert_uint_ge(fresh, 30);
    drop_dir(dir);
}
END_TEST

Suite *faults_suite(void)
{
    Suite *s = suite_create("faults");
    TCase *t = tcase_create("faults");
    tcase_add_loop_test(t, every_failing_call_leaves_the_old_or_the_new_file, WRITE, CALLS);
    tcase_add_test(t, safetensors_and_placing_fail_cleanly);
    tcase_add_test(t, a_killed_writer_leaves_the_old_or_the_new_file);
    suite_add_tcase(s, t);
    return s;
}
