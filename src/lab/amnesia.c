/* SPDX-License-Identifier: MIT */
/*
 * Amnesia: a Redis loses its memory (FLUSHALL, or a restart without persistence) while a client holds a lock there.
 * The next client gets the same lock at once.  What happens to the data then depends on whether it checks a fence.
 *
 * The numbers are records at the anchor, an embedded store: they outlive the Redis.  Both clients are of this process;
 * each has its own store.
 */
#include "lab/locks.h"
#include "lab/own.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDS_LATE = 1, ADDS_NEXT = 5, TEXT_MAX = 700, WAIT_MS = 20000 };

struct guard {
  const char *key, *title, *text;
  bool by_hand;  /* SET NX PX, and no lease of dibs */
  bool fenced;   /* records check the fence */
  bool promised; /* no addition is lost */
};
static const struct guard guards[] = {
    {"plain", "A lock by hand", "SET NX PX. The Redis that forgot the lock grants it to the next client.", true, false,
     false},
    {"unchecked", "A lease, and writes that check nothing",
     "The lease has a fence, and nothing compares it: the late write is accepted.", false, false, false},
    {"fenced", "A lease, and records that check its fence",
     "The Redis that forgot everything gets another epoch from the anchor, so that the next fence is larger. The "
     "record "
     "was sealed with it, and refuses the late write.",
     false, true, true},
};
enum { GUARDS = sizeof guards / sizeof *guards };

static const struct lab_column columns[] = {
    {"guard", "guard", LAB_TEXT},  {"late_write", "the late write", LAB_TEXT},
    {"value", "value", LAB_COUNT}, {"should_be", "should be", LAB_COUNT},
    {"lost", "lost", LAB_COUNT},   {"verdict", "verdict", LAB_TEXT},
};

struct scene {
  struct lab *lab;
  const struct guard *guard;
  struct lab_own_redis *own;
  struct lab_timeline *timeline;
  dibs_store *store[2];
  struct lab_locks *locks;
  struct lab_lock lock[2];
  dibs_lease *lease[2];
  char key[64];
  int64_t read[2];
  bool late;
};

static void add_step(struct scene *s, int side, enum lab_mood mood, const char *does, const char *gets) {
  dibs__lab_step(&s->lab->sheet, s->timeline, side, mood, does, gets);
}

static bool open_scene(struct scene *s) {
  struct lab *lab = s->lab;
  dibs_error error = {0};
  snprintf(s->key, sizeof s->key, "lab/%u/%s", lab->run, s->guard->key);
  for (int i = 0; i < 2; i++)
    if (dibs__lab_own_tiers_open(s->own, &s->store[i], &error) != DIBS_OK) return dibs__lab_fail(lab, "%s", error.text);
  if (!s->guard->by_hand) return true;
  s->locks = dibs__lab_locks_open(LAB_LOCK_SPIN, s->own->uri, lab->why, sizeof lab->why);
  for (int i = 0; s->locks && i < 2; i++)
    if (!dibs__lab_lock_connect(&s->lock[i], s->locks, lab->why, sizeof lab->why)) return false;
  return s->locks != NULL;
}

static void close_scene(struct scene *s) {
  for (int i = 0; i < 2; i++) {
    dibs__lab_lock_disconnect(&s->lock[i]);
    dibs_lease_free(s->lease[i]);
  }
  dibs__lab_locks_close(s->locks);
  for (int i = 0; i < 2; i++) dibs_close(s->store[i]);
}

static bool take_lock(struct scene *s, int side) {
  dibs_error error = {0};
  char text[TEXT_MAX];
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = 30000, .wait_ms = WAIT_MS, .owner = "lab"};
  dibs_status status = s->guard->by_hand ? dibs__lab_lock_take(&s->lock[side], s->key, WAIT_MS, &error)
                                         : dibs_acquire(s->store[side], s->key, &options, &s->lease[side], &error);
  if (status != DIBS_OK) return dibs__lab_fail(s->lab, "%s", error.text);
  if (s->guard->by_hand)
    snprintf(text, sizeof text, "SET lock ... NX PX %d", LAB_LOCK_TTL_MS);
  else
    snprintf(text, sizeof text, "acquires the lease, fence %" PRIu64, dibs_lease_fence(s->lease[side]).value);
  add_step(s, side, LAB_PLAIN, text, side ? "granted, although the other one has not released it" : "granted");
  if (side == 0 || s->guard->by_hand || dibs_lease_fence(s->lease[1]).value > dibs_lease_fence(s->lease[0]).value)
    return true;
  s->lab->sheet.broken = true;
  add_step(s, side, LAB_BAD, "", "the fence has not grown");
  return true;
}

static dibs_status get_value(struct scene *s, int side, dibs_lease *lease, int64_t *value, dibs_error *error) {
  dibs_record_options options = {.size = sizeof options, .lease = lease};
  dibs_record *record;
  *value = 0;
  dibs_status status = dibs_record_get(s->store[side], s->key, &options, &record, error);
  if (status == DIBS_NOT_FOUND) return DIBS_OK;
  if (status != DIBS_OK) return status;
  if (record->count && record->values[0].data) *value = strtoll(record->values[0].data, NULL, 10);
  dibs_record_free(record);
  return DIBS_OK;
}

static bool read_number(struct scene *s, int side) {
  dibs_error error = {0};
  char text[TEXT_MAX];
  if (get_value(s, side, s->guard->fenced ? s->lease[side] : NULL, &s->read[side], &error) != DIBS_OK)
    return dibs__lab_fail(s->lab, "%s", error.text);
  snprintf(text, sizeof text, "reads %" PRId64, s->read[side]);
  add_step(s, side, LAB_PLAIN, text, s->guard->fenced ? "sealed by the read" : "");
  return true;
}

/* false: an error that is no answer. */
static bool write_number(struct scene *s, int side, int64_t adds, bool *done) {
  dibs_error error = {0};
  char number[24], text[TEXT_MAX], gets[TEXT_MAX];
  int length = snprintf(number, sizeof number, "%" PRId64, s->read[side] + adds);
  dibs_value value = {.data = number, .length = (size_t)length};
  dibs_record_options options = {.size = sizeof options, .flags = DIBS_UNCHECKED};
  if (s->guard->fenced) options = (dibs_record_options){.size = sizeof options, .lease = s->lease[side]};
  dibs_status status = dibs_record_put(s->store[side], s->key, &value, 1, &options, NULL, &error);
  *done = status == DIBS_OK;
  if (!*done && status != DIBS_STALE && status != DIBS_LOST) return dibs__lab_fail(s->lab, "%s", error.text);
  snprintf(text, sizeof text, "adds %" PRId64 ": writes %s", adds, number);
  snprintf(gets, sizeof gets, "%s%s%s", dibs_status_name(status), *done ? "" : ": ", *done ? "" : error.text);
  enum lab_mood late = *done ? (s->guard->promised ? LAB_BAD : LAB_EXPECTED) : LAB_GOOD;
  add_step(s, side, side == 0 ? late : *done ? LAB_PLAIN : LAB_BAD, text, gets);
  return true;
}

static bool forget(struct scene *s) {
  char answer[200];
  const char *words[] = {"FLUSHALL"};
  struct lab_redis *redis = dibs__lab_redis_open(s->own->uri, answer, sizeof answer);
  bool fine = redis && dibs__lab_redis_run(redis, words, 1, answer, sizeof answer) == LAB_REDIS_DONE;
  dibs__lab_redis_close(redis);
  add_step(s, -1, LAB_PLAIN, "FLUSHALL: the Redis has forgotten everything.", "");
  return fine || dibs__lab_fail(s->lab, "the lab's own Redis: %s", answer);
}

static bool judge(struct scene *s, struct lab_table *table, bool wrote) {
  struct lab_sheet *sheet = &s->lab->sheet;
  dibs_error error = {0};
  int64_t value;
  if (get_value(s, 1, NULL, &value, &error) != DIBS_OK) return dibs__lab_fail(s->lab, "%s", error.text);
  int64_t should = (wrote ? ADDS_NEXT : 0) + (s->late ? ADDS_LATE : 0), lost = should - value;
  bool fine = lost == 0 && wrote && !s->late;
  enum lab_mood mood = fine ? LAB_GOOD : s->guard->promised || s->lab->strict ? LAB_BAD : LAB_EXPECTED;
  if (mood == LAB_BAD) sheet->broken = true;
  dibs__lab_put_sum(sheet, s->timeline, table, s->guard->title, s->late, value, should, mood);
  return true;
}

static bool perform(struct scene *s, struct lab_table *table) {
  bool wrote = false;
  s->timeline = dibs__lab_timeline(&s->lab->sheet, s->guard->key, s->guard->title, s->guard->text, "the first client",
                                   "the next client");
  return open_scene(s) && take_lock(s, 0) && read_number(s, 0) && forget(s) && take_lock(s, 1) && read_number(s, 1) &&
         write_number(s, 1, ADDS_NEXT, &wrote) && write_number(s, 0, ADDS_LATE, &s->late) && judge(s, table, wrote);
}

bool dibs__lab_amnesia(struct lab *lab) {
  struct lab_sheet *s = &lab->sheet;
  struct lab_own_redis own = {0};
  s->experiment = "amnesia";
  dibs__lab_title(s, "A Redis that forgot",
                  "A client holds a lock in a Redis and has read a number. The Redis is emptied, as by a restart "
                  "without persistence or a failover to a replica that lags. The next client gets the lock, too, and "
                  "changes the number. Then the first client writes the result that it computed before.");
  bool fine = dibs__lab_own_redis_start(lab, &own);
  struct lab_table *table =
      fine ? dibs__lab_table(s, "guards", "Guards", "", columns, sizeof columns / sizeof *columns) : NULL;
  if (fine) dibs__lab_note(s, "The lab started a Redis of its own, and the anchor of its tiers is an embedded store.");
  lab->steps = GUARDS;
  for (size_t i = 0; fine && i < GUARDS && !dibs__lab_ended(lab); i++) {
    struct scene scene = {.lab = lab, .guard = &guards[i], .own = &own};
    lab->step++;
    lab->run++;
    dibs__lab_report_progress(lab, guards[i].title, 2, 0, 0, 0, 0);
    fine = perform(&scene, table);
    close_scene(&scene);
  }
  dibs__lab_own_redis_end(&own);
  return fine || dibs__lab_ended(lab);
}
