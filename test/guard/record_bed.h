/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_GUARD_RECORD_BED_H
#define DIBS_TEST_GUARD_RECORD_BED_H
/*
 * Helpers of the tests of records in users' tables: a store through dibs.h alone, and beside it a connection of the
 * engine's own, as a user's program has.
 *
 * A program takes the store's URI: "sqlite:" becomes a file in a folder of its own; a server's URI is used unchanged,
 * with tables that each case creates itself.
 */
#include "dibs/admin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* An engine and its client, as a user's program has them. */
struct engine {
  const char *scheme;
  const char *number, *text, *long_text, *uuid; /* types of columns in this engine's SQL */
  const char *instants[3];                      /* from the finest to the coarsest */
  const char *schema;                           /* "main": a table may be called schema.table */
  void *(*open)(const char *uri);
  void (*close)(void *connection);
  /* Runs SQL, and fails the test if it fails. `cell` receives the first cell of the first row (malloc'd); NULL:
   * none.  Returns how many rows it changed. */
  long (*run)(void *connection, const char *text, char **cell);
  dibs_status (*inside)(dibs_store *store, void *connection, dibs_store **inside, dibs_error *error);
};
extern const struct engine engine_sqlite, engine_postgres, engine_mysql;

extern const struct engine *engine;
void bed_begin(int argc, char *argv[]); /* exits with 77 if this engine is not available */
int case_begin(void **state);
int case_end(void **state);
#define TEST(f) cmocka_unit_test_setup_teardown(f, case_begin, case_end)

dibs_store *store_open(void); /* the end of the case closes it, after stores that were opened later */
dibs_store *memory_open(void);
const char *case_uri(void); /* the URI that store_open opens, for processes that open it themselves */
void *connection(void);     /* of the case */
void *another_connection(void);
void bed_reconnect(void); /* after the server was unreachable: reconnects the case's own connection */
long sql(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Valid until the next call. */
const char *cell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A table of the case, dropped at its end: CREATE TABLE name (columns). */
void make_table(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

dibs_table *declare(const dibs_table_options *options);
#define TABLE(...) declare(&(dibs_table_options){.size = sizeof(dibs_table_options), __VA_ARGS__})
dibs_lease *lease_of(dibs_store *store, const char *name);

/* ---- One line each ---- */

struct how {
  int nothing; /* so that the rest of a list may be empty */
  dibs_table *table;
  const char *if_version;
  dibs_lease *lease;
  uint32_t flags;
};
/* The text of the latest answer. */
extern dibs_error reported;
extern dibs_record_result result;
/* NULL unless OK; the end of the case frees it. */
const dibs_record *get_as(dibs_store *store, const char *key, struct how how, dibs_status want);
#define get(store, key, want, ...) get_as(store, key, (struct how){.nothing = 0, ##__VA_ARGS__}, want)
/* Values are texts; NULL is NULL, KEEP keeps. */
extern const char KEEP[];
void put_as(dibs_store *store, const char *key, const char *const *values, size_t count, struct how how,
            dibs_status want);
#define VALUES(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)
#define put(store, key, values, want, ...) put_as(store, key, values, (struct how){.nothing = 0, ##__VA_ARGS__}, want)
void remove_as(dibs_store *store, const char *key, struct how how, dibs_status want);
#define take_away(store, key, want, ...) remove_as(store, key, (struct how){.nothing = 0, ##__VA_ARGS__}, want)

void assert_message(const char *words); /* the latest answer's text contains this */

#endif
