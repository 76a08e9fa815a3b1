/* mla-calibrate fold: KV scales moved into the weights, so that an FP8 cache at scale 1.0 is right. */
#include "calibrate.h"
#include "calibrate/fold.h"

static void text(const void *what, mla_str *out)
{
    const mla_fold_sum *s = what;
    mla_str_printf(out, "folded       %zu layers, %zu tensors in %zu weight files rewritten\nrounded      %zu values, by at most %.3g of their own size\n", s->layers,
                   s->tensors, s->rewritten, s->rounded, s->worst);
}

static void json(const void *what, mla_jv *o)
{
    const mla_fold_sum *s = what;
    mla_jv_set_str(o, "schema", "mla-fold/1");
    mla_jv_set_size(o, "layers", s->layers);
    mla_jv_set_size(o, "tensors", s->tensors);
    mla_jv_set_size(o, "weight_files_rewritten", s->rewritten);
    mla_jv_set_size(o, "values_rounded", s->rounded);
    mla_jv_set_f64(o, "largest_relative_change", s->worst);
}

mla_status cmd_calibrate_fold(cli *c, int argc, char **argv, mla_err *err)
{
    const cli_spec spec = {.args = "MODEL OUT",
                           .about = "Writes the new folder OUT, MODEL with its FP8 KV scales folded into the weights as powers of two (v_proj and o_proj, k_norm "
                                    "and q_norm, latent encoder and decoder): an engine that loads no scale then caches rightly at 1.0. Weight files that do "
                                    "not change are linked. Compare the two with mla-verify parity OUT --against MODEL.",
                           .min_args = 2, .max_args = 2, .common = CLI_JSON};
    if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
    mla_model *m;
    mla_fold_sum sum;
    mla_status st = mla_model_open(&m, c->arg[0], err);
    if (st != MLA_OK) return st;
    st = mla_fold(m, c->arg[1], &c->log, &sum, err);
    if (st == MLA_OK) st = cli_answer(c, text, json, &sum, err);
    mla_model_close(m);
    return st;
}
