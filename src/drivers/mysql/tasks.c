/* SPDX-License-Identifier: MIT */
/*
 * Waking the workers of other processes.
 *
 * Mail for each idle worker would cost a flush of the log for each task.  Instead a notifier whose process waits for
 * tasks of a kind holds one of the kind's few user locks:
 *
 *   dibs.t.KIND.SLOT    KIND: a digest of the database, the prefix and the kind; SLOT: below DIBS__MYSQL_SLOTS
 *
 * After a COMMIT that made tasks ready, the client reads which connections hold locks of the kind (IS_USED_LOCK, in the
 * server's memory) and ends the sleep of as many as there are new tasks (KILL QUERY).  The notifier takes that as
 * DIBS__EV_TASKS and gives the locks back, and takes one again not before DIBS__MYSQL_TASKS_PAUSE_MS, and only if a
 * claim of this kind has found less than it wanted since: a busy worker is not woken.
 *
 * So the server sees, for each kind, at most DIBS__MYSQL_SLOTS wake-ups in this pause, however many processes wait and
 * however many tasks are added.  Processes that find all locks taken look for a free one every five to ten seconds,
 * and poll.
 *
 * A KILL ends a sleep only if the server has begun it.  So the notifier gives one more event after it has sent the
 * sleep: the worker claims once more, and finds what was added meanwhile.  If the server begins the sleep only after
 * that claim, a task that is added between them waits for the poll.
 */
#include "drivers/mysql/mysql_impl.h"
#include "store/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dibs__sql_rc sql_rc;
typedef struct dibs__mysql_tasks tasks_t;

enum { NAME = 48 };

/* ---- Kinds ---- */

static uint64_t add_to_digest(uint64_t digest, const char *text, size_t length) {
  for (size_t i = 0; i < length; i++) digest = (digest ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
  return (digest ^ 0xff) * UINT64_C(0x100000001b3); /* where the text ends: no text has this byte */
}

/* The same in all processes.  Two kinds with one digest would be woken together.  0 is no kind. */
static uint64_t digest_of(const struct dibs__server *store, dibs__str kind) {
  const struct dibs__mysql_location *location = store->location;
  const char *database = location->database, *prefix = store->options.prefix;
  uint64_t digest = add_to_digest(UINT64_C(0xcbf29ce484222325), database, strlen(database));
  digest = add_to_digest(digest, prefix, strlen(prefix));
  digest = add_to_digest(digest, kind.p, kind.len);
  return digest ? digest : 1;
}

/* Its index; DIBS__MYSQL_KINDS: the process waits for tasks of too many kinds, and polls for this one. */
static uint32_t find_kind(tasks_t *t, uint64_t digest) {
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++) {
    uint64_t found = 0;
    if (atomic_compare_exchange_strong(&t->kinds[i].digest, &found, digest) || found == digest) return i;
  }
  return DIBS__MYSQL_KINDS;
}

bool dibs__mysql_expect_tasks(struct dibs__server *store, dibs__str kind) {
  tasks_t *t = ((struct dibs__mysql_location *)store->location)->tasks;
  uint32_t i = find_kind(t, digest_of(store, kind));
  return i < DIBS__MYSQL_KINDS && !atomic_exchange(&t->kinds[i].wanted, true);
}

/* ---- The locks ---- */

static bool add_text(struct dibs__mysql_buffer *to, const char *text) {
  return dibs__mysql_add(to, text, strlen(text));
}

/* For each lock of a kind: `before`, its name, `behind`, and its number if `numbered`. */
static bool add_slots(struct dibs__mysql_buffer *to, uint64_t digest, const char *between, const char *before,
                      const char *behind, bool numbered) {
  char name[NAME], number[NAME];
  bool fine = true;
  for (unsigned slot = 0; slot < DIBS__MYSQL_SLOTS && fine; slot++) {
    snprintf(name, sizeof name, "'dibs.t.%016llx.%u'", (unsigned long long)digest, slot);
    snprintf(number, sizeof number, "%u", slot);
    fine = add_text(to, slot ? between : "") && add_text(to, before) && add_text(to, name) && add_text(to, behind) &&
           (!numbered || add_text(to, number));
  }
  return fine;
}

/* Queues the statement, and frees it. */
static sql_rc put_built(struct dibs__sql_wire *wire, struct dibs__mysql_buffer *b, bool fine) {
  sql_rc end =
      fine ? dibs__mysql_put_whole(wire, b) : dibs__mysql_broke(dibs__my(wire), DIBS__SQL_NO_SPACE, "out of memory");
  free(b->p);
  return end;
}

static sql_rc put_all(struct dibs__sql_wire *wire, const char *begin, const char *between, const char *before,
                      const uint64_t *digests, size_t count) {
  struct dibs__mysql_buffer b = {0};
  bool fine = add_text(&b, begin);
  for (size_t i = 0; i < count && fine; i++)
    fine = add_text(&b, i ? between : "") && add_slots(&b, digests[i], between, before, ")", false);
  return put_built(wire, &b, fine);
}

/* The digests of some kinds, given as bits. */
static size_t digests_of(const tasks_t *t, uint32_t kinds, uint64_t digests[DIBS__MYSQL_KINDS]) {
  size_t count = 0;
  for (uint32_t i = 0; i < DIBS__MYSQL_KINDS; i++)
    if (kinds >> i & 1) digests[count++] = atomic_load(&t->kinds[i].digest);
  return count;
}

sql_rc dibs__mysql_put_tasks_free(struct dibs__sql_wire *wire, const tasks_t *t, uint32_t kinds) {
  uint64_t digests[DIBS__MYSQL_KINDS];
  size_t count = digests_of(t, kinds, digests);
  return put_all(wire, "SELECT ", " + ", "IS_FREE_LOCK(", digests, count);
}

sql_rc dibs__mysql_put_tasks_release(struct dibs__sql_wire *wire, const tasks_t *t, uint32_t kinds) {
  uint64_t digests[DIBS__MYSQL_KINDS];
  size_t count = digests_of(t, kinds, digests);
  return put_all(wire, "DO ", ", ", "RELEASE_LOCK(", digests, count);
}

sql_rc dibs__mysql_put_tasks_take(struct dibs__sql_wire *wire, const tasks_t *t, uint32_t kinds) {
  struct dibs__mysql_buffer b = {0};
  uint64_t digests[DIBS__MYSQL_KINDS];
  size_t count = digests_of(t, kinds, digests);
  bool fine = add_text(&b, "SELECT ");
  for (size_t i = 0; i < count && fine; i++)
    fine = add_text(&b, i ? ", CASE" : "CASE") &&
           add_slots(&b, digests[i], "", " WHEN GET_LOCK(", ", 0) THEN ", true) && add_text(&b, " ELSE -1 END");
  return put_built(wire, &b, fine);
}

/* ---- After a commit ---- */

struct added {
  uint64_t digest[DIBS__MYSQL_KINDS];
  uint32_t tasks[DIBS__MYSQL_KINDS]; /* of the kind, that may be ready */
  size_t kinds;
};

/* What the operations may have made ready.  Workers poll for the rest: of more kinds than there is space for, and tasks
 * that were retried by their numbers alone. */
static void collect(const struct dibs__server *store, struct dibs__op *const ops[], size_t count, struct added *a) {
  a->kinds = 0;
  for (size_t i = 0; i < count; i++) {
    const struct dibs__task_op *op = (const struct dibs__task_op *)ops[i];
    if (ops[i]->family != DIBS__FAM_TASK || ops[i]->verb == DIBS__TASK_CLAIM || op->table) continue;
    bool by_hand = ops[i]->verb == DIBS__TASK_CHANGE;
    dibs__str kind = by_hand ? op->filter.kind : op->kind;
    if (kind.len == 0) continue;
    uint64_t digest = digest_of(store, kind), tasks = by_hand ? op->changed : op->count;
    size_t k = 0;
    while (k < a->kinds && a->digest[k] != digest) k++;
    if (k == DIBS__MYSQL_KINDS) continue;
    if (k == a->kinds) a->tasks[a->kinds++] = 0;
    a->digest[k] = digest;
    a->tasks[k] += tasks < DIBS__MYSQL_SLOTS ? (uint32_t)tasks : DIBS__MYSQL_SLOTS;
  }
}

/* Chooses one notifier for each task, beginning anywhere.  Our own process has been woken already. */
static size_t choose(struct dibs__sql_wire *wire, const struct added *a, int64_t own, int64_t *where) {
  size_t count = 0;
  uint32_t first;
  dibs__random(&first, sizeof first);
  for (size_t k = 0; k < a->kinds; k++) {
    uint32_t left = a->tasks[k];
    for (uint32_t i = 0; i < DIBS__MYSQL_SLOTS && left > 0; i++) {
      size_t column = k * DIBS__MYSQL_SLOTS + (first + i) % DIBS__MYSQL_SLOTS;
      int64_t id = dibs__mysql_cell(wire, 0, 0, column, DIBS__SQL_NUMBER).number;
      if (id <= 0) continue;
      left--;
      if (id != own) where[count++] = id;
    }
  }
  return count;
}

sql_rc dibs__mysql_notify_tasks(struct dibs__server *store, struct dibs__sql_wire *wire, struct dibs__op *const ops[],
                                size_t count) {
  const tasks_t *t = ((const struct dibs__mysql_location *)store->location)->tasks;
  int64_t where[DIBS__MYSQL_KINDS * DIBS__MYSQL_SLOTS];
  struct added added;
  collect(store, ops, count, &added);
  if (added.kinds == 0) return DIBS__SQL_OK;
  sql_rc end = put_all(wire, "SELECT ", ", ", "IS_USED_LOCK(", added.digest, added.kinds);
  if (end == DIBS__SQL_OK) end = dibs__mysql_go(wire, false);
  if (end != DIBS__SQL_OK) return end;
  size_t some = choose(wire, &added, atomic_load(&t->notifier), where);
  if (some == 0) return DIBS__SQL_OK;
  end = dibs__mysql_notify_after(store, wire, NULL, where, some);
  return end == DIBS__SQL_OK ? dibs__mysql_go(wire, false) : end;
}
