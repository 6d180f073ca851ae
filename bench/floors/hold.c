/* SPDX-License-Identifier: MIT */
/* How much held leases add to the memory of a server, as the server reports it. */
#include "floor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { A_TRIP = 64 };

static bool hold_all(const struct floor_engine *engine, struct floor_link *link, int32_t count) {
  bool fine = true;
  for (int32_t from = 0; fine && from < count; from += A_TRIP)
    fine = engine->hold(link, from, (uint32_t)(count - from < A_TRIP ? count - from : A_TRIP), 1);
  return fine;
}

int floor_hold(const struct floor_engine *engine, const char *uri, int32_t count) {
  char why[FLOOR_WHY] = "";
  struct floor_weight before, after;
  struct floor_audit audit;
  struct floor_link *link = engine->open(uri, NULL, why);
  if (!link) {
    fprintf(stderr, "floor-%s: %s\n", engine->name, why);
    return EXIT_FAILURE;
  }
  bool fine = engine->setup(link, 0, count) && engine->weigh(link, &before);
  dibs__tick from = dibs__tick_now();
  fine = fine && hold_all(engine, link, count);
  double seconds = (double)(dibs__tick_now().ns - from.ns) / 1e9;
  fine = fine && engine->weigh(link, &after);
  fine = engine->audit(link, &audit) && fine && audit.held == count;
  if (fine) {
    printf("{\"engine\":\"%s\",\"bytes\":%" PRId64 ",\"keys\":%" PRId64 ",\"commands\":%" PRId64, engine->name,
           before.bytes, before.keys, before.commands);
    if (count)
      printf(",\"held\":%" PRId32 ",\"bytes_each\":%.1f,\"keys_each\":%.2f,\"per_second\":%.1f", count,
             (double)(after.bytes - before.bytes) / count, (double)(after.keys - before.keys) / count,
             (double)count / seconds);
    puts("}");
  } else {
    fprintf(stderr, "floor-%s: %s\n", engine->name, link->why);
  }
  engine->close(link);
  return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
