/* The same for CPUs whose fmaf is one instruction: where it is a call, nearly all the time is calls. */
#include "backend/cpu/kernels.h"
#if defined(__x86_64__)
#include "backend/cpu/rows_ref.h"

void mla_cpu_add_rows_ref_fma(mla_cpu_kern *k) { fill_rows_ref(k); }
#endif
