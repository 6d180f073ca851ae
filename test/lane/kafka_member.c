/* SPDX-License-Identifier: MIT */
/*
 * A member through dibs/kafka.h, until TERM: kafka_member BROKER TOPIC GROUP OWNER
 *
 * Its store is DIBS_STORE.  The effects of each message "N" with the key K, in one transaction: the row (TOPIC, K, N,
 * 'api') of the table effect, a unit of the stock units, and a task of the kind effects.
 */
#include "dibs/kafka.h"
#include "dibs/task.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static dibs_status apply(const dibs_kafka_message *m, dibs_error *error) {
  char text[256], number[24];
  snprintf(number, sizeof number, "%.*s", (int)m->value_length, (const char *)m->value);
  snprintf(text, sizeof text, "INSERT INTO effect (topic, k, n, how) VALUES ('%.40s', %.*s, %s, 'api')", m->topic,
           (int)m->key_length, (const char *)m->key, number);
  dibs_status status = dibs_transaction_begin(m->transaction, error);
  if (status == DIBS_OK) status = dibs_transaction_sql(m->transaction, text, error);
  dibs_store *inside = dibs_transaction_inside(m->transaction);
  if (status == DIBS_OK) status = dibs_task_add(inside, "effects", number, strlen(number), NULL, NULL, error);
  if (status == DIBS_OK) status = dibs_stock_take(inside, "units", 1, NULL, NULL, error);
  return status;
}

static dibs_status on_message(const dibs_kafka_message *m, void *user) {
  dibs_error error = {0};
  (void)user;
  dibs_status status = apply(m, &error);
  if (status != DIBS_OK) fprintf(stderr, "offset %lld: %s\n", (long long)m->offset, error.text);
  return status;
}

static void on_note(int32_t partition, dibs_status status, const char *text, void *user) {
  (void)user;
  fprintf(stderr, "partition %d: %s: %s\n", (int)partition, dibs_status_name(status), text);
}

int main(int argc, char *argv[]) {
  static const char *const settings[] = {"session.timeout.ms=3000", "heartbeat.interval.ms=500", NULL};
  if (argc != 5) return 2;
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, NULL);
  dibs_store *store;
  dibs_kafka_member *member = NULL;
  dibs_error error = {0};
  dibs_status status = dibs_open(NULL, NULL, &store, &error);
  if (status == DIBS_OK) {
    dibs_kafka_options o = DIBS_KAFKA_OPTIONS_INIT;
    o.brokers = argv[1];
    o.topic = argv[2];
    o.group = argv[3];
    o.owner = argv[4];
    o.settings = settings;
    o.ttl_ms = 2000;
    o.on_message = on_message;
    o.on_note = on_note;
    status = dibs_kafka_join(store, &o, &member, &error);
  }
  if (status != DIBS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  int signal_number;
  sigwait(&ending, &signal_number);
  dibs_kafka_leave(member);
  dibs_close(store);
  return 0;
}
