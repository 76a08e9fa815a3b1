/* Local refinement on a GPU against the host: the cases of tests/retrofit/local_cases.h, recorded rows, and whole refinements of a layer of the tiny
 * hybrid that reach the same loss. */
#include "../retrofit/local_cases.h"
#include "io/file.h"
#include "tell.h"

static void compare(const char *name, const char *what, double got, double allowed)
{
    if (!(got <= allowed)) printf("  %s, %s: %.3g of %.3g\n", name, what, got, allowed);
    check_part(got <= allowed, name, "differs from the host's:", what);
}

int main(void)
{
    const char *root = getenv("MLA_ROOT");
    char path[4096], dir[] = "/tmp/mla-refine-XXXXXX";
    mla_backend *gpu;
    mla_model *m;
    mla_pool *pool;
    if (mla_backend_open(&gpu, &(mla_backend_opts){.device = "cuda:0"}, &err) != MLA_OK) {
        printf("SKIP local refinement on a GPU: %s (135)\n", err.msg);
        printf("cuda_refine: 0 passed, 0 failed, 135 skipped\n");
        return 0;
    }
    for (size_t i = 0; i < LOCAL_CASES; i++)
        if (cut_kept((int)i)) must(local_run(gpu, &LOCAL_CASE[i], compare, &err), LOCAL_CASE[i].name);
    snprintf(path, sizeof path, "%s/tests/fixtures/tiny-hybrid", root && *root ? root : ".");
    must(mla_model_open(&m, path, &err), path);
    must(mla_pool_new(&pool, 2, &err), "pool");
    if (!mkdtemp(dir)) return 3;
    for (size_t i = 0; i < RECORD_CASES; i++) must(local_record(gpu, m, pool, dir, RECORD_CASE[i].layout, RECORD_CASE[i].groups, compare, &err), "recorded rows");
    if (!cut_small()) must(local_refine_both(gpu, m, pool, dir, compare, &err), "refinement");
    must(mla_dir_remove(dir, &err), dir);
    mla_pool_free(pool);
    mla_model_close(m);
    mla_backend_close(gpu);
    printf("cuda_refine: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
