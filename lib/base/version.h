/* The toolkit's version: printed by --version and written into receipts and reports. */
#ifndef MLA_BASE_VERSION_H
#define MLA_BASE_VERSION_H

#define MLA_VERSION "0.1.0"
#define MLA_TOOL "mla-toolkit"

#endif
