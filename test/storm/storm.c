/* SPDX-License-Identifier: MIT */
/*
 * storm [SECONDS [SEED]]: processes and threads on one embedded store, some of which are killed and stopped at random
 * beyond their ttl; then the checker.  Exit status 0: every promise was kept.
 */
#include "storm.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 6, SPARED = 2, THREADS = 3, CLOSE_MS = 20000 };

struct nemesis {
  struct storm *storm;
  const char *uri;
  uint64_t random;
  struct storm_log *living[PROCESSES];
  uint32_t kills, stops;
};

static struct storm_log *spawn(struct storm *storm, const char *uri, bool spared) {
  uint32_t at = atomic_load(&storm->logs);
  if (at == STORM_LOGS) return NULL;
  struct storm_log *log = &storm->log[at];
  log->spared = spared;
  log->began_ns = dibs__tick_now().ns;
  atomic_store(&storm->logs, at + 1);
  pid_t pid = fork();
  if (pid == 0) _exit(storm_live(storm, log, uri, THREADS));
  log->pid = pid;
  return log;
}

static void strike(struct nemesis *n) {
  uint64_t drawn = storm_draw(&n->random);
  uint32_t victim = SPARED + (uint32_t)(drawn % (PROCESSES - SPARED));
  struct storm_log *log = n->living[victim];
  log->disturbed_ns = dibs__tick_now().ns;
  if (drawn / 64 % 2 == 0) {
    kill(log->pid, SIGKILL);
    waitpid(log->pid, NULL, 0);
    n->kills++;
    struct storm_log *next = spawn(n->storm, n->uri, false);
    if (next) n->living[victim] = next;
  } else {
    kill(log->pid, SIGSTOP);
    dibs__nap_ms(300 + (int64_t)(drawn / 128 % 700)); /* before and beyond the ttl of 400 ms */
    kill(log->pid, SIGCONT);
    n->stops++;
  }
}

static bool end(struct nemesis *n) {
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), CLOSE_MS);
  bool all = true;
  atomic_store(&n->storm->over, true);
  for (uint32_t i = 0; i < PROCESSES; i++) {
    int status;
    while (waitpid(n->living[i]->pid, &status, WNOHANG) == 0) {
      if (!dibs__tick_before(dibs__tick_now(), by)) {
        printf("process %d did not come to an end: it waits for ever\n", n->living[i]->pid);
        kill(n->living[i]->pid, SIGKILL);
        waitpid(n->living[i]->pid, &status, 0);
        all = false;
        break;
      }
      dibs__nap_ms(10);
    }
  }
  return all;
}

static uint64_t final_value(const char *uri) {
  dibs_store *store;
  dibs_error error;
  char *data = NULL;
  size_t length;
  uint64_t value = 0;
  if (dibs_open(uri, NULL, &store, &error) != DIBS_OK) {
    printf("open afterwards: %s\n", error.text);
    exit(1);
  }
  if (dibs_record_load(store, "counter", &data, &length, NULL, &error) == DIBS_OK && data)
    value = strtoull(data, NULL, 10);
  free(data);
  dibs_close(store);
  return value;
}

int main(int argc, char *argv[]) {
  int64_t seconds = argc > 1 ? strtoll(argv[1], NULL, 10) : 12;
  uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)dibs__tick_now().ns | 1;
  char folder[] = "/tmp/dibs-storm-XXXXXX", uri[96], command[96];
  struct storm *storm =
      mmap(NULL, sizeof *storm, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (storm == MAP_FAILED || !mkdtemp(folder)) return 2;
  snprintf(uri, sizeof uri, "sqlite://%s/dibs.db", folder);
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("storm of %" PRId64 " s, seed %" PRIu64 ": %d processes of %d threads, %d of them spared\n", seconds, seed,
         PROCESSES, THREADS, SPARED);
  storm->seed = seed;
  struct nemesis nemesis = {.storm = storm, .uri = uri, .random = seed};
  for (uint32_t i = 0; i < PROCESSES; i++) nemesis.living[i] = spawn(storm, uri, i < SPARED);
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), seconds * 1000);
  while (dibs__tick_before(dibs__tick_now(), by)) {
    dibs__nap_ms(50 + (int64_t)(storm_draw(&nemesis.random) % 200));
    strike(&nemesis);
  }
  bool fine = end(&nemesis);
  printf("%u killed, %u stopped\n", nemesis.kills, nemesis.stops);
  fine = storm_check(storm, final_value(uri)) && fine;
  snprintf(command, sizeof command, "%s", folder);
  char *const remove[] = {"rm", "-rf", command, NULL};
  pid_t pid = fork();
  if (pid == 0) execvp(remove[0], remove), _exit(127);
  waitpid(pid, NULL, 0);
  printf("%s\n", fine ? "every promise was kept" : "BROKEN");
  return fine ? 0 : 1;
}
