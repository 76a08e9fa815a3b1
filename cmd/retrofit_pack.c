/* mla-retrofit pack and unpack: a checkpoint folder in one compressed file, and back byte for byte. */
#include "io/bundle.h"
#include "io/file.h"
#include "io/sha256.h"
#include "retrofit.h"
#include "retrofit/build/unpack.h"

typedef struct {
    mla_bundle_sum sum;
    unsigned char root[32];
} packed;

static void text(const void *what, mla_str *out)
{
    const packed *p = what;
    const mla_bundle_sum *s = &p->sum;
    char hex[65], a[32], b[32];
    mla_hex(p->root, 32, hex);
    mla_str_printf(out, "files        %zu\nbytes        %s\npacked       %s, %.4f to 1\n", s->files, mla_bytes_text(a, sizeof a, (double)s->bytes),
                   mla_bytes_text(b, sizeof b, (double)s->stored), (double)s->bytes / (double)s->stored);
    if (s->float_bytes)
        mla_str_printf(out, "16-bit part  %s, %.4f to 1\n", mla_bytes_text(a, sizeof a, (double)s->float_bytes), (double)s->float_bytes / (double)s->float_stored);
    mla_str_printf(out, "root digest  sha256:%s\n", hex);
}

static void json(const void *what, mla_jv *o)
{
    const packed *p = what;
    char hex[65];
    mla_hex(p->root, 32, hex);
    mla_jv_set_str(o, "schema", "mla-bundle-report/1");
    mla_jv_set_size(o, "files", p->sum.files);
    mla_jv_set_size(o, "bytes", p->sum.bytes);
    mla_jv_set_size(o, "stored", p->sum.stored);
    mla_jv_set_size(o, "float_bytes", p->sum.float_bytes);
    mla_jv_set_size(o, "float_stored", p->sum.float_stored);
    mla_jv_set_str(o, "root_sha256", hex);
}

static mla_status report(cli *c, const mla_bundle *b, mla_err *err)
{
    packed p;
    mla_bundle_totals(b, &p.sum);
    mla_status st = mla_manifest_root(mla_bundle_manifest(b), p.root, err);
    return st == MLA_OK ? cli_answer(c, text, json, &p, err) : st;
}

mla_status cmd_retrofit_pack(cli *c, int argc, char **argv, mla_err *err)
{
    const cli_spec spec = {.args = "FOLDER OUT.mlapack",
                           .about = "Packs a checkpoint folder (weights, configuration, receipts, every file) into one file, losslessly: exponents "
                                    "of floating-point weights are coded apart from signs and mantissas (docs/format-bundle.md).",
                           .min_args = 2, .max_args = 2, .common = CLI_JSON | CLI_THREADS};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    if (mla_path_exists(c->arg[1])) return mla_fail(err, MLA_EINVAL, "%s exists: choose another output or remove it", c->arg[1]);
    if (!mla_path_is_dir(c->arg[0])) return mla_fail(err, MLA_EINVAL, "%s is no folder", c->arg[0]);
    mla_pool *pool;
    mla_bundle *b = NULL;
    mla_bundle_sum sum;
    mla_status st = mla_pool_new(&pool, c->threads, err);
    if (st != MLA_OK) return st;
    st = mla_bundle_write(c->arg[1], c->arg[0], pool, &c->log, &sum, err);
    if (st == MLA_OK) st = mla_bundle_open(&b, c->arg[1], err);
    if (st == MLA_OK) st = report(c, b, err);
    mla_bundle_close(b);
    mla_pool_free(pool);
    return st;
}

mla_status cmd_retrofit_unpack(cli *c, int argc, char **argv, mla_err *err)
{
    cli_list tensor = {0};
    const cli_option opt[] = {{.name = "tensor", .kind = CLI_LIST, .target = &tensor, .metavar = "NAME",
                               .help = "only this tensor, into the safetensors file OUT"}};
    const cli_spec spec = {.args = "BUNDLE.mlapack OUT",
                           .about = "Unpacks a bundle into the new folder OUT, byte for byte: every file's sha256 is compared before it gets its name. "
                                    "OUT appears only when it is whole; a killed run continues when it is run again.",
                           .opt = opt, .nopt = 1, .min_args = 2, .max_args = 2, .common = CLI_JSON | CLI_THREADS};
    if (!cli_parse(c, &spec, argc, argv, err)) {
        cli_list_free(&tensor);
        return err->status;
    }
    mla_pool *pool = NULL;
    mla_bundle *b = NULL;
    mla_status st = mla_pool_new(&pool, c->threads, err);
    if (st == MLA_OK) st = mla_bundle_open(&b, c->arg[0], err);
    if (st == MLA_OK && tensor.n) st = mla_unpack_tensors(b, tensor.v, tensor.n, c->arg[1], pool, err);
    else if (st == MLA_OK) st = mla_unpack(b, c->arg[1], pool, &c->log, err);
    if (st == MLA_OK && !tensor.n) st = report(c, b, err);
    mla_bundle_close(b);
    mla_pool_free(pool);
    cli_list_free(&tensor);
    return st;
}
