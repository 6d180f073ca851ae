/* SPDX-License-Identifier: MIT */
#ifndef DIBS_TEST_MONGODB_STEPS_BED_H
#define DIBS_TEST_MONGODB_STEPS_BED_H
/* A client that ends at one of its requests (wire.h), and another client, which does not. */
#include "drivers/mongodb/mongodb_impl.h"
#include "wire.h"

enum { PATIENCE_MS = 20000 };

struct bed_client {
  struct dibs__dstore *store;
  struct dibs__session *session;
  struct dibs__identity identity;
};

struct bed {
  const char *server; /* its URI; set by the caller */
  char host[64], database[64], prefix[40];
  uint16_t port;
  struct wire *wire;
  struct bed_client other;
};

bool bed_open(struct bed *bed);
void bed_close(struct bed *bed);
/* A client at this port of the bed's host.  Two claims stay inside of a stock's document, so that others are moved out.
 */
bool bed_connect(const struct bed *bed, struct bed_client *c, uint16_t port);
void bed_disconnect(struct bed_client *c);

/* Lets a client act, in a thread, until it has ended or stopped at the step that the wire was armed for. */
struct bed_acting {
  void (*act)(void *user);
  void *user;
  dibs__thread *thread;
  _Atomic bool done;
};
bool bed_begin(struct bed *bed, struct bed_acting *acting, enum wire_end how);
/* Lets it continue, until it has ended. */
void bed_finish(struct bed *bed, struct bed_acting *acting);

#endif
