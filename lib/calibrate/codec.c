/* Cache formats by their definitions. */
#include "calibrate/codec.h"

#include <math.h>

#include "tensor/fp.h"

enum { BLOCK = 16 }; /* values that share a scale in NVFP4 */

typedef enum { BF16, E4M3, INT8, FP4 } code;
typedef struct {
    const char *name;
    code code;
    bool headwise, token;
} format;

static const format FORMAT[MLA_KV_FORMATS] = {
    [MLA_KV_BF16] = {"bf16", BF16, false, false},
    [MLA_KV_FP8] = {"fp8", E4M3, false, false},
    [MLA_KV_FP8_HEAD] = {"fp8-head", E4M3, true, false},
    [MLA_KV_FP8_TOKEN] = {"fp8-token", E4M3, true, true},
    [MLA_KV_INT8] = {"int8", INT8, false, false},
    [MLA_KV_INT8_HEAD] = {"int8-head", INT8, true, false},
    [MLA_KV_INT8_TOKEN] = {"int8-token", INT8, true, true},
    [MLA_KV_NVFP4] = {"nvfp4", FP4, false, false},
    [MLA_KV_FP8_KEYS16] = {"fp8-keys16", E4M3, false, false},
};

const char *mla_kv_format_name(mla_kv_format f) { return FORMAT[f].name; }
mla_kv_format mla_kv_format_part(mla_kv_format f, bool keys)
{
    return f != MLA_KV_FP8_KEYS16 ? f : keys ? MLA_KV_BF16 : MLA_KV_FP8;
}
bool mla_kv_format_static(mla_kv_format f) { return FORMAT[f].code != BF16 && !FORMAT[f].token; }
bool mla_kv_format_headwise(mla_kv_format f) { return FORMAT[f].headwise; }

static float largest(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

/* To bf16, away from zero: nothing saturates for the scale's rounding. x >= 0 and far below the largest bf16. */
static float bf16_up(float x)
{
    float y = mla_bf16_f32(mla_f32_bf16(x));
    return y < x ? mla_bf16_f32((uint16_t)(mla_f32_bf16(x) + 1)) : y;
}

/* 0 .5 1 1.5 2 3 4 6, ties to the even code */
static float e2m1(float x)
{
    float a = fabsf(x), y = a < 2 ? rintf(2 * a) / 2 : a < 4 ? rintf(a) : 2 * rintf(a / 2);
    return copysignf(fminf(y, 6), x);
}

static void nvfp4(float *x, size_t n, float s)
{
    for (size_t i = 0; i < n; i += BLOCK) {
        size_t k = n - i < BLOCK ? n - i : BLOCK;
        float b = mla_e4m3_f32(mla_f32_e4m3(largest(x + i, k) / (6 * s))) * s;
        for (size_t j = i; j < i + k; j++) x[j] = b > 0 ? e2m1(x[j] / b) * b : 0;
    }
}

void mla_kv_code(mla_kv_format f, float *x, size_t n, float s)
{
    code c = FORMAT[f].code;
    if (FORMAT[f].token) s = bf16_up(largest(x, n) / (c == E4M3 ? 448 : 127));
    if (c == FP4) {
        nvfp4(x, n, s);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (c == BF16) x[i] = mla_bf16_f32(mla_f32_bf16(x[i]));
        else if (!(s > 0)) x[i] = 0; /* a token's group that is all zero */
        else if (c == E4M3) x[i] = mla_e4m3_f32(mla_f32_e4m3(x[i] / s)) * s;
        else x[i] = fminf(fmaxf(rintf(x[i] / s), -127), 127) * s;
    }
}

float mla_kv_format_scale(mla_kv_format f, double amax, double headroom)
{
    switch (FORMAT[f].code) {
    case E4M3: return (float)(amax * headroom / 448);
    case FP4: return (float)(amax * headroom / (448 * 6));
    default: return (float)(amax / 127);
    }
}

static size_t pieces(size_t n, size_t of) { return n / of + (n % of != 0); }

double mla_kv_format_bytes(mla_kv_format f, size_t width, size_t head, size_t group)
{
    const format *t = &FORMAT[f];
    double w = (double)width, groups = (double)(width / head * pieces(head, group)), blocks = (double)(width / head * pieces(head, BLOCK));
    if (t->code == FP4) return w / 2 + blocks;
    return t->code == BF16 ? 2 * w : w + (t->token ? 2 * groups : 0);
}
