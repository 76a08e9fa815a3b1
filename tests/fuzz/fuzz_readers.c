/* Mutated files against the readers: safetensors, GGUF, JSON, checkpoint index.
 *
 *   fuzz_readers SECONDS [SEED]             random inputs for so long; the last line is "fuzz: N passed, N failed"
 *   fuzz_readers 0 SEED TARGET INDEX [FILE] that one input again, saved to FILE
 *
 * Input i of a seed is a pure function of (seed, i), so a crash is replayed from two numbers. With
 * -DMLA_LIBFUZZER the same targets are a libFuzzer entry point (the first byte picks one).
 * A reader passes when it refuses with one line, or when every byte that it then promises lies in the file. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/ckpt.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/safetensors.h"

#define CAP ((size_t)1 << 16)

typedef struct {
    unsigned char p[CAP];
    size_t n;
} input;

static volatile sig_atomic_t now_target; /* for the signal handler */
static volatile unsigned long now_seed, now_index;

static void broken(const char *what)
{
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* ---- checks ---- */
static void check_line(mla_status st, const mla_err *err)
{
    if (st != MLA_EFORMAT && st != MLA_EUNSUPPORTED && st != MLA_EIO) broken(mla_status_name(st));
    if (!err->msg[0] || strchr(err->msg, '\n')) broken("an error is not one line");
}

static void check_inside(const void *p, size_t n, const mla_mapped *m)
{
    const unsigned char *c = p;
    static volatile unsigned char sink;
    if (n && (c < m->data || n > m->size || (size_t)(c - m->data) > m->size - n)) broken("bytes outside the file");
    for (size_t i = 0; i < n; i++) sink = c[i];
    (void)sink;
}

static bool try_safetensors(const char *path)
{
    mla_err err;
    mla_st *s;
    mla_status st = mla_st_open(&s, path, &err);
    if (st != MLA_OK) {
        check_line(st, &err);
        return false;
    }
    for (size_t i = 0; i < mla_st_count(s); i++) {
        const mla_tensor *t = mla_st_at(s, i);
        check_inside(t->data, t->nbytes, mla_st_file(s));
        if (mla_st_find(s, t->name) != t) broken("a name finds another tensor");
        if (mla_tensor_numel(t) * mla_dtype_bits(t->dtype) != 8 * t->nbytes) broken("shape and bytes disagree");
    }
    mla_st_close(s);
    return true;
}

static bool try_gguf(const char *path)
{
    mla_err err;
    mla_gguf *g;
    mla_status st = mla_gguf_open(&g, path, &err);
    if (st != MLA_OK) {
        check_line(st, &err);
        return false;
    }
    for (size_t i = 0; i < mla_gguf_count(g); i++) {
        const mla_gguf_tensor *t = mla_gguf_at(g, i);
        check_inside(t->data, t->nbytes, mla_gguf_file(g));
        if (mla_gguf_find(g, t->name) != t || !mla_ggml_type_info(t->type)) broken("a tensor that is not itself");
    }
    for (size_t i = 0; i < mla_gguf_kv_count(g); i++) {
        const mla_gguf_kv *kv = mla_gguf_kv_at(g, i);
        const char *s;
        size_t pos = 0, n, k = 0;
        uint64_t u;
        double d;
        check_inside(kv->data, kv->nbytes, mla_gguf_file(g));
        for (; mla_gguf_str_next(kv, &pos, &s, &n); k++) check_inside(s, n, mla_gguf_file(g));
        if (kv->type == MLA_GV_ARRAY && kv->item != MLA_GV_STRING && (kv->n > kv->nbytes || (kv->n && kv->nbytes % kv->n)))
            broken("an array of more items than bytes");
        if (kv->type == MLA_GV_ARRAY && kv->item == MLA_GV_STRING && k != kv->n) broken("a string array of another length");
        (void)mla_gguf_u64(g, kv->key, &u);
        (void)mla_gguf_f64(g, kv->key, &d);
    }
    mla_gguf_close(g);
    return true;
}

/* What parses must print, parse again and print the same. */
static bool try_json(const char *text, size_t n)
{
    mla_err err;
    mla_json *d, *again;
    mla_str a = MLA_STR_MAX(8 * CAP), b = MLA_STR_MAX(8 * CAP);
    mla_status st = mla_json_parse(&d, text, n, "input", &err);
    if (st != MLA_OK) {
        check_line(st, &err);
        return false;
    }
    if (mla_json_print(&a, mla_json_root(d), false, &err) != MLA_OK) broken(err.msg);
    if (mla_json_parse(&again, a.s, a.len, "printed", &err) != MLA_OK) broken(err.msg);
    if (mla_json_print(&b, mla_json_root(again), false, &err) != MLA_OK || strcmp(a.s, b.s)) broken("printing is not stable");
    mla_json_free(again);
    mla_json_free(d);
    mla_str_free(&a);
    mla_str_free(&b);
    return true;
}

static bool try_folder(const char *dir)
{
    mla_err err;
    mla_ckpt *c;
    mla_status st = mla_ckpt_open(&c, dir, &err);
    if (st != MLA_OK) {
        check_line(st, &err);
        return false;
    }
    /* two files of two tensors: each is whole, or not named at all and then a stray */
    if (mla_ckpt_count(c) != 2 * mla_ckpt_shard_count(c) || mla_ckpt_shard_count(c) + mla_ckpt_stray_count(c) != 2)
        broken("an index that maps other tensors than there are");
    mla_ckpt_close(c);
    return true;
}

/* ---- seeds ---- */
static void put(input *in, const void *p, size_t n)
{
    if (n > CAP - in->n) n = CAP - in->n;
    memcpy(in->p + in->n, p, n);
    in->n += n;
}

static void put_le(input *in, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++, v >>= 8) put(in, &(unsigned char){(unsigned char)v}, 1);
}

static void put_str(input *in, const char *s)
{
    put_le(in, strlen(s), 8);
    put(in, s, strlen(s));
}

static void seed_safetensors(input *in)
{
    static const char HEADER[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\\u00e9\\n\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"b.weight\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[8,16]},\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[16,16]},"
        "\"f\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[16,20]},\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[20,28]}}  ";
    put_le(in, sizeof HEADER - 1, 8);
    put(in, HEADER, sizeof HEADER - 1);
    for (int i = 0; i < 28; i++) put_le(in, (uint64_t)i, 1);
}

static void seed_gguf(input *in)
{
    put(in, "GGUF", 4);
    put_le(in, 3, 4), put_le(in, 2, 8), put_le(in, 5, 8);
    put_str(in, "general.architecture"), put_le(in, MLA_GV_STRING, 4), put_str(in, "llama");
    put_str(in, "general.alignment"), put_le(in, MLA_GV_U32, 4), put_le(in, 32, 4);
    put_str(in, "arr"), put_le(in, MLA_GV_ARRAY, 4), put_le(in, MLA_GV_STRING, 4), put_le(in, 2, 8), put_str(in, "x"), put_str(in, "");
    put_str(in, "nums"), put_le(in, MLA_GV_ARRAY, 4), put_le(in, MLA_GV_I16, 4), put_le(in, 2, 8), put_le(in, 0xfffe0001u, 4);
    put_str(in, "b"), put_le(in, MLA_GV_BOOL, 4), put_le(in, 1, 1);
    put_str(in, "t.weight"), put_le(in, 2, 4), put_le(in, 32, 8), put_le(in, 2, 8), put_le(in, MLA_GT_Q4_0, 4), put_le(in, 0, 8);
    put_str(in, "u"), put_le(in, 1, 4), put_le(in, 4, 8), put_le(in, MLA_GT_F32, 4), put_le(in, 64, 8);
    while (in->n % 32) put_le(in, 0, 1);
    for (int i = 0; i < 96; i++) put_le(in, (uint64_t)i, 1);
}

static void seed_json(input *in)
{
    static const char TEXT[] = "{\"a\":[1,-2.5e-3,0.1,true,false,null,\"x\\u00e9\\ud83d\\ude00\\\"\\\\\"],\"b\":{\"c\":{},\"d\":[[[]]]},"
                               "\"e\":9007199254740992,\"\":\"\xc3\xa9\"}";
    put(in, TEXT, sizeof TEXT - 1);
}

static void seed_index(input *in)
{
    static const char TEXT[] = "{\"metadata\":{\"total_size\":32},\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\","
                               "\"c\":\"s2.safetensors\",\"d\":\"s2.safetensors\"}}";
    put(in, TEXT, sizeof TEXT - 1);
}

/* ---- mutation: draw k of input i is value k of the stream (seed mixed with i) ---- */
typedef struct {
    uint64_t stream, k;
} dice;

static size_t roll(dice *d, size_t n) { return (size_t)mla_rng_below(d->stream, d->k++, n); }

static void splice(input *in, size_t at, size_t cut, const void *p, size_t n) /* in[at, at+cut) becomes p[0, n) */
{
    if (in->n - cut + n > CAP) return;
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

/* ---- targets ---- */
typedef struct {
    int fd;
    char file[40]; /* a memory file's path */
    char dir[64];  /* a folder of two shards */
} place;

static void write_input(const place *w, const input *in)
{
    if (ftruncate(w->fd, 0) != 0 || pwrite(w->fd, in->p, in->n, 0) != (ssize_t)in->n) broken("cannot write the input");
}

static void write_index(const place *w, const input *in)
{
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", w->dir);
    (void)unlink(path);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(in->p, 1, in->n, f) != in->n || fclose(f) != 0) broken("cannot write the input");
}

static bool run_target(int target, const place *w, const input *in) /* whether the reader accepted it */
{
    if (target == 2) return try_json((const char *)in->p, in->n);
    if (target == 3) {
        write_index(w, in);
        return try_folder(w->dir);
    }
    write_input(w, in);
    return target ? try_gguf(w->file) : try_safetensors(w->file);
}

static bool open_place(place *w)
{
    mla_err err;
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    w->fd = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(w->file, sizeof w->file, "/proc/self/fd/%d", w->fd);
    snprintf(w->dir, sizeof w->dir, "%s/mla-fuzz-XXXXXX", base);
    if (w->fd < 0 || !mkdtemp(w->dir)) return false;
    for (int s = 0; s < 2; s++) {
        static const char *const NAME[] = {"a", "b", "c", "d"};
        char path[128], data[4] = "data";
        mla_tensor t[2];
        for (int i = 0; i < 2; i++) t[i] = (mla_tensor){.name = NAME[2 * s + i], .dtype = MLA_U8, .ndim = 1, .shape = {4}, .data = data, .nbytes = 4};
        snprintf(path, sizeof path, "%s/s%d.safetensors", w->dir, s + 1);
        if (mla_st_write(path, t, 2, NULL, &err) != MLA_OK) return false;
    }
    return true;
}

static void close_place(place *w)
{
    mla_err err;
    close(w->fd);
    (void)!mla_dir_remove(w->dir, &err);
}

#define TARGETS 4
static const char *const TARGET[TARGETS] = {"safetensors", "gguf", "json", "index"};

static void (*const SEED[TARGETS])(input *) = {seed_safetensors, seed_gguf, seed_json, seed_index};

static void make_input(input *in, int target, uint64_t seed, uint64_t i)
{
    dice d = {mla_rng_u64(seed * TARGETS + (uint64_t)target, i), 0};
    in->n = 0;
    SEED[target](in);
    size_t data = 28; /* of the safetensors seed */
    for (size_t k = 1 + roll(&d, 6); k > 0; k--) mutate(in, &d);
    if (target == 0 && in->n >= 8 + data && roll(&d, 4)) { /* mostly: a header length that fits, so that the header is read */
        size_t h = in->n - 8 - data;
        for (size_t b = 0; b < 8; b++) in->p[b] = (unsigned char)((uint64_t)h >> 8 * b);
    }
}

static void on_crash(int sig)
{
    char line[160];
    int n = snprintf(line, sizeof line, "fuzz: signal %d; replay with: fuzz_readers 0 %lu %s %lu crash.bin\n", sig, (unsigned long)now_seed,
                     TARGET[now_target], (unsigned long)now_index);
    (void)!write(STDERR_FILENO, line, (size_t)n);
    signal(sig, SIG_DFL);
    raise(sig);
}

static int replay(int argc, char **argv, const place *w, input *in)
{
    int t = 0;
    while (t < TARGETS && strcmp(argv[3], TARGET[t])) t++;
    if (t == TARGETS) return 2;
    make_input(in, t, strtoull(argv[2], NULL, 10), strtoull(argv[4], NULL, 10));
    FILE *f = argc > 5 ? fopen(argv[5], "wb") : NULL;
    if (f && (fwrite(in->p, 1, in->n, f) != in->n || fclose(f) != 0)) return 3;
    printf("%s\n", run_target(t, w, in) ? "accepted" : "refused");
    printf("fuzz: 1 passed, 0 failed\n");
    return 0;
}

#ifdef MLA_LIBFUZZER /* libFuzzer brings its own main */
#define main mla_fuzz_main
int mla_fuzz_main(int argc, char **argv);
#endif
int main(int argc, char **argv)
{
    static input in;
    place w;
    double seconds = argc > 1 ? atof(argv[1]) : 10;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (!open_place(&w)) {
        fprintf(stderr, "fuzz: no place for the inputs\n");
        return 3;
    }
    if (argc > 4) {
        int rc = replay(argc, argv, &w, &in);
        close_place(&w);
        return rc;
    }
    static const int SIGS[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof SIGS / sizeof *SIGS; i++) signal(SIGS[i], on_crash);
    for (int t = 0; t < TARGETS; t++) { /* the unmutated seeds must be accepted: the control */
        double end = mla_now() + seconds / TARGETS;
        uint64_t i = 0, accepted = 0;
        in.n = 0;
        SEED[t](&in);
        if (!run_target(t, &w, &in)) broken("the seed itself is refused");
        now_target = t;
        now_seed = (unsigned long)seed;
        for (; i % 64 || mla_now() < end || i == 0; i++) {
            now_index = (unsigned long)i;
            make_input(&in, t, seed, i);
            accepted += run_target(t, &w, &in);
        }
        printf("%s: %llu inputs of seed %llu, %llu accepted\n", TARGET[t], (unsigned long long)i, (unsigned long long)seed,
               (unsigned long long)accepted);
    }
    close_place(&w);
    printf("fuzz: %d passed, 0 failed\n", TARGETS);
    return 0;
}

#ifdef MLA_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static place w;
    static input in;
    if (!w.fd && !open_place(&w)) return 0;
    if (n == 0 || n - 1 > CAP) return 0;
    memcpy(in.p, data + 1, n - 1);
    in.n = n - 1;
    (void)run_target(data[0] % 4, &w, &in);
    return 0;
}
#endif
