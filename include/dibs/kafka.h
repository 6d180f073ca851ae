/* SPDX-License-Identifier: MIT */
#ifndef DIBS_KAFKA_H
#define DIBS_KAFKA_H
/*
 * Partitions of Kafka as lanes: a member of a consumer group whose effects in the store's database happen once.
 *
 * - Kafka's group protocol gives each partition to one member.  But a member that was stopped for longer than its
 *   session does not know that another one has the partition, and works on.  So each partition has a lease here, and
 *   its offset is a record of the store, which the lease guards.
 * - Your function is called for one message of a partition after the other.  It gets a transaction of the store's
 *   database; what it writes there and the offset of the next message take effect together, under the fence of the
 *   lease.  So after any crash the next owner begins after the last message whose effects are committed, and a former
 *   owner that wakes up can commit nothing more.
 * - The offsets that Kafka itself keeps for the group are neither read nor written.
 * - Needs the module dibs-kafka.so (package libdibs-kafka), and a store that keeps records: not redis: alone.
 *   Transactions need sqlite:, postgres: or mysql:.
 *
 * The rules of dibs.h also apply here: INVALID of every call, and "a failure of the store".
 */
#include <dibs.h>
#include <dibs/transaction.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dibs_kafka_member dibs_kafka_member;

/* A message, during the call of the function that gets it. */
typedef struct dibs_kafka_message {
  size_t size;
  const char *topic;
  int64_t offset;
  const void *key; /* NULL: none */
  size_t key_length;
  const void *value;
  size_t value_length;
  dibs_lease *lease; /* of the partition; it stays the library's */
  dibs_fence fence;  /* of that */
  /* Not begun: call dibs_transaction_begin when your slow work is done.  The library begins it if you do not, and
   * commits it; never end it yourself.  NULL with DIBS_KAFKA_NO_TRANSACTION. */
  dibs_transaction *transaction;
  int32_t partition;
  uint32_t tries; /* how often the function was called for this message before, by this owner */
} dibs_kafka_message;

/* Called in a thread of the library; those of several partitions at the same time.
 * OK: the message is done.  The library writes the offset of the next one, and commits; if the commit is refused
 * because of a deadlock, or its answer is lost and it did not take effect, the function is called again.  Any other
 * status: the library rolls back, and calls it again for this message after a second, then 2 s, 4 s, up to 30 s: a
 * later message never overtakes it.  To give up a message, keep it elsewhere and return OK. */
typedef dibs_status (*dibs_kafka_fn)(const dibs_kafka_message *message, void *user);

/* A note for a log.  partition: -1 if it is about no partition.  status: OK: a partition begins; LOST: its lease was
 * lost; FULL: the member ends, see options.most; others: something failed, and is tried again.  Any thread calls it. */
typedef void (*dibs_kafka_note_fn)(int32_t partition, dibs_status status, const char *text, void *user);

enum {
  /* message.transaction is NULL, and the offset is written after the function returned OK: after a crash a message may
   * be repeated although its effects exist.  For stores without transactions. */
  DIBS_KAFKA_NO_TRANSACTION = 1
};

/* Zero means the default for every field but `size`; topic, brokers, group and on_message are needed. */
typedef struct dibs_kafka_options {
  size_t size;
  const char *topic;
  const char *brokers;         /* HOST:PORT, or several with commas between them */
  const char *group;           /* of consumers */
  const char *const *settings; /* "name=value" of librdkafka, NULL at the end; or NULL */
  int64_t ttl_ms;              /* of the leases; 0: 30 s */
  const char *owner;           /* a label for people; NULL: the store's */
  uint32_t most; /* partitions at one time, each with a thread and a connection; 0: 1024.  With more the member ends */
  uint32_t flags;
  dibs_kafka_fn on_message;
  dibs_kafka_note_fn on_note; /* may be NULL */
  void *user;                 /* passed to both */
} dibs_kafka_options;
#define DIBS_KAFKA_OPTIONS_INIT DIBS__INIT(dibs_kafka_options)

/* Joins the group.  *member is yours, for dibs_kafka_leave before dibs_close.  Blocks for I/O of the store, and not for
 * Kafka: brokers that can't be reached are tried again.
 * OK; INVALID (an option; a setting that librdkafka refuses); UNSUPPORTED (there is no module; the store keeps no
 * records; it has no transactions: see DIBS_KAFKA_NO_TRANSACTION); or a failure of the store. */
DIBS_EXPORT DIBS_MUST_USE dibs_status dibs_kafka_join(dibs_store *store, const dibs_kafka_options *options,
                                                      dibs_kafka_member **member, dibs_error *error);

/* 1: the partition of the message is to be given back: another member waits, or this one leaves.  For functions that
 * take long: end, and return another status than OK.  Does not block. */
DIBS_EXPORT int dibs_kafka_ends(const dibs_kafka_message *message);

/* Whether the member has ended by itself, and why; status OK: it has not.  Call dibs_kafka_leave in both cases. */
DIBS_EXPORT void dibs_kafka_trouble(dibs_kafka_member *member, dibs_error *error);

/* Waits until the function has returned for the messages that it works on, gives all partitions back, leaves the group,
 * and frees the member.  Not within a function of the member.  NULL is fine. */
DIBS_EXPORT void dibs_kafka_leave(dibs_kafka_member *member);

#ifdef __cplusplus
}
#endif
#endif
