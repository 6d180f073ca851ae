/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_LAB_PAGE_H
#define DIBS_TEST_LAB_PAGE_H
/*
 * A strict check of a page of the lab: every tag closed, every attribute quoted, ids unique, only known entities, text
 * in UTF-8, nothing loaded from elsewhere, and links to pages of the same folder only.  NULL if the page is correct;
 * otherwise the mistake, valid until the next call.
 */
#include <stddef.h>
const char *page_wrong(const char *html, size_t length);

#endif
