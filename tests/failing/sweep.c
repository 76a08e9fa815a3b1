/* Runs the programs of PROGS once per call that can fail, each time with that one failing, until none is left to fail.
 *
 *   sweep PROGS MODEL STRIDE [CASE [CALL]]    STRIDE n: every nth call only; "failing: N passed, N failed"
 *
 * JOBS (one a core) processes share the calls, each in a folder of its own. MODEL is a folder with a model, its tokenizer,
 * text.jsonl and prompts.jsonl of a size for milliseconds. After each run: the program ended by itself; with exit 0 the output
 * is the same as without a failure ("swap": of the source before or after it was replaced); with exit 3 there is one line on
 * stderr and the output is absent, as it was before, or whole; nothing temporary lies beside it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "io/file.h"
#include "io/sha256.h"

typedef struct {
    const char *name, *program, *argv[16]; /* arguments beginning with '@' are paths in the work folder */
    const char *out;                       /* file or folder in the work folder */
    bool in_place;                         /* a copy of the model, changed by the run */
} kase;

static const kase CASES[] = {
    {"build", "mla-retrofit", {"build", "@model", "@out", "--keep", "1", "--quiet"}, "out", false},
    {"record", "mla-verify", {"record", "@model", "--prompts", "@model/prompts.jsonl", "--out", "@out", "--max-tokens", "3", "--quiet"}, "out", false},
    {"calibrate", "mla-calibrate", {"fp8", "@out", "--corpus", "@model/text.jsonl", "--tokens", "64", "--row-tokens", "32", "--judge-tokens", "0", "--quiet"}, "out", true},
    {"pack", "mla-retrofit", {"pack", "@model", "@out.mlapack", "--quiet"}, "out.mlapack", false},
    {"unpack", "mla-retrofit", {"unpack", "@model.mlapack", "@out", "--quiet"}, "out", false},
};
static const struct {
    const char *call;
    int error;
    const char *says; /* what the line must have; NULL: any line */
} FAULTS[] = {
    {"alloc", ENOMEM, NULL},         {"open", EIO, "Input/output error"},    {"open", EMFILE, "Too many open files"},
    {"open", EINTR, NULL},           {"read", EIO, "Input/output error"},    {"read", EINTR, NULL},
    {"read", 0, NULL},               {"write", ENOSPC, "No space left"},     {"write", EIO, "Input/output error"},
    {"write", EINTR, NULL},          {"write", 0, NULL},                     {"fsync", EIO, "Input/output error"},
    {"rename", ENOSPC, "No space left"}, {"mmap", ENOMEM, NULL},             {"close", EIO, NULL},
    {"link", EIO, NULL},             {"mkdir", ENOSPC, "No space left"}, {"swap", 0, NULL},
};

#define CASE_N (sizeof CASES / sizeof *CASES)
#define FAULT_N (sizeof FAULTS / sizeof *FAULTS)

typedef struct {
    size_t runs[CASE_N][FAULT_N], refused[CASE_N][FAULT_N], failed; /* runs in which the call came to fail */
    bool done[CASE_N][FAULT_N];
} tally;

static const char *progs, *model;
static char work[64];
static tally *sum; /* of this process */

static const char *in(const char *name) /* ring of 32: a path in the work folder */
{
    static char path[32][256];
    static size_t at;
    char *p = path[at++ % 32];
    (void)snprintf(p, sizeof path[0], "%s/%s", work, name);
    return p;
}

static void must(mla_status st, const mla_err *err)
{
    if (st == MLA_OK) return;
    fprintf(stderr, "failing: %s\n", err->msg);
    exit(3);
}

static void add_file(mla_sha256 *h, const char *name, const char *path)
{
    mla_err err;
    char *text;
    size_t n;
    must(mla_file_read(&text, &n, path, (size_t)1 << 26, &err), &err);
    mla_sha256_update(h, name, strlen(name) + 1);
    mla_sha256_update(h, text, n);
    mla_free(text);
}

/* 64 digits for a file's or folder's names and content; "" when absent. */
static void content(char hex[65], const char *path)
{
    mla_err err;
    mla_sha256 *h;
    mla_names l = {0};
    unsigned char d[32];
    hex[0] = 0;
    if (!mla_path_exists(path)) return;
    must(mla_sha256_new(&h, &err), &err);
    if (mla_path_is_dir(path)) must(mla_dir_list(&l, path, &err), &err);
    else add_file(h, "", path);
    for (size_t i = 0; i < l.n; i++) {
        char *p = mla_path_join(path, l.name[i]);
        add_file(h, l.name[i], p);
        mla_free(p);
    }
    mla_sha256_get(h, d);
    mla_hex(d, 32, hex);
    mla_sha256_free(h);
    mla_names_free(&l);
}

static void put_model(const char *name)
{
    mla_err err;
    mla_names l;
    must(mla_dir_make(in(name), &err), &err);
    must(mla_dir_list(&l, model, &err), &err);
    for (size_t i = 0; i < l.n; i++) {
        char *from = mla_path_join(model, l.name[i]), *to = mla_path_join(in(name), l.name[i]), *text;
        size_t n;
        must(mla_file_read(&text, &n, from, 1 << 24, &err), &err);
        must(mla_file_write(to, text, n, &err), &err);
        mla_free(text);
        mla_free(from);
        mla_free(to);
    }
    mla_names_free(&l);
}

/* model.safetensors of the folder, its last weight another one, as `to`. */
static void put_changed(const char *folder, const char *to)
{
    mla_err err;
    char *text, path[160];
    size_t n;
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    must(mla_file_read(&text, &n, in(path), 1 << 24, &err), &err);
    text[n - 2] ^= 1;
    must(mla_file_write(in(to), text, n, &err), &err);
    mla_free(text);
}

static void clear(const kase *c)
{
    mla_err err;
    char path[160];
    static const char *const LEFT[] = {"", ".partial", ".lock"};
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s%s", c->out, LEFT[i]);
        must(mla_dir_remove(in(path), &err), &err);
    }
    put_model("model");
    if (c->in_place) put_model(c->out);
    put_changed("model", "changed");
}

/* Exit code, or -signal; stderr in text; whether the call came to fail. */
static int run(const kase *c, const char *fault, char *text, size_t max, bool *reached)
{
    int e[2], r[2];
    char program[512], byte;
    const char *argv[20] = {program};
    (void)snprintf(program, sizeof program, "%s/%s", progs, c->program);
    for (size_t i = 0; c->argv[i]; i++) argv[i + 1] = c->argv[i][0] == '@' ? in(c->argv[i] + 1) : c->argv[i];
    if (pipe2(e, O_CLOEXEC) || pipe2(r, O_CLOEXEC)) exit(3);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        dup2(e[1], 2);
        dup2(r[1], 9);
        setenv("MLA_FAIL_FD", "9", 1);
        setenv("MLA_FAIL_WITH", in("changed"), 1);
        setenv("MLA_FAIL_PATH", in(c->in_place ? "out/model.safetensors" : "model/model.safetensors"), 1);
        if (fault) setenv("MLA_FAIL", fault, 1);
        alarm(60); /* a run that hangs is killed, and that is a failure */
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(e[1]);
    close(r[1]);
    size_t n = 0;
    for (ssize_t k; n + 1 < max && (k = read(e[0], text + n, max - 1 - n)) > 0;) n += (size_t)k;
    text[n] = 0;
    *reached = read(r[0], &byte, 1) == 1;
    close(e[0]);
    close(r[0]);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) exit(3);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool one_line(const char *s) { return *s && strchr(s, '\n') && !strchr(s, '\n')[1]; }

static bool has_temporary(const char *dir)
{
    char cmd[400];
    (void)snprintf(cmd, sizeof cmd, "ls -AR '%s' | grep -q '^\\..*\\.tmp-'", dir);
    return system(cmd) == 0;
}

static const char *judge(const kase *c, size_t f, int rc, const char *text, char want[2][65])
{
    char now[65], before[65] = "";
    content(now, in(c->out));
    if (c->in_place) content(before, in("model"));
    if (rc != 0 && rc != 3) return "expected exit 0 or 3";
    bool swap = !strcmp(FAULTS[f].call, "swap");
    if (rc == 0) return strcmp(now, want[0]) && (!swap || strcmp(now, want[1])) ? "exit 0, but the output differs from a run without failure" : NULL;
    if (!one_line(text)) return "expected one line on stderr";
    if (FAULTS[f].says && !strstr(text, FAULTS[f].says)) return "the line does not say why";
    if (c->in_place) return NULL; /* judged by what a further run makes of it */
    return strcmp(now, before) && strcmp(now, want[0]) ? "the output is neither absent nor whole" : NULL;
}

/* Calls first, first + stride, ... of one kind. */
static void sweep(size_t kind, size_t f, long first, long stride, char want[2][65])
{
    const kase *c = &CASES[kind];
    char fault[64], text[4096], now[65];
    bool reached = true, ignored;
    size_t n = 0;
    for (long k = first; reached; k += stride) {
        clear(c);
        (void)snprintf(fault, sizeof fault, "%s:%d:%ld", FAULTS[f].call, FAULTS[f].error, k);
        int rc = run(c, fault, text, sizeof text, &reached);
        const char *wrong = judge(c, f, rc, text, want);
        if (!wrong && has_temporary(work)) wrong = "a temporary file is left";
        if (!wrong && rc == 3 && strcmp(FAULTS[f].call, "swap") && (c->in_place || n % 8 == 0)) { /* again, from whatever was left */
            char again[4096];
            bool there = !c->in_place && mla_path_exists(in(c->out));
            int rc2 = there ? 0 : run(c, NULL, again, sizeof again, &ignored);
            content(now, in(c->out));
            if (rc2 || strcmp(now, want[0])) wrong = "a further run does not end with the same output";
            if (wrong) (void)snprintf(text, sizeof text, "%.4000s", again);
        }
        n++;
        sum->runs[kind][f] += reached;
        sum->refused[kind][f] += rc == 3;
        if (!wrong) continue;
        sum->failed++;
        printf("FAIL %s, MLA_FAIL=%s: %s (exit %d): %s\n", c->name, fault, wrong, rc, text);
    }
    sum->done[kind][f] = true;
}

/* What the output is without a failure (0), and of a source changed before the run (1). */
static bool learn(const kase *c, char want[2][65])
{
    mla_err err;
    char text[4096];
    bool ignored;
    clear(c);
    must(mla_path_rename(in("changed"), in(c->in_place ? "out/model.safetensors" : "model/model.safetensors"), &err), &err);
    (void)run(c, NULL, text, sizeof text, &ignored);
    content(want[1], in(c->out));
    clear(c);
    int rc = run(c, NULL, text, sizeof text, &ignored);
    content(want[0], in(c->out));
    if (rc || !want[0][0] || !want[1][0]) {
        printf("FAIL %s without a failure: exit %d: %s\n", c->name, rc, text);
        return false;
    }
    if (!strcmp(c->name, "pack")) must(mla_file_place(in("out.mlapack"), in("model.mlapack"), NULL, &err), &err);
    return true;
}

/* Part `part` of `parts` of all calls. */
static void sweep_part(long part, long parts, long stride, const char *only, const char *call)
{
    mla_err err;
    char want[2][65];
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(work, sizeof work, "%.40s/mla-failing-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(work)) exit(3);
    put_model("model");
    for (size_t i = 0; i < CASE_N; i++) {
        if (!learn(&CASES[i], want)) {
            sum->failed++;
            continue;
        }
        for (size_t f = 0; f < FAULT_N; f++) {
            long step = strcmp(FAULTS[f].call, "alloc") ? (stride + 15) / 16 : stride, first = step > 1 ? (long)(f * 7) % step : 0;
            if ((!only || !strcmp(only, CASES[i].name)) && (!call || !strcmp(call, FAULTS[f].call))) sweep(i, f, first + part * step, parts * step, want);
        }
        clear(&CASES[i]);
    }
    must(mla_dir_remove(work, &err), &err);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    progs = argv[1], model = argv[2];
    long stride = atol(argv[3]), parts = getenv("JOBS") ? atol(getenv("JOBS")) : sysconf(_SC_NPROCESSORS_ONLN);
    if (stride < 1 || parts < 1) return 2;
    tally *all = mmap(NULL, (size_t)parts * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), t = {0};
    if (all == MAP_FAILED) return 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (long p = 0; p < parts; p++) {
        pid_t child = fork();
        if (child < 0) return 3;
        if (child) continue;
        sum = &all[p];
        sweep_part(p, parts, stride, argc > 4 ? argv[4] : NULL, argc > 5 ? argv[5] : NULL);
        exit(0);
    }
    for (int status; wait(&status) > 0;)
        if (status) t.failed++; /* a part that did not come to its end */
    size_t passed = 0;
    for (size_t i = 0; i < CASE_N; i++)
        for (size_t f = 0; f < FAULT_N; f++) {
            for (long p = 0; p < parts; p++) {
                t.runs[i][f] += all[p].runs[i][f];
                t.refused[i][f] += all[p].refused[i][f];
                t.done[i][f] |= all[p].done[i][f];
            }
            if (!t.done[i][f]) continue;
            passed++;
            printf("%s: %s, errno %d: %zu runs, %zu refused\n", CASES[i].name, FAULTS[f].call, FAULTS[f].error, t.runs[i][f], t.refused[i][f]);
        }
    for (long p = 0; p < parts; p++) t.failed += all[p].failed;
    printf("failing: %zu passed, %zu failed\n", passed, t.failed);
    return t.failed != 0;
}
