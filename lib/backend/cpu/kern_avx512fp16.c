/* EXL3 on CPUs with f16 arithmetic: its codebooks are f16 sums and products. Beside the other kernels of avx512bf16. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#if defined(__AVX512FP16__) /* a compiler that knows it */
#include "backend/cpu/trellis_body.h"

void mla_cpu_add_avx512fp16(mla_cpu_kern *k)
{
    k->trellis_gemv = row_trellis_gemv;
    k->trellis_tile = row_trellis_tile;
    k->hadamard = row_hadamard;
}
#else
void mla_cpu_add_avx512fp16(mla_cpu_kern *k) { (void)k; }
#endif
#endif
