/* MLA decode against the fp64 reference on the same stored bytes: every built shape, odd lengths, skew, poison, faults. */
#include "cuda/decode_dev.cuh"
#include "decode_case.h"

static const mla_dtype BF = MLA_BF16, F8 = MLA_F8_E4M3;
static const double TOL_BF16 = 4e-3, TOL_F16 = 1e-3; /* P rounded to 8 or 11 bits: 2^-9 (2^-12) relative per term, with room */

static bool run(DecodeCase &k, const char *what)
{
    mla_err err;
    k.poison();
    mla_status st = mla_decode_plan(&k.d, NULL, &err);
    if (!st) st = mla_decode_run(&k.d, NULL, &err);
    if (st) fprintf(stderr, "%s: %s\n", what, err.msg);
    return st == MLA_OK;
}

/* Also with few parts, so that one block walks many pages and several sequences: the ring wraps, warpgroups overlap. */
static void one(const CaseSpec &s, uint64_t seed, int variant, size_t parts = 0)
{
    static int number;
    char what[200];
    if (!cut_kept(number++)) return;
    DecodeCase k(s, seed);
    k.d.variant = variant;
    k.d.max_parts = parts;
    snprintf(what, sizeof what, "%s%s%s lat %zu rope %zux%zu H %zu groups %zu s_q %zu B %zu", s.name, variant ? " (plain)" : "",
             parts == 2 ? " (2 parts)" : "", s.lat,
             s.rope_heads, s.rope, s.H, s.groups, s.s_q, s.len.size());
    if (!run(k, what)) {
        cut_check(false, what);
        return;
    }
    const std::vector<float> got = k.output(), want = k.reference();
    const Cmp c = cut_compare(got.data(), want.data(), k.nout);
    bool guard = true;
    for (size_t i = k.nout; i < got.size(); i++) guard &= !isfinite(got[i]);
    const bool ok = cut_close(c, s.cache == BF ? TOL_BF16 : TOL_F16) && guard;
    if (!ok || getenv("MLA_TEST_VERBOSE"))
        fprintf(stderr, "  %-90s nonfinite %zu rel %.2e max %.2e of %.2e guard %d\n", what, c.nonfinite, c.rel, c.max_abs, c.max_want, guard);
    cut_check(ok, what);
    if (!parts && !variant) one(s, seed + 100, 0, 2);
}

static void shapes(void)
{
    const std::vector<int> mix = {1, 63, 64, 65, 127, 128, 200, 2500};
    for (mla_dtype t : {BF, F8}) {
        for (size_t H : {1, 8, 16, 24, 32, 40, 64}) one({"512", t, 512, 64, 1, H, 1, 1, mix, 2.f, t == F8, 5, 1.f}, H, 0);
        for (size_t s_q : {2, 3, 4, 8}) {
            std::vector<int> l = {(int)s_q, 64, 65, 129, 700};
            one({"s_q", t, 512, 64, 1, 24, 1, s_q, l, 2.f, false, 5, 1.f}, s_q, 0);
            one({"s_q", t, 512, 64, 1, 12, 1, s_q, l, 2.f, false, 5, 1.f}, s_q, 0);
        }
        for (size_t lat : {256, 768, 1792}) {
            for (size_t H : {12, 24, 48}) one({"latent", t, lat, 64, 1, H, 1, 1, mix, 2.f, false, 5, 1.f}, lat + H, 0);
            one({"latent s_q", t, lat, 64, 1, 12, 1, 2, {2, 90, 300}, 2.f, false, 5, 1.f}, lat, 0);
        }
        for (size_t lat : {256, 512, 768}) one({"rotary 4x64", t, lat, 64, 4, 24, 1, 1, mix, 2.f, false, 5, 1.f}, lat + 7, 0);
        one({"rotary 4x64 s_q", t, 512, 64, 4, 24, 1, 2, {2, 66, 500}, 2.f, false, 5, 1.f}, 3, 0);
        one({"GLA", t, 256, 64, 1, 24, 2, 1, mix, 2.f, false, 5, 1.f}, 5, 0);
        one({"GLA", t, 256, 64, 1, 64, 4, 2, {2, 63, 400}, 2.f, false, 5, 1.f}, 6, 0);
        one({"GLA", t, 512, 64, 1, 32, 2, 1, mix, 2.f, false, 5, 1.f}, 7, 0);
        for (size_t lat : {128, 256}) { /* e4m3: the plain kernel */
            for (size_t s_q : {1, 2, 5}) one({"GQA", t, lat, 0, 1, 24, 4, s_q, {(int)s_q, 63, 64, 65, 129, 2500}, 2.f, s_q == 2, 5, 1.f, true}, lat + s_q, 0);
            one({"GQA, one head a group", t, lat, 0, 1, 8, 8, 1, mix, 2.f, false, 5, 1.f, true}, lat + 9, 0);
        }
        one({"GQA plain", t, 96, 0, 1, 6, 3, 2, {2, 100}, 2.f, false, 5, 1.f, true}, 10, 0);
        one({"plain", t, 512, 64, 1, 24, 1, 2, {2, 64, 333}, 2.f, false, 5, 1.f}, 8, 1);
        one({"plain rotary 4x64", t, 128, 64, 4, 8, 2, 1, mix, 2.f, false, 5, 1.f}, 9, 1);
        one({"no kernel built: falls back", t, 384, 64, 1, 24, 1, 1, mix, 2.f, false, 5, 1.f}, 10, 0);
    }
}

/* Every built kernel, as many query rows as it takes: two sequences over two blocks' shares, more pages than a ring holds, a
 * merge. Those whose number is first + i step. */
static void every_kernel(int first, int step)
{
    const DecodeKernel *lists[] = {mla_decode_k256, mla_decode_k512, mla_decode_k768, mla_decode_k1792, mla_decode_trio512, mla_decode_held512, mla_decode_gqa};
    int number = 0;
    for (const DecodeKernel *list : lists)
        for (const DecodeKernel *k = list; k->lat; k++, number++) {
            if (number < first || (number - first) % step) continue;
            char name[80];
            const size_t s_q = k->n > 64 ? 4 : 1;
            snprintf(name, sizeof name, "kernel of %d rows", k->n);
            DecodeCase c({name, k->fp8 ? F8 : BF, (size_t)k->lat, k->rb ? 64u : 0u, k->rb ? (size_t)k->rb : 1, (size_t)k->n / s_q, 1, s_q, {cut_small() ? 330 : 900, 70}, 2.f, false, 3, 1.f, !k->wgs}, 50);
            c.d.max_parts = cut_small() && k->lat <= 256 ? 1 : 2;
            snprintf(name, sizeof name, "kernel %d: latent %d, %d rows, %s, rotary %d", number, k->lat, k->n, k->fp8 ? "e4m3" : "bf16", 64 * k->rb);
            const bool ran = run(c, name);
            const Cmp d = cut_compare(c.output().data(), c.reference().data(), c.nout);
            if (!cut_check(ran && cut_close(d, k->fp8 ? TOL_F16 : TOL_BF16), name)) fprintf(stderr, "  %zu not finite, off by %.2e of the norm\n", d.nonfinite, d.rel);
        }
}

static void hard_values(void)
{
    for (mla_dtype t : {BF, F8}) {
        const std::vector<int> skew = {4641, 45118 / 8, 1730, 1696, 1, 2};
        one({"skewed", t, 512, 64, 1, 16, 1, 1, skew, 2.f, false, 50, 1.f}, 11, 0);
        one({"peaked softmax, GQA", t, 256, 0, 1, 24, 4, 1, {6000, 77}, 30.f, false, 5, 1.f, true}, 12, 0);
        one({"peaked softmax", t, 512, 64, 1, 24, 1, 1, {6000, 77}, 30.f, false, 5, 1.f}, 12, 0);
        one({"large queries", t, 512, 64, 1, 24, 1, 1, {700, 77}, 2.f, true, 5, 3e6f}, 13, 0);
        one({"small queries", t, 512, 64, 1, 24, 1, 1, {700, 77}, 2.f, true, 5, 3e-6f}, 14, 0);
        for (size_t s_q : {1, 2, 4}) one({"halves of unlike size", t, 512, 64, 1, 24, 1, s_q, {700, 77}, .3f, s_q == 2, 5, 1.f, false, 9.f}, 23 + s_q, 0);
        one({"empty sequences", t, 512, 64, 1, 24, 1, 1, {0, 100, 0, 64, 0}, 2.f, false, 5, 1.f}, 15, 0);
        std::vector<int> many(300);
        for (size_t i = 0; i < many.size(); i++) many[i] = 1 + (int)(cut_hash(i) % 150);
        one({"300 short", t, 512, 64, 1, 24, 1, 1, many, 2.f, false, 5, 1.f}, 16, 0);
        one({"skewed, 64 rows", t, 512, 64, 1, 16, 1, 4, {4641, 45118 / 8, 1730, 1696, 4, 64}, 2.f, false, 50, 1.f}, 18, 0);
        for (size_t rows : {33, 40, 48}) { /* ends within a page, tiles that are not full */
            const size_t s_q = rows % 2 ? 3 : 2;
            one({"skewed, many rows", t, 512, 64, 1, rows / s_q, 1, s_q, {4641, 1730, 1696, (int)s_q, 64, 129, 705}, 2.f, rows == 33, 50, 1.f}, 37, 0);
        }
        for (size_t s_q : {2, 4}) one({"peaked softmax, many rows", t, 512, 64, 1, 24, 1, s_q, {6000, 77, 129}, 30.f, false, 5, 1.f}, 19, 0);
        one({"empty sequences, 96 rows", t, 512, 64, 1, 24, 1, 4, {0, 100, 0, 64, 0}, 2.f, true, 5, 1.f}, 20, 0);
        for (int &n : many) n += 3;
        one({"300 short, 48 rows", t, 512, 64, 1, 12, 1, 4, many, 2.f, false, 5, 1.f}, 22, 0);
        one({"300 short, 96 rows", t, 512, 64, 1, 24, 1, 4, many, 2.f, false, 5, 1.f}, 22, 0);
        /* the last row of a kernel, and one more, over several sequences a block */
        for (size_t H : {33, 48, 49, 64, 65, 72, 73, 96, 97}) one({"row by row", t, 512, 64, 1, H, 1, 1, {129, 1, 2500, 0, 64, 700, 63}, 2.f, H % 3 == 0, 50, 1.f}, 60 + H, 0);
        one({"one sequence, every SM", t, 512, 64, 1, 24, 1, 1, {20000}, 2.f, false, 5, 1.f}, 33, 0);
        std::vector<int> alike(128, 640); /* the plan gives each a part of its own */
        alike[77] = 601;
        one({"128 alike", t, 512, 64, 1, 24, 1, 1, alike, 2.f, false, 5, 1.f}, 34, 0);
        one({"1500 tiny", t, 256, 64, 1, 16, 1, 1, std::vector<int>(1500, 3), 2.f, false, 5, 1.f}, 17, 0);
    }
}

/* Each of these must be seen: a comparison that cannot fail proves nothing. */
static void planted_faults(mla_dtype t, size_t s_q)
{
    const double tol = t == BF ? TOL_BF16 : TOL_F16;
    DecodeCase k({"faults", t, 512, 64, 1, 24, 1, s_q, {500, 129}, 2.f, false, 9, 1.f}, 21);
    const std::vector<float> want = k.reference();
    std::vector<int32_t> bad = k.htable;
    std::swap(bad[k.tstride + 1], bad[k.tstride + 2]); /* full page 1 and the page of one token */
    CU(cudaMemcpy(k.table, bad.data(), bad.size() * 4, cudaMemcpyHostToDevice));
    cut_check(run(k, "wrong page") && !cut_close(cut_compare(k.output().data(), want.data(), k.nout), tol), "wrong page unseen");
    CU(cudaMemcpy(k.table, k.htable.data(), bad.size() * 4, cudaMemcpyHostToDevice));
    const int32_t shorter[2] = {499, 128};
    CU(cudaMemcpy(k.len, shorter, 8, cudaMemcpyHostToDevice));
    cut_check(run(k, "short") && !cut_close(cut_compare(k.output().data(), want.data(), k.nout), tol), "lost token unseen");
    const int32_t right[2] = {500, 129};
    CU(cudaMemcpy(k.len, right, 8, cudaMemcpyHostToDevice));
    run(k, "again");
    const Cmp again = cut_compare(k.output().data(), want.data(), k.nout);
    if (!cut_check(cut_close(again, tol), "right again")) fprintf(stderr, "  s_q %zu: %zu not finite, off by %.2e of the norm\n", s_q, again.nonfinite, again.rel);
    const std::vector<float> first = k.output();
    for (int i = 0; i < 20; i++)
        cut_check(run(k, "again") && !memcmp(first.data(), k.output().data(), k.nout * 4), "two runs differ in bits");
    /* a NaN in a row that is attended to reaches every output of its sequence and no other */
    const size_t at = ((size_t)k.htable[3] * 64 + 5) * k.row + 17;
    const uint16_t nan16 = 0x7fc0;
    CU(cudaMemcpy((char *)k.pool + at * k.el, t == BF ? (const void *)&nan16 : (const void *)"\x7f", k.el, cudaMemcpyHostToDevice));
    run(k, "nan");
    const std::vector<float> o = k.output();
    const size_t half = k.nout / 2;
    size_t bad0 = 0, bad1 = 0;
    for (size_t i = 0; i < half; i++) bad0 += !isfinite(o[i]), bad1 += !isfinite(o[half + i]);
    cut_check(bad0 == half && bad1 == 0, "NaN of a cached row must reach its own sequence only");
}

/* Rotary keys right behind the latents come in one box with them; named by an address of their own they do not. The same bits. */
static void own_base(size_t lat, size_t rope_heads, size_t s_q)
{
    char what[80];
    snprintf(what, sizeof what, "rotary keys by their own address: latent %zu, rotary %zux64, s_q %zu", lat, rope_heads, s_q);
    DecodeCase k({"base", BF, lat, 64, rope_heads, 24, 1, s_q, {2500, 64, 65, 700}, 2.f, false, 5, 1.f}, 70 + lat);
    const bool ran = run(k, what);
    const std::vector<float> joined = k.output();
    const bool close = cut_close(cut_compare(joined.data(), k.reference().data(), k.nout), TOL_BF16);
    k.d.r.base = (const char *)k.pool + k.d.r.col * 2, k.d.r.col = 0;
    cut_check(ran && close && run(k, what) && !memcmp(joined.data(), k.output().data(), k.nout * 4), what);
}
static void own_bases(void)
{
    for (size_t lat : {256, 512, 768}) own_base(lat, 1, 1), own_base(lat, 4, 1);
    own_base(512, 1, 2), own_base(1792, 1, 1);
}

/* 10.5 M slots of 576 bf16 = 12 GB: element offsets beyond 2^32, all of the pool written. */
static void large_pool(void)
{
    size_t free_b = 0, total = 0;
    CU(cudaMemGetInfo(&free_b, &total));
    if (free_b < (size_t)20 << 30) {
        printf("SKIP pool of 10.5 M slots: %zu MiB free (2)\n", free_b >> 20);
        cut_skipped += 2;
        return;
    }
    one({"10.5 M slots", BF, 512, 64, 1, 24, 1, 1, {3000, 65, 1}, 2.f, false, 164000, 1.f}, 31, 0);
    one({"10.5 M slots", F8, 512, 64, 1, 24, 1, 1, {3000, 65, 1}, 2.f, false, 164000, 1.f}, 32, 0);
}

/* A million cached tokens and a few more: page numbers beyond 2^13, a merge of every SM. (One sequence alone needs no plan.) */
static void long_sequences(void)
{
    for (mla_dtype t : {BF, F8}) one({"a million tokens", t, 512, 64, 1, 2, 1, 1, {1000003, 70}, 2.f, false, 5, 1.f}, 35, 0, 132);
    one({"a million tokens, GQA", BF, 128, 0, 1, 4, 2, 1, {1000003, 70}, 2.f, false, 5, 1.f, true}, 36, 0, 132);
}

static void refusals(void)
{
    DecodeCase k({"refusals", BF, 512, 64, 1, 24, 1, 1, {5}, 2.f, false, 1, 1.f}, 41);
    mla_err err;
    mla_decode d = k.d;
    d.groups = 5;
    cut_check(mla_decode_run(&d, NULL, &err) == MLA_EINVAL && strstr(err.msg, "groups"), "groups that do not divide H");
    d = k.d, d.cache = MLA_F32;
    cut_check(mla_decode_run(&d, NULL, &err) == MLA_EUNSUPPORTED && strstr(err.msg, "F32"), "f32 cache");
    d = k.d, d.c.stride = 577;
    cut_check(mla_decode_run(&d, NULL, &err) == MLA_EINVAL && strstr(err.msg, "577"), "unaligned rows");
    d = k.d, d.v = d.c;
    cut_check(mla_decode_run(&d, NULL, &err) == MLA_EINVAL && strstr(err.msg, "values apart"), "values apart beside a rotary part");
}

static void all_planted_faults(void)
{
    for (mla_dtype t : {BF, F8})
        for (size_t s_q : {1, 2, 4}) planted_faults(t, s_q);
}

/* Arguments: names of sections, all without; or "kernels FIRST STEP": only those of every_kernel, for a checker that takes its time. */
int main(int argc, char **argv)
{
    const struct {
        const char *name;
        void (*run)(void);
        bool large; /* not under a checker */
    } section[] = {{"shapes", shapes, false}, {"hard", hard_values, false}, {"faults", all_planted_faults, false}, {"bases", own_bases, false}, {"refusals", refusals, false}, {"pool", large_pool, true}, {"long", long_sequences, true}};
    if (!cut_has_gpu()) return cut_skip_all("cuda_decode", 507);
    if (argc == 4 && !strcmp(argv[1], "kernels")) {
        every_kernel(atoi(argv[2]), atoi(argv[3]));
        return cut_end("cuda_decode");
    }
    if (argc == 1) every_kernel(0, 1);
    for (auto &s : section) {
        bool wanted = argc == 1 && !(s.large && cut_small());
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], s.name);
        if (wanted) s.run();
    }
    CU(cudaDeviceSynchronize());
    return cut_end("cuda_decode");
}
