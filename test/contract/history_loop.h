/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_CONTRACT_HISTORY_LOOP_H
#define DIBS_TEST_CONTRACT_HISTORY_LOOP_H
/* Programs that run random histories whose steps can be left out: all runs, and the shortest history that differs. */
#include "history_args.h"

#include <stddef.h>

struct history_verdict {
  bool differs;
  size_t at; /* the step */
  char text[400];
  uint64_t answered[104], counts[4]; /* counts: as history_kind names them */
};

/* Notes the first difference, at this step. */
void history_differ(struct history_verdict *verdict, size_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

struct history_kind {
  const char *name;       /* of the program */
  const char *compares;   /* what differs, before the text of a difference; may be "" */
  const char *lacks;      /* what a store lacks in which these histories can't run */
  const char *counted[4]; /* "claims"; up to NULL */
  size_t step_size, steps_max;
  bool (*fits)(void); /* a store of the case has what they need */
  /* The same seed always gives the same steps. */
  void (*draw)(uint64_t seed, void *steps, size_t count);
  /* On the store of a new case.  `prints`: also prints the steps. */
  void (*run)(const void *steps, size_t count, bool prints, struct history_verdict *verdict);
};

int history_main(int argc, char *argv[], const struct history_kind *kind);

#endif
