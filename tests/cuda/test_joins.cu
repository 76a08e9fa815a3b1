/* What a recording joins keeps its bits: linear layers that become phases of one launch, and every operation that comes behind layers
 * which still wait; what needs the host is refused by name. */
#include "backend/fit.h"
#include "ops.h"

enum { D = 512, I = 320 };

/* result(f): the same numbers everywhere, then f, then all that is there. Operations one by one, and twice a replay of them. */
static void twice_replayed(const std::string &what, const std::function<void()> &run, const std::function<Vec(const std::function<void()> &)> &result)
{
    const Vec plain = result(run);
    mla_tape *tape = NULL;
    OK(gpu->ops->record(gpu, &err));
    run();
    OK(gpu->ops->record_end(gpu, &tape, &err));
    for (int i = 0; i < 2; i++) {
        const Vec r = result([&] { OK(gpu->ops->replay(gpu, tape, &err)); });
        cut_check(r.size() == plain.size() && !memcmp(r.data(), plain.data(), r.size() * 4), what.c_str());
    }
    gpu->ops->tape_free(gpu, tape);
}

/* Linear layers one after the other, more than one launch takes, with the norms, sums, biases and gates they may have: replayed twice
 * the bits of operation by operation. */
static void joined(size_t T)
{
    enum { ROUNDS = 5, ODD = 37 }; /* ODD: no multiple of a tile's rows */
    const mla_precision p = MLA_PREC_BF16;
    mla_weight *gate = weight(gpu, normals(I * D, 50, 0.05f), I, D, p), *up = weight(gpu, normals(I * D, 51, 0.05f), I, D, p), *down = weight(gpu, normals(D * I, 52, 0.05f), D, I, p),
               *odd = weight(gpu, normals(ODD * D, 53, 0.05f), ODD, D, p);
    Mem h(gpu, Vec(T * D)), x(gpu, Vec(T * D)), g(gpu, Vec(T * I)), u(gpu, Vec(T * I)), y(gpu, Vec(T * ODD)), z(gpu, Vec(T * D)), gain(gpu, normals(D, 54, 0.2f)), bias(gpu, normals(ODD, 55));
    const Vec from = normals(T * D, 56);
    auto run = [&] {
        for (int i = 0; i < ROUNDS; i++) {
            const mla_norm_args norm = {x, D, h, D, T, D, gain, 1e-6};
            const mla_gated_args m = {gate, up, I, g, u, x, D, T};
            const mla_linear_job one = {down, {h, D, g, I, T, NULL, true}}, two[2] = {{odd, {y, ODD, x, D, T, bias, i > 0}}, {gate, {u, I, x, D, T, NULL, false}}};
            OK(gpu->ops->mlp(gpu, &norm, &m, &one, &err));
            OK(gpu->ops->linears(gpu, &norm, two, 2, &err));
            const mla_linear_args last = {z, D, u, I, T, NULL, i > 0};
            OK(gpu->ops->linear(gpu, down, &last, &err));
        }
    };
    auto result = [&](const std::function<void()> &f) {
        OK(gpu->ops->upload(gpu, h, from.data(), from.size() * 4, &err));
        f();
        Vec all;
        for (const Mem *m : {&h, &y, &z, &u}) {
            const Vec r = m->get();
            all.insert(all.end(), r.begin(), r.end());
        }
        return all;
    };
    twice_replayed("layers joined by a recording differ from the same one by one", run, result);
    for (mla_weight *w : {gate, up, down, odd}) gpu->ops->weight_free(gpu, w);
}

/* Operations behind a layer that waits for more to join it: each reads, or writes, what that layer writes. Replayed twice the bits of
 * one by one; before every run all buffers hold other numbers than the layer's. */
static void behind(void)
{
    enum { T = 2, N = T * D };
    mla_weight *w = weight(gpu, normals(D * D, 60, 0.05f), D, D, MLA_PREC_BF16);
    const Vec from[4] = {normals(N, 61), normals(N, 62), normals(N, 63), normals(N, 64)};
    std::vector<double> zero(D * D);
    const int32_t len = T, page[2] = {1, 0};
    Mem x(gpu, from[0]), y(gpu, from[1]), z(gpu, from[2]), u(gpu, from[3]), sums(gpu, zero.data(), zero.size() * 8), L(gpu, &len, 4), P(gpu, page, 8);
    const mla_cursor at = {L, P, 2};
    auto ops = [&] { return gpu->ops; }; /* another table while recording */
    const struct {
        const char *name;
        std::function<mla_status()> run;
    } CASE[] = {
        {"copy", [&] { return ops()->copy(gpu, z, y, N * 4, &err); }},
        {"zero", [&] { return ops()->zero(gpu, y, N * 4, &err); }},
        {"rmsnorm", [&] { mla_norm_args a = {z, D, y, D, T, D, u, 1e-6}; return ops()->rmsnorm(gpu, &a, &err); }},
        {"gated_norm", [&] { mla_gated_norm_args a = {z, u, y, u, T * 4, D / 4, 1e-6}; return ops()->gated_norm(gpu, &a, &err); }},
        {"rope", [&] { mla_rope_args a = {y, D, T, 4, D / 4, 64, u, z, &at}; return ops()->rope(gpu, &a, &err); }},
        {"add", [&] { return ops()->add(gpu, z, y, N, &err); }},
        {"add_rows", [&] { return ops()->add_rows(gpu, z, D, T, D, y, -1.f, &err); }},
        {"silu_mul", [&] { return ops()->silu_mul(gpu, z, y, u, N, &err); }},
        {"sigmoid_mul", [&] { return ops()->sigmoid_mul(gpu, z, y, T, D, D, &err); }},
        {"copy_rows", [&] { return ops()->copy_rows(gpu, z, D, y, D, T, 37, &err); }},
        {"kv_write", [&] { mla_kv_write_args a = {{z, NULL, 1, D, 0, 0, MLA_F32, 1.f}, y, D, T, D, 0, &at}; return ops()->kv_write(gpu, &a, &err); }},
        {"kv_read", [&] { mla_kv_read_args a = {{y, NULL, 1, D, 0, 0, MLA_F32, 1.f}, z, D, 0, T, D}; return ops()->kv_read(gpu, &a, &err); }},
        {"conv", [&] { mla_conv_args a = {z, y, u, mla_at(u, 4 * 100), T, 100, 4}; return ops()->conv(gpu, &a, &err); }},
        {"gram", [&] { mla_gram_args a = {sums, NULL, y, D, T, D, NULL, NULL, false}; return ops()->gram(gpu, &a, &err); }},
        {"gated_change", [&] { mla_change_args a = {y, z, u, D, D / 4, T, 4, D / 4, sums, NULL, false}; return ops()->gated_change(gpu, &a, &err); }},
        {"product", [&] { mla_product_args a = {}; a.tb = true, a.M = a.N = T, a.K = D, a.count = 1, a.alpha = 1.f, a.a = y, a.b = u, a.c = z, a.lda = a.ldb = a.ldc = D;
             return ops()->fit->product(gpu, &a, &err); }},
        {"spread", [&] { mla_spread_args a = {}; a.y = z, a.x[0] = y, a.rows[0] = 1, a.parts = 1, a.n[0] = T, a.n[1] = 1, a.n[2] = D, a.ys[0] = a.xs[0] = D, a.ys[2] = a.xs[2] = 1;
             return ops()->fit->spread(gpu, &a, &err); }},
        {"scale", [&] { return ops()->fit->scale(gpu, z, D, T, D, y, u, &err); }},
        {"softmax", [&] { mla_softmax_args a = {}; a.x = y, a.parts = a.heads = 1, a.Q = T, a.T = D, a.stride = 200, a.first[0] = 100; return ops()->fit->softmax(gpu, &a, &err); }},
        {"softmax_back", [&] { return ops()->fit->softmax_back(gpu, z, y, T, D, &err); }},
        {"dots", [&] { return ops()->fit->dots(gpu, sums, y, u, T, D, &err); }},
        {"adam", [&] { mla_adam_args a = {z, u, x, y, N, 0.1, 0.1, 0.1}; return ops()->fit->adam(gpu, &a, &err); }},
        {"commute", [&] { mla_commute_args a = {z, y, 1, T, D, D / 4, 32}; return ops()->fit->commute(gpu, &a, &err); }},
    };
    for (auto &k : CASE) {
        if (!next_case()) continue;
        auto result = [&](const std::function<void()> &f) {
            Mem *all[] = {&x, &y, &z, &u};
            for (int i = 0; i < 4; i++) OK(gpu->ops->upload(gpu, *all[i], from[i].data(), N * 4, &err));
            OK(gpu->ops->upload(gpu, sums, zero.data(), zero.size() * 8, &err));
            f();
            Vec r;
            for (Mem *m : all) append(r, m->get());
            append(r, sums.get());
            return r;
        };
        auto run = [&] {
            mla_linear_args a = {y, D, x, D, T, NULL, false};
            OK(gpu->ops->linear(gpu, w, &a, &err));
            if (k.run() != MLA_OK) fprintf(stderr, "%s: %s\n", k.name, err.msg), exit(3);
        };
        twice_replayed(std::string(k.name) + " behind a layer that waits", run, result);
    }
    gpu->ops->weight_free(gpu, w);
}

/* Convolution, delta step and gated norm, T tokens: joined the bits of one by one, in everything that they write, twice. `alias` says what
 * is written that others read. The first two are not joined. From MIX_TWICE_STATE on they stand behind a layer, so that what a call keeps for
 * the next one, taps and gains may be read early: but for what a layer, another operation or the mixer before them writes. */
enum { MIX_APART, MIX_GATES /* by the convolution */, MIX_CONV_INPUT /* by the norm */, MIX_TWICE_STATE, MIX_TWICE_CONV, MIX_LAYER_CONV, MIX_LAYER_STATE, MIX_LAYER_TAPS, MIX_LAYER_GAIN, MIX_COPY_STATE, MIX_LAYERS /* the mixer before the last layer */, MIX_ALL };
static void mixed(size_t T, int alias)
{
    const bool many = alias == MIX_GATES || alias == MIX_CONV_INPUT, behind = alias >= MIX_TWICE_STATE, twice = alias == MIX_TWICE_STATE || alias == MIX_TWICE_CONV || alias == MIX_COPY_STATE;
    const size_t NK = 2, NV = many ? 600 : 6 /* many: more heads than run at once */, GD = 128, C = (2 * NK + NV) * GD, V = NV * GD;
    Mem x(gpu, Vec(T * C)), qkv(gpu, Vec(T * C)), o(gpu, Vec(T * V)), y(gpu, Vec(T * V)), conv(gpu, Vec(3 * C)), state(gpu, Vec(V * GD)), w(gpu, Vec(C * 4)), gain(gpu, Vec(GD)), conv2(gpu, Vec(3 * C)),
        state2(gpu, Vec(twice ? V * GD : 1)), z(gpu, normals(T * V, 70)), a(gpu, normals(T * NV, 71)), b(gpu, normals(T * NV, 72)), head(gpu, normals(NV, 75)), h(gpu, normals(T * D, 77));
    mla_weight *in = behind ? weight(gpu, normals(C * D, 78, 0.05f), C, D, MLA_PREC_BF16) : NULL, *narrow = weight(gpu, normals(GD * D, 79, 0.05f), GD, D, MLA_PREC_BF16);
    enum { ALL = 10 };
    Mem *all[ALL] = {&x, &qkv, &o, &y, &conv, &state, &w, &gain, &conv2, &state2};
    Vec from[ALL];
    for (size_t i = 0; i < ALL; i++) from[i] = normals(all[i]->bytes / 4, 76 + i, 0.3f);
    auto layer = [&](mla_weight *weight, mla_mem *to, size_t rows) {
        const mla_linear_args one = {to, C, h, D, rows, NULL, false};
        OK(gpu->ops->linear(gpu, weight, &one, &err));
    };
    auto mixer = [&](mla_mem *inputs, mla_mem *states) {
        mla_conv_args c = {qkv, x, w, inputs, T, C, 4};
        mla_gdn_args g = {o, qkv, alias == MIX_GATES ? mla_at(qkv, T * C - T * NV) : (mla_mem *)a, b, head, head, states, T, NK, NV, GD, GD, 0};
        mla_gated_norm_args n = {alias == MIX_CONV_INPUT ? x : y, o, z, gain, T * NV, GD, 1e-6};
        OK(gpu->ops->conv(gpu, &c, &err));
        OK(gpu->ops->gdn(gpu, &g, &err));
        OK(gpu->ops->gated_norm(gpu, &n, &err));
    };
    auto run = [&] {
        if (behind) layer(in, x, T);
        if (alias == MIX_LAYER_CONV) layer(in, conv, 1);
        if (alias == MIX_LAYER_STATE) layer(in, state, 1);
        if (alias == MIX_LAYER_TAPS) layer(in, w, 1);
        if (alias == MIX_LAYER_GAIN) layer(narrow, gain, 1);
        mixer(conv, state);
        if (alias == MIX_COPY_STATE) OK(gpu->ops->copy_rows(gpu, state2, GD, x, GD, T * C / GD, GD, &err));
        if (twice) mixer(alias == MIX_TWICE_CONV ? conv : conv2, alias == MIX_TWICE_STATE ? state : state2);
        if (alias == MIX_LAYERS) layer(in, x, T), mixer(conv, state);
    };
    auto result = [&](const std::function<void()> &f) {
        for (size_t i = 0; i < ALL; i++) OK(gpu->ops->upload(gpu, *all[i], from[i].data(), all[i]->bytes, &err));
        Vec r;
        for (int step = 0; step < 2; step++) {
            f();
            for (Mem *m : all) append(r, m->get());
        }
        return r;
    };
    twice_replayed("a joined mixer's results, " + std::to_string(T) + " tokens, alias " + std::to_string(alias), run, result);
    gpu->ops->weight_free(gpu, in);
    gpu->ops->weight_free(gpu, narrow);
}

/* Each of these needs the host; the recording that met one is void, the backend goes on. */
static void refusals(void)
{
    const size_t ROW = 320;
    const std::vector<int32_t> pages = {1, 0};
    Mem h(gpu, Vec(D)), cache(gpu, Vec(64 * ROW));
    mla_weight *w = weight(gpu, normals(D * D, 57), D, D, MLA_PREC_BF16);
    mla_tape *tape = NULL;
    float x[64] = {};
    const std::function<mla_status()> calls[] = {
        [&] { return gpu->ops->upload(gpu, h, x, 64, &err); },
        [&] { return gpu->ops->download(gpu, x, h, 64, &err); },
        [&] { return gpu->ops->sync(gpu, &err); },
        [&] { mla_mem *p; return gpu->ops->alloc(gpu, &p, 64, &err); },
        [&] { const int32_t id = 0; return gpu->ops->embed(gpu, w, h, &id, 1, &err); },
        [&] { return gpu->ops->record(gpu, &err); },
        [&] {
            mla_kv_view v = {cache, pages.data(), 64, ROW, 0, 0, MLA_BF16, 1.f};
            mla_kv_write_args a = {v, h, ROW, 1, ROW, 0, NULL};
            return gpu->ops->kv_write(gpu, &a, &err);
        },
    };
    for (const auto &f : calls) {
        OK(gpu->ops->record(gpu, &err));
        cut_check(f() == MLA_EINVAL && strstr(err.msg, "record"), "refused while recording");
        OK(gpu->ops->record_end(gpu, NULL, &err));
    }
    cut_check(gpu->ops->record_end(gpu, &tape, &err) == MLA_EINVAL && !tape, "record_end alone");
    gpu->ops->tape_free(gpu, NULL);
    gpu->ops->weight_free(gpu, w);
    OK(gpu->ops->sync(gpu, &err));
}

static void layers(void)
{
    for (size_t T = 1; T <= 8; T++)
        if (next_case()) joined(T);
}

static void mixers(void)
{
    for (size_t T = 1; T <= 4; T++)
        for (int alias = 0; alias < MIX_ALL; alias++)
            if (next_case()) mixed(T, alias);
}

int main(int argc, char **argv)
{
    const Section section[] = {{"layers", layers}, {"behind", behind}, {"mixers", mixers}, {"refusals", refusals}};
    return ops_main("cuda_joins", 158, section, argc, argv);
}
