/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_TIER_TIERS_BED_H
#define DIBS_TEST_TIER_TIERS_BED_H
/* Servers of the test's own, stores over them, and clients that repeat a request until it is granted. */
#include "base/port.h"
#include "dibs/admin.h"
#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SOON_MS = 15000, TTL_MS = 5000 };

extern dibs_error error; /* message of the latest call */

void command(const char *text);
/* Runs script/servers VERB WHICH in the folder of with.sh --private. */
void servers(const char *verb, const char *which);
/* The value of a variable of script/servers env. */
void server_uri(const char *variable, char *to, size_t size);

dibs_store *open_at(const char *uri);
void fine_at(int line, dibs_status got);
#define FINE(call) fine_at(__LINE__, call)

dibs_status take(dibs_store *store, const char *name, int64_t wait_ms, dibs_lease **lease);
/* Repeats the request until it is granted, as a client does while its store fails. */
dibs_lease *take_in_the_end(dibs_store *store, const char *name);
void give(dibs_lease *lease);

/* How many buckets each of two tiers serves. */
struct seen {
  uint32_t buckets[4];
  int count;
};
struct seen look(dibs_store *store);
void until_on(dibs_store *store, int tier);

#endif
