/* SPDX-License-Identifier: MIT */
/*
 * hold_line STORE NAME WAITERS WAIT_MS: holds the name while WAITERS threads of this process wait for it, each for
 * WAIT_MS at most. Prints "held", then a line for each thread with the status that ends its wait. A line on standard
 * input releases the name; the end of standard input ends the program.
 */
#include "dibs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { WAITERS_MAX = 64 };

struct waiter {
  pthread_t thread;
  dibs_store *store;
  const char *name;
  long long wait_ms;
};

static void *wait_for_name(void *arg) {
  const struct waiter *w = arg;
  dibs_lease_options options = {.size = sizeof options, .wait_ms = w->wait_ms, .owner = "a thread"};
  dibs_lease *lease = NULL;
  dibs_status status = dibs_acquire(w->store, w->name, &options, &lease, NULL);
  printf("%s\n", dibs_status_name(status));
  fflush(stdout);
  dibs_lease_free(lease); /* releases it */
  return NULL;
}

int main(int argc, char *argv[]) {
  static struct waiter waiters[WAITERS_MAX];
  dibs_store *store = NULL;
  dibs_lease *lease = NULL;
  dibs_error error = {0};
  int count = argc == 5 ? (int)strtol(argv[3], NULL, 10) : 0;
  if (count < 1 || count > WAITERS_MAX) return 2;
  dibs_lease_options options = {.size = sizeof options, .wait_ms = 0, .owner = "the holder"};
  if (dibs_open(argv[1], NULL, &store, &error) != DIBS_OK ||
      dibs_acquire(store, argv[2], &options, &lease, &error) != DIBS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  puts("held");
  fflush(stdout);
  for (int i = 0; i < count; i++) {
    waiters[i] = (struct waiter){.store = store, .name = argv[2], .wait_ms = strtoll(argv[4], NULL, 10)};
    if (pthread_create(&waiters[i].thread, NULL, wait_for_name, &waiters[i]) != 0) return 1;
  }
  getchar();
  dibs_lease_free(lease);
  for (int i = 0; i < count; i++) pthread_join(waiters[i].thread, NULL);
  while (getchar() != EOF) continue;
  dibs_close(store);
  return 0;
}
