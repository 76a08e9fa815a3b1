/* Statistics of the tiny hybrid on a GPU: attention moments taken there against the host's on the same pass, in every layout
 * that has statistics of its own; the same bits from two runs; rows of several lengths. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "retrofit/stats/collect.h"
#include "tell.h"

static mla_model *m;

enum { ROW = 96, TOKENS = 5 * ROW + 50 };

static mla_stats collect(mla_backend *be, mla_layout layout, size_t rows_per_run)
{
    const mla_config *c = mla_model_config(m);
    int32_t ids[TOKENS];
    mla_rt *rt;
    mla_pool *pool;
    mla_collector *col;
    mla_stats s;
    size_t n = cut_small() ? 20 : TOKENS;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(mla_rng_u64(3, i) % c->vocab);
    must(mla_pool_new(&pool, 2, &err), "pool");
    must(mla_rt_open(&rt, m, be, &(mla_rt_opts){.kv_dtype = MLA_F32}, &err), "runtime");
    mla_collect_opts o = {.rt = rt, .model = m, .be = be, .pool = pool, .layout = layout, .row_tokens = ROW, .rows_per_run = rows_per_run};
    must(mla_collector_new(&col, &o, ids, n, &err), "collector");
    must(mla_stats_new(&s, c, layout, NULL, &err), "statistics");
    must(mla_collect(col, &s, ids, n, NULL, &err), "collect");
    mla_collector_free(col);
    mla_rt_close(rt);
    mla_pool_free(pool);
    return s;
}

static void run(mla_backend *gpu, const mla_backend_ops *host_moments, mla_layout layout, const char *name)
{
    const mla_backend_ops *own = gpu->ops;
    mla_stats a = collect(gpu, layout, 1);
    if (cut_small()) { /* what a checker sees is in one run */
        mla_stats_free(&a);
        return;
    }
    mla_stats again = collect(gpu, layout, 1), three = collect(gpu, layout, 3);
    gpu->ops = host_moments;
    mla_stats b = collect(gpu, layout, 1);
    gpu->ops = own;
    for (size_t i = 0; i < a.layers; i++) {
        mla_stats_array x[MLA_STATS_ARRAYS], y[MLA_STATS_ARRAYS], z[MLA_STATS_ARRAYS], w[MLA_STATS_ARRAYS];
        size_t n = mla_stats_arrays(&a.layer[i], x);
        (void)mla_stats_arrays(&b.layer[i], y), (void)mla_stats_arrays(&again.layer[i], z), (void)mla_stats_arrays(&three.layer[i], w);
        double tokens = fabs(a.layer[i].wsum - b.layer[i].wsum) / b.layer[i].wsum;
        check_part(tokens <= 1e-6, name, "differs from the host's:", "sum of the weights");
        for (size_t k = 0; k < n; k++) {
            double d2 = 0, w2 = 0;
            bool finite = true;
            for (size_t j = 0; j < x[k].count; j++) {
                finite &= isfinite(x[k].data[j]) != 0;
                d2 += pow(x[k].data[j] - y[k].data[j], 2), w2 += pow(y[k].data[j], 2);
            }
            /* fp32 products over d and T, each sum rounded as often as it is long at most. Where keys are drawn by weight, a draw may
             * fall to the neighbour if it is as near to one of up to ROW boundaries (test_weighted.cu looks at each): of n draws for a
             * matrix so many move their term, sqrt(2) of it, in directions of their own; trace / sqrt(dk) is the least norm of n terms */
            bool drawn = a.layer[i].half && (!strcmp(x[k].name, "query") || !strcmp(x[k].name, "turn"));
            double rel = w2 > 0 ? sqrt(d2 / w2) : sqrt(d2), tol = 2e-5, draws = 2.0 * TOKENS * (double)a.layer[i].H / (double)a.layer[i].G;
            if (drawn) tol += sqrt(2 * draws * ROW * 2e-5 * (double)a.layer[i].dk) / draws;
            if (!(rel <= tol) || getenv("MLA_TEST_VERBOSE")) printf("  %s layer %zu %s: relative difference %.2g of %.2g\n", name, a.layer[i].layer, x[k].name, rel, tol);
            check_part(finite && rel <= tol, name, "differs from the host's:", x[k].name);
            check_part(!memcmp(x[k].data, z[k].data, x[k].count * sizeof(double)), name, "two runs differ in", x[k].name);
            check_part(!memcmp(x[k].data, w[k].data, x[k].count * sizeof(double)), name, "rows beside one another change", x[k].name);
        }
    }
    mla_stats_free(&a), mla_stats_free(&again), mla_stats_free(&three), mla_stats_free(&b);
}

int main(void)
{
    const char *root = getenv("MLA_ROOT");
    char path[4096];
    mla_backend *gpu;
    if (mla_backend_open(&gpu, &(mla_backend_opts){.device = "cuda:0"}, &err) != MLA_OK) {
        printf("SKIP attention moments on a GPU: %s (264)\n", err.msg);
        printf("cuda_moments: 0 passed, 0 failed, 264 skipped\n");
        return 0;
    }
    snprintf(path, sizeof path, "%s/tests/fixtures/tiny-hybrid", root && *root ? root : ".");
    must(mla_model_open(&m, path, &err), path);
    mla_backend_ops host = *gpu->ops;
    host.moments = NULL;
    static const struct {
        mla_layout layout;
        const char *name;
    } KIND[] = {{MLA_LAYOUT_N, "layout n"}, {MLA_LAYOUT_P, "layout p"}, {MLA_LAYOUT_REBUILD, "layout rebuild"}};
    for (size_t i = 0; i < sizeof KIND / sizeof *KIND; i++)
        if (cut_kept((int)i)) run(gpu, &host, KIND[i].layout, KIND[i].name);
    mla_model_close(m);
    mla_backend_close(gpu);
    printf("cuda_moments: %d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
