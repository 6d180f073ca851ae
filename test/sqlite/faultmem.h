/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SQLITE_FAULTMEM_H
#define DIBS_TEST_SQLITE_FAULTMEM_H
/* SQLite's allocator with failures: the nth allocation fails, once or from then on. */
#include <stdbool.h>

/* Call it before any other use of SQLite in this process. */
void faultmem_install(void);
void faultmem_arm(unsigned nth, bool for_ever);
unsigned faultmem_failed(void);

#endif
