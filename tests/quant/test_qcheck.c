#include "suites.h"
Suite *suite_qcheck(void) { return suite_create("qcheck"); }
