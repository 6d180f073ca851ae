/* SPDX-License-Identifier: MIT */
/* What doctor asks the independent servers of redlock://, each by a connection of its own. */
#include "drivers/redis/describe.h"
#include "drivers/redlock/redlock_impl.h"

#include <stdio.h>

/* true: it answers. */
static bool describe_node(const struct dibs__redlock *store, size_t nth, dibs__tick by, struct dibs__findings *to,
                          struct dibs__findings *settings, struct dibs__findings *tls) {
  const struct dibs__redis_address *address = &store->location->hosts[nth];
  struct dibs__result result = {.text = ""};
  struct dibs__redis_facts f;
  struct dibs__redis_link *link = NULL;
  char name[64], of[300];
  bool answers = dibs__redis_connect(store->location, nth, by, &link, &result) == DIBS_OK &&
                 dibs__redis_ask(link, by, &f, NULL, &result);
  if (answers) {
    dibs__find(to, "node", "%s:%u: %s", address->host, (unsigned)address->port, dibs__redis_named(&f, name));
    snprintf(of, sizeof of, " of %s:%u", address->host, (unsigned)address->port);
    dibs__redis_find_settings(&f, of, true, settings);
    if (tls->count == 0) dibs__redis_find_tls(link, tls);
  } else {
    dibs__find_trouble(to, "node", "look at that server: redlock needs a majority of them", "%s:%u does not answer: %s",
                       address->host, (unsigned)address->port, result.text);
  }
  if (link) dibs__redis_disconnect(link);
  return answers;
}

void dibs__redlock_describe(struct dibs__redlock_session *s, dibs__tick by, struct dibs__findings *to) {
  const struct dibs__redlock *store = s->store;
  struct dibs__findings nodes = {0}, settings = {0}, tls = {0};
  size_t answer = 0;
  for (size_t i = 0; i < store->count; i++)
    answer += describe_node(store, i, dibs__engine_node_by(by, store->count - i), &nodes, &settings, &tls);
  dibs__find(to, "server", "%zu independent servers of Redis", store->count);
  if (answer < store->majority)
    dibs__find_trouble(to, "role", "look at the servers: without a majority no lease is granted",
                       "%zu of %zu answer, and %zu are needed", answer, store->count, store->majority);
  else
    dibs__find(to, "role", "%zu of %zu answer, and %zu are needed", answer, store->count, store->majority);
  dibs__findings_move(&nodes, to);
  dibs__findings_move(&tls, to);
  dibs__findings_move(&settings, to);
}
