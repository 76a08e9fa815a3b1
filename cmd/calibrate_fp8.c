/* mla-calibrate fp8: measures, judges and writes the FP8 KV scales of a checkpoint folder. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "calibrate.h"
#include "calibrate/calibrate.h"
#include "io/file.h"
#include "io/receipt.h"
#include "io/sha256.h"

typedef struct {
    cli_list corpus, judge;
    size_t tokens, judge_tokens;
    mla_cal_opts o;
    double max_kld;
    const char *spelling, *consumer, *precision, *cache;
    bool stream, dry_run;
} args;

typedef struct {
    mla_backend *be;
    mla_pool *pool;
    mla_model *model;
    mla_rt *rt;
    mla_corpus text, judge;
} state;

/* Files this command writes: they may differ from the receipt when an earlier run was cut off before it wrote that. */
static const char *const OURS[] = {MLA_RECEIPT_NAME, MLA_KV_SCALES_FILE, MLA_KV_SCALES_JSON, "config.json", "model.safetensors.index.json",
                                   MLA_SGLANG_SCALES, "hf_quant_config.json", NULL};

static mla_status read_receipt(mla_json **doc, const char *dir, mla_err *err)
{
    char *path = mla_path_join(dir, MLA_RECEIPT_NAME);
    *doc = NULL;
    mla_status st = path ? MLA_OK : mla_fail(err, MLA_ENOMEM, "path of the receipt");
    if (st == MLA_OK && mla_path_exists(path)) st = mla_json_read(doc, path, 64u << 20, err);
    mla_free(path);
    return st;
}

/* Model, text and options behind kept ranges; files that calibration itself writes do not count, but for the config. */
static mla_status keep_key(unsigned char key[32], const cli *c, const args *a, const state *s, size_t n, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, MLA_KV_SCALES_FILE, MLA_KV_SCALES_JSON, "model.safetensors.index.json", MLA_SGLANG_SCALES,
                                       "hf_quant_config.json", NULL};
    mla_manifest m = {0};
    mla_str t = MLA_STR_MAX(1024);
    unsigned char root[32];
    char hex[2][65];
    mla_status st = mla_manifest_scan(&m, c->arg[0], SKIP, s->pool, NULL, err);
    if (st == MLA_OK) st = mla_manifest_root(&m, root, err);
    if (st == MLA_OK) {
        mla_hex(root, 32, hex[0]);
        mla_hex(s->text.sha256, 32, hex[1]);
        mla_str_printf(&t, "%s %s tokens %zu row %zu percentile %.17g precision %s device %s", hex[0], hex[1], n, a->o.row_tokens, a->o.percentile,
                       a->precision ? a->precision : "", s->be->ops->name);
        if (!mla_str_ok(&t)) st = mla_fail(err, MLA_ENOMEM, "key of %s", a->o.keep);
        else mla_sha256_bytes(mla_str_c(&t), t.len, key);
    }
    mla_str_free(&t);
    mla_manifest_free(&m);
    return st;
}

/* A folder that already differs from its receipt is not calibrated: the new receipt would bless the difference. */
static mla_status check_receipt(const char *dir, mla_pool *pool, mla_err *err)
{
    mla_json *doc;
    mla_manifest rec = {0}, found = {0};
    mla_findings f = {0};
    mla_status st = read_receipt(&doc, dir, err);
    if (st != MLA_OK || !doc) return st;
    st = mla_manifest_from_json(&rec, mla_json_root(doc), err);
    if (st == MLA_OK) st = mla_manifest_scan(&found, dir, OURS, pool, NULL, err);
    if (st == MLA_OK) {
        size_t n = 0;
        for (size_t i = 0; i < rec.n; i++) {
            bool ours = false;
            for (size_t k = 0; OURS[k]; k++) ours |= !strcmp(OURS[k], rec.file[i].name);
            if (ours) mla_free(rec.file[i].name);
            else rec.file[n++] = rec.file[i];
        }
        rec.n = n;
        mla_manifest_diff(&f, &rec, &found);
        if (f.n) st = mla_fail(err, MLA_EFORMAT, "%s differs from its receipt (%zu findings), first: %.300s", dir, f.n, mla_str_c(&f.text));
    }
    mla_findings_free(&f);
    mla_manifest_free(&rec);
    mla_manifest_free(&found);
    mla_json_free(doc);
    return st;
}

/* The receipt over the folder as it is now, with what was calibrated. A folder without a receipt gets none. */
static mla_status renew_receipt(const char *dir, const mla_cal *cal, mla_pool *pool, mla_err *err)
{
    static const char *const SKIP[] = {MLA_RECEIPT_NAME, NULL};
    mla_json *doc, *side = NULL;
    mla_manifest m = {0};
    char *path = mla_path_join(dir, MLA_RECEIPT_NAME);
    mla_status st = read_receipt(&doc, dir, err);
    if (st == MLA_OK && doc) {
        st = path ? mla_manifest_scan(&m, dir, SKIP, pool, NULL, err) : mla_fail(err, MLA_ENOMEM, "path of the receipt");
        if (st == MLA_OK) st = mla_cal_json(&side, cal, err);
        if (st == MLA_OK && !mla_jv_set_copy(mla_json_root(doc), "kv_scales", mla_json_root(side))) st = mla_fail(err, MLA_ENOMEM, "receipt");
        if (st == MLA_OK) st = mla_manifest_to_json(&m, mla_json_root(doc), err);
        if (st == MLA_OK) st = mla_receipt_write_sealed(path, mla_json_root(doc), err);
    }
    mla_json_free(side);
    mla_json_free(doc);
    mla_manifest_free(&m);
    mla_free(path);
    return st;
}

static mla_status answer(cli *c, const mla_cal *cal, mla_err *err)
{
    if (c->json) {
        mla_json *d;
        mla_status st = mla_cal_json(&d, cal, err);
        if (st == MLA_OK) st = cli_print_json(mla_json_root(d), err);
        if (st == MLA_OK) mla_json_free(d);
        return st;
    }
    mla_str s = MLA_STR_MAX(1 << 20);
    mla_cal_text(cal, &s);
    mla_status st = cli_print(&s, err);
    mla_str_free(&s);
    return st;
}

static mla_status open_all(state *s, cli *c, const args *a, mla_err *err)
{
    mla_status st = cli_backend_open(c, &s->be, err);
    if (st == MLA_OK) st = mla_pool_new(&s->pool, c->threads, err);
    if (st == MLA_OK) st = mla_model_open(&s->model, c->arg[0], err);
    if (st == MLA_OK && a->o.keep && !mla_path_is_dir(c->arg[0])) st = mla_fail(err, MLA_EINVAL, "--keep: expected a folder, found %s", c->arg[0]);
    if (st == MLA_OK && a->consumer && a->spelling) st = mla_fail(err, MLA_EINVAL, "--consumer decides the spelling: give one of --consumer and --spelling");
    if (st == MLA_OK && a->consumer && strcmp(a->consumer, "mla-toolkit") && mla_model_config(s->model)->mla.layout != MLA_LAYOUT_NONE)
        st = mla_fail(err, MLA_EINVAL, "--consumer %s: that engine reads no stored scale of a latent", a->consumer);
    if (st == MLA_OK && !a->dry_run && !mla_path_is_dir(c->arg[0]))
        st = mla_fail(err, MLA_EINVAL, "%s: scales are written into a folder; --dry-run measures only", c->arg[0]);
    if (st == MLA_OK && !a->dry_run) st = check_receipt(c->arg[0], s->pool, err);
    if (st == MLA_OK) st = calibrate_text(&s->text, s->model, &a->corpus, "calib/calibration.jsonl", err);
    if (st == MLA_OK) st = calibrate_text(&s->judge, s->model, &a->judge, "calib/tune.jsonl", err);
    mla_rt_opts ro = {.precision = a->precision && !strcmp(a->precision, "fast") ? MLA_PREC_BF16 : MLA_PREC_F32, .kv_dtype = MLA_BF16,
                      .keys16 = a->cache && !strcmp(a->cache, "fp8-keys16"), .stream_layers = a->stream, .log = &c->log};
    if (st == MLA_OK) {
        ro.mtp = mla_model_config(s->model)->mtp_layers > 0;
        st = mla_rt_open(&s->rt, s->model, s->be, &ro, err);
    }
    return st;
}

static void close_all(state *s)
{
    mla_corpus_free(&s->text);
    mla_corpus_free(&s->judge);
    mla_rt_close(s->rt);
    mla_model_close(s->model);
    mla_pool_free(s->pool);
    mla_backend_close(s->be);
}

static mla_status calibrate(cli *c, args *a, mla_err *err)
{
    state s = {0};
    mla_cal cal = {0};
    a->o.log = &c->log;
    mla_status st = open_all(&s, c, a, err);
    if (st == MLA_OK) {
        mla_cal_spelling sp = mla_cal_spelling_of(mla_model_config(s.model));
        mla_cal_consumer who = MLA_CAL_FOR_SELF;
        if (a->consumer) {
            (void)mla_cal_consumer_parse(a->consumer, &who); /* the choice was checked */
            sp = mla_cal_consumer_spelling(who, mla_model_config(s.model));
        }
        if (a->spelling) (void)mla_cal_spelling_parse(a->spelling, &sp); /* the choice was checked */
        size_t n = s.text.ids.n < a->tokens ? s.text.ids.n : a->tokens, nj = s.judge.ids.n < a->judge_tokens ? s.judge.ids.n : a->judge_tokens;
        a->o.pool = s.pool;
        if (a->o.keep) st = keep_key(a->o.keep_key, c, a, &s, n, err);
        if (st == MLA_OK) st = mla_cal_measure(&cal, s.rt, s.text.ids.id, n, sp, &a->o, err);
        if (st == MLA_OK) {
            memcpy(cal.corpus_sha256, s.text.sha256, 32);
            cal.has_corpus_sha256 = true;
        }
        if (st == MLA_OK && nj) st = mla_cal_judge(&cal, s.rt, s.judge.ids.id, nj, err);
        if (st == MLA_OK && !a->dry_run) st = mla_cal_write(&cal, s.model, sp, err);
        if (st == MLA_OK && !a->dry_run) st = mla_cal_side_files(&cal, s.model, who, err);
        if (st == MLA_OK && !a->dry_run) st = renew_receipt(c->arg[0], &cal, s.pool, err);
        if (st == MLA_OK && a->o.keep) (void)unlink(a->o.keep); /* done: nothing to go on with */
        if (st == MLA_OK) st = answer(c, &cal, err);
        if (st == MLA_OK && a->max_kld > 0 && nj && !(cal.verdict.kld_mean <= a->max_kld))
            st = mla_fail(err, MLA_EDIFFER, "mean KL divergence of the %s cache %.6f, at most %g allowed", cal.keys16 ? "fp8-keys16" : "FP8", cal.verdict.kld_mean, a->max_kld);
        mla_cal_free(&cal);
    }
    close_all(&s);
    return st;
}

mla_status cmd_calibrate_fp8(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {.tokens = 32768, .judge_tokens = 8192};
    static const char M[] = "measuring", J[] = "judging", W[] = "writing";
    const cli_option opt[] = {
        {"corpus", 0, CLI_LIST, &a.corpus, "FILE", "text, jsonl or token ids to measure ranges on", "the bundled corpus", M},
        {"tokens", 0, CLI_SIZE, &a.tokens, "N", "measure on at most N tokens", "32768", M},
        {"row-tokens", 0, CLI_SIZE, &a.o.row_tokens, "N", "tokens of one sequence, each from position 0", "1024", M},
        {"keep", 0, CLI_STR, &a.o.keep, "FILE", "keep what is measured in FILE after every pass (8192 tokens or more), outside of MODEL; the same command goes on from there "
         "after a kill, to the same bytes, and removes FILE at its end", NULL, M},
        {"percentile", 0, CLI_DOUBLE, &a.o.percentile, "P", "use this percentile of |x| instead of the largest value", NULL, M},
        {"headroom", 0, CLI_DOUBLE, &a.o.headroom, "F", "room above the measured range, a factor", "1.5", M},
        {"precision", 0, CLI_CHOICE, &a.precision, "reference|fast", "arithmetic of the passes: f32, or bf16 weights", "reference", M},
        {"stream-layers", 0, CLI_FLAG, &a.stream, NULL, "hold one layer's weights at a time", NULL, M},
        {"judge-corpus", 0, CLI_LIST, &a.judge, "FILE", "text for the comparison of the FP8 cache with a bf16 cache", "the bundled tune text", J},
        {"judge-tokens", 0, CLI_SIZE, &a.judge_tokens, "N", "compare on at most N tokens; 0: do not compare", "8192", J},
        {"kv-dtype", 0, CLI_CHOICE, &a.cache, "fp8|fp8-keys16", "the cache to judge, and to record as the one the scales are meant for; fp8-keys16: rotary keys (or "
         "keys beside values) stay bf16; the scales are the same", "fp8", J},
        {"max-kld", 0, CLI_DOUBLE, &a.max_kld, "X", "exit 1 when the mean KL divergence (nats) is larger", "not gated", J},
        {"spelling", 0, CLI_CHOICE, &a.spelling, "compressed-tensors|modelopt", "names of the scales of a GQA model; a retrofit has its own",
         "as the model's quantization method asks", W},
        {"consumer", 0, CLI_CHOICE, &a.consumer, "mla-toolkit|vllm|vllm-remap|sglang|tensorrt-llm", "the engine that is to read the scales of a GQA model: decides "
         "their names, and writes kv_cache_scales.json (sglang) or hf_quant_config.json (tensorrt-llm); mla-verify receipts --consumer replays its loading",
         "mla-toolkit", W},
        {"dry-run", 0, CLI_FLAG, &a.dry_run, NULL, "measure and compare, write nothing", NULL, W},
    };
    const cli_spec spec = {.args = "MODEL",
                           .about = "Measures what MODEL caches over real text (every layer must be observed), chooses one FP8 scale per layer and part, "
                                    "compares an FP8 cache with a bf16 cache, and writes the scales into the folder: tensors, side file, index, config and "
                                    "receipt. Scales are read back and checked.",
                           .opt = opt, .nopt = sizeof opt / sizeof *opt, .min_args = 1, .max_args = 1, .common = CLI_JSON | CLI_DEVICE};
    mla_status st = cli_parse(c, &spec, argc, argv, err) ? calibrate(c, &a, err) : err->status;
    cli_list_free(&a.corpus);
    cli_list_free(&a.judge);
    return st;
}
