/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SQLITE_BED_H
#define DIBS_TEST_SQLITE_BED_H
/*
 * Helpers of the tests of the SQLite driver: a folder for each test, stores in it, one-line operations, and files as
 * bytes.
 */
#include "drivers/sqlite/sqlite.h"
#include "store/uri.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BED_MS = 10000 };
extern int bed_ms; /* how long a call may take; BED_MS by default */

struct bed {
  char folder[128];
  char path[160]; /* the path of the database */
  struct dibs__result reported;
};
int bed_begin(void **state);
int bed_end(void **state);
/* The same for tests that need another folder. */
void bed_make(struct bed *bed, const char *within);
void bed_remove(struct bed *bed);

/* An open store with one session. */
struct slot {
  struct bed *bed;
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
  struct dibs__result reported;
  dibs__mandate mandates[DIBS__BUCKETS];
};
/* The driver's answer; clears everything unless OK. */
dibs__status slot_try(struct bed *bed, struct slot *slot);
dibs__status slot_try_at(struct bed *bed, const char *path, struct slot *slot);
void slot_open(struct bed *bed, struct slot *slot); /* fails the test if it cannot open */
void slot_close(struct slot *slot);
/* Reconnects if the last call reported a dead session.  false: cannot connect. */
bool slot_mandate_followed(struct slot *slot);

dibs__id bed_id(int n);
dibs__tick bed_by(void);

/* One operation under the mandate that the slot knows; follows MOVED once if `follow`. */
dibs__status slot_run(struct slot *slot, struct dibs__op *op);
struct dibs__lease_op slot_acquire(struct slot *slot, const char *name, int id);
struct dibs__lease_op slot_queue(struct slot *slot, const char *name, int id);
struct dibs__lease_op slot_renew(struct slot *slot, const char *name, int id, dibs__fence fence);
struct dibs__lease_op slot_release(struct slot *slot, const char *name, int id, dibs__fence fence);
struct dibs__record_op slot_save(struct slot *slot, const char *key, int id, dibs__fence fence, const char *data);
struct dibs__record_op slot_load(struct slot *slot, const char *key); /* the caller frees `got` */
dibs__mandate slot_mandate(struct slot *slot, const char *name);      /* the current mandate of the store */

/* ---- Files ---- */

/* All files of a folder with their content, as one checksum and a list of names. */
struct sight {
  uint64_t sum;
  size_t files;
  char names[512];
};
struct sight bed_sight(const struct bed *bed);
void expect_same_sight(const struct bed *bed, const struct sight *before);
void bed_write(const char *path, const void *data, size_t size);
void bed_copy(const char *from, const char *to);
/* Runs SQL on the database as another program does. */
void bed_sql(const char *path, const char *text);
/* Moves everything from the log to the one file. */
void bed_checkpoint(const char *path);

#endif
