/* What a step is made of: positions and pages through a cursor in device memory, several layers in one call. */
#include <string.h>

#include "base/alloc.h"
#include "lab.h"

enum { T = 3, H = 4, LAT = 32, ROT = 8, ROW = LAT + ROT, PAGE = 16, POS0 = 45, NPAGES = 3 };
static const int32_t PAGES[NPAGES] = {2, 0, 1}, LEN = POS0 + T;

/* rope, kv_write and attention at POS0, by arguments or by a cursor: the same bits, in the cache as well. */
static void check_cursor(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    const mla_cursor at = {.len = dev(&LEN), .pages = dev(PAGES), .pool = NPAGES};
    const size_t pool = (size_t)NPAGES * PAGE * ROW, half = ROT / 2;
    float *cos_sin = lab_normals((POS0 + T) * half, 1, 1), *q = lab_normals((size_t)T * H * LAT, 2, 1), *q2 = lab_normals((size_t)T * H * ROT, 3, 1);
    float *x[2], *cache[2], *o[2];
    (void)isa;
    for (int by = 0; by < 2; by++) {
        x[by] = lab_normals((size_t)T * ROW, 4, 1), cache[by] = lab_normals(pool, 5, 1), o[by] = lab_poisoned((size_t)T * H * LAT);
        mla_mem *turn = dev(by ? cos_sin : cos_sin + POS0 * half);
        mla_rope_args r = {.x = dev(x[by] + LAT), .ldx = ROW, .T = T, .heads = 1, .head_stride = ROT, .rot = ROT, .cos = turn, .sin = turn, .at = by ? &at : NULL};
        ck_ok(be->ops->rope(be, &r, &err));
        mla_kv_view v = {.data = dev(cache[by]), .pages = by ? NULL : PAGES, .page_tokens = PAGE, .row_elems = ROW, .dtype = MLA_F32, .scale = 1};
        mla_kv_write_args w = {.to = v, .x = dev(x[by]), .ldx = ROW, .T = T, .width = ROW, .pos0 = by ? 0 : POS0, .at = r.at};
        ck_ok(be->ops->kv_write(be, &w, &err));
        mla_attn_args a = {.o = dev(o[by]), .ldo = H * LAT, .q = dev(q), .ldq = H * LAT, .qh_stride = LAT, .q2 = dev(q2), .ldq2 = H * ROT, .q2h_stride = ROT,
                           .k = v, .k2 = v, .v = v, .kh = 1, .k2h = 1, .vh = 1, .T = T, .H = H, .dk = LAT, .dk2 = ROT, .dv = LAT, .pos0 = w.pos0, .scale = 0.2f,
                           .at = r.at};
        a.k2.col = LAT;
        ck_ok(be->ops->attention(be, &a, &err));
        const int32_t two = 2;
        const mla_cursor early = {.len = dev(&two), .pages = dev(PAGES), .pool = NPAGES};
        r.at = w.at = a.at = &early;
        ck_refused(be->ops->rope(be, &r, &err), MLA_EINVAL, "2 tokens, 3 of them new");
        ck_refused(be->ops->kv_write(be, &w, &err), MLA_EINVAL, "cursor");
        ck_refused(be->ops->attention(be, &a, &err), MLA_EINVAL, "cursor");
    }
    ck_assert(lab_same_bits("turned rows", x[1], x[0], (size_t)T * ROW));
    ck_assert(lab_same_bits("cache", cache[1], cache[0], pool));
    ck_assert(lab_same_bits("attention", o[1], o[0], (size_t)T * H * LAT));
    for (int by = 0; by < 2; by++) mla_free(x[by]), mla_free(cache[by]), mla_free(o[by]);
    mla_free(cos_sin), mla_free(q), mla_free(q2);
}

START_TEST(a_cursor_says_what_arguments_say) { lab_each_isa("cursor", 2, check_cursor); }
END_TEST

/* linears, gated and mlp are the single operations, with a norm before them or without. */
static void check_compound(mla_backend *be, mla_isa isa)
{
    enum { IN = 70, OUT = 33 };
    mla_err err = {0};
    (void)isa;
    for (int p = 0; p < 4; p++) {
        bool normed = p & 1;
        float *x = lab_normals((size_t)T * IN, 1, 1), *gain = lab_normals(IN, 2, 1), *w0 = lab_normals((size_t)OUT * IN, 3, 1), *w1 = lab_normals((size_t)OUT * IN, 4, 1);
        mla_weight *w[2] = {lab_weight(be, w0, OUT, IN, p & 2 ? MLA_PREC_BF16 : MLA_PREC_F32), lab_weight(be, w1, OUT, IN, p & 2 ? MLA_PREC_BF16 : MLA_PREC_F32)};
        float *y[2][3], *n = lab_poisoned((size_t)T * IN);
        const mla_norm_args norm = {.y = dev(n), .ldy = IN, .x = dev(x), .ldx = IN, .rows = T, .d = IN, .gain = dev(gain), .eps = 1e-6};
        float *from = normed ? n : x;
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 3; i++) y[k][i] = lab_normals((size_t)T * OUT, 5, 1);
        const mla_linear_args a0 = {.y = dev(y[0][0]), .ldy = OUT, .x = dev(from), .ldx = IN, .T = T, .accumulate = true}, a1 = {.y = dev(y[0][1]), .ldy = OUT, .x = dev(from), .ldx = IN, .T = T};
        if (normed) ck_ok(be->ops->rmsnorm(be, &norm, &err));
        ck_ok(be->ops->linear(be, w[0], &a0, &err));
        ck_ok(be->ops->linear(be, w[1], &a1, &err));
        mla_linear_job jobs[2] = {{w[0], a0}, {w[1], a1}};
        jobs[0].a.y = dev(y[1][0]), jobs[1].a.y = dev(y[1][1]);
        ck_ok(be->ops->linears(be, normed ? &norm : NULL, jobs, 2, &err));
        ck_assert(lab_same_bits("accumulated", y[1][0], y[0][0], (size_t)T * OUT));
        ck_assert(lab_same_bits("plain", y[1][1], y[0][1], (size_t)T * OUT));
        mla_linear_args g = a1;
        g.y = dev(y[0][0]);
        ck_ok(be->ops->linear(be, w[0], &g, &err));
        ck_ok(be->ops->silu_mul(be, dev(y[0][2]), dev(y[0][0]), dev(y[0][1]), (size_t)T * OUT, &err));
        mla_gated_args ga = {.gate = w[0], .up = w[1], .out = OUT, .g = dev(y[1][2]), .u = dev(y[1][0]), .x = dev(from), .ldx = IN, .T = T};
        ck_ok(be->ops->gated(be, normed ? &norm : NULL, &ga, &err));
        ck_assert(lab_same_bits("gated", y[1][2], y[0][2], (size_t)T * OUT));
        float *w2 = lab_normals((size_t)IN * OUT, 6, 1), *z[2] = {lab_normals((size_t)T * IN, 7, 1), lab_normals((size_t)T * IN, 7, 1)};
        mla_weight *down = lab_weight(be, w2, IN, OUT, p & 2 ? MLA_PREC_BF16 : MLA_PREC_F32);
        mla_linear_job last = {down, {.y = dev(z[0]), .ldy = IN, .x = dev(y[0][2]), .ldx = OUT, .T = T, .accumulate = true}};
        ck_ok(be->ops->linear(be, down, &last.a, &err));
        last.a.y = dev(z[1]), last.a.x = ga.g;
        ck_ok(be->ops->mlp(be, normed ? &norm : NULL, &ga, &last, &err));
        ck_assert(lab_same_bits("gated and the layer after it", z[1], z[0], (size_t)T * IN));
        be->ops->weight_free(be, down);
        mla_free(w2), mla_free(z[0]), mla_free(z[1]);
        for (int k = 0; k < 2; k++) {
            be->ops->weight_free(be, w[k]);
            for (int i = 0; i < 3; i++) mla_free(y[k][i]);
        }
        mla_free(x), mla_free(gain), mla_free(w0), mla_free(w1), mla_free(n);
    }
}

START_TEST(several_layers_are_the_single_ones) { lab_each_isa("compound layers", 2, check_compound); }
END_TEST

Suite *suite_step(void)
{
    Suite *s = suite_create("step");
    TCase *t = tcase_create("step");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_cursor_says_what_arguments_say);
    tcase_add_test(t, several_layers_are_the_single_ones);
    suite_add_tcase(s, t);
    return s;
}
