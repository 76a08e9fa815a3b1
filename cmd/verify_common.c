/* Opening models and writing reports for the subcommands of mla-verify. */
#include "verify_common.h"

#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "io/file.h"
#include "verify/report/report.h"

verify_run verify_run_defaults(void) { return (verify_run){.kv_dtype = "f32", .precision = "reference"}; }

void verify_run_options(verify_run *r, cli_option *out)
{
    static const char *const G = "how the model is run";
    out[0] = (cli_option){"kv-dtype", 0, CLI_CHOICE, &r->kv_dtype, MLA_KV_TYPES, "what the KV cache holds; fp8 needs stored scales; fp8-keys16: fp8, with rotary keys (or keys beside values) in bf16", "f32", G};
    out[1] = (cli_option){"precision", 0, CLI_CHOICE, &r->precision, "reference|fast",
                          "reference: f32 weights, the same bits whatever the threads and chunks; fast: bf16 weights", "reference", G};
    out[2] = (cli_option){"page", 0, CLI_SIZE, &r->page, "N", "tokens per page of the KV cache", "64", G};
    out[3] = (cli_option){"stream-layers", 0, CLI_FLAG, &r->stream, NULL, "hold one layer's weights at a time", NULL, G};
}

mla_kv_type verify_kv_type(const char *name)
{
    mla_kv_type t = {MLA_F32, false};
    (void)mla_kv_type_parse(name, &t); /* the choice was checked */
    return t;
}

mla_status verify_open(verify_model *out, cli *c, const char *path, const verify_run *r, mla_backend *be, mla_err *err)
{
    *out = (verify_model){0};
    mla_status st = mla_model_open(&out->model, path, err);
    if (st != MLA_OK) return st;
    mla_rt_opts o = {
        .precision = !strcmp(r->precision, "fast") ? MLA_PREC_BF16 : MLA_PREC_F32,
        .kv_dtype = verify_kv_type(r->kv_dtype).dtype,
        .keys16 = verify_kv_type(r->kv_dtype).keys16,
        .page_tokens = r->page,
        .stream_layers = r->stream,
        .mtp = r->mtp,
        .gdn_chunk = !strcmp(r->precision, "fast") ? 64 : 0,
        .log = &c->log,
    };
    st = mla_rt_open(&out->rt, out->model, be, &o, err);
    if (st != MLA_OK) verify_close(out);
    return st;
}

mla_status verify_not_usage(mla_status st, mla_err *err)
{
    if (st == MLA_EINVAL) st = err->status = MLA_EUNSUPPORTED;
    return st;
}

void verify_close(verify_model *m)
{
    mla_rt_close(m->rt);
    mla_model_close(m->model);
    *m = (verify_model){0};
}

bool verify_allow_untested(void)
{
    const char *v = getenv("MLA_ALLOW_UNTESTED");
    return v && !strcmp(v, "1");
}

const char *verify_first_reason(const mla_jv *doc, mla_verdict v, const char **name)
{
    for (const mla_jv *g = mla_jv_first(mla_jv_get(doc, "gates")); g; g = mla_jv_next(g))
        if (!strcmp(mla_doc_str(g, "verdict", ""), mla_verdict_name(v))) {
            if (name) *name = mla_doc_str(g, "name", "");
            return mla_doc_str(g, "reason", "");
        }
    if (name) *name = "gate";
    return "no reason given";
}

void verify_put_tool(mla_jv *doc, const cli *c)
{
    mla_jv *t = mla_jv_set_obj(doc, "tool");
    mla_jv_set_str(t, "name", c->program);
    mla_jv_set_str(t, "version", MLA_VERSION);
}

static mla_status write_one(const char *path, mla_status (*fill)(mla_str *, const mla_jv *, mla_err *), const mla_jv *doc, mla_err *err)
{
    if (!path) return MLA_OK;
    mla_str s = MLA_STR_MAX((size_t)1 << 28);
    mla_status st = fill(&s, doc, err);
    if (st == MLA_OK) st = mla_file_write(path, mla_str_c(&s), s.len, err);
    mla_str_free(&s);
    return st;
}

mla_status verify_write(const verify_files *f, const mla_jv *doc, mla_status (*svg)(mla_str *, const mla_jv *, mla_err *), mla_err *err)
{
    mla_status st = write_one(f->junit, mla_report_junit, doc, err);
    if (st == MLA_OK) st = write_one(f->markdown, mla_report_markdown, doc, err);
    if (st == MLA_OK && svg) st = write_one(f->svg, svg, doc, err);
    return st;
}
