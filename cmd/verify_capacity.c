/* mla-verify capacity: cache bytes, sequences and tokens on a GPU, from configuration and stored bytes alone. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/ckpt.h"
#include "io/file.h"
#include "io/gguf.h"
#include "verify.h"
#include "verify/folder/capacity.h"

#define GPUS_MAX 32

typedef struct {
    const char *kv_dtype, *weights;
    double gpu, utilisation, reserve, weight_bytes, keep;
    size_t context, rank;
    bool mtp;
    cli_list cards;
} args;

typedef struct { /* what a path told, headers only */
    mla_config cfg;
    mla_json *json;       /* of a folder */
    double stored;        /* bytes of all tensors; 0: no weights there */
    double params;        /* 0: not counted */
    char source[64];
} facts;

static void facts_free(facts *f)
{
    mla_config_free(&f->cfg);
    mla_json_free(f->json);
}

static mla_status read_gguf(facts *f, const char *path, mla_err *err)
{
    mla_gguf *g = NULL;
    mla_status st = mla_gguf_open(&g, path, err);
    if (st == MLA_OK) st = mla_config_from_gguf(&f->cfg, g, err);
    for (size_t i = 0; st == MLA_OK && i < mla_gguf_count(g); i++) f->stored += (double)mla_gguf_at(g, i)->nbytes;
    mla_gguf_close(g);
    return st;
}

static mla_status read_folder(facts *f, const char *dir, mla_err *err)
{
    mla_ckpt *ck = NULL;
    char *path = mla_path_is_dir(dir) ? mla_path_join(dir, "config.json") : mla_strdup(dir);
    mla_status st = path ? mla_json_read(&f->json, path, (size_t)64 << 20, err) : mla_fail(err, MLA_ENOMEM, "%s", dir);
    if (st == MLA_OK) {
        st = mla_config_from_json(&f->cfg, mla_json_root(f->json), err);
        if (st != MLA_OK) st = mla_wrap(err, "%s", path);
    }
    if (st == MLA_OK && mla_path_is_dir(dir) && mla_ckpt_present(dir)) st = mla_ckpt_open(&ck, dir, err);
    for (size_t i = 0; st == MLA_OK && ck && i < mla_ckpt_count(ck); i++) f->stored += (double)mla_ckpt_at(ck, i)->nbytes;
    mla_ckpt_close(ck);
    mla_free(path);
    return st;
}

static mla_status weigh(facts *f, const args *a, double *bytes, mla_err *err)
{
    mla_err none = {0};
    if (mla_param_count(&f->params, &f->cfg, f->json ? mla_json_root(f->json) : NULL, &none) != MLA_OK) f->params = 0;
    if (a->weight_bytes > 0) {
        *bytes = a->weight_bytes;
        (void)snprintf(f->source, sizeof f->source, "as given by --weight-bytes");
    } else if (a->weights) {
        if (!(f->params > 0)) return mla_fail(err, MLA_EUNSUPPORTED, "--weights: %s; give --weight-bytes", none.msg);
        *bytes = f->params * mla_weight_bits(a->weights) / 8;
        (void)snprintf(f->source, sizeof f->source, "assumed %s, %g bits per parameter", a->weights, mla_weight_bits(a->weights));
    } else if (f->stored > 0) {
        *bytes = f->stored;
        (void)snprintf(f->source, sizeof f->source, "as stored");
    } else {
        if (!(f->params > 0)) return mla_fail(err, MLA_EUNSUPPORTED, "no weights are stored and %s; give --weight-bytes", none.msg);
        *bytes = f->params * 2;
        (void)snprintf(f->source, sizeof f->source, "no weights stored: %.4g parameters in bf16", f->params);
    }
    return MLA_OK;
}

static mla_status report(cli *c, const args *a, mla_err *err)
{
    facts f = {0};
    double cards[GPUS_MAX] = {16e9, 24e9, 32e9};
    size_t n = 3;
    mla_json *doc = NULL;
    mla_str text = MLA_STR_MAX((size_t)1 << 22);
    char *name = cli_base_name(c->arg[0]);
    mla_capacity_query q = {.name = name, .model = {.cfg = &f.cfg, .keep = a->keep, .rank = a->rank, .mtp = a->mtp}, .gpus = cards};
    mla_status st = mla_ends_with(c->arg[0], ".gguf") ? read_gguf(&f, c->arg[0], err) : read_folder(&f, c->arg[0], err);
    if (st == MLA_OK) st = weigh(&f, a, &q.model.weight_bytes, err);
    if (a->cards.n) n = 0;
    for (size_t i = 0; i < a->cards.n && st == MLA_OK; i++) {
        if (n == GPUS_MAX) st = mla_fail(err, MLA_EINVAL, "--card: at most %d", GPUS_MAX);
        else if (!mla_parse_bytes(a->cards.v[i], &cards[n++])) st = mla_fail(err, MLA_EINVAL, "--card: expected a size such as 24GB, found \"%s\"", a->cards.v[i]);
    }
    if (st == MLA_OK) {
        q.model.kv = (mla_kv_type){f.cfg.kv_scheme || f.cfg.kv_keys16 ? MLA_F8_E4M3 : MLA_BF16, f.cfg.kv_keys16};
        if (a->kv_dtype) (void)mla_kv_type_parse(a->kv_dtype, &q.model.kv); /* the choice was checked */
        q.machine = (mla_capacity_machine){.gpu_bytes = a->gpu, .utilisation = a->utilisation, .reserve = a->reserve,
                                           .context = a->context ? a->context : f.cfg.max_pos};
        q.weight_source = f.source;
        q.params = f.params;
        q.n_gpus = n;
        st = mla_capacity_report(&doc, &q, err);
    }
    if (st == MLA_OK && c->json) st = cli_print_json(mla_json_root(doc), err);
    if (st == MLA_OK && !c->json) {
        mla_capacity_text(&text, mla_json_root(doc));
        st = cli_print(&text, err);
    }
    mla_str_free(&text);
    mla_json_free(doc);
    facts_free(&f);
    mla_free(name);
    return st;
}

mla_status cmd_verify_capacity(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {.gpu = 96e9, .utilisation = MLA_GPU_UTILISATION, .reserve = MLA_GPU_RESERVE};
    static const char *const WHAT = "what if";
    const cli_option opts[] = {
        {"gpu-memory", 'g', CLI_BYTES, &a.gpu, "SIZE", "memory of the GPU (GB = 10^9, GiB = 2^30)", "96GB", NULL},
        {"context", 'n', CLI_SIZE, &a.context, "N", "tokens of one sequence", "the model's maximum", NULL},
        {"card", 0, CLI_LIST, &a.cards, "SIZE", "further cards to plan for", "16GB, 24GB, 32GB", NULL},
        {"utilisation", 0, CLI_DOUBLE, &a.utilisation, "X", "fraction of the GPU's memory that is used", "0.94", NULL},
        {"reserve", 0, CLI_BYTES, &a.reserve, "SIZE", "kept for activations, graphs and the runtime itself", "2GiB", NULL},
        {"kv-dtype", 0, CLI_CHOICE, &a.kv_dtype, MLA_KV_TYPES, "what the KV cache holds", "fp8 or fp8-keys16 where config.json declares it, else bf16", WHAT},
        {"keep", 0, CLI_DOUBLE, &a.keep, "X", "as if retrofitted to this fraction of the base's KV values", NULL, WHAT},
        {"rank", 0, CLI_SIZE, &a.rank, "N", "as if retrofitted to this latent width per layer", NULL, WHAT},
        {"weights", 0, CLI_CHOICE, &a.weights, "bf16|fp8|int4|exl3", "as if stored like published checkpoints of this kind", NULL, WHAT},
        {"weight-bytes", 0, CLI_BYTES, &a.weight_bytes, "SIZE", "as if the weights took this much", NULL, WHAT},
        {"mtp", 0, CLI_FLAG, &a.mtp, NULL, "count the MTP head's own cache, too", NULL, WHAT},
    };
    const cli_spec spec = {
        .args = "MODEL",
        .about = "KV bytes per token and per sequence, delta-net state, sequences and tokens that fit, and the slot limit of kernels with 32-bit "
                 "offsets. MODEL is a folder (config.json suffices), a config.json or a .gguf file; headers only are read.\n"
                 "sequences = (GPU memory x utilisation - reserve - weights) / (context x KV bytes per token + state).",
        .opt = opts,
        .nopt = sizeof opts / sizeof *opts,
        .min_args = 1,
        .max_args = 1,
        .common = CLI_JSON,
    };
    mla_status st;
    if (!cli_parse(c, &spec, argc, argv, err))
        st = err->status;
    else if (a.keep < 0 || a.keep > 1)
        st = mla_fail(err, MLA_EINVAL, "--keep: expected a fraction up to 1, found %g", a.keep);
    else
        st = report(c, &a, err);
    cli_list_free(&a.cards);
    return st;
}
