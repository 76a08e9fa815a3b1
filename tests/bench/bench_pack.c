/* Packing and unpacking of one file's 16-bit weights in memory, on one thread, beside plain zstd -1 on the same bytes.
 * usage: bench_pack SHARD.safetensors MiB repetitions   Prints: pack_ratio, zstd1_ratio, pack_gbs, unpack_gbs, zstd1_gbs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/planes.h"
#include "io/safetensors.h"
#include "io/zst.h"
#include "lab.h"

#define CHUNK ((size_t)1 << 20) /* as bundle_impl.h */

int main(int argc, char **argv)
{
    mla_err err = {0};
    mla_st *s;
    if (argc < 4) {
        fprintf(stderr, "usage: bench_pack SHARD.safetensors MiB repetitions\n");
        return 2;
    }
    size_t chunks = lab_arg(argc, argv, 2, 256), reps = lab_arg(argc, argv, 3, 3), have = 0;
    lab_must(mla_st_open(&s, argv[1], &err), &err);
    for (size_t i = 0; i < mla_st_count(s); i++) have += mla_planes_of(mla_st_at(s, i)->dtype) == MLA_PLANES_F16 ? mla_st_at(s, i)->nbytes : 0;
    if (have < CHUNK) return fprintf(stderr, "bench_pack: expected 1 MiB of 16-bit weights, found %zu bytes\n", have), 3;
    char *src = mla_alloc_raw(chunks, CHUNK, 1), *back = mla_alloc(CHUNK, 1, 1), *scratch = mla_alloc(CHUNK, 1, 1);
    size_t bound = mla_planes_bound(MLA_PLANES_F16, CHUNK) + mla_zst_bound(CHUNK), (*size)[MLA_PLANES_MAX] = mla_alloc(chunks, 1, sizeof *size);
    char *dst = mla_alloc(chunks, bound, 1);
    if (!src || !back || !scratch || !size || !dst) return 3;
    for (size_t at = 0, total = chunks * CHUNK; at < total;) /* the weights, over and over */
        for (size_t i = 0; i < mla_st_count(s) && at < total; i++) {
            const mla_tensor *t = mla_st_at(s, i);
            if (mla_planes_of(t->dtype) != MLA_PLANES_F16) continue;
            size_t n = t->nbytes < total - at ? t->nbytes : total - at;
            memcpy(src + at, t->data, n);
            at += n;
        }
    lab_series in = {.n = 0}, out = {.n = 0}, plain = {.n = 0};
    double bytes = (double)chunks * (double)CHUNK, packed = 0, zstd1 = 0;
    for (size_t r = 0; r < reps; r++) {
        packed = zstd1 = 0;
        double t = lab_now();
        for (size_t i = 0; i < chunks; i++) {
            lab_must(mla_planes_pack(MLA_PLANES_F16, dst + i * bound, bound, size[i], src + i * CHUNK, CHUNK, scratch, &err), &err);
            packed += (double)(size[i][0] + size[i][1]);
        }
        lab_add(&in, bytes / (lab_now() - t) / 1e9);
        t = lab_now();
        for (size_t i = 0; i < chunks; i++) {
            lab_must(mla_planes_unpack(MLA_PLANES_F16, back, CHUNK, dst + i * bound, size[i][0] + size[i][1], size[i], scratch, &err), &err);
            if (memcmp(back, src + i * CHUNK, 4096)) return 3;
        }
        lab_add(&out, bytes / (lab_now() - t) / 1e9);
        t = lab_now();
        for (size_t i = 0; i < chunks; i++) {
            size_t n;
            lab_must(mla_zst_pack(dst + i * bound, bound, &n, src + i * CHUNK, CHUNK, 1, &err), &err);
            zstd1 += (double)n;
        }
        lab_add(&plain, bytes / (lab_now() - t) / 1e9);
    }
    lab_print_value("pack_ratio", bytes / packed);
    lab_print_value("zstd1_ratio", bytes / zstd1);
    lab_print("pack_gbs", &in);
    lab_print("unpack_gbs", &out);
    lab_print("zstd1_gbs", &plain);
    return 0;
}
