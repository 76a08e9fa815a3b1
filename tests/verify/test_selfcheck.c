/* Selfcheck passes on the portable and the best kernels, and finds planted faults: a swapped block, a 32-bit offset, a
 * wrong scale, a NaN. */
#include <math.h>
#include <string.h>

#include "suites.h"
#include "verify/selfcheck/selfcheck.h"

static mla_backend *open_be(mla_isa isa)
{
    mla_err err = {0};
    mla_backend *be;
    ck_ok(mla_backend_open(&be, &(mla_backend_opts){.threads = 1, .isa = isa}, &err));
    return be;
}

static const mla_selfcheck_shape GQA = {"gqa", 6, 2, 64, 0, 0, 0}, LATENT = {"latent", 8, 2, 0, 96, 1, 16}, GROUPS = {"groups", 8, 4, 0, 96, 2, 16};

START_TEST(good_kernels_pass)
{
    static const mla_dtype KV[] = {MLA_F32, MLA_BF16, MLA_F8_E4M3, MLA_F8_E4M3}; /* the last with keys in bf16 */
    const mla_selfcheck_shape *S[] = {&GQA, &LATENT, &GROUPS};
    mla_err err = {0};
    for (int isa = 0; isa < 2; isa++) {
        mla_backend *be = open_be(isa ? MLA_ISA_AUTO : MLA_ISA_REF);
        for (size_t i = 0; i < 12; i++) {
            mla_selfcheck_result r;
            ck_ok(mla_selfcheck_run(&r, be, S[i / 4], &(mla_selfcheck_case){.dtype = KV[i % 4], .keys16 = i % 4 == 3, .page = 16, .queries = 3}, &err));
            ck_assert_msg(mla_selfcheck_ok(&r), "%s: error %g of the bound, %zu not finite, %zu stored wrongly", S[i / 4]->name, r.worst,
                          r.nonfinite, r.stored_wrong);
            ck_assert_double_gt(r.worst, 1e-5); /* a bound that nothing comes near would prove nothing */
        }
        mla_backend_close(be);
    }
}
END_TEST

START_TEST(beyond_int32)
{
    mla_err err = {0};
    mla_selfcheck_result r;
    mla_backend *be = open_be(MLA_ISA_AUTO);
    mla_selfcheck_case c = {.dtype = MLA_F8_E4M3, .page = 64, .far = true, .queries = 1};
    mla_status st = mla_selfcheck_run(&r, be, &LATENT, &c, &err);
    if (st == MLA_ENOMEM) {
        mla_test_skip("beyond int32", "no 2 GiB of address space", 1);
    } else {
        ck_ok(st);
        ck_assert(mla_selfcheck_ok(&r));
        ck_assert_uint_gt(r.farthest_slot * r.row_values, (size_t)1 << 31);
    }
    mla_backend_close(be);
}
END_TEST

/* A cache of the size that is asked for, in whole blocks; its last block is used. */
START_TEST(a_cache_of_so_many_slots)
{
    mla_err err = {0};
    mla_selfcheck_result r;
    mla_backend *be = open_be(MLA_ISA_AUTO);
    mla_selfcheck_case c = {.dtype = MLA_BF16, .page = 64, .slots = 100001, .queries = 1};
    ck_ok(mla_selfcheck_run(&r, be, &LATENT, &c, &err));
    ck_assert(mla_selfcheck_ok(&r));
    ck_assert_uint_eq(r.pool_slots, 100032);
    ck_assert_uint_eq(r.farthest_slot, 100031);
    c.slots = 100;
    ck_refused(mla_selfcheck_run(&r, be, &LATENT, &c, &err), MLA_EINVAL, "a cache of 100 slots: expected 4 to");
    mla_backend_close(be);
}
END_TEST

START_TEST(shapes_of_a_rank)
{
    static const struct { mla_selfcheck_shape s; size_t ranks, heads, kv_heads, rank, groups; } OK[] = {
        {{"gqa", 24, 4, 256, 0, 0, 0}, 2, 12, 2, 0, 0},
        {{"gqa", 24, 4, 256, 0, 0, 0}, 8, 3, 1, 0, 0},
        {{"latent", 24, 4, 0, 768, 1, 64}, 4, 6, 1, 768, 1},
        {{"groups", 24, 4, 0, 768, 2, 64}, 2, 12, 2, 384, 1},
        {{"groups", 24, 4, 0, 768, 2, 64}, 1, 24, 4, 768, 2},
    };
    mla_err err = {0};
    for (size_t i = 0; i < sizeof OK / sizeof *OK; i++) {
        mla_selfcheck_shape s = OK[i].s;
        ck_ok(mla_selfcheck_rank(&s, OK[i].ranks, &err));
        ck_assert(s.heads == OK[i].heads && s.kv_heads == OK[i].kv_heads && s.rank == OK[i].rank && s.groups == OK[i].groups && s.rot == OK[i].s.rot);
    }
    mla_selfcheck_shape s = OK[3].s;
    ck_refused(mla_selfcheck_rank(&s, 5, &err), MLA_EINVAL, "tensor-parallel size 5");
    ck_refused(mla_selfcheck_rank(&s, 4, &err), MLA_EINVAL, "in 2 groups, does not divide");
}
END_TEST

/* ---- planted faults: the cpu's table with one operation bent ---- */
static const mla_backend_ops *true_ops;
enum { SWAP_BLOCK, WRONG_SCALE, WRAP, POISON, LATE_KEY };
static int fault;

static mla_status bent_attention(mla_backend *be, const mla_attn_args *a, mla_err *err)
{
    mla_attn_args b = *a;
    int32_t pages[4];
    memcpy(pages, a->k.pages, sizeof pages);
    if (fault == SWAP_BLOCK) pages[3] = pages[0];
    /* what a product in 32 bits does to the last block: the element offset loses its upper half */
    if (fault == WRAP) pages[2] = (int32_t)((uint32_t)((size_t)pages[2] * a->k.page_tokens * a->k.row_elems) / (a->k.page_tokens * a->k.row_elems) % 64);
    if (fault == WRONG_SCALE) b.scale *= 1.001f;
    if (fault == LATE_KEY) b.pos0 -= 1;
    b.k.pages = b.k2.pages = b.v.pages = pages;
    mla_status st = true_ops->attention(be, &b, err);
    if (fault == POISON && st == MLA_OK) {
        float nan = NAN;
        st = true_ops->upload(be, mla_at(a->o, 5), &nan, 4, err);
    }
    return st;
}

static mla_status bent_write(mla_backend *be, const mla_kv_write_args *a, mla_err *err)
{
    mla_kv_write_args b = *a;
    b.to.scale *= 2; /* stored half as large, read back with the right scale */
    return true_ops->kv_write(be, &b, err);
}

START_TEST(planted_faults_are_found)
{
    mla_err err = {0};
    mla_selfcheck_result r;
    mla_backend *be = open_be(MLA_ISA_AUTO);
    mla_backend_ops bent = *be->ops;
    true_ops = be->ops;
    be->ops = &bent;
    bent.attention = bent_attention;
    fault = _i;
    mla_selfcheck_case c = {.dtype = MLA_BF16, .page = 16, .queries = 3};
    ck_ok(mla_selfcheck_run(&r, be, &LATENT, &c, &err));
    if (fault != WRAP) ck_assert(!mla_selfcheck_ok(&r)); /* near slots do not wrap */
    if (fault == POISON) ck_assert_uint_ge(r.nonfinite, 1);
    if (fault == WRAP) {
        c = (mla_selfcheck_case){.dtype = MLA_F8_E4M3, .page = 64, .far = true, .queries = 1};
        mla_status st = mla_selfcheck_run(&r, be, &LATENT, &c, &err);
        ck_assert(st == MLA_ENOMEM || (st == MLA_OK && !mla_selfcheck_ok(&r)));
    }
    be->ops = true_ops;
    mla_backend_close(be);
}
END_TEST

START_TEST(a_wrong_store_is_found)
{
    mla_err err = {0};
    mla_selfcheck_result r;
    mla_backend *be = open_be(MLA_ISA_AUTO);
    mla_backend_ops bent = *be->ops;
    true_ops = be->ops;
    be->ops = &bent;
    bent.kv_write = bent_write;
    ck_ok(mla_selfcheck_run(&r, be, &GQA, &(mla_selfcheck_case){.dtype = MLA_F8_E4M3, .page = 16, .queries = 1}, &err));
    ck_assert_uint_gt(r.stored_wrong, 100);
    ck_assert(!mla_selfcheck_ok(&r));
    be->ops = true_ops;
    mla_backend_close(be);
}
END_TEST

Suite *suite_selfcheck(void)
{
    Suite *s = suite_create("selfcheck");
    TCase *t = tcase_create("selfcheck");
    tcase_add_test(t, good_kernels_pass);
    tcase_add_test(t, beyond_int32);
    tcase_add_test(t, a_cache_of_so_many_slots);
    tcase_add_test(t, shapes_of_a_rank);
    tcase_add_loop_test(t, planted_faults_are_found, SWAP_BLOCK, LATE_KEY + 1);
    tcase_add_test(t, a_wrong_store_is_found);
    suite_add_tcase(s, t);
    return s;
}
