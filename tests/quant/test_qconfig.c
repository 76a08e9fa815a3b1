#include "suites.h"
Suite *suite_qconfig(void) { return suite_create("qconfig"); }
