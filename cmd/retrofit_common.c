/* Options and set-up that the subcommands of mla-retrofit share. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "io/sha256.h"
#include "retrofit.h"
#include "retrofit/build/report.h"

size_t retrofit_options(retrofit_args *a, cli_option *opt, bool text)
{
    const cli_option recipe[] = {
        {.name = "keep", .kind = CLI_DOUBLE, .target = &a->keep, .metavar = "F", .group = "what to build",
         .help = "cached values per token as a fraction of the base's, rotary keys counted (one of --keep, --rank, --kv-bytes)"},
        {.name = "rank", .kind = CLI_SIZE, .target = &a->rank, .metavar = "N", .group = "what to build",
         .help = "latent values per token and layer, over all groups"},
        {.name = "kv-bytes", .kind = CLI_SIZE, .target = &a->kv_bytes, .metavar = "N", .group = "what to build",
         .help = "KV bytes per token over all layers, cached in bf16"},
        {.name = "groups", .kind = CLI_SIZE, .target = &a->groups, .metavar = "G", .group = "what to build", .def = "1",
         .help = "latent groups: 1 is MLA, G is GLA-G; must divide the KV heads"},
        {.name = "layout", .kind = CLI_CHOICE, .target = &a->layout, .metavar = "auto|n|p|shared-rotary|rebuild|absorbed-rope|deepseek", .group = "what to build", .def = "auto",
         .help = "n: latent of NoPE keys and values beside exact rotary keys; p: as n, of keys before their norm, with one score divisor per token and KV head; shared-rotary: latent and shared rotary keys linear in the layer's input; rebuild: keys rebuilt before RoPE; absorbed-rope: rotary keys "
                 "shared by the heads, the rest of the keys in the latent without rotation; deepseek: the same as a stock DeepSeek-V3 model "
                 "(no QK-norm); auto: n where RoPE is partial, else rebuild"},
        {.name = "rotary-width", .kind = CLI_SIZE, .target = &a->rotary_width, .metavar = "N", .group = "what to build",
         .help = "rotary values per token of absorbed-rope (default: each layer its own share of the budget; with uniform ranks the one of least predicted loss) and deepseek (default: one key per frequency)"},
        {.name = "freq-fold", .kind = CLI_SIZE, .target = &a->freq_fold, .metavar = "M", .group = "what to build", .def = "1",
         .help = "FreqFold of absorbed-rope and deepseek: M neighbouring frequencies turn as one; not for multi-axis RoPE"},
        {.name = "rotary-keys", .kind = CLI_SIZE, .target = &a->rotary_keys, .metavar = "R", .group = "what to build", 
         .help = "shared rotary keys per frequency, 1 to the KV heads: layout n with shared keys (then absorbed-rope), or layout shared-rotary (default 1, what its plugin serves)"},
        {.name = "recipe", .kind = CLI_STR, .target = &a->recipe, .metavar = "FILE", .group = "what to build",
         .help = "recipe JSON (configs/README.md); options given here override its fields"},
        {.name = "objective", .kind = CLI_CHOICE, .target = &a->objective, .metavar = "ours|svd|joint-svd|cov-separate|balanced-pca",
         .group = "what to build", .def = "ours",
         .help = "what the factors minimize; all but ours are published methods for comparison (docs/quality.md)"},
        {.name = "balance", .kind = CLI_STR, .target = &a->balance, .metavar = "B|scan", .group = "what to build",
         .help = "factor on the key part of the objective; scan: the one of five that loses least on held-out text; the default is the layout's own"},
        {.name = "factors-dtype", .kind = CLI_CHOICE, .target = &a->factors_dtype, .metavar = "auto|bfloat16|float32", .group = "what to build",
         .def = "auto", .help = "stored precision of encoder and decoder; auto: bf16 where its rounding costs less than 5 % of what the rank loses"},
        {.name = "allocation", .kind = CLI_CHOICE, .target = &a->allocation, .metavar = "auto|uniform|spectrum|probe", .group = "what to build",
         .def = "auto", .help = "one rank for all layers, or ranks under the same total by the layers' spectra, or by spectra and the measured sensitivity of each layer (forward passes over held-out text with only that layer compressed); auto: probe where there is such text"},
        {.name = "allocation-rounds", .kind = CLI_SIZE, .target = &a->rounds, .metavar = "N", .group = "what to build", .def = "2",
         .help = "rounds of probing, each at the ranks of the one before"},
        {.name = "refine-steps", .kind = CLI_SIZE, .target = &a->refine_steps, .metavar = "N", .group = "what to build", .def = "125",
         .help = "steps of local refinement per layer, against the layer's own output; 0: none"},
        {.name = "sequential", .kind = CLI_FLAG, .target = &a->sequential, .group = "what to build",
         .help = "fit each layer to the features that it gets behind compressed earlier layers, where that lowers its error on held-out text (layouts n and rebuild; a pass over the refinement's text per layer)"},
        {.name = "fast", .kind = CLI_FLAG, .target = &a->fast, .group = "what to build",
         .help = "uniform ranks and no refinement: the closed form alone, several times quicker; other options still override"},
        {.name = "rank-set", .kind = CLI_STR, .target = &a->rank_set, .metavar = "R,R,...", .group = "what to build",
         .help = "ranks that layers may have; layout p's own are 256, 768 and 1792 of 1792, scaled to the model"},
        {.name = "names", .kind = CLI_CHOICE, .target = &a->names, .metavar = "mla|mvla", .group = "what to build", .def = "mla",
         .help = "spelling of architecture and config keys; mvla: the older one, Qwen3_5MVLAAbsorbedForCausalLM with mvla_* keys"},
    };
    const cli_option corpus[] = {
        {.name = "corpus", .kind = CLI_LIST, .target = &a->corpus, .metavar = "FILE", .group = "calibration",
         .help = "text, .jsonl with a text field, or token ids", .def = "the bundled corpus"},
        {.name = "held-out", .kind = CLI_STR, .target = &a->held_out, .metavar = "FILE", .group = "calibration",
         .help = "text for held-out losses; without it every 8th row of --corpus is held out"},
        {.name = "calibration-tokens", .kind = CLI_SIZE, .target = &a->tokens, .metavar = "N", .group = "calibration", .def = "131072",
         .help = "use at most N tokens of the corpus"},
        {.name = "row-tokens", .kind = CLI_SIZE, .target = &a->row_tokens, .metavar = "N", .group = "calibration", .def = "512",
         .help = "tokens per calibration sequence"},
        {.name = "precision", .kind = CLI_CHOICE, .target = &a->precision, .metavar = "reference|fast", .group = "calibration", .def = "reference",
         .help = "arithmetic of the calibration pass: f32, or bf16 weights"},
        {.name = "stream-layers", .kind = CLI_FLAG, .target = &a->stream, .group = "calibration",
         .help = "hold one layer's weights at a time instead of the whole model"},
        {.name = "force", .kind = CLI_FLAG, .target = &a->force, .group = "calibration",
         .help = "accept fewer calibration tokens than 10 per latent feature"},
    };
    a->refine_steps = SIZE_MAX;
    size_t n = sizeof recipe / sizeof *recipe, m = sizeof corpus / sizeof *corpus;
    _Static_assert(sizeof recipe / sizeof *recipe + sizeof corpus / sizeof *corpus <= RETROFIT_OPTIONS, "room for all options");
    memcpy(opt, recipe, sizeof recipe);
    if (text) memcpy(opt + n, corpus, sizeof corpus);
    return text ? n + m : n;
}

static bool read_positive(const char *s, double *out)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && !*end && isfinite(*out) && *out > 0;
}

mla_status retrofit_sizes(size_t *out, size_t *n, size_t max, const char *text, mla_err *err)
{
    *n = 0;
    for (const char *p = text;; p++) {
        size_t v = 0, digits = 0;
        for (; *p >= '0' && *p <= '9' && digits < 9; p++, digits++) v = 10 * v + (size_t)(*p - '0');
        if (!digits || (*p && *p != ',') || *n == max)
            return mla_fail(err, MLA_EINVAL, "ranks \"%s\": expected at most %zu numbers separated by commas", text, max);
        out[(*n)++] = v;
        if (!*p) return MLA_OK;
    }
}

size_t retrofit_report_options(retrofit_args *a, cli_option *opt)
{
    opt[0] = (cli_option){.name = "report", .kind = CLI_STR, .target = &a->report, .metavar = "DIR", .group = "report files",
                          .help = "write report.md and charts of spectra, ranks, keys' share and losses into DIR (docs/reports.md)"};
    opt[1] = (cli_option){.name = "held-out-stats", .kind = CLI_STR, .target = &a->held_stats, .metavar = "FILE", .group = "report files",
                          .help = "statistics of other text (mla-retrofit stats), for the held-out losses"};
    return RETROFIT_REPORT_OPTIONS;
}

mla_status retrofit_recipe(mla_recipe *r, const retrofit_args *a, mla_err *err)
{
    *r = mla_recipe_default();
    if (a->recipe) {
        mla_status st = mla_recipe_read(r, a->recipe, err);
        if (st != MLA_OK) return st;
    }
    if (a->keep < 0) return mla_fail(err, MLA_EINVAL, "--keep %g: a fraction in (0, 1]", a->keep);
    if (a->keep > 0 || a->rank || a->kv_bytes) r->budget = (mla_budget){.keep = a->keep, .rank = a->rank, .kv_bytes = a->kv_bytes};
    if (a->groups) r->groups = a->groups;
    if (a->layout) (void)mla_recipe_layout(a->layout, &r->layout); /* the choice was checked */
    if (a->objective) (void)mla_objective_parse(a->objective, &r->objective);
    if (a->balance && (r->balance_scan = !strcmp(a->balance, "scan"))) r->balance = 0;
    else if (a->balance && !(read_positive(a->balance, &r->balance))) return mla_fail(err, MLA_EINVAL, "--balance %.40s: a positive number, or scan", a->balance);
    if (a->sequential) r->sequential = true;
    if (a->rotary_keys) r->rotary_keys = a->rotary_keys;
    if (a->rotary_width) r->rotary_width = a->rotary_width;
    if (a->freq_fold) r->freq_fold = a->freq_fold;
    if (a->factors_dtype) (void)mla_factors_dtype_parse(a->factors_dtype, &r->factors_dtype);
    if (a->fast) mla_recipe_fast(r);
    if (a->rounds) r->allocation_rounds = a->rounds;
    if (a->refine_steps != SIZE_MAX) r->refine_steps = a->refine_steps;
    if (a->allocation) (void)mla_allocation_parse(a->allocation, &r->allocation);
    if (a->names) r->old_names = !strcmp(a->names, "mvla");
    if (a->rank_set) {
        mla_status st = retrofit_sizes(r->rank_set.rank, &r->rank_set.n, MLA_RANK_SET_MAX, a->rank_set, err);
        if (st != MLA_OK) return st;
    }
    if (a->tokens) r->calibration_tokens = a->tokens;
    if (a->row_tokens) r->row_tokens = a->row_tokens;
    return MLA_OK;
}

mla_status retrofit_begin(retrofit_run *r, cli *c, const retrofit_args *a, const char *base, bool text, mla_err *err)
{
    *r = (retrofit_run){.o = {.log = &c->log, .stream_layers = a->stream}};
    r->o.precision = a->precision && !strcmp(a->precision, "fast") ? MLA_PREC_BF16 : MLA_PREC_F32;
    mla_status st = retrofit_recipe(&r->o.recipe, a, err);
    if (st == MLA_OK) st = cli_backend_open(c, &r->o.be, err);
    if (st == MLA_OK) st = mla_pool_new(&r->o.pool, c->threads, err);
    r->o.in = (mla_input_opts){.base = base, .corpus = a->corpus.v, .n_corpus = a->corpus.n, .held_out = a->held_out, .force = a->force,
                               .pool = r->o.pool, .log = &c->log};
    if (st == MLA_OK && text && a->corpus.n == 0) {
        st = cli_data_file(&r->default_corpus, "calib/calibration.jsonl", err);
        if (st == MLA_OK && !a->held_out) st = cli_data_file(&r->default_held_out, "calib/tune.jsonl", err);
        r->corpus1[0] = r->default_corpus;
        r->o.in.corpus = r->corpus1;
        r->o.in.n_corpus = 1;
        if (!a->held_out) r->o.in.held_out = r->default_held_out;
    }
    if (st != MLA_OK) retrofit_end(r);
    return st;
}

void retrofit_end(retrofit_run *r)
{
    mla_pool_free(r->o.pool);
    mla_backend_close(r->o.be);
    mla_free(r->default_corpus);
    mla_free(r->default_held_out);
    r->o.pool = NULL;
    r->o.be = NULL;
    r->default_corpus = r->default_held_out = NULL;
}

typedef struct {
    const mla_build_result *res;
    const char *what;
    char hex[65]; /* root digest */
} built;

static void built_text(const void *what, mla_str *out)
{
    const built *b = what;
    if (b->res->shared.layers) mla_shared_fit_table(&b->res->shared, out);
    else mla_factorization_table(&b->res->f, out);
    mla_str_printf(out, "%s, root digest sha256:%s\n", b->what, b->hex);
}

static void built_json(const void *what, mla_jv *o)
{
    const built *b = what;
    char root[80];
    snprintf(root, sizeof root, "sha256:%s", b->hex);
    mla_jv_set_str(o, "schema", "mla-build/1");
    mla_jv_set_str(o, "root_digest", root);
    mla_recipe_to_json(&b->res->recipe, mla_jv_set_obj(o, "recipe"));
    if (b->res->shared.layers) mla_shared_fit_to_json(&b->res->shared, mla_jv_set_arr(o, "layers"));
    else mla_factorization_to_json(&b->res->f, mla_jv_set_arr(o, "layers"));
}

mla_status retrofit_answer(cli *c, const mla_build_result *res, const char *what, const char *report, mla_err *err)
{
    built b = {.res = res, .what = what};
    if (report && mla_report_write(report, &res->f, &res->recipe, err) != MLA_OK) return err->status;
    mla_hex(res->root, 32, b.hex);
    return cli_answer(c, built_text, built_json, &b, err);
}
