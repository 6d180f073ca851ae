/* SPDX-License-Identifier: MIT */
#ifndef DIBS_SERVE_NOTIFY_H
#define DIBS_SERVE_NOTIFY_H
/* What systemd wants to know of a service, sd_notify(3): nothing is sent if $NOTIFY_SOCKET is not set. */
#include "base/port.h"

struct notify {
  int64_t watchdog_ms; /* how often systemd expects a message of the loop; 0: it need not */
  dibs__tick next;
};

/* "READY=1", "RELOADING=1", "STOPPING=1" */
void dibs__notify_send(const char *state);
/* Reads $WATCHDOG_USEC and $WATCHDOG_PID. */
void dibs__notify_open(struct notify *notify);
/* The loop runs: tells the watchdog when it is time.  Returns in how many ms to call it again, at most `most_ms`. */
int64_t dibs__notify_tick(struct notify *notify, dibs__tick now, int64_t most_ms);

#endif
