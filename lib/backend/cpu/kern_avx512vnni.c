/* Products in whole numbers on AVX-512 CPUs with dot product instructions. Beside the other kernels of avx512. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#if defined(__AVX512VNNI__) /* a compiler that knows it */
#include "backend/cpu/dot_body.h"

void mla_cpu_add_avx512vnni(mla_cpu_kern *k)
{
    k->dot_row = row_dot_row;
    k->dot_gemv = row_dot_gemv;
}
#else
void mla_cpu_add_avx512vnni(mla_cpu_kern *k) { (void)k; }
#endif
#endif
