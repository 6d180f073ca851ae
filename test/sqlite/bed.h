/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SQLITE_BED_H
#define DIBS_TEST_SQLITE_BED_H
/* What the tests of the SQLite driver stand on: a folder of its own for each, stores opened in it, one-line operations,
 * and files as bytes. */
#include "drivers/sqlite.h"
#include "store/uri.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BED_MS = 10000 };
extern int bed_ms; /* how long a call may take; BED_MS if a test does not say otherwise */

struct bed {
  char folder[128];
  char path[160]; /* of the database */
  struct dibs__said said;
};
int bed_begin(void **state);
int bed_end(void **state);
/* The same for those who need it once more within a test. */
void bed_make(struct bed *bed, const char *within);
void bed_remove(struct bed *bed);

/* An open store with one session. */
struct seat {
  struct bed *bed;
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__said said;
  dibs__mandate mandates[DIBS__BUCKETS];
};
/* As the driver answers; all is cleared unless OK. */
dibs__status seat_try(struct bed *bed, struct seat *seat);
dibs__status seat_try_at(struct bed *bed, const char *path, struct seat *seat);
void seat_open(struct bed *bed, struct seat *seat); /* fails the test if it can't */
void seat_close(struct seat *seat);
/* Disconnects and connects when the last call said that the session is dead.  false: can't connect. */
bool seat_renewed(struct seat *seat);

dibs__id bed_id(int n);
dibs__tick bed_by(void);

/* One operation, under the mandate that the seat knows; follows MOVED once when `follow`. */
dibs__status seat_run(struct seat *seat, struct dibs__op *op);
struct dibs__lease_op seat_acquire(struct seat *seat, const char *name, int id);
struct dibs__lease_op seat_queue(struct seat *seat, const char *name, int id);
struct dibs__lease_op seat_renew(struct seat *seat, const char *name, int id, dibs__fence fence);
struct dibs__lease_op seat_release(struct seat *seat, const char *name, int id, dibs__fence fence);
struct dibs__record_op seat_save(struct seat *seat, const char *key, int id, dibs__fence fence, const char *data);
struct dibs__record_op seat_load(struct seat *seat, const char *key); /* free(got) is the caller's */
dibs__mandate seat_mandate(struct seat *seat, const char *name);      /* as the store has it */

/* ---- Files ---- */

/* All files of a folder, with what is in them, as one sum and a list of names. */
struct sight {
  uint64_t sum;
  size_t files;
  char names[512];
};
struct sight bed_sight(const struct bed *bed);
void expect_same_sight(const struct bed *bed, const struct sight *before);
void bed_write(const char *path, const void *data, size_t size);
void bed_copy(const char *from, const char *to);
/* Runs SQL on the database as a stranger would. */
void bed_sql(const char *path, const char *text);
/* All in the one file, nothing in the log. */
void bed_checkpoint(const char *path);

#endif
