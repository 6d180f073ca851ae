/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LANE_KAFKA_H
#define DIBS_LANE_KAFKA_H
/*
 * A consumer of a Kafka topic, as a member of a consumer group; and a producer.  The protocol is in a module,
 * dibs-kafka.so, over librdkafka (rdkafka.c): most users of dibs do not need it.
 *
 * A partition that the group assigns is paused.  The caller acquires the lease of the partition, reads the offset that
 * the store has, and begins there.  The offsets of Kafka's own group are neither read nor written.
 */
#include "store/module.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dibs__kafka_options {
  const char *brokers, *topic;
  const char *group;           /* of a consumer */
  int64_t send_ms;             /* of a producer: how long it tries to send a message */
  const char *const *settings; /* "name=value" of librdkafka, NULL at the end; or NULL */
};

struct dibs__kafka_message {
  int64_t offset;
  const char *key, *payload; /* key: NULL: none */
  size_t key_length, length;
  char trouble[256]; /* not "": no message, but the reason why the partition can't be read on */
  void *handle;      /* the module's */
};

enum dibs__kafka_what {
  DIBS__KAFKA_NOTHING,
  DIBS__KAFKA_ASSIGNED, /* `partition` is this member's, and paused */
  DIBS__KAFKA_REVOKED,  /* it is no longer */
  DIBS__KAFKA_TROUBLE   /* `text`; the client tries again by itself */
};
struct dibs__kafka_event {
  enum dibs__kafka_what what;
  int32_t partition;
  char text[256];
};

struct dibs__kafka_header {
  const char *name, *value;
};

struct dibs__kafka_sending {
  const char *key; /* NULL: none */
  size_t key_length;
  const char *payload;
  size_t length;
  const struct dibs__kafka_header *headers;
  size_t header_count;
};

enum dibs__kafka_sent {
  DIBS__KAFKA_SENT,
  DIBS__KAFKA_UNSENT,   /* `why`; it may have arrived; another try may succeed */
  DIBS__KAFKA_NEVER,    /* `why`; no try can succeed */
  DIBS__KAFKA_GIVEN_UP, /* `gone` was true; it may still arrive, within send_ms */
  DIBS__KAFKA_BROKEN    /* `why`; the producer can't be used any more: without an order of its messages, for example */
};

struct dibs__kafka_consumer;
struct dibs__kafka_producer;

#define DIBS__KAFKA_MODULE_ABI 1u
#define DIBS__KAFKA_MODULE_FILE "dibs-kafka.so"
#define DIBS__KAFKA_MODULE_SYMBOL "dibs__kafka_module"

struct dibs__kafka_module {
  struct dibs__module_head head;
  /* Joins the group.  NULL: `why`. */
  struct dibs__kafka_consumer *(*open)(const struct dibs__kafka_options *options, char *why, size_t size);
  /* Leaves the group.  After the last take. */
  void (*close)(struct dibs__kafka_consumer *consumer);
  /* The next event, within `ms`.  One thread; often, so that the group knows that the member is alive. */
  void (*poll)(struct dibs__kafka_consumer *consumer, int ms, struct dibs__kafka_event *event);
  /* Lets an assigned partition begin at `offset`; -1: at its first message.  Any thread.  false: not now. */
  bool (*begin)(struct dibs__kafka_consumer *consumer, int32_t partition, int64_t offset);
  /* The next message of a partition that was begun, within `ms`; to be dropped.  false: none.  One thread for each
   * partition. */
  bool (*take)(struct dibs__kafka_consumer *consumer, int32_t partition, int ms, struct dibs__kafka_message *message);
  void (*drop)(struct dibs__kafka_message *message);
  /* An idempotent producer: a message that it sends again by itself arrives once, and in its order.  NULL: `why`. */
  struct dibs__kafka_producer *(*open_producer)(const struct dibs__kafka_options *options, char *why, size_t size);
  void (*close_producer)(struct dibs__kafka_producer *producer);
  /* Sends a message, and waits until the brokers have it.  `gone` is called now and then.  Any thread. */
  enum dibs__kafka_sent (*send)(struct dibs__kafka_producer *producer, const struct dibs__kafka_sending *sending,
                                bool (*gone)(void *arg), void *arg, char *why, size_t size);
};

/* Of a message of dibs/kafka.h: readable when its partition is to be given back. */
struct dibs_kafka_message;
int dibs__kafka_end_fd(const struct dibs_kafka_message *message);

/* Loads the module.  NULL: `why`.  It stays loaded. */
const struct dibs__kafka_module *dibs__kafka_load(struct dibs__module *module, char *why, size_t size);

#endif
