/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_GUARD_SCENE_H
#define DIBS_TEST_GUARD_SCENE_H
/*
 * Nodes that work on the gateways of one table (test_scene.c starts them, scene_node.c is one).
 *
 *   gateway    the user's table: phases Creating, Created, Deleting, Deleted; `step` is the next step of a deletion;
 *              `ready` is the instant (ms) at which a creation has its certificate
 *   attempt    a node began a step
 *   accepted   the node's own statement of this step took effect
 *   refused    it did not, because the claim was somebody else's by then
 */
#include "task_bed.h"

#include <string.h>

enum {
  SCENE_STEPS = 5,           /* trigger, function, stage, domain, database */
  SCENE_TIMEOUT_S = 1,       /* of a claim */
  SCENE_TICK_MS = 50,        /* between two claims of a node */
  SCENE_WORK_MS = 200,       /* a step takes so long */
  SCENE_CERTIFICATE_MS = 800 /* after the beginning, a creation is ready */
};
#define SCENE_CREATED 9 /* the step of a creation */

/* Instants without a zone, whose text every session writes in the same way. */
static inline void scene_type(void) {
  const char *name = on_engine("sqlite") ? "TEXT" : on_engine("postgres") ? "timestamp(3)" : "DATETIME(6)";
  for (type = all_types; strcmp(type->name, name) != 0;) type++;
}

#define SCENE_NOW_MS                                                                                                   \
  (on_engine("sqlite")     ? "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"                              \
   : on_engine("postgres") ? "floor(extract(epoch FROM clock_timestamp()) * 1000)"                                     \
                           : "FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)")

#endif
