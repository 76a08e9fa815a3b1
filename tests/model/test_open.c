/* Opening models: what binds, what is refused, how values come out. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "harness.h"
#include "model/model.h"
#include "model_tests.h"
#include "tensor/dtype.h"

START_TEST(opens_the_hybrid)
{
    mla_err err = {0};
    mla_model *m = NULL;
    ck_ok(mla_model_open(&m, mla_fixture("tiny-hybrid"), &err));
    const mla_config *c = mla_model_config(m);
    ck_assert_int_eq(c->family, MLA_FAM_QWEN3_5);
    ck_assert_uint_eq(c->layers, 8);
    ck_assert_uint_eq(mla_config_full_layers(c), 4);
    ck_assert_uint_eq(c->rope.rot, 8);
    ck_assert_uint_eq(c->mtp_layers, 1);
    ck_assert_uint_eq(mla_model_note_count(m), 0);
    ck_assert_str_eq(mla_model_prefix(m), "model.language_model.");
    ck_assert(mla_model_has(m, MLA_W_Q, 1) && !mla_model_has(m, MLA_W_Q, 0) && mla_model_has(m, MLA_W_GDN_QKV, 0));
    ck_assert(mla_model_has(m, MLA_W_Q, MLA_MTP(0)) && !mla_model_has(m, MLA_W_Q, MLA_MTP(1)) && !mla_model_has(m, MLA_W_Q, 8));
    mla_model_close(m);
}
END_TEST

Suite *model_open_suite(void)
{
    Suite *s = suite_create("open");
    TCase *t = tcase_create("hybrid");
    tcase_add_test(t, opens_the_hybrid);
    suite_add_tcase(s, t);
    return s;
}
