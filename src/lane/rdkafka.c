/* SPDX-License-Identifier: MIT */
/*
 * The module dibs-kafka.so: a consumer and a producer over librdkafka.
 *
 * The rebalance callback runs in poll.  Partitions are assigned paused, from their beginning, so that no offset of
 * Kafka's is looked up; begin seeks and resumes.  Messages from before the seek are dropped by librdkafka, and those
 * that it lets through by the caller, which knows its offset.
 *
 * consumer->lock guards the queues and the events.
 */
#include "base/port.h"
#include "lane/kafka.h"

#include <librdkafka/rdkafka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEK_MS = 1000, EVENTS_MAX = 4096, PARTITIONS_MAX = 1024 };

struct dibs__kafka_consumer {
  rd_kafka_t *kafka;
  char *topic;
  dibs__mutex lock;
  struct dibs__kafka_event *events; /* a ring */
  size_t first, count;
  rd_kafka_queue_t *queues[PARTITIONS_MAX]; /* of partitions that were begun */
};
typedef struct dibs__kafka_consumer consumer_t;

static void add_event(consumer_t *c, enum dibs__kafka_what what, int32_t partition, const char *text) {
  dibs__mutex_lock(&c->lock);
  if (c->count < EVENTS_MAX) {
    struct dibs__kafka_event *event = &c->events[(c->first + c->count++) % EVENTS_MAX];
    *event = (struct dibs__kafka_event){.what = what, .partition = partition};
    if (text != NULL) snprintf(event->text, sizeof event->text, "%s", text);
  }
  dibs__mutex_unlock(&c->lock);
}

static void rebalance(rd_kafka_t *kafka, rd_kafka_resp_err_t err, rd_kafka_topic_partition_list_t *list, void *opaque) {
  consumer_t *c = opaque;
  bool assigned = err == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
  for (int i = 0; i < list->cnt; i++) list->elems[i].offset = RD_KAFKA_OFFSET_BEGINNING;
  if (assigned) {
    rd_kafka_assign(kafka, list);
    rd_kafka_pause_partitions(kafka, list);
  } else {
    rd_kafka_assign(kafka, NULL);
  }
  for (int i = 0; i < list->cnt; i++)
    if (list->elems[i].partition < PARTITIONS_MAX)
      add_event(c, assigned ? DIBS__KAFKA_ASSIGNED : DIBS__KAFKA_REVOKED, list->elems[i].partition, NULL);
}

static void fail(rd_kafka_t *kafka, int err, const char *reason, void *opaque) {
  (void)kafka, (void)err;
  add_event(opaque, DIBS__KAFKA_TROUBLE, -1, reason);
}

static bool set(rd_kafka_conf_t *conf, const char *name, const char *value, char *why, size_t size) {
  return rd_kafka_conf_set(conf, name, value, why, size) == RD_KAFKA_CONF_OK;
}

/* Those of the user. */
static bool set_each(rd_kafka_conf_t *conf, const char *const *settings, char *why, size_t size) {
  bool fine = true;
  for (const char *const *s = settings; fine && s != NULL && *s != NULL; s++) {
    const char *equals = strchr(*s, '=');
    char name[128];
    if (equals == NULL || (size_t)(equals - *s) >= sizeof name) {
      snprintf(why, size, "'%.40s' is not name=value", *s);
      return false;
    }
    snprintf(name, sizeof name, "%.*s", (int)(equals - *s), *s);
    fine = set(conf, name, equals + 1, why, size);
  }
  return fine;
}

static bool set_all(rd_kafka_conf_t *conf, const struct dibs__kafka_options *o, char *why, size_t size) {
  return set(conf, "bootstrap.servers", o->brokers, why, size) && set(conf, "group.id", o->group, why, size) &&
         set(conf, "enable.auto.commit", "false", why, size) && set(conf, "auto.offset.reset", "error", why, size) &&
         set(conf, "log_level", "0", why, size) && set_each(conf, o->settings, why, size);
}

static bool subscribe(consumer_t *c, char *why, size_t size) {
  rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(topics, c->topic, RD_KAFKA_PARTITION_UA);
  rd_kafka_resp_err_t err = rd_kafka_subscribe(c->kafka, topics);
  rd_kafka_topic_partition_list_destroy(topics);
  if (err != RD_KAFKA_RESP_ERR_NO_ERROR) snprintf(why, size, "%s", rd_kafka_err2str(err));
  return err == RD_KAFKA_RESP_ERR_NO_ERROR;
}

static void close_consumer(consumer_t *c) {
  if (c == NULL) return;
  for (size_t i = 0; i < PARTITIONS_MAX; i++)
    if (c->queues[i] != NULL) rd_kafka_queue_destroy(c->queues[i]);
  if (c->kafka != NULL) {
    rd_kafka_consumer_close(c->kafka);
    rd_kafka_destroy(c->kafka);
  }
  dibs__mutex_destroy(&c->lock);
  free(c->events);
  free(c->topic);
  free(c);
}

static consumer_t *open_consumer(const struct dibs__kafka_options *o, char *why, size_t size) {
  consumer_t *c = calloc(1, sizeof *c);
  snprintf(why, size, "out of memory");
  if (c == NULL) return NULL;
  dibs__mutex_init(&c->lock);
  c->events = calloc(EVENTS_MAX, sizeof *c->events);
  c->topic = strdup(o->topic);
  rd_kafka_conf_t *conf = c->events != NULL && c->topic != NULL ? rd_kafka_conf_new() : NULL;
  if (conf != NULL) {
    rd_kafka_conf_set_opaque(conf, c);
    rd_kafka_conf_set_rebalance_cb(conf, rebalance);
    rd_kafka_conf_set_error_cb(conf, fail);
    if (set_all(conf, o, why, size)) c->kafka = rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, size);
    if (c->kafka == NULL) rd_kafka_conf_destroy(conf);
  }
  if (c->kafka != NULL) {
    rd_kafka_poll_set_consumer(c->kafka);
    if (subscribe(c, why, size)) return c;
  }
  close_consumer(c);
  return NULL;
}

static void poll_consumer(consumer_t *c, int ms, struct dibs__kafka_event *event) {
  *event = (struct dibs__kafka_event){.what = DIBS__KAFKA_NOTHING};
  dibs__mutex_lock(&c->lock);
  bool waiting = c->count > 0;
  dibs__mutex_unlock(&c->lock);
  /* What arrives here is of a partition that is not begun, or an error. */
  rd_kafka_message_t *m = rd_kafka_consumer_poll(c->kafka, waiting ? 0 : ms);
  if (m != NULL && m->err != RD_KAFKA_RESP_ERR_NO_ERROR)
    add_event(c, DIBS__KAFKA_TROUBLE, -1, rd_kafka_message_errstr(m));
  if (m != NULL) rd_kafka_message_destroy(m);
  dibs__mutex_lock(&c->lock);
  if (c->count > 0) {
    *event = c->events[c->first];
    c->first = (c->first + 1) % EVENTS_MAX;
    c->count--;
  }
  dibs__mutex_unlock(&c->lock);
}

static bool begin(consumer_t *c, int32_t partition, int64_t offset) {
  dibs__mutex_lock(&c->lock);
  if (c->queues[partition] == NULL) {
    c->queues[partition] = rd_kafka_queue_get_partition(c->kafka, c->topic, partition);
    if (c->queues[partition] != NULL) rd_kafka_queue_forward(c->queues[partition], NULL);
  }
  bool fine = c->queues[partition] != NULL;
  dibs__mutex_unlock(&c->lock);
  if (!fine) return false;
  rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(list, c->topic, partition)->offset =
      offset < 0 ? RD_KAFKA_OFFSET_BEGINNING : offset;
  rd_kafka_error_t *error = rd_kafka_seek_partitions(c->kafka, list, SEEK_MS);
  fine = error == NULL && list->elems[0].err == RD_KAFKA_RESP_ERR_NO_ERROR;
  if (error != NULL) rd_kafka_error_destroy(error);
  if (fine)
    fine = rd_kafka_resume_partitions(c->kafka, list) == RD_KAFKA_RESP_ERR_NO_ERROR &&
           list->elems[0].err == RD_KAFKA_RESP_ERR_NO_ERROR;
  rd_kafka_topic_partition_list_destroy(list);
  return fine;
}

static bool take(consumer_t *c, int32_t partition, int ms, struct dibs__kafka_message *message) {
  dibs__mutex_lock(&c->lock);
  rd_kafka_queue_t *queue = c->queues[partition];
  dibs__mutex_unlock(&c->lock);
  *message = (struct dibs__kafka_message){.offset = -1};
  rd_kafka_message_t *m = queue != NULL ? rd_kafka_consume_queue(queue, ms) : NULL;
  if (m == NULL) return false;
  message->handle = m;
  if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
    rd_kafka_message_destroy(m);
    return false;
  }
  if (m->err != RD_KAFKA_RESP_ERR_NO_ERROR) {
    snprintf(message->trouble, sizeof message->trouble, "%s", rd_kafka_message_errstr(m));
    return true;
  }
  message->offset = m->offset;
  message->key = m->key;
  message->key_length = m->key_len;
  message->payload = m->payload != NULL ? m->payload : "";
  message->length = m->len;
  return true;
}

static void drop(struct dibs__kafka_message *message) {
  if (message->handle != NULL) rd_kafka_message_destroy(message->handle);
  message->handle = NULL;
}

/* ---- The producer ---- */

enum { REPORT_MS = 20, CLOSE_MS = 1000 };

struct dibs__kafka_producer {
  rd_kafka_t *kafka;
  char *topic;
};
typedef struct dibs__kafka_producer producer_t;

/* Its sender and librdkafka have it; the last of the two frees it. */
struct report {
  _Atomic uint32_t refs;
  _Atomic bool here;
  rd_kafka_resp_err_t err;
};

static void drop_report(struct report *report) {
  if (atomic_fetch_sub(&report->refs, 1) == 1) free(report);
}

/* In whichever thread polls. */
static void delivered(rd_kafka_t *kafka, const rd_kafka_message_t *message, void *opaque) {
  (void)kafka, (void)opaque;
  struct report *report = message->_private;
  report->err = message->err;
  report->here = true;
  drop_report(report);
}

static void close_producer(producer_t *p) {
  if (p == NULL) return;
  if (p->kafka != NULL) {
    rd_kafka_purge(p->kafka, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
    rd_kafka_flush(p->kafka, CLOSE_MS); /* the reports of those that were given up */
    rd_kafka_destroy(p->kafka);
  }
  free(p->topic);
  free(p);
}

static bool set_producer(rd_kafka_conf_t *conf, const struct dibs__kafka_options *o, char *why, size_t size) {
  char ms[24];
  snprintf(ms, sizeof ms, "%lld", (long long)o->send_ms);
  /* The partitioner of Kafka's own clients. */
  return set(conf, "bootstrap.servers", o->brokers, why, size) && set(conf, "log_level", "0", why, size) &&
         set(conf, "enable.idempotence", "true", why, size) && set(conf, "message.timeout.ms", ms, why, size) &&
         set(conf, "partitioner", "murmur2_random", why, size) && set_each(conf, o->settings, why, size);
}

static producer_t *open_producer(const struct dibs__kafka_options *o, char *why, size_t size) {
  producer_t *p = calloc(1, sizeof *p);
  snprintf(why, size, "out of memory");
  if (p == NULL) return NULL;
  p->topic = strdup(o->topic);
  rd_kafka_conf_t *conf = p->topic != NULL ? rd_kafka_conf_new() : NULL;
  if (conf != NULL) {
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    if (set_producer(conf, o, why, size)) p->kafka = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, size);
    if (p->kafka != NULL) return p;
    rd_kafka_conf_destroy(conf);
  }
  close_producer(p);
  return NULL;
}

static rd_kafka_headers_t *make_headers(const struct dibs__kafka_sending *s) {
  rd_kafka_headers_t *headers = rd_kafka_headers_new(s->header_count);
  for (size_t i = 0; i < s->header_count; i++)
    rd_kafka_header_add(headers, s->headers[i].name, -1, s->headers[i].value, -1);
  return headers;
}

static rd_kafka_resp_err_t produce(producer_t *p, const struct dibs__kafka_sending *s, struct report *report) {
  rd_kafka_headers_t *headers = make_headers(s);
  rd_kafka_resp_err_t err =
      rd_kafka_producev(p->kafka, RD_KAFKA_V_TOPIC(p->topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                        RD_KAFKA_V_KEY((void *)(uintptr_t)s->key, s->key_length),
                        RD_KAFKA_V_VALUE((void *)(uintptr_t)s->payload, s->length), RD_KAFKA_V_HEADERS(headers),
                        RD_KAFKA_V_OPAQUE(report), RD_KAFKA_V_END);
  if (err != RD_KAFKA_RESP_ERR_NO_ERROR) rd_kafka_headers_destroy(headers);
  return err;
}

static enum dibs__kafka_sent judge(producer_t *p, rd_kafka_resp_err_t err, char *why, size_t size) {
  if (err == RD_KAFKA_RESP_ERR_NO_ERROR) return DIBS__KAFKA_SENT;
  snprintf(why, size, "%s", rd_kafka_err2str(err));
  if (rd_kafka_fatal_error(p->kafka, why, size) != RD_KAFKA_RESP_ERR_NO_ERROR) return DIBS__KAFKA_BROKEN;
  bool never = err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE || err == RD_KAFKA_RESP_ERR_INVALID_RECORD ||
               err == RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE;
  return never ? DIBS__KAFKA_NEVER : DIBS__KAFKA_UNSENT;
}

static enum dibs__kafka_sent send_message(producer_t *p, const struct dibs__kafka_sending *s, bool (*gone)(void *arg),
                                          void *arg, char *why, size_t size) {
  struct report *report = calloc(1, sizeof *report);
  if (report == NULL) {
    snprintf(why, size, "out of memory");
    return DIBS__KAFKA_UNSENT;
  }
  report->refs = 2;
  rd_kafka_resp_err_t err = produce(p, s, report);
  if (err != RD_KAFKA_RESP_ERR_NO_ERROR) {
    free(report);
    return judge(p, err, why, size);
  }
  while (!report->here && !gone(arg)) rd_kafka_poll(p->kafka, REPORT_MS);
  enum dibs__kafka_sent sent = report->here ? judge(p, report->err, why, size) : DIBS__KAFKA_GIVEN_UP;
  drop_report(report);
  return sent;
}

static const struct dibs__kafka_module module = {.head = {sizeof module, DIBS__KAFKA_MODULE_ABI},
                                                 .open = open_consumer,
                                                 .close = close_consumer,
                                                 .poll = poll_consumer,
                                                 .begin = begin,
                                                 .take = take,
                                                 .drop = drop,
                                                 .open_producer = open_producer,
                                                 .close_producer = close_producer,
                                                 .send = send_message};

DIBS__MODULE_API dibs__module_part_fn dibs__kafka_module;
const struct dibs__module_head *dibs__kafka_module(void) {
  return &module.head;
}
