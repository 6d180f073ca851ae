/* SPDX-License-Identifier: MIT */
/*
 * The driver of http:// and https://: a store that is a daemon, `dibs serve`.  A batch is one request, and its answer
 * has the answer of each operation.  The daemon decides nothing that its own store does not: each answer is the
 * store's.
 *
 * Operations on users' tables do not travel, because a table is known to its process; nor does the administration of
 * several tiers, which belongs to the daemon's own URI.
 */
#include "drivers/http/http_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  HEAD_BYTES = 64, /* of a message, before its operations */
  ANSWER_MS = 100, /* for the way of an answer */
  AGAIN_MAX = 3    /* sessions to open for one message: another connection may move while this one opens it */
};

struct session {
  struct dibs__session base; /* first */
  struct dibs__http_link *link;
};

static struct dibs__http *store_of(const struct session *s) {
  return (struct dibs__http *)s->base.store;
}

/* ---- Opening and closing ---- */

static void close_store(struct dibs__dstore *base) {
  struct dibs__http *store = (struct dibs__http *)base;
  dibs__http_poll_stop(store);
  dibs__http_location_free(&store->location);
  for (size_t i = 0; i < DIBS__HTTP_TIERS; i++) free(store->tiers[i]);
  if (store->notifier >= 0) dibs__notifier_close(store->notifier);
  dibs__mutex_destroy(&store->lock);
  free(store);
  curl_global_cleanup();
}

static dibs__status greet(struct dibs__http *store, dibs__tick by, struct dibs__result *result) {
  struct dibs__message_hello hello;
  struct dibs__http_link *link = dibs__http_link_open(store);
  if (!link) return DIBS_NO_MEMORY;
  dibs__status status = dibs__http_hello(link, by, &hello, result);
  dibs__http_link_close(link);
  return status;
}

static dibs__status open_store(const struct dibs__uri *uri, struct dibs__dstore *const inner[], size_t count,
                               dibs__tick by, struct dibs__dstore **out, struct dibs__result *result) {
  (void)inner;
  (void)count;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (uri->as_tier || uri->as_anchor) {
    dibs__set_message(result, "%.100s can't be one of several tiers: give the tiers to the daemon as its own store",
                      uri->shown);
    return DIBS_UNSUPPORTED;
  }
  struct dibs__http *store = calloc(1, sizeof *store);
  if (!store || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    free(store);
    return DIBS_NO_MEMORY;
  }
  dibs__mutex_init(&store->lock);
  dibs__random(store->number.b, sizeof store->number.b);
  store->notifier = dibs__notifier_open();
  dibs__status status = store->notifier < 0 ? DIBS_UNAVAILABLE : dibs__http_location(uri, &store->location, result);
  if (status == DIBS_OK) status = greet(store, by, result);
  if (status == DIBS_OK)
    *out = &store->base;
  else
    close_store(&store->base);
  return status;
}

static void disconnect_session(struct dibs__session *base) {
  struct session *s = (struct session *)base;
  dibs__http_link_close(s->link);
  free(s);
}

static dibs__status connect_session(struct dibs__dstore *base, dibs__tick by, struct dibs__session **out,
                                    struct dibs__identity *identity, struct dibs__result *result) {
  struct dibs__http *store = (struct dibs__http *)base;
  struct dibs__message_hello hello;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  struct session *s = calloc(1, sizeof *s);
  if (!s) return DIBS_NO_MEMORY;
  s->base.store = base;
  s->link = dibs__http_link_open(store);
  dibs__status status = s->link ? dibs__http_hello(s->link, by, &hello, result) : DIBS_NO_MEMORY;
  if (status != DIBS_OK) {
    disconnect_session(&s->base);
    return status;
  }
  *identity = (struct dibs__identity){.mandate = hello.mandate,
                                      .caps = hello.caps | DIBS__CAP_PARALLEL,
                                      .families = hello.families | 1u << DIBS__FAM_ENGINE,
                                      .max_batch = hello.max_batch,
                                      .max_sessions = store->location.connections};
  memcpy(&identity->session, store->number.b, sizeof identity->session);
  *out = &s->base;
  return DIBS_OK;
}

/* ---- A batch ---- */

static const char *keep_tier(void *context, dibs__str text) {
  struct dibs__http *store = context;
  const char *kept = NULL;
  dibs__mutex_lock(&store->lock);
  for (size_t i = 0; i < DIBS__HTTP_TIERS && !kept; i++) {
    if (!store->tiers[i]) store->tiers[i] = strndup(text.p, text.len);
    if (!store->tiers[i]) break;
    if (strlen(store->tiers[i]) == text.len && memcmp(store->tiers[i], text.p, text.len) == 0) kept = store->tiers[i];
  }
  dibs__mutex_unlock(&store->lock);
  return kept;
}

static void set_all(struct dibs__op *const ops[], size_t count, dibs__status status) {
  for (size_t i = 0; i < count; i++) ops[i]->status = status;
}

/* false: it is no answer to these operations, and has not changed their status.  *cut_off: the daemon could not reach
 * its store. */
static bool read_answers(struct dibs__http *store, const struct dibs__http_answer *answer, struct dibs__op *const ops[],
                         size_t count, bool *cut_off, struct dibs__result *result) {
  struct dibs__reader r = {answer->bytes, answer->bytes + answer->length, false};
  uint32_t format;
  bool changes = false, good = dibs__message_kind(&r, &format) == DIBS__MESSAGE_RUN;
  dibs__str trouble = dibs__read_text(&r, sizeof result->text - 1);
  *cut_off = dibs__read_number(&r, 1) != 0;
  for (size_t i = 0; i < count && good; i++) {
    good = dibs__read_answer(&r, ops[i], keep_tier, store);
    if (good && ops[i]->at.ms > result->now.ms) result->now = ops[i]->at;
  }
  good = good && dibs__reader_done(&r);
  for (size_t i = 0; i < count && !changes; i++) changes = !(ops[i]->flags & DIBS__OP_READS);
  result->commits += changes; /* how many the daemon needed, it shared with others */
  if (!good) set_all(ops, count, DIBS_UNKNOWN);
  if (!good)
    dibs__set_message(result, "%.100s sent an answer that is not well-formed", store->location.shown);
  else if (trouble.len)
    dibs__set_message(result, "%.*s", (int)trouble.len, trouble.p);
  return good;
}

static bool has_waiter(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ops[i]->family == DIBS__FAM_LEASE && ops[i]->verb == DIBS__ACQUIRE &&
        ((const struct dibs__lease_op *)ops[i])->queue)
      return true;
  return false;
}

/* The daemon was restarted, or has given us up: it has not done anything. */
static dibs__status post_again(struct session *s, const struct dibs__writer *w, dibs__tick by,
                               struct dibs__http_answer *answer, struct dibs__result *result) {
  struct dibs__message_hello hello;
  dibs__http_answer_free(answer);
  dibs__status status = dibs__http_hello(s->link, by, &hello, result);
  return status == DIBS_OK ? dibs__http_post(s->link, w, by, answer, NULL, result) : status;
}

static dibs__status send_message(struct session *s, const struct dibs__writer *w, dibs__tick by,
                                 struct dibs__http_answer *answer, struct dibs__result *result) {
  dibs__status status = dibs__http_post(s->link, w, by, answer, NULL, result);
  for (int i = 0; answer->no_session && i < AGAIN_MAX; i++) status = post_again(s, w, by, answer, result);
  return status;
}

static bool none_was_done(struct dibs__op *const ops[], size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ops[i]->status != DIBS_UNAVAILABLE) return false;
  return true;
}

/* One message with `count` operations.  OK: each has its answer.  UNAVAILABLE: none was done.  UNKNOWN. */
static dibs__status carry(struct session *s, const struct dibs__writer *body, struct dibs__op *const ops[],
                          size_t count, dibs__tick by, struct dibs__result *result) {
  struct dibs__http *store = store_of(s);
  struct dibs__http_answer answer;
  struct dibs__writer w = {0};
  dibs__message_begin(&w, DIBS__MESSAGE_RUN);
  dibs__write_bytes(&w, store->number.b, sizeof store->number.b);
  dibs__write_number(&w, count);
  dibs__write_bytes(&w, body->bytes, body->length);
  w.failed = w.failed || body->failed;
  dibs__status status = send_message(s, &w, by, &answer, result);
  bool cut_off = false;
  if (status == DIBS_OK && !read_answers(store, &answer, ops, count, &cut_off, result)) status = DIBS_UNKNOWN;
  if (status == DIBS_OK && cut_off) {
    dibs__http_link_leave(s->link);
    if (none_was_done(ops, count)) status = DIBS_UNAVAILABLE;
  }
  dibs__writer_free(&w);
  dibs__http_answer_free(&answer);
  if (status == DIBS_OK || status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN) return status;
  set_all(ops, count, status); /* the daemon refuses them */
  return DIBS_OK;
}

/* The end of the group that begins at `from`. */
static size_t group_end(struct dibs__op *const ops[], size_t count, size_t from) {
  size_t end = from + 1;
  while (ops[from]->group != 0 && end < count && ops[end]->group == ops[from]->group) end++;
  return end;
}

static void explain_invalid(struct dibs__op *op) {
  if (op->family == DIBS__FAM_TASK)
    snprintf(((struct dibs__task_op *)op)->why, sizeof((struct dibs__task_op *)op)->why,
             "the operation is not well-formed, or a member is beyond its limit");
}

/* Those that cannot travel have their answer; the others remain, in their order. */
static size_t take_valid(struct dibs__http *store, struct dibs__op *const ops[], size_t count, struct dibs__op **to,
                         struct dibs__result *result) {
  size_t kept = 0;
  for (size_t from = 0, end; from < count; from = end) {
    dibs__status status = DIBS_OK;
    end = group_end(ops, count, from);
    for (size_t i = from; i < end && status == DIBS_OK; i++) status = dibs__op_check(ops[i]);
    if (status == DIBS_UNSUPPORTED)
      dibs__set_message(result,
                        "%.80s carries no operations on your own tables, and none on tiers: use the database, "
                        "or the daemon's own store",
                        store->location.shown);
    for (size_t i = from; i < end; i++) {
      if (status == DIBS_OK)
        to[kept++] = ops[i];
      else
        ops[i]->status = status;
      if (status == DIBS_INVALID) explain_invalid(ops[i]);
    }
  }
  return kept;
}

/* The daemon gives up earlier than we do: its answer, that it has not done an operation, is better than none. */
static int64_t daemon_ms(dibs__tick by) {
  int64_t left_ms = dibs__tick_left_ms(dibs__tick_now(), by);
  return left_ms - (left_ms / 10 < ANSWER_MS ? left_ms / 10 : ANSWER_MS);
}

/* As many operations as one message may have, with whole groups.  0: the first group is too large. */
static size_t write_ops(struct dibs__http *store, struct dibs__writer *w, struct dibs__op *const ops[], size_t count,
                        dibs__tick by) {
  int64_t left_ms = daemon_ms(by);
  dibs__mutex_lock(&store->lock);
  size_t most = store->hello.most_bytes, done = 0;
  dibs__mutex_unlock(&store->lock);
  while (done < count) {
    size_t end = group_end(ops, count, done), before = w->length;
    if (end > DIBS__MESSAGE_BATCH) break;
    for (size_t i = done; i < end; i++) dibs__write_op(w, ops[i], left_ms);
    if (w->length + HEAD_BYTES > most) {
      w->length = before;
      break;
    }
    done = end;
  }
  return done;
}

/* Nothing was done, and there is another daemon, and time: the request is for that one. */
static bool goes_on(struct session *s, dibs__status status, uint32_t *tries, dibs__tick by) {
  if (status != DIBS_UNAVAILABLE || ++*tries >= store_of(s)->location.count) return false;
  return dibs__http_link_left(s->link) && dibs__tick_before(dibs__tick_now(), by);
}

static dibs__status run_valid(struct session *s, struct dibs__op *const ops[], size_t count, dibs__tick by,
                              struct dibs__result *result) {
  struct dibs__http *store = store_of(s);
  dibs__status status = DIBS_OK;
  uint32_t tries = 0;
  for (size_t at = 0; at < count;) {
    struct dibs__writer body = {0};
    size_t some = write_ops(store, &body, ops + at, count - at, by);
    if (some == 0) {
      some = group_end(ops, count, at) - at;
      dibs__set_message(result, "the request is larger than %.80s accepts: start dibs serve with a larger --body",
                        store->location.shown);
      set_all(ops + at, some, DIBS_INVALID);
    } else {
      status = carry(s, &body, ops + at, some, by, result);
    }
    dibs__writer_free(&body);
    if (goes_on(s, status, &tries, by)) {
      set_all(ops + at, some, DIBS_UNKNOWN); /* the next daemon may do them */
      result->text[0] = '\0';
      continue;
    }
    tries = 0;
    at += some;
    if (status == DIBS_OK) continue;
    if (status == DIBS_UNAVAILABLE && at == some) return status;
    if (status == DIBS_UNAVAILABLE) set_all(ops + at - some, some, status);
    set_all(ops + at, count - at, DIBS_UNAVAILABLE);
    return status == DIBS_UNKNOWN ? status : DIBS_OK;
  }
  return DIBS_OK;
}

/* The daemons as seen from here, then what the daemon sees of its store: a daemon of an earlier version does not say.
 */
static dibs__status describe(struct session *s, struct dibs__op *op, dibs__tick by, struct dibs__result *result) {
  struct dibs__http *store = store_of(s);
  struct dibs__findings findings = {0};
  dibs__mutex_lock(&store->lock);
  bool serves = (store->hello.families >> DIBS__FAM_ENGINE & 1) != 0;
  dibs__mutex_unlock(&store->lock);
  dibs__http_describe(store, dibs__engine_node_by(by, 2), &findings);
  dibs__status status = serves ? run_valid(s, &op, 1, by, result) : DIBS_UNSUPPORTED;
  if (status == DIBS_OK) status = op->status;
  if (status == DIBS_OK)
    dibs__findings_take((struct dibs__engine_op *)op, &findings);
  else if (status == DIBS_DENIED)
    dibs__find_hidden(&findings, "daemon", "what the daemon sees of its store");
  else if (status != DIBS_UNSUPPORTED)
    dibs__find_trouble(&findings, "daemon", "see the daemon's messages",
                       "the daemon did not say what it sees of its store: %s",
                       result->text[0] ? result->text : dibs_status_text((dibs_status)status));
  else
    dibs__find(&findings, "daemon",
               "what it sees of its servers is not visible: it is of an earlier version, or serves several tiers");
  return dibs__findings_answer(&findings, op);
}

static dibs__status run(struct dibs__session *base, struct dibs__op *const ops[], size_t count, dibs__tick by,
                        struct dibs__result *result) {
  struct session *s = (struct session *)base;
  struct dibs__op *few[64], **valid = count <= 64 ? few : malloc(count * sizeof *valid);
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (!valid) return DIBS_UNAVAILABLE;
  if (dibs__is_engine(ops, count)) return describe((struct session *)base, ops[0], by, result);
  dibs__status status = DIBS_OK;
  size_t left = take_valid(store_of(s), ops, count, valid, result);
  if (has_waiter(valid, left)) status = dibs__http_poll_ready(store_of(s), by);
  if (status == DIBS_OK && left > 0) status = run_valid(s, valid, left, by, result);
  if (status == DIBS_NO_MEMORY) status = DIBS_UNAVAILABLE;
  if (valid != few) free(valid);
  return status;
}

/* ---- Listing ---- */

struct last_name {
  uint32_t length;
  char text[DIBS_NAME_MAX];
};

/* *after: the last name, if there are more pages. */
static dibs__status read_rows(const struct dibs__http *store, const struct dibs__http_answer *answer,
                              const struct dibs__list *list, struct last_name *after, bool *more,
                              struct dibs__result *result) {
  struct dibs__reader r = {answer->bytes, answer->bytes + answer->length, false};
  struct dibs__lease_row row;
  uint32_t format;
  r.bad = dibs__message_kind(&r, &format) != DIBS__MESSAGE_LIST;
  while (dibs__read_row(&r, &row, more)) {
    after->length = row.name.len;
    memcpy(after->text, row.name.p, row.name.len);
    if (list->row(&row, list->user) == 0) continue;
    *more = false;
    return DIBS_OK;
  }
  if (dibs__reader_done(&r)) return DIBS_OK;
  dibs__set_message(result, "%.100s sent a listing that is not well-formed", store->location.shown);
  return DIBS_CORRUPT;
}

static dibs__status list_page_once(struct session *s, const struct dibs__list *list, struct last_name *after,
                                   bool *more, dibs__tick by, struct dibs__result *result) {
  struct dibs__http *store = store_of(s);
  struct dibs__http_answer answer;
  struct dibs__writer w = {0};
  dibs__message_begin(&w, DIBS__MESSAGE_LIST);
  dibs__write_bytes(&w, store->number.b, sizeof store->number.b);
  dibs__write_text(&w, list->name);
  dibs__write_text(&w, list->prefix);
  dibs__write_text(&w, dibs__str_of(after->text, after->length));
  dibs__status status = send_message(s, &w, by, &answer, result);
  if (status == DIBS_OK) status = read_rows(store, &answer, list, after, more, result);
  dibs__writer_free(&w);
  dibs__http_answer_free(&answer);
  return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* A listing changes nothing, so one without an answer is repeated, too. */
static dibs__status list_page(struct session *s, const struct dibs__list *list, struct last_name *after, bool *more,
                              dibs__tick by, struct dibs__result *result) {
  dibs__status status;
  uint32_t tries = 0;
  do status = list_page_once(s, list, after, more, by, result);
  while (goes_on(s, status, &tries, by));
  return status;
}

static dibs__status list(struct dibs__session *base, const struct dibs__list *list, dibs__tick by,
                         struct dibs__result *result) {
  struct last_name after = {.length = list->after.len <= DIBS_NAME_MAX ? list->after.len : 0};
  dibs__status status = DIBS_OK;
  *result = (struct dibs__result){.sent = dibs__tick_now()};
  if (after.length) memcpy(after.text, list->after.p, after.length);
  for (bool more = true; more && status == DIBS_OK;)
    status = list_page((struct session *)base, list, &after, &more, by, result);
  return status;
}

/* ---- The table ---- */

static const char *const schemes[] = {"http", "https", NULL};

extern const struct dibs__driver dibs__http_driver;
const struct dibs__driver dibs__http_driver = {.size = sizeof(struct dibs__driver),
                                               .abi = DIBS__DRIVER_ABI,
                                               .name = "http",
                                               .schemes = schemes,
                                               .open = open_store,
                                               .close = close_store,
                                               .connect = connect_session,
                                               .disconnect = disconnect_session,
                                               .run = run,
                                               .events = dibs__http_events,
                                               .wake = dibs__http_wake,
                                               .list = list};
