/* SPDX-License-Identifier: MIT */
/* How much of the machine others used while a side ran: what is measured beside a compiler is a measure of both. */
#include "cli/bench.h"

#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

enum { FIELDS = 8, IDLE = 3, IOWAIT = 4 }; /* of the first line of /proc/stat */

/* Seconds of all processors: whether used, and in all. */
static bool machine(double *used, double *all) {
  uint64_t field[FIELDS] = {0};
  FILE *file = fopen("/proc/stat", "re");
  if (!file) return false;
  int got =
      fscanf(file, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
             &field[0], &field[1], &field[2], &field[3], &field[4], &field[5], &field[6], &field[7]);
  fclose(file);
  if (got != FIELDS) return false;
  double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
  *used = *all = 0;
  for (int i = 0; i < FIELDS; i++) {
    *all += (double)field[i] * tick;
    if (i != IDLE && i != IOWAIT) *used += (double)field[i] * tick;
  }
  return true;
}

static double seconds(struct timeval time) {
  return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

double dibs__bench_cpu(void) {
  struct rusage self;
  getrusage(RUSAGE_SELF, &self);
  return seconds(self.ru_utime) + seconds(self.ru_stime);
}

/* What this process and the helpers that have ended used. */
static double own(void) {
  struct rusage children;
  getrusage(RUSAGE_CHILDREN, &children);
  return dibs__bench_cpu() + seconds(children.ru_utime) + seconds(children.ru_stime);
}

void dibs__bench_noise_begin(struct bench_noise *noise) {
  noise->known = machine(&noise->used, &noise->all);
  noise->own = own();
}

void dibs__bench_noise_end(const struct bench_noise *noise, struct bench_sample *sample) {
  double used, all;
  if (!noise->known || !machine(&used, &all) || !(all > noise->all)) return;
  double others = used - noise->used - (own() - noise->own);
  if (others < 0) others = 0; /* the machine counts by ticks */
  sample->value[BENCH_OTHERS] = 100 * others / (all - noise->all);
}
