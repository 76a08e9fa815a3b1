/* Row kernels of the portable variant, for any CPU. */
#include "backend/cpu/rows_ref.h"

void mla_cpu_add_rows_ref(mla_cpu_kern *k) { fill_rows_ref(k); }
