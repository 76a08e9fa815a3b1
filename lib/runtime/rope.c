/* Rotation tables: cos and sin of position x inverse frequency, computed in fp64 and rounded once to f32.
 * 3-D positions (image prompts) choose the row by frequency: interleaved sections (T H W T H W ... T) or one
 * section after the other. */
#include <math.h>

#include "runtime/rt.h"

/* Which of T, H, W frequency i follows. */
static size_t axis(const mla_rope_config *c, size_t i)
{
    const size_t *s = c->mrope_section;
    if (!(s[0] | s[1] | s[2])) return 0;
    if (!c->mrope_interleaved) return i < s[0] ? 0 : i < s[0] + s[1] ? 1 : 2;
    if (i % 3 == 1 && i < 3 * s[1]) return 1;
    if (i % 3 == 2 && i < 3 * s[2]) return 2;
    return 0;
}

void rt_rope_rows(const mla_config *c, const double *inv_freq, const int32_t *pos, size_t T, float *cos_out, float *sin_out)
{
    size_t half = c->rope.rot / 2;
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < half; i++) {
            double a = pos[3 * t + axis(&c->rope, i)] * inv_freq[i];
            cos_out[t * half + i] = (float)(cos(a) * c->rope.attention_factor);
            sin_out[t * half + i] = (float)(sin(a) * c->rope.attention_factor);
        }
}
