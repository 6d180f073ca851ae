/* SPDX-License-Identifier: MIT */
/* `dibs ls` and `dibs show`: holders, waiters, breaks. */
#include "base/duration.h"
#include "base/port.h"
#include "cli/cli.h"
#include "cli/run.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- Holders, waiters and breaks: copied, and printed as a table or as JSON ---- */

/* A copy of the rows of dibs_list. */
struct cli_row {
  dibs_lease_info info;
  char *name, *owner, *from;
};
struct cli_rows {
  struct cli_row *row;
  size_t count, capacity;
  bool full; /* out of memory */
};

static const char *state_name(uint32_t state) {
  static const char *const names[] = {
      [DIBS_HOLDS] = "holds",       [DIBS_WAITS] = "waits",   [DIBS_OFFERED] = "offered",
      [DIBS_BREAKING] = "breaking", [DIBS_BROKEN] = "broken",
  };
  return state < sizeof names / sizeof *names ? names[state] : "?";
}

/* A dibs_list_fn. */
static int rows_add(const dibs_lease_info *info, void *user) {
  struct cli_rows *rows = user;
  if (rows->count == rows->capacity) {
    size_t capacity = rows->capacity == 0 ? 64 : rows->capacity * 2;
    struct cli_row *row = realloc(rows->row, capacity * sizeof *row);
    if (row == NULL) goto full;
    rows->row = row;
    rows->capacity = capacity;
  }
  struct cli_row *row = &rows->row[rows->count];
  row->info = *info;
  row->name = strdup(info->name);
  row->owner = strdup(info->owner != NULL ? info->owner : "");
  row->from = strdup(info->from != NULL ? info->from : "");
  if (row->name == NULL || row->owner == NULL || row->from == NULL) {
    free(row->name);
    free(row->owner);
    free(row->from);
    goto full;
  }
  row->info.name = row->name;
  row->info.owner = row->owner;
  row->info.from = row->from;
  rows->count++;
  return 0;
full:
  rows->full = true;
  return 1;
}

static void rows_free(struct cli_rows *rows) {
  for (size_t i = 0; i < rows->count; i++) {
    free(rows->row[i].name);
    free(rows->row[i].owner);
    free(rows->row[i].from);
  }
  free(rows->row);
  *rows = (struct cli_rows){0};
}

/* "broken 22 Nov 08:44:12", in the time zone of the reader. */
static void broken_at(char *to, size_t size, int64_t age_ms) {
  time_t at = (time_t)((dibs__wall_ms() - age_ms) / 1000);
  struct tm local;
  if (localtime_r(&at, &local) == NULL || strftime(to, size, "broken %d %b %H:%M:%S", &local) == 0)
    snprintf(to, size, "broken");
}

static void state_cell(char *to, size_t size, const dibs_lease_info *info) {
  if (info->state == DIBS_WAITS)
    snprintf(to, size, "waits, #%" PRIu32, info->ahead + 1);
  else if (info->state == DIBS_BROKEN)
    broken_at(to, size, info->age_ms);
  else
    snprintf(to, size, "%s", state_name(info->state));
}

static bool has_slot(const dibs_lease_info *info) {
  return info->state == DIBS_HOLDS || info->state == DIBS_BREAKING;
}

static bool has_end(const dibs_lease_info *info) {
  return info->state != DIBS_WAITS && info->state != DIBS_BROKEN;
}

static void mode_cell(char *to, size_t size, const dibs_lease_info *info) {
  if (info->mode != DIBS_COUNTED)
    snprintf(to, size, "%s", dibs__cli_mode_name(info->mode));
  else if (has_slot(info))
    snprintf(to, size, "slot %" PRIu32 " of %" PRIu32, info->slot, info->slots);
  else
    snprintf(to, size, "of %" PRIu32, info->slots);
}

static bool add_row(struct cli_table *table, const dibs_lease_info *info) {
  char owner[2 * DIBS_OWNER_MAX + 16], state[48], mode[48], pid[16] = "-", fence[24] = "-", ttl[24] = "-",
                                                            left[24] = "-";
  char age[24] = "-";
  state_cell(state, sizeof state, info);
  mode_cell(mode, sizeof mode, info);
  if (info->pid != 0) snprintf(pid, sizeof pid, "%" PRIu32, info->pid);
  if (info->fence.value != 0) snprintf(fence, sizeof fence, "%" PRIu64, info->fence.value);
  if (info->ttl_ms > 0) dibs__duration_write(ttl, sizeof ttl, info->ttl_ms);
  if (has_end(info)) dibs__duration_write(left, sizeof left, info->left_ms);
  if (info->age_ms >= 0) dibs__duration_write(age, sizeof age, info->age_ms);
  /* A break: its owner, and the owner of the broken lease. */
  snprintf(owner, sizeof owner, info->from[0] != '\0' ? "%s, from %s" : "%s", info->owner, info->from);
  const char *const cells[] = {info->name, state, mode, owner, pid, fence, ttl, left, age};
  for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
    if (!dibs__cli_table_add(table, cells[i])) return false;
  return true;
}

static void rows_table(const struct cli_rows *rows, size_t columns, FILE *out) {
  static const char *const heads[] = {"NAME",    "=STATE", "-MODE",   "*--OWNER", ">-PID",
                                      ">=FENCE", ">-TTL",  ">--LEFT", ">--AGE",   NULL};
  struct cli_table *table = dibs__cli_table_new(heads);
  bool fine = table != NULL;
  for (size_t i = 0; fine && i < rows->count; i++) fine = add_row(table, &rows->row[i].info);
  if (table != NULL) dibs__cli_table_print(table, columns, out);
  if (!fine) fputs("(out of memory: the table is incomplete)\n", out);
  dibs__cli_table_free(table);
}

/* event, at_ms, by: of watch; NULL, 0, NULL elsewhere. */
static void row_json(struct dibs__json *json, const struct cli_row *row, const char *event, int64_t at_ms,
                     const char *by) {
  const dibs_lease_info *info = &row->info;
  dibs__json_open(json, NULL, '{');
  if (event != NULL) {
    dibs__json_text(json, "event", event);
    dibs__json_int(json, "at_ms", at_ms);
  }
  dibs__json_text(json, "name", info->name);
  dibs__json_text(json, "state", state_name(info->state));
  dibs__json_text(json, "mode", dibs__cli_mode_name(info->mode));
  dibs__json_text(json, "owner", info->owner);
  bool counted = info->mode == DIBS_COUNTED, in_line = info->state == DIBS_WAITS || info->state == DIBS_OFFERED;
  dibs__json_known(json, "pid", info->pid, info->pid != 0);
  dibs__json_known(json, "fence", (int64_t)info->fence.value, info->fence.value != 0);
  dibs__json_known(json, "slots", info->slots, counted && info->slots > 0);
  dibs__json_known(json, "slot", info->slot, counted && has_slot(info));
  dibs__json_known(json, "ahead", info->ahead, in_line);
  dibs__json_known(json, "ttl_ms", info->ttl_ms, info->ttl_ms > 0);
  dibs__json_known(json, "left_ms", info->left_ms, has_end(info));
  dibs__json_known(json, "age_ms", info->age_ms, info->age_ms >= 0);
  if (info->state == DIBS_BROKEN) {
    dibs__json_text(json, "taken_from", info->from[0] != '\0' ? info->from : NULL);
    dibs__json_int(json, "broken_at_ms", dibs__wall_ms() - info->age_ms);
  }
  if (by != NULL) dibs__json_text(json, "by", by);
  dibs__json_close(json, '}');
}

/* ---- Listing ---- */

static void print_rows(const struct cli_globals *g, const struct cli_rows *rows) {
  if (!g->json) {
    if (rows->count > 0) rows_table(rows, dibs__cli_columns(STDOUT_FILENO), stdout);
    return;
  }
  struct dibs__json j = {.out = stdout};
  dibs__json_open(&j, NULL, '[');
  for (size_t i = 0; i < rows->count; i++) row_json(&j, &rows->row[i], NULL, 0, NULL);
  dibs__json_close(&j, ']');
}

/* The rows that one call lists. */
struct listing {
  dibs_store *store;
  struct cli_rows rows;
  dibs_error error;
};

static int begin_list(const struct cli_globals *g, struct listing *listing) {
  *listing = (struct listing){.store = NULL};
  return dibs__cli_open(g, 0, &listing->store);
}

static int finish_list(const struct cli_globals *g, dibs_status status, struct listing *listing, const char *what) {
  int code = CLI_DONE;
  if (listing->rows.full)
    code = dibs__cli_fail(g, CLI_FAILED, "NO_MEMORY", "out of memory; the list is incomplete");
  else if (status != DIBS_OK)
    code = dibs__cli_fail_status(g, status, &listing->error, what);
  else
    print_rows(g, &listing->rows);
  if (code == CLI_DONE) code = dibs__cli_flush(g);
  rows_free(&listing->rows);
  return code;
}

bool dibs__cli_has_session_locks(const dibs_store *store) {
  const char *uri = dibs_store_uri(store);
  return strstr(uri, "lock=advisory") != NULL || strstr(uri, "lock=named") != NULL;
}

int dibs__cli_ls(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct listing l;
  int code = begin_list(g, &l);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_list(l.store, call->npos > 0 ? call->pos[0] : NULL, rows_add, &l.rows, &l.error);
  bool none = status == DIBS_OK && l.rows.count == 0;
  code = finish_list(g, status, &l, "cannot read the list");
  if (code == CLI_DONE && dibs__cli_has_session_locks(l.store))
    dibs__cli_note(
        g,
        "the list has no leases of other processes, because with lock= the server keeps no names; use dibs show NAME");
  if (code == CLI_DONE && none && isatty(STDOUT_FILENO)) dibs__cli_note(g, "no name is held");
  dibs_close(l.store);
  return code;
}

int dibs__cli_show(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct listing l;
  int code = begin_list(g, &l);
  if (code != CLI_DONE) return code;
  dibs_status status = dibs_show(l.store, call->pos[0], rows_add, &l.rows, &l.error);
  /* Breaks may be recorded of a name that is not held: worth showing. */
  if (status == DIBS_NOT_FOUND && l.rows.count > 0) status = DIBS_OK;
  code = finish_list(g, status, &l, call->pos[0]);
  dibs_close(l.store);
  return code;
}

/*
 * `dibs watch` reads the store after each interval and prints the differences.  It compares two lists name by name: a
 * row is the same if name, owner, mode, slot, fence and state are equal, because the process of a lease may end (dibs
 * lock) while the lease continues.  It misses what begins and ends between two reads.
 *
 * A list does not show why a holder is gone.  The breaks that the store records for its name do: a break of the fence
 * that the holder had, or, without a fence, a break since its lease was granted, because a break takes the name from
 * all its holders.  (Not: a break since the last read.  The record has the instant of the request, and others see the
 * break only when it is committed, which takes long on a slow disk.)
 */

enum { INTERVAL_MS = 500 };

struct watch {
  const struct cli_globals *globals;
  const char *name; /* NULL: all */
  dibs_store *store;
  int64_t interval_ms;
  int64_t to_go; /* changes until it ends; CLI_UNSET: no end */
  bool lines;    /* one line for each event, not a table */
  bool first;
  struct cli_rows before, now;
  struct cli_rows breaks; /* recorded, of the names whose holders are gone */
  dibs__tick looked;      /* before the request of the previous read */
  int64_t since_ms;       /* the age of that */
};

static int compare(const void *left, const void *right) {
  const dibs_lease_info *a = &((const struct cli_row *)left)->info, *b = &((const struct cli_row *)right)->info;
  int by_name = strcmp(a->name, b->name);
  if (by_name != 0) return by_name;
  int by_owner = strcmp(a->owner, b->owner);
  if (by_owner != 0) return by_owner;
  if (a->mode != b->mode) return a->mode < b->mode ? -1 : 1;
  if (a->fence.value != b->fence.value) return a->fence.value < b->fence.value ? -1 : 1;
  if (a->slot != b->slot) return a->slot < b->slot ? -1 : 1;
  if (a->state != b->state) return a->state < b->state ? -1 : 1;
  return 0;
}

static const char *word_of_new(uint32_t state) {
  switch (state) {
  case DIBS_HOLDS:
    return "granted";
  case DIBS_WAITS:
    return "waiting";
  case DIBS_OFFERED:
    return "offered";
  default:
    return "breaking";
  }
}

/* The break that took the name from this holder, or NULL. */
static const struct cli_row *break_of(const struct watch *w, const dibs_lease_info *gone) {
  for (size_t i = w->breaks.count; i-- > 0;) {
    const dibs_lease_info *b = &w->breaks.row[i].info;
    if (strcmp(b->name, gone->name) != 0) continue;
    if (gone->fence.value != 0 ? b->fence.value == gone->fence.value : b->age_ms <= gone->age_ms + w->since_ms)
      return &w->breaks.row[i];
  }
  return NULL;
}

/* A holder that is gone, and whose lease would have ended since the previous read, has probably expired. */
static const char *word_of_gone(const struct watch *w, const dibs_lease_info *info, const struct cli_row *taken) {
  if (taken != NULL) return "broken";
  switch (info->state) {
  case DIBS_HOLDS:
    return info->left_ms <= w->since_ms ? "expired" : "released";
  case DIBS_BREAKING:
    return "broken";
  default:
    return "left";
  }
}

/* A waiter that is now a holder, or has an offer, did not leave; nor did a holder that is being broken release. */
static bool still_present(const struct watch *w, const struct cli_row *old) {
  for (size_t i = 0; i < w->now.count; i++) {
    const dibs_lease_info *a = &old->info, *b = &w->now.row[i].info;
    bool same_process = a->pid == b->pid || a->pid == 0 || b->pid == 0;
    bool same_requester = same_process && strcmp(a->name, b->name) == 0 && strcmp(a->owner, b->owner) == 0;
    if (!same_requester) continue;
    if (a->state != DIBS_HOLDS && a->state != DIBS_BREAKING) return true;
    if (a->state == DIBS_HOLDS && b->state == DIBS_BREAKING && a->fence.value == b->fence.value) return true;
  }
  return false;
}

/* `by`: the break, or NULL. */
static void print_event(struct watch *w, const struct cli_row *row, const char *event, const struct cli_row *by) {
  int64_t at_ms = dibs__wall_ms();
  if (w->globals->json) {
    struct dibs__json j = {.out = stdout};
    row_json(&j, row, event, at_ms, by != NULL ? by->owner : NULL);
  } else {
    printf("%lld.%03d %-9s ", (long long)(at_ms / 1000), (int)(at_ms % 1000), event);
    dibs__cli_put(stdout, row->name, 0);
    fputs("  ", stdout);
    dibs__cli_put(stdout, row->owner, 0);
    if (row->info.fence.value != 0) printf("  fence %llu", (unsigned long long)row->info.fence.value);
    if (by != NULL) {
      fputs("  by ", stdout);
      dibs__cli_put(stdout, by->owner, 0);
    }
    putchar('\n');
  }
  if (w->to_go > 0) w->to_go--;
}

static void print_events(struct watch *w) {
  size_t i = 0, j = 0;
  while ((i < w->before.count || j < w->now.count) && w->to_go != 0) {
    int order = i == w->before.count ? 1 : j == w->now.count ? -1 : compare(&w->before.row[i], &w->now.row[j]);
    if (order == 0) {
      i++;
      j++;
    } else if (order < 0) {
      const struct cli_row *gone = &w->before.row[i++];
      if (still_present(w, gone)) continue;
      bool held = gone->info.state == DIBS_HOLDS || gone->info.state == DIBS_BREAKING;
      const struct cli_row *by = held ? break_of(w, &gone->info) : NULL;
      print_event(w, gone, word_of_gone(w, &gone->info, by), by);
    } else {
      const struct cli_row *fresh = &w->now.row[j++];
      print_event(w, fresh, word_of_new(fresh->info.state), NULL);
    }
  }
}

static bool differs(const struct watch *w) {
  if (w->first || w->before.count != w->now.count) return true;
  for (size_t i = 0; i < w->now.count; i++)
    if (compare(&w->before.row[i], &w->now.row[i]) != 0) return true;
  return false;
}

/* Overwrites the previous table, so that nothing flickers and nothing of a longer table remains.  After each read,
 * because LEFT and AGE change. */
static void draw_table(struct watch *w, const struct cli_rows *in_line) {
  fputs("\033[H\033[J", stdout);
  if (in_line->count == 0)
    puts(w->name != NULL ? "the name is not held" : "no name is held");
  else
    rows_table(in_line, dibs__cli_columns(STDOUT_FILENO), stdout);
}

static bool copy_rows(const struct cli_rows *from, struct cli_rows *to) {
  for (size_t i = 0; i < from->count && !to->full; i++) rows_add(&from->row[i].info, to);
  return !to->full;
}

static int keep_row(const dibs_lease_info *info, void *user) {
  struct watch *w = user;
  return rows_add(info, info->state == DIBS_BROKEN ? &w->breaks : &w->now);
}

static int keep_break(const dibs_lease_info *info, void *user) {
  struct watch *w = user;
  return info->state == DIBS_BROKEN ? rows_add(info, &w->breaks) : 0;
}

static bool is_there(const struct cli_rows *rows, const dibs_lease_info *info) {
  for (size_t i = 0; i < rows->count; i++) {
    const dibs_lease_info *a = &rows->row[i].info;
    if (a->state != DIBS_WAITS && strcmp(a->name, info->name) == 0 && a->fence.value == info->fence.value &&
        a->slot == info->slot && strcmp(a->owner, info->owner) == 0)
      return true;
  }
  return false;
}

/* A list of all names has no breaks: reads those of each name whose holder is gone. */
static dibs_status look_for_breaks(struct watch *w, dibs_error *error) {
  dibs_status status = DIBS_OK;
  const char *requested = NULL;
  for (size_t i = 0; i < w->before.count && status == DIBS_OK; i++) {
    const dibs_lease_info *old = &w->before.row[i].info;
    bool held = old->state == DIBS_HOLDS || old->state == DIBS_BREAKING;
    if (!held || is_there(&w->now, old) || (requested != NULL && strcmp(requested, old->name) == 0)) continue;
    requested = old->name; /* rows are sorted by name */
    status = dibs_show(w->store, old->name, keep_break, w, error);
    if (status == DIBS_NOT_FOUND) status = DIBS_OK;
  }
  return status;
}

static dibs_status look_at_store(struct watch *w, dibs_error *error) {
  dibs__tick begins = dibs__tick_now();
  rows_free(&w->breaks);
  dibs_status status = w->name != NULL ? dibs_show(w->store, w->name, keep_row, w, error)
                                       : dibs_list(w->store, NULL, keep_row, w, error);
  if (status == DIBS_NOT_FOUND) status = DIBS_OK;
  if (status == DIBS_OK && w->name == NULL && w->lines) status = look_for_breaks(w, error);
  w->since_ms = w->looked.ns == 0 ? 0 : (dibs__tick_now().ns - w->looked.ns) / 1000000 + 1;
  w->looked = begins;
  return status;
}

static int watch_once(struct watch *w) {
  dibs_error error = {0};
  dibs_status status = look_at_store(w, &error);
  if (status != DIBS_OK) return dibs__cli_fail_status(w->globals, status, &error, "cannot watch the store");
  struct cli_rows in_line = {0};
  if (w->now.full || w->breaks.full || !copy_rows(&w->now, &in_line)) {
    rows_free(&in_line);
    return dibs__cli_fail(w->globals, CLI_FAILED, "NO_MEMORY", "out of memory");
  }
  if (w->now.count > 1) qsort(w->now.row, w->now.count, sizeof *w->now.row, compare);
  if (w->lines) {
    print_events(w);
  } else {
    if (w->to_go > 0 && differs(w)) w->to_go--;
    draw_table(w, &in_line);
  }
  w->first = false;
  rows_free(&in_line);
  rows_free(&w->before);
  w->before = w->now;
  w->now = (struct cli_rows){0};
  return dibs__cli_flush(w->globals);
}

static int watch(struct watch *w, const struct cli_signals *signals, int alarm) {
  int code = CLI_DONE;
  while (code == CLI_DONE) {
    code = watch_once(w);
    if (code != CLI_DONE || w->to_go == 0) break;
    dibs__cli_alarm_set(alarm, dibs__tick_add_ms(dibs__tick_now(), w->interval_ms));
    struct pollfd fds[] = {{signals->fd, POLLIN, 0}, {alarm, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    int signo = dibs__cli_signals_next(signals);
    if (signo == SIGTSTP)
      raise(SIGSTOP);
    else if (signo == SIGWINCH || signo == SIGCONT)
      w->first = true;
    else if (signo != 0)
      code = CLI_SIGNAL + signo;
    dibs__cli_alarm_clear(alarm);
  }
  return code;
}

int dibs__cli_watch(struct cli_call *call) {
  const struct cli_globals *g = &call->v.globals;
  struct watch w = {.globals = g, .name = call->npos > 0 ? call->pos[0] : NULL, .first = true};
  w.interval_ms = call->v.interval_ms != CLI_UNSET ? call->v.interval_ms : INTERVAL_MS;
  w.to_go = call->v.count;
  w.lines = g->json || !isatty(STDOUT_FILENO);
  struct cli_signals signals;
  int code = dibs__cli_signals_open(g, &signals);
  if (code != CLI_DONE) return code;
  int alarm = dibs__cli_alarm_open();
  if (alarm < 0) code = dibs__cli_fail(g, CLI_FAILED, "", "cannot create a timer: %s", strerror(errno));
  if (code == CLI_DONE) code = dibs__cli_open(g, 0, &w.store);
  if (code == CLI_DONE) code = watch(&w, &signals, alarm);
  rows_free(&w.before);
  rows_free(&w.now);
  rows_free(&w.breaks);
  dibs_close(w.store);
  if (alarm >= 0) close(alarm);
  dibs__cli_signals_close(&signals);
  return code;
}
