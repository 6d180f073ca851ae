/* SPDX-License-Identifier: MIT */
#include "steps_bed.h"

#include <stdio.h>
#include <string.h>

static const struct dibs__driver *const driver = &dibs__mongodb_driver;

bool bed_connect(const struct bed *bed, struct bed_client *c, uint16_t port) {
  char text[256];
  struct dibs__uri uri;
  struct dibs__result result = {.text = ""};
  dibs__tick by = dibs__tick_add_ms(dibs__tick_now(), PATIENCE_MS);
  snprintf(text, sizeof text, "mongodb://%s:%u/%s?claims=2&prefix=%s", bed->host, port, bed->database, bed->prefix);
  memset(c, 0, sizeof *c);
  if (dibs__uri_parse(text, &uri, &result) != DIBS_OK) return false;
  bool fine = driver->open(&uri, NULL, 0, by, &c->store, &result) == DIBS_OK;
  dibs__uri_free(&uri);
  if (fine) c->store->driver = driver;
  fine = fine && driver->connect(c->store, by, &c->session, &c->identity, &result) == DIBS_OK;
  if (!fine) fprintf(stderr, "steps: %s\n", result.text);
  return fine;
}

void bed_disconnect(struct bed_client *c) {
  if (c->session) driver->disconnect(c->session);
  if (c->store) driver->close(c->store);
}

static void run_acting(void *arg) {
  struct bed_acting *acting = arg;
  acting->act(acting->user);
  atomic_store(&acting->done, true);
}

bool bed_begin(struct bed *bed, struct bed_acting *acting, enum wire_end how) {
  atomic_store(&acting->done, false);
  acting->thread = dibs__thread_start("client", run_acting, acting);
  if (!acting->thread) return false;
  while (!atomic_load(&acting->done) && !(how == WIRE_STOP && wire_ended(bed->wire))) dibs__nap_ms(1);
  return true;
}

void bed_finish(struct bed *bed, struct bed_acting *acting) {
  wire_release(bed->wire);
  dibs__thread_join(acting->thread);
}

bool bed_open(struct bed *bed) {
  uint64_t random;
  struct dibs__uri uri;
  struct dibs__result result;
  mongoc_init();
  if (dibs__uri_parse(bed->server, &uri, &result) != DIBS_OK) return false;
  bool fine = sscanf(uri.hosts, "%63[^:]:%hu", bed->host, &bed->port) == 2;
  snprintf(bed->database, sizeof bed->database, "%s", uri.path[0] == '/' ? uri.path + 1 : uri.path);
  dibs__uri_free(&uri);
  dibs__random(&random, sizeof random);
  snprintf(bed->prefix, sizeof bed->prefix, "s%llx_", (unsigned long long)random);
  if (fine) bed->wire = wire_open(bed->host, bed->port);
  return bed->wire && bed_connect(bed, &bed->other, bed->port);
}

void bed_close(struct bed *bed) {
  bed_disconnect(&bed->other);
  wire_close(bed->wire);
}
