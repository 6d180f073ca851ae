/* SPDX-License-Identifier: MIT */
/*
 * POST /v1/store: the daemon's store for other programs of dibs, as messages (store/message.h).  Operations of all
 * clients travel to the store in the same batches as those of the other routes.
 *
 * An operation that was answered to a client is answered by the store: the daemon keeps nothing that a lease or a row
 * depends on.
 */
#include "handle/handle.h"
#include "serve/session.h"
#include "serve/stale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  POLL_MAX_MS = 60000,
  LISTED_ROWS = 10000,    /* in a page, if the last name has no more */
  LISTED_BYTES = 64 << 20 /* of a page, if a name has that many waiters */
};

struct store_in {
  struct field_data message;
};

static const struct field store_fields[] = {{.name = "message",
                                             .kind = FIELD_RAW,
                                             .at = offsetof(struct store_in, message),
                                             .most = 2 << 20,
                                             .help = "a message of the driver of http:// and https:// stores"},
                                            {.name = NULL}};

void dibs__store_answer(struct request *r, struct dibs__writer *w) {
  if (w->failed) {
    dibs__writer_free(w);
    dibs__answer_problem(r, DIBS_UNKNOWN, NULL); /* the operations may be done */
    return;
  }
  struct dibs__json *body = dibs__answer_begin(r, 200);
  body->text = (char *)w->bytes;
  body->length = w->length;
  body->capacity = w->capacity;
  r->answer.type = "application/octet-stream";
}

static void answer_now(struct request *r, struct dibs__writer *w) {
  bool whole = !w->failed;
  dibs__store_answer(r, w);
  if (whole) dibs__answer_end(r);
}

static void refuse_message(struct request *r) {
  dibs__answer_refuse(r, 400, "invalid", "the message is not well-formed, or a member is beyond its limit");
}

/* ---- HELLO, BYE ---- */

static void hello(struct request *r, struct dibs__reader *from, const dibs__id *number) {
  struct server *server = r->server;
  struct dibs__core *core = server->store->core;
  const struct dibs__identity *identity = dibs__core_identity(core);
  struct dibs__writer w = {0};
  if (!dibs__reader_done(from)) {
    refuse_message(r);
    return;
  }
  if (identity->caps & DIBS__CAP_SESSION) {
    dibs__answer_refuse(r, 501, "unsupported",
                        "the leases of this daemon's store belong to its own connections, so they cannot be those of "
                        "other machines; serve a store whose leases are rows");
    return;
  }
  bool fresh = !dibs__session_find(server, number);
  if (!dibs__session_make(server, number) || !dibs__core_serve(core)) {
    dibs__answer_refuse(r, 503, "overload", "this daemon has too many sessions, or no memory for one more");
    return;
  }
  struct dibs__message_hello hello = {
      .mandate = identity->mandate,
      .caps =
          identity->caps & ~(uint32_t)(DIBS__CAP_ANCHOR | DIBS__CAP_BRIEF | DIBS__CAP_PARALLEL | DIBS__CAP_TASK_TABLES),
      .families = identity->families & ~(1u << DIBS__FAM_TIERS | 1u << DIBS__FAM_SHARED),
      .max_batch =
          identity->max_batch && identity->max_batch < DIBS__MESSAGE_BATCH ? identity->max_batch : DIBS__MESSAGE_BATCH,
      .most_bytes = server->config.body_bytes,
      .fresh = fresh,
      .cut_off = dibs__core_is_cut_off(core)};
  dibs__message_begin(&w, DIBS__MESSAGE_HELLO);
  dibs__write_hello(&w, &hello);
  answer_now(r, &w);
}

void dibs__store_bye(struct request *r) {
  struct dibs__writer w = {0};
  dibs__message_begin(&w, DIBS__MESSAGE_BYE);
  answer_now(r, &w);
}

static void bye(struct request *r, const struct dibs__reader *from, struct session *session) {
  if (dibs__reader_done(from))
    dibs__session_end(r->server, session, r);
  else
    refuse_message(r);
}

/* ---- RUN ---- */

/* As the other routes: what people do by hand needs admin. */
static enum scope scope_of(const struct dibs__op *op) {
  if (op->flags & DIBS__OP_READS) return SCOPE_READ;
  bool by_hand = op->family == DIBS__FAM_ANCHOR || (op->family == DIBS__FAM_LEASE && op->verb == DIBS__BREAK) ||
                 (op->family == DIBS__FAM_TASK && (op->verb == DIBS__TASK_CHANGE || op->verb == DIBS__TASK_KIND)) ||
                 (op->family == DIBS__FAM_RUN && op->verb == DIBS__RUN_SET);
  if (op->family == DIBS__FAM_RECORD && (op->verb == DIBS__RECORD_PUT || op->verb == DIBS__RECORD_DROP)) {
    const struct dibs__record_op *record = (const struct dibs__record_op *)op;
    return record->table ? SCOPE_USE : dibs__auth_key_scope(record->key.p, record->key.len);
  }
  return by_hand ? SCOPE_ADMIN : SCOPE_USE;
}

struct carried {
  struct dibs__read_op read; /* first */
  struct batch *batch;
  char *author; /* of a BREAK by a client with a token; NULL: as the operation has it */
};

struct batch {
  struct request *request;
  struct session *session;
  dibs_store *store;
  struct dibs__due_call due;
  _Atomic uint32_t unanswered;
  uint32_t count;
  struct carried ops[];
};

static void free_batch(struct batch *batch) {
  for (uint32_t i = 0; i < batch->count; i++) {
    dibs__read_op_free(&batch->ops[i].read);
    free(batch->ops[i].author);
  }
  free(batch);
}

/* The core answers TIMEOUT for an operation that it never sent. */
static void settle(struct dibs__op *op) {
  if (op->status == DIBS_TIMEOUT && op->family != DIBS__FAM_LEASE) op->status = DIBS_UNAVAILABLE;
}

/* A client with several daemons goes to the next one if this one is cut off from its store; not because of a locked row
 * or a full queue, which it would meet there, too. */
static void write_answers(struct batch *batch, struct dibs__writer *w) {
  char trouble[256] = "";
  bool troubled = false, denied = false;
  for (uint32_t i = 0; i < batch->count; i++) {
    dibs__status status = batch->ops[i].read.op.status;
    troubled = troubled || status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN;
    denied = denied || status == DIBS_DENIED;
  }
  if (troubled) dibs__core_trouble(batch->store->core, trouble, sizeof trouble);
  if (denied && !troubled)
    snprintf(trouble, sizeof trouble, "the token \"%s\" does not have the scope that this needs",
             dibs__auth_label(batch->request));
  dibs__message_begin(w, DIBS__MESSAGE_RUN);
  dibs__write_text(w, dibs__str_of(trouble, strlen(trouble)));
  dibs__write_number(w, troubled && dibs__core_is_cut_off(batch->store->core));
  for (uint32_t i = 0; i < batch->count; i++) dibs__write_answer(w, &batch->ops[i].read.op);
}

/* Before what the store's own driver sees: this daemon. */
static void add_daemon(struct dibs__engine_op *op) {
  struct dibs__findings findings = {0};
  if (op->op.family != DIBS__FAM_ENGINE || op->op.status != DIBS_OK) return;
  dibs__find(&findings, "daemon", "dibs serve, version %s", dibs_version());
  dibs__findings_take(op, &findings);
  (void)dibs__findings_answer(&findings, &op->op);
}

static void count_stale(struct server *server, const struct dibs__read_op *op) {
  if (op->op.family == DIBS__FAM_LEASE && op->op.verb == DIBS__ACQUIRE && op->op.status == DIBS_OK)
    dibs__stale_granted(server, &op->lease.id, op->lease.name);
  if (op->op.family == DIBS__FAM_RECORD && op->op.status == DIBS_STALE) dibs__stale_refused(server, &op->record.id);
}

/* In the loop. */
static void batch_answered(struct batch *batch) {
  struct request *r = batch->request;
  struct server *server = r->server;
  struct dibs__writer w = {0};
  for (uint32_t i = 0; i < batch->count; i++) {
    struct dibs__op *op = &batch->ops[i].read.op;
    settle(op);
    add_daemon(&batch->ops[i].read.engine);
    if (op->family == DIBS__FAM_LEASE) dibs__session_learns(server, batch->session, &batch->ops[i].read.lease);
    count_stale(server, &batch->ops[i].read);
    if (scope_of(op) == SCOPE_ADMIN) dibs__action_log_op(r, op);
  }
  write_answers(batch, &w);
  dibs__session_answered(server, batch->session);
  free_batch(batch);
  answer_now(r, &w);
}

static bool batch_due_locked(dibs_store *store, struct dibs__due_call *due) {
  struct batch *batch = (struct batch *)((char *)due - offsetof(struct batch, due));
  dibs__mutex_unlock(&store->lock);
  batch_answered(batch);
  dibs__mutex_lock(&store->lock);
  return true;
}

/* Any thread that leads. */
static void op_answered(struct dibs__op *op) {
  struct batch *batch = ((struct carried *)op)->batch;
  dibs_store *store = batch->store;
  if (atomic_fetch_sub(&batch->unanswered, 1) != 1) return;
  dibs__mutex_lock(&store->lock);
  dibs__calls_queue_locked(store, &batch->due);
  store->in_flight--;
  dibs__mutex_unlock(&store->lock);
}

/* NULL: the request was answered. */
static struct batch *read_batch(struct request *r, struct dibs__reader *from) {
  uint32_t count = (uint32_t)dibs__read_number(from, DIBS__MESSAGE_BATCH);
  if (from->bad || count == 0) {
    refuse_message(r);
    return NULL;
  }
  struct batch *batch = calloc(1, sizeof *batch + count * sizeof *batch->ops);
  bool no_memory = !batch;
  dibs__tick now = dibs__tick_now();
  bool good = batch != NULL;
  for (uint32_t i = 0; good && i < count; i++) {
    batch->count++;
    good = dibs__read_op(from, now, &batch->ops[i].read, &no_memory);
  }
  if (good && dibs__reader_done(from)) return batch;
  if (batch) free_batch(batch);
  if (no_memory)
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
  else
    refuse_message(r);
  return NULL;
}

/* false: too many ids wait; nothing was sent. */
static bool expect_all(struct server *server, struct session *session, struct batch *batch) {
  for (uint32_t i = 0; i < batch->count; i++) {
    const struct dibs__lease_op *op = &batch->ops[i].read.lease;
    if (op->op.family != DIBS__FAM_LEASE || op->op.verb != DIBS__ACQUIRE || !op->queue) continue;
    if (!dibs__session_expects(server, session, op)) return false;
  }
  return true;
}

/* Operations for one name are answered in their order (R1), so they must not overtake each other in the core: all are
 * urgent or none is, and several have a lane.  An epoch of 0, which the core would replace by the epoch that it knows,
 * is an epoch that no bucket has. */
static void keep_order(struct batch *batch) {
  uint16_t urgent = DIBS__OP_URGENT;
  uint32_t lane = (uint32_t)((uintptr_t)batch >> 4) | 1;
  for (uint32_t i = 0; i < batch->count; i++) urgent &= batch->ops[i].read.op.flags;
  for (uint32_t i = 0; i < batch->count; i++) {
    struct dibs__op *op = &batch->ops[i].read.op;
    op->flags = (uint16_t)((op->flags & ~DIBS__OP_URGENT) | urgent);
    if (op->lane == 0 && batch->count > 1) op->lane = lane;
    if (op->family == DIBS__FAM_LEASE && op->mandate.epoch == 0) op->mandate.epoch = UINT32_MAX;
  }
}

/* Of a group, all or none. */
static bool is_allowed(const struct batch *batch, const struct dibs__op *op) {
  if (op->group == 0) return dibs__auth_has(batch->request, scope_of(op));
  for (uint32_t i = 0; i < batch->count; i++) {
    const struct dibs__op *other = &batch->ops[i].read.op;
    if (other->group == op->group && !dibs__auth_has(batch->request, scope_of(other))) return false;
  }
  return true;
}

/* The operations that the client may send, as one list: the members of a group are neighbours in it. */
static struct dibs__op *link_allowed(struct batch *batch) {
  struct dibs__op *first = NULL, **to = &first;
  for (uint32_t i = 0; i < batch->count; i++) {
    struct dibs__op *op = &batch->ops[i].read.op;
    batch->ops[i].batch = batch;
    op->done = op_answered;
    op->status = DIBS_DENIED;
    if (!is_allowed(batch, op)) continue;
    batch->unanswered++;
    *to = op;
    to = &op->next;
  }
  return first;
}

static void start_batch(struct batch *batch) {
  dibs_store *store = batch->store;
  keep_order(batch);
  struct dibs__op *list = link_allowed(batch);
  if (!list) {
    batch_answered(batch);
    return;
  }
  batch->due.run_locked = batch_due_locked;
  dibs__mutex_lock(&store->lock);
  store->in_flight++;
  dibs__mutex_unlock(&store->lock);
  dibs__start(store, list);
}

/* The store records the author of a break: the label of the token, with the owner that the client has.  false: no
 * memory.
 */
static bool name_authors(const struct request *r, struct batch *batch) {
  for (uint32_t i = 0; i < batch->count; i++) {
    struct dibs__lease_op *op = &batch->ops[i].read.lease;
    if (op->op.family != DIBS__FAM_LEASE || op->op.verb != DIBS__BREAK || !*dibs__auth_label(r)) continue;
    char *author = batch->ops[i].author = malloc(DIBS_OWNER_MAX + 1);
    if (!author) return false;
    dibs__auth_author(r, op->owner.len > 0 ? op->owner.p : NULL, op->owner.len, author);
    op->owner = dibs__str_of(author, strlen(author));
  }
  return true;
}

static void run(struct request *r, struct dibs__reader *from, struct session *session) {
  struct batch *batch = read_batch(r, from);
  if (!batch) return;
  if (!name_authors(r, batch)) {
    free_batch(batch);
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  if (!expect_all(r->server, session, batch)) {
    free_batch(batch);
    dibs__answer_refuse(r, 503, "overload", "%u ids of this session wait or hold leases already (--session-ids)",
                        r->server->config.session_ids);
    return;
  }
  batch->request = r;
  batch->session = session;
  batch->store = r->server->store;
  session->running++;
  start_batch(batch);
}

/* ---- LIST ---- */

/* A page has all rows of its names. */
struct listing {
  dibs__str name, prefix, after; /* in the body */
  struct dibs__writer w;
  uint32_t rows;
  uint32_t last_length;
  char last[DIBS_NAME_MAX]; /* the name of the last row */
  bool more, too_many;
};

static int list_row(const struct dibs__lease_row *row, void *user) {
  struct listing *listing = user;
  dibs__str last = {listing->last, listing->last_length};
  if (listing->rows >= LISTED_ROWS && listing->name.len == 0 && !dibs__str_equal(last, row->name)) {
    listing->more = true;
    return 1;
  }
  listing->rows++;
  listing->last_length = row->name.len <= DIBS_NAME_MAX ? row->name.len : 0;
  memcpy(listing->last, row->name.p, listing->last_length);
  dibs__write_row(&listing->w, row);
  listing->too_many = listing->w.length > LISTED_BYTES;
  return listing->w.failed || listing->too_many;
}

static void drop_listing(struct request *r) {
  struct listing *listing = r->work;
  dibs__writer_free(&listing->w);
  free(listing);
  r->work = NULL;
}

/* In a thread of the pool. */
static void make_list(struct request *r) {
  struct listing *listing = r->work;
  struct dibs__list list = {
      .name = listing->name, .prefix = listing->prefix, .after = listing->after, .row = list_row, .user = listing};
  struct dibs__result result = {.text = ""};
  dibs_error error = {0};
  dibs__message_begin(&listing->w, DIBS__MESSAGE_LIST);
  dibs_status status = dibs__enter(r->server->store, "POST /v1/store", &error);
  if (status == DIBS_OK) {
    status = (dibs_status)dibs__core_list(r->server->store->core, &list, &result);
    if (status != DIBS_OK) dibs__fail(&error, status, "%s", result.text);
    dibs__exit(r->server->store);
  }
  dibs__write_rows_end(&listing->w, listing->more);
  if (listing->too_many)
    dibs__answer_refuse(r, 413, "too-large", "the listing has more than %d bytes; give a longer prefix", LISTED_BYTES);
  else if (status != DIBS_OK)
    dibs__answer_problem(r, status, &error);
  else
    dibs__store_answer(r, &listing->w);
  if (listing->too_many || status != DIBS_OK) dibs__writer_free(&listing->w);
  listing->w = (struct dibs__writer){0};
  drop_listing(r);
}

static void list(struct request *r, struct dibs__reader *from) {
  struct listing *listing = calloc(1, sizeof *listing);
  if (!listing) {
    dibs__answer_problem(r, DIBS_NO_MEMORY, NULL);
    return;
  }
  listing->name = dibs__read_text(from, DIBS_NAME_MAX);
  listing->prefix = dibs__read_text(from, DIBS_NAME_MAX);
  listing->after = dibs__read_text(from, DIBS_NAME_MAX);
  if (!dibs__reader_done(from)) {
    free(listing);
    refuse_message(r);
    return;
  }
  r->work = listing;
  dibs__pool_run(r, make_list, drop_listing);
}

/* ---- EVENTS ---- */

static void events(struct request *r, struct dibs__reader *from, struct session *session) {
  int64_t wait_ms = (int64_t)dibs__read_number(from, POLL_MAX_MS);
  if (!dibs__reader_done(from))
    refuse_message(r);
  else if (dibs__may_wait(r))
    dibs__session_poll(session, r, wait_ms);
}

/* ---- The route ---- */

static void refuse_format(struct request *r, uint32_t format) {
  if (format == 0)
    refuse_message(r);
  else
    dibs__answer_refuse(r, 400, "invalid",
                        "the message has format %u, and this daemon reads format %d; install the "
                        "same version of dibs on both sides",
                        format, DIBS__MESSAGE_FORMAT);
}

static void post_store(struct request *r) {
  const struct store_in *in = r->in;
  struct dibs__reader from = {(const uint8_t *)in->message.p, (const uint8_t *)in->message.p + in->message.length,
                              false};
  dibs__id number;
  uint32_t format;
  enum dibs__message_kind kind = dibs__message_kind(&from, &format);
  dibs__read_bytes(&from, number.b, sizeof number.b);
  if (!dibs__auth_covers(r, "")) { /* listings, reports and events are of all names */
    dibs__answer_refuse(r, 403, "prefix",
                        "the token \"%s\" is for some names only; a client with this daemon as its store needs one "
                        "without a prefix",
                        dibs__auth_label(r));
    return;
  }
  if (kind == 0 || from.bad) {
    refuse_format(r, kind == 0 && format != DIBS__MESSAGE_FORMAT ? format : 0);
    return;
  }
  if (kind == DIBS__MESSAGE_HELLO) {
    hello(r, &from, &number);
    return;
  }
  struct session *session = dibs__session_find(r->server, &number);
  if (!session)
    dibs__answer_refuse(r, 410, "no-session", "this daemon does not know the session, or it has ended; open another");
  else if (kind == DIBS__MESSAGE_RUN)
    run(r, &from, session);
  else if (kind == DIBS__MESSAGE_LIST)
    list(r, &from);
  else if (kind == DIBS__MESSAGE_EVENTS)
    events(r, &from, session);
  else
    bye(r, &from, session);
}

const struct route dibs__store_routes[] = {
    {METHOD_POST, "/v1/store", SCOPE_READ, post_store, sizeof(struct store_in), store_fields, "useStore", "200 410",
     "The store itself, for the driver of http:// stores",
     "A binary message of dibs' own driver, `dibs --store http://...`; its form may change with any version.",
     "application/octet-stream"},
    {.path = NULL}};
