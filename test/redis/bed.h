/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_REDIS_BED_H
#define DIBS_TEST_REDIS_BED_H
/*
 * Links as the driver makes them, without a store around them; and a server of the test's own, whose answers the test
 * chooses.
 */
#include "drivers/redis/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* No test waits longer than this for a condition. */
enum { LONG_MS = 10000 };

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

extern const char *bed_uri, *bed_admin_uri; /* bed_args sets it */

/* For main(): stores the URI of the server and, from the environment, that of its administrator. */
void bed_args(int argc, char **argv);

dibs__tick within(int64_t ms);
/* The URI with `more` appended. */
const char *bed_with(const char *uri, const char *more);
struct dibs__redis_location *bed_location(const char *uri);
/* Must succeed. */
struct dibs__redis_link *bed_connect(const struct dibs__redis_location *location);
/* Must fail with this status; returns the message, which must contain `words` and no password. */
void bed_refused(const char *uri, dibs__status status, const char *words);

/* Words, NULL after the last. */
void bed_put(struct dibs__redis_link *link, const char *const words[]);
#define PUT(link, ...) bed_put(link, (const char *const[]){__VA_ARGS__, NULL})
void bed_go(struct dibs__redis_link *link);
/* One command, whose answer must not be an error. */
const redisReply *bed_run(struct dibs__redis_link *link, const char *const words[]);
#define RUN(link, ...) bed_run(link, (const char *const[]){__VA_ARGS__, NULL})
/* As the administrator, on a connection only for this command. */
void bed_admin(const char *const words[]);
#define ADMIN(...) bed_admin((const char *const[]){__VA_ARGS__, NULL})
/* script/servers: "pause", "resume", "restart", "kill", "start". */
void bed_servers(const char *verb);

/* ---- A server of the test's own ---- */

struct fake {
  const char *version, *role, *policy, *cluster; /* of its INFO; NULL: acceptable values */
  const char *error;  /* the answer to each command instead, in the protocol's form: "-LOADING wait\r\n" */
  const char *greets; /* sent before any request; then the server closes */
  size_t piece;       /* bytes that are sent at once; 0: all */
  bool silent;        /* nothing is answered after INFO */
  size_t dies_after;  /* number of commands that are answered before the server closes; 0: it never closes */
  /* State of the server. */
  int listens;
  uint16_t port;
  dibs__thread *thread;
  _Atomic bool ends;
};

void fake_start(struct fake *fake);
void fake_stop(struct fake *fake);
const char *fake_uri(const struct fake *fake);

#endif
