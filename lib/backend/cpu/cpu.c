/* The CPU backend: choosing a variant, opening, memory, and the op table. */
#include "backend/cpu/cpu.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/alloc.h"
#include "base/ckd.h"
#include "linalg/gemm.h"

#define HUGE_FROM ((size_t)4 << 20) /* smaller blocks gain nothing from huge pages */

#if defined(__x86_64__)
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
static bool has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
static bool has_avx512fp16(void) /* and vbmi2; asked of the CPU itself: compilers before 2022 know no such name */
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 23 & 1) && (c >> 6 & 1);
}
static bool has_avxvnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
static bool has_avx512vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool has_avx2vnni(void) { return has_avx2() && has_avxvnni(); }
static bool has_all(void) { return has_avx512bf16() && has_avx512vnni() && has_avx512fp16(); }

static void fill_avxvnni(mla_cpu_kern *k)
{
    mla_cpu_fill_avx2(k);
    mla_cpu_add_avxvnni(k);
}
static void fill_avx512vnni(mla_cpu_kern *k)
{
    mla_cpu_fill_avx512(k);
    mla_cpu_add_avx512vnni(k);
}
static void fill_avx512bf16(mla_cpu_kern *k)
{
    mla_cpu_fill_avx512bf16(k);
    if (has_avx512vnni()) mla_cpu_add_avx512vnni(k);
}
static void fill_avx512fp16(mla_cpu_kern *k)
{
    fill_avx512bf16(k);
    mla_cpu_add_avx512fp16(k);
}
#endif

typedef struct {
    mla_isa isa;
    const char *name;
    bool (*has)(void);
    void (*fill)(mla_cpu_kern *k);
} variant;

static bool always(void) { return true; }

static const variant VARIANTS[] = { /* best first; what bears the isa's own name needs nothing beyond it */
#if defined(__x86_64__)
    {MLA_ISA_AVX512BF16, "avx512fp16", has_all, fill_avx512fp16},
    {MLA_ISA_AVX512BF16, "avx512bf16", has_avx512bf16, fill_avx512bf16},
    {MLA_ISA_AVX512, "avx512vnni", has_avx512vnni, fill_avx512vnni},
    {MLA_ISA_AVX512, "avx512", has_avx512, mla_cpu_fill_avx512},
    {MLA_ISA_AVX2, "avxvnni", has_avx2vnni, fill_avxvnni},
    {MLA_ISA_AVX2, "avx2", has_avx2, mla_cpu_fill_avx2},
#endif
    {MLA_ISA_REF, "ref", always, mla_cpu_fill_ref},
};

bool mla_cpu_pick(mla_isa isa, mla_cpu_kern *out)
{
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++)
        if ((isa == MLA_ISA_AUTO || isa == VARIANTS[i].isa) && VARIANTS[i].has()) {
            VARIANTS[i].fill(out);
            return true;
        }
    return false;
}

bool mla_cpu_pick_named(const char *name, mla_cpu_kern *out)
{
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++)
        if (!strcmp(name, VARIANTS[i].name) && VARIANTS[i].has()) {
            VARIANTS[i].fill(out);
            return true;
        }
    return false;
}

bool mla_cut(size_t *total, size_t *off, size_t a, size_t b, size_t size)
{
    size_t n;
    *off = *total;
    if (!mla_mul(&n, a, b) || !mla_mul(&n, n, size) || !mla_add(&n, n, 63)) return false;
    return mla_add(total, *total, n & ~(size_t)63);
}

void *mla_cpu_big(size_t bytes)
{
    char *p = mla_alloc_raw(bytes, 1, 1);
    if (p && bytes >= HUGE_FROM) {
        uintptr_t page = 4096, a = ((uintptr_t)p + page - 1) / page * page, e = ((uintptr_t)p + bytes) / page * page;
        (void)madvise(p + (a - (uintptr_t)p), e - a, MADV_HUGEPAGE); /* advice only: failing changes speed, not results */
    }
    return p;
}

mla_status mla_cpu_scratch(mla_cpu *c, size_t bytes, const char *what, char **out, mla_err *err)
{
    if (bytes > c->scratch_bytes) {
        mla_free(c->scratch);
        c->scratch_bytes = 0;
        c->scratch = mla_cpu_big(bytes);
        if (!c->scratch) return mla_fail(err, MLA_ENOMEM, "%s: %zu bytes of scratch", what, bytes);
        c->scratch_bytes = bytes;
    }
    *out = c->scratch;
    return MLA_OK;
}

static void cpu_destroy(mla_backend *be)
{
    mla_cpu *c = mla_cpu_of(be);
    mla_pool_free(c->pool);
    mla_free(c->scratch);
    mla_free(c);
}

static const char *cpu_describe(mla_backend *be) { return mla_cpu_of(be)->text; }

static mla_status cpu_alloc(mla_backend *be, mla_mem **out, size_t bytes, mla_err *err)
{
    (void)be;
    void *p = mla_cpu_big(bytes);
    if (!p) return mla_fail(err, MLA_ENOMEM, "cpu buffer of %zu bytes", bytes);
    *out = p;
    return MLA_OK;
}

static void cpu_free(mla_backend *be, mla_mem *p)
{
    (void)be;
    mla_free(p);
}

static mla_status cpu_upload(mla_backend *be, mla_mem *dst, const void *src, size_t bytes, mla_err *err)
{
    (void)be, (void)err;
    if (bytes) memcpy(dst, src, bytes);
    return MLA_OK;
}

static mla_status cpu_download(mla_backend *be, void *dst, const mla_mem *src, size_t bytes, mla_err *err)
{
    (void)be, (void)err;
    if (bytes) memcpy(dst, src, bytes);
    return MLA_OK;
}

static mla_status cpu_copy(mla_backend *be, mla_mem *dst, const mla_mem *src, size_t bytes, mla_err *err)
{
    (void)be, (void)err;
    if (bytes) memmove(dst, src, bytes);
    return MLA_OK;
}

static mla_status cpu_zero(mla_backend *be, mla_mem *dst, size_t bytes, mla_err *err)
{
    (void)be, (void)err;
    if (bytes) memset(dst, 0, bytes);
    return MLA_OK;
}

static mla_status cpu_sync(mla_backend *be, mla_err *err)
{
    (void)be, (void)err;
    return MLA_OK;
}

static mla_status cpu_single(mla_backend *be, mla_backend **out, mla_err *err)
{
    mla_cpu *c = mla_alloc(1, 1, sizeof *c), *of = mla_cpu_of(be);
    if (!c) return mla_fail(err, MLA_ENOMEM, "cpu backend of one thread");
    c->base.ops = of->base.ops;
    c->kern = of->kern;
    c->k = &c->kern;
    c->threads = 1; /* no pool: loops run in the caller */
    snprintf(c->text, sizeof c->text, "cpu %s, 1 thread, %s", c->kern.name, mla_blas_name());
    *out = &c->base;
    return MLA_OK;
}

static const mla_backend_ops CPU_OPS = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .describe = cpu_describe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .sync = cpu_sync,
    .weight_new = mla_cpu_weight_new,
    .weight_free = mla_cpu_weight_free,
    .weight_bytes = mla_cpu_weight_bytes,
    .linear = mla_cpu_linear,
    .embed = mla_cpu_embed,
    .rmsnorm = mla_cpu_rmsnorm,
    .gated_norm = mla_cpu_gated_norm,
    .rope = mla_cpu_rope,
    .add = mla_cpu_add,
    .add_rows = mla_cpu_add_rows,
    .silu_mul = mla_cpu_silu_mul,
    .sigmoid_mul = mla_cpu_sigmoid_mul,
    .copy_rows = mla_cpu_copy_rows,
    .kv_write = mla_cpu_kv_write,
    .kv_read = mla_cpu_kv_read,
    .attention = mla_cpu_attention,
    .divisor = mla_cpu_divisor,
    .conv = mla_cpu_conv,
    .gdn = mla_cpu_gdn,
    .gram = mla_cpu_gram,
    .range = mla_cpu_range,
    .eigh = mla_cpu_eigh,
    .linears = mla_linears_singly,
    .gated = mla_gated_singly,
    .mlp = mla_mlp_singly,
    .gated_change = mla_cpu_gated_change,
    .delta = mla_delta_singly,
    .single = cpu_single,
    .mixed_rows = true,
    .keeps_gate = true,
};

mla_status mla_cpu_open(mla_backend **out, const mla_backend_opts *o, mla_err *err)
{
    mla_cpu_kern kern;
    if (!mla_cpu_pick(o->isa, &kern)) return mla_fail(err, MLA_EUNSUPPORTED, "the requested instruction set is missing: this CPU has at best %s", mla_isa_name());
    mla_cpu *c = mla_alloc(1, 1, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "cpu backend");
    c->base.ops = &CPU_OPS;
    c->kern = kern;
    c->k = &c->kern;
    if (mla_pool_new(&c->pool, o->threads, err) != MLA_OK) {
        cpu_destroy(&c->base);
        return mla_wrap(err, "cpu backend");
    }
    c->threads = mla_pool_threads(c->pool);
    snprintf(c->text, sizeof c->text, "cpu %s, %zu thread%s, %s", kern.name, c->threads, c->threads == 1 ? "" : "s",
             mla_blas_name());
    *out = &c->base;
    return MLA_OK;
}
