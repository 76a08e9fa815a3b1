/* What the tests of backend operations share: the same closure runs on the GPU and on the CPU reference and returns what it computed;
 * sections of a program that a checker may run alone. */
#ifndef MLA_TESTS_CUDA_OPS_H
#define MLA_TESTS_CUDA_OPS_H
#include <functional>
#include <string>

#include "be.h"

static mla_backend *cpu, *gpu;

static inline void append(Vec &a, const Vec &b) { a.insert(a.end(), b.begin(), b.end()); }

static const float POISON = NAN;

/* Whether the next case of the program is run: a checker leaves most of them out. */
static inline bool next_case(void)
{
    static int number;
    return cut_kept(number++);
}
/* tol 0: the same bits (poison included); otherwise relative error, non-finite only where both are (poison). */
static inline void both(const std::string &what, double tol, const std::function<Vec(mla_backend *)> &f)
{
    const Vec want = f(cpu), got = f(gpu);
    bool same = want.size() == got.size();
    double d2 = 0, w2 = 0;
    size_t odd = 0, finite = 0;
    for (size_t i = 0; same && i < want.size(); i++) {
        if (isfinite(want[i]) != isfinite(got[i])) odd++;
        else if (isfinite(want[i])) d2 += pow((double)got[i] - want[i], 2), w2 += pow((double)want[i], 2), finite++;
    }
    const double rel = w2 > 0 ? sqrt(d2 / w2) : sqrt(d2);
    const bool ok = same && !odd && finite && rel <= tol;
    if (!ok || getenv("MLA_TEST_VERBOSE"))
        fprintf(stderr, "  %-60s %zu values, %zu finite on one side only, relative error %.2e of %.0e\n", what.c_str(), want.size(), odd, rel, tol);
    cut_check(ok, what.c_str());
}

struct Section {
    const char *name;
    void (*run)(void);
};
/* Arguments: names of sections, all without. skipped: checks of the program, counted without a GPU. */
template <size_t N> static int ops_main(const char *program, int skipped, const Section (&section)[N], int argc, char **argv)
{
    if (!cut_has_gpu()) return cut_skip_all(program, skipped);
    mla_backend_opts oc = {"cpu", 4, MLA_ISA_REF}, og = {"cuda:0", 0, MLA_ISA_AUTO};
    OK(mla_backend_open(&cpu, &oc, &err));
    OK(mla_backend_open(&gpu, &og, &err));
    printf("%s\n", gpu->ops->describe(gpu));
    for (const Section &s : section) {
        bool wanted = argc == 1;
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], s.name);
        if (wanted) s.run();
    }
    OK(gpu->ops->sync(gpu, &err));
    mla_backend_close(gpu);
    mla_backend_close(cpu);
    return cut_end(program);
}
#endif
