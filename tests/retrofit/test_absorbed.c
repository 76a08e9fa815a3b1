/* Layout absorbed-rope: rotary slots commute with the rotation and complete the keys, predicted losses are those of the
 * factors, and what a model cannot have is refused by name. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/par.h"
#include "base/rng.h"
#include "harness.h"
#include "retrofit/solve/absorbed.h"
#include "retrofit/stats/moments.h"
#include "retrofit/build/recipe.h"

enum { H = 4, G = 2, D = 8, HALF = D / 2, GD = G * D, N = 2 * GD, T = 96, HIDDEN = 24 };

static size_t ROT = D; /* rotated dims of the model under test: all, or the first half */

static mla_layer_kind KIND[1] = {MLA_LAYER_FULL};
static double INV[HALF] = {1, 0.3, 0.05, 0.001};

static mla_config config(void)
{
    mla_config c = {.layers = 1, .heads = H, .kv_heads = G, .head_dim = D, .layer_kind = KIND, .hidden = HIDDEN, .max_pos = 512, .vocab = 16,
                    .intermediate = 32};
    c.rope.rot = ROT;
    c.rope.attention_factor = 1;
    c.rope.inv_freq = INV;
    return c;
}

static void turn(float *x, size_t heads, double sign)
{
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < heads; h++)
            for (size_t f = 0; f < ROT / 2; f++) {
                float *a = x + (t * heads + h) * D + f, *b = a + ROT / 2, u = *a, v = *b;
                double c = cos(INV[f] * (double)t), s = sign * sin(INV[f] * (double)t);
                *a = (float)(u * c - v * s), *b = (float)(u * s + v * c);
            }
}

/* One row of a random layer with correlated heads and a mean: every moment from the functions that a build uses. */
static void observe(mla_stats *st, unsigned seed)
{
    mla_err err;
    mla_config c = config();
    static float q[T * H * D], qr[T * H * D], k[T * GD], kr[T * GD], v[T * GD], o[T * H * D], y[N];
    static double R[H * D * D], w[T];
    for (size_t i = 0; i < T * H * D; i++) q[i] = qr[i] = 0.8f * (float)mla_rng_normal(seed, i);
    for (size_t t = 0; t < T; t++)
        for (size_t i = 0; i < GD; i++) {
            double shared = mla_rng_normal(seed + 1, t * D + i % D);
            k[t * GD + i] = kr[t * GD + i] = (float)(0.7 * shared + 0.5 * mla_rng_normal(seed + 2, t * GD + i) + 0.4);
            v[t * GD + i] = (float)(0.5 * shared + mla_rng_normal(seed + 3, t * GD + i));
        }
    turn(qr, H, 1), turn(kr, G, 1);
    for (size_t t = 0; t < T; t++)
        for (size_t h = 0; h < H; h++) {
            double p[T], z = 0;
            size_t g = h / (H / G);
            for (size_t s = 0; s <= t; s++) {
                p[s] = 0;
                for (size_t i = 0; i < D; i++) p[s] += qr[(t * H + h) * D + i] * kr[s * GD + g * D + i] / sqrt(D);
                z += p[s] = exp(p[s]);
            }
            for (size_t i = 0; i < D; i++) {
                double sum = 0;
                for (size_t s = 0; s <= t; s++) sum += p[s] / z * v[s * GD + g * D + i];
                o[(t * H + h) * D + i] = (float)sum;
            }
        }
    for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < D; i++) R[(h * D + i) * D + i] = 1;
    ck_ok(mla_stats_new(st, &c, MLA_LAYOUT_ABSORBED, NULL, &err));
    ck_assert_int_eq(st->layout, MLA_LAYOUT_REBUILD); /* one collection serves both, and deepseek */
    mla_layer_stats *l = st->layer;
    mla_pool *pool;
    mla_moments *m;
    ck_ok(mla_pool_new(&pool, 1, &err));
    ck_ok(mla_moments_new(&m, l, T, pool, &err));
    mla_row row = {.T = T, .q = q, .q_rot = qr, .k_rot = kr, .v = v, .o = o};
    mla_moments_add(m, l, &row, R, &(mla_moment_opts){.attn_scale = 1 / sqrt(D), .rot = ROT, .inv_freq = INV, .rope_gain = 1}, w);
    for (size_t t = 0; t < T; t++) {
        memcpy(y, k + t * GD, GD * sizeof *y), memcpy(y + GD, v + t * GD, GD * sizeof *y);
        for (size_t i = 0; i < N; i++) {
            l->sum[i] += w[t] * y[i];
            for (size_t j = 0; j < N; j++) l->C[i * N + j] += w[t] * y[i] * y[j];
        }
        l->wsum += w[t];
    }
    l->tokens = T;
    mla_moments_free(m);
    mla_pool_free(pool);
}

static const float *output_projection(void)
{
    static float wo[HIDDEN * H * D];
    for (size_t i = 0; i < HIDDEN * H * D; i++) wo[i] = 0.3f * (float)mla_rng_normal(77, i);
    return wo;
}

/* What queries weigh where they look: plain moments and the table of distances tell the same energy. */
START_TEST(distances_and_plain_queries_agree)
{
    mla_stats st;
    observe(&st, 1);
    const mla_layer_stats *l = st.layer;
    for (size_t h = 0; h < H; h++)
        for (size_t f = 0; f < HALF; f++) {
            const double *t = l->turn + 3 * (h * HALF + f), *Q = l->Q + h * D * D;
            double pair = D * (Q[f * D + f] + Q[(f + HALF) * D + f + HALF]);
            ck_assert(t[2] > 0 && fabs(pair - t[2]) <= 1e-5 * t[2]); /* f32 Gram */
            ck_assert(hypot(t[0], t[1]) <= t[2] * (1 + 1e-6));
            if (f == HALF - 1) ck_assert(hypot(t[0], t[1]) > 0.99 * t[2]); /* at most 0.096 rad over the row */
        }
    mla_stats_free(&st);
}
END_TEST

/* Er applied to rotated keys = rotated Er of plain keys, with the frequency that mla_factors_slots names. */
START_TEST(slots_commute_with_the_rotation)
{
    mla_stats st;
    mla_err err;
    mla_config c = config();
    observe(&st, 2);
    static float k[T * GD], kr[T * GD];
    for (size_t i = 0; i < T * GD; i++) k[i] = kr[i] = (float)mla_rng_normal(8, i);
    turn(kr, G, 1);
    for (size_t w = 2; w <= GD; w += 2) {
        mla_rotary *r;
        mla_factors f;
        size_t freq[GD / 2], fold;
        ck_ok(mla_rotary_new(&r, st.layer, &(mla_rotary_opts){.width = w, .fold = 1, .gain = 1}, &err));
        ck_ok(mla_factors_new_absorbed(&f, &c, w, 3, &err));
        mla_rotary_maps(r, &f);
        ck_ok(mla_factors_slots(freq, &fold, &f, D, &err));
        ck_assert_uint_eq(fold, 1);
        for (size_t t = 0; t < T; t += 13)
            for (size_t s = 0; s < w / 2; s++) {
                double a[4] = {0};
                for (size_t i = 0; i < GD; i++) {
                    a[0] += f.Er[s * GD + i] * k[t * GD + i], a[1] += f.Er[(s + w / 2) * GD + i] * k[t * GD + i];
                    a[2] += f.Er[s * GD + i] * kr[t * GD + i], a[3] += f.Er[(s + w / 2) * GD + i] * kr[t * GD + i];
                }
                double cs = cos(INV[freq[s]] * (double)t), sn = sin(INV[freq[s]] * (double)t), size = 1 + fabs(a[0]) + fabs(a[1]);
                ck_assert(fabs(a[0] * cs - a[1] * sn - a[2]) < 1e-5 * size && fabs(a[0] * sn + a[1] * cs - a[3]) < 1e-5 * size);
            }
        /* T takes the slots out and nothing else: Er T = 0, T T = T, and nothing is left at full width */
        double left = 0;
        for (size_t i = 0; i < GD; i++)
            for (size_t j = 0; j < GD; j++) {
                double tt = 0, et = 0;
                for (size_t x = 0; x < GD; x++) {
                    tt += r->T[i * GD + x] * r->T[x * GD + j];
                    if (i < w) et += f.Er[i * GD + x] * r->T[x * GD + j];
                }
                ck_assert(fabs(tt - r->T[i * GD + j]) < 1e-9 && fabs(et) < 1e-5);
                left += fabs(r->T[i * GD + j]);
            }
        if (w == GD) ck_assert(left < 1e-9);
        else ck_assert(left > 1);
        f.Er[1] += 0.25f;
        ck_refused(mla_factors_slots(freq, &fold, &f, D, &err), MLA_EFORMAT, "no rotating pair");
        mla_factors_free(&f);
        mla_rotary_free(r);
    }
    mla_stats_free(&st);
}
END_TEST

START_TEST(folded_slots_are_told_apart)
{
    mla_stats st;
    mla_err err;
    mla_config c = config();
    mla_rotary *r;
    mla_factors f;
    size_t freq[GD / 2], fold;
    observe(&st, 3);
    ck_ok(mla_rotary_new(&r, st.layer, &(mla_rotary_opts){.width = 4, .fold = 2, .even_all = true, .gain = 1}, &err));
    ck_ok(mla_factors_new_absorbed(&f, &c, 4, 3, &err));
    mla_rotary_maps(r, &f);
    ck_ok(mla_factors_slots(freq, &fold, &f, D, &err));
    ck_assert(fold == 2 && freq[0] == 0 && freq[1] == 2);
    mla_factors_free(&f);
    mla_rotary_free(r);
    ck_refused(mla_rotary_new(&r, st.layer, &(mla_rotary_opts){.width = 6, .fold = 2, .even_all = true, .gain = 1}, &err), MLA_EINVAL, "multiple of 4");
    ck_refused(mla_rotary_new(&r, st.layer, &(mla_rotary_opts){.width = GD + 2, .fold = 1, .gain = 1}, &err), MLA_EINVAL, "from 2 to 16");
    ck_refused(mla_rotary_new(&r, st.layer, &(mla_rotary_opts){.width = 4, .fold = 3, .gain = 1}, &err), MLA_EINVAL, "freq_fold 3");
    st.layer->half = 0;
    ck_refused(mla_rotary_new(&r, st.layer, &(mla_rotary_opts){.width = 4, .fold = 1, .gain = 1}, &err), MLA_EINVAL, "collect them again");
    st.layer->half = HALF;
    mla_stats_free(&st);
}
END_TEST

/* The predicted loss is the objective of the factors themselves, evaluated head by head; it falls with every rank, a
 * shift of the keys' mean is free and one of the values' mean is not. */
START_TEST(tail_is_the_loss_of_the_factors)
{
    mla_stats st;
    mla_err err;
    ROT = _i ? D / 2 : D;
    observe(&st, 4);
    for (size_t w = 2; w <= (_i ? 8 : 12); w += 5, w -= w % 2) {
        mla_solution s;
        double prev = INFINITY;
        ck_ok(mla_solve_absorbed(&s, st.layer, output_projection(), HIDDEN, &(mla_solve_opts){.balance = 1.5}, &(mla_rotary_opts){.width = w, .fold = 1, .gain = 1}, &err));
        double total = mla_solution_tail(&s, 0);
        for (size_t r = 2; r <= N - w; r += 4) {
            mla_factors f, b;
            double loss, moved;
            ck_ok(mla_solution_factors(&f, &s, r, false, NULL, &err));
            ck_ok(mla_solution_loss(&loss, &s, &f, st.layer, &err));
            /* f32 factors, 2^-24 each, over N products; Lambda's floor adds at most its 1e-6 of the whole */
            ck_assert_msg(fabs(loss - mla_solution_tail(&s, r)) <= 1e-5 * total, "w %zu r %zu: loss %.9g, tail %.9g of %.9g", w, r, loss,
                          mla_solution_tail(&s, r), total);
            ck_assert(loss <= prev);
            prev = loss;
            ck_ok(mla_solution_factors(&b, &s, r, true, NULL, &err));
            ck_ok(mla_solution_loss(&moved, &s, &b, st.layer, &err));
            ck_assert(moved >= loss - 1e-5 * total && moved <= loss + 1e-3 * total);
            f.D[5] += 0.3f; /* a decoder off the optimum costs */
            ck_ok(mla_solution_loss(&moved, &s, &f, st.layer, &err));
            ck_assert(moved > loss);
            f.D[5] -= 0.3f;
            f.mu[3] += 1;   /* and so does a wrong mean, when the values' codes see it */
            f.mu[GD + 3] += 1;
            ck_ok(mla_solution_loss(&moved, &s, &f, st.layer, &err));
            if (r < N - w) ck_assert(moved > loss);
            mla_factors_free(&f);
            mla_factors_free(&b);
        }
        /* slots for everything that turns lose no rotation; what is left is lossless at the rank of its dims */
        if (w == G * ROT) ck_assert(s.absorbed->lost <= 1e-12 * total && mla_solution_tail(&s, N - w) <= 1e-9 * total);
        mla_solution_free(&s);
    }
    mla_stats_free(&st);
    ROT = D;
}
END_TEST

/* Partial rotation, every rotated dim in a slot: the latent's problem is layout n's own, feature by feature. */
START_TEST(all_slots_of_a_partial_rotation_are_layout_n)
{
    mla_stats st, sn;
    mla_err err;
    mla_solution s, n;
    mla_config c;
    enum { KEYS = D / 2, NN = G * (KEYS + D) };
    ROT = D / 2;
    c = config();
    observe(&st, 5);
    ck_ok(mla_stats_new(&sn, &c, MLA_LAYOUT_N, NULL, &err));
    const mla_layer_stats *l = st.layer;
    mla_layer_stats *k = sn.layer;
    size_t from[NN];
    for (size_t i = 0; i < NN; i++) from[i] = i < G * KEYS ? i / KEYS * D + D / 2 + i % KEYS : GD + i - G * KEYS;
    k->tokens = l->tokens, k->wsum = l->wsum;
    memcpy(k->kappa, l->kappa, H * H * sizeof *k->kappa);
    for (size_t i = 0; i < NN; i++) {
        k->sum[i] = l->sum[from[i]];
        for (size_t j = 0; j < NN; j++) k->C[i * NN + j] = l->C[from[i] * N + from[j]];
    }
    for (size_t h = 0; h < H; h++)
        for (size_t i = 0; i < KEYS; i++)
            for (size_t j = 0; j < KEYS; j++) k->M[(h / (H / G) * KEYS + i) * KEYS + j] += l->Q[(h * D + D / 2 + i) * D + D / 2 + j];
    ck_ok(mla_solve_absorbed(&s, l, output_projection(), HIDDEN, &(mla_solve_opts){.balance = 1, .groups = 1}, &(mla_rotary_opts){.width = G * ROT, .fold = 1, .gain = 1}, &err));
    ck_ok(mla_solve_layer(&n, k, MLA_LAYOUT_N, output_projection(), HIDDEN, &(mla_solve_opts){.balance = 1, .groups = 1}, &err));
    for (size_t r = 0; r < NN; r++) /* the floor of the metric adds at most 1e-6 of the whole: the zeros of the slots touch it */
        ck_assert_msg(fabs(mla_solution_tail(&s, r) - mla_solution_tail(&n, r)) <= 1e-6 * mla_solution_tail(&n, 0), "rank %zu: %g, layout n %g", r,
                      mla_solution_tail(&s, r), mla_solution_tail(&n, r));
    mla_solution_free(&s);
    mla_solution_free(&n);
    mla_stats_free(&st);
    mla_stats_free(&sn);
    ROT = D;
}
END_TEST


static mla_status settle(const char *what, mla_config *c, mla_recipe *r, mla_err *err)
{
    *r = mla_recipe_default();
    *c = config();
    r->budget.keep = 0.5;
    r->row_tokens = 64;
    r->layout = MLA_LAYOUT_DEEPSEEK;
    if (!strcmp(what, "norm")) c->qk_norm = true;
    if (!strcmp(what, "gate")) c->attn_gate = true;
    if (!strcmp(what, "bias")) c->mlp_bias = true;
    if (strstr(what, "partial")) c->rope.rot = 4;
    if (!strcmp(what, "width")) r->rotary_width = 6;
    if (!strcmp(what, "spectrum")) r->allocation = MLA_ALLOC_SPECTRUM;
    if (!strcmp(what, "groups")) r->groups = 2;
    if (!strcmp(what, "mrope")) r->freq_fold = 2, c->rope.mrope_section[0] = 2, c->rope.mrope_section[1] = c->rope.mrope_section[2] = 1;
    if (!strcmp(what, "dynamic")) c->rope.kind = MLA_ROPE_DYNAMIC, r->rotary_width = 16;
    if (!strcmp(what, "pca")) r->objective = MLA_OBJ_BALANCED_PCA;
    if (!strcmp(what, "rebuild")) r->layout = MLA_LAYOUT_REBUILD, r->freq_fold = 2;
    if (!strcmp(what, "rank")) r->layout = MLA_LAYOUT_ABSORBED, r->budget = (mla_budget){.rank = 8};
    if (!strcmp(what, "absorbed norm")) r->layout = MLA_LAYOUT_ABSORBED, c->qk_norm = true;
    if (!strcmp(what, "absorbed fold")) r->layout = MLA_LAYOUT_ABSORBED, r->freq_fold = 3;
    if (!strcmp(what, "absorbed partial")) r->layout = MLA_LAYOUT_ABSORBED, r->rotary_width = 10;
    if (strstr(what, "keys")) r->layout = MLA_LAYOUT_N, c->rope.rot = 4, r->rotary_keys = *what == '3' ? 3 : 1;
    if (!strcmp(what, "lossless")) r->layout = MLA_LAYOUT_ABSORBED, r->budget.keep = 1;
    return mla_recipe_resolve(r, c, err);
}

START_TEST(refusals_say_why)
{
    static const char *const BAD[][2] = {
        {"norm", "normalises queries and keys"}, {"gate", "gates the attention output"}, {"bias", "MLP biases"}, {"partial", "use layout n"},
        {"width", "multiple of 8"}, {"spectrum", "one kv_lora_rank"}, {"groups", "one latent for all KV heads"}, {"mrope", "image tokens"},
        {"dynamic", "dynamic RoPE"}, {"pca", "comparison methods"}, {"rebuild", "belong to layouts absorbed-rope"}, {"rank", "needs a rotary width"},
        {"absorbed fold", "must divide 4 frequencies"}, {"absorbed partial", "from 2 to 8"}, {"3 keys", "at most one per KV head"}};
    mla_config c;
    mla_recipe r;
    mla_err err;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) ck_refused(settle(BAD[i][0], &c, &r, &err), MLA_EINVAL, BAD[i][1]);
    ck_ok(settle("", &c, &r, &err));
    ck_assert(r.rotary_width == D && r.budget.rotary == D && r.balance == 1); /* one key for every frequency */
    ck_ok(settle("absorbed norm", &c, &r, &err)); /* the model's own norm runs before the rotation: nothing stands in the way */
    ck_assert_uint_eq(r.rotary_width, 0);
    ck_ok(settle("1 keys", &c, &r, &err)); /* layout n with shared rotary keys */
    ck_assert(r.layout == MLA_LAYOUT_ABSORBED && r.rotary_width == 4 && r.budget.rotary == 4);
    ck_ok(settle("lossless", &c, &r, &err));
    ck_assert_uint_eq(r.rotary_width, GD);
}
END_TEST

Suite *suite_absorbed(void);
Suite *suite_absorbed(void)
{
    Suite *s = suite_create("absorbed");
    TCase *c = tcase_create("absorbed");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, distances_and_plain_queries_agree);
    tcase_add_test(c, slots_commute_with_the_rotation);
    tcase_add_test(c, folded_slots_are_told_apart);
    tcase_add_loop_test(c, tail_is_the_loss_of_the_factors, 0, 2);
    tcase_add_test(c, all_slots_of_a_partial_rotation_are_layout_n);
    tcase_add_test(c, refusals_say_why);
    suite_add_tcase(s, c);
    return s;
}
