/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_GUARD_RECORD_BED_H
#define DIBS_TEST_GUARD_RECORD_BED_H
/*
 * What tests of records in tables of the user's stand on: a store by dibs.h alone, and beside it a connection of the
 * engine's own, as a user has one.
 *
 * A program takes the store's URI: "sqlite:" becomes a file in a folder of its own, a server's is used as it is, with
 * tables that are made anew for each case.
 */
#include "dibs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* An engine as its users see it. */
struct engine {
  const char *scheme;
  const char *number, *text, *long_text, *uuid; /* types of columns */
  const char *instants[3];                      /* from the finest to the coarsest */
  const char *schema;                           /* "main": a table may be called schema.table */
  void *(*open)(const char *uri);
  void (*close)(void *connection);
  /* Fails the test; with `cell`, the first cell of the first row (malloc'd), NULL: none. */
  void (*run)(void *connection, const char *text, char **cell);
};
extern const struct engine engine_sqlite, engine_postgres, engine_mysql;

extern const struct engine *engine;
void bed_begin(int argc, char *argv[]); /* exits with 77 if there is no such engine here */
int case_begin(void **state);
int case_end(void **state);
#define TEST(f) cmocka_unit_test_setup_teardown(f, case_begin, case_end)

dibs_store *store_open(void); /* closed by the case's end, after what was opened later */
dibs_store *memory_open(void);
const char *case_uri(void); /* what store_open opens: for processes, which open their own */
void *connection(void);     /* of the case */
void *another_connection(void);
void bed_reconnect(void); /* after the server was away: the case's own connection is made anew */
void sql(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Until the next call. */
const char *cell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A table of the case, gone at its end: CREATE TABLE name (columns). */
void make_table(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

dibs_table *declare(const dibs_table_options *options);
#define TABLE(...) declare(&(dibs_table_options){.size = sizeof(dibs_table_options), __VA_ARGS__})
dibs_lease *lease_of(dibs_store *store, const char *name);

/* ---- One line each ---- */

struct how {
  int nothing; /* so that a list of the rest may be empty */
  dibs_table *table;
  const char *if_version;
  dibs_lease *lease;
  uint32_t flags;
};
/* The latest answer's words. */
extern dibs_error said;
extern dibs_record_result result;
/* NULL when it is not OK; freed by the case's end. */
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

void assert_says(const char *words); /* said.text has them */

#endif
