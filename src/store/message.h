/* SPDX-License-Identifier: MIT */
#ifndef DIBS_STORE_MESSAGE_H
#define DIBS_STORE_MESSAGE_H
/*
 * The messages by which the driver of http:// uses the store of a daemon (POST /v1/store): operations as bytes.  One
 * table has the members of each operation that travel, with their limits; both sides write and read by it.
 *
 *   message    "dibs", the format's number, a kind, then what the kind has
 *   number     7 bits in each byte, the lowest first, the highest bit set in all but the last byte; a signed one is
 *              first folded: 0, -1, 1, -2 become 0, 1, 2, 3
 *   text       its length, then its bytes
 *   id, incarnation   their bytes
 *
 * A reader trusts nothing: it stops at the first byte that does not fit, and accepts no number or length beyond the
 * member's limit, so a driver gets only operations that the layers above it could have sent.  Nothing that it
 * allocates is larger than a small multiple of the message.
 *
 * A new member or verb changes DIBS__MESSAGE_FORMAT: a daemon answers a message of another format with a refusal that
 * names both.  A new family does not: HELLO says which families the daemon serves, and a client sends no other.
 */
#include "store/bytes.h"
#include "store/counter.h"
#include "store/engine.h"
#include "store/run.h"
#include "store/store.h"
#include "store/task.h"

enum { DIBS__MESSAGE_FORMAT = 5, DIBS__MESSAGE_BATCH = 256 /* operations in one message */ };

enum dibs__message_kind {
  DIBS__MESSAGE_HELLO = 1, /* opens a session: its number.  Answer: struct dibs__message_hello */
  DIBS__MESSAGE_RUN,       /* session, operations.  Answer: a text for people, is the daemon cut off from its store?
                              (0 or 1), the answer of each */
  DIBS__MESSAGE_LIST,      /* session, name, prefix, after.  Answer: rows, then an end mark */
  DIBS__MESSAGE_EVENTS,    /* session, ms to wait.  Answer: events */
  DIBS__MESSAGE_BYE        /* session: it ends.  Answer: nothing */
};

/* ---- Messages ---- */

void dibs__message_begin(struct dibs__writer *w, enum dibs__message_kind kind);
/* 0: it is no message of this format; then *format is that of the message, or 0. */
enum dibs__message_kind dibs__message_kind(struct dibs__reader *r, uint32_t *format);

struct dibs__message_hello {
  dibs__mandate mandate;
  uint32_t caps, families, max_batch;
  uint32_t most_bytes; /* of a message to the daemon */
  bool fresh;          /* the daemon did not know the session before */
  bool cut_off;        /* it could not reach its store lately */
};
void dibs__write_hello(struct dibs__writer *w, const struct dibs__message_hello *hello);
void dibs__read_hello(struct dibs__reader *r, struct dibs__message_hello *hello);

/* ---- Operations ---- */

/* OK: it can travel.  UNSUPPORTED: operations on users' tables, and the administration of several tiers.  INVALID: a
 * member is beyond its limit. */
dibs__status dibs__op_check(const struct dibs__op *op);
/* `left_ms`: how long its answer may take. */
void dibs__write_op(struct dibs__writer *w, const struct dibs__op *op, int64_t left_ms);

/* An operation that was read, and the arrays that it points to.  Its texts point into the message. */
struct dibs__read_op {
  union {
    struct dibs__op op; /* first */
    struct dibs__lease_op lease;
    struct dibs__anchor_op anchor;
    struct dibs__record_op record;
    struct dibs__stock_op stock;
    struct dibs__once_op once;
    struct dibs__report_op report;
    struct dibs__task_op task;
    struct dibs__run_op run;
    struct dibs__counter_op counter;
    struct dibs__engine_op engine;
  };
  void *arrays[2];
};
/* `op` is zeroed.  false: the message is bad, or there is no memory (*no_memory); free it in each case. */
bool dibs__read_op(struct dibs__reader *r, dibs__tick now, struct dibs__read_op *op, bool *no_memory);
void dibs__read_op_free(struct dibs__read_op *op); /* with what its answer allocated */

void dibs__write_answer(struct dibs__writer *w, const struct dibs__op *op);
/* `keep` keeps the name of a tier as long as the store is open; NULL: no memory. */
typedef const char *dibs__keep_text(void *context, dibs__str text);
/* Sets the answers of `op`.  false: as dibs__read_op; what it allocated belongs to the operation. */
bool dibs__read_answer(struct dibs__reader *r, struct dibs__op *op, dibs__keep_text *keep, void *context);

/* ---- Listings and events ---- */

void dibs__write_row(struct dibs__writer *w, const struct dibs__lease_row *row);
/* `more`: there are rows of later names. */
void dibs__write_rows_end(struct dibs__writer *w, bool more);
/* false: the message has no more, or is bad. */
bool dibs__read_row(struct dibs__reader *r, struct dibs__lease_row *row, bool *more);
/* Without held_until, which only means something on the machine of the store, and without the fence that needs it. */
void dibs__write_event(struct dibs__writer *w, const struct dibs__event *event);
void dibs__read_event(struct dibs__reader *r, struct dibs__event *event);

#endif
