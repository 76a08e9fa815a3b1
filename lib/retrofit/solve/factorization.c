/* What all layers' factors are as a result: freed, written to a receipt, shown as a table. */
#include "retrofit/solve/factorize.h"

#include "base/alloc.h"

void mla_factorization_free(mla_factorization *f)
{
    for (size_t i = 0; i < f->layers; i++) {
        if (f->factors) mla_factors_free(&f->factors[i]);
        if (f->result) mla_free(f->result[i].spectrum);
        if (f->nested) mla_nested_free(&f->nested[i]);
    }
    mla_free(f->nested);
    mla_free(f->refined);
    mla_free(f->factors);
    mla_free(f->result);
    *f = (mla_factorization){0};
}

void mla_factorization_to_json(const mla_factorization *f, mla_jv *arr)
{
    for (size_t i = 0; i < f->layers; i++) {
        const mla_layer_result *r = &f->result[i];
        mla_jv *o = mla_jv_add_obj(arr);
        mla_jv_set_size(o, "layer", r->layer);
        mla_jv_set_size(o, "rank", r->rank);
        if (r->rotary) mla_jv_set_size(o, "rotary_values", r->rotary);
        if (r->predicted >= 0) mla_jv_set_f64(o, "predicted_loss", r->predicted);
        if (r->exact >= 0) mla_jv_set_f64(o, "stored_loss", r->exact);
        if (r->held_out >= 0) mla_jv_set_f64(o, "held_out_loss", r->held_out);
        mla_jv_set_f64(o, "energy", r->energy);
        mla_jv_set_f64(o, "key_share", r->k_share);
        if (r->refined) {
            mla_jv *l = mla_jv_set_obj(o, "output_error"); /* of the layer's own output, held-out rows */
            mla_jv_set_f64(l, "closed_form", r->local.before);
            mla_jv_set_f64(l, "refined", r->local.after);
            mla_jv_set_f64(l, "stored", r->local.stored);
            mla_jv_set_bool(l, "kept", r->local.accepted);
        }
        mla_jv_set_size(o, "metric_floor_hits", r->floored);
    }
}

/* A share in `width` columns and a percent sign; a dash where it was not measured. */
static void put_percent(mla_str *out, int width, double share)
{
    if (share >= 0) mla_str_printf(out, "%*.3g%% ", width, 100 * share);
    else mla_str_printf(out, "%*s ", width + 1, "-");
}

void mla_factorization_table(const mla_factorization *f, mla_str *out)
{
    bool local = false, rotary = false;
    for (size_t i = 0; i < f->layers; i++) local = local || f->result[i].refined, rotary = rotary || f->result[i].rotary;
    mla_str_put(out, rotary ? "layer   rank  rotary" : "layer   rank");
    mla_str_put(out, "   predicted loss   as stored   held-out loss   keys' share");
    mla_str_put(out, local ? "   output error: closed form, refined\n" : "\n");
    for (size_t i = 0; i < f->layers; i++) {
        const mla_layer_result *r = &f->result[i];
        mla_str_printf(out, "%5zu %6zu ", r->layer, r->rank);
        if (rotary) mla_str_printf(out, "%7zu ", r->rotary);
        put_percent(out, 15, r->predicted);
        put_percent(out, 10, r->exact);
        put_percent(out, 14, r->held_out);
        if (r->predicted >= 0) mla_str_printf(out, "%12.1f%%", 100 * r->k_share);
        else mla_str_put(out, "           -");
        if (r->refined) mla_str_printf(out, " %21.3g%% %8.3g%%%s", 100 * r->local.before, 100 * r->local.after, r->local.accepted ? "" : " (not kept)");
        mla_str_put(out, "\n");
    }
}
