/* Choosing the balance of keys and values (metric.h) by the model's own answer: first-order theory misjudges it at strong
 * compression. All layers are compressed at the uniform rank with each candidate, and the smallest mean KL divergence on
 * held-out text wins: MLA_BALANCE_TRIALS passes, each with a solve of all layers. */
#ifndef MLA_RETROFIT_BALANCE_H
#define MLA_RETROFIT_BALANCE_H
#include "base/log.h"
#include "retrofit/solve/probe.h"
#include "retrofit/solve/solve_all.h"

#define MLA_BALANCE_TRIALS 5  /* 1/4, 1/2, 1, 2, 4 times the layout's default */

typedef struct {
    mla_solve_all_opts solve;
    mla_probe *probe;
    const char *dir;          /* where finished trials are kept for a resumed build; NULL: nowhere */
    mla_log *log;
} mla_balance_opts;

/* sol: scratch of fit->layers solutions; its content on return is of some trial. */
MLA_CHECKED mla_status mla_balance_scan(double *balance, mla_solution *sol, const mla_balance_opts *o, mla_err *err);
#endif
