/* SPDX-License-Identifier: MIT */
/* `dibs run NAME -- true` and `flock FILE true`, from start to end as a shell would see it. */
#include "cli/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* One call, waited for.  false unless it ended with 0. */
static bool call(struct bench *b, const char *program, char *const argv[]) {
  pid_t pid;
  if (!dibs__bench_spawn(b, program, argv, &pid)) return false;
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return dibs__bench_fail(b, "%s was not waited for: %s", argv[0], strerror(errno));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  int how = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return dibs__bench_fail(b, "%s ended with status %d", argv[0], how);
}

static bool calls(struct bench *b, const char *program, char *const argv[], struct bench_sample *sample) {
  struct dibs__hist *hist = calloc(1, sizeof *hist);
  if (!hist) return dibs__bench_fail(b, "out of memory");
  bool done = call(b, program, argv); /* brings the program into the page cache */
  dibs__tick from = dibs__tick_now(), last = from;
  for (uint32_t i = 0; done && i < b->size.calls; i++) {
    done = call(b, program, argv);
    dibs__tick now = dibs__tick_now();
    dibs__hist_add(hist, now.ns - last.ns);
    last = now;
  }
  if (done) {
    dibs__bench_sample_hist(sample, hist);
    sample->value[BENCH_RATE] = b->size.calls * 1e9 / (double)(last.ns - from.ns);
  }
  free(hist);
  return done;
}

bool dibs__bench_side_command(struct bench *b, uint32_t arg, struct bench_sample *sample) {
  char name[64], file[sizeof b->folder + 16];
  char dibs[] = "dibs", run[] = "run", dashes[] = "--", flock[] = "flock", nothing[] = "true";
  if (arg == BENCH_COMMAND_FLOCK) {
    snprintf(file, sizeof file, "%s/flock", b->folder);
    return calls(b, "flock", (char *[]){flock, file, nothing, NULL}, sample);
  }
  dibs__bench_name(name, 0);
  return calls(b, DIBS__BENCH_SELF, (char *[]){dibs, run, name, dashes, nothing, NULL}, sample);
}
