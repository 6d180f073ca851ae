/* SPDX-License-Identifier: MIT */
/*
 * A fork without exec gives the child our open file descriptions, and with them our OFD locks: if we were killed, the
 * byte of our slot would stay locked and we would look alive for as long as the child lives, with the writer lock in
 * our hands.  So children close these descriptors before fork returns in them.  (The page itself is not handed down,
 * MADV_DONTFORK: a mapping holds the description, too.)
 */
#include "drivers/sqlite_side_page.h"

#include <pthread.h>
#include <unistd.h>

/* Guarded by `lock`, which is also held across every fork. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dibs__side *first;
static bool watched;

static void before_fork(void) {
  pthread_mutex_lock(&lock);
}

static void in_parent(void) {
  pthread_mutex_unlock(&lock);
}

static void in_child(void) {
  for (struct dibs__side *side = first; side; side = side->next)
    if (side->fd >= 0) close(side->fd);
  first = NULL;
  pthread_mutex_unlock(&lock);
}

bool dibs__side_fork_add(struct dibs__side *side) {
  pthread_mutex_lock(&lock);
  bool fine = watched || pthread_atfork(before_fork, in_parent, in_child) == 0;
  watched = fine;
  if (fine) {
    side->next = first;
    first = side;
  }
  pthread_mutex_unlock(&lock);
  return fine;
}

void dibs__side_fork_remove(struct dibs__side *side) {
  pthread_mutex_lock(&lock);
  for (struct dibs__side **at = &first; *at; at = &(*at)->next)
    if (*at == side) {
      *at = side->next;
      break;
    }
  pthread_mutex_unlock(&lock);
}

void dibs__side_fork_hold(void) {
  pthread_mutex_lock(&lock);
}

void dibs__side_fork_let_go(void) {
  pthread_mutex_unlock(&lock);
}
