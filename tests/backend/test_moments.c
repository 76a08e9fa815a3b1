#include "lab.h"
Suite *suite_moments(void) { return suite_create("moments"); }
