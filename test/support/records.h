/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_SUPPORT_RECORDS_H
#define DIBS_TEST_SUPPORT_RECORDS_H
/* Records of dibs' own table as texts: read and sealed by a lease, written by a lease, read without a lease. */
#include "dibs.h"

#include <stdlib.h>
#include <string.h>

static inline dibs_status record_read(dibs_store *store, const char *key, dibs_lease *lease, char **data,
                                      size_t *length, uint64_t *fence, dibs_error *error) {
  dibs_record_options how = {.size = sizeof how, .lease = lease};
  dibs_record *record = NULL;
  *data = NULL;
  if (length) *length = 0;
  if (fence) *fence = 0;
  dibs_status status = dibs_record_get(store, key, &how, &record, error);
  if (status != DIBS_OK) return status;
  const dibs_value *value = &record->values[0];
  if (value->data) {
    *data = malloc(value->length + 1);
    if (*data) memcpy(*data, value->data, value->length + 1);
    if (!*data) status = DIBS_NO_MEMORY;
  }
  if (length) *length = value->length;
  if (fence) *fence = record->fence.value;
  dibs_record_free(record);
  return status;
}

/* The caller frees *data; NULL if the record was never written. */
static inline dibs_status record_seal(dibs_store *store, const char *key, dibs_lease *lease, char **data,
                                      size_t *length, dibs_error *error) {
  return record_read(store, key, lease, data, length, NULL, error);
}

static inline dibs_status record_load(dibs_store *store, const char *key, char **data, size_t *length, uint64_t *fence,
                                      dibs_error *error) {
  return record_read(store, key, NULL, data, length, fence, error);
}

static inline dibs_status record_save(dibs_store *store, const char *key, dibs_lease *lease, const char *data,
                                      size_t length, dibs_error *error) {
  dibs_record_options how = {.size = sizeof how, .lease = lease};
  dibs_value value = {data, length};
  return dibs_record_put(store, key, &value, 1, &how, NULL, error);
}

#endif
