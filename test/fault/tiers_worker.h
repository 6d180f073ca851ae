/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_TIERS_WORKER_H
#define DIBS_TEST_FAULT_TIERS_WORKER_H
#include "tiers.h"

enum { TIERS_THREADS = 8 };

struct tiers_job {
  char uri[1536];
  char folder[128];
  uint32_t party, threads, names;
  int64_t ttl_ms, hold_ms, pause_ms;
  enum tiers_how how;
  uint64_t seed;
};

/* A key that is unique to this run: the database may have served others. */
enum { TIERS_KEY = 48 };
void tiers_key(char key[TIERS_KEY], const char *what, const char *folder, uint16_t name);

/* Runs until SIGTERM; returns the process's exit status. */
int tiers_worker(const struct tiers_job *job);

#endif
