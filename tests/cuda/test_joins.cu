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

/* Layers, each of them of what the one before wrote, normed: of one token their inputs come number by number, without a meeting of the
 * blocks; `out` rows at most keep every block busy or do not. Sums and biases in turn. */
static void linked(size_t T, size_t out)
{
    enum { ROUNDS = 15 };
    mla_weight *w[2] = {weight(gpu, normals(out * out, 110, 0.02f), out, out, MLA_PREC_BF16), weight(gpu, normals(out * out, 111, 0.02f), out, out, MLA_PREC_BF16)};
    Mem x(gpu, Vec(T * out)), y(gpu, Vec(T * out)), z(gpu, Vec(T * out)), n(gpu, Vec(T * out)), gain(gpu, normals(out, 112, 0.3f)), bias(gpu, normals(out, 113));
    auto run = [&] {
        for (size_t i = 0; i < ROUNDS; i++) {
            Mem &from = i % 3 == 0 ? x : i % 3 == 1 ? y : z, &to = i % 3 == 0 ? y : i % 3 == 1 ? z : x;
            const mla_norm_args norm = {n, out, from, out, T, out, gain, 1e-6};
            const mla_linear_job job = {w[i % 2], {to, out, n, out, T, i % 4 ? NULL : (mla_mem *)bias, i % 2 == 1}};
            OK(gpu->ops->linears(gpu, &norm, &job, 1, &err));
        }
    };
    auto result = [&](const std::function<void()> &f) {
        Mem *all[] = {&x, &y, &z};
        Vec r;
        for (size_t i = 0; i < 3; i++) OK(gpu->ops->upload(gpu, *all[i], normals(T * out, 114 + i).data(), all[i]->bytes, &err));
        f();
        for (Mem *m : all) append(r, m->get());
        return r;
    };
    twice_replayed("linked layers, " + std::to_string(T) + " tokens, " + std::to_string(out) + " outputs", run, result);
    for (mla_weight *i : w) gpu->ops->weight_free(gpu, i);
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

/* Attention over latents with what stands around it: rotations, cache writes, absorbed queries, values of the heads with a bias, the gate.
 * Joined the bits of one by one, in everything that they write. how 1: rotary keys are copied and written apart; 2: absorbed queries read what is
 * rotated; 3: the gate is what the values' layers write; 4: rotary queries are not rotated; 5: e4m3; 6: nothing but row operations, one
 * after the other; 7: no gate, another layer takes the values. Cases of 2 and 3 are not joined, 4 and 5 in part. */
static void around(size_t T, int how)
{
    enum { H = 12, G = 2, LAT = 512, NOPE = 96, ROPE = 64, HD = NOPE + ROPE, Q = 2 * HD, ROW = LAT + ROPE, POOL = 5, PAGE = 64, CACHED = 130 };
    const int32_t len = CACHED + (int32_t)T, page[POOL] = {4, 0, 2, 1, 3};
    const bool fp8 = how == 5;
    mla_weight *key[G], *val[G], *out = weight(gpu, normals(D * H * HD, 90, 0.02f), D, H * HD, MLA_PREC_BF16);
    for (int g = 0; g < G; g++) key[g] = weight(gpu, normals(LAT * NOPE, 91 + g, 0.1f), LAT, NOPE, MLA_PREC_BF16), val[g] = weight(gpu, normals(HD * LAT, 93 + g, 0.05f), HD, LAT, MLA_PREC_BF16);
    Mem q(gpu, Vec(T * H * Q)), kv(gpu, Vec(T * ROW)), kr(gpu, Vec(T * ROPE)), a(gpu, Vec(T * H * LAT)), ol(gpu, Vec(T * H * LAT)), o(gpu, Vec(T * H * HD)), y(gpu, Vec(T * D)),
        cache(gpu, Vec(POOL * PAGE * ROW / (fp8 ? 4 : 2))), cs(gpu, normals(POOL * PAGE * ROPE / 2, 95)), sn(gpu, normals(POOL * PAGE * ROPE / 2, 96)), bias(gpu, normals(HD, 97)),
        L(gpu, &len, 4), P(gpu, page, sizeof page);
    auto run = [&] {
        const mla_cursor at = {L, P, POOL};
        const mla_rope_args rq = {mla_at(q, NOPE), H * Q, T, H, Q, ROPE, cs, sn, &at}, rk = {mla_at(kv, LAT), ROW, T, 1, ROPE, ROPE, cs, sn, &at};
        const mla_kv_view c = {cache, NULL, PAGE, ROW, 0, 0, fp8 ? MLA_F8_E4M3 : MLA_BF16, fp8 ? 0.03f : 1.f};
        mla_kv_view r = c;
        r.col = LAT;
        const mla_kv_write_args all = {c, kv, ROW, T, ROW, 0, &at}, first = {c, kv, ROW, T, LAT, 0, &at}, second = {r, kr, ROPE, T, ROPE, 0, &at};
        std::vector<mla_linear_job> keys, vals;
        for (size_t t = 0; t < T; t++)
            for (size_t g = 0; g < G; g++) {
                const size_t n = t * H + g * H / G, from = how == 2 ? ROPE : 0;
                const size_t rows = H / G;
                keys.push_back({key[g], {mla_at(a, n * LAT), LAT, mla_at(q, n * Q + from), Q, rows, NULL, false}});
                vals.push_back({val[g], {mla_at(o, n * HD), HD, mla_at(ol, n * LAT), LAT, rows, bias, false}});
            }
        if (how != 4) OK(gpu->ops->rope(gpu, &rq, &err));
        OK(gpu->ops->rope(gpu, &rk, &err));
        if (how == 1) {
            OK(gpu->ops->copy_rows(gpu, kr, ROPE, mla_at(kv, LAT), ROW, T, ROPE, &err));
            OK(gpu->ops->kv_write(gpu, &first, &err));
            OK(gpu->ops->kv_write(gpu, &second, &err));
        } else OK(gpu->ops->kv_write(gpu, &all, &err));
        if (how == 6) return;
        OK(gpu->ops->linears(gpu, NULL, keys.data(), keys.size(), &err));
        mla_attn_args n = {};
        n.o = ol, n.ldo = H * LAT, n.q = a, n.ldq = H * LAT, n.qh_stride = LAT;
        n.q2 = mla_at(q, NOPE), n.ldq2 = H * Q, n.q2h_stride = Q;
        n.k = n.v = c, n.k2 = r;
        n.kh = n.k2h = n.vh = 1, n.T = T, n.H = H, n.dk = n.dv = LAT, n.dk2 = ROPE, n.scale = 0.05f, n.bf16 = true, n.at = &at;
        OK(gpu->ops->attention(gpu, &n, &err));
        OK(gpu->ops->linears(gpu, NULL, vals.data(), vals.size(), &err));
        if (how != 7) OK(gpu->ops->sigmoid_mul(gpu, o, how == 3 ? o : mla_at(q, HD), T * H, HD, how == 3 ? (size_t)HD : (size_t)Q, &err));
        const mla_linear_args last = {y, D, o, H * HD, T, NULL, true};
        OK(gpu->ops->linear(gpu, out, &last, &err));
    };
    auto result = [&](const std::function<void()> &f) {
        Mem *all[] = {&q, &kv, &kr, &a, &ol, &o, &y};
        for (size_t i = 0; i < 7; i++) OK(gpu->ops->upload(gpu, *all[i], normals(all[i]->bytes / 4, 98 + i, 0.5f).data(), all[i]->bytes, &err));
        std::vector<unsigned char> stored(cache.bytes);
        for (size_t i = 0; i < stored.size(); i++) stored[i] = fp8 ? (unsigned char)(0x20 + i % 31) : (unsigned char)(i & 1 ? 0x3d + (i / 2 % 3 ? 0 : 0x80) : i * 7);
        OK(gpu->ops->upload(gpu, cache, stored.data(), stored.size(), &err));
        f();
        Vec v;
        for (Mem *m : all) append(v, m->get());
        append(v, cache.get());
        return v;
    };
    twice_replayed("attention and what stands around it, " + std::to_string(T) + " tokens, how " + std::to_string(how), run, result);
    for (mla_weight *w : {key[0], key[1], val[0], val[1], out}) gpu->ops->weight_free(gpu, w);
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
    for (size_t T = 1; T <= 2; T++)
        for (size_t out : {1056, 1216, 512, 2048})
            if (next_case()) linked(T, out);
}

static void mixers(void)
{
    for (size_t T = 1; T <= 4; T++)
        for (int alias = 0; alias < MIX_ALL; alias++)
            if (next_case()) mixed(T, alias);
}

static void attentions(void)
{
    for (size_t T = 1; T <= 8; T++)
        for (int how = 0; how < 8; how++)
            if (next_case()) around(T, how);
}

int main(int argc, char **argv)
{
    const Section section[] = {{"layers", layers}, {"behind", behind}, {"mixers", mixers}, {"attentions", attentions}, {"refusals", refusals}};
    return ops_main("cuda_joins", 302, section, argc, argv);
}
