/* SPDX-License-Identifier: MIT */
/*
 * The check of a fence: the store seals a record of the name.
 *
 *   [the lease of the name] -> seal the first record -> [the record since an operator has set the highest fence]
 *
 * The first step is for --check-lease, the last one for names whose highest fence was set (fence_record.h): their first
 * record has content.
 *
 * Requests of one name with one fence that come while a question is in flight share the next one.  They cannot share
 * the one in flight: the store may have answered it before they came, and a newer fence may have passed in between.
 */
#include "gate/fence_record.h"
#include "gate/gate_impl.h"
#include "handle/handle.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct checked {
  struct exchange *first, *last; /* linked by next_checked */
};

/* Of a name and a fence, as long as a question is in flight. */
struct check {
  struct dibs__map_node node;
  struct gate *gate;
  struct checked present, next; /* those that the question in flight is for; those that it came too early for */
  char name[HEAD_NAME_MAX + 1];
  uint64_t fence;
  /* Of the question in flight. */
  uint64_t held; /* the fence of the lease that the store has; 0: none */
  uint64_t seen; /* by the first record, if that refused ours */
};

static void append(struct checked *list, struct exchange *e) {
  e->next_checked = NULL;
  if (list->last)
    list->last->next_checked = e;
  else
    list->first = e;
  list->last = e;
}

static struct check *find_check(const struct gate *gate, const char *name, uint64_t fence) {
  uint64_t hash = dibs__hash(name, strlen(name)) ^ fence;
  for (struct dibs__map_node *node = dibs__map_head(&gate->checks, hash); node; node = node->next) {
    struct check *check = (struct check *)node;
    if (node->hash == hash && check->fence == fence && strcmp(check->name, name) == 0) return check;
  }
  return NULL;
}

static struct check *make_check(const struct exchange *e) {
  struct check *check = calloc(1, sizeof *check);
  if (!check) return NULL;
  check->gate = e->gate;
  check->fence = e->fence;
  memcpy(check->name, e->name, sizeof check->name);
  dibs__map_add(&e->gate->checks, &check->node, dibs__hash(e->name, strlen(e->name)) ^ e->fence);
  return check;
}

static void answer_all(struct check *check, dibs_status status, uint64_t seen, const dibs_error *error) {
  struct exchange *e = check->present.first;
  check->present = (struct checked){NULL, NULL};
  for (struct exchange *next; e; e = next) {
    next = e->next_checked;
    dibs__guard_fence_checked(e, status, seen, error);
  }
}

static void ask_store(struct check *check);

/* Ends the question in flight. */
static void answer(struct check *check, dibs_status status, uint64_t seen, const dibs_error *error) {
  answer_all(check, status, seen, error);
  ask_store(check);
}

/* One step of a question: SEAL or LOAD of the name's record after `times` settings. */
static dibs_status start_step(struct check *check, enum dibs__record_verb verb, uint32_t times, dibs__record_fn done,
                              dibs_error *error) {
  /* The id is no client's: the same for all gates, so that all requests with one fence pass. */
  struct dibs__proof proof = {.fence = {check->fence}};
  dibs_record_options options = DIBS_RECORD_OPTIONS_INIT;
  char key[DIBS_NAME_MAX + 1];
  dibs__fence_key(check->name, times, key);
  memset(proof.id.b, 'g', sizeof proof.id.b);
  return dibs__record_start(check->gate->server->store, verb, key, NULL, &options,
                            verb == DIBS__RECORD_SEAL ? &proof : NULL, done, check, error);
}

/* ---- The record since the highest fence was set ---- */

static void later_sealed(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                         const dibs_error *error, void *user) {
  (void)record;
  answer(user, status, result->fence.value, error);
}

static bool has_content(const dibs_record *record) {
  return record && record->count > 0 && record->values[0].data;
}

/* `record` is the first one, and has content. */
static void ask_later_record(struct check *check, const dibs_record *record) {
  struct fence_set set;
  dibs_error error = {0};
  dibs_status status = DIBS_CORRUPT;
  if (!dibs__fence_set_read(record->values[0].data, record->values[0].length, &set))
    dibs__fail(&error, status, "the record of the fences of \"%s\" has content that no gate has written", check->name);
  else if (check->fence < set.fence)
    status = DIBS_STALE;
  else
    status = start_step(check, DIBS__RECORD_SEAL, set.times, later_sealed, &error);
  if (status != DIBS_OK) answer(check, status, status == DIBS_STALE ? set.fence : 0, &error);
}

static void first_read(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                       const dibs_error *error, void *user) {
  struct check *check = user;
  (void)result;
  if (status == DIBS_OK && has_content(record))
    ask_later_record(check, record);
  else
    answer(check, status == DIBS_OK || status == DIBS_NOT_FOUND ? DIBS_STALE : status, check->seen, error);
}

/* ---- The first record ---- */

static void first_sealed(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                         const dibs_error *error, void *user) {
  struct check *check = user;
  dibs_error failure = {0};
  if (status == DIBS_OK && has_content(record)) {
    ask_later_record(check, record);
    return;
  }
  check->seen = result->fence.value;
  if (status != DIBS_STALE) {
    answer(check, status, 0, error);
    return;
  }
  status = start_step(check, DIBS__RECORD_LOAD, 0, first_read, &failure);
  if (status != DIBS_OK) answer(check, status, 0, &failure);
}

static dibs_status seal_first(struct check *check, dibs_error *error) {
  return start_step(check, DIBS__RECORD_SEAL, 0, first_sealed, error);
}

/* ---- The lease ---- */

/* A waiter may use an offer before it has confirmed it, and the client of a broken lease its name until it has noticed.
 */
static int find_holder(const dibs_lease_info *info, void *user) {
  struct check *check = user;
  bool holds = info->state == DIBS_HOLDS || info->state == DIBS_OFFERED || info->state == DIBS_BREAKING;
  if (holds && info->fence.value > check->held) check->held = info->fence.value;
  return 0;
}

/* The store has the first fence of the latest block that the holder's process drew: the holder's own may be above it,
 * if the process passes the name on within the block, or below it.  So this refuses what nobody can have; whether a
 * newer fence was seen is for the record. */
static void lease_read(dibs_status status, const dibs_error *error, void *user) {
  struct check *check = user;
  dibs_error failure = {0};
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) {
    answer(check, status, 0, error);
    return;
  }
  if (check->held == 0)
    status = dibs__fail(&failure, DIBS_LOST, "nobody holds the lease of \"%s\": acquire it again", check->name);
  else if (check->fence >= check->held + DIBS__BLOCK_MAX)
    status = dibs__fail(&failure, DIBS_LOST,
                        "fence %" PRIu64 " of \"%s\" is not that of its lease, which is held under fence %" PRIu64,
                        check->fence, check->name, check->held);
  else
    status = seal_first(check, &failure);
  if (status != DIBS_OK) answer(check, status, 0, &failure);
}

/* ---- Questions ---- */

static dibs_status begin_question(struct check *check, dibs_error *error) {
  check->held = check->seen = 0;
  if (!check->gate->config.check_lease) return seal_first(check, error);
  return dibs_show_start(check->gate->server->store, check->name, find_holder, lease_read, check, error);
}

/* For all that wait, until a question is in flight or nobody waits. */
static void ask_store(struct check *check) {
  while (check->next.first) {
    dibs_error error = {0};
    check->present = check->next;
    check->next = (struct checked){NULL, NULL};
    dibs_status status = begin_question(check, &error);
    if (status == DIBS_OK) return;
    answer_all(check, status, 0, &error);
  }
  dibs__map_remove(&check->gate->checks, &check->node);
  free(check);
}

void dibs__fence_check(struct exchange *e) {
  struct check *check = find_check(e->gate, e->name, e->fence);
  bool in_flight = check != NULL;
  if (!check) check = make_check(e);
  if (!check) {
    dibs__guard_fence_checked(e, DIBS_NO_MEMORY, 0, NULL);
    return;
  }
  append(&check->next, e);
  if (!in_flight) ask_store(check);
}
