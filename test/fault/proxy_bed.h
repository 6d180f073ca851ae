/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_PROXY_BED_H
#define DIBS_TEST_PROXY_BED_H
/*
 * Helpers of the proxy's tests: a server that sends back each line and remembers the lines, a proxy in front of it, and
 * plain clients.
 */
#include "proxy.h"
#include "unit/unit.h"

struct echo;
struct bed {
  struct echo *echo;
  struct proxied *proxied;
};

/* A server behind a proxy that speaks this protocol.  The server reads a line that begins with "slow" after SLOW_MS. */
enum { SLOW_MS = 150 };
struct bed bed_make(enum frame_protocol protocol);
void bed_end(struct bed *bed);

/* A command whose answer must be ok. */
void tell(struct bed *bed, const char *line);

/* ---- What the server saw ---- */

bool echo_heard(struct bed *bed, const char *line); /* until now */
bool echo_hears(struct bed *bed, const char *line); /* within LONG_MS */
size_t echo_lines(struct bed *bed);
size_t echo_open(struct bed *bed);                                /* connections */
bool echo_sees_ends(struct bed *bed, size_t ends, size_t resets); /* sees this many within LONG_MS */
void echo_hang_up(struct bed *bed);                               /* closes all connections cleanly */

/* ---- Clients ---- */

int client_connect(struct bed *bed); /* -1 and errno if the connection is refused */
void client_say(int fd, const char *text);
/* The next line that the client receives is this one. */
void client_hears(int fd, const char *line);
/* The client receives nothing for a while. */
void client_hears_nothing(int fd);
enum client_end { CLIENT_OPEN, CLIENT_ENDED, CLIENT_RESET };
enum client_end client_end(int fd); /* the connection ends within LONG_MS; a line before that is a failure */

#endif
