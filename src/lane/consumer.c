/* SPDX-License-Identifier: MIT */
/*
 * A member of a Kafka consumer group whose partitions are lanes: dibs/kafka.h.
 *
 * Kafka's group assigns partitions, and may give one to a second member while the first one, stopped for longer than
 * its session, still works.  So the right to work on a partition is a lease here, and the offset is a record that the
 * lease guards.  A thread for each assigned partition:
 *
 *   acquire its lease -> read the offset, which seals the record -> begin there -> for each message in its order:
 *   the function of the user, in a transaction; put the next offset in it, under the lease; commit -> (revoked, or the
 *   end) release
 *
 * The race that the record closes: a former owner is stopped in the middle, and the next one reads the offset.  Either
 * the former one's transaction commits before that, and the next owner reads its offset; or it commits later, and its
 * put is refused, because the read has sealed the record with a larger fence.  The row of the record orders the two:
 * the put keeps it locked until the commit.
 *
 * After a loss the thread begins again with acquiring.  The thread of the member polls Kafka.
 */
#include "dibs/kafka.h"
#include "handle/handle.h"
#include "lane/kafka.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  PARTITIONS = 1024,
  TEXT_MAX = sizeof(((dibs_error *)0)->text) + 128, /* of a note */
  POLL_MS = 50,                                     /* of Kafka, between two looks at the end */
  TAKE_MS = 100,                                    /* a message, likewise */
  ACQUIRE_MS = 1000,                                /* a lease, likewise */
  AGAIN_MS = 100,                                   /* before a request that was not answered is repeated */
  PAUSE_MS = 1000, /* before a refused step is repeated, and the function is called again; then doubled each time, */
  PAUSE_MOST_MS = 30000,
  GROUP_MAX = DIBS_NAME_MAX - (int)sizeof "kafka//#1234567890" /* of the names of a group and a topic */
};

struct dibs_kafka_member {
  /* Immutable after the start. */
  dibs_store *store; /* held */
  char *topic, *group, *owner;
  int64_t ttl_ms;
  uint32_t most;
  bool transactions;
  dibs_kafka_fn on_message;
  dibs_kafka_note_fn on_note;
  void *user;
  struct dibs__module module;
  const struct dibs__kafka_module *kafka;
  struct dibs__kafka_consumer *consumer;
  dibs__thread *thread;

  _Atomic bool leaving;
  dibs__mutex lock; /* guards what follows */
  dibs_error trouble;

  /* The thread's own. */
  struct partition *list;
  size_t running;
  char kafka_trouble[256]; /* of which a note was written */
};
typedef struct dibs_kafka_member member_t;

/* An assignment of a partition, and its thread. */
struct partition {
  struct partition *next;
  member_t *member;
  int32_t number;
  char lease_name[DIBS_NAME_MAX + 1], record_key[DIBS_NAME_MAX + 1];
  dibs__thread *thread;
  int end_fd; /* readable: revoked, or the member leaves */
  _Atomic bool over;
  /* The thread's own. */
  dibs_lease *lease;
  dibs_transaction *transaction;
  int64_t offset; /* of the next message; -1: the first message of the partition */
  bool sealed;    /* a note said that the record has a larger fence */
  dibs_kafka_message message;
};

static void __attribute__((format(printf, 4, 5)))
note(const member_t *m, int32_t partition, dibs_status status, const char *format, ...) {
  char text[TEXT_MAX];
  if (!m->on_note) return;
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  m->on_note(partition, status, text, m->user);
}

static bool ends(const struct partition *p, int64_t ms) {
  struct pollfd fd = {.fd = p->end_fd, .events = POLLIN};
  return poll(&fd, 1, (int)ms) > 0;
}

static bool goes_on(const struct partition *p) {
  return !ends(p, 0) && dibs_lease_alive(p->lease);
}

/* ---- The lease and the offset ---- */

static bool acquire(struct partition *p) {
  const member_t *m = p->member;
  dibs_lease_options options = {.size = sizeof options, .ttl_ms = m->ttl_ms, .wait_ms = ACQUIRE_MS, .owner = m->owner};
  dibs_status before = DIBS_OK;
  while (!ends(p, 0)) {
    dibs_error error = {0};
    dibs_status status = dibs_acquire(m->store, p->lease_name, &options, &p->lease, &error);
    if (status == DIBS_OK) return true;
    if (status != DIBS_TIMEOUT && status != before) note(m, p->number, status, "%s", error.text);
    before = status;
    if (status != DIBS_TIMEOUT && ends(p, AGAIN_MS)) return false;
  }
  return false;
}

static void release(struct partition *p) {
  (void)dibs_release(p->lease, NULL); /* what is not released ends with its ttl */
  dibs_lease_free(p->lease);
  p->lease = NULL;
}

/* An empty record: no message was done.  false: somebody else wrote it, and a guess would do messages twice or not at
 * all. */
static bool parse_offset(const char *text, int64_t *offset) {
  char *end = NULL;
  *offset = -1;
  if (!text || !*text) return true;
  errno = 0;
  *offset = strtoll(text, &end, 10);
  return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

/* Either a newer owner has the lease, or the record was sealed under a lease of another name.  Then this lease's next
 * fence is too small as well, unless the store draws fences by its clock. */
static void note_sealed(struct partition *p, const char *why) {
  if (!p->sealed)
    note(p->member, p->number, DIBS_STALE,
         "%s.  Or it was read or written under a lease of another name: 'dibs tier bump' makes later fences larger",
         why);
  p->sealed = true;
}

/* Until it is read.  false: the lease is lost, the record has a larger fence, or the partition is to end. */
static bool read_offset(struct partition *p) {
  const member_t *m = p->member;
  dibs_record_options options = {.size = sizeof options, .lease = p->lease};
  for (;;) {
    dibs_record *record = NULL;
    dibs_error error = {0};
    dibs_status status = dibs_record_get(m->store, p->record_key, &options, &record, &error);
    if (status == DIBS_OK) {
      const char *text = record->values[0].data;
      bool fine = parse_offset(text, &p->offset);
      if (!fine)
        status = dibs__fail(&error, DIBS_INVALID, "the record '%s' has no offset but \"%.40s\"", p->record_key, text);
      dibs_record_free(record);
      p->sealed = p->sealed && !fine;
      if (fine) return true;
    }
    if (status == DIBS_STALE && dibs_lease_alive(p->lease)) note_sealed(p, error.text);
    if (status == DIBS_STALE || status == DIBS_LOST || !dibs_lease_alive(p->lease)) return false;
    note(m, p->number, status, "%s", error.text);
    if (ends(p, PAUSE_MS)) return false;
  }
}

static dibs_status put_offset(const struct partition *p, dibs_store *store, int64_t offset, dibs_error *error) {
  char text[24];
  dibs_value value = {text, (size_t)snprintf(text, sizeof text, "%" PRId64, offset)};
  dibs_record_options options = {.size = sizeof options, .lease = p->lease};
  return dibs_record_put(store, p->record_key, &value, 1, &options, NULL, error);
}

/* ---- A message ---- */

/* Without transactions: after the effects.  *gone: the lease is lost, or ends before the store answers. */
static dibs_status finish_plain(const struct partition *p, bool *gone) {
  const member_t *m = p->member;
  int64_t offset = p->message.offset;
  for (;;) {
    dibs_error error = {0};
    dibs_status status = put_offset(p, m->store, offset + 1, &error);
    if (status == DIBS_OK) return status;
    note(m, p->number, status, "offset %" PRId64 " is not stored: %s", offset + 1, error.text);
    *gone = (status != DIBS_UNKNOWN && status != DIBS_UNAVAILABLE) || !dibs_lease_alive(p->lease);
    if (*gone) return status;
    dibs__nap_ms(AGAIN_MS);
  }
}

/* After the effects, in their transaction. */
static dibs_status finish_together(struct partition *p, bool *gone) {
  const member_t *m = p->member;
  int64_t offset = p->message.offset;
  dibs_error error = {0};
  dibs_status status = DIBS_OK;
  if (!dibs_transaction_inside(p->transaction)) status = dibs_transaction_begin(p->transaction, &error);
  if (status == DIBS_OK) status = put_offset(p, dibs_transaction_inside(p->transaction), offset + 1, &error);
  *gone = status == DIBS_STALE || status == DIBS_LOST;
  if (status == DIBS_OK)
    status = dibs_transaction_commit(p->transaction, &error);
  else
    dibs_transaction_rollback(p->transaction);
  if (status == DIBS_OK) return status;
  note(m, p->number, status, "offset %" PRId64 " is not stored: %s", offset + 1, error.text);
  if (status != DIBS_UNKNOWN) return status;
  /* Did it commit?  The record knows. */
  *gone = !read_offset(p);
  return !*gone && p->offset == offset + 1 ? DIBS_OK : status;
}

/* One try.  *gone: the partition is not this member's any more. */
static dibs_status try_message(struct partition *p, bool *gone) {
  const member_t *m = p->member;
  dibs_status status = m->on_message(&p->message, m->user);
  if (status != DIBS_OK) {
    dibs_transaction_rollback(p->transaction);
    return status;
  }
  return m->transactions ? finish_together(p, gone) : finish_plain(p, gone);
}

/* Until it is done, however often it fails: a later message of the same key must not overtake it.  false: the lease is
 * lost, or the partition is to end. */
static bool do_message(struct partition *p, const struct dibs__kafka_message *from) {
  const member_t *m = p->member;
  int64_t pause_ms = PAUSE_MS;
  p->message = (dibs_kafka_message){.size = sizeof p->message,
                                    .topic = m->topic,
                                    .partition = p->number,
                                    .offset = from->offset,
                                    .key = from->key,
                                    .key_length = from->key_length,
                                    .value = from->payload,
                                    .value_length = from->length,
                                    .lease = p->lease,
                                    .fence = dibs_lease_fence(p->lease),
                                    .transaction = p->transaction};
  for (bool gone = false;; p->message.tries++) {
    dibs_status status = try_message(p, &gone);
    if (status == DIBS_OK) {
      p->offset = from->offset + 1;
      return true;
    }
    if (gone || !goes_on(p)) return false;
    bool at_once = status == DIBS_CONFLICT && p->message.tries == 0;
    if (ends(p, at_once ? AGAIN_MS : pause_ms) || !dibs_lease_alive(p->lease)) return false;
    if (!at_once) pause_ms = pause_ms * 2 < PAUSE_MOST_MS ? pause_ms * 2 : PAUSE_MOST_MS;
  }
}

/* Until it is open.  false: the lease is lost, or the partition is to end. */
static bool open_transaction(struct partition *p) {
  const member_t *m = p->member;
  while (m->transactions && !p->transaction) {
    dibs_error error = {0};
    dibs_status status = dibs_transaction_open(m->store, &p->transaction, &error);
    if (status == DIBS_OK) break;
    note(m, p->number, status, "%s", error.text);
    if (ends(p, PAUSE_MS) || !dibs_lease_alive(p->lease)) return false;
  }
  return true;
}

/* The messages of the partition, under its lease.  Returns when the lease is lost, or the partition is to end. */
static void consume(struct partition *p) {
  const member_t *m = p->member;
  if (!open_transaction(p)) return;
  while (!m->kafka->begin(m->consumer, p->number, p->offset))
    if (ends(p, AGAIN_MS) || !dibs_lease_alive(p->lease)) return;
  note(m, p->number, DIBS_OK, "owned, from offset %" PRId64 " on", p->offset < 0 ? 0 : p->offset);
  for (bool fine = true; fine && goes_on(p);) {
    struct dibs__kafka_message message;
    if (!m->kafka->take(m->consumer, p->number, TAKE_MS, &message)) continue;
    if (message.trouble[0]) {
      note(m, p->number, DIBS_UNAVAILABLE, "%s; offset %" PRId64 " is in the record '%s'", message.trouble, p->offset,
           p->record_key);
      fine = !ends(p, PAUSE_MOST_MS);
    } else if (message.offset >= p->offset) {
      fine = do_message(p, &message);
    }
    m->kafka->drop(&message);
  }
}

static void work_partition(void *arg) {
  struct partition *p = arg;
  while (acquire(p)) {
    if (read_offset(p)) consume(p);
    if (dibs_lease_alive(p->lease))
      (void)ends(p, PAUSE_MS); /* the record refused it, and may refuse the next lease, too */
    else
      note(p->member, p->number, DIBS_LOST, "the lease was lost");
    release(p);
  }
  dibs_transaction_close(p->transaction);
  p->over = true;
}

/* ---- The thread of the member ---- */

static void end_member(member_t *m, dibs_status status, const char *text) {
  dibs__mutex_lock(&m->lock);
  (void)dibs__fail(&m->trouble, status, "%s", text);
  dibs__mutex_unlock(&m->lock);
  note(m, -1, status, "%s", text);
  m->leaving = true;
}

static void begin_partition(member_t *m, int32_t number) {
  char text[TEXT_MAX];
  if (m->running == m->most) {
    snprintf(text, sizeof text, "more than %" PRIu32 " partitions of '%.200s' are assigned", m->most, m->topic);
    end_member(m, DIBS_FULL, text);
    return;
  }
  struct partition *p = calloc(1, sizeof *p);
  int fd = p ? dibs__notifier_open() : -1;
  if (fd >= 0) {
    *p = (struct partition){.next = m->list, .member = m, .number = number, .end_fd = fd};
    snprintf(p->lease_name, sizeof p->lease_name, "kafka/%s/%s#%" PRId32, m->group, m->topic, number);
    snprintf(p->record_key, sizeof p->record_key, "kafka:%s/%s#%" PRId32, m->group, m->topic, number);
    p->thread = dibs__thread_start("dibs-lane", work_partition, p);
  }
  if (fd >= 0 && p->thread) {
    m->list = p;
    m->running++;
    return;
  }
  if (fd >= 0) dibs__notifier_close(fd);
  free(p);
  snprintf(text, sizeof text, "no memory, thread or descriptor is left for partition %" PRId32, number);
  end_member(m, DIBS_NO_MEMORY, text);
}

static void end_partitions(const member_t *m, int32_t number) { /* -1: all */
  for (const struct partition *p = m->list; p; p = p->next)
    if (number < 0 || p->number == number) dibs__notifier_raise(p->end_fd);
}

/* Joins the threads that have ended; with `all`, waits for each. */
static void reap(member_t *m, bool all) {
  for (struct partition **at = &m->list; *at;) {
    struct partition *p = *at;
    if (!all && !p->over) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    dibs__thread_join(p->thread);
    dibs__notifier_close(p->end_fd);
    free(p);
    m->running--;
  }
}

static void poll_kafka(member_t *m) {
  struct dibs__kafka_event event;
  m->kafka->poll(m->consumer, POLL_MS, &event);
  switch (event.what) {
  case DIBS__KAFKA_ASSIGNED:
    m->kafka_trouble[0] = '\0';
    begin_partition(m, event.partition);
    break;
  case DIBS__KAFKA_REVOKED:
    end_partitions(m, event.partition);
    break;
  case DIBS__KAFKA_TROUBLE:
    /* It repeats itself while no broker answers. */
    if (strcmp(event.text, m->kafka_trouble) != 0) note(m, -1, DIBS_UNAVAILABLE, "Kafka: %s", event.text);
    memcpy(m->kafka_trouble, event.text, sizeof m->kafka_trouble);
    break;
  case DIBS__KAFKA_NOTHING:
    break;
  }
}

static void run_member(void *arg) {
  member_t *m = arg;
  while (!m->leaving) {
    poll_kafka(m);
    reap(m, false);
  }
  end_partitions(m, -1);
  reap(m, true);
  m->kafka->close(m->consumer);
}

/* ---- Joining ---- */

static void drop_member(member_t *m) {
  dibs__mutex_destroy(&m->lock);
  dibs__store_drop(m->store);
  free(m->topic);
  free(m->group);
  free(m->owner);
  free(m);
}

static dibs_status check_options(const dibs_kafka_options *o, dibs_error *error) {
  if (!o->brokers || !o->topic || !o->group || !o->on_message)
    return dibs__fail(error, DIBS_INVALID, "dibs_kafka_join: brokers, topic, group and on_message are needed");
  dibs_status status = dibs__check_text(o->topic, DIBS_NAME_MAX, "the topic", error);
  if (status == DIBS_OK) status = dibs__check_text(o->group, DIBS_NAME_MAX, "the group", error);
  if (status == DIBS_OK && o->owner) status = dibs__check_text(o->owner, DIBS_OWNER_MAX, "the owner", error);
  if (status != DIBS_OK) return status;
  if (strlen(o->group) + strlen(o->topic) > (size_t)GROUP_MAX)
    return dibs__fail(error, DIBS_INVALID,
                      "the names of the group and the topic are too long together: %d bytes at most", GROUP_MAX);
  if (o->ttl_ms != 0 && (o->ttl_ms < DIBS_TTL_MIN_MS || o->ttl_ms > DIBS_TTL_MAX_MS))
    return dibs__fail(error, DIBS_INVALID, "the ttl must be between 100 ms and 24 h, not %" PRId64 " ms", o->ttl_ms);
  if (o->most > PARTITIONS || o->flags & ~(uint32_t)DIBS_KAFKA_NO_TRANSACTION)
    return dibs__fail(error, DIBS_INVALID, "dibs_kafka_join: `most` is more than %d, or `flags` has an unknown bit",
                      PARTITIONS);
  return DIBS_OK;
}

/* NULL: no memory. */
static member_t *make_member(dibs_store *store, const dibs_kafka_options *o) {
  member_t *m = calloc(1, sizeof *m);
  if (!m) return NULL;
  dibs__mutex_init(&m->lock);
  atomic_fetch_add(&store->refs, 1);
  m->store = store;
  m->topic = strdup(o->topic);
  m->group = strdup(o->group);
  m->owner = o->owner ? strdup(o->owner) : NULL;
  m->ttl_ms = o->ttl_ms ? o->ttl_ms : DIBS_TTL_DEFAULT_MS;
  m->most = o->most ? o->most : PARTITIONS;
  m->transactions = !(o->flags & DIBS_KAFKA_NO_TRANSACTION);
  m->on_message = o->on_message;
  m->on_note = o->on_note;
  m->user = o->user;
  if (m->topic && m->group && (m->owner || !o->owner)) return m;
  drop_member(m);
  return NULL;
}

/* What the store lacks is said now, before a message is read. */
static dibs_status check_store(const member_t *m, dibs_error *error) {
  dibs_record_options options = {.size = sizeof options};
  dibs_record *record = NULL;
  dibs_transaction *transaction = NULL;
  char key[DIBS_NAME_MAX + 1];
  snprintf(key, sizeof key, "kafka:%s/%s#0", m->group, m->topic);
  dibs_status status = dibs_record_get(m->store, key, &options, &record, error);
  if (status == DIBS_OK) dibs_record_free(record);
  if (status != DIBS_OK && status != DIBS_NOT_FOUND) return status;
  if (!m->transactions) return DIBS_OK;
  status = dibs_transaction_open(m->store, &transaction, error);
  dibs_transaction_close(transaction);
  return status;
}

static dibs_status start(member_t *m, const dibs_kafka_options *o, dibs_error *error) {
  char why[512];
  m->kafka = dibs__kafka_load(&m->module, why, sizeof why);
  if (!m->kafka) return dibs__fail(error, DIBS_UNSUPPORTED, "%s", why);
  dibs_status status = check_store(m, error);
  if (status != DIBS_OK) return status;
  const struct dibs__kafka_options options = {
      .brokers = o->brokers, .topic = m->topic, .group = m->group, .settings = o->settings};
  m->consumer = m->kafka->open(&options, why, sizeof why);
  if (!m->consumer) return dibs__fail(error, DIBS_INVALID, "Kafka: %s", why);
  m->thread = dibs__thread_start("dibs-kafka", run_member, m);
  if (m->thread) return DIBS_OK;
  m->kafka->close(m->consumer);
  return dibs__fail(error, DIBS_NO_MEMORY, "the system can't start another thread");
}

dibs_status dibs_kafka_join(dibs_store *store, const dibs_kafka_options *given, dibs_kafka_member **member,
                            dibs_error *error) {
  dibs_kafka_options o = DIBS_KAFKA_OPTIONS_INIT;
  if (member) *member = NULL;
  if (!member || !given)
    return dibs__fail(error, DIBS_INVALID, "dibs_kafka_join: the options or the pointer for the member is NULL");
  if (dibs__check_size(given->size, sizeof o, "dibs_kafka_options", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(&o, given, given->size);
  dibs_status status = dibs__enter(store, "dibs_kafka_join", error);
  if (status != DIBS_OK) return status;
  status = check_options(&o, error);
  member_t *m = status == DIBS_OK ? make_member(store, &o) : NULL;
  if (status == DIBS_OK && !m) status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the member");
  if (m) status = start(m, &o, error);
  if (status == DIBS_OK)
    *member = m;
  else if (m)
    drop_member(m);
  dibs__exit(store);
  return status == DIBS_OK ? dibs__fine(error) : status;
}

/* ---- The user's other calls ---- */

static const struct partition *partition_of(const dibs_kafka_message *message) {
  return (const struct partition *)(const void *)((const char *)message - offsetof(struct partition, message));
}

int dibs_kafka_ends(const dibs_kafka_message *message) {
  return message && ends(partition_of(message), 0);
}

int dibs__kafka_end_fd(const dibs_kafka_message *message) {
  return partition_of(message)->end_fd;
}

void dibs_kafka_trouble(dibs_kafka_member *m, dibs_error *error) {
  if (!error) return;
  (void)dibs__fine(error);
  if (!m || dibs__check_process(m->store, "dibs_kafka_trouble", "the member", error) != DIBS_OK) return;
  dibs__mutex_lock(&m->lock);
  *error = m->trouble;
  dibs__mutex_unlock(&m->lock);
}

void dibs_kafka_leave(dibs_kafka_member *m) {
  if (!m || !dibs__is_of_this_process(m->store)) return; /* a child's copy has no threads */
  m->leaving = true;
  dibs__thread_join(m->thread);
  drop_member(m);
}
