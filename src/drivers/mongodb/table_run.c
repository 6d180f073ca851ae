/* SPDX-License-Identifier: MIT */
/* What operations on a record and on a stock in the user's own collections share: their answers, and their repetition.
 */
#include "drivers/mongodb/table_impl.h"

#include <stdio.h>
#include <string.h>

enum {
  WHY_MAX = 200,
  MISSED_MAX = 3,
  AGAIN_MAX = 1000 /* more tries mean an error: a document that matches our check and not the filter */
};

void dibs__mr_answer(struct dibs__mr *r, dibs__status status, const char *why) {
  r->op->status = status;
  snprintf(r->why, r->why_size, "%s", why);
}

void dibs__mr_fail(struct dibs__mr *r, dibs__status status) {
  dibs__mr_answer(r, status, status == DIBS_NO_MEMORY ? "out of memory" : r->c.result->text);
}

bool dibs__mr_wrong(struct dibs__mr *r, const bson_t *document, const char *field, const char *must) {
  char shown[DIBS__MONGO_SHOWN];
  dibs__mf_show(document, shown);
  r->op->status = DIBS_INVALID;
  snprintf(r->why, r->why_size, "\"%.40s\" of %.44s is not %s; correct it there", field, shown, must);
  return false;
}

void dibs__mr_missed(struct dibs__mr *r, const char *why) {
  r->again = ++r->missed < MISSED_MAX;
  dibs__mr_answer(r, DIBS_INVALID, why);
}

bson_t *dibs__mr_find(struct dibs__mr *r) {
  bson_t *document = NULL;
  char why[WHY_MAX] = "";
  dibs__status status = dibs__mk_find(&r->c, r->key, &r->type, &document, why, sizeof why);
  if (status != DIBS_OK) dibs__mr_answer(r, status, why);
  return document;
}

static void run_tries(struct dibs__mr *r, void (*verb)(struct dibs__mr *r)) {
  for (int tries = 0; tries < AGAIN_MAX; tries++) {
    r->again = false;
    if (tries > 2) dibs__nap_ms(1); /* the read may not see yet what the filter saw: it waits for a majority */
    verb(r);
    if (!r->again) return;
    if (!dibs__tick_before(dibs__tick_now(), r->c.by)) break;
    r->retries++;
  }
  dibs__mr_answer(r, DIBS_UNAVAILABLE, "other writers were faster until the deadline");
}

void dibs__mr_run(struct dibs__mr *r, dibs__tick by, bool makes, void (*verb)(struct dibs__mr *r)) {
  char why[WHY_MAX] = "";
  r->c.by = r->op->by.ns ? dibs__tick_min(by, r->op->by) : by;
  dibs__status status = dibs__mongo_collection_open(&r->c, why, sizeof why);
  if (status == DIBS_OK || (status == DIBS_NOT_FOUND && makes && strcmp(r->c.table->key, "_id") == 0))
    run_tries(r, verb);
  else
    dibs__mr_answer(r, status == DIBS_NOT_FOUND ? DIBS_INVALID : status,
                    status == DIBS_NO_MEMORY ? "out of memory" : why);
  dibs__mongo_collection_close(&r->c);
}
