/* mla-calibrate study: KV-cache formats of one model side by side. */
#include <string.h>

#include "calibrate.h"
#include "calibrate/study.h"
#include "io/file.h"

typedef struct {
    cli_list corpus, judge;
    size_t tokens, judge_tokens;
    mla_cal_opts o;
    const char *precision, *svg;
    bool stream;
} args;

static mla_status answer(const cli *c, const args *a, const mla_study *s, mla_err *err)
{
    mla_str text = MLA_STR_MAX(1 << 20), chart = MLA_STR_MAX(1 << 20);
    mla_json *d = NULL;
    mla_status st = MLA_OK;
    if (a->svg) st = mla_study_svg(&chart, s, err);
    if (st == MLA_OK && a->svg) st = mla_file_write(a->svg, mla_str_c(&chart), chart.len, err);
    if (st == MLA_OK && c->json) {
        st = mla_study_json(&d, s, err);
        if (st == MLA_OK) st = cli_print_json(mla_json_root(d), err);
    } else if (st == MLA_OK) {
        mla_study_text(s, &text);
        st = cli_print(&text, err);
    }
    mla_json_free(d);
    mla_str_free(&text);
    mla_str_free(&chart);
    return st;
}

static mla_status study(cli *c, args *a, mla_err *err)
{
    mla_backend *be = NULL;
    mla_model *m = NULL;
    mla_rt *rt = NULL;
    mla_corpus text = {0}, judge = {0};
    mla_study s;
    a->o.log = &c->log;
    mla_status st = cli_backend_open(c, &be, err);
    if (st == MLA_OK) st = mla_model_open(&m, c->arg[0], err);
    if (st == MLA_OK) st = calibrate_text(&text, m, &a->corpus, "calib/calibration.jsonl", err);
    if (st == MLA_OK) st = calibrate_text(&judge, m, &a->judge, "calib/tune.jsonl", err);
    mla_rt_opts ro = {.precision = a->precision && !strcmp(a->precision, "fast") ? MLA_PREC_BF16 : MLA_PREC_F32, .kv_dtype = MLA_BF16,
                      .stream_layers = a->stream, .log = &c->log};
    if (st == MLA_OK) st = mla_rt_open(&rt, m, be, &ro, err);
    if (st == MLA_OK) {
        mla_study_texts t = {.ids = text.ids.id, .judge = judge.ids.id, .n = text.ids.n < a->tokens ? text.ids.n : a->tokens,
                             .n_judge = judge.ids.n < a->judge_tokens ? judge.ids.n : a->judge_tokens};
        st = mla_study_run(&s, rt, &t, &a->o, err);
    }
    if (st == MLA_OK) st = answer(c, a, &s, err);
    mla_corpus_free(&text);
    mla_corpus_free(&judge);
    mla_rt_close(rt);
    mla_model_close(m);
    mla_backend_close(be);
    return st;
}

mla_status cmd_calibrate_study(cli *c, int argc, char **argv, mla_err *err)
{
    args a = {.tokens = 16384, .judge_tokens = 8192};
    static const char M[] = "measuring", J[] = "judging";
    const cli_option opt[] = {
        {"corpus", 0, CLI_LIST, &a.corpus, "FILE", "text, jsonl or token ids to measure ranges on", "the bundled corpus", M},
        {"tokens", 0, CLI_SIZE, &a.tokens, "N", "measure on at most N tokens", "16384", M},
        {"row-tokens", 0, CLI_SIZE, &a.o.row_tokens, "N", "tokens of one sequence, each from position 0", "1024", M},
        {"headroom", 0, CLI_DOUBLE, &a.o.headroom, "F", "room of the float formats above the measured range, a factor", "1.5", M},
        {"precision", 0, CLI_CHOICE, &a.precision, "reference|fast", "arithmetic of the passes: f32, or bf16 weights", "reference", M},
        {"stream-layers", 0, CLI_FLAG, &a.stream, NULL, "hold one layer's weights at a time", NULL, M},
        {"judge-corpus", 0, CLI_LIST, &a.judge, "FILE", "text for the comparison", "the bundled tune text", J},
        {"judge-tokens", 0, CLI_SIZE, &a.judge_tokens, "N", "compare on at most N tokens", "8192", J},
        {"svg", 0, CLI_STR, &a.svg, "FILE", "write a chart of the mean KL divergences", NULL, "files"},
    };
    const cli_spec spec = {.args = "MODEL",
                           .about = "Compares KV-cache formats of MODEL, a base or a retrofit, with an f32 cache on the same text: KL divergence, top-1 "
                                    "agreement and bytes per token of bf16, FP8 and int8 (a scale per layer and part, per KV head or 64 latent values, per "
                                    "token and head) and NVFP4. Formats are rounded by their definitions; nothing is written into the model.",
                           .opt = opt, .nopt = sizeof opt / sizeof *opt, .min_args = 1, .max_args = 1, .common = CLI_JSON | CLI_DEVICE};
    mla_status st = cli_parse(c, &spec, argc, argv, err) ? study(c, &a, err) : err->status;
    cli_list_free(&a.corpus);
    cli_list_free(&a.judge);
    return st;
}
