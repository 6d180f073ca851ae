/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_ETCD_ETCD_IMPL_H
#define DIBS_DRIVERS_ETCD_ETCD_IMPL_H
/*
 * What the files of the etcd driver share.  doc/internals/etcd.md explains why it is as it is.
 *
 *   location.c   a URI: endpoints, a user, certificates
 *   link.c       one connection to the JSON gateway, over libcurl; the next endpoint when one fails; tokens
 *   text.c       requests as text, answers as values: keys, base64, transactions
 *   keep.c       leases of etcd: for holders, for this process's waiters; what this process holds
 *   bucket.c     the store's incarnation, mandates of buckets, fences; the anchor's operations
 *   name.c       a name as it was read: holders, waiters, and who is next
 *   lease.c      the verbs: from a name as it was read to an answer, or to a transaction
 *   record.c     records
 *   report.c     reports
 *   run.c        a batch: transactions until each operation has its answer
 *   watch.c      watches of waiters, and events
 *   list.c       listing
 *   etcd.c       the driver
 *
 * Keys, under a prefix ("dibs/"); in names, bytes that a path cannot show are %XX:
 *
 *   meta                    the incarnation
 *   bucket/17               the mandate of a bucket; missing: the first one of the incarnation
 *   lease/NAME/ID           a holder, on a lease of etcd of its own
 *   wait/NAME/ID            a waiter, on the lease of its process
 *   break/NAME/NUMBER       a recorded break, for 7 days
 *   notice/SESSION/ID       tells a process that its lease was broken
 *   record/KEY, seal/KEY    the content of a record as it is; the fence that it remembers
 *   report/ID               a report
 */
#include "base/map.h"
#include "store/engine.h"
#include "store/uri.h"

#include <curl/curl.h>
#include <jansson.h>

enum {
  DIBS__ETCD_HOSTS = 16,
  DIBS__ETCD_PREFIX = 64,
  DIBS__ETCD_BATCH = 24,      /* an element has at most 4 operations of etcd's 128 at each level */
  DIBS__ETCD_FENCES = 1024,   /* of one revision: all grants of a transaction have the same one */
  DIBS__ETCD_OFFER_MS = 1500, /* three times DIBS__OFFER_MS: a confirmation is agreed on by a majority of members */
  DIBS__ETCD_SESSION_S = 6,   /* the lease of a process's waiters */
  DIBS__ETCD_KEY = 3 * DIBS_NAME_MAX + DIBS__ETCD_PREFIX + 64
};

/* ---- The location: immutable after open ---- */

struct dibs__etcd_location {
  char *urls[DIBS__ETCD_HOSTS]; /* "http://host:2379" */
  uint32_t count;
  char *user, *password; /* NULL: none */
  char *ca, *cert, *key;
  char prefix[DIBS__ETCD_PREFIX + 1]; /* "dibs/" */
  int64_t connect_timeout_ms;
  uint32_t connections;
  bool tls;
  char shown[256];
};

dibs__status dibs__etcd_location(const struct dibs__uri *uri, struct dibs__etcd_location *location,
                                 struct dibs__result *result);
void dibs__etcd_location_free(struct dibs__etcd_location *location);

/* ---- Text ---- */

/* Text that grows; when memory is missing, later text is dropped, and `failed` reports it. */
struct dibs__etcd_text {
  char *p;
  size_t len, cap;
  bool failed;
};
void dibs__etcd_put(struct dibs__etcd_text *text, const char *words);
void dibs__etcd_putf(struct dibs__etcd_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void dibs__etcd_put_bytes(struct dibs__etcd_text *text, const char *bytes, size_t len);
void dibs__etcd_put_base64(struct dibs__etcd_text *text, const char *bytes, size_t len); /* with quotes */
void dibs__etcd_text_free(struct dibs__etcd_text *text);

/* A key, with its NUL. */
struct dibs__etcd_key {
  size_t len;
  char text[DIBS__ETCD_KEY];
};
struct dibs__etcd;
/* "dibs/KIND/NAME/": the range of a name; `name` of length 0: "dibs/KIND/". */
void dibs__etcd_key(const struct dibs__etcd *store, const char *kind, dibs__str name, struct dibs__etcd_key *key);
void dibs__etcd_key_id(const struct dibs__etcd_key *range, dibs__id id, struct dibs__etcd_key *key);
/* The name and the last part of a key of this kind; false: it is none.  `name` has room for DIBS_NAME_MAX bytes. */
bool dibs__etcd_key_read(const struct dibs__etcd *store, const char *kind, const struct dibs__etcd_key *key, char *name,
                         uint32_t *len, const char **rest);

/* A transaction: comparisons, then one of two lists of operations. */
struct dibs__etcd_txn {
  struct dibs__etcd_text compare, success, failure;
};
void dibs__etcd_txn_begin(struct dibs__etcd_txn *txn);
void dibs__etcd_txn_free(struct dibs__etcd_txn *txn);
void dibs__etcd_txn_put(struct dibs__etcd_text *to, const struct dibs__etcd_txn *txn); /* {"compare":... */
enum dibs__etcd_target { DIBS__ETCD_CREATE, DIBS__ETCD_MOD };
/* The key's revision is `revision`; 0: there is no such key. */
void dibs__etcd_compare(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *key, enum dibs__etcd_target target,
                        uint64_t revision);
void dibs__etcd_compare_empty(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *range);
/* No key in the range was created before `revision`. */
void dibs__etcd_compare_first(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *range, uint64_t revision);
/* Nothing in the range was put after `revision`. */
void dibs__etcd_compare_since(struct dibs__etcd_txn *txn, const struct dibs__etcd_key *range, uint64_t revision);
/* Operations; `to` is success or failure.  lease 0: none; -1: the key keeps its lease. */
void dibs__etcd_op_put(struct dibs__etcd_text *to, const struct dibs__etcd_key *key, const char *value, size_t len,
                       int64_t lease);
void dibs__etcd_op_delete(struct dibs__etcd_text *to, const struct dibs__etcd_key *key);
void dibs__etcd_op_delete_range(struct dibs__etcd_text *to, const struct dibs__etcd_key *range);
void dibs__etcd_op_get(struct dibs__etcd_text *to, const struct dibs__etcd_key *key);
/* `more` is empty, or more members: ",\"limit\":\"1\"". */
void dibs__etcd_op_range(struct dibs__etcd_text *to, const struct dibs__etcd_key *range, const char *more);
void dibs__etcd_range_body(struct dibs__etcd_text *to, const struct dibs__etcd_key *range, const char *more);
void dibs__etcd_op_txn(struct dibs__etcd_text *to, const struct dibs__etcd_txn *txn);

/* Numbers of 64 bits are texts in JSON; 0 if there is none. */
int64_t dibs__etcd_number(const json_t *object, const char *key);
/* The bytes of a base64 text, malloc'd, with a NUL; NULL: no memory or no text. */
char *dibs__etcd_bytes(const json_t *object, const char *key, size_t *len);
bool dibs__etcd_key_of(const json_t *kv, struct dibs__etcd_key *key);
/* The value of a pair as JSON; NULL: it is none. */
json_t *dibs__etcd_value(const json_t *kv);
/* The nth answer of a transaction, if it is a range. */
const json_t *dibs__etcd_range_at(const json_t *responses, size_t nth);

/* ---- Links ---- */

struct dibs__etcd_link;
struct dibs__etcd_link *dibs__etcd_link_open(struct dibs__etcd *store); /* NULL: no memory */
void dibs__etcd_link_close(struct dibs__etcd_link *link);
/* Sends a request and waits for the answer, which the caller releases.  With `repeats` it is sent to the next endpoint
 * when one fails or does not answer.  UNAVAILABLE: nothing was done.  UNKNOWN: it may have been.  NOT_FOUND: a lease of
 * etcd that the request names does not exist.  DENIED, INVALID. */
dibs__status dibs__etcd_post(struct dibs__etcd_link *link, const char *path, const struct dibs__etcd_text *body,
                             bool repeats, dibs__tick by, json_t **answer, struct dibs__result *result);
/* A question to one server alone, whatever the store uses.  DENIED, also where the token is not valid any more. */
dibs__status dibs__etcd_ask_at(struct dibs__etcd_link *link, const char *base, bool with_token, const char *path,
                               dibs__tick by, json_t **answer, struct dibs__result *result);
/* Several answers, one a line: an array. */
dibs__status dibs__etcd_post_lines(struct dibs__etcd_link *link, const char *path, const struct dibs__etcd_text *body,
                                   dibs__tick by, json_t **answers, struct dibs__result *result);
/* Common options of every connection; the URL is that of `host`. */
bool dibs__etcd_options(struct dibs__etcd *store, CURL *easy);
uint32_t dibs__etcd_host(struct dibs__etcd *store);
void dibs__etcd_leave_host(struct dibs__etcd *store, uint32_t host);
/* "Authorization: TOKEN", or ""; a token is requested if there is none. */
dibs__status dibs__etcd_authorize(struct dibs__etcd_link *link, dibs__tick by, struct dibs__result *result);

/* ---- What doctor asks (describe.c) ---- */

void dibs__etcd_describe(struct dibs__etcd *store, struct dibs__etcd_link *link, dibs__tick by,
                         struct dibs__findings *to);

/* ---- Buckets ---- */

enum dibs__etcd_served { DIBS__ETCD_OWN, DIBS__ETCD_SERVED, DIBS__ETCD_LEFT, DIBS__ETCD_VOID };

struct dibs__etcd_bucket {
  uint64_t mod; /* the key's revision; 0: it does not exist */
  uint64_t base;
  uint32_t epoch;
  enum dibs__etcd_served served;
  bool used, known;
};

struct dibs__etcd_meta {
  dibs__incarnation incarnation;
  uint64_t cluster, mod; /* mod: the key's revision */
  uint32_t epoch;        /* of buckets without a key */
  uint64_t base;         /* of their fences; may be negative, as a number of two's complement */
  uint64_t drawn;        /* no earlier incarnation has drawn a fence at a larger revision, as far as is known */
};

/* ---- Leases of etcd ---- */

struct dibs__etcd_item {
  int64_t id;     /* 0: none */
  uint32_t ttl_s; /* as etcd granted it */
  uint32_t class_s;
  dibs__tick from; /* it lives for ttl_s at least after that */
};

/* What this process holds. */
struct dibs__etcd_hold {
  struct dibs__map_node node; /* first */
  dibs__id id;
  uint64_t name_hash, mod;
  struct dibs__etcd_item item;
  int64_t until; /* in ms of our boot-time clock */
  bool asked;    /* the least that it can be: etcd was asked how long its lease lives */
  uint32_t ttl_ms, mode, block, slot;
  dibs__fence granted, first;
};

enum { DIBS__ETCD_SPARES = 64 };

/* ---- The store ---- */

struct dibs__etcd_watches;

struct dibs__etcd {
  struct dibs__dstore base;
  struct dibs__etcd_location location;
  bool as_tier, as_anchor;
  dibs__mutex lock; /* guards what follows; never held during a request */
  uint32_t host;
  char token[4200]; /* a header, or "" */
  uint32_t token_number;
  struct dibs__etcd_meta meta;
  bool meta_known;
  uint64_t revision; /* the largest one of this incarnation that an answer had */
  struct dibs__etcd_bucket buckets[DIBS__BUCKETS];
  struct dibs__map holds;
  size_t holds_swept; /* how many were left by the latest search for ended ones */
  struct dibs__etcd_item spares[DIBS__ETCD_SPARES];
  size_t spare_count;
  struct dibs__etcd_item session; /* the lease of our waiters */
  uint64_t number;                /* of this process's session: immutable */
  /* keep.c: the thread that keeps the session's lease. */
  dibs__mutex starting;
  dibs__thread *keeper;
  struct dibs__etcd_link *keeper_link;
  dibs__word keeper_word;
  _Atomic bool stopping;
  struct dibs__etcd_watches *watches; /* watch.c */
  struct dibs__etcd_reports *reports; /* report.c: guarded by lock */
};

struct dibs__etcd_session {
  struct dibs__session base;
  struct dibs__etcd_link *link;
};

static inline int64_t dibs__etcd_ms(dibs__tick at) {
  return at.ns / DIBS__NS_PER_MS;
}
static inline struct dibs__etcd *dibs__etcd_of(struct dibs__dstore *store) {
  return (struct dibs__etcd *)store;
}

/* keep.c.  An etcd lease that lives for at least ttl_ms from now on: a spare one, or a new one. */
dibs__status dibs__etcd_item_get(struct dibs__etcd *store, struct dibs__etcd_link *link, uint32_t ttl_ms, dibs__tick by,
                                 struct dibs__etcd_item *item, struct dibs__result *result);
/* No key is on it any more. */
void dibs__etcd_item_return(struct dibs__etcd *store, const struct dibs__etcd_item *item);
void dibs__etcd_items_forget(struct dibs__etcd *store); /* one of them is gone: so may the others be */
dibs__status dibs__etcd_grant(struct dibs__etcd_link *link, uint32_t ttl_s, dibs__tick by, struct dibs__etcd_item *item,
                              struct dibs__result *result);
uint32_t dibs__etcd_class(uint32_t ttl_ms);
/* The whole seconds that it still has; -1: it is gone, or not known. */
dibs__status dibs__etcd_left(struct dibs__etcd_link *link, int64_t lease, dibs__tick by, int64_t *left_s,
                             int64_t *granted_s, struct dibs__result *result);
/* Asks etcd until when it is surely held. */
dibs__status dibs__etcd_until(struct dibs__etcd_link *link, int64_t lease, dibs__tick by, struct dibs__etcd_hold *hold,
                              struct dibs__result *result);
/* The lease of our waiters, and the thread that keeps it alive; `begin`: makes them if necessary. */
dibs__status dibs__etcd_session_ready(struct dibs__etcd *store, struct dibs__etcd_link *link, dibs__tick by,
                                      struct dibs__result *result);
int64_t dibs__etcd_session_lease(struct dibs__etcd *store); /* 0: none */
void dibs__etcd_session_lost(struct dibs__etcd *store, int64_t lease);
void dibs__etcd_keeper_stop(struct dibs__etcd *store);
bool dibs__etcd_hold_find(struct dibs__etcd *store, dibs__str name, dibs__id id, struct dibs__etcd_hold *hold);
void dibs__etcd_hold_set(struct dibs__etcd *store, dibs__str name, const struct dibs__etcd_hold *hold);
void dibs__etcd_hold_drop(struct dibs__etcd *store, dibs__str name, dibs__id id);
void dibs__etcd_holds_free(struct dibs__etcd *store);

/* bucket.c */
/* Reads the incarnation and the buckets; makes the incarnation if there is none. */
dibs__status dibs__etcd_meta_ready(struct dibs__etcd *store, struct dibs__etcd_link *link, dibs__tick by,
                                   struct dibs__result *result);
/* The cluster's id in an answer; 0: it has none. */
uint64_t dibs__etcd_cluster(const json_t *answer);
/* A cluster that answers with a smaller revision than was seen before the request has lost some of its memory. */
uint64_t dibs__etcd_revision_seen(struct dibs__etcd *store);
void dibs__etcd_revision_note(struct dibs__etcd *store, uint64_t revision);
void dibs__etcd_bucket_key(const struct dibs__etcd *store, uint16_t bucket, struct dibs__etcd_key *key);
/* From the range of its key. */
struct dibs__etcd_bucket dibs__etcd_bucket_read(struct dibs__etcd *store, const json_t *range);
struct dibs__etcd_bucket dibs__etcd_bucket_known(struct dibs__etcd *store, uint16_t bucket);
void dibs__etcd_bucket_learn(struct dibs__etcd *store, uint16_t bucket, const struct dibs__etcd_bucket *state);
void dibs__etcd_bucket_value(struct dibs__etcd *store, const struct dibs__etcd_bucket *b, struct dibs__etcd_text *to);
dibs__mandate dibs__etcd_mandate(struct dibs__etcd *store, const struct dibs__etcd_bucket *b);
dibs__fence dibs__etcd_fence(uint32_t epoch, uint64_t base, uint64_t revision, uint32_t nth);
/* Is the bucket served for an anchor, and a fence of this revision one of the next epoch?  Other programs make
 * revisions, too, so it may have become true since the revision that was known. */
bool dibs__etcd_epoch_over(const struct dibs__etcd_bucket *b, uint64_t revision);
/* R5, R35.  If not, its status is set. */
bool dibs__etcd_mandate_valid(struct dibs__etcd *store, const struct dibs__etcd_bucket *b, uint64_t revision,
                              struct dibs__lease_op *op);

/* ---- A name as it was read ---- */

struct dibs__etcd_claim {
  dibs__id id;
  uint64_t create, mod;
  int64_t lease;
  bool waits, asleep, breaking, offered, over; /* over: its fence was drawn beyond its epoch */
  uint32_t mode, slots, slot, ttl_ms, pid, block;
  uint64_t session;
  dibs__fence granted, first;
  int64_t since; /* ms since 1970, for people */
  uint32_t owner_len;
  char owner[DIBS_OWNER_MAX + 1];
};

enum { DIBS__ETCD_FRONT = 32 };

struct dibs__etcd_name {
  bool known;
  uint64_t revision;
  struct dibs__etcd_bucket bucket;
  struct dibs__etcd_claim *holders; /* by revision of creation */
  size_t holder_count;
  struct dibs__etcd_claim front[DIBS__ETCD_FRONT]; /* the first waiters, by their position */
  size_t front_count, waiter_count;
  struct dibs__etcd_claim own; /* the waiter with the operation's id, if own_waits */
  bool own_waits, own_in_front;
  size_t own_at;     /* in `front` */
  char foreign[160]; /* a key that is not one of ours; "": none */
};

void dibs__etcd_name_free(struct dibs__etcd_name *name);
/* Puts the operations that read a name.  dibs__etcd_name_read reads the answers to them, which begin at `at`. */
void dibs__etcd_name_get(const struct dibs__etcd *store, const struct dibs__lease_op *op, struct dibs__etcd_text *to);
enum { DIBS__ETCD_READS = 4 };
bool dibs__etcd_name_read(struct dibs__etcd *store, const struct dibs__lease_op *op, const json_t *responses, size_t at,
                          uint64_t revision, struct dibs__etcd_name *name);
bool dibs__etcd_claim_read(const struct dibs__etcd *store, const char *kind, const json_t *kv,
                           struct dibs__etcd_claim *claim, char *name, uint32_t *name_len);
/* Marks the offers of the front.  A waiter without offer and awake: `*awake` is true. */
void dibs__etcd_name_offers(struct dibs__etcd_name *name, bool *awake);
bool dibs__etcd_name_fits(const struct dibs__etcd_name *name, uint32_t mode, uint32_t slots);
uint32_t dibs__etcd_free_slot(const struct dibs__etcd_name *name, uint32_t slots);
const struct dibs__etcd_claim *dibs__etcd_name_holder(const struct dibs__etcd_name *name, dibs__id id);
/* The value of a claim. */
void dibs__etcd_claim_value(const struct dibs__etcd_claim *claim, const struct dibs__etcd_bucket *bucket, uint32_t nth,
                            struct dibs__etcd_text *to);

/* ---- A batch ---- */

enum dibs__etcd_plan {
  DIBS__ETCD_READ,    /* only reads */
  DIBS__ETCD_GUESS,   /* grants if nobody has the name, else queues */
  DIBS__ETCD_CONFIRM, /* grants if nobody has the name, and this waiter is the first */
  DIBS__ETCD_GRANT,
  DIBS__ETCD_QUEUE,
  DIBS__ETCD_AWAKE,   /* a sleeper, or a waiter of another session */
  DIBS__ETCD_PUT_OFF, /* those that did not confirm their offers */
  DIBS__ETCD_RENEW,
  DIBS__ETCD_REMOVE, /* a holder or a waiter */
  DIBS__ETCD_BREAK,
  DIBS__ETCD_WRITE /* of other families */
};

/* One operation of a batch. */
struct dibs__etcd_element {
  struct dibs__op *op;
  enum dibs__etcd_plan plan;
  bool done;
  bool writes;      /* the transaction changes something */
  bool together;    /* the transaction has other elements, too */
  bool terse;       /* it reads nothing if it does nothing: then the next round does */
  bool own_hold;    /* `hold` is of this process; else it was read */
  bool ended;       /* of REMOVE: the lease had ended before */
  bool noted;       /* of BREAK: it is recorded */
  bool fresh_lease; /* of RENEW: the key moves to `item` */
  bool kept;        /* of RENEW: the lease of etcd was kept alive, in `term` */
  struct dibs__etcd_hold hold;
  struct dibs__etcd_item item; /* for a grant */
  struct dibs__etcd_name name;
  uint64_t mod;    /* of the key that the plan changes */
  int64_t session; /* the lease of our waiters, as prepare found it; 0: none */
  dibs__tick sent;
  uint64_t term; /* of the keep-alive */
  uint32_t nth;  /* its first fence within the revision */
  uint32_t block;
  uint32_t slot;
  uint32_t rounds;             /* of RENEW: answers of two terms */
  struct dibs__etcd_text read; /* record.c: what it read */
};
/* keep.c: its `hold` becomes what this process knows of the holder with this key, or what the key says. */
void dibs__etcd_hold_of(struct dibs__etcd_element *e, const struct dibs__etcd_claim *c);

struct dibs__etcd_batch {
  struct dibs__etcd *store;
  struct dibs__etcd_link *link;
  struct dibs__etcd_element *elements;
  size_t count;
  dibs__tick by;
  struct dibs__result *result;
  uint64_t revision, term; /* of the latest answer */
  bool alone;              /* one element at a time: together they are too large */
};
struct dibs__etcd_meta dibs__etcd_meta_of(struct dibs__etcd *store);
void dibs__etcd_meta_key(const struct dibs__etcd *store, struct dibs__etcd_key *key);
void dibs__etcd_meta_forget(struct dibs__etcd *store);

/* An operation has its answer. */
void dibs__etcd_done(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, dibs__status status);

/* lease.c.  begin: chooses the first plan; prepare: what must be done before the transaction (a lease of etcd, a
 * keep-alive); put: the transaction; take: its answer, then another plan or done. */
void dibs__etcd_lease_begin(struct dibs__etcd_batch *b, struct dibs__etcd_element *e);
dibs__status dibs__etcd_lease_prepare(struct dibs__etcd_batch *b, struct dibs__etcd_element *e);
void dibs__etcd_lease_put(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, struct dibs__etcd_txn *txn);
void dibs__etcd_lease_take(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, const json_t *txn);
/* The same of other families; without prepare. */
void dibs__etcd_anchor_begin(struct dibs__etcd_batch *b, struct dibs__etcd_element *e);
void dibs__etcd_anchor_put(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, struct dibs__etcd_txn *txn);
void dibs__etcd_anchor_take(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, const json_t *txn);
void dibs__etcd_record_begin(struct dibs__etcd_batch *b, struct dibs__etcd_element *e);
void dibs__etcd_record_put(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, struct dibs__etcd_txn *txn);
void dibs__etcd_record_take(struct dibs__etcd_batch *b, struct dibs__etcd_element *e, const json_t *txn);
void dibs__etcd_report_run(struct dibs__etcd_batch *b, struct dibs__etcd_element *e);
void dibs__etcd_reports_free(struct dibs__etcd *store);

dibs__driver_run dibs__etcd_run;
dibs__driver_list dibs__etcd_list;
/* Puts the record of a break, which list.c reads. */
void dibs__etcd_put_break(const struct dibs__etcd_batch *b, const struct dibs__etcd_element *e,
                          struct dibs__etcd_text *to);

/* ---- Watches ---- */

dibs__status dibs__etcd_watches_open(struct dibs__etcd *store);
void dibs__etcd_watches_close(struct dibs__etcd *store);
/* The waiter that has requested this, which is in the front, learns of the end of a holder, if it is one of the first
 * two, and of a change of the waiter before it, and later of its end as a holder; of all that happened since the name
 * was read. */
void dibs__etcd_watch(struct dibs__etcd *store, const struct dibs__lease_op *op, const struct dibs__etcd_name *name);
/* Was an event posted for the waiter, who was the first?  Forgets it. */
bool dibs__etcd_signalled(struct dibs__etcd *store, dibs__id id);
void dibs__etcd_unwatch(struct dibs__etcd *store, dibs__id id);
/* For how long a waiter, whose key has the revision `mod`, has had an offer, as far as this process has seen. */
/* A holder or waiter ended, or was put off, by this process: an offer began at the earliest then. */
void dibs__etcd_end_seen(struct dibs__etcd *store, dibs__str name, uint64_t revision);
int64_t dibs__etcd_offer_age(struct dibs__etcd *store, dibs__str name, dibs__id id, uint64_t mod);
/* Breaks of our leases are watched from this revision on, as soon as somebody waits for events. */
void dibs__etcd_watch_notices(struct dibs__etcd *store, uint64_t revision);
void dibs__etcd_recheck(struct dibs__etcd *store, enum dibs__event_what what);
dibs__driver_events dibs__etcd_events;
dibs__driver_wake dibs__etcd_wake;

extern const struct dibs__driver dibs__etcd_driver;

#endif
