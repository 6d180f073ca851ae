/* SPDX-License-Identifier: MIT */
#include "cli/relay_kafka.h"
#include "lane/kafka.h"

#include <stdlib.h>
#include <string.h>

enum { HEADERS_MAX = 16, HEADER_NAME_MAX = 64 };

static const char scheme[] = "kafka://";

struct relay_kafka {
  struct dibs__module module;
  const struct dibs__kafka_module *calls;
  struct dibs__kafka_producer *producer;
};

bool dibs__cli_is_kafka(const char *url) {
  return strncmp(url, scheme, sizeof scheme - 1) == 0;
}

int dibs__cli_relay_kafka_open(const struct cli_globals *g, const char *url, const char *const *settings,
                               int64_t send_ms, struct relay_kafka **out) {
  char brokers[1024], why[512] = "out of memory";
  const char *at = url + sizeof scheme - 1, *slash = strchr(at, '/');
  size_t length = slash != NULL ? (size_t)(slash - at) : 0;
  if (length == 0 || length >= sizeof brokers || slash[1] == '\0' || strchr(slash + 1, '/') != NULL)
    return dibs__cli_fail(g, CLI_USAGE, "INVALID",
                          "--to: write kafka://HOST:PORT/TOPIC, or several brokers with commas");
  memcpy(brokers, at, length);
  brokers[length] = '\0';
  const struct dibs__kafka_options o = {
      .brokers = brokers, .topic = slash + 1, .settings = settings, .send_ms = send_ms};
  struct relay_kafka *kafka = calloc(1, sizeof *kafka);
  if (kafka != NULL) kafka->calls = dibs__kafka_load(&kafka->module, why, sizeof why);
  if (kafka != NULL && kafka->calls != NULL) kafka->producer = kafka->calls->open_producer(&o, why, sizeof why);
  if (kafka != NULL && kafka->producer != NULL) {
    *out = kafka;
    return CLI_DONE;
  }
  free(kafka);
  return dibs__cli_fail(g, CLI_USAGE, "UNSUPPORTED", "--to: %s", why);
}

void dibs__cli_relay_kafka_close(struct relay_kafka *kafka) {
  if (kafka == NULL) return;
  kafka->calls->close_producer(kafka->producer); /* the module stays loaded */
  free(kafka);
}

dibs_verdict dibs__cli_relay_kafka_send(struct relay_kafka *kafka, const dibs_task *task, const char *const *lines,
                                        bool (*gone)(void *arg), void *arg, dibs_work_reply *reply, bool *broken) {
  struct dibs__kafka_header headers[HEADERS_MAX];
  char names[HEADERS_MAX][HEADER_NAME_MAX];
  size_t count = 0;
  for (; count < HEADERS_MAX && lines[count] != NULL; count++) {
    int length = (int)strcspn(lines[count], ":");
    snprintf(names[count], HEADER_NAME_MAX, "%.*s", length, lines[count]);
    headers[count] = (struct dibs__kafka_header){names[count], lines[count] + length + 2};
  }
  bool keyed = *task->serial != '\0';
  const struct dibs__kafka_sending sending = {.key = keyed ? task->serial : NULL,
                                              .key_length = keyed ? strlen(task->serial) : 0,
                                              .payload = task->payload,
                                              .length = task->length,
                                              .headers = headers,
                                              .header_count = count};
  switch (kafka->calls->send(kafka->producer, &sending, gone, arg, reply->text, sizeof reply->text)) {
  case DIBS__KAFKA_SENT:
    return DIBS_END_DONE;
  case DIBS__KAFKA_UNSENT:
    return DIBS_END_FAIL;
  case DIBS__KAFKA_NEVER:
    return DIBS_END_DEAD;
  case DIBS__KAFKA_BROKEN:
    *broken = true;
    break;
  case DIBS__KAFKA_GIVEN_UP:
    break;
  }
  return DIBS_END_RELEASE;
}
