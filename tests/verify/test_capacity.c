/* Capacity: the published figures of the 27B shape, parameters, slot limits, and what is refused. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "io/file.h"
#include "suites.h"
#include "verify/folder/capacity.h"

#define GIB 1073741824.0

static mla_config cfg;
static mla_json *json;

static void load(const char *name)
{
    mla_err err = {0};
    ck_ok(mla_json_read(&json, mla_fixture(name), 1 << 20, &err));
    ck_ok(mla_config_from_json(&cfg, mla_json_root(json), &err));
}

static void unload(void)
{
    mla_config_free(&cfg);
    mla_json_free(json);
    json = NULL;
}

static mla_capacity ask(double keep, mla_dtype kv, double weight_gib)
{
    mla_err err = {0};
    mla_capacity c;
    mla_capacity_model m = {.cfg = &cfg, .kv = {kv, false}, .keep = keep, .weight_bytes = weight_gib * GIB};
    mla_capacity_machine g = {.gpu_bytes = 96e9, .utilisation = MLA_GPU_UTILISATION, .reserve = MLA_GPU_RESERVE, .context = 262144};
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    return c;
}

START_TEST(parameters_of_27b)
{
    mla_err err = {0};
    double n;
    load("qwen3_8-27b/config.json");
    ck_ok(mla_param_count(&n, &cfg, mla_json_root(json), &err));
    ck_assert_double_eq(n, 27781427952.0); /* counted by hand from the published shapes */
    ck_assert_double_eq_tol(n * 2 / GIB, 51.8, 0.06);
    unload();
}
END_TEST

START_TEST(parameters_equal_what_is_stored)
{
    mla_err err = {0};
    double n;
    load("tiny-hybrid/config.json");
    ck_ok(mla_param_count(&n, &cfg, mla_json_root(json), &err));
    mla_mapped m = {0};
    ck_ok(mla_file_map(&m, mla_fixture("tiny-hybrid/model.safetensors"), &err));
    uint64_t header = 0;
    memcpy(&header, m.data, 8);
    ck_assert_double_eq(n * 2, (double)(m.size - 8 - header)); /* all bf16 */
    mla_file_unmap(&m);
    unload();
}
END_TEST

/* 262,144-token requests on one 96 GB GPU, weights as published. */
START_TEST(published_sequences)
{
    static const struct {
        double keep, weights, want;
        mla_dtype kv;
    } T[] = {
        {0, 51.8, 1.9, MLA_BF16},        {0.5, 51.8, 3.7, MLA_BF16},      {0.5, 51.8, 7.3, MLA_F8_E4M3},
        {0.5, 29.4, 12.7, MLA_F8_E4M3},  {0.5, 21.9, 14.5, MLA_F8_E4M3},  {0.5, 17.4, 15.6, MLA_F8_E4M3},
    };
    load("qwen3_8-27b/config.json");
    for (size_t i = 0; i < sizeof T / sizeof *T; i++) {
        mla_capacity c = ask(T[i].keep, T[i].kv, T[i].weights);
        ck_assert_double_eq_tol(round(c.sequences * 10) / 10, T[i].want, 0.1 + 1e-9);
    }
    mla_capacity base = ask(0, MLA_BF16, 51.8), mla = ask(0.5, MLA_BF16, 51.8), fp8 = ask(0.5, MLA_F8_E4M3, 51.8);
    ck_assert_double_eq(base.kv_bytes_per_sequence, 16 * GIB);
    ck_assert_double_eq(mla.kv_bytes_per_sequence, 8 * GIB);
    ck_assert_double_eq(fp8.kv_bytes_per_sequence, 4 * GIB);
    ck_assert_double_eq_tol(base.state_bytes_per_sequence / GIB, 0.15, 0.005);
    ck_assert_double_eq_tol(base.budget / GIB, 30.3, 0.1);
    ck_assert_uint_eq(mla.row_values, 768 + 256);
    unload();
}
END_TEST

START_TEST(slot_limits)
{
    ck_assert_uint_eq(mla_slot_limit(576), 3728270);
    ck_assert_uint_eq(mla_slot_limit(512), 4194304);
    ck_assert_uint_eq(mla_slot_limit(320), 6710886);
    ck_assert_uint_eq(mla_slot_limit(192), 11184810);
}
END_TEST

/* One slot below and one above the limit, with a row of 576: 320 latent values beside 4 x 64 rotary keys. */
START_TEST(slot_limit_is_flagged_from_the_first_slot_beyond)
{
    mla_err err = {0};
    mla_capacity c;
    load("qwen3_8-27b/config.json");
    mla_capacity_model m = {.cfg = &cfg, .kv = {MLA_F8_E4M3, false}, .rank = 320, .weight_bytes = 0};
    mla_capacity_machine g = {.gpu_bytes = 1e12, .utilisation = 1, .reserve = 0, .context = 3728270};
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert_uint_eq(c.row_values, 576);
    ck_assert_uint_eq(c.slot_limit, 3728270);
    double one = c.kv_bytes_per_sequence + c.state_bytes_per_sequence;
    g.gpu_bytes = c.weight_bytes + one;
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert_double_eq_tol(c.cached_tokens, 3728270, 1e-3);
    g.gpu_bytes -= 1;
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert(!c.slot_exceeded);
    g.context = 3728271;
    g.gpu_bytes = c.weight_bytes + 3728271.0 * c.kv_bytes_per_token + c.state_bytes_per_sequence;
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert(c.slot_exceeded);
    unload();
}
END_TEST

/* 27B: 16 layers of 320 latent values and 4 x 64 rotary keys. */
START_TEST(rows_of_two_types)
{
    mla_err err = {0};
    mla_capacity c;
    load("qwen3_8-27b/config.json");
    mla_capacity_model m = {.cfg = &cfg, .kv = {MLA_F8_E4M3, true}, .rank = 320, .weight_bytes = 0};
    mla_capacity_machine g = {.gpu_bytes = 96e9, .utilisation = 0.9, .reserve = 0, .context = 1024};
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert_double_eq(c.kv_bytes_per_token, 16 * (320 + 2 * 256));
    m.rank = 321; /* keys begin at an even byte */
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert_double_eq(c.kv_bytes_per_token, 16 * (322 + 2 * 256));
    m.rank = 0; /* as it is: keys in bf16, values in FP8 */
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert_double_eq(c.kv_bytes_per_token, 16 * 3 * 4 * 256);
    unload();
}
END_TEST

START_TEST(nonsense_is_refused)
{
    mla_err err = {0};
    mla_capacity c;
    load("qwen3_8-27b/config.json");
    mla_capacity_model m = {.cfg = &cfg, .kv = {MLA_BF16, false}};
    mla_capacity_machine g = {.gpu_bytes = 96e9, .utilisation = 0.9, .reserve = 0, .context = 1024}, bad;
    m.rank = 1793; /* features: 4 x (192 + 256) */
    ck_refused(mla_capacity_of(&c, &m, &g, &err), MLA_EINVAL, "rank 1793: expected at most 1792");
    m.rank = 0;
    m.keep = 0.125; /* the rotary keys alone */
    ck_refused(mla_capacity_of(&c, &m, &g, &err), MLA_EINVAL, "leaves no latent");
    m.keep = 0;
    bad = g, bad.utilisation = 1.5;
    ck_refused(mla_capacity_of(&c, &m, &bad, &err), MLA_EINVAL, "utilisation");
    bad = g, bad.gpu_bytes = NAN;
    ck_refused(mla_capacity_of(&c, &m, &bad, &err), MLA_EINVAL, "GPU");
    m.weight_bytes = 1e12;
    ck_ok(mla_capacity_of(&c, &m, &g, &err));
    ck_assert(!c.fits && c.sequences == 0 && c.tokens == 0);
    unload();
}
END_TEST

START_TEST(report_has_the_six_figures)
{
    mla_err err = {0};
    double cards[] = {16e9, 24e9, 32e9}, n, s;
    mla_json *d;
    load("qwen3_8-27b/config.json");
    ck_ok(mla_param_count(&n, &cfg, mla_json_root(json), &err));
    mla_capacity_query q = {.name = "27b", .model = {.cfg = &cfg, .kv = {MLA_BF16, false}, .weight_bytes = n * 2},
                            .machine = {96e9, MLA_GPU_UTILISATION, MLA_GPU_RESERVE, 262144}, .weight_source = "bf16",
                            .params = n, .gpus = cards, .n_gpus = 3};
    ck_ok(mla_capacity_report(&d, &q, &err));
    static const double WANT[] = {1.9, 3.7, 7.3, 12.7, 14.5, 15.6};
    size_t i = 0;
    for (const mla_jv *v = mla_jv_first(mla_jv_get(mla_json_root(d), "scenarios")); v; v = mla_jv_next(v), i++) {
        ck_assert(mla_jv_f64(mla_jv_get(v, "sequences"), &s));
        ck_assert_double_eq_tol(round(s * 10) / 10, WANT[i], 1e-9);
        ck_assert_double_eq_tol(s * 100, round(s * 100), 1e-6); /* two decimals */
    }
    ck_assert_uint_eq(i, 6);
    ck_assert_uint_eq(mla_jv_len(mla_jv_get(mla_json_root(d), "gpus")), 3);
    mla_str text = MLA_STR_MAX(1 << 20);
    mla_capacity_text(&text, mla_json_root(d));
    ck_assert_ptr_nonnull(strstr(text.s, "no room"));
    mla_str_free(&text);
    mla_json_free(d);
    unload();
}
END_TEST

Suite *suite_capacity(void)
{
    Suite *s = suite_create("capacity");
    TCase *t = tcase_create("capacity");
    tcase_add_test(t, rows_of_two_types);
    tcase_add_test(t, parameters_of_27b);
    tcase_add_test(t, parameters_equal_what_is_stored);
    tcase_add_test(t, published_sequences);
    tcase_add_test(t, slot_limits);
    tcase_add_test(t, slot_limit_is_flagged_from_the_first_slot_beyond);
    tcase_add_test(t, nonsense_is_refused);
    tcase_add_test(t, report_has_the_six_figures);
    suite_add_tcase(s, t);
    return s;
}
