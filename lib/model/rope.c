/* Rotary frequencies of every kind (formats page, section 2). d = rotary width, L0 = original context length. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "model/config.h"
#include "model/config_parts.h"

static const double TWO_PI = 6.283185307179586476925286766559;

double mla_yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1; }

/* inv_i = base^(-2i/d), i < d/2 */
static void plain(double *inv, size_t d, double base)
{
    for (size_t i = 0; i < d / 2; i++) inv[i] = pow(base, -(double)(2 * i) / (double)d);
}

/* Long waves are interpolated, short ones kept, the band between blended by t. */
static void llama3(const mla_rope_config *r, double *inv)
{
    double L0 = (double)r->original_max;
    plain(inv, r->rot, r->theta);
    for (size_t i = 0; i < r->rot / 2; i++) {
        double wave = TWO_PI / inv[i];
        if (wave > L0 / r->low_freq) {
            inv[i] /= r->factor;
        } else if (wave >= L0 / r->high_freq) {
            double t = (L0 / wave - r->low_freq) / (r->high_freq - r->low_freq);
            inv[i] = (1 - t) * inv[i] / r->factor + t * inv[i];
        }
    }
}

/* Peng et al. 2023 (YaRN): the dimension whose frequency turns `turns` times within L0 tokens. */
static double correction_dim(const mla_rope_config *r, double turns)
{
    return (double)r->rot * log((double)r->original_max / (TWO_PI * turns)) / (2 * log(r->theta));
}

static void yarn(const mla_rope_config *r, double *inv)
{
    double low = correction_dim(r, r->beta_fast), high = correction_dim(r, r->beta_slow);
    if (r->truncate) low = floor(low), high = ceil(high);
    if (!(low > 0)) low = 0;
    if (high > (double)r->rot - 1) high = (double)r->rot - 1;
    if (low == high) high += 0.001;
    plain(inv, r->rot, r->theta);
    for (size_t i = 0; i < r->rot / 2; i++) {
        double ramp = ((double)i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        inv[i] = inv[i] / r->factor * ramp + inv[i] * (1 - ramp);
    }
}

mla_status mla_rope_resolve(mla_rope_config *r, const double *short_factor, const double *long_factor, mla_err *err)
{
    size_t n = r->rot / 2;
    r->inv_freq = mla_alloc(n, 1, sizeof *r->inv_freq);
    if (long_factor) r->long_inv_freq = mla_alloc(n, 1, sizeof *r->long_inv_freq);
    if (!r->inv_freq || (long_factor && !r->long_inv_freq)) return mla_fail(err, MLA_ENOMEM, "rope: %zu frequencies", n);
    if (r->kind == MLA_ROPE_LLAMA3) llama3(r, r->inv_freq);
    else if (r->kind == MLA_ROPE_YARN) yarn(r, r->inv_freq);
    else plain(r->inv_freq, r->rot, r->theta);
    if (r->kind == MLA_ROPE_LINEAR)
        for (size_t i = 0; i < n; i++) r->inv_freq[i] /= r->factor;
    for (size_t i = 0; i < n && long_factor; i++) r->long_inv_freq[i] = r->inv_freq[i] / long_factor[i];
    for (size_t i = 0; i < n && short_factor; i++) r->inv_freq[i] /= short_factor[i];
    return MLA_OK;
}

static void resolved(const mla_config *c, size_t len, double *inv_freq)
{
    const mla_rope_config *r = &c->rope;
    size_t n = r->rot / 2;
    if (r->kind == MLA_ROPE_DYNAMIC && len > r->original_max && r->rot > 2) {
        double f = r->factor, d = (double)r->rot;
        double s = f * (double)len / (double)r->original_max - (f - 1);
        plain(inv_freq, r->rot, r->theta * pow(s, d / (d - 2)));
        return;
    }
    const double *from = r->kind == MLA_ROPE_LONGROPE && len > r->original_max ? r->long_inv_freq : r->inv_freq;
    memcpy(inv_freq, from, n * sizeof *inv_freq);
}

void mla_rope_inv_freq(const mla_config *c, size_t len, double *inv_freq)
{
    size_t m = c->mla.freq_fold;
    resolved(c, len, inv_freq);
    for (size_t i = 0; m > 1 && i < c->rope.rot / 2; i++) inv_freq[i] = inv_freq[i / m * m];
}

void mla_rope_table(const double *inv_freq, size_t half, size_t T, double gain, float *cos_out, float *sin_out)
{
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < half; i++) {
            cos_out[t * half + i] = (float)(cos((double)t * inv_freq[i]) * gain);
            sin_out[t * half + i] = (float)(sin((double)t * inv_freq[i]) * gain);
        }
}
