/* SPDX-License-Identifier: MIT */
#ifndef DIBS_CLI_RELAY_KAFKA_H
#define DIBS_CLI_RELAY_KAFKA_H
/* `dibs relay KIND --to kafka://HOST:PORT[,HOST:PORT]/TOPIC`: messages for a topic of Kafka. */
#include "cli/cli.h"

struct relay_kafka;

bool dibs__cli_is_kafka(const char *url);
/* CLI_DONE, or an exit code after a message. */
int dibs__cli_relay_kafka_open(const struct cli_globals *globals, const char *url, const char *const *settings,
                               int64_t send_ms, struct relay_kafka **kafka);
void dibs__cli_relay_kafka_close(struct relay_kafka *kafka); /* NULL is fine */
/* Delivers a message.  `headers` are "Name: value", NULL at the end.  RELEASE: it was given up, or *broken. */
dibs_verdict dibs__cli_relay_kafka_send(struct relay_kafka *kafka, const dibs_task *task, const char *const *headers,
                                        bool (*gone)(void *arg), void *arg, dibs_work_reply *reply, bool *broken);

#endif
