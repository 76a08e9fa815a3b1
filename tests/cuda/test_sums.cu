/* fp64 sums and the eigenproblem on the GPU against the CPU reference: second moments, changes of an attention output; the same bits in
 * every run. */
#include "ops.h"

static Vec moments_of(mla_backend *be, size_t T, size_t n, int mode, bool split = false)
{
    std::vector<double> acc(n * n, 0.25), sum(n, 0.5), w(T), shift(n);
    for (size_t i = 0; i < T; i++) w[i] = 0.5 + 0.25 * cut_normal(24, i);
    for (size_t i = 0; i < n; i++) shift[i] = cut_normal(25, i);
    Mem A(be, acc.data(), n * n * 8), S(be, sum.data(), n * 8), W(be, w.data(), T * 8), F(be, shift.data(), n * 8), X(be, normals(T * (n + 2), 26));
    mla_gram_args a = {mode == 3 ? NULL : (mla_mem *)A, mode == 2 ? NULL : (mla_mem *)S, X, n + 2, T, n, mode & 1 ? (mla_mem *)W : NULL, mode ? (mla_mem *)F : NULL, split};
    OK(be->ops->gram(be, &a, &err));
    OK(be->ops->download(be, acc.data(), A, n * n * 8, &err));
    OK(be->ops->download(be, sum.data(), S, n * 8, &err));
    Vec r;
    for (std::vector<double> *v : {&acc, &sum})
        for (double x : *v) {
            r.push_back((float)x);
            if (!split) r.push_back((float)((x - (float)x) * 1e7)); /* both halves of the fp64 value */
        }
    return r;
}
static void moments(void)
{
    const size_t shapes[][2] = {{1, 1}, {3, 50}, {300, 33}, {5000, 70}};
    for (auto &s : shapes)
        for (int mode = 0; mode < 4; mode++) {
            if (!next_case()) continue;
            both("second moments", 2e-6, [&](mla_backend *be) { return moments_of(be, s[0], s[1], mode); });
            const Vec a = moments_of(gpu, s[0], s[1], mode), b = moments_of(gpu, s[0], s[1], mode);
            cut_check(!memcmp(a.data(), b.data(), a.size() * 4), "second moments differ between two runs");
            /* hi + lo leaves 2^-18 of a factor and lo lo' is left out, 3 * 2^-18 in all; fp32 sums of 512 tokens add less */
            both("second moments of split numbers", 2 * 3.0 / (1 << 18), [&](mla_backend *be) { return moments_of(be, s[0], s[1], mode, true); });
            const Vec c = moments_of(gpu, s[0], s[1], mode, true), d = moments_of(gpu, s[0], s[1], mode, true);
            cut_check(!memcmp(c.data(), d.data(), c.size() * 4), "second moments of split numbers differ between two runs");
        }
}

static double change_of(mla_backend *be, size_t T, size_t H, size_t d, bool gated)
{
    const size_t n = T * H * d, gh = 2 * d + 1, ld = H * gh + 3;
    Vec gate = normals(T * ld, 43, 3.f);
    for (size_t i = 0; i < gate.size(); i++)
        if (i % ld >= H * gh || i % ld % gh >= d) gate[i] = POISON;
    double sum = 0.25;
    Mem A(be, normals(n, 41)), B(be, normals(n, 42)), G(be, gate), S(be, &sum, sizeof sum);
    const mla_change_args a = {A, B, gated ? (mla_mem *)G : NULL, ld, gh, T, H, d, S, NULL, false};
    OK(be->ops->gated_change(be, &a, &err));
    OK(be->ops->download(be, &sum, S, sizeof sum, &err));
    return sum;
}
/* Positive terms: both sides round each at most 12 times (exp of the device: 1 ulp) and add it at most n times. */
static void changes(void)
{
    const size_t shapes[][3] = {{1, 1, 1}, {3, 5, 33}, {97, 3, 100}, {500, 24, 256}};
    for (auto &s : shapes)
        for (bool gated : {false, true}) {
            if (!next_case()) continue;
            const double want = change_of(cpu, s[0], s[1], s[2], gated), got = change_of(gpu, s[0], s[1], s[2], gated), again = change_of(gpu, s[0], s[1], s[2], gated);
            cut_check(fabs(got - want) <= 2 * ((double)(s[0] * s[1] * s[2]) + 12) * 0x1p-53 * want, "change of an attention output");
            cut_check(got == again, "changes of two runs");
        }
}

static void eigenproblem(void)
{
    for (size_t n : {1, 2, 17, 100, 300})
        for (double size : {1.0, 1e-200, 1e200}) {
            if (!next_case()) continue;
            std::vector<double> a(n * n), w1(n), w2(n);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j <= i; j++) a[i * n + j] = a[j * n + i] = size * (cut_normal(27, i * n + j) + (i == j ? (double)i : 0));
            std::vector<double> v1 = a, v2 = a;
            OK(cpu->ops->eigh(cpu, v1.data(), w1.data(), n, &err));
            OK(gpu->ops->eigh(gpu, v2.data(), w2.data(), n, &err));
            double worst = 0, res = 0, top = 0;
            for (size_t i = 0; i < n; i++) {
                worst = fmax(worst, fabs(w1[i] - w2[i])), top = fmax(top, fabs(w1[i]));
                for (size_t r = 0; r < n; r++) {
                    double s = 0;
                    for (size_t k = 0; k < n; k++) s += a[r * n + k] / size * v2[i * n + k];
                    res = fmax(res, fabs(s - w2[i] / size * v2[i * n + r]));
                }
            }
            cut_check(worst <= 1e-13 * n * top && res <= 1e-13 * n * (top / size), "eigenvalues and vectors");
        }
    std::vector<double> bad = {1, NAN, NAN, 2}, w(2);
    cut_check(gpu->ops->eigh(gpu, bad.data(), w.data(), 2, &err) == MLA_EINVAL, "eigenproblem with NaN");
}

int main(int argc, char **argv)
{
    const Section section[] = {{"gram", moments}, {"changes", changes}, {"eigh", eigenproblem}};
    return ops_main("cuda_sums", 96, section, argc, argv);
}
