/* Every op on buffers that stand against an inaccessible page: masked loads and stores that sanitizers do not see. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "lab.h"

static void linear_at(mla_backend *be, size_t T, size_t in, size_t out)
{
    mla_err err = {0};
    float *x = lab_guarded(T * in, 1), *w = lab_guarded(out * in, 2), *y = lab_guarded(T * out, 3), *e = lab_guarded(2 * in, 4);
    for (int p = 0; p < 2; p++) {
        mla_weight *wt = lab_weight(be, w, out, in, p ? MLA_PREC_BF16 : MLA_PREC_F32);
        mla_linear_args a = {.y = dev(y), .ldy = out, .x = dev(x), .ldx = in, .T = T, .bias = dev(lab_guarded(out, 5)), .accumulate = p};
        ck_ok(be->ops->linear(be, wt, &a, &err));
        ck_ok(be->ops->embed(be, wt, dev(e), (const int32_t[]){0, (int32_t)out - 1}, 2, &err));
        be->ops->weight_free(be, wt);
    }
}

static void rows_at(mla_backend *be, size_t d)
{
    mla_err err = {0};
    float *x = lab_guarded(3 * d, 1), *y = lab_guarded(3 * d, 2), *z = lab_guarded(3 * d, 3), *g = lab_guarded(d, 4);
    mla_range r;
    ck_ok(be->ops->rmsnorm(be, &(mla_norm_args){.y = dev(y), .ldy = d, .x = dev(x), .ldx = d, .rows = 3, .d = d, .gain = dev(g)}, &err));
    ck_ok(be->ops->gated_norm(be, &(mla_gated_norm_args){.y = dev(y), .x = dev(x), .z = dev(z), .gain = dev(g), .rows = 3, .d = d}, &err));
    ck_ok(be->ops->silu_mul(be, dev(y), dev(x), dev(z), 3 * d, &err));
    ck_ok(be->ops->sigmoid_mul(be, dev(y), dev(x), 3, d, d, &err));
    ck_ok(be->ops->add(be, dev(y), dev(x), 3 * d, &err));
    ck_ok(be->ops->add_rows(be, dev(y), d, 3, d, dev(g), 1, &err));
    ck_ok(be->ops->range(be, dev(x), 3, d, d, &r, &err));
    float *c = lab_guarded(3 * d, 5), *q = lab_guarded(3 * 2 * d, 6);
    ck_ok(be->ops->rope(be, &(mla_rope_args){.x = dev(q), .ldx = 2 * d, .T = 3, .heads = 1, .rot = 2 * d, .cos = dev(c), .sin = dev(x)}, &err));
    ck_ok(be->ops->conv(be, &(mla_conv_args){.y = dev(y), .x = dev(x), .w = dev(lab_guarded(4 * d, 7)), .state = dev(lab_guarded(3 * d, 8)), .T = 3, .C = d, .K = 4}, &err));
    double *acc = (double *)(void *)lab_guarded(2 * d * d, 9);
    ck_ok(be->ops->gram(be, &(mla_gram_args){.acc = dev(acc), .x = dev(x), .ldx = d, .T = 3, .n = d}, &err));
}

static void attention_at(mla_backend *be, size_t d, size_t T, mla_dtype t, bool bf16)
{
    mla_err err = {0};
    const size_t H = 4, G = 2, es = t == MLA_F32 ? 4 : t == MLA_BF16 ? 2 : 1, bytes = T * G * d * es;
    float *end = lab_guarded(bytes / 4 + 1, 1) + bytes / 4 + 1, *x = lab_guarded(T * G * d, 2); /* the cache ends where the page does */
    mla_kv_view v = {.data = dev((char *)end - bytes), .row_elems = G * d, .head_stride = d, .dtype = t, .scale = 1};
    ck_ok(be->ops->kv_write(be, &(mla_kv_write_args){.to = v, .x = dev(x), .ldx = G * d, .T = T, .width = G * d}, &err));
    ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = v, .y = dev(x), .ldy = G * d, .n = T, .width = G * d}, &err));
    for (size_t n = 1; n <= T; n += T - 1) { /* decode and prefill */
        float *q = lab_guarded(n * H * d, 3), *o = lab_guarded(n * H * d, 4), *p2 = lab_guarded(2 * T, 5), *probs = lab_guarded(H * n * T, 6);
        mla_attn_args a = {.o = dev(o), .ldo = H * d, .q = dev(q), .ldq = H * d, .qh_stride = d, .k = v, .v = v, .kh = G, .vh = G, .T = n,
                           .H = H, .dk = d, .dv = d, .pos0 = T - n, .scale = 1, .bf16 = bf16, .p2 = dev(p2), .probs = dev(probs)};
        ck_ok(be->ops->attention(be, &a, &err));
        ck_assert_uint_eq(mla_count_nonfinite(o, n * H * d, NULL), 0);
    }
}

static void gdn_at(mla_backend *be, size_t d, size_t T, size_t chunk)
{
    mla_err err = {0};
    const size_t nk = 1, nv = 2;
    mla_gdn_args g = {.o = dev(lab_guarded(T * nv * d, 1)), .qkv = dev(lab_guarded(T * (2 * nk + nv) * d, 2)), .a = dev(lab_guarded(T * nv, 3)),
                      .b = dev(lab_guarded(T * nv, 4)), .A_log = dev(lab_guarded(nv, 5)), .dt_bias = dev(lab_guarded(nv, 6)),
                      .state = dev(lab_guarded(nv * d * d, 7)), .T = T, .nk = nk, .nv = nv, .dk = d, .dv = d, .chunk = chunk};
    ck_ok(be->ops->gdn(be, &g, &err));
}

/* The products' inner loops on operands of exactly their size (operands.h). */
static void tile_at(const mla_cpu_kern *k, bool bf16, size_t m, size_t steps, size_t ldc)
{
    size_t words = bf16 && !k->bf16_pairs ? 2 * steps : steps;
    for (int first = 0; first < 2; first++)
        (bf16 ? k->tile_bf16 : k->tile_f32)(m, &(mla_tile){.a = lab_guarded((m - 1) * MLA_LDA + words, 1), .b = lab_guarded(steps * MLA_NR, 2), .ldc = ldc,
                                             .c = lab_guarded((m - 1) * ldc + MLA_NR, 3), .k = steps, .alpha = first ? NULL : lab_guarded(m, 4)});
}

static void tiles_at(const mla_cpu_kern *k)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        for (size_t m = 1; m <= MLA_MR; m++)
            for (size_t steps = 1; steps <= 128; steps = 3 * steps + 2) tile_at(k, bf16, m, steps, 40);
        /* whole pages, so that they begin at an inaccessible one, too: C, A, B */
        tile_at(k, bf16, 2, 9, 992);
        tile_at(k, bf16, 4, bf16 && !k->bf16_pairs ? 104 : 208, MLA_NR);
        tile_at(k, bf16, 9, 64, MLA_NR);
    }
}

static void check_edges(mla_backend *be, mla_isa isa)
{
    static const size_t D[] = {1, 15, 16, 17, 31, 33, 63, 64, 65, 129};
    (void)isa;
    tiles_at(((mla_cpu *)(void *)be)->k);
    for (size_t i = 0; i < sizeof D / sizeof *D; i++) {
        linear_at(be, 1 + i * 2, D[i], D[(i * 3 + 1) % 10]);
        rows_at(be, D[i]);
        for (int t = 0; t < 6; t++) attention_at(be, D[i], 5 + 13 * i, t / 2 == 0 ? MLA_F32 : t / 2 == 1 ? MLA_BF16 : MLA_F8_E4M3, t & 1);
        gdn_at(be, D[i], 3, 0);
        gdn_at(be, D[i], 1, 0);
        gdn_at(be, D[i], 9, 4);
    }
}

START_TEST(nothing_past_the_end_is_touched) { lab_each_isa("edges", 2, check_edges); }
END_TEST

/* Scratch that cannot be had is an error by name, and the op works when asked again. */
START_TEST(scratch_failures_are_reported)
{
    mla_err err = {0};
    float x[16] = {1, 2, 3, 4}, y[16], s[16] = {0}, w[16] = {1, 1, 1, 1};
    double acc[4] = {0};
    mla_range r;
    mla_kv_view v = {.data = dev(x), .row_elems = 4, .dtype = MLA_F32, .scale = 1};
    mla_attn_args at = {.o = dev(y), .ldo = 4, .q = dev(x), .ldq = 4, .k = v, .v = v, .kh = 1, .vh = 1, .T = 1, .H = 1, .dk = 4, .dv = 4, .scale = 1};
    mla_gdn_args g = {.o = dev(y), .qkv = dev(x), .a = dev(x), .b = dev(x), .A_log = dev(x), .dt_bias = dev(x), .state = dev(s), .T = 1,
                      .nk = 1, .nv = 1, .dk = 1, .dv = 1};
    for (int op = 0; op < 6; op++) {
        mla_backend *be = lab_open(MLA_ISA_AUTO, 1);
        mla_weight *wt = lab_weight(be, w, 4, 4, MLA_PREC_F32);
        for (int fail = 1; fail >= 0; fail--) {
            mla_alloc_fail_after(fail ? 0 : -1);
            mla_status st = op == 0   ? be->ops->linear(be, wt, &(mla_linear_args){.y = dev(y), .ldy = 4, .x = dev(x), .ldx = 4, .T = 1}, &err)
                            : op == 1 ? be->ops->attention(be, &at, &err)
                            : op == 2 ? be->ops->gdn(be, &g, &err)
                            : op == 3 ? be->ops->conv(be, &(mla_conv_args){.y = dev(y), .x = dev(x), .w = dev(w), .state = dev(s), .T = 1, .C = 4, .K = 2}, &err)
                            : op == 4 ? be->ops->gram(be, &(mla_gram_args){.acc = dev(acc), .x = dev(x), .ldx = 2, .T = 2, .n = 2}, &err)
                                      : be->ops->range(be, dev(x), 2, 2, 2, &r, &err);
            mla_alloc_fail_after(-1);
            ck_assert_msg(st == (fail ? MLA_ENOMEM : MLA_OK), "op %d: %s", op, mla_status_name(st));
        }
        be->ops->weight_free(be, wt);
        mla_backend_close(be);
    }
}
END_TEST

#if defined(__SANITIZE_ADDRESS__)
/* AddressSanitizer ends a process whose product has an operand one value short, each in turn; the same with all of them whole goes well. */
static int tile_exit(const mla_cpu_kern *k, bool bf16, int lacking)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        size_t m = 3, steps = 5, words = bf16 && !k->bf16_pairs ? 2 * steps : steps, n[] = {2 * MLA_LDA + words, steps * MLA_NR, 3 * MLA_NR, m};
        float *p[4];
        close(STDERR_FILENO);
        for (int i = 0; i < 4; i++) p[i] = calloc(n[i] - (i == lacking), sizeof **p);
        (bf16 ? k->tile_bf16 : k->tile_f32)(m, &(mla_tile){.a = p[0], .b = p[1], .c = p[2], .ldc = MLA_NR, .k = steps, .alpha = p[3]});
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_looks(mla_backend *be, mla_isa isa)
{
    (void)isa;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int lacking = 0; lacking < 5; lacking++) {
            int rc = tile_exit(((mla_cpu *)(void *)be)->k, bf16, lacking);
            ck_assert_msg(lacking < 4 ? rc != 0 : rc == 0, "bf16 %d, operand %d short: exit %d", bf16, lacking, rc);
        }
}

START_TEST(short_operands_are_reported) { lab_each_isa("looks", 1, check_looks); }
END_TEST
#endif

START_TEST(the_guard_works) /* negative control: dies by the signal its registration names */
{
    volatile float *x = lab_guarded(7, 1);
    x[7] = 0;
}
END_TEST

Suite *suite_edges(void)
{
    Suite *s = suite_create("edges");
    TCase *t = tcase_create("edges");
    tcase_add_test(t, nothing_past_the_end_is_touched);
    tcase_add_test(t, scratch_failures_are_reported);
    const char *fork = getenv("CK_FORK");
    bool alone = fork && !strcmp(fork, "no");
#if defined(__SANITIZE_ADDRESS__)
    alone = true; /* it reports the access itself */
    tcase_add_test(t, short_operands_are_reported);
#endif
    if (!alone) tcase_add_test_raise_signal(t, the_guard_works, SIGSEGV);
    suite_add_tcase(s, t);
    return s;
}
