/* Every layout through the runtime on a GPU against the CPU: both precisions, every cache type; a prompt, single steps, a step
 * of four tokens and a later piece of nine. Models: the tiny hybrid, and toys whose latents and heads meet the decode kernels.
 *
 * What is allowed, for the root mean square over the logits of a phase:
 *  f32, f32 cache    sqrt(2) gamma_prob of the roundings along the longest path (docs/runtime.md), of the largest logit
 *  f32, others       the two sides differ by D, measured with the f32 cache. Where a value stands so near the middle of two stored
 *                    ones, which happens to D / step of them, they fall apart by a whole step: 12 times the variance of a rounding,
 *                    and what follows differs by more. E being the measured effect of rounding all layers' values (CPU, this cache
 *                    against f32): d = 8 D at first (8 for the tail as in tensor/bound.h), and after each of n attention layers
 *                    d^2 + min(12 d / step, 2) E^2 / n; 2: roundings that have nothing to do with each other
 *  bf16 products     R being the measured effect of the CPU's roundings (f32 cache, against f32 products): a GPU rounds as many
 *                    operands again in attention, and all weights: variance 3 R^2, the CPU's own R^2: 2 R; and roundings of the
 *                    cache that have nothing to do with each other: sqrt(2) E, 2 E for a phase of two rows. A delta net with heads of
 *                    128 rounds 12 times (test_delta.cu) where the CPU rounds twice: variance 6 R^2 and 2 R^2 as above: 2 sqrt(2) R */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "harness.h"
#include "runtime/naive.h"
#include "runtime/runtime.h"
#include "tell.h"
#include "tensor/bound.h"
#include "tensor/compare.h"
#include "tensor/fp.h"

enum { PHASES = 4, ROWS = 50 + 2 + 4 + 9, HYBRID = 0, WIDE, DS, DS_WIDE, MIXER, MODELS };
static const struct {
    const char *name;
    size_t T, times;
} PHASE[PHASES] = {{"prompt", 50, 1}, {"single steps", 1, 2}, {"four tokens", 4, 1}, {"nine tokens", 9, 1}};

typedef struct {
    const char *name;
    int model;
    mla_layout layout;
    size_t groups, rank, rotary; /* rank 0: full; rotary: keys shared by all heads (absorbed-rope), 0: exact ones */
} layout_case;

static const layout_case CASES[] = {
    {"keys and values", HYBRID, MLA_LAYOUT_NONE, 1, 0, 0},
    {"layout n", HYBRID, MLA_LAYOUT_N, 1, 0, 0},
    {"layout n, two groups, odd rank", HYBRID, MLA_LAYOUT_N, 2, 91, 0},
    {"layout n, two rotary keys", HYBRID, MLA_LAYOUT_ABSORBED, 1, 200, 2},
    {"layout absorbed-rope", HYBRID, MLA_LAYOUT_ABSORBED, 1, 0, 0},
    {"layout rebuild", HYBRID, MLA_LAYOUT_REBUILD, 1, 0, 0},
    {"layout shared-rotary", HYBRID, MLA_LAYOUT_SHARED, 1, 40, 2},
    {"layout p", HYBRID, MLA_LAYOUT_P, 1, 0, 0},
    {"layout p, two groups", HYBRID, MLA_LAYOUT_P, 2, 0, 0},
    {"keys and values, heads of 256", WIDE, MLA_LAYOUT_NONE, 1, 0, 0},
    {"layout n, latent 512", WIDE, MLA_LAYOUT_N, 1, 512, 0},
    {"layout n, one rotary key, latent 256", WIDE, MLA_LAYOUT_ABSORBED, 1, 256, 1},
    {"layout deepseek", DS, MLA_LAYOUT_NONE, 1, 0, 0},
    {"layout deepseek, latent 512", DS_WIDE, MLA_LAYOUT_NONE, 1, 0, 0},
    {"delta net with heads of 128", MIXER, MLA_LAYOUT_NONE, 1, 0, 0},
};

static const struct {
    const char *name;
    mla_dtype kv;
    bool keys16;
    double step; /* between neighbouring stored numbers, of the number: the smallest */
} CACHE[] = {{"f32 cache", MLA_F32, false, 0}, {"bf16 cache", MLA_BF16, false, 0x1p-8}, {"fp8 cache", MLA_F8_E4M3, false, 0x1p-4}, {"fp8-keys16 cache", MLA_F8_E4M3, true, 0x1p-8}};
enum { CACHES = sizeof CACHE / sizeof *CACHE };

/* A checker sees the f32 and the FP8 cache. */
static bool wanted(size_t cache) { return !cut_small() || CACHE[cache].kv == MLA_F32 || (CACHE[cache].kv == MLA_F8_E4M3 && !CACHE[cache].keys16); }

static mla_model *model[MODELS];

START_TEST(open_models) /* toys are written by a suite's code, which asks for one around it */
{
    const char *root = getenv("MLA_ROOT");
    char path[4096];
    static const toy TOY[MODELS] = {
        [WIDE] = {.arch = "LlamaForCausalLM", .type = "llama", .extra = ",\"partial_rotary_factor\":0.25", .D = 64, .I = 96, .L = 2, .H = 8, .G = 4, .d = 256, .V = 96, .eps = 1e-6},
        [DS] = {.arch = "DeepseekV3ForCausalLM", .type = "deepseek_v3",
                .extra = ",\"q_lora_rank\":24,\"kv_lora_rank\":32,\"qk_nope_head_dim\":16,\"qk_rope_head_dim\":8,\"v_head_dim\":12,\"n_routed_experts\":null,\"first_k_dense_replace\":2",
                .D = 48, .I = 64, .L = 2, .H = 4, .G = 4, .rot = 8, .V = 80, .eps = 1e-5, .rq = 24, .rkv = 32, .dn = 16, .dv = 12},
        [DS_WIDE] = {.arch = "DeepseekV3ForCausalLM", .type = "deepseek_v3",
                     .extra = ",\"q_lora_rank\":null,\"kv_lora_rank\":512,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":64,\"v_head_dim\":32,\"n_routed_experts\":null,\"first_k_dense_replace\":2",
                     .D = 64, .I = 96, .L = 2, .H = 8, .G = 8, .rot = 64, .V = 80, .eps = 1e-5, .rkv = 512, .dn = 32, .dv = 32},
        [MIXER] = {.arch = "Qwen3_5ForCausalLM", .type = "qwen3_5_text",
                   .extra = ",\"layer_types\":[\"linear_attention\",\"full_attention\",\"linear_attention\",\"full_attention\"],\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"
                            "\"linear_value_head_dim\":128,\"linear_num_key_heads\":2,\"linear_num_value_heads\":6,\"partial_rotary_factor\":0.25,\"max_position_embeddings\":8192",
                   .D = 384, .I = 320, .L = 4, .H = 8, .G = 2, .d = 64, .V = 96, .eps = 1e-6, .qk_norm = true, .nk = 2, .nv = 6},
    };
    snprintf(path, sizeof path, "%s/tests/fixtures/tiny-hybrid", root && *root ? root : ".");
    must(mla_model_open(&model[HYBRID], path, &err), path);
    for (int i = WIDE; i < MODELS; i++) {
        char *dir = toy_write(&TOY[i]);
        must(mla_model_open(&model[i], dir, &err), dir);
        mla_free(dir);
    }
}
END_TEST

static bool models(void)
{
    Suite *s = suite_create("models");
    TCase *t = tcase_create("models");
    tcase_add_test(t, open_models);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_SILENT);
    bool ok = srunner_ntests_failed(r) == 0;
    srunner_free(r);
    return ok;
}

/* Numbers that bf16 holds, so that rounding of weights is no difference. */
static float exact(double x) { return mla_bf16_f32(mla_f32_bf16((float)x)); }

/* R rotary keys for all heads: of every frequency, sums of the heads' rotated by fixed angles. */
static void mix_heads(mla_factors *f, size_t R, size_t G, size_t rot)
{
    size_t d = f->d, gd = G * d, half = rot / 2, slots = f->w / 2;
    for (size_t s = 0; s < slots; s++)
        for (size_t g = 0; g < G; g++) {
            size_t r = s / half, j = s % half, at = (s * G + g) * 2;
            float a = exact(0.5 * mla_rng_normal(7, at) + (r == g % R)), c = exact(0.3 * mla_rng_normal(7, at + 1));
            float *re = f->Er + s * gd + g * d, *im = f->Er + (s + slots) * gd + g * d, *qr = f->Rq + (g * f->w + s) * d, *qi = f->Rq + (g * f->w + s + slots) * d;
            re[j] = im[half + j] = qr[j] = qi[half + j] = a;
            re[half + j] = qr[half + j] = -c;
            im[j] = qi[j] = c;
        }
}

static void set_factors(mla_rt *rt, const layout_case *k, size_t l)
{
    const mla_config *c = mla_rt_config(rt);
    mla_factors f;
    mla_shared s;
    size_t n, G = c->kv_heads, d = c->head_dim, rot = c->rope.rot, w = (k->rotary ? k->rotary : G) * rot;
    if (k->layout == MLA_LAYOUT_SHARED) {
        const double size[MLA_SHARED_PARTS] = {0.06, 0.06, 0.35, 0.16, 0.16, 0.1}; /* about the base's */
        must(mla_shared_new(&s, c, k->rank, k->rotary, &err), k->name);
        for (size_t p = 0, at = 0; p < MLA_SHARED_PARTS; p++)
            for (size_t i = 0; i < mla_shared_part(&s, p); i++, at++) s.E[at] = exact(size[p] * mla_rng_normal(100 + l, at));
        must(mla_rt_set_shared(rt, l, &s, &err), k->name);
        mla_shared_free(&s);
        return;
    }
    must(mla_factors_dims(c, k->layout, k->groups, &n, &err), k->name);
    if (k->layout == MLA_LAYOUT_ABSORBED) must(mla_factors_new_absorbed(&f, c, w, k->rank ? k->rank : 2 * G * d - w, &err), k->name);
    else must(mla_factors_new(&f, k->layout, k->groups, n, k->rank ? k->rank : n, &err), k->name);
    if (!k->rank) mla_factors_identity(&f);
    for (size_t i = 0; k->rank && i < f.groups * f.r * f.n; i++) f.E[i] = exact(mla_rng_normal(200 + l, i) / sqrt((double)f.n));
    for (size_t i = 0; k->rank && i < f.groups * f.nd * f.r; i++) f.D[i] = exact(mla_rng_normal(300 + l, i) / sqrt((double)f.n));
    if (k->rotary) mix_heads(&f, k->rotary, G, rot);
    must(mla_rt_set_factors(rt, l, &f, &err), k->name);
    mla_factors_free(&f);
}

/* Logits (ROWS, V), all phases of one sequence. */
static float *answers(mla_backend *be, const layout_case *k, mla_precision p, size_t cache)
{
    mla_rt *rt;
    mla_seq *s;
    int32_t ids[ROWS];
    must(mla_rt_open(&rt, model[k->model], be, &(mla_rt_opts){.precision = p, .kv_dtype = CACHE[cache].kv, .keys16 = CACHE[cache].keys16}, &err), k->name);
    const mla_config *c = mla_rt_config(rt);
    for (size_t l = 0; l < c->layers; l++) {
        if (c->layer_kind[l] != MLA_LAYER_FULL) continue;
        if (k->layout != MLA_LAYOUT_NONE) set_factors(rt, k, l);
        if (CACHE[cache].kv == MLA_F8_E4M3) must(mla_rt_set_kv_scale(rt, l, (mla_kv_scale){true, 0.03125f, 0.03125f}, &err), k->name);
    }
    float *out = mla_alloc(ROWS, c->vocab, sizeof *out);
    for (size_t i = 0; i < ROWS; i++) ids[i] = (int32_t)(mla_rng_u64(9, i) % c->vocab);
    must(mla_seq_new(&s, rt, ROWS, &err), k->name);
    for (size_t i = 0, at = 0; i < PHASES; i++)
        for (size_t j = 0; j < PHASE[i].times; j++, at += PHASE[i].T) {
            mla_job job = {.seq = s, .ids = ids + at, .T = PHASE[i].T, .logits = out + at * c->vocab};
            must(mla_rt_run(rt, &job, 1, NULL, NULL, &err), k->name);
        }
    mla_seq_free(s);
    mla_rt_close(rt);
    return out;
}

/* Root mean square of a - b (b NULL: of a). */
static double rms(const float *a, const float *b, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++) {
        double x = b ? (double)a[i] - (double)b[i] : (double)a[i];
        s += x * x;
    }
    return sqrt(s / (double)n);
}

/* What n attention layers make of a difference D between values of the size `size`. */
static double apart(double D, double E, double size, double step, size_t n)
{
    double d = 8 * D;
    for (size_t i = 0; i < n; i++) d = sqrt(d * d + fmin(12 * d / size / step, 2) * E * E / (double)n);
    return d;
}

static void run(mla_backend *cpu, mla_backend *gpu, const layout_case *k)
{
    const mla_config *c = mla_model_config(model[k->model]);
    size_t V = c->vocab;
    float *on_cpu[2][CACHES], *on_gpu[2][CACHES];
    for (int p = 0; p < 2; p++)
        for (size_t t = 0; t < CACHES; t++)
            if (wanted(t)) on_cpu[p][t] = answers(cpu, k, p ? MLA_PREC_BF16 : MLA_PREC_F32, t), on_gpu[p][t] = answers(gpu, k, p ? MLA_PREC_BF16 : MLA_PREC_F32, t);
    double per = 4.0 * (double)c->hidden + 2.0 * (double)c->head_dim + ROWS + (double)(c->heads * c->head_dim) + (double)c->intermediate;
    double path = sqrt(2) * mla_gamma_prob(MLA_F32, (size_t)(per * (double)c->layers + 2.0 * (double)c->hidden));
    for (size_t i = 0, row = 0; i < PHASES; row += PHASE[i].T * PHASE[i].times, i++) {
        size_t at = row * V, n = PHASE[i].T * PHASE[i].times * V;
        const float *ref = on_cpu[0][0] + at;
        double size = rms(ref, NULL, n), D = rms(on_gpu[0][0] + at, ref, n), R = rms(on_cpu[1][0] + at, ref, n);
        for (int p = 0; p < 2; p++)
            for (size_t t = 0; t < CACHES; t++) {
                if (!wanted(t)) continue;
                char what[100];
                double off = rms(on_gpu[p][t] + at, on_cpu[p][t] + at, n), E = rms(on_cpu[0][t] + at, ref, n), tol;
                if (p) tol = 2 * ((k->model == MIXER ? sqrt(2) : 1) * R + E);
                else if (t) tol = apart(D, E, size, CACHE[t].step, mla_config_full_layers(c));
                else tol = path * mla_compare(ref, ref, n).max_want;
                snprintf(what, sizeof what, "%s, %s, %s", p ? "bf16 products" : "f32", CACHE[t].name, PHASE[i].name);
                bool ok = isfinite(off) && off <= tol;
                if (!ok || getenv("MLA_TEST_VERBOSE")) printf("  %-38s %-45s off by %.2e of %.2e, rms %.2g; R %.1e E %.1e\n", k->name, what, off, tol, size, R, E);
                check(ok, k->name, what);
            }
    }
    for (int p = 0; p < 2; p++)
        for (size_t t = 0; t < CACHES; t++)
            if (wanted(t)) mla_free(on_cpu[p][t]), mla_free(on_gpu[p][t]);
}

int main(void)
{
    const size_t cases = sizeof CASES / sizeof *CASES;
    mla_backend *cpu, *gpu;
    const char *device = getenv("MLA_TEST_DEVICE"); /* "cpu": the test of the test */
    if (mla_backend_open(&gpu, &(mla_backend_opts){.device = device ? device : "cuda:0"}, &err) != MLA_OK) {
        printf("SKIP layouts on a GPU: %s (%zu)\n", err.msg, cases * PHASES * CACHES * 2);
        printf("cuda_layouts: 0 passed, 0 failed, %zu skipped\n", cases * PHASES * CACHES * 2);
        return 0;
    }
    must(mla_backend_open(&cpu, &(mla_backend_opts){0}, &err), "cpu");
    if (!models()) return 3;
    for (size_t i = 0; i < cases; i++)
        if (cut_kept((int)i)) run(cpu, gpu, &CASES[i]);
    for (int i = 0; i < MODELS; i++) mla_model_close(model[i]);
    mla_backend_close(gpu);
    mla_backend_close(cpu);
    printf("cuda_layouts: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
