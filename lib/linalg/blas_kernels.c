/* The kernel set of OpenBLAS where its own choice is far below the CPU. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "linalg/gemm.h"

#define CORE "OPENBLAS_CORETYPE"

#if defined(__x86_64__)
__attribute__((weak)) char *openblas_get_corename(void); /* OpenBLAS only */

/* The best set of kernels that every OpenBLAS since 0.3.10 has for this CPU; NULL: any will do. */
static const char *fitting(void)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return NULL;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return "Haswell";
    return __builtin_cpu_supports("avx512bf16") ? "Cooperlake" : "SkylakeX";
}

static bool has_avx2_kernels(const char *core)
{
    static const char *const KNOWN[] = {"Haswell", "Zen", "Excavator", "SkylakeX", "Cooperlake", "SapphireRapids"};
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (!strcmp(core, KNOWN[i])) return true;
    return false;
}

/* Takes no memory: a program short of it must not go on with kernels whose results round differently. */
void mla_blas_settle(char *const argv[])
{
    static char *env[4096], set[64];
    size_t n = 0;
    const char *want = fitting();
    if (!want || !openblas_get_corename || getenv(CORE) || has_avx2_kernels(openblas_get_corename())) return;
    while (environ[n] && n + 2 < sizeof env / sizeof *env) n++;
    if (environ[n]) return; /* thousands of variables: slow, but right */
    memcpy(env, environ, n * sizeof *env);
    (void)snprintf(set, sizeof set, CORE "=%s", want);
    env[n] = set;
    (void)execve("/proc/self/exe", argv, env);
}
#else
void mla_blas_settle(char *const argv[]) { (void)argv; }
#endif
