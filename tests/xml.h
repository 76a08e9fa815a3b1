/* A small well-formedness check for the XML that the toolkit writes: tags nest, attributes are quoted and unique per
 * tag, only known entities, no forbidden characters. */
#ifndef MLA_TESTS_XML_H
#define MLA_TESTS_XML_H
#include <stdbool.h>
#include <stddef.h>

/* NULL when well-formed, else what is wrong (static). counts[0] elements named `tag`. */
const char *xml_check(const char *s, const char *tag, size_t *count);
#endif
