/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_CHECKER_H
#define DIBS_TEST_FAULT_CHECKER_H
/* What the files of the checker share. */
#include "dibs.h"
#include "history.h"

#include <stdarg.h>

/* One request and its outcome.  0: it did not happen, or no process survived to record it. */
struct incarnation {
  uint32_t party, number;
  uint16_t name;
  uint8_t mode;
  int64_t request_at, wait_ms, ttl_ms;
  int64_t grant_at, until;
  uint64_t fence;
  int64_t letting_at, released_at, release_status;
  int64_t gone_at, gone_status;
  int64_t lost_at;
  uint32_t losses;
};

struct write {
  uint16_t name;
  int64_t number, began, ended; /* ended 0: no process survived to record it */
  int64_t status;
  uint64_t fence;
};
struct look {
  uint16_t name;
  int64_t number, began, ended;
};

/* A period in which a party was stopped, or from which on it is dead. */
struct disturbance {
  uint32_t party;   /* 0: the server was stopped or dead, which affects all parties */
  int64_t from, to; /* INT64_MAX: dead */
};

struct check {
  const struct bounds *bounds;
  const int64_t *finals;
  int64_t began, over;
  struct incarnation *lives;
  struct write *writes;
  struct look *looks;
  struct disturbance *disturbances;
  size_t incarnation_count, write_count, look_count, disturbance_count;
  uint32_t party_count, stops, kills, outages, troubles, overtaken;
  int64_t longest_sleep, longest_return; /* until the first grant after the server returned */
  int broken;
};

int broken(struct check *check, const char *rule, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* checker_read.c */
bool check_read(struct check *check, const char *folder);
void check_free(struct check *check);
double check_ms(const struct check *check, int64_t at); /* since the beginning of the run */
struct incarnation **check_lives_of(struct check *check, uint16_t name, size_t *count);
struct incarnation **check_copy(struct incarnation **lives, size_t count);
static inline bool check_concerns(const struct disturbance *d, const struct incarnation *incarnation) {
  return d->party == 0 || d->party == incarnation->party;
}
/* Its party was stopped or killed between its request and its end. */
bool check_disturbed(const struct check *check, const struct incarnation *incarnation);
uint32_t check_overtake_bound(const struct check *check);

/* checker_wake.c: no waiter sleeps while the name is free.  `lives` in the order of their grants. */
void check_wakes(struct check *check, uint16_t name, struct incarnation **lives, size_t count);

/* checker_record.c: no acknowledged increment is lost, and no number that was read decreases. */
void check_records(struct check *check);

#endif
