/* SPDX-License-Identifier: MIT */
/* Several names, all or none.  Taken in the byte order of the names, so that two callers can't wait for each other. */
#include "lease/room.h"

#include <stdlib.h>
#include <string.h>

struct place {
  const char *name;
  size_t at; /* in the caller's array */
};

static int by_name(const void *a, const void *b) {
  return strcmp(((const struct place *)a)->name, ((const struct place *)b)->name);
}

static struct place *sort_names(const char *const names[], size_t count) {
  struct place *places = malloc(count * sizeof *places);
  if (!places) return NULL;
  for (size_t i = 0; i < count; i++) places[i] = (struct place){names[i], i};
  qsort(places, count, sizeof *places, by_name);
  return places;
}

static dibs_status check(const char *const names[], size_t count, const dibs_lease_options *options,
                         dibs_lease *leases[], dibs_error *error) {
  if (!names || !leases || count < 1 || count > DIBS_MANY_MAX)
    return dibs__fail(error, DIBS_INVALID, "dibs_acquire_many takes 1 to %d names", DIBS_MANY_MAX);
  for (size_t i = 0; i < count; i++) {
    leases[i] = NULL;
    if (!names[i]) return dibs__fail(error, DIBS_INVALID, "name %zu is NULL", i);
  }
  if (options && (options->size < sizeof(size_t) || options->size > sizeof *options))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_lease_options)", options->size);
  if (options && options->size >= offsetof(dibs_lease_options, id) + sizeof options->id && options->id)
    return dibs__fail(error, DIBS_INVALID, "one id can't serve several names; leave options.id NULL");
  return DIBS_OK;
}

static dibs_status check_places(const struct place *places, size_t count, dibs_error *error) {
  for (size_t i = 1; i < count; i++)
    if (strcmp(places[i - 1].name, places[i].name) == 0)
      return dibs__fail(error, DIBS_INVALID, "\"%s\" is named twice", places[i].name);
  return DIBS_OK;
}

dibs_status dibs_acquire_many(dibs_store *store, const char *const names[], size_t count,
                              const dibs_lease_options *given, dibs_lease *leases[], dibs_error *error) {
  dibs_status status = check(names, count, given, leases, error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_acquire_many", error);
  if (status != DIBS_OK) return status;
  dibs_lease_options options = {.size = sizeof options};
  if (given) memcpy(&options, given, given->size);
  struct place *places = sort_names(names, count);
  if (!places) {
    dibs__exit(store);
    return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for %zu names", count);
  }
  status = check_places(places, count, error);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), options.wait_ms);
  bool bounded = options.wait_ms > 0;
  size_t have = 0;
  for (; have < count && status == DIBS_OK; have += status == DIBS_OK) {
    if (bounded) options.wait_ms = dibs__tick_left_ms(dibs__tick_now(), by);
    status = dibs_acquire(store, places[have].name, &options, &leases[places[have].at], error);
    if (status == DIBS_HELD && bounded) status = DIBS_TIMEOUT; /* the time went to the names before it */
    if (error && status == DIBS_TIMEOUT) error->status = status;
  }
  if (status != DIBS_OK) {
    while (have-- > 0) {
      dibs_lease **lease = &leases[places[have].at];
      (void)dibs_release(*lease, NULL); /* what can't be released ends with its ttl */
      dibs_lease_free(*lease);
      *lease = NULL;
    }
  }
  free(places);
  dibs__exit(store);
  return status;
}
