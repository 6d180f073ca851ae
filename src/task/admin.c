/* SPDX-License-Identifier: MIT */
/* Tasks for people: listing and counting them, changing many by hand, and the settings of a kind. */
#include "task/task_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
  PAGE = 500,        /* rows in one answer, and changes in one transaction */
  PAGE_PAYLOADS = 16 /* with payloads, of up to a MiB each */
};

struct asking {
  dibs_store *store;
  uint16_t verb;
  dibs_task_filter filter;
  uint32_t change, most;
  bool dry, errors, payloads;
  bool limited;     /* CHANGE: the caller limits how many; then a page is not repeated after UNKNOWN */
  const char *kind; /* COUNT, KIND; NULL: all */
  dibs_kind_options settings;
  dibs__tick by;
  struct dibs__request *answered; /* the caller drops it */
  char *after_key;                /* of a user's table: only larger keys; malloc'd */
  char why[DIBS__TASK_WHY];
};

/* ---- One request ---- */

static dibs_status check_filter(const dibs_task_filter *f, dibs_error *error) {
  dibs_status status = dibs__task_check_text(f->kind, "the kind", error);
  if (status == DIBS_OK) status = dibs__task_check_text(f->phase, "the phase", error);
  if (status == DIBS_OK) status = dibs__task_check_text(f->serial, "the serial text", error);
  if (status == DIBS_OK) status = dibs__task_check_text(f->text, "the text", error);
  if (status == DIBS_OK && f->table && (f->nr || f->after || f->kind || f->serial || f->text))
    return dibs__fail(error, DIBS_INVALID, "the rows of a table of yours have no number, kind, serial text and error");
  if (status == DIBS_OK && !f->table && (f->key || f->timeout_ms))
    return dibs__fail(error, DIBS_INVALID, "`key` and `timeout_ms` of a filter are for a table of yours");
  if (status == DIBS_OK && f->timeout_ms && (f->timeout_ms < DIBS_TTL_MIN_MS || f->timeout_ms > DIBS_TTL_MAX_MS))
    return dibs__fail(error, DIBS_INVALID, "timeout_ms is %" PRId64 ": give 0, or 100 ms to a day", f->timeout_ms);
  if (status == DIBS_OK && f->older_ms < 0)
    return dibs__fail(error, DIBS_INVALID, "older_ms is %" PRId64 ": give 0 or a positive time", f->older_ms);
  if (status == DIBS_OK && f->states >= 1u << DIBS_TASK_STATES)
    return dibs__fail(error, DIBS_INVALID, "the filter has a state that does not exist");
  return status;
}

static dibs__str keep(struct dibs__request *request, const char *text) {
  return dibs__request_keep(request, text, dibs__length(text));
}

static dibs_status ask_once(void *arg) {
  struct asking *a = arg;
  const dibs_task_filter *f = &a->filter;
  size_t size = dibs__length(f->kind) + dibs__length(f->phase) + dibs__length(f->serial) + dibs__length(f->text) +
                dibs__length(a->kind) + dibs__length(f->key) + dibs__length(a->after_key);
  if (f->table) size += dibs__length(dibs__own_kind(NULL, f->table));
  struct dibs__request *request = dibs__request_make(a->store, DIBS__FAM_TASK, f->table, size);
  if (!request) return DIBS_NO_MEMORY;
  struct dibs__task_op *op = &request->task;
  op->table = f->table;
  op->timeout_ms = f->timeout_ms ? f->timeout_ms : DIBS__TASK_TIMEOUT_MS;
  op->kind = keep(request, f->table ? dibs__own_kind(NULL, f->table) : a->kind);
  op->filter = (struct dibs__task_filter){.nr = f->nr, .after = f->after, .states = f->states, .older_ms = f->older_ms};
  op->filter.kind = keep(request, f->kind);
  op->filter.phase = keep(request, f->phase);
  op->filter.serial = keep(request, f->serial);
  op->filter.text = keep(request, f->text);
  op->filter.key = keep(request, f->key);
  op->filter.after_key = keep(request, a->after_key);
  op->change = a->change;
  op->most = a->most;
  op->dry = a->dry;
  op->errors = a->errors;
  op->payloads = a->payloads;
  op->set = a->settings.set;
  op->running = a->settings.running;
  op->paused = a->settings.paused != 0;
  op->keep_ms = a->settings.keep_ms;
  dibs_status status = dibs__request_carry(request, a->verb, a->by);
  dibs__task_keep_why(request, a->why);
  if (status == DIBS_OK)
    a->answered = request;
  else
    dibs__request_drop(request);
  return status;
}

static dibs_status ask(struct asking *a, const char *doing, dibs_error *error) {
  dibs_status status = dibs__task_served(a->store, a->filter.table, error);
  if (status != DIBS_OK) return status;
  a->by = dibs__tick_add_ms(dibs__tick_now(), DIBS__TASK_WAIT_MS);
  status = dibs__task_repeat(a->store, a->by, a->limited ? DIBS__UNLESS_UNKNOWN : DIBS__AFTER_UNKNOWN, ask_once, a);
  if (status == DIBS_OK) return dibs__fine(error);
  const char *kind = a->filter.table ? a->filter.table->table : a->kind ? a->kind : a->filter.kind;
  if (status == DIBS_UNKNOWN && a->limited)
    return dibs__fail(error, status,
                      "%s \"%s\" at %s: the answer was lost: up to %" PRIu32
                      " more tasks may be changed; list them before you repeat the call",
                      doing, kind ? kind : "*", a->store->shown, a->most);
  return dibs__task_explain(a->store, a->filter.table, status, doing, kind ? kind : "*", a->why, error);
}

static dibs_status take_filter(dibs_task_filter *to, const dibs_task_filter *given, dibs_error *error) {
  *to = (dibs_task_filter)DIBS_TASK_FILTER_INIT;
  if (!given) return DIBS_OK;
  if (dibs__check_size(given->size, sizeof *to, "dibs_task_filter", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(to, given, given->size);
  return check_filter(to, error);
}

/* ---- Listing ---- */

static dibs_task_info info_of(const struct dibs__task_row *row) {
  return (dibs_task_info){.size = sizeof(dibs_task_info),
                          .nr = row->nr,
                          .fence = {row->fence.v},
                          .kind = row->kind.p ? row->kind.p : "",
                          .phase = row->phase.p ? row->phase.p : "",
                          .serial = row->serial.p ? row->serial.p : "",
                          .unique = row->unique.p ? row->unique.p : "",
                          .payload = row->payload.p ? row->payload.p : "",
                          .length = row->payload.len,
                          .owner = row->by.p ? row->by.p : "",
                          .text = row->text.p ? row->text.p : "",
                          .text_length = row->text.len,
                          .state = (dibs_task_state)row->state,
                          .attempts = row->attempts,
                          .fails = row->fails,
                          .tries = row->tries,
                          .priority = row->priority,
                          .made_ms = row->made_ms,
                          .due_ms = row->due_ms,
                          .began_ms = row->began_ms,
                          .at_ms = row->at_ms,
                          .key = row->key.p ? row->key.p : ""};
}

/* The next page begins behind this row. */
static dibs_status keep_after(struct asking *a, const char *key) {
  free(a->after_key);
  a->after_key = strdup(key);
  return a->after_key ? DIBS_OK : DIBS_NO_MEMORY;
}

/* One page.  *more: there may be another one. */
static dibs_status list_page(struct asking *a, dibs_task_fn fn, void *user, bool *more, dibs_error *error) {
  dibs_status status = ask(a, "listing tasks of kind", error);
  *more = false;
  if (status != DIBS_OK) return status;
  const struct dibs__task_op *op = &a->answered->task;
  const struct dibs__task_row *rows = op->got;
  bool stopped = false;
  for (uint32_t i = 0; i < op->got_count && !stopped; i++) {
    dibs_task_info info = info_of(&rows[i]);
    if (!a->errors) a->filter.after = info.nr;
    if (i + 1 == op->got_count && a->filter.table) status = keep_after(a, info.key);
    stopped = fn(&info, user) != 0;
  }
  *more = !stopped && !a->errors && op->got_count == a->most;
  dibs__request_drop(a->answered);
  return status == DIBS_OK ? status : dibs__fail(error, status, "listing tasks: out of memory");
}

static dibs_status list_pages(struct asking *a, const char *call, dibs_task_fn fn, void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "%s: fn is NULL", call);
  dibs_status status = dibs__enter(a->store, call, error);
  if (status != DIBS_OK) return status;
  bool more = true;
  while (status == DIBS_OK && more) status = list_page(a, fn, user, &more, error);
  free(a->after_key);
  dibs__exit(a->store);
  return status;
}

dibs_status dibs_tasks_list(dibs_store *store, const dibs_task_filter *filter, uint32_t flags, dibs_task_fn fn,
                            void *user, dibs_error *error) {
  struct asking a = {.store = store, .verb = DIBS__TASK_LIST, .payloads = (flags & DIBS_LIST_PAYLOADS) != 0};
  a.most = a.payloads ? PAGE_PAYLOADS : PAGE;
  if (take_filter(&a.filter, filter, error) != DIBS_OK) return DIBS_INVALID;
  return list_pages(&a, "dibs_tasks_list", fn, user, error);
}

dibs_status dibs_task_errors(dibs_store *store, uint64_t nr, dibs_task_fn fn, void *user, dibs_error *error) {
  struct asking a = {.store = store, .verb = DIBS__TASK_LIST, .errors = true, .most = DIBS_TASK_ERRORS};
  a.filter.nr = nr;
  if (nr == 0) return dibs__fail(error, DIBS_INVALID, "dibs_task_errors: no task has the number 0");
  return list_pages(&a, "dibs_task_errors", fn, user, error);
}

/* ---- Counting ---- */

static void pass_kinds(const struct dibs__task_op *op, dibs_task_kind_fn fn, void *user) {
  const struct dibs__task_kind *kinds = op->got;
  for (uint32_t i = 0; i < op->got_count; i++) {
    dibs_task_kind kind = {.size = sizeof kind,
                           .kind = kinds[i].kind.p,
                           .oldest_ms = kinds[i].oldest_ms,
                           .running = kinds[i].running,
                           .paused = kinds[i].paused,
                           .keep_ms = kinds[i].keep_ms,
                           .topic = kinds[i].topic.p ? kinds[i].topic.p : ""};
    for (size_t s = 0; s < DIBS_TASK_STATES; s++) kind.states[s] = kinds[i].states[s];
    if (fn(&kind, user) != 0) return;
  }
}

dibs_status dibs_tasks_count(dibs_store *store, const char *kind, dibs_task_kind_fn fn, void *user, dibs_error *error) {
  struct asking a = {.store = store, .verb = DIBS__TASK_COUNT, .kind = kind, .most = DIBS_TASKS_MAX};
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_tasks_count: fn is NULL");
  dibs_status status = dibs__task_check_text(kind, "the kind", error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_tasks_count", error);
  if (status != DIBS_OK) return status;
  status = ask(&a, "counting tasks of kind", error);
  if (status == DIBS_OK) {
    pass_kinds(&a.answered->task, fn, user);
    dibs__request_drop(a.answered);
  }
  dibs__exit(store);
  return status;
}

/* ---- Changing ---- */

/* A page may change fewer tasks than it looked at (R78): the next one begins behind those. */
static dibs_status change_pages(struct asking *a, uint64_t most, uint64_t *changed, uint64_t *last, dibs_error *error) {
  for (bool more = true; more;) {
    uint64_t left = most - *changed;
    a->most = most > 0 && left < PAGE ? (uint32_t)left : PAGE;
    dibs_status status = ask(a, "changing tasks of kind", error);
    if (status != DIBS_OK) return status;
    const struct dibs__task_op *op = &a->answered->task;
    *changed += op->changed;
    if (op->last > 0) *last = a->filter.after = op->last;
    more = op->more && (most == 0 || *changed < most);
    dibs__request_drop(a->answered);
  }
  return dibs__fine(error);
}

dibs_status dibs_tasks_change(dibs_store *store, dibs_task_change change, const dibs_task_filter *filter,
                              uint32_t flags, uint64_t most, uint64_t *changed, uint64_t *last, dibs_error *error) {
  static const uint32_t changes[] = {[DIBS_TASK_RETRY] = DIBS__TASK_RETRY,
                                     [DIBS_TASK_CANCEL] = DIBS__TASK_CANCEL,
                                     [DIBS_TASK_PURGE] = DIBS__TASK_PURGE};
  uint64_t done = 0, largest = 0;
  if (changed) *changed = 0;
  if (last) *last = 0;
  if ((int)change < DIBS_TASK_RETRY || change > DIBS_TASK_PURGE)
    return dibs__fail(error, DIBS_INVALID, "there is no change %d of tasks", (int)change);
  if (!filter)
    return dibs__fail(error, DIBS_INVALID, "dibs_tasks_change: filter is NULL; an empty one changes all tasks");
  struct asking a = {.store = store, .verb = DIBS__TASK_CHANGE, .change = changes[change]};
  a.dry = (flags & DIBS_CHANGE_DRY) != 0;
  a.limited = most > 0 && !a.dry;
  if (take_filter(&a.filter, filter, error) != DIBS_OK) return DIBS_INVALID;
  dibs_status status = dibs__enter(store, "dibs_tasks_change", error);
  if (status != DIBS_OK) return status;
  status = change_pages(&a, most, &done, &largest, error);
  if (change == DIBS_TASK_RETRY && done > 0) dibs__rouse_listeners(store, NULL);
  dibs__exit(store);
  if (changed) *changed = done;
  if (last) *last = largest;
  return status;
}

dibs_status dibs_task_kind_set(dibs_store *store, const char *kind, const dibs_kind_options *given, dibs_error *error) {
  struct asking a = {.store = store, .verb = DIBS__TASK_KIND, .kind = kind};
  if (!given) return dibs__fail(error, DIBS_INVALID, "dibs_task_kind_set: the options are NULL");
  if (dibs__check_size(given->size, sizeof a.settings, "dibs_kind_options", error) != DIBS_OK) return DIBS_INVALID;
  memcpy(&a.settings, given, given->size);
  if (a.settings.set & ~(uint32_t)(DIBS_KIND_RUNNING | DIBS_KIND_PAUSED | DIBS_KIND_KEEP | DIBS_KIND_NO_LANES))
    return dibs__fail(error, DIBS_INVALID, "set is %" PRIu32 ": give bits of DIBS_KIND_...", a.settings.set);
  if (a.settings.keep_ms < -1)
    return dibs__fail(error, DIBS_INVALID, "keep_ms is %" PRId64 ": give -1 or a positive time", a.settings.keep_ms);
  dibs_status status = dibs__check_text(kind, DIBS_NAME_MAX, "the kind", error);
  if (status == DIBS_OK) status = dibs__enter(store, "dibs_task_kind_set", error);
  if (status != DIBS_OK) return status;
  status = ask(&a, "setting tasks of kind", error);
  if (status == DIBS_OK) {
    dibs__request_drop(a.answered);
    dibs__rouse_listeners(store, kind);
  }
  dibs__exit(store);
  return status;
}
