/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_BED_H
#define DIBS_TEST_PROXY_BED_H
/* What the proxy's tests stand on: a server that says each line again and remembers what it heard, a proxy in front of
 * it, and plain clients. */
#include "proxy.h"
#include "unit/unit.h"

struct echo;
struct bed {
  struct echo *echo;
  struct proxied *proxied;
};

/* A server behind a proxy that speaks this protocol.  A line that begins with "slow" is taken in after SLOW_MS. */
enum { SLOW_MS = 150 };
struct bed bed_make(enum frame_protocol protocol);
void bed_end(struct bed *bed);

/* A command that must be answered by ok. */
void tell(struct bed *bed, const char *line);

/* ---- What the server saw ---- */

bool echo_heard(struct bed *bed, const char *line); /* until now */
bool echo_hears(struct bed *bed, const char *line); /* within LONG_MS */
size_t echo_lines(struct bed *bed);
size_t echo_open(struct bed *bed);                                /* connections */
bool echo_sees_ends(struct bed *bed, size_t ends, size_t resets); /* comes to have seen so many, within LONG_MS */
void echo_hang_up(struct bed *bed);                               /* ends all connections, in order */

/* ---- Clients ---- */

int client_connect(struct bed *bed); /* -1 and errno when it is refused */
void client_say(int fd, const char *text);
/* The next line is this one. */
void client_hears(int fd, const char *line);
/* Nothing comes for a while. */
void client_hears_nothing(int fd);
enum client_end { CLIENT_OPEN, CLIENT_ENDED, CLIENT_RESET };
enum client_end client_end(int fd); /* what comes within LONG_MS; what is said before counts as a failure */

#endif
