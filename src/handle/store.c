/* SPDX-License-Identifier: MIT */
/* Opening and closing a store, also inside a transaction of the user's; what every call begins and ends with. */
#include "base/text.h"
#include "dibs/mysql.h"
#include "dibs/postgres.h"
#include "dibs/sqlite.h"
#include "handle/handle.h"
#include "store/locate.h"

#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static dibs_status store_inside(dibs_store *outer, struct dibs__core *core, dibs_store **out, dibs_error *error);

static dibs_status enter_transaction(dibs_store *store, const char *driver, void *connection, dibs_store **out,
                                     dibs_error *error) {
  struct dibs__core *core = NULL;
  struct dibs__result result = {0};
  if (!connection) return dibs__fail(error, DIBS_INVALID, "dibs_inside_%s: connection is NULL", driver);
  if (store->outer)
    return dibs__fail(error, DIBS_INVALID, "dibs_inside_%s: this handle is already inside a transaction", driver);
  dibs_status status = (dibs_status)dibs__core_inside(store->core, driver, connection, &core, &result);
  if (status != DIBS_OK)
    return dibs__fail(error, status, "dibs_inside at %s: %s", store->shown,
                      result.text[0] ? result.text : dibs_status_text(status));
  status = store_inside(store, core, out, error);
  if (status != DIBS_OK) dibs__core_close(core);
  return status;
}

dibs_status dibs__store_inside(dibs_store *store, void *connection, dibs_store **inside, dibs_error *error) {
  *inside = NULL;
  return enter_transaction(store, NULL, connection, inside, error);
}

static dibs_status open_inside(dibs_store *store, const char *driver, void *connection, dibs_store **out,
                               dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_inside_%s: the pointer for the handle is NULL", driver);
  *out = NULL;
  dibs_status status = dibs__enter(store, "a transaction of yours", error);
  if (status != DIBS_OK) return status;
  status = enter_transaction(store, driver, connection, out, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_inside_postgres(dibs_store *store, struct pg_conn *connection, dibs_store **out, dibs_error *error) {
  return open_inside(store, "postgres", connection, out, error);
}

dibs_status dibs_inside_mysql(dibs_store *store, struct st_mysql *connection, dibs_store **out, dibs_error *error) {
  return open_inside(store, "mysql", connection, out, error);
}

dibs_status dibs_inside_sqlite(dibs_store *store, struct sqlite3 *connection, dibs_store **out, dibs_error *error) {
  return open_inside(store, "sqlite", connection, out, error);
}

/* Opening and closing; words for people. */

enum { SEE_OUT_MS = 20 }; /* between two checks for callers that are still inside while closing */

dibs_status dibs__fail(dibs_error *error, dibs_status status, const char *format, ...) {
  if (!error) return status;
  va_list args;
  va_start(args, format);
  error->status = status;
  vsnprintf(error->text, sizeof error->text, format, args);
  va_end(args);
  return status;
}

dibs_status dibs__fine(dibs_error *error) {
  if (error) {
    error->status = DIBS_OK;
    error->text[0] = '\0';
  }
  return DIBS_OK;
}

dibs_status dibs__check_text(const char *text, size_t most, const char *what, dibs_error *error) {
  size_t at = 0;
  char where[48] = "";
  enum dibs__name_flaw flaw = text ? dibs__name_check(text, strlen(text), most, &at) : DIBS__NAME_EMPTY;
  if (flaw == DIBS__NAME_OK) return DIBS_OK;
  if (flaw == DIBS__NAME_NOT_UTF8 || flaw == DIBS__NAME_CONTROL) snprintf(where, sizeof where, " at byte %zu", at + 1);
  return dibs__fail(error, DIBS_INVALID, "%s %s%s; give 1 to %zu bytes of UTF-8 without control characters", what,
                    dibs__name_flaw_text(flaw), where, most);
}

dibs_status dibs__check_size(size_t size, size_t most, const char *type, dibs_error *error) {
  if (size >= sizeof(size_t) && size <= most) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID, "the size in a %s is %zu: set it to sizeof(%s)", type, size, type);
}

dibs_status dibs__explain(dibs_store *store, dibs_status status, const char *what, const char *name,
                          dibs_error *error) {
  char trouble[256] = "";
  switch (status) {
  case DIBS_HELD:
    return dibs__fail(error, status, "\"%s\" is held by somebody else; wait for it, or see the holder with `dibs show`",
                      name);
  case DIBS_TIMEOUT:
    return dibs__fail(error, status, "\"%s\" was not free within the wait; see the holder with `dibs show`", name);
  case DIBS_LOST:
    return dibs__fail(
        error, status,
        "the lease of \"%s\" is lost: it expired, was broken or was released before; stop the work that it guarded",
        name);
  case DIBS_CANCELLED:
    return dibs__fail(error, status, "%s \"%s\" was cancelled", what, name);
  default:
    dibs__core_trouble(store->core, trouble, sizeof trouble);
    return dibs__fail(error, status, "%s \"%s\" at %s: %s%s%s", what, name, store->shown, dibs_status_text(status),
                      trouble[0] ? ": " : "", trouble);
  }
}

dibs_status dibs__check_process(const dibs_store *store, const char *call, const char *what, dibs_error *error) {
  if (dibs__is_of_this_process(store)) return DIBS_OK;
  return dibs__fail(error, DIBS_INVALID,
                    "%s: %s is of another process; after fork() the child must open a store of its own", call, what);
}

/* INVALID if the store can't be used here: NULL, closed, or of another process. */
static dibs_status store_usable(dibs_store *store, const char *call, dibs_error *error) {
  if (!store) return dibs__fail(error, DIBS_INVALID, "%s: the store is NULL", call);
  if (!dibs__is_of_this_process(store))
    return dibs__fail(error, DIBS_INVALID,
                      "%s: the store was opened by another process; after fork() the child must open its own", call);
  if (store->closing || (store->outer && store->outer->closing))
    return dibs__fail(error, DIBS_INVALID, "%s: the store is closed", call);
  return DIBS_OK;
}

dibs_status dibs__enter(dibs_store *store, const char *call, dibs_error *error) {
  dibs_status status = store_usable(store, call, error);
  if (status != DIBS_OK) return status;
  atomic_fetch_add(&store->callers, 1);
  if (!store->closing) return DIBS_OK; /* dibs_close sets `closing` before it counts callers */
  dibs__exit(store);
  return dibs__fail(error, DIBS_INVALID, "%s: the store is closed", call);
}

void dibs__exit(dibs_store *store) {
  bool closing = store->closing; /* if it begins right now, dibs_close checks again by itself */
  if (atomic_fetch_sub(&store->callers, 1) == 1 && closing) dibs__word_wake(&store->callers, 1, false);
}

void dibs__store_drop(dibs_store *store) {
  if (atomic_fetch_sub(&store->refs, 1) != 1) return;
  struct dibs__at_close *counters = atomic_load(&store->counters);
  if (counters) counters->free(counters);
  dibs__lease_part.free(store);
  dibs__mutex_destroy(&store->lock);
  dibs__notifier_close(store->notifier);
  free(store->owner);
  free(store->shown);
  dibs_store *outer = store->outer;
  free(store);
  if (outer) dibs__store_drop(outer);
}

void dibs__listen(dibs_store *store, struct dibs__listener *listener) {
  dibs__mutex_lock(&store->lock);
  listener->next = store->listeners;
  store->listeners = listener;
  dibs__mutex_unlock(&store->lock);
  /* Without a receiver it hears only of what this process adds. */
  if (!store->outer) (void)dibs__core_serve(store->core);
}

void dibs__listen_no_more(dibs_store *store, struct dibs__listener *listener) {
  dibs__mutex_lock(&store->lock);
  struct dibs__listener **at = &store->listeners;
  while (*at != listener) at = &(*at)->next;
  *at = listener->next;
  if (listener->is_due) dibs__calls_remove_locked(store, &listener->due);
  dibs__mutex_unlock(&store->lock);
}

static bool call_listener_locked(dibs_store *store, struct dibs__due_call *due) {
  struct dibs__listener *listener = (struct dibs__listener *)((char *)due - offsetof(struct dibs__listener, due));
  listener->is_due = false;
  dibs__mutex_unlock(&store->lock);
  listener->roused(listener);
  dibs__mutex_lock(&store->lock);
  return true;
}

static void rouse_locked(dibs_store *store, struct dibs__listener *listener) {
  atomic_fetch_add(&listener->word, 1);
  dibs__word_wake(&listener->word, 1, false);
  if (!listener->roused || listener->is_due) return;
  listener->is_due = true;
  listener->due.run_locked = call_listener_locked;
  dibs__calls_queue_locked(store, &listener->due);
}

void dibs__store_watch(dibs_store *store, void (*watch)(void *context, const struct dibs__event *event),
                       void *context) {
  store->watch = watch;
  store->watch_context = context;
}

/* Under the lock, so that no listener is gone before it was woken. */
void dibs__rouse_listeners(dibs_store *store, const char *kind) {
  dibs__mutex_lock(&store->lock);
  for (struct dibs__listener *l = store->listeners; l; l = l->next)
    if (!kind || strcmp(kind, l->kind) == 0) rouse_locked(store, l);
  dibs__mutex_unlock(&store->lock);
  dibs__calls_handed(store);
}

/* At most so many bytes of it; what no label may hold becomes '?': a strange environment must not keep a program from
 * its store. */
static void append_label(struct dibs__text *to, const char *from, size_t most) {
  size_t len = strnlen(from, most);
  if (len == most) len = dibs__utf8_cut(from, len);
  for (size_t at = 0; at < len;) {
    uint32_t code;
    size_t size = dibs__utf8_next(from + at, len - at, &code);
    bool fine = dibs__name_check(from + at, size, most, NULL) == DIBS__NAME_OK;
    dibs__text_add(to, fine ? from + at : "?", fine ? size : 1);
    at += size ? size : 1;
  }
}

static char *default_owner(void) {
  char host[65] = "?", text[DIBS_OWNER_MAX + 1];
  struct dibs__text t;
  const char *user = secure_getenv("USER");
  if (gethostname(host, sizeof host - 1) != 0) memcpy(host, "?", 2);
  if (!user || !*user) user = geteuid() == 0 ? "root" : "?";
  dibs__text_begin(&t, text, sizeof text);
  append_label(&t, user, 40);
  dibs__text_adds(&t, "@");
  append_label(&t, host, 60);
  dibs__text_addf(&t, ":%u", dibs__process_id());
  return strdup(text);
}

static dibs_status prepare_store(dibs_store *store, const dibs_store_options *o, dibs_error *error) {
  store->refs = 1;
  store->flags = o->flags;
  store->generation = dibs__process_generation();
  store->notifier = -1;
  store->owner = o->owner ? strdup(o->owner) : default_owner();
  dibs__mutex_init(&store->lock);
  if (o->flags & DIBS_STORE_LOOP) store->notifier = dibs__notifier_open();
  if (!dibs__lease_part.open(store) || !store->owner)
    return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  if ((o->flags & DIBS_STORE_LOOP) && store->notifier < 0)
    return dibs__fail(error, DIBS_NO_MEMORY, "no file descriptor for the store's notifications");
  return DIBS_OK;
}

dibs_status dibs_open(const char *uri, const dibs_store_options *given, dibs_store **out, dibs_error *error) {
  return dibs__open_by(uri, given, DIBS__TICK_ZERO, out, error);
}

dibs_status dibs__open_by(const char *uri, const dibs_store_options *given, dibs__tick by, dibs_store **out,
                          dibs_error *error) {
  if (!out) return dibs__fail(error, DIBS_INVALID, "dibs_open: the pointer for the store is NULL");
  *out = NULL;
  dibs_store_options options = {.size = sizeof options};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof options))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_store_options)", given->size);
  if (given) memcpy(&options, given, given->size);
  if (options.flags & ~(uint32_t)DIBS_STORE_LOOP)
    return dibs__fail(error, DIBS_INVALID, "unknown flags in the options");
  if (options.owner && dibs__check_text(options.owner, DIBS_OWNER_MAX, "the owner", error) != DIBS_OK)
    return DIBS_INVALID;
  if (uri && !*uri) return dibs__fail(error, DIBS_INVALID, "the name of the store is empty");
  char *position = NULL, *found = NULL;
  dibs_store *store = calloc(1, sizeof *store);
  if (!store) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  struct dibs__result result = {0};
  struct dibs__core_hooks mine = dibs__lease_part.hooks;
  mine.context = store;
  mine.open_by = by;
  dibs_status status = prepare_store(store, &options, error);
  if (status != DIBS_OK) goto fail;
  mine.owner = store->owner;
  enum dibs__named_by named_by;
  if (!uri) status = (dibs_status)dibs__locate_default(&found, &named_by, &result);
  if (!uri) uri = found;
  if (status == DIBS_OK) status = (dibs_status)dibs__locate(uri, &position, &result);
  bool located = status == DIBS_OK;
  if (located) status = (dibs_status)dibs__core_open(position, options.module_path, &mine, &store->core, &result);
  dibs__locate_free(position);
  if (status != DIBS_OK) {
    /* A caller that named a section never saw the URI. */
    bool named = status == DIBS_INVALID && located && dibs__locate_is_file(uri);
    dibs__fail(error, status, "%s%s%s", named ? uri : "", named ? ": " : "",
               result.text[0] ? result.text : dibs_status_text(status));
    goto fail;
  }
  store->shown = strdup(dibs__core_uri(store->core));
  if (!store->shown) {
    status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
    dibs__core_close(store->core);
    goto fail;
  }
  dibs__locate_free(found);
  *out = store;
  return dibs__fine(error);

fail:
  dibs__locate_free(found);
  dibs__store_drop(store);
  return status;
}

/* A handle for a core of dibs__core_inside, which becomes its own. */
static dibs_status store_inside(dibs_store *outer, struct dibs__core *core, dibs_store **out, dibs_error *error) {
  dibs_store *store = calloc(1, sizeof *store);
  if (!store) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  dibs_status status = prepare_store(store, &(dibs_store_options){.owner = outer->owner}, error);
  store->shown = strdup(outer->shown);
  if (status == DIBS_OK && !store->shown) status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the store");
  if (status != DIBS_OK) {
    dibs__store_drop(store);
    return status;
  }
  store->core = core;
  store->outer = outer;
  atomic_fetch_add(&outer->refs, 1);
  *out = store;
  return dibs__fine(error);
}

/* Waits for the operations in flight: some seconds at most, by their deadlines. */
static void wait_none_in_flight(dibs_store *store) {
  dibs__mutex_lock(&store->lock);
  while (store->in_flight > 0) {
    uint32_t seen = atomic_load(&store->none_in_flight);
    dibs__mutex_unlock(&store->lock);
    dibs__word_wait(&store->none_in_flight, seen, dibs__tick_add_ms(dibs__tick_now(), 100), false);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

/* Blocked callers have their answers and leave; no new caller comes in. */
static void see_callers_out(dibs_store *store) {
  for (uint32_t inside; (inside = atomic_load(&store->callers)) > 0;)
    dibs__word_wait(&store->callers, inside, dibs__tick_add_ms(dibs__tick_now(), SEE_OUT_MS), false);
}

void dibs_close(dibs_store *store) {
  if (!store) return;
  if (!dibs__is_of_this_process(store)) return; /* the parent's: nothing here is ours to end */
  atomic_store(&store->closed_ns, dibs__tick_now().ns);
  dibs__lease_part.close(store);
  dibs__rouse_listeners(store, NULL);
  wait_none_in_flight(store);
  see_callers_out(store);
  struct dibs__at_close *counters = atomic_load(&store->counters);
  if (counters) counters->end(counters);
  dibs__lease_part.stop(store);
  if (!store->outer) dibs__core_stop(store->core);
  dibs__lease_part.finish(store);
  dibs__core_close(store->core);
  store->core = NULL;
  dibs__store_drop(store);
}

const char *dibs_store_uri(const dibs_store *store) {
  return store ? store->shown : "";
}
int dibs_fd(dibs_store *store) {
  return store ? store->notifier : -1;
}
