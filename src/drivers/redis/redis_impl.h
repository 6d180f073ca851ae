/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_REDIS_IMPL_H
#define DIBS_DRIVERS_REDIS_REDIS_IMPL_H
/*
 * What the files of the Redis drivers share: redis:// (and rediss://), redlock://.
 *
 *   tls.c          TLS over the socket of a connection, for rediss://
 *   connect.c      a URI; a connection to a server, a Unix socket, or the master that Sentinel names; what is refused
 *   wire.c         commands out, replies in, on one connection or on several in parallel
 *   redis.c        the driver, and one subscription for each open store: the channel of its session
 *   run.c          a batch: operations to scripts, replies to answers
 *   list.c         listing, reports
 *   shared.c       sums that wait for the database
 *   cluster.c      cluster=1: a batch over several nodes, each of which is a store of its own
 *   cluster_map.c  which node has which bucket
 *   NAME.lua       the decisions; each file becomes dibs__redis_lua_NAME, a text
 *   ../redlock/    a majority of several, over wire.c
 *
 * The scripts decide everything, and each is one atomic step of the server.  They decide as C and SQL do elsewhere,
 * and random histories compare them with the memory driver.
 *
 * Keys.  All keys of a bucket have its hash tag, {17}, so that a cluster can serve it:
 *
 *   dibs:{17}          the bucket: its mandate and the sequence, in one key, so that they vanish together
 *   dibs:{17}:n:NAME   the holders of a name; expires with the last of them
 *   dibs:{17}:q:NAME   its queue, and other keys with that prefix; deleted with its last waiter
 *   dibs:{reports}     reports of processes, and dibs:{reports}:s; deleted with the last report
 *   dibs:{7}:c:own     sums of partition 7 that wait for the database, and other keys with that prefix (shared.lua)
 *   dibs:s:SESSION     a channel, not a key: the process receives its offers there
 *
 * `?prefix=` puts another word for "dibs".
 *
 * Incarnation.  The incarnation of a Redis is its master_replid: a server that starts, is promoted, or is demoted and
 * promoted again has another.  Scripts read it themselves (INFO replication), because a connection may outlive a
 * change of role.
 */
#include "store/shared.h"
#include "store/uri.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <string.h>

/* ---- The location ---- */

enum { DIBS__REDIS_HOSTS = 16 };

struct dibs__redis_address {
  char host[256];
  uint16_t port;
};

/* Parameters: socket=PATH, sentinel=NAME (the hosts are sentinels then), sentinel_user=, sentinel_password=, prefix=,
 * connect_timeout=MS, cluster=1 (the hosts are some of its nodes), replicas=N. */
struct dibs__redis_location {
  struct dibs__redis_address hosts[DIBS__REDIS_HOSTS];
  size_t host_count;
  const char *socket, *sentinel; /* NULL: none */
  const char *user, *password, *sentinel_user, *sentinel_password;
  char prefix[65]; /* "dibs" */
  uint32_t database;
  int64_t connect_timeout_ms;
  struct dibs__redis_tls_context *tls; /* of rediss://; NULL: none */
  bool cluster;
  bool any_role;        /* of a node from which the slots are read: it may be a replica */
  uint32_t replicas;    /* a grant counts when so many replicas have it */
  uint32_t connections; /* of one process, at most; beside the subscription */
  char shown[256];
  char *memory; /* the strings point into it */
  size_t size;
};

dibs__status dibs__redis_location(const struct dibs__uri *uri, struct dibs__redis_location **location,
                                  struct dibs__result *result);
void dibs__redis_location_free(struct dibs__redis_location *location);
/* The location of one node of the cluster.  It points into `location`, which must outlive it; free() it. */
struct dibs__redis_location *dibs__redis_location_of_node(const struct dibs__redis_location *location,
                                                          const struct dibs__redis_address *address);

/* ---- A connection ---- */

/* A script, known to the server by its SHA-1; sent again when the server has forgotten it.  The texts are `extern const
 * char dibs__redis_lua_NAME[]`, one for each NAME.lua; several may be concatenated first. */
struct dibs__redis_script {
  const char *text;
  char sha[41];
};
/* Fills in the SHA-1 of its text; before it is put anywhere. */
void dibs__redis_script_name(struct dibs__redis_script *script);

/* The memory of replies: nothing of it is freed before the next go. */
struct dibs__redis_arena;
struct dibs__redis_command {
  size_t start; /* in `out` */
  const struct dibs__redis_script *script;
};

enum { DIBS__REDIS_SCRIPTS = 32, DIBS__REDIS_AT_ONCE = DIBS__BUCKETS + 1 /* servers: go_all */ };

/* To be used by one thread at a time. */
struct dibs__redis_link {
  struct dibs__redis_tls *tls; /* NULL: none; tls.h */
  redisContext *context;       /* its socket blocks for short times; poll and the deadline are ours */
  const struct dibs__redis_location *location;
  bool dead;            /* useless */
  size_t put, answered; /* commands since the last go; the same number of replies of the latest go, in their order */
  dibs__tick sent;
  dibs__incarnation incarnation; /* of the server when the link was made */
  uint32_t version;              /* 70015 is 7.0.15 */
  /* wire.c's. */
  redisReply **replies;
  size_t capacity; /* of replies and commands */
  struct dibs__redis_command *commands;
  char *out; /* commands as they travel; kept until they are answered */
  size_t out_used, out_capacity, out_sent;
  size_t wanted, got; /* replies */
  size_t end;         /* of the commands as they were put; after it come scripts that are sent again */
  size_t again;       /* where the replies of the latest resend begin; 0: nothing was sent again */
  unsigned tellings;
  dibs__tick answered_at; /* when the latest go ended */
  struct dibs__redis_arena *reply_arena;
  const struct dibs__redis_script *known[DIBS__REDIS_SCRIPTS]; /* to be sent again together */
  size_t known_count;
  enum { DIBS__REDIS_TALKING, DIBS__REDIS_DONE, DIBS__REDIS_LOST, DIBS__REDIS_LATE } at;
  int trouble;                   /* errno; 0: the server closed the connection */
  size_t nth;                    /* the location it was connected with */
  bool made;                     /* connect returned it */
  struct dibs__redis_link *next; /* the notifier's */
};

/* Connects to host `nth` (NULL sentinel), the socket, or the master that a sentinel names, whose role is checked.
 * Authenticated, on its database.  Refused: a maxmemory-policy other than noeviction, cluster mode, versions below 5, a
 * replica.  UNAVAILABLE, DENIED, UNSUPPORTED, INVALID, with a message in `result`. */
dibs__status dibs__redis_connect(const struct dibs__redis_location *location, size_t nth, dibs__tick by,
                                 struct dibs__redis_link **link, struct dibs__result *result);
void dibs__redis_disconnect(struct dibs__redis_link *link);

/* Copies a command, to be sent by the next go.  false: no memory. */
bool dibs__redis_put(struct dibs__redis_link *link, size_t count, const char *const words[], const size_t lengths[]);
/* EVALSHA with `keys` keys, which are the first of the `count` words, and arguments.  The script must outlive the
 * link. */
bool dibs__redis_put_script(struct dibs__redis_link *link, const struct dibs__redis_script *script, size_t keys,
                            size_t count, const char *const words[], const size_t lengths[]);
/* Drops the commands put since the last go. */
void dibs__redis_drop(struct dibs__redis_link *link);
/* Sends the commands and waits for all replies; `result` gets sent, dead, text.  A connection that the server has
 * closed meanwhile is connected again first; that may reach another server (incarnation, version).  UNAVAILABLE:
 * nothing was done; UNKNOWN: some replies are missing (dibs__redis_reply is NULL), and the link is dead.  A script that
 * the server did not know is sent, and called again, within the deadline: the calls put before all scripts were known
 * again may run after those that came later.  A remaining NOSCRIPT did nothing. */
dibs__status dibs__redis_go(struct dibs__redis_link *link, dibs__tick by, struct dibs__result *result);
/* The same on several links at once, without connecting again; answers[i] is what go would have answered for links[i];
 * NULL links are skipped.  `result` has the first failure. */
void dibs__redis_go_all(struct dibs__redis_link *const links[], size_t count, dibs__tick by, dibs__status answers[],
                        struct dibs__result *result);
/* The nth reply of the latest go; valid until the next one.  NULL: it is missing. */
const redisReply *dibs__redis_reply(const struct dibs__redis_link *link, size_t nth);

/* The meaning of an error reply, as the answer of its operation; an unknown error is UNAVAILABLE.  Nothing was done,
 * unless the error comes from inside a script of ours.  `result`, which may be NULL, gets a message for people; `what`:
 * "can't WHAT redis://...". */
dibs__status dibs__redis_refused(struct dibs__redis_link *link, const redisReply *reply, const char *what,
                                 struct dibs__result *result);
/* 40 hex digits of a master_replid.  false: they are not. */
bool dibs__redis_incarnation(const char *hex, size_t length, dibs__incarnation *incarnation);

/* ---- The driver ---- */

/* CALL: operations in a call of a script, about a fifth of a millisecond of the server. */
enum { DIBS__REDIS_BATCH = 1024, DIBS__REDIS_CALL = 64 };

struct dibs__redis {
  struct dibs__dstore base;
  struct dibs__redis_location *location;
  bool as_tier;
  struct dibs__redis_cluster *cluster; /* of cluster=1; cluster.h */
  bool is_node;                        /* one node of such a store, */
  struct dibs__redis *whole;           /* of this one */
  uint64_t session;                    /* drawn at open: the channel's name */
  struct dibs__redis_notifier *notifier;
};

struct dibs__redis_session {
  struct dibs__session base;
  struct dibs__redis_link *link;
  dibs__incarnation incarnation;       /* as of the latest answer */
  bool subscribed;                     /* the latest batch was sent with our subscription open */
  bool redirected;                     /* of a node: the latest batch showed that slots have moved, or are moving */
  bool beside;                         /* and some operations were refused beside those of another bucket */
  dibs__tick apart_until;              /* and until then each call has one bucket */
  struct dibs__redis_scratch *scratch; /* run.c's */
  /* With cluster=1: sessions at the nodes, by their numbers; NULL: none yet. */
  struct dibs__redis_session **nodes;
  size_t node_count;
};

extern const struct dibs__driver dibs__redis_driver, dibs__redlock_driver;

/* run.c, list.c */
dibs__driver_run dibs__redis_run;
dibs__driver_list dibs__redis_list;
void dibs__redis_scratch_free(struct dibs__redis_scratch *scratch);

/* The status of an operation that a node of a cluster did not do, because the slot of its bucket is not there.  It
 * never leaves the driver. */
enum { DIBS__REDIS_REDIRECTED = 120 };
bool dibs__redis_is_redirection(const redisReply *reply);

/* The steps of a batch.  begin; put queues the operations (a node of a cluster gets those of a bucket one after the
 * other); after the link has gone, take sets their answers.  false: no memory. */
bool dibs__redis_begin(struct dibs__redis_session *session, size_t count);
bool dibs__redis_put_operations(struct dibs__redis_session *session, struct dibs__op *const ops[], size_t count,
                                dibs__tick by, struct dibs__result *result);
void dibs__redis_take(struct dibs__redis_session *session, struct dibs__result *result);
/* R6: the status of run() itself.  `called`: a server answered. */
dibs__status dibs__redis_status_of_batch(struct dibs__op *const ops[], size_t count, bool called);
/* Would it be queued, if its session were subscribed? */
bool dibs__redis_would_queue(const struct dibs__op *op);
/* The subscription, by the deadline; OK, or the status of the operations that need it. */
dibs__status dibs__redis_ensure_subscribed(struct dibs__redis *store, dibs__tick by, struct dibs__result *result);

/* list.c */
bool dibs__redis_report_valid(struct dibs__report_op *op); /* false: its answer is set */
bool dibs__redis_report_put(struct dibs__redis_session *session, const struct dibs__report_op *op); /* no memory */
void dibs__redis_report_answer(struct dibs__redis_session *session, struct dibs__report_op *op, const redisReply *r,
                               struct dibs__result *result);

/* shared.c */
/* How many script calls it takes. */
size_t dibs__redis_shared_calls(const struct dibs__shared_op *op);
bool dibs__redis_shared_put(struct dibs__redis_session *session,
                            const struct dibs__shared_op *op); /* false: no memory */
/* The replies to its calls, from `first` on. */
void dibs__redis_shared_answer(struct dibs__redis_session *session, struct dibs__shared_op *op, size_t first,
                               struct dibs__result *result);

/* redis.c.  The subscription is open before the first waiter of the store is queued: run calls ready first, which is
 * quick when it is open.  A store that listens (events) opens it at the first call.  Until then a store has none. */
dibs__status dibs__redis_notifier_open(struct dibs__redis *store);
bool dibs__redis_notifier_is_open(const struct dibs__redis *store);
dibs__status dibs__redis_notifier_ready(struct dibs__redis *store, dibs__tick by, struct dibs__result *result);
dibs__status dibs__redis_notifier_events(struct dibs__redis *store, struct dibs__event *events, size_t cap,
                                         size_t *count, dibs__tick by);
/* What has happened there, without waiting, but for one try to connect.  *fds: what to poll for until *again. */
void dibs__redis_notifier_step(struct dibs__redis *store, struct dibs__event *events, size_t cap, size_t *count,
                               dibs__tick *again, struct pollfd fds[2]);
void dibs__redis_notifier_lower(struct dibs__redis *store);   /* it was woken */
int dibs__redis_notifier_fd(const struct dibs__redis *store); /* readable when it was woken */
void dibs__redis_notifier_wake(struct dibs__redis *store);
void dibs__redis_notifier_close(struct dibs__redis *store);
/* A session saw this incarnation: EV_NEW_INCARNATION if it saw another one before. */
void dibs__redis_notifier_incarnation(struct dibs__redis *store, const dibs__incarnation *incarnation);
/* "dibs:s:00000000000000ff": the channel of a session.  At a node of a cluster ":" and its incarnation in hexadecimal
 * digits follow: each message reaches all nodes, and their subscribers must receive it once. */
enum { DIBS__REDIS_CHANNEL = 144 };
void dibs__redis_channel(const struct dibs__redis_location *location, uint64_t session,
                         char channel[DIBS__REDIS_CHANNEL]);

/* A message of the channel, as the scripts publish it: the id, then the fence as 8 bytes, the largest first; 0 where
 * there is none, and all ones where the lease of that id was broken (EV_LOST).  (Otherwise the same form as
 * dibs__server_notice_write's.)  The channel is PREFIX:s: and the session as 16 lower-case hexadecimal digits. */
enum { DIBS__REDIS_NOTICE_BYTES = 24 };
#define DIBS__REDIS_NOTICE_LOST UINT64_MAX

#endif
