/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_REDIS_BED_H
#define DIBS_TEST_REDIS_BED_H
/* Links as the driver makes them, without a store around; and a server of our own, which says what a test wants. */
#include "drivers/redis_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* No test waits for longer than this for what must come. */
enum { LONG_MS = 10000 };

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

extern const char *bed_uri, *bed_admin_uri; /* set by bed_args */

/* main's: the URI of the server, and with the environment's help that of its administrator. */
void bed_args(int argc, char **argv);

dibs__tick within(int64_t ms);
/* The URI with `more` behind it. */
const char *bed_with(const char *uri, const char *more);
struct dibs__redis_place *bed_place(const char *uri);
/* Must succeed. */
struct dibs__redis_link *bed_connect(const struct dibs__redis_place *place);
/* Must fail with this status; what was said, in which `words` must be found and no password. */
void bed_refused(const char *uri, dibs__status status, const char *words);

/* Words, NULL behind the last. */
void bed_put(struct dibs__redis_link *link, const char *const words[]);
#define PUT(link, ...) bed_put(link, (const char *const[]){__VA_ARGS__, NULL})
void bed_go(struct dibs__redis_link *link);
/* One command, which must be answered by no error. */
const redisReply *bed_run(struct dibs__redis_link *link, const char *const words[]);
#define RUN(link, ...) bed_run(link, (const char *const[]){__VA_ARGS__, NULL})
/* As the administrator, on a connection for this alone. */
void bed_admin(const char *const words[]);
#define ADMIN(...) bed_admin((const char *const[]){__VA_ARGS__, NULL})
/* script/servers: "pause", "resume", "restart", "kill", "start". */
void bed_servers(const char *verb);

/* ---- A server of our own ---- */

struct fake {
  const char *version, *role, *policy, *cluster; /* of its INFO; NULL: what is fine */
  const char *error;  /* what each command is answered with instead, as it travels: "-LOADING wait\r\n" */
  const char *greets; /* said before anything was asked; then it closes */
  size_t piece;       /* bytes that go out at once; 0: all */
  bool silent;        /* behind INFO nothing is answered */
  size_t dies_after;  /* commands that are answered before it closes; 0: never */
  /* Its own. */
  int listens;
  uint16_t port;
  dibs__thread *thread;
  _Atomic bool ends;
};

void fake_start(struct fake *fake);
void fake_stop(struct fake *fake);
const char *fake_uri(const struct fake *fake);

#endif
