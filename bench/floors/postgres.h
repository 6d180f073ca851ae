/* SPDX-License-Identifier: MIT */
#ifndef DIBS_BENCH_FLOORS_POSTGRES_H
#define DIBS_BENCH_FLOORS_POSTGRES_H
/* What the bookings (postgres_book.c) and the rest (postgres.c) share. */
#include "floor.h"

#include <libpq-fe.h>

enum statement {
  BEGIN,
  COMMIT,
  ROLLBACK,
  READ,
  READ_LOCKED,
  WRITE,
  WRITE_IF_VERSION,
  INSERT,
  COUNT_UP,
  COUNT_UP_CHECKED,
  BOOK,
  BOOK_IF_VERSION,
  COUNT_MANY,
  INSERT_MANY,
  BOOK_MANY,
  LOCK,
  UNLOCK,
  ACQUIRE,
  RELEASE,
  CLAIM_TASKS,
  DELETE_TASKS,
  STATEMENTS
};

/* The head of a one-dimensional array in binary; then its elements, each after its length. */
enum { ARRAY_HEAD = 20, UUID_OID = 2950, INT4_OID = 23, UUID_SIZE = 16, INT4_SIZE = 4, LENGTH_SIZE = 4 };

struct link {
  struct floor_link base;
  PGconn *pg;
  char version[32];
  char uuids[ARRAY_HEAD + FLOOR_BATCH_MOST * (LENGTH_SIZE + UUID_SIZE)];
  char owners[ARRAY_HEAD + FLOOR_BATCH_MOST * (LENGTH_SIZE + INT4_SIZE)];
};

enum { PARAMS_MOST = 4 };
struct params {
  int count;
  const char *values[PARAMS_MOST];
  int lengths[PARAMS_MOST];
};
/* The bit of the statement in floor_strategy.prepared. */
#define FLOOR_PG_BIT(s) (1u << (s))

extern const int floor_pg_binary[PARAMS_MOST];
extern const struct params floor_pg_none;

void floor_pg_add(struct params *p, const void *value, size_t size);
/* Reads an int8 of the first row, in binary. */
int64_t floor_pg_number(const PGresult *got, int column);
/* How many rows were returned or changed. */
long floor_pg_changed(PGresult *got);
const char *floor_pg_name(enum statement s, char name[8]);
bool floor_pg_fine(const PGresult *got);
/* The meaning of a failed result; NULL: the connection failed. */
enum floor_answer floor_pg_failed(struct link *l, const PGresult *got);
/* FLOOR_DONE, and *rows: how many were returned or changed. The caller clears *got, if wanted, also after a failure. */
enum floor_answer floor_pg_request(struct link *l, enum statement s, const struct params *p, long *rows,
                                   PGresult **got);

extern const struct floor_strategy floor_pg_strategies[]; /* up to one without a name */
bool floor_pg_pipelined(const struct floor_strategy *strategy);

#endif
