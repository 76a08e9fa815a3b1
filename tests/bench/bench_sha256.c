/* Wall time of hashing files that are in the page cache, all in one call.
 * usage: bench_sha256 threads repetitions FILE...   Prints: seconds, digest (of the first file, hex). */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "io/sha256.h"
#include "lab.h"

int main(int argc, char **argv)
{
    mla_err err = {0};
    mla_pool *pool = NULL;
    lab_series s = {.n = 0};
    if (argc < 4) {
        fprintf(stderr, "usage: bench_sha256 threads repetitions FILE...\n");
        return 2;
    }
    size_t n = (size_t)argc - 3, reps = lab_arg(argc, argv, 2, 1);
    lab_must(mla_pool_new(&pool, lab_arg(argc, argv, 1, 1), &err), &err);
    mla_file_digest *f = mla_alloc(n, 1, sizeof *f);
    if (!f) return 3;
    for (size_t r = 0; r < reps; r++) {
        for (size_t i = 0; i < n; i++) f[i] = (mla_file_digest){.path = argv[3 + i]};
        double t = lab_now();
        lab_must(mla_sha256_files(f, n, pool, NULL, &err), &err);
        lab_add(&s, lab_now() - t);
    }
    char hex[65];
    mla_hex(f[0].digest, 32, hex);
    lab_print("seconds", &s);
    printf("digest %s\n", hex);
    mla_free(f);
    mla_pool_free(pool);
    return 0;
}
