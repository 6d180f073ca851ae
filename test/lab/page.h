/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LAB_PAGE_H
#define DIBS_TEST_LAB_PAGE_H
/* A strict look at a page of the lab: every tag closed, every attribute quoted, ids unique, only known entities, text
 * in UTF-8, and nothing fetched from anywhere.  NULL when all is well, else what is wrong, until the next call. */
#include <stddef.h>
const char *page_wrong(const char *html, size_t length);

#endif
