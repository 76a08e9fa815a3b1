/* For gcc -fanalyzer alone, which looks at one file at a time: the functions that make an error never return MLA_OK. */
#include "base/err.h"
#include "io/msg.h"
#define mla_fail(err, st, ...) (mla_fail(err, st, __VA_ARGS__), (st))
#define mla_sys_fail(err, path, doing) (mla_sys_fail(err, path, doing), MLA_EIO)
