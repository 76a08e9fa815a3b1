#include "lab.h"
Suite *suite_rows(void) { return suite_create("rows"); }
