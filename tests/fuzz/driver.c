/* Runs the fuzz targets without libFuzzer: kept corpora again, or mutations of them for a time.
 *
 *   test_fuzz                              every file of tests/fuzz/corpus/<target>/; "fuzz: N passed, N failed"
 *   test_fuzz SECONDS [SEED]               then so many seconds of mutated inputs, for each target
 *   test_fuzz 0 SEED TARGET INDEX [FILE]   that one mutated input again, saved to FILE
 *
 * Input i of a seed is a pure function of (corpus, seed, i), so a crash is replayed from two numbers. Each target's entry
 * point is compiled as fuzz_target_<target>; FUZZ_TARGETS, from the Makefile, is X(target) for each of them. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "fuzz.h"

#define X(t) int fuzz_target_##t(const uint8_t *data, size_t n);
FUZZ_TARGETS
#undef X

static const struct {
    const char *name;
    int (*one)(const uint8_t *, size_t);
} TARGET[] = {
#define X(t) {#t, fuzz_target_##t},
    FUZZ_TARGETS
#undef X
};
#define TARGETS (sizeof TARGET / sizeof *TARGET)

typedef struct {
    unsigned char p[FUZZ_MAX];
    size_t n;
} input;

static volatile size_t now_target; /* for the signal handler */
static volatile unsigned long now_seed, now_index;
static const char *volatile now_file;

/* ---- kept corpora ---- */
static mla_names corpus[TARGETS];
static char *dir[TARGETS];

static void load(input *in, size_t t, size_t i)
{
    mla_err err;
    char *text = NULL, *path = mla_path_join(dir[t], corpus[t].name[i]);
    if (!path || mla_file_read(&text, &in->n, path, FUZZ_MAX, &err) != MLA_OK) fuzz_broken(err.msg);
    memcpy(in->p, text, in->n);
    mla_free(text);
    mla_free(path);
}

static void open_corpora(void)
{
    mla_err err;
    const char *root = getenv("MLA_ROOT");
    char *all = mla_path_join(root ? root : ".", "tests/fuzz/corpus");
    for (size_t t = 0; t < TARGETS; t++) {
        dir[t] = all ? mla_path_join(all, TARGET[t].name) : NULL;
        if (!dir[t] || mla_dir_list(&corpus[t], dir[t], &err) != MLA_OK) fuzz_broken(err.msg);
        if (!corpus[t].n) fuzz_broken("a target without a kept input");
    }
    mla_free(all);
}

static void close_corpora(void)
{
    for (size_t t = 0; t < TARGETS; t++) {
        mla_names_free(&corpus[t]);
        mla_free(dir[t]);
    }
}

/* ---- mutation: draw k of input i is value k of the stream (seed mixed with i) ---- */
typedef struct {
    uint64_t stream, k;
} dice;

static size_t roll(dice *d, size_t n) { return (size_t)mla_rng_below(d->stream, d->k++, n); }

static void splice(input *in, size_t at, size_t cut, const void *p, size_t n) /* in[at, at+cut) becomes p[0, n) */
{
    if (in->n - cut + n > FUZZ_MAX) return;
    memmove(in->p + at + n, in->p + at + cut, in->n - at - cut);
    memcpy(in->p + at, p, n);
    in->n = in->n - cut + n;
}

static void mutate(input *in, dice *d)
{
    static const uint64_t WORD[] = {0, 1, 31, 32, 63, 64, 255, 65535, 0x7fffffff, 0x80000000u, 0xffffffffu, 0x100000000u,
                                    (uint64_t)1 << 53, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX};
    static const char *const PIECE[] = {"{", "}", "[", "]", ",", ":", "\"", "\\u0000", "\\ud800", "-1", "0", "1e999", "1.5", "null", "{}", "[]",
                                        "4194305", "211106198978564", "18446744073709551615", "\"a\"", "../", "\"a\":1,", "F4", "U8", "s2", "__metadata__"};
    unsigned char piece[64];
    size_t at = roll(d, in->n + 1), left = in->n - at, len = left ? 1 + roll(d, left < 32 ? left : 32) : 0;
    uint64_t w = WORD[roll(d, sizeof WORD / sizeof *WORD)] + (roll(d, 4) ? 0 : roll(d, 16));
    switch (roll(d, 8)) {
    case 0: if (left) in->p[at] ^= (unsigned char)(1u << roll(d, 8)); break;
    case 1: if (left) in->p[at] = (unsigned char)roll(d, 256); break;
    case 2: if (left >= 8) for (size_t i = 0; i < 8; i++) in->p[at + i] = (unsigned char)(w >> 8 * i); break;
    case 3: if (left >= 4) for (size_t i = 0; i < 4; i++) in->p[at + i] = (unsigned char)(w >> 8 * i); break;
    case 4: splice(in, at, len, "", 0); break;
    case 5: { const char *p = PIECE[roll(d, sizeof PIECE / sizeof *PIECE)]; splice(in, at, roll(d, 2) ? 0 : len, p, strlen(p)); break; }
    case 6: memcpy(piece, in->p + at, len); splice(in, roll(d, in->n + 1), 0, piece, len); break;
    default: if (!roll(d, 4)) in->n = at; else if (left) in->p[at] = (unsigned char)(in->p[at] + 1); break;
    }
}

static void make_input(input *in, size_t t, uint64_t seed, uint64_t i)
{
    dice d = {mla_rng_u64(seed * TARGETS + t, i), 0};
    load(in, t, roll(&d, corpus[t].n));
    size_t head = in->n;
    for (size_t k = 1 + roll(&d, 6); k > 0; k--) mutate(in, &d);
    if (!strcmp(TARGET[t].name, "safetensors") && in->n >= 8 && roll(&d, 4)) { /* mostly: a header length that moves with the text */
        uint64_t h = 0;
        for (size_t b = 8; b > 0; b--) h = h << 8 | in->p[b - 1];
        h += in->n - head;
        for (size_t b = 0; b < 8; b++) in->p[b] = (unsigned char)(h >> 8 * b);
    }
}

/* The bytes in memory of their own size, so that a sanitizer sees a read beyond their end. */
static void run_one(size_t t, const input *in)
{
    unsigned char *exact = malloc(in->n ? in->n : 1);
    if (!exact) fuzz_broken("no memory for an input");
    memcpy(exact, in->p, in->n);
    (void)TARGET[t].one(exact, in->n);
    free(exact);
}

static void on_crash(int sig)
{
    char line[400];
    int n = now_file ? snprintf(line, sizeof line, "fuzz: signal %d in %s, input %s\n", sig, TARGET[now_target].name, now_file)
                     : snprintf(line, sizeof line, "fuzz: signal %d; replay with: test_fuzz 0 %lu %s %lu crash.bin\n", sig, now_seed,
                                TARGET[now_target].name, now_index);
    (void)!write(STDERR_FILENO, line, (size_t)n);
    signal(sig, SIG_DFL);
    raise(sig);
}

static size_t run_corpora(input *in)
{
    size_t n = 0;
    for (size_t t = 0; t < TARGETS; t++)
        for (size_t i = 0; i < corpus[t].n; i++, n++) {
            now_target = t;
            now_file = corpus[t].name[i];
            load(in, t, i);
            run_one(t, in);
        }
    now_file = NULL;
    return n;
}

static void run_mutations(input *in, double seconds, uint64_t seed)
{
    for (size_t t = 0; t < TARGETS; t++) {
        double end = mla_now() + seconds;
        uint64_t i = 0;
        now_target = t;
        now_seed = (unsigned long)seed;
        for (; i % 64 || mla_now() < end; i++) {
            now_index = (unsigned long)i;
            make_input(in, t, seed, i);
            run_one(t, in);
        }
        printf("%s: %llu mutated inputs of seed %llu\n", TARGET[t].name, (unsigned long long)i, (unsigned long long)seed);
    }
}

static int run_again(input *in, uint64_t seed, const char *name, uint64_t i, const char *save)
{
    size_t t = 0;
    while (t < TARGETS && strcmp(name, TARGET[t].name)) t++;
    if (t == TARGETS) return 2;
    make_input(in, t, seed, i);
    FILE *f = save ? fopen(save, "wb") : NULL;
    if (save && (!f || fwrite(in->p, 1, in->n, f) != in->n || fclose(f) != 0)) return 3;
    run_one(t, in);
    return 0;
}

int main(int argc, char **argv)
{
    static input in;
    static const int SIGS[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof SIGS / sizeof *SIGS; i++) signal(SIGS[i], on_crash);
    open_corpora();
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    int rc = 0;
    if (argc > 4) {
        rc = run_again(&in, seed, argv[3], strtoull(argv[4], NULL, 10), argc > 5 ? argv[5] : NULL);
    } else {
        size_t n = run_corpora(&in);
        if (argc > 1) run_mutations(&in, atof(argv[1]), seed);
        printf("fuzz: %zu passed, 0 failed\n", n);
    }
    close_corpora();
    return rc;
}
