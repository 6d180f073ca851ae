/* SPDX-License-Identifier: MIT */
/* What operators ask a gate at the address of --metrics-listen: whether it lives, whether it is ready, what it counted.
 */
#include "gate/fence_record.h"
#include "gate/gate_impl.h"
#include "serve/meter.h"

#include <string.h>

bool dibs__operations_open(struct gate *gate, dibs_error *error) {
  if (!gate->config.metrics) return true;
  gate->metrics = dibs__loop_listen(gate->server, gate->config.metrics, error);
  return gate->metrics != NULL;
}

bool dibs__operations_has(const struct request *r) {
  const struct gate *gate = r->server->service_state;
  return gate->metrics && r->shard->listener == gate->metrics;
}

static void answer_state(struct request *r, const char *state) {
  struct dibs__json *j = dibs__answer_begin(r, 200);
  dibs__json_open(j, NULL, '{');
  dibs__json_text(j, "status", state);
  dibs__json_close(j, '}');
  dibs__answer_end(r);
}

static void get_health(struct request *r) {
  answer_state(r, "alive");
}

static void store_answered(dibs_status status, const dibs_record *record, const dibs_record_result *result,
                           const dibs_error *error, void *user) {
  (void)record, (void)result;
  if (status == DIBS_OK || status == DIBS_NOT_FOUND)
    answer_state(user, "ready");
  else
    dibs__answer_problem(user, DIBS_UNAVAILABLE, error);
}

/* Of a name that nobody has. */
static void get_ready(struct request *r) {
  dibs_record_options options = DIBS_RECORD_OPTIONS_INIT;
  char key[DIBS_NAME_MAX + 1];
  dibs_error error = {0};
  if (r->server->stopping) {
    dibs__answer_refuse(r, 503, "stopping", "this gate is stopping; repeat the request");
    return;
  }
  dibs__fence_key("", 0, key);
  dibs_status status =
      dibs__record_start(r->server->store, DIBS__RECORD_LOAD, key, NULL, &options, NULL, store_answered, r, &error);
  if (status != DIBS_OK) dibs__answer_problem(r, DIBS_UNAVAILABLE, &error);
}

static void get_metrics(struct request *r) {
  struct label version[] = {{"version", dibs_version()}, {NULL, NULL}};
  struct meter *meter = dibs__meter_new();
  if (meter) {
    dibs__meter_add(meter, "gate.build_info", DIBS_GAUGE, "1, with the version of this gate", version, 1);
    dibs__count_add(r->server->service_state, meter);
  }
  if (!meter || !dibs__meter_is_whole(meter)) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
  } else {
    dibs__meter_write_text(meter, dibs__answer_begin(r, 200));
    r->answer.type = "text/plain; version=0.0.4; charset=utf-8";
    dibs__answer_end(r);
  }
  dibs__meter_free(meter);
}

void dibs__operations_answer(struct request *r) {
  static const struct {
    const char *path;
    void (*get)(struct request *r);
  } paths[] = {{"/healthz", get_health}, {"/readyz", get_ready}, {"/metrics", get_metrics}};
  size_t i = 0, length = strcspn(r->target, "?");
  while (i < sizeof paths / sizeof *paths &&
         (strlen(paths[i].path) != length || strncmp(paths[i].path, r->target, length) != 0))
    i++;
  if (i == sizeof paths / sizeof *paths)
    dibs__answer_refuse(r, 404, "no-such-path", "this address has /metrics, /healthz and /readyz");
  else if (r->method != METHOD_GET)
    dibs__answer_refuse(r, 405, "method", "%s has GET alone", paths[i].path);
  else
    paths[i].get(r);
}
