/* One-byte logarithmic numbers. */
#include "tensor/log2code.h"

#include <math.h>

uint8_t mla_log2_encode(float x)
{
    if (!(x > 0)) return 0;
    double c = rint(log2((double)x) * MLA_LOG2_STEPS) + MLA_LOG2_ONE;
    return c <= 0 ? 0 : c >= 255 ? 255 : (uint8_t)c;
}

float mla_log2_decode(uint8_t code) { return (float)exp2(((double)code - MLA_LOG2_ONE) / MLA_LOG2_STEPS); }
