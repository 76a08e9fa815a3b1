/* Formats of a KV cache as quantize-dequantize in f32: what a study compares, and their size.
 *
 *   bf16                rounded to nearest even
 *   fp8, int8           e4m3fn(x / s) s, saturated at 448; round(x / s) s, |code| <= 127; one stored scale s per layer and part
 *   fp8-head, int8-head the same with one stored scale for each KV head, or for each 64 values of a latent
 *   fp8-token, int8-token   such a group of each token has its own scale, its largest |x| / 448 or / 127 rounded up to bf16,
 *                       stored beside the codes
 *   fp8-keys16          fp8, but for the part that carries fp8's error, which stays bf16: a retrofit's rotary keys; keys beside values
 *   nvfp4               16 values share b = e4m3(largest |x| / (6 s)); e2m1(x / (b s)) b s; one stored s per layer and part */
#ifndef MLA_CALIBRATE_CODEC_H
#define MLA_CALIBRATE_CODEC_H
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    MLA_KV_BF16, MLA_KV_FP8, MLA_KV_FP8_HEAD, MLA_KV_FP8_TOKEN, MLA_KV_INT8, MLA_KV_INT8_HEAD, MLA_KV_INT8_TOKEN, MLA_KV_NVFP4,
    MLA_KV_FP8_KEYS16,
    MLA_KV_FORMATS
} mla_kv_format;
#define MLA_KV_LATENT_GROUP 64 /* values of a latent that share a scale */

const char *mla_kv_format_name(mla_kv_format f);
/* The format of one part of a cache: f itself but for MLA_KV_FP8_KEYS16, which is made of two. keys: the part holds rotary keys, or
 * keys beside values. Codes, scales and sizes are asked for with what this gives. */
mla_kv_format mla_kv_format_part(mla_kv_format f, bool keys);
bool mla_kv_format_static(mla_kv_format f); /* needs a stored scale */
bool mla_kv_format_headwise(mla_kv_format f); /* a stored scale per head or group of latent values */
/* One group x (n) in place. s: its stored scale, > 0, where the format has one. */
void mla_kv_code(mla_kv_format f, float *x, size_t n, float s);
/* Stored scale for values up to amax > 0: what a float format reaches at amax times headroom, an integer format at amax. */
float mla_kv_format_scale(mla_kv_format f, double amax, double headroom);
/* Bytes of a part of `width` values in groups of `group`, the last of each `head` values shorter; stored scales are the
 * model's, not the token's. */
double mla_kv_format_bytes(mla_kv_format f, size_t width, size_t head, size_t group);
#endif
