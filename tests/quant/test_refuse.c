#include "suites.h"
Suite *suite_refuse(void) { return suite_create("refuse"); }
