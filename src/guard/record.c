/* SPDX-License-Identifier: MIT */
/* Records that remember a fence: seal, save, load.  A thin layer: the store decides. */
#include "base/text.h"
#include "lease/room.h"

#include <stdlib.h>
#include <string.h>

/* A question about a record; outlives a caller that left. */
struct asking {
  struct dibs__record_op op;
  dibs_store *store;
  _Atomic uint32_t refs;
  dibs__word answered;
  char key[DIBS_NAME_MAX + 1];
  char data[];
};

static void asking_drop(struct asking *asking) {
  if (atomic_fetch_sub(&asking->refs, 1) != 1) return;
  free(asking->op.got);
  free(asking);
}

static void asking_answered(struct dibs__op *op) {
  struct asking *asking = (struct asking *)op;
  dibs_store *store = asking->store;
  atomic_store(&asking->answered, 1);
  dibs__mutex_lock(&store->lock);
  store->flying--;
  dibs__mutex_unlock(&store->lock);
  asking_drop(asking);
}

static dibs_status check(dibs_store *store, const char *key, dibs_error *error) {
  enum dibs__name_flaw flaw = key ? dibs__name_check(key, strlen(key), DIBS_NAME_MAX, NULL) : DIBS__NAME_EMPTY;
  if (flaw != DIBS__NAME_FINE)
    return dibs__fail(error, DIBS_INVALID, "the key of the record %s", dibs__name_flaw_text(flaw));
  if (!(dibs__core_families(store->core) & (1u << DIBS__FAM_RECORD)))
    return dibs__fail(error, DIBS_UNSUPPORTED, "%s keeps no records", store->shown);
  return DIBS_OK;
}

static struct asking *ask(dibs_store *store, const char *key, const char *data, size_t length) {
  struct asking *asking = calloc(1, sizeof *asking + length + 1);
  if (!asking) return NULL;
  asking->store = store;
  asking->refs = 1;
  strncpy(asking->key, key, DIBS_NAME_MAX);
  asking->op.key = dibs__str_of(asking->key, strlen(asking->key));
  if (length) memcpy(asking->data, data, length);
  asking->op.data = dibs__str_of(asking->data, length);
  return asking;
}

static dibs_status carry(struct asking *asking, uint16_t verb, uint16_t flags) {
  dibs_store *store = asking->store;
  struct dibs__op *op = &asking->op.op;
  dibs__core_head(store->core, op, DIBS__FAM_RECORD, verb, flags, dibs__bucket(asking->op.key), asking_answered);
  atomic_fetch_add(&asking->refs, 1);
  dibs__mutex_lock(&store->lock);
  store->flying++;
  dibs__mutex_unlock(&store->lock);
  dibs__core_run(store->core, op, dibs__tick_add_ms(op->by, 100));
  dibs__status status = atomic_load(&asking->answered) ? op->status : DIBS_UNKNOWN;
  return status == DIBS_TIMEOUT ? DIBS_UNAVAILABLE : (dibs_status)status;
}

static dibs_status explain(dibs_store *store, dibs_status status, const char *what, const char *key, uint64_t fence,
                           uint64_t seen, dibs_error *error) {
  if (status == DIBS_OK) return dibs__fine(error);
  if (status == DIBS_STALE)
    return dibs__fail(error, status,
                      "%s record \"%s\" with fence %llu was refused: it has seen fence %llu; somebody newer holds the "
                      "lease",
                      what, key, (unsigned long long)fence, (unsigned long long)seen);
  if (status == DIBS_NOT_FOUND) return dibs__fail(error, status, "there is no record \"%s\"", key);
  return dibs__explain(store, status, what, key, error);
}

/* The grant that the handle had, alive or not.  *lost: it is known to be over. */
static dibs_status guard_with(struct asking *asking, dibs_lease *lease, bool *lost, dibs_error *error) {
  uint64_t fence = dibs_lease_fence(lease);
  if (fence == 0)
    return dibs__fail(error, DIBS_INVALID, "\"%s\": only an exclusive lease that was held has a fence",
                      dibs_lease_name(lease));
  dibs__mutex_lock(&lease->store->lock); /* of another handle on the same store, it may be */
  asking->op.id = lease->id;
  *lost = lease->status == DIBS_LOST;
  dibs__mutex_unlock(&lease->store->lock);
  asking->op.fence = (dibs__fence){fence};
  return DIBS_OK;
}

static dibs_status guarded(dibs_store *store, const char *key, dibs_lease *lease, const char *data, size_t length,
                           bool *lost, struct asking **out, dibs_error *error) {
  dibs_status status = check(store, key, error);
  if (status != DIBS_OK) return status;
  if (!lease) return dibs__fail(error, DIBS_INVALID, "record \"%s\": the lease is NULL", key);
  struct asking *asking = ask(store, key, data, length);
  if (!asking) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the record \"%s\"", key);
  status = guard_with(asking, lease, lost, error);
  if (status != DIBS_OK) {
    asking_drop(asking);
    return status;
  }
  *out = asking;
  return DIBS_OK;
}

static dibs_status seal(dibs_store *store, const char *key, dibs_lease *lease, char **data, size_t *length,
                        dibs_error *error) {
  struct asking *asking = NULL;
  bool lost = false;
  dibs_status status = guarded(store, key, lease, NULL, 0, &lost, &asking, error);
  if (status != DIBS_OK) return status;
  if (lost) {
    asking_drop(asking);
    return dibs__explain(store, DIBS_LOST, "sealing with", dibs_lease_name(lease), error);
  }
  status = carry(asking, DIBS__RECORD_SEAL, 0);
  if (status == DIBS_OK) {
    *data = asking->op.got;
    *length = asking->op.got_len;
    asking->op.got = NULL;
  }
  uint64_t fence = asking->op.fence.v, seen = status == DIBS_STALE ? asking->op.seen.v : 0;
  asking_drop(asking);
  return explain(store, status, "sealing", key, fence, seen, error);
}

dibs_status dibs_record_seal(dibs_store *store, const char *key, dibs_lease *lease, char **data, size_t *length,
                             dibs_error *error) {
  if (data) *data = NULL;
  if (length) *length = 0;
  if (!data || !length) return dibs__fail(error, DIBS_INVALID, "dibs_record_seal: data and length must be given");
  dibs_status status = dibs__enter(store, "dibs_record_seal", error);
  if (status != DIBS_OK) return status;
  status = seal(store, key, lease, data, length, error);
  dibs__exit(store);
  return status;
}

static dibs_status save(dibs_store *store, const char *key, dibs_lease *lease, const char *data, size_t length,
                        dibs_error *error) {
  struct asking *asking = NULL;
  bool lost = false; /* the fence decides, not we */
  dibs_status status = guarded(store, key, lease, data, length, &lost, &asking, error);
  if (status != DIBS_OK) return status;
  status = carry(asking, DIBS__RECORD_SAVE, 0);
  uint64_t fence = asking->op.fence.v, seen = status == DIBS_STALE ? asking->op.seen.v : 0;
  asking_drop(asking);
  return explain(store, status, "saving", key, fence, seen, error);
}

dibs_status dibs_record_save(dibs_store *store, const char *key, dibs_lease *lease, const char *data, size_t length,
                             dibs_error *error) {
  if ((!data && length > 0) || length > DIBS_RECORD_MAX)
    return dibs__fail(error, DIBS_INVALID, "a record is at most %d bytes", DIBS_RECORD_MAX);
  dibs_status status = dibs__enter(store, "dibs_record_save", error);
  if (status != DIBS_OK) return status;
  status = save(store, key, lease, data, length, error);
  dibs__exit(store);
  return status;
}

static dibs_status load(dibs_store *store, const char *key, char **data, size_t *length, uint64_t *fence,
                        dibs_error *error) {
  dibs_status status = check(store, key, error);
  if (status != DIBS_OK) return status;
  struct asking *asking = ask(store, key, NULL, 0);
  if (!asking) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the record \"%s\"", key);
  status = carry(asking, DIBS__RECORD_LOAD, DIBS__OP_READS);
  if (status == DIBS_OK) {
    *data = asking->op.got;
    *length = asking->op.got_len;
    asking->op.got = NULL;
    if (fence) *fence = asking->op.seen.v;
  }
  asking_drop(asking);
  return explain(store, status, "loading", key, 0, 0, error);
}

dibs_status dibs_record_load(dibs_store *store, const char *key, char **data, size_t *length, uint64_t *fence,
                             dibs_error *error) {
  if (data) *data = NULL;
  if (length) *length = 0;
  if (fence) *fence = 0;
  if (!data || !length) return dibs__fail(error, DIBS_INVALID, "dibs_record_load: data and length must be given");
  dibs_status status = dibs__enter(store, "dibs_record_load", error);
  if (status != DIBS_OK) return status;
  status = load(store, key, data, length, fence, error);
  dibs__exit(store);
  return status;
}
