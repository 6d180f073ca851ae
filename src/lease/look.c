/* SPDX-License-Identifier: MIT */
/* Looking at holders and waiters, and breaking. */
#include "base/text.h"
#include "lease/room.h"

#include <stdlib.h>
#include <string.h>

enum { BREAK_LOOK_MS = 50 };

/* ---- List ---- */

struct listing {
  dibs_list_fn fn;
  void *user;
  uint64_t rows;
};

/* The caller's strings are terminated, the driver's need not be. */
static int give_row(const struct dibs__lease_row *row, void *user) {
  struct listing *listing = user;
  char name[DIBS_NAME_MAX + 1], owner[DIBS_OWNER_MAX + 1];
  size_t name_len = row->name.len < DIBS_NAME_MAX ? row->name.len : DIBS_NAME_MAX;
  size_t owner_len = row->owner.len < DIBS_OWNER_MAX ? row->owner.len : DIBS_OWNER_MAX;
  memcpy(name, row->name.p, name_len);
  name[name_len] = '\0';
  if (owner_len) memcpy(owner, row->owner.p, owner_len);
  owner[owner_len] = '\0';
  dibs_lease_info info = {.size = sizeof info,
                          .name = name,
                          .owner = owner,
                          .state = row->state,
                          .mode = (dibs_mode)row->mode,
                          .slots = row->slots,
                          .slot = row->slot,
                          .ahead = row->ahead,
                          .pid = row->pid,
                          .fence = row->fence.v,
                          .ttl_ms = row->ttl_ms,
                          .left_ms = row->left_ms,
                          .age_ms = row->age_ms};
  listing->rows++;
  return listing->fn(&info, listing->user);
}

static dibs_status list(dibs_store *store, const struct dibs__list *what, const char *of, struct listing *listing,
                        dibs_error *error) {
  struct dibs__said said = {0};
  struct dibs__list list = *what;
  list.row = give_row;
  list.user = listing;
  dibs_status status = (dibs_status)dibs__core_list(store->core, &list, &said);
  if (status == DIBS_OK) return dibs__fine(error);
  return dibs__fail(error, status, "listing %s at %s: %s%s%s", of, store->shown, dibs_status_text(status),
                    said.text[0] ? ": " : "", said.text);
}

dibs_status dibs_list(dibs_store *store, const char *prefix, dibs_list_fn fn, void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_list: no function was given");
  if (prefix && strlen(prefix) > DIBS_NAME_MAX) return dibs__fail(error, DIBS_INVALID, "the prefix is too long");
  struct dibs__list what = {.prefix = prefix ? dibs__str_of(prefix, strlen(prefix)) : (dibs__str){0}};
  struct listing listing = {.fn = fn, .user = user};
  dibs_status status = dibs__enter(store, "dibs_list", error);
  if (status != DIBS_OK) return status;
  status = dibs__store_leases(store, prefix ? prefix : "", error);
  if (status == DIBS_OK) status = list(store, &what, "leases", &listing, error);
  dibs__exit(store);
  return status;
}

static dibs_status check_name(const char *name, dibs_error *error) {
  enum dibs__name_flaw flaw = name ? dibs__name_check(name, strlen(name), DIBS_NAME_MAX, NULL) : DIBS__NAME_EMPTY;
  if (flaw == DIBS__NAME_FINE) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "the name %s", dibs__name_flaw_text(flaw));
}

dibs_status dibs_show(dibs_store *store, const char *name, dibs_list_fn fn, void *user, dibs_error *error) {
  dibs_status status = check_name(name, error);
  if (status != DIBS_OK) return status;
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_show: no function was given");
  struct dibs__list what = {.name = dibs__str_of(name, strlen(name))};
  struct listing listing = {.fn = fn, .user = user};
  status = dibs__enter(store, "dibs_show", error);
  if (status != DIBS_OK) return status;
  status = dibs__store_leases(store, name, error);
  if (status == DIBS_OK) status = list(store, &what, name, &listing, error);
  dibs__exit(store);
  if (status == DIBS_OK && listing.rows == 0)
    return dibs__fail(error, DIBS_NOT_FOUND, "nobody holds \"%s\" or waits for it", name);
  return status;
}

/* ---- Break ---- */

struct breaking {
  struct dibs__lease_op op;
  dibs_store *store;
  _Atomic uint32_t refs; /* the caller's and the question's */
  dibs__word answered;
  char text[DIBS_NAME_MAX + 1], who[DIBS_OWNER_MAX + 1];
};

static void breaking_drop(struct breaking *breaking) {
  if (atomic_fetch_sub(&breaking->refs, 1) == 1) free(breaking);
}

static void break_answered(struct dibs__op *op) {
  struct breaking *breaking = (struct breaking *)op;
  atomic_store(&breaking->answered, 1);
  dibs__mutex_lock(&breaking->store->lock);
  breaking->store->flying--;
  dibs__mutex_unlock(&breaking->store->lock);
  breaking_drop(breaking);
}

static dibs_status ask_break(dibs_store *store, const char *name, const dibs_break_options *o, dibs_error *error) {
  struct breaking *breaking = calloc(1, sizeof *breaking);
  if (!breaking) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for breaking \"%s\"", name);
  const char *who = o->who ? o->who : store->owner;
  breaking->store = store;
  breaking->refs = 2;
  strncpy(breaking->text, name, DIBS_NAME_MAX);
  strncpy(breaking->who, who, DIBS_OWNER_MAX);
  struct dibs__lease_op *op = &breaking->op;
  op->name = dibs__str_of(breaking->text, strlen(breaking->text));
  op->owner = dibs__str_of(breaking->who, strlen(breaking->who));
  op->now = (o->flags & DIBS_BREAK_NOW) != 0;
  dibs__core_head(store->core, &op->op, DIBS__FAM_LEASE, DIBS__BREAK, DIBS__OP_FOLLOWS, dibs__bucket(op->name),
                  break_answered);
  dibs__mutex_lock(&store->lock);
  store->flying++;
  dibs__mutex_unlock(&store->lock);
  dibs__core_run(store->core, &op->op, dibs__tick_add_ms(op->op.by, 100));
  dibs__status status = atomic_load(&breaking->answered) ? op->op.status : DIBS_UNKNOWN;
  breaking_drop(breaking);
  if (status == DIBS__MOVED || status == DIBS_TIMEOUT) status = DIBS_UNAVAILABLE;
  if (status == DIBS_OK) return dibs__fine(error);
  if (status == DIBS_NOT_FOUND) return dibs__fail(error, DIBS_NOT_FOUND, "nobody holds \"%s\"", name);
  return dibs__explain(store, (dibs_status)status, "breaking", name, error);
}

static int count_breaking(const dibs_lease_info *info, void *user) {
  if (info->state == DIBS_BREAKING) ++*(int *)user;
  return 0;
}

/* Holders that were told but have neither let go nor ended. */
static dibs_status still_held(dibs_store *store, const char *name, int *holders, dibs_error *error) {
  *holders = 0;
  dibs_status status = dibs_show(store, name, count_breaking, holders, error);
  return status == DIBS_NOT_FOUND ? dibs__fine(error) : status;
}

static dibs_status break_and_wait(dibs_store *store, const char *name, const dibs_break_options *options,
                                  dibs_error *error) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), options->wait_ms);
  dibs_status status = ask_break(store, name, options, error);
  if (status != DIBS_OK || (options->flags & DIBS_BREAK_NOW) || options->wait_ms == 0) return status;
  for (;;) {
    int holders;
    status = still_held(store, name, &holders, error);
    if (status != DIBS_OK || holders == 0) return status;
    if (!dibs__tick_before(dibs__tick_now(), by))
      return dibs__fail(error, DIBS_TIMEOUT, "the holder of \"%s\" was told but still holds it; it ends with its ttl",
                        name);
    dibs__nap_ms(BREAK_LOOK_MS);
  }
}

dibs_status dibs_break(dibs_store *store, const char *name, const dibs_break_options *given, dibs_error *error) {
  dibs_status status = check_name(name, error);
  if (status != DIBS_OK) return status;
  dibs_break_options options = {.size = sizeof options};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof options))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_break_options)", given->size);
  if (given) memcpy(&options, given, given->size);
  if (options.reserved != 0 || (options.flags & ~(uint32_t)DIBS_BREAK_NOW) || options.wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "breaking \"%s\": unknown flags or a negative wait", name);
  status = dibs__enter(store, "dibs_break", error);
  if (status != DIBS_OK) return status;
  status = dibs__store_leases(store, name, error);
  if (status == DIBS_OK) status = break_and_wait(store, name, &options, error);
  dibs__exit(store);
  return status;
}
