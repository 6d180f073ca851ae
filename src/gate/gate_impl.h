/* SPDX-License-Identifier: MIT */
#ifndef DIBS_GATE_GATE_IMPL_H
#define DIBS_GATE_GATE_IMPL_H
/*
 * An exchange: one request and its answer, through the gate.
 *
 *   head (head.c) -> [the stored answer of its key] -> [the lease of its key] -> [the lease of its name] -> fence
 *   (guard.c) -> the service (upstream.c) -> [storing the answer] -> the client (exchange.c)
 *
 * Steps in brackets are for requests with an Idempotency-Key, or for --order.  Everything runs in the loop of the
 * server; a step that waits is a callback.  Nothing reaches the service before the store has admitted the fence.
 *
 * Leases are taken in one order, the key's before the name's, so two exchanges cannot wait for each other.
 */
#include "base/map.h"
#include "gate/gate.h"
#include "gate/head.h"
#include "gate/stream.h"
#include "guard/guard.h"
#include "serve/server.h"

#include <curl/curl.h>

enum {
  FLOW_BYTES = 65536,   /* kept of a body that is on its way, in each direction */
  DROP_BYTES = 1048576, /* of a body that nobody wants are read, so that its client sees the answer */
  GATE_TTL_MS = 15000,  /* of leases: how long a name or key is blocked after a gate was killed */
  ONCE_KEY_MAX = 80
};

enum step {
  STEP_BODY,     /* a body that goes on as a whole is being read: it is small, or has a key */
  STEP_GUARD,    /* the store is being asked, or a lease waited for */
  STEP_UPSTREAM, /* the service has the request, or a part of it */
  STEP_STORE,    /* the answer is being stored */
  STEP_DONE
};

/* What became of a request. */
enum outcome {
  OUTCOME_PASSED,         /* the client got an answer of the service */
  OUTCOME_REPLAYED,       /* or the stored one */
  OUTCOME_STALE,          /* a newer fence was seen */
  OUTCOME_REFUSED,        /* otherwise answered by the gate, with a status below 500 or 501 */
  OUTCOME_UNAVAILABLE,    /* 503: nothing was sent to the service */
  OUTCOME_SERVICE_FAILED, /* the service could not be reached, or its answer is not complete */
  OUTCOME_ABANDONED,      /* the client was gone before its answer */
  OUTCOMES
};

struct upstream;
struct counts;

struct gate {
  struct gate_config config;
  struct server *server;
  struct upstream *upstream;
  struct counts *counts;
  const struct listener *metrics; /* NULL: there is none */
  struct dibs__map checks;        /* of fences, by name and fence */
  struct exchange *dead;          /* those to be freed at the end of this round */
  uint32_t waiters;               /* exchanges that may wait for a lease */
};

struct exchange {
  struct gate *gate;
  struct request *request; /* NULL: the client is gone, and its connection closed */
  struct exchange *next_dead;
  uint32_t refs; /* the request, its response, and the steps have one each */
  enum step step;
  /* The request. */
  char *method, *target; /* the target with the path of the upstream's URL before it */
  struct curl_slist *headers;
  bool has_body;
  int64_t length; /* of the body; -1: unknown */
  char name[HEAD_NAME_MAX + 1];
  uint64_t fence;         /* 0: none */
  char key[ONCE_KEY_MAX]; /* of once; "": none */
  char fingerprint[65];   /* of what the key belongs to */
  char *secrets;          /* of the fingerprint: Authorization, Cookie, Content-Type, each with a NUL */
  size_t secrets_length;
  size_t counted;         /* memory of bodies that are kept as a whole */
  struct stream up, down; /* bodies */
  bool gone;              /* the client has hung up */
  /* The answer. */
  int status;
  struct stream lines;           /* its headers that go on: "Name: value\n" */
  int64_t answer_length;         /* -1: unknown */
  bool ready;                    /* it may be sent */
  bool sent;                     /* it is being sent */
  bool broken;                   /* its rest is lost */
  bool large;                    /* too large to be kept; the client gets it as it comes */
  bool replayed;                 /* it was stored by an earlier request */
  bool not_kept;                 /* a repetition would be done again */
  bool stale;                    /* it was refused */
  struct exchange *next_checked; /* fence.c */
  /* guard.c */
  dibs_lease *key_lease, *order_lease;
  dibs_lease *waits_for; /* one of them; NULL: it does not wait */
  bool in_line;          /* it may wait for it: it is one of gate->waiters */
  bool attempts;         /* the key has an attempt of ours that has neither stored nor left */
  uint32_t store_tries;
  /* upstream.c */
  CURL *easy;
  bool sending;                /* bytes of the request were given to a connection */
  bool paused_up, paused_down; /* libcurl waits for the client */
  bool to_continue, timed;
  struct exchange *next_to_continue;
  struct exchange *older, *newer;  /* those that wait for the service */
  struct exchange *before, *after; /* those that have it */
  dibs__tick silent_from;
  size_t head_bytes, line_count, length_count; /* of the answer */
  bool has_head;
  const char *wrong; /* what is wrong with the answer; NULL: nothing */
  char trouble[CURL_ERROR_SIZE];
};

/* ---- exchange.c ---- */

/* Answers with a problem, or breaks off an answer that is being sent. */
void dibs__exchange_refuse(struct exchange *e, int status, const char *word, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The client's side may continue, if there is something for it to do. */
void dibs__exchange_wake(struct exchange *e);
/* All steps are done; e may be freed. */
void dibs__exchange_end(struct exchange *e);
void dibs__exchange_unref(struct exchange *e);
/* Adds to a body that is in memory as a whole until the exchange is freed.  false: there is no memory, or --bodies does
 * not allow it; nothing was added. */
bool dibs__exchange_keep(struct exchange *e, struct stream *body, const void *bytes, size_t length);
/* The answer is too large to be kept: from upstream.c. */
void dibs__exchange_is_large(struct exchange *e);
/* The service has answered to the end (status 0), or has failed: from upstream.c.  */
void dibs__exchange_upstream_done(struct exchange *e, int status, const char *word, const char *why);

/* ---- guard.c ---- */

/* Does the store keep what the gate needs?  false: `error` says what it lacks. */
bool dibs__guard_check(const struct gate *gate, dibs_error *error);
/* Begins the steps before the service.  The request may be answered when it returns. */
void dibs__guard_begin(struct exchange *e);
/* The client is gone, or the gate stops: a wait for a lease ends. */
void dibs__guard_cancel(struct exchange *e);
/* Of an exchange with a key: stores the answer, or that it is too large, and then lets it be sent. */
void dibs__guard_store(struct exchange *e);
/* Ends the attempt at the key without an answer. */
void dibs__guard_leave(struct exchange *e);
void dibs__guard_release(struct exchange *e);

/* The answer of dibs__fence_check.  `seen`: with STALE, the newer fence.  LOST: the lease is not held under it. */
void dibs__guard_fence_checked(struct exchange *e, dibs_status status, uint64_t seen, const dibs_error *error);

/* ---- fence.c ---- */

/* dibs__guard_fence_checked gets the answer, now or later. */
void dibs__fence_check(struct exchange *e);

/* ---- kept.c: stored answers ---- */

void dibs__kept_fingerprint(struct exchange *e);
/* false: there is no memory. */
bool dibs__kept_write(const struct exchange *e, struct stream *to);
enum kept { KEPT_FINE, KEPT_LARGE, KEPT_OTHER_REQUEST, KEPT_DAMAGED };
/* FINE: the answer is in `e`. */
enum kept dibs__kept_read(struct exchange *e, const char *data, size_t length);
/* "Name: value\n" and so on, as headers. */
void dibs__kept_lines(const struct stream *lines, struct head *head);
/* Is an answer with this status the answer to all repetitions? */
bool dibs__kept_is_final(int status);
/* The most bytes of a body that are kept. */
size_t dibs__kept_body_max(const struct gate *gate);

/* ---- count.c ---- */

bool dibs__count_open(struct gate *gate);
void dibs__count_close(struct gate *gate);
/* It ends.  Sets its outcome. */
void dibs__count_request(struct request *r);
struct meter;
void dibs__count_add(const struct gate *gate, struct meter *meter);

/* ---- operations.c: requests to the address of --metrics-listen ---- */

bool dibs__operations_open(struct gate *gate, dibs_error *error);
/* Is it one? */
bool dibs__operations_has(const struct request *r);
/* Answers it, now or later; it was read to its end. */
void dibs__operations_answer(struct request *r);

/* ---- upstream.c ---- */

bool dibs__upstream_open(struct gate *gate, dibs_error *error);
void dibs__upstream_stop(struct gate *gate); /* ends what runs */
void dibs__upstream_close(struct gate *gate);
/* Adds the path of the URL before a target: malloc'd; NULL: no memory. */
char *dibs__upstream_target(const struct gate *gate, const char *target);
bool dibs__upstream_start(struct exchange *e); /* false: no memory */
void dibs__upstream_abort(struct exchange *e); /* dibs__exchange_upstream_done will not be called */
/* There is more to send, or space for more of the answer. */
void dibs__upstream_continue(struct exchange *e);
int64_t dibs__upstream_next_ms(const struct gate *gate, dibs__tick now);
void dibs__upstream_tick(struct gate *gate, dibs__tick now);

#endif
