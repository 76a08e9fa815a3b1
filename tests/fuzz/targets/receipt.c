/* Receipts: an accepted manifest prints and reads back the same, and names no file outside its folder. The root digest
 * is made right first. */
#include "io/receipt.h"

#include <string.h>

#include "fuzz.h"
#include "verify/folder/receipts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    mla_err err;
    mla_manifest m, again;
    mla_findings f = {0};
    bool present;
    mla_json *d = fuzz_json(data, n), *out;
    (void)mla_receipt_self_ok((const char *)data, n, &present);
    if (!d) return 0;
    fuzz_fix_root(mla_json_root(d));
    mla_status st = mla_manifest_from_json(&m, mla_json_root(d), &err);
    mla_json_free(d);
    if (st != MLA_OK) {
        fuzz_refused(st, &err);
        return 0;
    }
    for (size_t i = 0; i < m.n; i++) {
        if (!mla_path_is_safe_relative(m.file[i].name)) fuzz_broken("a name outside the folder");
        if (i && strcmp(m.file[i - 1].name, m.file[i].name) >= 0) fuzz_broken("names out of order");
    }
    if (mla_json_new_object(&out, &err) != MLA_OK || mla_manifest_to_json(&m, mla_json_root(out), &err) != MLA_OK ||
        mla_manifest_from_json(&again, mla_json_root(out), &err) != MLA_OK)
        fuzz_broken(err.msg);
    mla_manifest_diff(&f, &m, &again);
    if (f.n) fuzz_broken("a manifest differs from itself");
    mla_findings_free(&f);
    mla_manifest_free(&again);
    mla_manifest_free(&m);
    mla_json_free(out);
    return 0;
}
