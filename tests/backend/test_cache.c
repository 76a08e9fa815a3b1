#include "lab.h"
Suite *suite_cache(void) { return suite_create("cache"); }
