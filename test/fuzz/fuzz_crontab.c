/* SPDX-License-Identifier: MIT */
/* Any bytes as a crontab: each line is empty, a variable, a job or a flaw, and what a job has is whole. */
#include "base/text.h"
#include "fuzz.h"
#include "task/crontab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                    \
  do                                                                                                                   \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "not so: %s\n", #what);                                                                          \
      abort();                                                                                                         \
    }                                                                                                                  \
  while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct dibs__crontab *tab = dibs__crontab_read((const char *)data, size, "UTC");
  if (!tab) return 0;
  unsigned line = 0;
  for (size_t i = 0; i < tab->job_count; i++) {
    const struct dibs__cron_job *job = &tab->jobs[i];
    CHECK(job->line > line);
    line = job->line;
    CHECK(dibs__name_check(job->name, strlen(job->name), DIBS__CRONTAB_NAME, NULL) == DIBS__NAME_OK);
    CHECK(job->command[0] != '\0' && job->zone && job->environment);
    CHECK(job->timeout_ms >= 0 && job->jitter_ms >= 0 && job->window_ms > 0);
    for (size_t n = 0; job->environment[n]; n++) CHECK(strchr(job->environment[n], '='));
    CHECK(dibs__schedule_next(&job->schedule, job->zone, 1700000000) > 1700000000);
  }
  for (size_t i = 0; i < tab->flaw_count; i++) CHECK(tab->flaws[i].message[0] != '\0');
  dibs__crontab_free(tab);
  return 0;
}
