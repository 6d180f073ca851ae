/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_WIRE_H
#define DIBS_TEST_MONGODB_WIRE_H
/*
 * Between one client and a MongoDB server, in this process: it ends the client at its n-th request, as if its process
 * was killed, or stops it there and delivers the request much later.
 */
#include <stdbool.h>
#include <stdint.h>

enum wire_end {
  WIRE_KILL, /* the request is done, and the client does not see the answer, */
  WIRE_HOLD  /* or it is done when wire_release() is called */
};

struct wire;
/* NULL: impossible. */
struct wire *wire_open(const char *host, uint16_t port);
uint16_t wire_port(const struct wire *wire);
/* From now on requests are counted; the n-th one (from 1 on) is the client's last one.  0: none is. */
void wire_arm(struct wire *wire, enum wire_end how, int nth);
bool wire_ended(struct wire *wire); /* it was the last one */
/* Delivers what is held, if anything is, and waits until the server has answered it. */
void wire_release(struct wire *wire);
void wire_close(struct wire *wire);

#endif
