/* Safetensors files of one layer's factors and losses, and of plain numbers. */
#include "retrofit/refine/piece.h"

#include <math.h>
#include <string.h>

#include "io/file.h"
#include "io/safetensors.h"
#include "tensor/compare.h"

enum { E, D, MU, ER, RQ, LOSS, PARTS };
static const char *const NAME[PARTS] = {"encoder", "decoder", "mean", "rotary encoder", "rotary query", "loss"};

static void shapes(mla_tensor t[PARTS], const mla_factors *f)
{
    const size_t count[PARTS] = {f->groups * f->r * f->n, f->groups * f->r * f->nd, f->groups * f->n, f->w * f->n / 2, f->w * f->n / 2, 4};
    for (size_t i = 0; i < PARTS; i++) {
        t[i] = (mla_tensor){.name = NAME[i], .dtype = i == LOSS ? MLA_F64 : MLA_F32, .ndim = 1, .shape = {count[i]}};
        t[i].nbytes = count[i] * (i == LOSS ? sizeof(double) : sizeof(float));
    }
}

mla_status mla_piece_write(const char *path, const mla_factors *f, const mla_refined *r, mla_err *err)
{
    mla_tensor t[PARTS];
    double loss[4] = {r->before, r->after, r->stored, r->accepted};
    const void *data[PARTS] = {f->E, f->D, f->mu, f->Er, f->Rq, loss};
    shapes(t, f);
    for (size_t i = 0; i < PARTS; i++) t[i].data = data[i];
    return mla_st_write(path, t, PARTS, NULL, err);
}

bool mla_piece_read(const char *path, mla_factors *f, mla_refined *r)
{
    mla_err why;
    mla_st *file;
    mla_tensor want[PARTS];
    const mla_tensor *got[PARTS];
    double loss[4];
    if (!mla_path_exists(path) || mla_st_open(&file, path, &why) != MLA_OK) return false;
    shapes(want, f);
    bool ok = true;
    for (size_t i = 0; i < PARTS; i++) {
        got[i] = mla_st_find(file, NAME[i]);
        ok = ok && got[i] && got[i]->dtype == want[i].dtype && got[i]->nbytes == want[i].nbytes;
        ok = ok && (i == LOSS || mla_count_nonfinite(got[i]->data, want[i].shape[0], NULL) == 0);
    }
    if (ok) {
        float *const to[LOSS] = {f->E, f->D, f->mu, f->Er, f->Rq};
        for (size_t i = 0; i < LOSS; i++)
            if (want[i].nbytes) memcpy(to[i], got[i]->data, want[i].nbytes);
        memcpy(loss, got[LOSS]->data, sizeof loss);
        *r = (mla_refined){.before = loss[0], .after = loss[1], .stored = loss[2], .accepted = loss[3] != 0};
    }
    mla_st_close(file);
    return ok;
}

mla_status mla_piece_write_numbers(const char *path, const double *x, size_t n, mla_err *err)
{
    mla_tensor t = {.name = "numbers", .dtype = MLA_F64, .ndim = 1, .shape = {n}, .data = x, .nbytes = n * sizeof *x};
    return mla_st_write(path, &t, 1, NULL, err);
}

bool mla_piece_read_numbers(const char *path, double *x, size_t n)
{
    mla_err why;
    mla_st *file;
    if (!mla_path_exists(path) || mla_st_open(&file, path, &why) != MLA_OK) return false;
    const mla_tensor *t = mla_st_find(file, "numbers");
    bool ok = t && t->dtype == MLA_F64 && t->nbytes == n * sizeof *x;
    if (ok) memcpy(x, t->data, t->nbytes);
    for (size_t i = 0; ok && i < n; i++) ok = isfinite(x[i]);
    mla_st_close(file);
    return ok;
}
