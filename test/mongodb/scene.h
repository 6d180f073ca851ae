/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_SCENE_H
#define DIBS_TEST_MONGODB_SCENE_H
/*
 * Nodes that work on the gateways of one collection (test_scene.c starts them, scene_node.c is one).  A gateway is
 *
 *   {_id: NUMBER, phase: Creating|Created|Deleting|Deleted, state: the next step of a deletion, lockedAt, createdAt,
 *    updatedAt, fence, certificate: the instant (ms) at which a creation is ready,
 *    done: [{step, node}], refused: [{step, by}], busy: {nNUMBER: the step that this node does}}
 */
#include "task_bed.h"

enum {
  SCENE_STEPS = 5,            /* trigger, function, stage, domain, database */
  SCENE_TIMEOUT_MS = 1500,    /* of a claim */
  SCENE_TICK_MS = 50,         /* between two claims of a node */
  SCENE_WORK_MS = 150,        /* a step takes so long */
  SCENE_CERTIFICATE_MS = 800, /* after the beginning, a creation is ready */
  SCENE_CREATED = 9           /* the step of a creation */
};

#endif
