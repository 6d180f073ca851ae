/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_WIRE_H
#define DIBS_TEST_MONGODB_WIRE_H
/*
 * Between one client and a MongoDB server, in this process: it ends the client at its n-th request, as if its process
 * was killed, or stops it there, until it may continue.
 */
#include <stdbool.h>
#include <stdint.h>

enum wire_end {
  WIRE_KILL,  /* the request is done, and the client does not see the answer, */
  WIRE_STOP,  /* or it is done when wire_release() is called, and the client continues, */
  WIRE_DAMAGE /* or it is done, and the answer is damaged */
};

struct wire;
/* NULL: impossible. */
struct wire *wire_open(const char *host, uint16_t port);
uint16_t wire_port(const struct wire *wire);
/* From now on requests are counted; at the n-th one (from 1 on) the client ends.  0: at none. */
void wire_arm(struct wire *wire, enum wire_end how, int nth);
bool wire_ended(struct wire *wire); /* it has */
/* Delivers what is held, if anything is. */
void wire_release(struct wire *wire);
void wire_close(struct wire *wire);

#endif
