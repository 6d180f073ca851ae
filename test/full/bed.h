/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FULL_BED_H
#define DIBS_TEST_FULL_BED_H
/*
 * A server that gives its clients only a few connections: the limit of a role or user, or maxclients.
 *
 * Each case has a user of its own with its own limit (a Redis has one limit for all clients, so the case has the server
 * to itself), and raw connections of that user which use up the rest.
 */
#include "base/port.h"
#include "dibs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct server {
  const char *scheme;
  bool is_sql;
  /* NULL: the server refuses the connection. */
  void *(*open)(const char *uri);
  void (*close)(void *raw);
  /* Runs a statement and returns the first cell as a number.  Fails the test if the server refuses it. */
  int64_t (*say)(void *raw, const char *text);
  /* Uses the administrator's connection: creates the user and writes its URI. */
  void (*limit)(void *admin, const char *given, const char *user, uint32_t most, char *uri, size_t size);
  void (*unlimit)(void *admin, const char *user);
  /* Connections of the user; ends those that do not wait for a lock, all or the first. */
  uint32_t (*count)(void *admin, const char *user);
  void (*kill)(void *admin, const char *user, bool all);
};
extern const struct server server_postgres, server_mysql, server_redis;
extern const struct server *server;

void bed_begin(int argc, char *argv[]);
int bed_end_case(void **state);
#define TEST(f) cmocka_unit_test_teardown(f, bed_end_case)

/* Allows the case's user this many connections; returns its URI. */
const char *limited(uint32_t most);
dibs_store *open_at(const char *uri); /* the end of the case closes it */
void *admin(void);
void *locker(void); /* another connection of the administrator, for transactions */
const char *user(void);
/* Opens all remaining connections and returns their number; closes one, or all. */
uint32_t fill(void);
void give_one_back(void);
void give_all_back(void);
uint32_t connections(void);
/* Ends connections of the user and opens raw ones in their place, until the user has only raw ones. */
void take_over(void);
int64_t ms_since(dibs__tick from);
dibs_lease *take(dibs_store *store, const char *name, int64_t ttl_ms);
extern dibs_error reported;

#endif
