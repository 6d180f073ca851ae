/* SPDX-License-Identifier: MIT */
#include "task/crontab_kept.h"
#include "base/port.h"
#include "handle/handle.h"
#include "task/cron_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAIT_MS = 1000, FLEETS_MAX = 1000, KEY = DIBS_CRON_NAME_MAX + 16 };

static const char names_key[] = "crontabs";
/* Before the text: one of these, which are equally long, the zone and a line end. */
static const char copy_head[] = "dibs-crontab/1 ", stored_head[] = "dibs-crontab/2 ";

static void key_of(const char *name, char to[KEY]) {
  snprintf(to, KEY, "crontab:%s", name);
}

/* ---- The names: a line each, in byte order ---- */

/* Cuts a list into its lines; how many. */
static size_t split(char *text, char *lines[FLEETS_MAX]) {
  size_t count = 0;
  for (char *next; *text && count < FLEETS_MAX; text = next) {
    next = text + strcspn(text, "\n");
    if (*next) *next++ = '\0';
    if (*text) lines[count++] = text;
  }
  return count;
}

struct naming {
  const char *name;
  bool leaves;
  char *text; /* malloc'd: the new list */
};

/* *place: where the name is, or would be. */
static bool find_name(char *const *lines, size_t count, const char *name, size_t *place) {
  size_t at = 0;
  while (at < count && strcmp(lines[at], name) < 0) at++;
  *place = at;
  return at < count && strcmp(lines[at], name) == 0;
}

static size_t append_line(char *to, const char *name) {
  size_t length = strlen(name);
  memcpy(to, name, length);
  to[length] = '\n';
  return length + 1;
}

/* OK: n->text is the new list, of *size bytes; REPLAY: it would be as before; FULL. */
static dibs_status change_list(struct naming *n, char *before, size_t *size) {
  char *lines[FLEETS_MAX];
  size_t place, used = 0, count = split(before, lines);
  bool there = find_name(lines, count, n->name, &place);
  if (there != n->leaves) return DIBS_REPLAY;
  if (!n->leaves && count == FLEETS_MAX) return DIBS_FULL;
  for (size_t i = 0; i <= count; i++) {
    if (i == place && !n->leaves) used += append_line(n->text + used, n->name);
    if (i < count && !(i == place && n->leaves)) used += append_line(n->text + used, lines[i]);
  }
  *size = used;
  return DIBS_OK;
}

/* A dibs_record_fn. */
static dibs_status change_names(const dibs_record *record, dibs_value *values, size_t count, void *user) {
  struct naming *n = user;
  const char *data = record && record->values[0].data ? record->values[0].data : "";
  size_t length = *data ? record->values[0].length : 0, size;
  char *before = strndup(data, length);
  (void)count;
  free(n->text);
  n->text = malloc(length + strlen(n->name) + 2);
  dibs_status status = before && n->text ? change_list(n, before, &size) : DIBS_NO_MEMORY;
  free(before);
  if (status == DIBS_OK) values[0] = (dibs_value){n->text, size};
  return status;
}

static dibs_status change_name(dibs_store *store, const char *name, bool leaves, dibs_error *error) {
  struct naming n = {.name = name, .leaves = leaves};
  dibs_update_options options = {.size = sizeof options, .flags = DIBS_IF_ABSENT, .wait_ms = WAIT_MS};
  dibs_status status = dibs_record_update(store, names_key, &options, change_names, &n, NULL, error);
  free(n.text);
  if (status == DIBS_FULL)
    return dibs__fail(error, status, "the store has the crontabs of %d fleets already: forget a fleet that is not used",
                      FLEETS_MAX);
  /* The crontab itself is written or removed by then: the same call again changes the list. */
  if (status == DIBS_TIMEOUT)
    return dibs__fail(error, DIBS_UNAVAILABLE,
                      "other clients changed the list of fleets for as long as \"%s\" could wait; repeat it", name);
  return status == DIBS_REPLAY ? dibs__fine(error) : status;
}

dibs_status dibs__crontab_names(dibs_store *store, bool (*fn)(const char *name, void *user), void *user,
                                dibs_error *error) {
  dibs_record *record = NULL;
  char *lines[FLEETS_MAX];
  dibs_status status = dibs_record_get(store, names_key, NULL, &record, error);
  if (status == DIBS_NOT_FOUND) return dibs__fine(error);
  if (status != DIBS_OK) return status;
  char *text = record->values[0].data ? strndup(record->values[0].data, record->values[0].length) : NULL;
  size_t count = text ? split(text, lines) : 0;
  for (size_t i = 0; i < count && fn(lines[i], user); i++) continue;
  free(text);
  dibs_record_free(record);
  return DIBS_OK;
}

/* ---- The crontab ---- */

/* malloc'd; NULL: no memory. */
static char *write_value(const dibs_cron_table *table, const char *head, size_t *length) {
  const char *zone = table->zone ? table->zone : "UTC";
  size_t top = strlen(head) + strlen(zone) + 1;
  char *value = malloc(top + table->length + 1);
  if (!value) return NULL;
  snprintf(value, top + 1, "%s%s\n", head, zone);
  if (table->length) memcpy(value + top, table->text, table->length);
  *length = top + table->length;
  return value;
}

static bool begins(const dibs_record *record, const char *head) {
  size_t top = strlen(head);
  const dibs_value *value = &record->values[0];
  return value->data && value->length > top && memcmp(value->data, head, top) == 0;
}

/* A dibs_record_fn: `user` is the value of the copy. */
static dibs_status keep_copy(const dibs_record *record, dibs_value *values, size_t count, void *user) {
  const dibs_value *copy = user;
  (void)count;
  if (record && begins(record, stored_head)) return DIBS_FULL;
  values[0] = *copy;
  return DIBS_OK;
}

dibs_status dibs__crontab_keep(dibs_store *store, const char *name, const dibs_cron_table *table, dibs_error *error) {
  char key[KEY];
  dibs_value copy = {0};
  dibs_update_options options = {.size = sizeof options, .flags = DIBS_IF_ABSENT, .wait_ms = WAIT_MS};
  dibs_status status = dibs__cron_check_name(name, error);
  if (status != DIBS_OK) return status;
  char *value = write_value(table, copy_head, &copy.length);
  if (!value) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the crontab of \"%s\"", name);
  copy.data = value;
  key_of(name, key);
  status = dibs_record_update(store, key, &options, keep_copy, &copy, NULL, error);
  free(value);
  if (status == DIBS_FULL)
    return dibs__fail(error, DIBS_CONFLICT,
                      "the store has a crontab \"%s\" for nodes without a file; this node fires the jobs of its file: "
                      "give it another --name, or no file",
                      name);
  return status == DIBS_OK ? change_name(store, name, false, error) : status;
}

/* OK: it may be replaced. */
static dibs_status check_stored(dibs_store *store, const char *name, dibs_error *error) {
  struct dibs__crontab_kept kept;
  dibs_status status = dibs__crontab_load(store, name, &kept, error);
  free(kept.text);
  if (status != DIBS_OK || kept.stored) return status;
  return dibs__fail(
      error, DIBS_CONFLICT,
      "the crontab of \"%s\" is that of a file, which its nodes read: change the file; or end these nodes, "
      "forget the crontab, and start nodes without a file",
      name);
}

dibs_status dibs__crontab_put(dibs_store *store, const char *name, const dibs_cron_table *table, const char *if_version,
                              char *version, dibs_error *error) {
  char key[KEY];
  dibs_value value = {0};
  dibs_record_result result = DIBS_RECORD_RESULT_INIT;
  dibs_record_options options = {.size = sizeof options, .wait_ms = WAIT_MS, .if_version = if_version};
  dibs_status status = dibs__cron_check_name(name, error);
  if (status == DIBS_OK && if_version) status = check_stored(store, name, error);
  if (status != DIBS_OK) return status;
  if (!if_version) options.flags = DIBS_IF_ABSENT;
  char *text = write_value(table, stored_head, &value.length);
  if (!text) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the crontab of \"%s\"", name);
  value.data = text;
  key_of(name, key);
  status = dibs_record_put(store, key, &value, 1, &options, &result, error);
  free(text);
  snprintf(version, DIBS_VERSION_MAX + 1, "%s", result.version);
  return status == DIBS_OK ? change_name(store, name, false, error) : status;
}

static dibs_status take_text(const dibs_record *record, const char *name, struct dibs__crontab_kept *kept,
                             dibs_error *error) {
  const char *data = record->values[0].data;
  size_t length = record->values[0].length, top = sizeof copy_head - 1;
  if (!data) return dibs__fail(error, DIBS_NOT_FOUND, "no crontab of \"%s\" is kept in the store", name);
  kept->stored = begins(record, stored_head);
  const char *end = kept->stored || begins(record, copy_head) ? memchr(data, '\n', length) : NULL;
  if (!end || (size_t)(end - data) - top >= sizeof kept->zone)
    return dibs__fail(error, DIBS_CORRUPT, "the record \"crontab:%s\" is not what dibs cron writes", name);
  memcpy(kept->zone, data + top, (size_t)(end - data) - top);
  snprintf(kept->version, sizeof kept->version, "%s", record->version);
  kept->length = length - (size_t)(end + 1 - data);
  kept->text = strndup(end + 1, kept->length);
  return kept->text ? DIBS_OK : dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the crontab of \"%s\"", name);
}

dibs_status dibs__crontab_load(dibs_store *store, const char *name, struct dibs__crontab_kept *kept,
                               dibs_error *error) {
  char key[KEY];
  dibs_record *record = NULL;
  *kept = (struct dibs__crontab_kept){.text = NULL};
  if (dibs__cron_check_name(name, error) != DIBS_OK) return DIBS_INVALID;
  key_of(name, key);
  dibs_status status = dibs_record_get(store, key, NULL, &record, error);
  if (status == DIBS_NOT_FOUND)
    return dibs__fail(error, status, "no crontab of \"%s\" is kept in the store; `dibs cron` keeps its own there",
                      name);
  if (status == DIBS_OK) status = take_text(record, name, kept, error);
  dibs_record_free(record);
  return status;
}

dibs_status dibs__crontab_forget(dibs_store *store, const char *name, dibs_error *error) {
  char key[KEY];
  if (dibs__cron_check_name(name, error) != DIBS_OK) return DIBS_INVALID;
  key_of(name, key);
  dibs_record_options options = {.size = sizeof options, .flags = DIBS_UNCHECKED, .wait_ms = WAIT_MS};
  dibs_status status = dibs_record_remove(store, key, &options, NULL, error);
  dibs_status listed = status == DIBS_OK || status == DIBS_NOT_FOUND ? change_name(store, name, true, error) : status;
  return listed == DIBS_OK ? status : listed;
}
