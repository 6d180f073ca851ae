/* SPDX-License-Identifier: MIT */
#ifndef DIBS_DRIVERS_REDIS_PARTS_H
#define DIBS_DRIVERS_REDIS_PARTS_H
/*
 * What the files of the Redis drivers share: redis:// (and rediss://), redlock://.
 *
 *   redis_uri.c      what a URI says
 *   redis_connect.c  a connection: to a server, a unix socket, or the master that Sentinel names; what is refused
 *   redis_wire.c     commands out, replies in, on one connection or on several side by side
 *   redis_bell.c     one subscription an open store: the channel of its session
 *   redis.c          the table of redis://
 *   redis_run.c      a batch: operations to scripts, replies to answers
 *   redis_list.c     listing
 *   redis/NAME.lua   the decisions; each file becomes dibs__redis_lua_NAME, a text
 *   redlock*.c       a majority of several, over redis_wire.c
 *
 * Everything that a store decides is in the scripts, each of which is one atomic step of the server: what C and SQL
 * decide elsewhere is decided there in the same way, and compared with the memory driver on random histories.
 *
 * Keys.  All that belongs to a bucket has its hash tag, {17}, so that a cluster can serve it:
 *
 *   dibs:{17}          the bucket: its mandate and the sequence, in one key, so that they vanish together
 *   dibs:{17}:n:NAME   the holders of a name; ends with the last of them
 *   dibs:{17}:q:NAME   its queue, and what else begins like that; gone with its last waiter
 *   dibs:s:SESSION     a channel, not a key: the process hears of its offers there
 *
 * `?prefix=` puts another word for "dibs".
 *
 * Life.  The life of a Redis is its master_replid: a server that starts, is promoted, or is demoted and promoted again
 * has another.  Scripts read it themselves (INFO replication), because a connection may outlive a change of role.
 */
#include "store/uri.h"

#include <hiredis/hiredis.h>

/* ---- Where it is ---- */

enum { DIBS__REDIS_HOSTS = 16 };

/* Parameters: socket=PATH, sentinel=NAME (the hosts are sentinels then), sentinel_user=, sentinel_password=, prefix=,
 * connect_timeout=MS. */
struct dibs__redis_place {
  struct {
    char host[256];
    uint16_t port;
  } hosts[DIBS__REDIS_HOSTS];
  size_t host_count;
  const char *socket, *sentinel; /* NULL: none */
  const char *user, *password, *sentinel_user, *sentinel_password;
  char prefix[65]; /* "dibs" */
  uint32_t database;
  int64_t connect_timeout_ms;
  char shown[256];
  char *memory; /* that the texts live in */
  size_t size;
};

dibs__status dibs__redis_place(const struct dibs__uri *uri, struct dibs__redis_place **place, struct dibs__said *said);
void dibs__redis_place_free(struct dibs__redis_place *place);

/* ---- A connection ---- */

/* A script, known to the server by its SHA-1; told again when the server has forgotten it.  The texts are
 * `extern const char dibs__redis_lua_NAME[]`, one for each redis/NAME.lua; several may be put together first. */
struct dibs__redis_script {
  const char *text;
  char sha[41];
};
/* Fills in the sha of its text; before it is put anywhere. */
void dibs__redis_script_name(struct dibs__redis_script *script);

/* What replies live in: nothing of it is freed before the next go. */
struct dibs__redis_room;
struct dibs__redis_command {
  size_t start; /* in `out` */
  const struct dibs__redis_script *script;
};

enum { DIBS__REDIS_SCRIPTS = 32 };

/* To be used by one thread at a time. */
struct dibs__redis_link {
  redisContext *context; /* its socket blocks for short whiles; poll and the deadline are ours */
  const struct dibs__redis_place *place;
  bool dead;            /* of no more use */
  size_t put, answered; /* commands since the last go; replies of the latest go, in their order: the first so many */
  dibs__tick sent;
  dibs__life life;  /* of the server when the link was made */
  uint32_t version; /* 70015 is 7.0.15 */
  /* redis_wire.c's. */
  redisReply **replies;
  size_t room; /* of replies and commands */
  struct dibs__redis_command *commands;
  char *out; /* commands as they travel; they stay until they are answered */
  size_t out_used, out_room, out_sent;
  size_t wanted, got; /* replies */
  size_t end;         /* of the commands as they were put: behind it stand scripts that are told again */
  size_t again;       /* where the replies of the latest telling begin; 0: nothing is told */
  unsigned tellings;
  dibs__tick heard; /* when the latest go ended */
  struct dibs__redis_room *reply_room;
  const struct dibs__redis_script *known[DIBS__REDIS_SCRIPTS]; /* told together */
  size_t known_count;
  enum { DIBS__REDIS_TALKING, DIBS__REDIS_DONE, DIBS__REDIS_LOST, DIBS__REDIS_LATE } at;
  int trouble;                   /* errno; 0: the server closed the connection */
  size_t nth;                    /* what it was connected with */
  bool made;                     /* connect gave it away */
  struct dibs__redis_link *next; /* the bell's */
};

/* To host `nth` (NULL sentinel), the socket, or the master that a sentinel names, which is asked whether it is one.
 * Authenticated, on its database.  Refused: a maxmemory-policy other than noeviction, cluster mode, versions below 5, a
 * replica.  UNAVAILABLE, DENIED, UNSUPPORTED, INVALID; said tells. */
dibs__status dibs__redis_connect(const struct dibs__redis_place *place, size_t nth, dibs__tick by,
                                 struct dibs__redis_link **link, struct dibs__said *said);
void dibs__redis_disconnect(struct dibs__redis_link *link);

/* Takes a command over, to be sent by the next go.  false: no memory. */
bool dibs__redis_put(struct dibs__redis_link *link, size_t count, const char *const words[], const size_t lengths[]);
/* EVALSHA with these `keys` keys, which are the first of the `count` words, and arguments.  The script stays where it
 * is as long as the link. */
bool dibs__redis_put_script(struct dibs__redis_link *link, const struct dibs__redis_script *script, size_t keys,
                            size_t count, const char *const words[], const size_t lengths[]);
/* Forgets what was put since the last go. */
void dibs__redis_drop(struct dibs__redis_link *link);
/* Sends what was put and waits for all replies; said gets sent, dead, text.  A connection that the server has closed
 * meanwhile is made anew first; that may be another server (life, version).  UNAVAILABLE: nothing was done; UNKNOWN:
 * some replies are missing (dibs__redis_reply is NULL), and the link is dead.  A script that the server did not know is
 * told, and asked again, within the deadline: those put before all scripts were known again may be done behind those
 * that came after.  A NOSCRIPT that is left did nothing. */
dibs__status dibs__redis_go(struct dibs__redis_link *link, dibs__tick by, struct dibs__said *said);
/* The same on several at once, but that none is connected anew; answers[i] is what go would have answered for links[i];
 * NULL links are passed over. said tells of the first that failed. */
void dibs__redis_go_all(struct dibs__redis_link *const links[], size_t count, dibs__tick by, dibs__status answers[],
                        struct dibs__said *said);
/* The nth reply of the latest go; valid until the next one.  NULL: it is missing. */
const redisReply *dibs__redis_reply(const struct dibs__redis_link *link, size_t nth);

/* What a reply that is an error means, as the answer of the operation that it was asked for; what is not known is
 * UNAVAILABLE.  Nothing was done, unless it is an error from inside of a script of ours.  said, which may be NULL, gets
 * words for people; `what`: "can't WHAT redis://...". */
dibs__status dibs__redis_refused(struct dibs__redis_link *link, const redisReply *reply, const char *what,
                                 struct dibs__said *said);
/* 40 hex digits of a master_replid.  false: they are not. */
bool dibs__redis_life(const char *hex, size_t length, dibs__life *life);

/* ---- The driver ---- */

struct dibs__redis {
  struct dibs__dstore base;
  struct dibs__redis_place *place;
  bool as_tier;
  uint64_t session; /* drawn at open: the channel's name */
  struct dibs__redis_bell *bell;
};

struct dibs__redis_session {
  struct dibs__session base;
  struct dibs__redis_link *link;
  dibs__life life;                     /* as of the latest answer */
  struct dibs__redis_scratch *scratch; /* redis_run.c's */
};

extern const struct dibs__driver dibs__redis_driver, dibs__redlock_driver;

/* redis_run.c, redis_list.c */
dibs__status dibs__redis_run(struct dibs__session *session, struct dibs__op *const ops[], size_t count, dibs__tick by,
                             struct dibs__said *said);
dibs__status dibs__redis_list(struct dibs__session *session, const struct dibs__list *list, dibs__tick by,
                              struct dibs__said *said);
void dibs__redis_scratch_free(struct dibs__redis_scratch *scratch);

/* redis_bell.c.  The subscription stands before the first waiter of the store is queued: run calls ready first, which
 * is quick when it stands.  Until then a store has none. */
dibs__status dibs__redis_bell_open(struct dibs__redis *store);
dibs__status dibs__redis_bell_ready(struct dibs__redis *store, dibs__tick by, struct dibs__said *said);
dibs__status dibs__redis_bell_events(struct dibs__redis *store, struct dibs__event *events, size_t cap, size_t *count,
                                     dibs__tick by);
void dibs__redis_bell_wake(struct dibs__redis *store);
void dibs__redis_bell_close(struct dibs__redis *store);
/* A session saw this life: EV_NEW_LIFE if another one was seen before. */
void dibs__redis_bell_life(struct dibs__redis *store, const dibs__life *life);
/* "dibs:s:00000000000000ff": the channel of a session. */
enum { DIBS__REDIS_CHANNEL = 96 };
void dibs__redis_channel(const struct dibs__redis_place *place, uint64_t session, char channel[DIBS__REDIS_CHANNEL]);

/* A message of the channel, as the scripts publish it: the id, then the fence as 8 bytes, the largest first; 0 where
 * there is none, and all ones where the lease of that id was broken (EV_LOST).  (Else the same form as
 * dibs__far_ring_write's.)  The channel is PREFIX:s: and the session as 16 lower-case hexadecimal digits. */
enum { DIBS__REDIS_RING_BYTES = 24 };
#define DIBS__REDIS_RING_LOST UINT64_MAX

#endif
