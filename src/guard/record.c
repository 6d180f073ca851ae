/* SPDX-License-Identifier: MIT */
/* Records that remember a fence: seal, save, load.  A thin layer: the store decides. */
#include "guard/asking.h"

#include <stdlib.h>
#include <string.h>

typedef struct dibs__asking asking_t;

static dibs_status check(dibs_store *store, const char *key, dibs_error *error) {
  return dibs__asking_check(store, DIBS__FAM_RECORD, "record", key, error);
}

static asking_t *ask(dibs_store *store, const char *key, const char *data, size_t length) {
  size_t key_length = strlen(key);
  asking_t *asking = dibs__asking_make(store, DIBS__FAM_RECORD, NULL, key_length + length);
  if (!asking) return NULL;
  asking->record.key = dibs__asking_keep(asking, key, key_length);
  asking->record.data = dibs__asking_keep(asking, data, length);
  return asking;
}

static dibs_status carry(asking_t *asking, uint16_t verb, uint16_t flags) {
  return dibs__asking_carry(asking, verb, flags, 0, DIBS__TICK_NEVER);
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

static dibs_status guarded(dibs_store *store, const char *key, dibs_lease *lease, const char *data, size_t length,
                           bool *lost, asking_t **out, dibs_error *error) {
  dibs_status status = check(store, key, error);
  if (status != DIBS_OK) return status;
  if (!lease) return dibs__fail(error, DIBS_INVALID, "record \"%s\": the lease is NULL", key);
  asking_t *asking = ask(store, key, data, length);
  if (!asking) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the record \"%s\"", key);
  status = dibs__asking_grant(lease, &asking->record.id, &asking->record.fence, lost, error);
  if (status != DIBS_OK) {
    dibs__asking_drop(asking);
    return status;
  }
  *out = asking;
  return DIBS_OK;
}

static dibs_status seal(dibs_store *store, const char *key, dibs_lease *lease, char **data, size_t *length,
                        dibs_error *error) {
  asking_t *asking = NULL;
  bool lost = false;
  dibs_status status = guarded(store, key, lease, NULL, 0, &lost, &asking, error);
  if (status != DIBS_OK) return status;
  if (lost) {
    dibs__asking_drop(asking);
    return dibs__explain(store, DIBS_LOST, "sealing with", dibs_lease_name(lease), error);
  }
  status = carry(asking, DIBS__RECORD_SEAL, 0);
  if (status == DIBS_OK) {
    *data = asking->record.got;
    *length = asking->record.got_len;
    asking->record.got = NULL;
  }
  uint64_t fence = asking->record.fence.v, seen = status == DIBS_STALE ? asking->record.seen.v : 0;
  dibs__asking_drop(asking);
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
  asking_t *asking = NULL;
  bool lost = false; /* the fence decides, not we */
  dibs_status status = guarded(store, key, lease, data, length, &lost, &asking, error);
  if (status != DIBS_OK) return status;
  status = carry(asking, DIBS__RECORD_SAVE, 0);
  uint64_t fence = asking->record.fence.v, seen = status == DIBS_STALE ? asking->record.seen.v : 0;
  dibs__asking_drop(asking);
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
  asking_t *asking = ask(store, key, NULL, 0);
  if (!asking) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the record \"%s\"", key);
  status = carry(asking, DIBS__RECORD_LOAD, DIBS__OP_READS);
  if (status == DIBS_OK) {
    *data = asking->record.got;
    *length = asking->record.got_len;
    asking->record.got = NULL;
    if (fence) *fence = asking->record.seen.v;
  }
  dibs__asking_drop(asking);
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
