/* SPDX-License-Identifier: MIT */
/* Listing holders and waiters, and breaking: blocking, or completed later. */
#include "dibs/admin.h"
#include "handle/request.h"
#include "lease/lease_impl.h"

#include <stdlib.h>
#include <string.h>

enum { BREAK_LOOK_MS = 50 };

/* A row's state is handed out as it is. */
_Static_assert((int)DIBS_HOLDS == (int)DIBS__HOLDS && (int)DIBS_WAITS == (int)DIBS__WAITS &&
                   (int)DIBS_OFFERED == (int)DIBS__OFFERED && (int)DIBS_BREAKING == (int)DIBS__BREAKING &&
                   (int)DIBS_BROKEN == (int)DIBS__BROKEN,
               "the public header and the contract have the same states");

/* ---- Rows that are kept, for a function of the user's that is called later ---- */

struct kept_row {
  struct kept_row *next;
  dibs_lease_info info;
  char text[]; /* of the info: name, owner, from */
};

struct kept_rows {
  struct kept_row *first, *last;
  bool no_memory;
};

static char *copy_text(char **to, const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = memcpy(*to, text, size);
  *to += size;
  return copy;
}

static int keep_row(const dibs_lease_info *info, void *user) {
  struct kept_rows *rows = user;
  size_t size = strlen(info->name) + strlen(info->owner) + strlen(info->from) + 3;
  struct kept_row *row = malloc(sizeof *row + size);
  rows->no_memory = !row;
  if (!row) return 1;
  char *to = row->text;
  row->next = NULL;
  row->info = *info;
  row->info.name = copy_text(&to, info->name);
  row->info.owner = copy_text(&to, info->owner);
  row->info.from = copy_text(&to, info->from);
  if (rows->last)
    rows->last->next = row;
  else
    rows->first = row;
  rows->last = row;
  return 0;
}

/* Calls fn for each until it stops, and frees them.  NULL: only frees them. */
static void give_rows(struct kept_rows *rows, dibs_list_fn fn, void *user) {
  for (struct kept_row *row = rows->first, *next; row; row = next) {
    next = row->next;
    if (fn && fn(&row->info, user) != 0) fn = NULL;
    free(row);
  }
}

/* ---- List ---- */

/* A waiter that is in no queue of the store: it waits in a line of this process, or of another one (lines.c). */
struct waiter {
  dibs_lease *lease; /* held; NULL: another process's */
  const char *name, *owner;
  int64_t ttl_ms, age_ms;
  size_t nth;
};

/* The store can't list them: these rows are put in here, behind the store's of the same name. */
struct listing {
  dibs_list_fn fn; /* one of dibs, which calls no other: the session that lists is in use */
  void *user;
  uint64_t rows;
  dibs_store *store;
  struct waiter *line; /* in line, by name */
  size_t line_count, line_given, line_capacity;
  struct lines_seen seen;       /* what those of others point to */
  char name[DIBS_NAME_MAX + 1]; /* of the latest row */
  uint32_t ahead;               /* how many wait for that name, of those that were given */
  bool stopped;
};

/* In line, now. */
static bool is_local(const dibs_lease *lease) {
  return atomic_load(&lease->phase) == LEASE_LOCAL && !lease->tries;
}

static bool is_requested_for(const char *name, const void *user) {
  const struct dibs__list *list = user;
  if (list->name.len > 0) return dibs__str_equal(list->name, dibs__str_of(name, strlen(name)));
  return dibs__list_has(list, dibs__str_of(name, strlen(name)));
}

/* The oldest first; those whose age is not known (-1) last. */
static int compare_waiters(const void *a, const void *b) {
  const struct waiter *x = a, *y = b;
  int order = strcmp(x->name, y->name);
  if (order == 0) order = (x->age_ms < y->age_ms) - (x->age_ms > y->age_ms);
  return order ? order : (x->nth > y->nth) - (x->nth < y->nth);
}

/* false: no memory. */
static bool add_waiter(struct listing *listing, struct waiter waiter) {
  if (listing->line_count == listing->line_capacity) {
    size_t capacity = listing->line_capacity ? 2 * listing->line_capacity : 16;
    struct waiter *more = realloc(listing->line, capacity * sizeof *more);
    if (!more) return false;
    listing->line = more;
    listing->line_capacity = capacity;
  }
  waiter.nth = listing->line_count;
  listing->line[listing->line_count++] = waiter;
  return true;
}

static bool find_local_waiters(dibs_store *store, const struct dibs__list *list, struct listing *listing) {
  bool fine = true;
  dibs__tick now = dibs__tick_now();
  dibs__mutex_lock(&store->lock);
  for (const struct cohort *cohort = store->leases->lined; cohort && fine; cohort = cohort->lined_next) {
    if (!is_requested_for(cohort->name, list)) continue;
    for (dibs_lease *lease = cohort->first; lease && fine; lease = lease->next_local) {
      fine = add_waiter(listing, (struct waiter){.lease = lease,
                                                 .name = lease->name,
                                                 .owner = lease->owner ? lease->owner : store->owner,
                                                 .ttl_ms = lease->ttl_ms,
                                                 .age_ms = (now.ns - lease->began.ns) / DIBS__NS_PER_MS});
      if (fine) dibs__lease_hold(lease);
    }
  }
  dibs__mutex_unlock(&store->lock);
  return fine;
}

/* false: no memory. */
static bool find_waiters(dibs_store *store, const struct dibs__list *list, struct listing *listing) {
  bool fine =
      dibs__lines_read(store, is_requested_for, list, &listing->seen) && find_local_waiters(store, list, listing);
  for (size_t i = 0; fine && i < listing->seen.count; i++) {
    const struct line_row *row = &listing->seen.rows[i];
    fine = add_waiter(
        listing, (struct waiter){.name = row->name, .owner = row->owner, .ttl_ms = row->ttl_ms, .age_ms = row->age_ms});
  }
  if (listing->line_count) qsort(listing->line, listing->line_count, sizeof *listing->line, compare_waiters);
  return fine;
}

static void drop_waiters(dibs_store *store, struct listing *listing) {
  dibs__mutex_lock(&store->lock);
  for (size_t i = 0; i < listing->line_count; i++)
    if (listing->line[i].lease) dibs__lease_drop_locked(listing->line[i].lease);
  dibs__mutex_unlock(&store->lock);
  free(listing->line);
  dibs__lines_free(&listing->seen);
}

static void count_ahead(struct listing *listing, const char *name, uint32_t state) {
  if (strcmp(listing->name, name) != 0) {
    listing->ahead = 0;
    memcpy(listing->name, name, strlen(name) + 1);
  }
  listing->ahead += state == DIBS_WAITS || state == DIBS_OFFERED;
}

static int give_waiter(struct listing *listing, const struct waiter *waiter) {
  /* It has entered the store's queue since, or has the lease. */
  if (waiter->lease && !is_local(waiter->lease)) return 0;
  count_ahead(listing, waiter->name, DIBS_HOLDS);
  dibs_lease_info info = {.size = sizeof info,
                          .name = waiter->name,
                          .owner = waiter->owner,
                          .state = DIBS_WAITS,
                          .mode = DIBS_EXCLUSIVE,
                          .ahead = listing->ahead++,
                          .pid = waiter->lease ? dibs__process_id() : 0,
                          .ttl_ms = waiter->ttl_ms,
                          .age_ms = waiter->age_ms,
                          .from = "",
                          .tier = ""};
  listing->rows++;
  return listing->fn(&info, listing->user);
}

/* Those of names before this one, and of this one too if its waiters have all been given.  NULL: all that are left. */
static int give_lines_before(struct listing *listing, const char *name, bool its_own) {
  int stop = 0;
  for (; listing->line_given < listing->line_count && !stop; listing->line_given++) {
    const struct waiter *waiter = &listing->line[listing->line_given];
    int order = name ? strcmp(waiter->name, name) : -1;
    if (order > 0 || (order == 0 && !its_own)) break;
    stop = give_waiter(listing, waiter);
  }
  listing->stopped = listing->stopped || stop;
  return stop;
}

/* The caller's strings are terminated, the driver's need not be.  Somebody else may have written a mode that does
 * not exist into the store; readers have a table of the three. */
static int give_row(const struct dibs__lease_row *row, void *user) {
  struct listing *listing = user;
  char name[DIBS_NAME_MAX + 1], owner[DIBS_OWNER_MAX + 1];
  size_t name_len = row->name.len < DIBS_NAME_MAX ? row->name.len : DIBS_NAME_MAX;
  char from[DIBS_OWNER_MAX + 1] = "";
  dibs__str label = row->owner, whom = {0};
  const char *mark = label.len && row->state == DIBS_BROKEN ? memchr(label.p, DIBS__BREAK_FROM, label.len) : NULL;
  if (mark) {
    whom = dibs__str_of(mark + 1, (size_t)(label.p + label.len - mark - 1));
    label.len = (uint32_t)(mark - label.p);
  }
  size_t owner_len = label.len < DIBS_OWNER_MAX ? label.len : DIBS_OWNER_MAX;
  size_t from_len = whom.len < DIBS_OWNER_MAX ? whom.len : DIBS_OWNER_MAX;
  if (from_len) memcpy(from, whom.p, from_len);
  memcpy(name, row->name.p, name_len);
  name[name_len] = '\0';
  if (owner_len) memcpy(owner, label.p, owner_len);
  owner[owner_len] = '\0';
  dibs_lease_info info = {.size = sizeof info,
                          .name = name,
                          .owner = owner,
                          .state = row->state,
                          .mode = row->mode <= DIBS_COUNTED ? (dibs_mode)row->mode : DIBS_EXCLUSIVE,
                          .slots = row->slots,
                          .slot = row->slot,
                          .ahead = row->ahead,
                          .pid = row->pid,
                          .fence = {row->fence.v},
                          .ttl_ms = row->ttl_ms,
                          .left_ms = row->left_ms,
                          .age_ms = row->age_ms,
                          .from = from,
                          .tier = row->tier ? row->tier : ""};
  if (give_lines_before(listing, name, row->state == DIBS_BROKEN)) return 1;
  count_ahead(listing, name, row->state);
  listing->rows++;
  listing->stopped = listing->fn(&info, listing->user) != 0;
  return listing->stopped;
}

static dibs_status list_rows(dibs_store *store, const struct dibs__list *what, const char *of, struct listing *listing,
                             dibs_error *error) {
  struct dibs__result result = {0};
  struct dibs__list list = *what;
  list.row = give_row;
  list.user = listing;
  listing->store = store;
  bool fine = find_waiters(store, &list, listing);
  dibs_status status = fine ? (dibs_status)dibs__core_list(store->core, &list, &result) : DIBS_NO_MEMORY;
  if (status == DIBS_OK && !listing->stopped) (void)give_lines_before(listing, NULL, true);
  drop_waiters(store, listing);
  if (status == DIBS_OK) return dibs__fine(error);
  return dibs__fail(error, status, "listing %s at %s: %s%s%s", of, store->shown, dibs_status_text(status),
                    result.text[0] ? ": " : "", result.text);
}

dibs_status dibs__list_after(dibs_store *store, const char *prefix, const char *after, uint32_t most, dibs_list_fn fn,
                             void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_list: fn is NULL");
  if (prefix && *prefix && dibs__check_text(prefix, DIBS_NAME_MAX, "the prefix", error) != DIBS_OK) return DIBS_INVALID;
  if (after && *after && dibs__check_text(after, DIBS_NAME_MAX, "after", error) != DIBS_OK) return DIBS_INVALID;
  struct dibs__list what = {.prefix = prefix ? dibs__str_of(prefix, strlen(prefix)) : (dibs__str){0},
                            .after = after ? dibs__str_of(after, strlen(after)) : (dibs__str){0},
                            .most = most};
  struct kept_rows rows = {0};
  struct listing listing = {.fn = keep_row, .user = &rows};
  dibs_status status = dibs__enter(store, "dibs_list", error);
  if (status != DIBS_OK) return status;
  status = dibs__store_leases(store, prefix ? prefix : "", error);
  if (status == DIBS_OK) status = list_rows(store, &what, "leases", &listing, error);
  if (rows.no_memory) status = dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the list of holders and waiters");
  give_rows(&rows, status == DIBS_OK ? fn : NULL, user);
  dibs__exit(store);
  return status;
}

dibs_status dibs_list(dibs_store *store, const char *prefix, dibs_list_fn fn, void *user, dibs_error *error) {
  return dibs__list_after(store, prefix, NULL, 0, fn, user, error);
}

/* `fn` is one of dibs, as in struct listing. */
static dibs_status show_name(dibs_store *store, const char *name, dibs_list_fn fn, void *user, dibs_error *error) {
  struct dibs__list what = {.name = dibs__str_of(name, strlen(name))};
  struct listing listing = {.fn = fn, .user = user};
  dibs_status status = list_rows(store, &what, name, &listing, error);
  if (status == DIBS_OK && listing.rows == 0)
    return dibs__fail(error, DIBS_NOT_FOUND, "nobody holds \"%s\" or waits for it", name);
  return status;
}

static dibs_status show_and_keep(dibs_store *store, const char *name, struct kept_rows *rows, dibs_error *error) {
  dibs_status status = show_name(store, name, keep_row, rows, error);
  if (!rows->no_memory) return status;
  return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the holders and waiters of \"%s\"", name);
}

/* OK: the store is entered. */
static dibs_status enter_for_name(dibs_store *store, const char *name, const char *call, dibs_error *error) {
  dibs_status status = dibs__check_text(name, DIBS_NAME_MAX, "the name", error);
  if (status == DIBS_OK) status = dibs__enter(store, call, error);
  if (status != DIBS_OK) return status;
  status = dibs__store_leases(store, name, error);
  if (status != DIBS_OK) dibs__exit(store);
  return status;
}

dibs_status dibs_show(dibs_store *store, const char *name, dibs_list_fn fn, void *user, dibs_error *error) {
  if (!fn) return dibs__fail(error, DIBS_INVALID, "dibs_show: fn is NULL");
  dibs_status status = enter_for_name(store, name, "dibs_show", error);
  if (status != DIBS_OK) return status;
  struct kept_rows rows = {0};
  status = show_and_keep(store, name, &rows, error);
  give_rows(&rows, status == DIBS_OK ? fn : NULL, user);
  dibs__exit(store);
  return status;
}

/* All holders have one mode, and one number of slots. */
static int find_holder(const dibs_lease_info *info, void *user) {
  struct held_as *held = user;
  if (info->state == DIBS_WAITS || info->state == DIBS_BROKEN) return 0;
  held->other_mode = info->mode != DIBS_COUNTED;
  held->slots = held->other_mode ? 0 : info->slots;
  return 1;
}

struct held_as dibs__held_as(dibs_lease *lease) {
  struct held_as held = {.known = false};
  if (lease->mode != DIBS_COUNTED) return held;
  dibs_status status = show_name(lease->store, lease->name, find_holder, &held, NULL);
  held.known = status == DIBS_OK || status == DIBS_NOT_FOUND;
  return held;
}

dibs_status dibs__held_otherwise(const dibs_lease *lease, struct held_as held, dibs_error *error) {
  if (held.slots != 0 && held.slots != lease->slots)
    return dibs__fail(error, DIBS_INVALID, "\"%s\" is held with %u slots; give that number", lease->name, held.slots);
  if (lease->own_id && (!held.known || held.other_mode))
    return dibs__fail(error, DIBS_INVALID, "this id holds \"%s\" in another mode; use that mode, or draw a new id",
                      lease->name);
  if (held.known) /* the holders of that number have left since */
    return dibs__fail(error, DIBS_INVALID,
                      "\"%s\" was held with another number of slots, and is not any more; try again", lease->name);
  return dibs__fail(error, DIBS_INVALID, "\"%s\" is held with another number of slots; see `dibs show`", lease->name);
}

/* ---- Break ---- */

static dibs_status request_break(dibs_store *store, const char *name, const dibs_break_options *o, dibs_error *error) {
  const char *who = o->who ? o->who : store->owner;
  size_t name_length = strlen(name), who_length = strlen(who);
  struct dibs__request *request = dibs__request_make(store, DIBS__FAM_LEASE, NULL, name_length + who_length);
  if (!request) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for breaking \"%s\"", name);
  request->lease.name = dibs__request_keep(request, name, name_length);
  request->lease.owner = dibs__request_keep(request, who, who_length);
  request->lease.now = (o->flags & DIBS_BREAK_NOW) != 0;
  request->op.flags = DIBS__OP_FOLLOWS;
  dibs_status status = dibs__request_carry(request, DIBS__BREAK, DIBS__TICK_NEVER);
  dibs__request_drop(request);
  if (status == DIBS_OK) return dibs__fine(error);
  if (status == DIBS_NOT_FOUND) return dibs__fail(error, DIBS_NOT_FOUND, "nobody holds \"%s\"", name);
  return dibs__explain(store, status, "breaking", name, error);
}

static int count_breaking(const dibs_lease_info *info, void *user) {
  if (info->state == DIBS_BREAKING) ++*(int *)user;
  return 0;
}

/* Holders that were notified and have neither released nor ended. */
static dibs_status count_still_held(dibs_store *store, const char *name, int *holders, dibs_error *error) {
  *holders = 0;
  dibs_status status = show_name(store, name, count_breaking, holders, error);
  return status == DIBS_NOT_FOUND ? dibs__fine(error) : status;
}

/* A break, and the wait for its effect. */
struct breaking {
  dibs_store *store;
  const char *name;
  dibs_break_options options;
  dibs__tick by;
  bool requested; /* the request to break it was sent */
};

static void begin_breaking(struct breaking *b, dibs_store *store, const char *name, const dibs_break_options *options) {
  bool forever = options->wait_ms == DIBS_FOREVER;
  *b = (struct breaking){.store = store, .name = name, .options = *options};
  b->by = forever ? DIBS__TICK_NEVER : dibs__tick_add_ms(dibs__tick_now(), options->wait_ms);
}

/* Breaks it, then checks once whether it is still held.  true: *status is the result; else again after BREAK_LOOK_MS.
 */
static bool break_step(struct breaking *b, dibs_status *status, dibs_error *error) {
  int holders;
  if (!b->requested) {
    b->requested = true;
    *status = request_break(b->store, b->name, &b->options, error);
    if (*status != DIBS_OK || (b->options.flags & DIBS_BREAK_NOW) || b->options.wait_ms == 0) return true;
  }
  *status = count_still_held(b->store, b->name, &holders, error);
  bool unknown = *status == DIBS_UNAVAILABLE; /* whether it still has holders: it is broken already */
  if (!unknown && (*status != DIBS_OK || holders == 0)) return true;
  if (b->store->closing)
    *status = dibs__explain(b->store, DIBS_CANCELLED, "breaking", b->name, error);
  else if (dibs__tick_before(dibs__tick_now(), b->by))
    return false;
  else if (unknown)
    *status = dibs__explain(b->store, DIBS_UNKNOWN, "breaking", b->name, error);
  else
    *status =
        dibs__fail(error, DIBS_TIMEOUT,
                   "the holder of \"%s\" was notified and still holds it; its lease expires after its ttl", b->name);
  return true;
}

static dibs_status read_break_options(const char *name, const dibs_break_options *given, dibs_break_options *options,
                                      dibs_error *error) {
  *options = (dibs_break_options){.size = sizeof *options};
  if (given && (given->size < sizeof(size_t) || given->size > sizeof *options))
    return dibs__fail(error, DIBS_INVALID, "options.size is %zu: set it to sizeof(dibs_break_options)", given->size);
  if (given) memcpy(options, given, given->size);
  if (options->reserved != 0 || (options->flags & ~(uint32_t)DIBS_BREAK_NOW) || options->wait_ms < DIBS_FOREVER)
    return dibs__fail(error, DIBS_INVALID, "breaking \"%s\": unknown flags or a negative wait", name ? name : "");
  return options->who ? dibs__check_text(options->who, DIBS_OWNER_MAX, "the owner", error) : DIBS_OK;
}

dibs_status dibs_break(dibs_store *store, const char *name, const dibs_break_options *given, dibs_error *error) {
  dibs_break_options options;
  struct breaking breaking;
  dibs_status status = read_break_options(name, given, &options, error);
  if (status == DIBS_OK) status = enter_for_name(store, name, "dibs_break", error);
  if (status != DIBS_OK) return status;
  begin_breaking(&breaking, store, name, &options);
  while (!break_step(&breaking, &status, error)) dibs__nap_ms(BREAK_LOOK_MS);
  dibs__exit(store);
  return status;
}

/*
 * Show and break that complete later.  A driver lists in one call that blocks, and a break that waits lists again and
 * again: one helper thread of the store does both, one step of one job after the other.  A step takes
 * milliseconds; while the store does not answer, each step delays the other jobs by the deadline of its call.  The
 * helper keeps the rows, and the user's functions are called where the callbacks of leases are (watch.c).
 *
 * store->lock guards the list of jobs.  A job that was taken from it is the helper's, and then the queue's of
 * callbacks.
 */
struct job {
  struct dibs__due_call due; /* when it is done */
  struct job *next;
  bool breaks;
  dibs__tick at; /* of its next step */
  dibs_list_fn fn;
  dibs_done_fn done;
  void *user;
  struct breaking breaking;
  struct kept_rows rows;
  dibs_error error;
  char text[]; /* name, who */
};

static bool call_job_locked(dibs_store *store, struct dibs__due_call *due) {
  struct job *job = (struct job *)((char *)due - offsetof(struct job, due));
  dibs__mutex_unlock(&store->lock);
  give_rows(&job->rows, job->error.status == DIBS_OK ? job->fn : NULL, job->user);
  job->done(job->error.status, &job->error, job->user);
  free(job);
  dibs__mutex_lock(&store->lock);
  return true;
}

/* true: it is done, with the result in its error. */
static bool job_step(struct job *job) {
  struct breaking *b = &job->breaking;
  dibs_status status;
  if (job->breaks) {
    bool over = break_step(b, &status, &job->error);
    job->at = dibs__tick_add_ms(dibs__tick_now(), BREAK_LOOK_MS);
    return over;
  }
  (void)show_and_keep(b->store, b->name, &job->rows, &job->error);
  return true;
}

/* The first job that is due, taken out of the list; else NULL, and when the next one is. */
static struct job *take_due_job_locked(dibs_store *store, dibs__tick *due) {
  dibs__tick now = dibs__tick_now();
  *due = DIBS__TICK_NEVER;
  for (struct job **at = &store->leases->jobs; *at; at = &(*at)->next) {
    struct job *job = *at;
    if (store->closing || !dibs__tick_before(now, job->at)) {
      *at = job->next;
      return job;
    }
    *due = dibs__tick_min(*due, job->at);
  }
  return NULL;
}

static void add_job_locked(dibs_store *store, struct job *job) {
  struct job **end = &store->leases->jobs;
  while (*end) end = &(*end)->next;
  job->next = NULL;
  *end = job;
}

static void run_jobs(void *arg) {
  dibs_store *store = arg;
  dibs__mutex_lock(&store->lock);
  for (;;) {
    dibs__tick due;
    uint32_t seen = atomic_load(&store->leases->helper_word);
    struct job *job = take_due_job_locked(store, &due);
    bool closing = store->closing;
    if (!job && closing) break;
    dibs__mutex_unlock(&store->lock);
    bool over = false;
    if (job && closing)
      over = dibs__explain(store, DIBS_CANCELLED, job->breaks ? "breaking" : "showing", job->breaking.name,
                           &job->error) != DIBS_OK;
    else if (job)
      over = job_step(job);
    else
      dibs__word_wait(&store->leases->helper_word, seen, due, false);
    dibs__mutex_lock(&store->lock);
    if (job && !over) add_job_locked(store, job); /* behind the others */
    if (!over) continue;
    dibs__calls_queue_locked(store, &job->due);
    dibs__mutex_unlock(&store->lock);
    dibs__calls_handed(store);
    dibs__mutex_lock(&store->lock);
  }
  dibs__mutex_unlock(&store->lock);
}

static void rouse_helper(dibs_store *store) {
  atomic_fetch_add(&store->leases->helper_word, 1);
  dibs__word_wake(&store->leases->helper_word, 1, false);
}

void dibs__jobs_cancel(dibs_store *store) {
  if (!store->leases->helper) return; /* none begins any more */
  rouse_helper(store);
  dibs__thread_join(store->leases->helper);
  store->leases->helper = NULL;
}

static struct job *make_job(dibs_store *store, const char *name, const dibs_break_options *options, dibs_done_fn done,
                            void *user) {
  size_t size = strlen(name) + 1 + (options->who ? strlen(options->who) + 1 : 0);
  struct job *job = calloc(1, sizeof *job + size);
  if (!job) return NULL;
  char *to = job->text;
  begin_breaking(&job->breaking, store, copy_text(&to, name), options);
  if (options->who) job->breaking.options.who = copy_text(&to, options->who);
  job->due.run_locked = call_job_locked;
  job->at = DIBS__TICK_ZERO;
  job->done = done;
  job->user = user;
  return job;
}

/* The job is freed if it does not begin. */
static dibs_status start_job(dibs_store *store, struct job *job, dibs_error *error) {
  struct dibs__leases *leases = store->leases;
  dibs_status status = DIBS_OK;
  if (!job) return dibs__fail(error, DIBS_NO_MEMORY, "out of memory for the call");
  dibs__mutex_lock(&store->lock);
  bool ready = dibs__calls_ready_locked(store);
  if (ready && !store->closing && !leases->helper) leases->helper = dibs__thread_start("dibs-helper", run_jobs, store);
  if (store->closing)
    status = dibs__fail(error, DIBS_INVALID, "\"%s\": the store is being closed", job->breaking.name);
  else if (!ready || !leases->helper)
    status = dibs__fail(error, DIBS_NO_MEMORY, "cannot start a thread for the store");
  if (status == DIBS_OK) add_job_locked(store, job);
  dibs__mutex_unlock(&store->lock);
  if (status != DIBS_OK) {
    free(job);
    return status;
  }
  rouse_helper(store);
  return dibs__fine(error);
}

dibs_status dibs_show_start(dibs_store *store, const char *name, dibs_list_fn fn, dibs_done_fn done, void *user,
                            dibs_error *error) {
  if (!fn || !done) return dibs__fail(error, DIBS_INVALID, "dibs_show_start: fn or done is NULL");
  dibs_status status = enter_for_name(store, name, "dibs_show_start", error);
  if (status != DIBS_OK) return status;
  struct job *job = make_job(store, name, &(dibs_break_options){.size = sizeof(dibs_break_options)}, done, user);
  if (job) job->fn = fn;
  status = start_job(store, job, error);
  dibs__exit(store);
  return status;
}

dibs_status dibs_break_start(dibs_store *store, const char *name, const dibs_break_options *given, dibs_done_fn done,
                             void *user, dibs_error *error) {
  dibs_break_options options;
  if (!done) return dibs__fail(error, DIBS_INVALID, "dibs_break_start: done is NULL");
  dibs_status status = read_break_options(name, given, &options, error);
  if (status == DIBS_OK) status = enter_for_name(store, name, "dibs_break_start", error);
  if (status != DIBS_OK) return status;
  struct job *job = make_job(store, name, &options, done, user);
  if (job) job->breaks = true;
  status = start_job(store, job, error);
  dibs__exit(store);
  return status;
}
