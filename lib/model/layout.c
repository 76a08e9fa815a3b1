/* The layouts of a retrofit by name: the one table. */
#include <string.h>

#include "model/config.h"

static const char *const NAME[] = {[MLA_LAYOUT_NONE] = "none", [MLA_LAYOUT_N] = "n", [MLA_LAYOUT_REBUILD] = "rebuild"};
_Static_assert(sizeof NAME / sizeof *NAME == MLA_LAYOUTS, "a name for every layout");

const char *mla_layout_name(mla_layout l) { return (unsigned)l < MLA_LAYOUTS ? NAME[l] : "?"; }

bool mla_layout_parse(const char *s, mla_layout *out)
{
    for (int i = MLA_LAYOUT_NONE + 1; i < MLA_LAYOUTS; i++)
        if (!strcmp(s, NAME[i])) {
            *out = (mla_layout)i;
            return true;
        }
    return false;
}
