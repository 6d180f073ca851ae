/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_FAULT_DOUBT_BED_H
#define DIBS_TEST_FAULT_DOUBT_BED_H
/*
 * A store seen through a proxy that loses what is in flight, and the same store seen straight.
 *
 * Each case names what it breaks by words of the request itself (its claim, its value), and checks at its end that
 * exactly that was broken: a trigger that did not fire has tested nothing.
 */
#include "fault/proxy.h"
#include "guard/record_bed.h"

enum { LATE_MS = 200, SOON_MS = 20000 };

extern struct proxied *proxy;
extern dibs_store *through, *straight;

int doubt_begin(void **state);
int doubt_end(void **state);
#define DOUBT(f) cmocka_unit_test_setup_teardown(f, doubt_begin, doubt_end)

/* Tells the proxy: how is "cut-before-request", ...; nth 1 is the first request that has the words.  `ms` 0: none. */
void breaks(const char *how, unsigned nth, const char *words, int ms);
/* The trigger has fired, and, if it was an orphan, its connection is gone at the server: it has landed, or never will.
 */
void landed(void);
/* Another one may be told after it. */
void fired(void);

/* A name that no other case or run has had. */
const char *fresh(const char *what);
long now_ms(void);
void nap_ms(long ms);
#define UNTIL(condition)                                                                                               \
  do {                                                                                                                 \
    long until_by = now_ms() + SOON_MS;                                                                                \
    while (!(condition)) {                                                                                             \
      if (now_ms() > until_by) fail_msg("line %d: it never came true: %s", __LINE__, #condition);                      \
      nap_ms(2);                                                                                                       \
    }                                                                                                                  \
  } while (0)

/* The engine's name of a table of dibs' own. */
const char *own_table(const char *name);

#endif
