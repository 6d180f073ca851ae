/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_OWN_H
#define DIBS_LAB_OWN_H
/*
 * Stores of the lab's own: a folder in $TMPDIR, and a Redis there, which experiments kill and empty.  No Redis of the
 * user is touched.
 */
#include "lab/lab.h"

enum { LAB_FOLDER_MAX = 400 };

/* A new folder that only this user can read.  false: errno. */
bool dibs__lab_folder_make(char folder[LAB_FOLDER_MAX]);
void dibs__lab_folder_remove(const char *folder); /* with its files; "" is allowed */

/* Zero it first. */
struct lab_own_redis {
  char folder[LAB_FOLDER_MAX], uri[200];
  char password[33];
  uint16_t port;
  int pid; /* 0: it does not run */
};
/* Starts the program redis-server on a free port of the loopback interface, without persistence, and waits until it
 * answers; again after a kill: on the same port, empty.  false: lab->why. */
bool dibs__lab_own_redis_start(struct lab *lab, struct lab_own_redis *own);
void dibs__lab_own_redis_kill(struct lab_own_redis *own); /* kill -9, and waits for its end */
void dibs__lab_own_redis_end(struct lab_own_redis *own);  /* also if it was not started */
/* The helper that becomes the server: `dibs lab helper redis FILE`. */
int dibs__lab_own_redis_helper(int argc, char **argv);

/* Opens the own Redis as the first of two tiers, and an embedded anchor in its folder as the second. */
dibs_status dibs__lab_own_tiers_open(const struct lab_own_redis *own, dibs_store **store, dibs_error *error);

#endif
