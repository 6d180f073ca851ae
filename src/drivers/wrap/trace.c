/* SPDX-License-Identifier: MIT */
/*
 * Writes the calls of a store and their answers, one line of JSON a driver call, to trace.file=PATH (appended, made
 * with mode 0600) or to standard error:
 *
 *   {"what":"run","pid":71,"session":1,"at_ms":1700000000123,"us":48,"status":"OK","ops":1,"commits":1,
 *    "kinds":{"lease.acquire":1},
 *    "each":[{"op":"lease.acquire","name":"nightly","id":"9f3c1d20aa41be77","status":"OK","fence":4294967301}]}
 *
 * `id` is the digest that records keep too: it distinguishes leases and can't be used to steal one.  A line goes out
 * in one write(2), so that lines of several processes in one file stay whole; an error of the write is ignored.
 * wake() is not traced: it must not block.
 */
#include "base/text.h"
#include "drivers/wrap/shim.h"
#include "store/family.h"
#include "store/task.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A line has space for some hundred operations; for a larger batch it counts those it leaves out.  The tail is for the
 * engine's message, every byte of it escaped. */
enum { LINE_MAX_RUN = 65536, LINE_MAX_EVENTS = 8192, LINE_MAX_OTHER = 4096, LINE_TAIL = 2048 };

struct trace {
  struct dibs__shim shim;
  int fd; /* immutable after open */
  _Atomic uint64_t sessions;
  char line[LINE_MAX_EVENTS]; /* of the caller of events(), one at a time */
};

struct session {
  struct dibs__shim_session shim;
  uint64_t number;
  char line[LINE_MAX_RUN]; /* of the caller of run() or list(), one at a time */
};

/* ---- Names ---- */

static const char *status_name(dibs__status status) {
  if (status == DIBS__QUEUED) return "QUEUED";
  if (status == DIBS__MOVED) return "MOVED";
  return dibs_status_name((dibs_status)status);
}

/* ---- Lines ---- */

static void begin_line(struct dibs__text *text, char *line, size_t size, const char *what, uint64_t session,
                       dibs__tick since, dibs__status status) {
  int64_t us = (dibs__tick_now().ns - since.ns) / 1000;
  dibs__text_begin(text, line, size);
  dibs__text_addf(text, "{\"what\":\"%s\",\"pid\":%" PRIu32, what, dibs__process_id());
  if (session) dibs__text_addf(text, ",\"session\":%" PRIu64, session);
  dibs__text_addf(text, ",\"at_ms\":%" PRId64 ",\"us\":%" PRId64 ",\"status\":\"%s\"", dibs__wall_ms(), us,
                  status_name(status));
}

static void add_string(struct dibs__text *text, const char *key, const char *p, size_t len) {
  dibs__text_addf(text, ",\"%s\":", key);
  dibs__text_add_json(text, p, len);
}

static void add_result(struct dibs__text *text, const struct dibs__result *result) {
  if (result->dead) dibs__text_adds(text, ",\"dead\":true");
  if (result->text[0]) add_string(text, "said", result->text, strlen(result->text));
}

static void write_line(const struct trace *trace, struct dibs__text *text) {
  dibs__text_adds(text, "}\n");
  assert(!text->cut);
  for (size_t at = 0; at < text->len;) {
    ssize_t n = write(trace->fd, text->to + at, text->len - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    at += (size_t)n;
  }
}

static void add_id(struct dibs__text *text, dibs__id id) {
  dibs__text_addf(text, ",\"id\":\"%016" PRIx64 "\"", dibs__id_digest(id));
}

static void add_lease(struct dibs__text *text, const struct dibs__lease_op *op) {
  add_string(text, "name", op->name.p, op->name.len);
  if (op->op.verb != DIBS__BREAK) add_id(text, op->id);
  if (op->fence.v) dibs__text_addf(text, ",\"fence\":%" PRIu64, op->fence.v);
  if (op->got_block > 1) dibs__text_addf(text, ",\"block\":%" PRIu32, op->got_block);
  if (op->op.status == DIBS__QUEUED) dibs__text_addf(text, ",\"ticket\":%" PRIu64, op->ticket);
}

static void add_record(struct dibs__text *text, const struct dibs__record_op *op) {
  add_string(text, "key", op->key.p, op->key.len);
  if (dibs__record_guards(op) & DIBS__IF_FENCE) {
    add_id(text, op->id);
    dibs__text_addf(text, ",\"fence\":%" PRIu64, op->fence.v);
  }
  if (op->seen.v) dibs__text_addf(text, ",\"seen\":%" PRIu64, op->seen.v);
  dibs__text_addf(text, ",\"bytes\":%" PRIu32, op->data.len ? op->data.len : op->got_len);
}

static void add_stock(struct dibs__text *text, const struct dibs__stock_op *op) {
  add_string(text, "key", op->key.p, op->key.len);
  if (op->claim.len) add_string(text, "claim", op->claim.p, op->claim.len);
  dibs__text_addf(text, ",\"amount\":%" PRId64 ",\"strategy\":%" PRIu32, op->amount, op->strategy);
}

static void add_once(struct dibs__text *text, const struct dibs__once_op *op) {
  add_string(text, "key", op->key.p, op->key.len);
  if (op->fence.v) {
    add_id(text, op->id);
    dibs__text_addf(text, ",\"fence\":%" PRIu64, op->fence.v);
  }
  dibs__text_addf(text, ",\"bytes\":%" PRIu32, op->data.len ? op->data.len : op->got_len);
}

static void add_report(struct dibs__text *text, const struct dibs__report_op *op) {
  add_id(text, op->id);
  dibs__text_addf(text, ",\"bytes\":%" PRIu32 ",\"got\":%" PRIu32, op->data.len, op->got_count);
}

/* `count`: of the items, or of the rows that an answer has; `verdict`: of all items, unless they differ. */
static void add_task(struct dibs__text *text, const struct dibs__task_op *op) {
  static const char *const verdicts[] = {"done", "next", "wait", "fail", "dead", "give"};
  uint16_t verb = op->op.verb;
  bool lists = verb == DIBS__TASK_ADD || verb == DIBS__TASK_EXTEND || verb == DIBS__TASK_END;
  if (op->kind.len) add_string(text, "kind", op->kind.p, op->kind.len);
  if (verb == DIBS__TASK_CHANGE)
    dibs__text_addf(text, ",\"changed\":%" PRIu64, op->changed);
  else if (verb != DIBS__TASK_KIND)
    dibs__text_addf(text, ",\"count\":%" PRIu32, lists ? op->count : op->got_count);
  if (verb == DIBS__TASK_CLAIM && op->of_lanes > 0)
    dibs__text_addf(text, ",\"lanes\":%" PRIu32 ",\"of_lanes\":%" PRIu32, op->lane_count, op->of_lanes);
  if (verb != DIBS__TASK_END || op->count == 0) return;
  uint32_t verdict = op->items[0].verdict;
  bool same = verdict < sizeof verdicts / sizeof verdicts[0];
  for (uint32_t i = 1; i < op->count; i++) same = same && op->items[i].verdict == verdict;
  dibs__text_addf(text, ",\"verdict\":\"%s\"", same ? verdicts[verdict] : "various");
}

static void add_op(struct dibs__text *text, const struct dibs__op *op) {
  dibs__text_addf(text, "{\"op\":\"%s.%s\"", dibs__family_of(op)->name, dibs__verb_name(op));
  if (op->family == DIBS__FAM_LEASE)
    add_lease(text, (const struct dibs__lease_op *)op);
  else if (op->family == DIBS__FAM_RECORD)
    add_record(text, (const struct dibs__record_op *)op);
  else if (op->family == DIBS__FAM_STOCK)
    add_stock(text, (const struct dibs__stock_op *)op);
  else if (op->family == DIBS__FAM_ONCE)
    add_once(text, (const struct dibs__once_op *)op);
  else if (op->family == DIBS__FAM_REPORT)
    add_report(text, (const struct dibs__report_op *)op);
  else if (op->family == DIBS__FAM_TASK)
    add_task(text, (const struct dibs__task_op *)op);
  else
    dibs__text_addf(text, ",\"bucket\":%u", op->bucket);
  if (op->lane) dibs__text_addf(text, ",\"lane\":%" PRIu32, op->lane);
  if (op->group) dibs__text_addf(text, ",\"group\":%" PRIu32, op->group);
  dibs__text_addf(text, ",\"epoch\":%" PRIu32 ",\"status\":\"%s\"}", op->mandate.epoch, status_name(op->status));
}

static void add_kinds(struct dibs__text *text, struct dibs__op *const ops[], size_t count) {
  size_t counts[DIBS__FAM_COUNT + 1][DIBS__VERBS_MAX + 1] = {{0}};
  for (size_t i = 0; i < count; i++)
    counts[ops[i]->family < DIBS__FAM_COUNT ? ops[i]->family : DIBS__FAM_COUNT]
          [ops[i]->verb < DIBS__VERBS_MAX ? ops[i]->verb : DIBS__VERBS_MAX]++;
  const char *between = "";
  dibs__text_adds(text, ",\"kinds\":{");
  for (uint16_t family = 0; family <= DIBS__FAM_COUNT; family++)
    for (uint16_t verb = 0; verb <= DIBS__VERBS_MAX; verb++) {
      if (counts[family][verb] == 0) continue;
      struct dibs__op of = {.family = family, .verb = verb};
      dibs__text_addf(text, "%s\"%s.%s\":%zu", between, dibs__family_of(&of)->name, dibs__verb_name(&of),
                      counts[family][verb]);
      between = ",";
    }
  dibs__text_adds(text, "}");
}

static void add_each(struct dibs__text *text, struct dibs__op *const ops[], size_t count) {
  dibs__text_adds(text, ",\"each\":[");
  size_t told = 0, all = text->size;
  text->size -= 64; /* the end of the list must fit, whatever these need */
  for (; told < count; told++) {
    size_t mark = text->len;
    if (told > 0) dibs__text_adds(text, ",");
    add_op(text, ops[told]);
    if (!text->cut) continue;
    text->len = mark;
    text->to[mark] = '\0';
    text->cut = false;
    break;
  }
  text->size = all;
  dibs__text_adds(text, "]");
  if (told < count) dibs__text_addf(text, ",\"left_out\":%zu", count - told);
}

/* ---- The table ---- */

static void trace_close(struct dibs__dstore *store) {
  struct trace *trace = (struct trace *)store;
  if (!trace) return;
  struct dibs__text text;
  char line[LINE_MAX_OTHER];
  begin_line(&text, line, sizeof line, "close", 0, dibs__tick_now(), DIBS_OK);
  write_line(trace, &text);
  if (trace->fd != STDERR_FILENO) close(trace->fd);
  dibs__shim_close(store);
}

static dibs__status trace_open(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **store, struct dibs__result *result) {
  static const char *const known[] = {"trace.file", NULL};
  dibs__tick since = dibs__tick_now();
  (void)by;
  assert(count == 1);
  (void)count;
  *store = NULL;
  *result = (struct dibs__result){.sent = since};
  dibs__status status = dibs__uri_only(uri, "trace", known, result);
  if (status != DIBS_OK) return status;
  struct trace *trace = (struct trace *)dibs__shim_new(sizeof *trace, &dibs__trace_driver, inner[0], result);
  if (!trace) return DIBS_NO_MEMORY;
  const char *file = dibs__uri_param(uri, "trace.file");
  trace->fd = file ? open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600) : STDERR_FILENO;
  if (trace->fd < 0) {
    bool denied = errno == EACCES || errno == EPERM || errno == EROFS;
    dibs__set_message(result, "can't write trace.file %s: %s", file, strerror(errno));
    dibs__shim_close(&trace->shim.base);
    return denied ? DIBS_DENIED : DIBS_UNAVAILABLE;
  }
  struct dibs__text text;
  char line[LINE_MAX_OTHER];
  begin_line(&text, line, sizeof line, "open", 0, since, DIBS_OK);
  add_string(&text, "inner", inner[0]->driver->name, strlen(inner[0]->driver->name));
  write_line(trace, &text);
  *store = &trace->shim.base;
  return DIBS_OK;
}

static dibs__status trace_connect(struct dibs__dstore *store, dibs__tick by, struct dibs__session **session,
                                  struct dibs__identity *identity, struct dibs__result *result) {
  struct trace *trace = (struct trace *)store;
  dibs__tick since = dibs__tick_now();
  dibs__status status = dibs__shim_connect_sized(sizeof(struct session), store, by, session, identity, result);
  uint64_t number = atomic_fetch_add(&trace->sessions, 1) + 1;
  if (status == DIBS_OK) ((struct session *)*session)->number = number;
  struct dibs__text text;
  char line[LINE_MAX_OTHER];
  begin_line(&text, line, sizeof line, "connect", number, since, status);
  if (status == DIBS_OK)
    dibs__text_addf(&text, ",\"caps\":%" PRIu32 ",\"epoch\":%" PRIu32 ",\"max_batch\":%" PRIu32, identity->caps,
                    identity->mandate.epoch, identity->max_batch);
  add_result(&text, result);
  write_line(trace, &text);
  return status;
}

static void trace_disconnect(struct dibs__session *session) {
  struct trace *trace = (struct trace *)session->store;
  uint64_t number = ((struct session *)session)->number;
  dibs__tick since = dibs__tick_now();
  dibs__shim_disconnect(session);
  struct dibs__text text;
  char line[LINE_MAX_OTHER];
  begin_line(&text, line, sizeof line, "disconnect", number, since, DIBS_OK);
  write_line(trace, &text);
}

static dibs__status trace_run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                              struct dibs__result *result) {
  struct session *session = (struct session *)base;
  dibs__tick since = dibs__tick_now();
  dibs__status status = dibs__shim_run(base, ops, count, by, result);
  struct dibs__text text;
  begin_line(&text, session->line, sizeof session->line - LINE_TAIL, "run", session->number, since, status);
  dibs__text_addf(&text, ",\"ops\":%zu,\"commits\":%" PRIu32, count, result->commits);
  add_kinds(&text, ops, count);
  add_each(&text, ops, count);
  text.size = sizeof session->line;
  add_result(&text, result);
  write_line((struct trace *)base->store, &text);
  return status;
}

static dibs__status trace_events(struct dibs__dstore *store, struct dibs__event *events, size_t cap, size_t *count,
                                 dibs__tick by) {
  static const char *const whats[] = {"offer", "recheck", "lost", "session gone", "new incarnation"};
  struct trace *trace = (struct trace *)store;
  dibs__tick since = dibs__tick_now();
  dibs__status status = dibs__shim_events(store, events, cap, count, by);
  struct dibs__text text;
  begin_line(&text, trace->line, sizeof trace->line, "events", 0, since, status);
  dibs__text_addf(&text, ",\"events\":%zu,\"each\":[", *count);
  size_t told = 0;
  for (; told < *count && text.len < sizeof trace->line - LINE_TAIL; told++) {
    const struct dibs__event *event = &events[told];
    bool known = (size_t)event->what < sizeof whats / sizeof whats[0];
    dibs__text_addf(&text, "%s{\"what\":\"%s\"", told ? "," : "", known ? whats[event->what] : "?");
    if (event->what == DIBS__EV_OFFER || event->what == DIBS__EV_LOST) add_id(&text, event->id);
    if (event->fence.v) dibs__text_addf(&text, ",\"fence\":%" PRIu64, event->fence.v);
    dibs__text_adds(&text, "}");
  }
  dibs__text_adds(&text, "]");
  if (told < *count) dibs__text_addf(&text, ",\"left_out\":%zu", *count - told);
  write_line(trace, &text);
  return status;
}

struct counted {
  const struct dibs__list *list;
  size_t rows;
};

static int count_row(const struct dibs__lease_row *row, void *user) {
  struct counted *counted = user;
  counted->rows++;
  return counted->list->row(row, counted->list->user);
}

static dibs__status trace_list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                               struct dibs__result *result) {
  struct session *session = (struct session *)base;
  dibs__tick since = dibs__tick_now();
  struct counted counted = {list, 0};
  struct dibs__list ours = *list;
  ours.row = count_row;
  ours.user = &counted;
  dibs__status status = dibs__shim_list(base, &ours, by, result);
  struct dibs__text text;
  begin_line(&text, session->line, sizeof session->line, "list", session->number, since, status);
  if (list->name.len)
    add_string(&text, "name", list->name.p, list->name.len);
  else
    add_string(&text, "prefix", list->prefix.p, list->prefix.len);
  dibs__text_addf(&text, ",\"rows\":%zu", counted.rows);
  add_result(&text, result);
  write_line((struct trace *)base->store, &text);
  return status;
}

static void trace_tidy(struct dibs__dstore *store) {
  dibs__tick since = dibs__tick_now();
  dibs__shim_tidy(store);
  struct dibs__text text;
  char line[LINE_MAX_OTHER];
  begin_line(&text, line, sizeof line, "tidy", 0, since, DIBS_OK);
  write_line((struct trace *)store, &text);
}

static const char *const schemes[] = {"trace", NULL};

const struct dibs__driver dibs__trace_driver = {
    .size = sizeof(struct dibs__driver),
    .abi = DIBS__DRIVER_ABI,
    .name = "trace",
    .schemes = schemes,
    .inner_min = 1,
    .inner_max = 1,
    .open = trace_open,
    .close = trace_close,
    .connect = trace_connect,
    .disconnect = trace_disconnect,
    .run = trace_run,
    .events = trace_events,
    .wake = dibs__shim_wake,
    .list = trace_list,
    .tidy = trace_tidy,
};
