/* model.safetensors.index.json beside two shards of two tensors: each shard is whole, or not named at all. */
#include <stdio.h>

#include "fuzz.h"
#include "io/ckpt.h"

static void put_shards(const char *dir)
{
    static const char *const NAME[] = {"a", "b", "c", "d"};
    mla_err err;
    for (int s = 0; s < 2; s++) {
        char path[128], data[4] = "data";
        mla_tensor t[2];
        for (int i = 0; i < 2; i++) t[i] = (mla_tensor){.name = NAME[2 * s + i], .dtype = MLA_U8, .ndim = 1, .shape = {4}, .data = data, .nbytes = 4};
        (void)snprintf(path, sizeof path, "%s/s%d.safetensors", dir, s + 1);
        if (mla_st_write(path, t, 2, NULL, &err) != MLA_OK) fuzz_broken(err.msg);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char path[128];
    mla_err err;
    mla_ckpt *c;
    if (!path[0]) {
        put_shards(fuzz_folder());
        (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", fuzz_folder());
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) fuzz_broken("cannot write the input");
    mla_status st = mla_ckpt_open(&c, fuzz_folder(), &err);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    if (mla_ckpt_count(c) != 2 * mla_ckpt_shard_count(c) || mla_ckpt_shard_count(c) + mla_ckpt_stray_count(c) != 2)
        fuzz_broken("an index that maps other tensors than there are");
    mla_ckpt_close(c);
    return 0;
}
