/* SPDX-License-Identifier: MIT */
/* Get, change, put; again when somebody else was faster.  Between two tries a pause, drawn anew each time, so that
 * those who met do not meet again. */
#include "guard/table.h"

#include "lease/room.h"

#include <stdlib.h>
#include <string.h>

enum { WAIT_DEFAULT_MS = 5000, PAUSE_FIRST_MS = 2, PAUSE_MOST_MS = 100 };

struct updating {
  dibs_store *store;
  const char *key;
  dibs_update_options o;
  dibs_record_fn fn;
  void *user;
  dibs__tick by;
  size_t count;
  dibs_record_result result;
};

static int64_t left_ms(const struct updating *u) {
  return dibs__tick_left_ms(dibs__tick_now(), u->by);
}

/* false: the time is over. */
static bool wait_a_little(const struct updating *u) {
  uint32_t drawn;
  int64_t most = PAUSE_FIRST_MS, left = left_ms(u);
  for (uint32_t i = 1; i < u->result.tries && most < PAUSE_MOST_MS; i++) most *= 2;
  if (most > PAUSE_MOST_MS) most = PAUSE_MOST_MS;
  dibs__random(&drawn, sizeof drawn);
  int64_t ms = (int64_t)drawn % (most + 1);
  if (ms >= left) return false;
  if (ms > 0) dibs__nap_ms(ms);
  return true;
}

static bool all_kept(const dibs_value *values, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (values[i].data || values[i].length != DIBS_KEEP) return false;
  return true;
}

static dibs_status put(struct updating *u, const dibs_record *record, dibs_error *error) {
  dibs_value values[DIBS__TABLE_COLUMNS];
  for (size_t i = 0; i < u->count; i++) values[i] = (dibs_value){NULL, DIBS_KEEP};
  dibs_status status = u->fn(record, values, u->count, u->user);
  if (status != DIBS_OK)
    return dibs__fail(error, status, "the update of record \"%s\" was ended by its function: %s", u->key,
                      dibs_status_text(status));
  if (record && all_kept(values, u->count)) {
    strncpy(u->result.version, record->version, DIBS_VERSION_MAX);
    return DIBS_OK;
  }
  dibs_record_options o = {.size = sizeof o,
                           .table = u->o.table,
                           .lease = u->o.lease,
                           .wait_ms = left_ms(u) + 1,
                           .if_version = record ? record->version : NULL,
                           .flags = record ? 0 : DIBS_IF_ABSENT};
  uint32_t tries = u->result.tries;
  status = dibs_record_put(u->store, u->key, values, u->count, &o, &u->result, error);
  u->result.tries = tries;
  return status;
}

/* *again: somebody was faster. */
static dibs_status attempt(struct updating *u, bool *again, dibs_error *error) {
  dibs_record *record = NULL;
  dibs_record_options o = {.size = sizeof o, .table = u->o.table, .lease = u->o.lease, .wait_ms = left_ms(u) + 1};
  bool makes = (u->o.flags & DIBS_IF_ABSENT) != 0;
  u->result.tries++;
  dibs_status status = dibs_record_get(u->store, u->key, &o, &record, error);
  bool none = status == DIBS_NOT_FOUND || (status == DIBS_OK && !u->o.table && !record->values[0].data);
  if (none && !makes)
    status = dibs__fail(error, DIBS_NOT_FOUND, "there is no record \"%s\" to update", u->key);
  else if (none || status == DIBS_OK) {
    status = put(u, none ? NULL : record, error);
    *again = status == DIBS_CONFLICT || (status == DIBS_NOT_FOUND && !none);
  }
  dibs_record_free(record);
  return status;
}

static dibs_status update(struct updating *u, dibs_error *error) {
  for (;;) {
    bool again = false;
    dibs_status status = attempt(u, &again, error);
    if (!again) return status;
    if (u->o.tries && u->result.tries >= u->o.tries)
      return dibs__fail(error, DIBS_CONFLICT,
                        "record \"%s\": somebody was faster each of %u times; nothing was changed", u->key,
                        u->result.tries);
    if (!wait_a_little(u))
      return dibs__fail(
          error, DIBS_TIMEOUT,
          "record \"%s\": somebody was faster each of %u times until the time was over; nothing was changed", u->key,
          u->result.tries);
  }
}

dibs_status dibs_record_update(dibs_store *store, const char *key, const dibs_update_options *options,
                               dibs_record_fn fn, void *user, dibs_record_result *result, dibs_error *error) {
  struct updating u = {.store = store, .key = key, .fn = fn, .user = user};
  size_t size = result ? result->size : 0;
  if (result && (size < sizeof(size_t) || size > sizeof *result))
    return dibs__fail(error, DIBS_INVALID, "result.size is %zu: set it to sizeof(dibs_record_result)", size);
  if (options && (options->size < sizeof(size_t) || options->size > sizeof u.o))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_update_options)", options->size);
  if (options) memcpy(&u.o, options, options->size);
  if (!fn || !key) return dibs__fail(error, DIBS_INVALID, "dibs_record_update: a key and a function must be given");
  if ((u.o.flags & ~(uint32_t)DIBS_IF_ABSENT) || u.o.wait_ms < 0)
    return dibs__fail(error, DIBS_INVALID, "dibs_record_update: unknown flags, or a time below 0");
  const struct dibs__table *table = dibs__table_of(u.o.table);
  u.count = table ? table->column_count : 1;
  u.by = dibs__tick_add_ms(dibs__tick_now(), u.o.wait_ms ? u.o.wait_ms : WAIT_DEFAULT_MS);
  u.result.size = sizeof u.result;
  dibs_status status = update(&u, error);
  u.result.size = size;
  if (result) memcpy(result, &u.result, size);
  return status == DIBS_OK ? dibs__fine(error) : status;
}
