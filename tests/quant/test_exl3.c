#include "suites.h"
Suite *suite_exl3(void) { return suite_create("exl3"); }
