/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_DOUBT_BED_H
#define DIBS_TEST_FAULT_DOUBT_BED_H
/*
 * A store reached through a proxy that loses requests and answers, and the same store reached directly.
 *
 * Each case names the request to break by a text in it (its claim, its value), and checks at its end that exactly this
 * request was broken: a trigger that did not fire has tested nothing.
 */
#include "fault/proxy.h"
#include "guard/record_bed.h"

enum { LATE_MS = 200, SOON_MS = 20000 };

extern struct proxied *proxy;
extern dibs_store *through, *straight;

int doubt_begin(void **state);
int doubt_end(void **state);
#define DOUBT(f) cmocka_unit_test_setup_teardown(f, doubt_begin, doubt_end)

/* Arms the proxy: `how` is "cut-before-request", ...; nth 1 is the first request that contains the text. `ms` 0:
 * none. */
void breaks(const char *how, unsigned nth, const char *words, int ms);
/* Checks that the trigger has fired, and, for an orphan, that its connection at the server has ended: it has landed, or
 *never will.
 */
void landed(void);
/* After this, another trigger may be armed. */
void fired(void);

/* A name that no other case or run has used. */
const char *fresh(const char *what);
long now_ms(void);
void nap_ms(long ms);
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    long until_by = now_ms() + SOON_MS;                                                                                \
    while (!(condition)) {                                                                                             \
      if (now_ms() > until_by) fail_msg("line %d: this never became true: %s", __LINE__, #condition);                  \
      nap_ms(2);                                                                                                       \
    }                                                                                                                  \
  } while (0)

/* The engine's name for one of dibs' own tables. */
const char *own_table(const char *name);

#endif
