/* CPU backend against ceilings measured in the same process: a read-only sweep, and register-only loops of fused
 * multiply-adds in f32 and of bf16 pair products. Rounds alternate ceiling and operation; medians are printed.
 * Usage: bench_backend [threads [isa [name]]]; name: only rows that contain it. Inputs are random normals: zeros would flatter. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/par.h"
#include "base/rng.h"
#include "lab.h"

#define ROUNDS 7

typedef struct {
    mla_backend *be;
    mla_pool *pool; /* of the ceilings */
    mla_isa isa;
    size_t threads;
    double seconds[2][ROUNDS];
} bench;

static const char *only = ""; /* set once by main */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *s)
{
    double t[ROUNDS];
    memcpy(t, s, sizeof t);
    qsort(t, ROUNDS, sizeof *t, by_value);
    return t[ROUNDS / 2];
}

static double spread(const double *s)
{
    double t[ROUNDS];
    memcpy(t, s, sizeof t);
    qsort(t, ROUNDS, sizeof *t, by_value);
    return t[ROUNDS - 1] / t[0];
}

/* --- ceilings ------------------------------------------------------------------------------------------------- */

#define PEAK_STEPS 400000 /* of 24 independent chains */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void peak_f32_512(void *ctx, size_t begin, size_t end, size_t worker)
{
    __m512 a[24], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    (void)begin, (void)end;
    for (int i = 0; i < 24; i++) a[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < PEAK_STEPS; n++)
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
    float out[16], *sink = ctx;
    for (int i = 1; i < 24; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    _mm512_storeu_ps(out, a[0]);
    sink[worker] = out[0];
}
__attribute__((target("avx512f,avx512bf16"))) static void peak_bf16_512(void *ctx, size_t begin, size_t end, size_t worker)
{
    __m512 a[24];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f003f80), y = (__m512bh)_mm512_set1_epi32(0x3c003c80);
    (void)begin, (void)end;
    for (int i = 0; i < 24; i++) a[i] = _mm512_set1_ps((float)i);
    for (int n = 0; n < PEAK_STEPS; n++)
#pragma GCC unroll 24
        for (int i = 0; i < 24; i++) a[i] = _mm512_dpbf16_ps(a[i], x, y);
    float out[16], *sink = ctx;
    for (int i = 1; i < 24; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    _mm512_storeu_ps(out, a[0]);
    sink[worker] = out[0];
}
__attribute__((target("avx2,fma"))) static void peak_f32_256(void *ctx, size_t begin, size_t end, size_t worker)
{
    __m256 a[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    (void)begin, (void)end;
    for (int i = 0; i < 12; i++) a[i] = _mm256_set1_ps((float)i);
    for (int n = 0; n < 2 * PEAK_STEPS; n++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    float out[8], *sink = ctx;
    for (int i = 1; i < 12; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    _mm256_storeu_ps(out, a[0]);
    sink[worker] = out[0];
}
#endif

/* FLOP/s of all threads in registers only; 0 where this build has no such loop. */
static double peak(bench *b, bool bf16)
{
#if defined(__x86_64__)
    float sink[1024];
    mla_par_fn fn = b->isa == MLA_ISA_AVX2 ? peak_f32_256 : bf16 && b->isa == MLA_ISA_AVX512BF16 ? peak_bf16_512 : peak_f32_512;
    if (b->isa == MLA_ISA_REF) return 0;
    double lanes = b->isa == MLA_ISA_AVX2 ? 8 : fn == peak_bf16_512 ? 32 : 16, t = lab_now();
    mla_par_for(b->pool, b->threads, 1, fn, sink);
    return 2 * lanes * 24 * PEAK_STEPS * (double)b->threads / (lab_now() - t);
#else
    (void)b, (void)bf16;
    return 0;
#endif
}

/* --- operations ------------------------------------------------------------------------------------------------ */

static float *normals(size_t n, uint64_t seed)
{
    float *x = mla_alloc_raw(n, 1, sizeof *x);
    if (!x) exit(3);
    for (size_t i = 0; i < n; i++) { /* sum of four uniforms: normal enough, and fast */
        uint64_t u = mla_rng_u64(seed, i);
        int s = (int)(u & 0xffff) + (int)(u >> 16 & 0xffff) + (int)(u >> 32 & 0xffff) + (int)(u >> 48) - 131070;
        x[i] = (float)s * 2.6e-5f;
    }
    return x;
}

static mla_mem *device(bench *b, const float *x, size_t n)
{
    mla_err err = {0};
    mla_mem *p = NULL;
    lab_must(b->be->ops->alloc(b->be, &p, n * sizeof *x, &err), &err);
    if (x)
        lab_must(b->be->ops->upload(b->be, p, x, n * sizeof *x, &err), &err);
    else
        lab_must(b->be->ops->zero(b->be, p, n * sizeof *x, &err), &err);
    return p;
}

static mla_status random_rows(void *ctx, size_t row0, size_t n, float *dst, mla_err *err)
{
    const size_t *in = ctx;
    (void)err;
    for (size_t i = 0; i < n * *in; i++) dst[i] = (float)((int)(((row0 * *in + i) * 2654435761u) >> 8 & 0xffff) - 32768) * 2e-6f;
    return MLA_OK;
}

static void report(bench *b, const char *what, double ratio, double own, const char *unit)
{
    printf("  %-46s R %.3f   %8.2f %s   spread own %.2f, ceiling %.2f\n", what, ratio, own, unit, spread(b->seconds[0]), spread(b->seconds[1]));
}

static void bench_linear(bench *b, mla_precision p, size_t T, size_t in, size_t out)
{
    mla_err err = {0};
    mla_weight *w = NULL;
    char name[80];
    snprintf(name, sizeof name, "%s %s T=%zu (%zu, %zu)", T <= 4 ? "GEMV" : "GEMM", p == MLA_PREC_BF16 ? "bf16" : "f32", T, out, in);
    if (!strstr(name, only)) return;
    lab_must(b->be->ops->weight_new(b->be, &w, &(mla_weight_desc){.out = out, .in = in, .precision = p, .rows = random_rows, .ctx = &in}, &err), &err);
    float *hx = normals(T * in, 1);
    mla_mem *x = device(b, hx, T * in), *y = device(b, NULL, T * out);
    size_t bytes = b->be->ops->weight_bytes(w), n = bytes < (size_t)256 << 20 ? (size_t)256 << 20 : bytes;
    char *area = T <= 4 ? (char *)device(b, NULL, n / 4) : NULL; /* the same kind of pages as the weight */
    double ceiling[ROUNDS], own[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        b->seconds[1][r] = area ? lab_sweep(b->pool, area, n) : 1 / peak(b, p == MLA_PREC_BF16);
        ceiling[r] = area ? (double)n / b->seconds[1][r] : 1 / b->seconds[1][r];
        double t = lab_now();
        lab_must(b->be->ops->linear(b->be, w, &(mla_linear_args){.y = y, .ldy = out, .x = x, .ldx = in, .T = T}, &err), &err);
        b->seconds[0][r] = lab_now() - t;
        own[r] = (area ? (double)bytes : 2.0 * (double)T * (double)in * (double)out) / b->seconds[0][r];
    }
    report(b, name, median(own) / median(ceiling), median(own) / 1e9, area ? "GB/s" : "GFLOP/s");
    b->be->ops->weight_free(b->be, w);
    b->be->ops->free(b->be, x);
    b->be->ops->free(b->be, y);
    mla_free(hx);
    if (area) b->be->ops->free(b->be, (mla_mem *)area);
}

typedef struct {
    const char *what;
    size_t T, S, H, kh, k2h, vh, dk, dk2, dv;
    bool shared; /* k and v are the same rows (absorbed) */
    mla_dtype dtype;
    bool bf16;   /* pair products; the ceiling is then theirs */
} attn_shape;

static void bench_attention(bench *b, const attn_shape *s)
{
    mla_err err = {0};
    if (!strstr(s->what, only)) return;
    size_t es = s->dtype == MLA_BF16 ? 2 : s->dtype == MLA_F32 ? 4 : 1, kw = s->kh * s->dk, vw = s->vh * s->dv, k2w = s->k2h * s->dk2;
    size_t row = kw + k2w + (s->shared ? 0 : vw);
    float *hx = normals(s->S * row, 2), *hq = normals(s->T * s->H * (s->dk + s->dk2), 3);
    mla_mem *x = device(b, hx, s->S * row), *q = device(b, hq, s->T * s->H * (s->dk + s->dk2)), *o = device(b, NULL, s->T * s->H * s->dv);
    mla_mem *kv = device(b, NULL, s->S * row * es / 4 + 1);
    mla_kv_view v = {.data = kv, .row_elems = row, .dtype = s->dtype, .scale = 1};
    lab_must(b->be->ops->kv_write(b->be, &(mla_kv_write_args){.to = v, .x = x, .ldx = row, .T = s->S, .width = row}, &err), &err);
    mla_attn_args a = {.o = o, .ldo = s->H * s->dv, .q = q, .ldq = s->H * (s->dk + s->dk2), .qh_stride = s->dk, .k = v, .k2 = v, .v = v,
                       .q2 = s->dk2 ? mla_at(q, s->H * s->dk) : NULL, .ldq2 = s->H * (s->dk + s->dk2), .q2h_stride = s->dk2,
                       .kh = s->kh, .k2h = s->k2h, .vh = s->vh, .T = s->T, .H = s->H, .dk = s->dk, .dk2 = s->dk2, .dv = s->dv,
                       .pos0 = s->S - s->T, .scale = (float)(1 / sqrt((double)(s->dk + s->dk2))), .bf16 = s->bf16};
    a.k.head_stride = s->dk, a.k2.head_stride = s->dk2, a.v.head_stride = s->dv;
    a.k2.col = kw, a.v.col = s->shared ? 0 : kw + k2w;
    double keys = (double)s->T * ((double)(s->S - s->T) + ((double)s->T + 1) / 2), own[ROUNDS], ceiling[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        ceiling[r] = peak(b, s->bf16);
        b->seconds[1][r] = 1 / ceiling[r];
        double t = lab_now();
        lab_must(b->be->ops->attention(b->be, &a, &err), &err);
        b->seconds[0][r] = lab_now() - t;
        own[r] = 2 * keys * (double)s->H * (double)(s->dk + s->dk2 + s->dv) / b->seconds[0][r];
    }
    report(b, s->what, median(own) / median(ceiling), median(own) / 1e9, "GFLOP/s");
    mla_mem *all[] = {x, q, o, kv};
    for (size_t i = 0; i < 4; i++) b->be->ops->free(b->be, all[i]);
    mla_free(hx);
    mla_free(hq);
}

static void bench_gdn(bench *b, size_t T, size_t chunk)
{
    const size_t nk = 16, nv = 48, d = 128, width = 2 * nk * d + nv * d;
    mla_err err = {0};
    char name[80];
    snprintf(name, sizeof name, "GDN 16/48 heads of 128, T=%zu, %s", T, chunk ? "chunk 64" : "recurrent");
    if (!strstr(name, only)) return;
    float *hx = normals(T * width, 4), *hg = normals(T * nv, 5), *hs = normals(nv * d * d, 6);
    mla_mem *x = device(b, hx, T * width), *g = device(b, hg, T * nv), *s = device(b, hs, nv * d * d), *o = device(b, NULL, T * nv * d);
    mla_gdn_args a = {.o = o, .qkv = x, .a = g, .b = g, .A_log = g, .dt_bias = g, .state = s, .T = T, .nk = nk, .nv = nv, .dk = d, .dv = d, .chunk = chunk};
    double own[ROUNDS], ceiling[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        ceiling[r] = peak(b, false);
        b->seconds[1][r] = 1 / ceiling[r];
        double t = lab_now();
        lab_must(b->be->ops->gdn(b->be, &a, &err), &err);
        b->seconds[0][r] = lab_now() - t;
        own[r] = 6.0 * (double)(T * nv * d * d) / b->seconds[0][r];
    }
    report(b, name, median(own) / median(ceiling), median(b->seconds[0]) * 1e6 / (double)T, "us/token");
    mla_mem *all[] = {x, g, s, o};
    for (size_t i = 0; i < 4; i++) b->be->ops->free(b->be, all[i]);
    mla_free(hx), mla_free(hg), mla_free(hs);
}

static void bench_gram(bench *b, size_t T, size_t n)
{
    mla_err err = {0};
    char name[80];
    snprintf(name, sizeof name, "gram fp64 T=%zu n=%zu (of the fp64 peak)", T, n);
    if (!strstr(name, only)) return;
    float *hx = normals(T * n, 7);
    mla_mem *x = device(b, hx, T * n), *acc = device(b, NULL, 2 * n * n);
    double own[ROUNDS], ceiling[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        ceiling[r] = peak(b, false) / 2; /* half as many lanes in fp64 */
        b->seconds[1][r] = 1 / ceiling[r];
        double t = lab_now();
        lab_must(b->be->ops->gram(b->be, &(mla_gram_args){.acc = acc, .x = x, .ldx = n, .T = T, .n = n}, &err), &err);
        b->seconds[0][r] = lab_now() - t;
        own[r] = (double)T * (double)n * (double)(n + 1) / b->seconds[0][r];
    }
    report(b, name, median(own) / median(ceiling), median(own) / 1e9, "GFLOP/s");
    b->be->ops->free(b->be, x);
    b->be->ops->free(b->be, acc);
    mla_free(hx);
}

static void cpu_name(char *buf, size_t cap)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(buf, cap, "unknown CPU");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(buf, cap, "%.*s", (int)strcspn(strchr(line, ':') + 2, "\n"), strchr(line, ':') + 2);
            break;
        }
    if (f) fclose(f);
}

int main(int argc, char **argv)
{
    static const attn_shape ATTN[] = {
        {"decode f32, absorbed 512+64, 24 heads, 8k", 1, 8192, 24, 1, 1, 1, 512, 64, 512, true, MLA_BF16, false},
        {"decode bf16, absorbed 512+64, 24 heads, 8k", 1, 8192, 24, 1, 1, 1, 512, 64, 512, true, MLA_BF16, true},
        {"decode f32, GQA 24/4 x 256, 8k", 1, 8192, 24, 4, 0, 4, 256, 0, 256, false, MLA_BF16, false},
        {"decode bf16, GQA 24/4 x 256, 8k", 1, 8192, 24, 4, 0, 4, 256, 0, 256, false, MLA_BF16, true},
        {"prefill f32 512, GQA 24/4 x 256, to 2k", 512, 2048, 24, 4, 0, 4, 256, 0, 256, false, MLA_BF16, false},
        {"prefill bf16 512, GQA 24/4 x 256, to 2k", 512, 2048, 24, 4, 0, 4, 256, 0, 256, false, MLA_BF16, true},
        {"prefill f32 512, GQA 9/3 x 64, to 512", 512, 512, 9, 3, 0, 3, 64, 0, 64, false, MLA_BF16, false},
        {"prefill bf16 512, GQA 9/3 x 64, to 512", 512, 512, 9, 3, 0, 3, 64, 0, 64, false, MLA_BF16, true},
    };
    bench b = {0};
    mla_err err = {0};
    char cpu[128];
    size_t threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    if (argc > 2 && !mla_isa_parse(argv[2], &b.isa)) return 2;
    lab_must(mla_backend_open(&b.be, &(mla_backend_opts){.threads = threads, .isa = b.isa}, &err), &err);
    if (argc > 3) only = argv[3];
    if (b.isa == MLA_ISA_AUTO) (void)mla_isa_parse(mla_isa_name(), &b.isa);
    lab_must(mla_pool_new(&b.pool, threads, &err), &err);
    b.threads = mla_pool_threads(b.pool);
    cpu_name(cpu, sizeof cpu);
    printf("%s; %s\n", cpu, b.be->ops->describe(b.be));
    printf("  R: operation / ceiling of the same run, medians of %d alternating rounds\n", ROUNDS);
    bench_linear(&b, MLA_PREC_BF16, 1, 5120, 17408);
    bench_linear(&b, MLA_PREC_BF16, 4, 5120, 17408);
    bench_linear(&b, MLA_PREC_F32, 1, 5120, 12288);
    bench_linear(&b, MLA_PREC_F32, 512, 5120, 2048);
    bench_linear(&b, MLA_PREC_BF16, 512, 5120, 2048);
    bench_linear(&b, MLA_PREC_F32, 512, 576, 1536);
    bench_linear(&b, MLA_PREC_BF16, 512, 576, 1536);
    for (size_t i = 0; i < sizeof ATTN / sizeof *ATTN; i++) bench_attention(&b, &ATTN[i]);
    bench_gdn(&b, 256, 0);
    bench_gdn(&b, 256, 64);
    bench_gdn(&b, 1, 0);
    bench_gram(&b, 1024, 1792);
    mla_pool_free(b.pool);
    mla_backend_close(b.be);
    return 0;
}
