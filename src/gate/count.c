/* SPDX-License-Identifier: MIT */
/* What became of requests, and how long they took.  In the loop only. */
#include "base/hist.h"
#include "gate/gate_impl.h"
#include "serve/meter.h"

#include <stdlib.h>

static const char *const words[OUTCOMES] = {[OUTCOME_PASSED] = "passed",
                                            [OUTCOME_REPLAYED] = "replayed",
                                            [OUTCOME_STALE] = "stale",
                                            [OUTCOME_REFUSED] = "refused",
                                            [OUTCOME_UNAVAILABLE] = "unavailable",
                                            [OUTCOME_SERVICE_FAILED] = "service_failed",
                                            [OUTCOME_ABANDONED] = "abandoned"};

struct counts {
  struct dibs__hist took[OUTCOMES];
};

bool dibs__count_open(struct gate *gate) {
  gate->counts = calloc(1, sizeof *gate->counts);
  return gate->counts != NULL;
}

void dibs__count_close(struct gate *gate) {
  free(gate->counts);
}

static enum outcome outcome_of(const struct request *r) {
  const struct exchange *e = r->work;
  if (e && e->stale) return OUTCOME_STALE;
  if (e && e->sent) return e->broken ? OUTCOME_SERVICE_FAILED : e->replayed ? OUTCOME_REPLAYED : OUTCOME_PASSED;
  if (!r->queued) return OUTCOME_ABANDONED;
  if (r->answer.status == 502 || r->answer.status == 504) return OUTCOME_SERVICE_FAILED;
  return r->answer.status == 503 ? OUTCOME_UNAVAILABLE : OUTCOME_REFUSED;
}

void dibs__count_request(struct request *r) {
  struct gate *gate = r->server->service_state;
  enum outcome outcome = outcome_of(r);
  dibs__tick end = r->queued ? r->queued_at : dibs__tick_now();
  r->outcome = words[outcome];
  dibs__hist_add(&gate->counts->took[outcome], end.ns - r->began.ns);
}

void dibs__count_add(const struct gate *gate, struct meter *meter) {
  const struct server *server = gate->server;
  for (size_t i = 0; i < OUTCOMES; i++) {
    struct label labels[] = {{"outcome", words[i]}, {NULL, NULL}};
    const struct dibs__hist *took = &gate->counts->took[i];
    dibs__meter_add(meter, "gate.requests", DIBS_COUNTER, "requests that have ended", labels, (double)took->count);
    if (took->count > 0)
      dibs__meter_add_hist(meter, "gate.request.seconds",
                           "time from a request's first line to its answer, with its wait", labels, took);
  }
  dibs__meter_add(meter, "gate.requests.running", DIBS_GAUGE, "requests that are being done or wait", NULL,
                  (double)server->running);
  dibs__meter_add(meter, "gate.requests.waiting", DIBS_GAUGE,
                  "those of them that wait for those before them, at most --waiters", NULL, gate->waiters);
  dibs__meter_add(meter, "gate.bodies.bytes", DIBS_GAUGE, "memory for bodies that are kept as a whole", NULL,
                  (double)server->body_bytes);
}
